"""Exceptions of howsure. Each one is about something that the caller can correct."""

from importlib import import_module
from typing import Any

__all__ = [
    "FewLabelsWarning",
    "HowsureError",
    "InputError",
    "InputTypeError",
    "UnreadableCellsWarning",
    "import_extra",
    "install_hint",
]


class HowsureError(Exception):
    """Base of every error that howsure raises on purpose.

    Programs read the fields. ``str(error)`` is one sentence for people: the message, the row and the hint.

    Args:
        message: the problem, with the names of columns, arguments or files. Leave out the row and the remedy, because
            ``str(error)`` adds them.
        column: name of the column of a table.
        row: position of the row in the table, counted from 0. A caller that passed a part of a larger table can raise
            the error again with the position in the larger table.
        value: the value that cannot be used.
        hint: the remedy, as a clause that can follow a semicolon.

    >>> str(InputError("column 'size' has '12 kg'", column="size", row=3, value="12 kg", hint="write numbers"))
    "column 'size' has '12 kg' (row 3); write numbers"
    >>> issubclass(InputError, HowsureError)
    True
    """

    def __init__(
        self,
        message: str,
        *,
        column: str | None = None,
        row: int | None = None,
        value: Any = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.row = row
        self.value = value
        self.hint = hint

    def __str__(self) -> str:
        row = "" if self.row is None else f" (row {self.row})"
        hint = "" if self.hint is None else f"; {self.hint}"
        return f"{self.message}{row}{hint}"


class InputError(HowsureError, ValueError):
    """A value, shape, name or device that cannot be used. The arguments are as for :class:`HowsureError`.

    >>> try:
    ...     raise InputError("coverage must be between 0 and 1, got 3", value=3)
    ... except ValueError as error:
    ...     error.value
    3
    """


class InputTypeError(HowsureError, TypeError):
    """An object or dtype of the wrong type, such as integer targets. The arguments are as for :class:`HowsureError`.

    >>> isinstance(InputTypeError("y must be numbers, not dates"), TypeError)
    True
    """


class FewLabelsWarning(UserWarning):
    """A target with too few labels to be calibrated by itself.

    Args:
        target: name or position of the target.
        labels: number of labels.
        needed: number from which the calibration counts in full.
    """

    def __init__(self, target: str | int, labels: int, needed: int) -> None:
        effect = "is not calibrated" if labels == 0 else "is calibrated in part: its factor is shrunk towards 1"
        super().__init__(f"target {target!r} has {labels} labels and {effect}; give it at least {needed}")
        self.target = target
        self.labels = labels
        self.needed = needed


class UnreadableCellsWarning(UserWarning):
    """Cells of a column of numbers, booleans or dates that cannot be read and count as missing.

    Args:
        column: name of the column.
        count: number of cells.
        row: position of the first one in the table, counted from 0.
        value: the first one.
    """

    def __init__(self, column: str, count: int, row: int, value: str) -> None:
        super().__init__(column, count, row, value)
        self.column, self.count, self.row, self.value = column, count, row, value

    def __str__(self) -> str:
        cells = "1 cell" if self.count == 1 else f"{self.count} cells"
        first = f"{self.value!r:.60} in row {self.row}"
        return f"column {self.column!r}: {cells} cannot be read and count as missing (first: {first})"


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, for error messages.

    >>> install_hint("onnx")
    'pip install ".[onnx]" in a checkout of howsure'
    """
    return f'pip install ".[{extra}]" in a checkout of howsure'


def import_extra(module: str, extra: str) -> Any:
    """Return a module of a package that an extra installs, or raise an InputError with the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f"{package} is not installed", hint=f"install it with {install_hint(extra)}") from error
