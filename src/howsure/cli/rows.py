"""Rows of files through a model: the columns that it reads of a frame, and the frame of its predictions."""

import contextlib
import difflib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError, InputTypeError
from howsure.files import listed
from howsure.io import CsvOptions, read_file

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = [
    "Rows",
    "check_columns",
    "features_of",
    "naming_rows",
    "number_columns",
    "predict_frame",
    "read_target",
    "read_test_rows",
    "rows_with_targets",
]

Array = NDArray[np.float64]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a text that spreadsheets compute


class Rows(NamedTuple):
    """Rows of a table whose targets are known.

    Args:
        x: columns of the table.
        y: targets, (N, T).
        targets: their names.
        table: name of the table, for messages.
        numbers: positions of the rows in the table.
        left_out: number of rows of the table without a target.
    """

    x: Any
    y: Array
    targets: list[str]
    table: str | Path
    numbers: NDArray[np.int64]
    left_out: int = 0

    def take(self, chosen: Any) -> "Rows":
        """Return some of the rows, by position or by a mask."""
        return self._replace(x=self.x.iloc[chosen], y=self.y[chosen], numbers=self.numbers[chosen])


def rows_with_targets(frame: "pd.DataFrame", targets: list[str], table: str | Path) -> Rows:
    """Return the rows of a frame that have all targets; raise if there are none."""
    y = read_target(frame, targets, table)
    known = ~np.isnan(y).any(1)
    if not known.any():
        raise InputError(f"{table} has no rows with a target")
    return Rows(frame, y, targets, table, np.arange(len(y)), int((~known).sum())).take(known)


def read_test_rows(
    model: "Regressor", table: Path, target: Sequence[str], by: str | None, csv: CsvOptions
) -> "tuple[Rows, pd.Series[Any] | None]":
    """Return the rows of a table that have all targets, with the columns of the model, and their groups.

    Args:
        model: a fitted regressor.
        table: the file.
        target: names of the columns with the targets; empty for those that the model learned.
        by: name of the column with the groups, or None.
        csv: separator and encoding.
    """
    names = list(target) or model.target_names_
    if names is None:
        raise InputError("the model does not know the names of its targets", hint="name them with --target")
    count = len(model.target_names_ or names)
    if len(names) != count:
        raise InputError(f"--target: the model has {count} target{'' if count == 1 else 's'}, not {len(names)}")
    numbers = number_columns(model)
    frame = read_file(table, None if numbers is None else [*numbers, *names], csv)
    check_columns([] if by is None else [by], frame.columns, f"--by: {table} has no column")
    check_columns(names, frame.columns, f"{table} has no target column")
    rows = rows_with_targets(frame, names, table)
    # of a model without names of columns, the number of columns counts
    own = rows.x if hasattr(model, "feature_names_in_") else rows.x.drop(columns=names)
    return rows._replace(x=features_of(model, own, table)), None if by is None else rows.x[by]


def predict_frame(
    model: "Regressor",
    frame: "pd.DataFrame",
    *,
    coverage: float = 0.9,
    keep: Sequence[str] = (),
    escape_formulas: bool = False,
) -> "pd.DataFrame":
    """Return the kept columns of a frame and the predictions for its rows, one row each, in their order.

    The columns of predictions are ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``lower`` and ``upper``, and
    for models with evidence ``familiarity`` and ``unfamiliar``. Columns that a model does not have are left out: one
    network with a normal likelihood has no ``epistemic_std``, and a target learned by its logarithm has a ``median``
    but no ``mean`` and ``std``. With several targets each name starts with the target's, as in ``price_mean``.

    Args:
        model: a fitted regressor.
        frame: rows with at least the columns of the model; others are ignored.
        coverage: probability of the interval from ``lower`` to ``upper``.
        keep: names of columns of the frame that are copied.
        escape_formulas: whether copied texts that a spreadsheet would compute get an apostrophe in front.
    """
    import pandas as pd

    check_columns(keep, frame.columns, "--keep: the table has no column")
    found = model.predict_distribution(features_of(model, frame)).to_frame(coverage).reset_index(drop=True)
    suffix = re.compile(rf"(?<=lower|upper)_{re.escape(f'{coverage:g}')}$")  # equal for all columns
    found.columns = [suffix.sub("", str(name)) for name in found]
    if "familiarity" in found and model.unfamiliar_below_ is not None:
        found["unfamiliar"] = ~(found["familiarity"] >= model.unfamiliar_below_)  # also where it is NaN
    for name in keep:
        if name in found.columns:
            raise InputError(
                f"--keep {name}: predictions have a column of this name",
                column=name,
                hint="rename the one of the table",
            )
    kept = frame[list(keep)].reset_index(drop=True)
    if escape_formulas:
        kept = kept.map(_escape).rename(columns=_escape)
    return pd.concat([kept, found], axis=1)


def _escape(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def features_of(model: "Regressor", frame: "pd.DataFrame", name: str | Path = "the table") -> Any:
    """Return the columns that a model learned from, in their order; raise in one sentence if some are missing."""
    names: list[str] = model.encoding_.names
    if hasattr(model, "feature_names_in_"):
        check_columns(names, frame.columns, f"{name} lacks, of the columns that the model learned from,")
        return frame[names]
    if len(frame.columns) != len(names):
        raise InputError(
            f"{name} has {len(frame.columns)} columns, and the model was fitted to an array of {len(names)} "
            "without names; pass a table of these columns alone, in their order"
        )
    return frame.to_numpy()


@contextlib.contextmanager
def naming_rows(
    file: str | Path, numbers: Sequence[int] | NDArray[np.int64], hint: Callable[[str], str] | None = None
) -> Iterator[None]:
    """Raise errors of the library about some rows of a file again, with the name of the file and the row in the file.

    Args:
        file: name of the file.
        numbers: number of each of the rows in the file.
        hint: returns the remedy for a column, in words of the shell; None keeps the hint of the library.
    """
    try:
        yield
    except (InputError, InputTypeError) as error:
        if error.column is not None or error.row is not None:  # others may be about an output
            error.message = f"{file}: {error.message}"
        if error.row is not None and error.row < len(numbers):
            error.row = int(numbers[error.row])
        if hint is not None and error.column is not None:
            error.hint = hint(error.column)
        raise


def number_columns(model: "Regressor") -> list[str] | None:
    """Return the columns that were plain numbers when the model was fitted, None if its columns have no names.

    All others are read as text, and the model converts them: a file may hold only codes such as
    007, or numbers such as 1.234 with a point for thousands.
    """
    from howsure.tables.numbers import PLAIN

    if not hasattr(model, "feature_names_in_"):
        return None
    return [e.name for e in model.encoding_.encoders if e.kind == "number" and e.content == PLAIN]


def check_columns(names: Sequence[str], known: Any, problem: str) -> None:
    """Raise if some names are not known, with the nearest that is known; ``problem`` is the start of the sentence."""
    present = [str(name) for name in known]
    lacking = [name for name in names if name not in present]
    if lacking:
        folded = {name.casefold().strip(): name for name in present}
        near = difflib.get_close_matches(lacking[0].casefold().strip(), folded, n=1)
        hint = f"did you mean {folded[near[0]]!r}?" if near else f"it has {listed(present)}"
        raise InputError(f"{problem} {listed(lacking)}", column=lacking[0], hint=hint)


def read_target(frame: "pd.DataFrame", names: Sequence[str], file: str | Path) -> Array:
    """Return the targets, (rows, targets), with NaN where they are missing; raise for columns that hold no numbers."""
    from howsure.tables.target_values import number_column

    check_columns(names, frame.columns, f"{file} has no column")
    with naming_rows(file, range(len(frame))):
        columns = [number_column(name, frame[name]) for name in names]
    for column in columns:
        if column.unreadable is not None:
            warnings.warn(column.unreadable, stacklevel=2)
    return np.column_stack([column.values for column in columns])
