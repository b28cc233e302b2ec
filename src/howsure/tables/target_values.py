"""Checks of target values: whether they are numbers, which of them rows share, and whether they can be negative."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length

from howsure.errors import HowsureError, InputError, InputTypeError
from howsure.prediction import real_numbers
from howsure.tables.columns import Column, decide_kind, read_column
from howsure.tables.numbers import parse_number, warn_of_rounding
from howsure.tables.values import shorten

__all__ = [
    "SharedValues",
    "check_sign",
    "find_atom",
    "find_shared_values",
    "number_column",
    "positive_numbers",
    "read_target",
]

Array = NDArray[np.float64]
MAX_TARGET = 1e140  # largest target, and inverse of the smallest spread: squares must be finite in float64
ROWS_PER_VALUE = 5  # on average, from which on rows share values
MAX_LISTED_VALUES = 50  # that are taken for all possible ones if they are on no regular grid
COARSE_STEP = 0.05  # of a grid, in standard deviations of the target
BOUND_RATIO = 0.5  # rows of a value that ends a grid, relative to its neighbour's
MAX_GRID_VALUES = 2000  # of a regular grid: more are as good as a continuum
GRID_MARGIN = 0.5  # of the values of a regular grid, by which it continues beyond an end
GRID_TOLERANCE = 1e-6
GRID_DIGITS = 13  # of the values of a regular grid that no row has
MIN_ATOM_ROWS = 10
MIN_ATOM_SHARE = 0.02  # of the rows
MIN_ATOM_RATIO = 5  # of the number of rows with the second most frequent value
SMALL_QUANTILE = 0.05  # of positive values: this quantile counts as a small one


# Targets of regressors ---------------------------------------------------------------------------------------------


def read_target(y: Any, rows: int) -> Array:
    """Return targets as float64, (rows,) or (rows, targets), after checking that a regressor can learn them."""
    if y is None:
        raise InputError("this regressor requires y to be passed, but the target y is None")
    if isinstance(y, torch.Tensor) and y.dtype is torch.bool:
        y = y.numpy(force=True)
    if isinstance(y, np.ma.MaskedArray | torch.Tensor):
        y = real_numbers("y", y)
    if np.asarray(y).ndim == 0:
        raise InputTypeError(f"y must have a number for each row, and is one {type(y).__name__}", value=y)
    target: Array = check_array(_as_numbers(y), ensure_2d=False, dtype=np.float64, input_name="y")
    warn_of_rounding("y", np.asarray(y), target)
    if not target.flags.writeable:  # a view of a frame, which torch warns of
        target = target.copy()
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim > 2:
        raise InputError(f"y must have shape (rows,) or (rows, targets), got {target.shape}")
    check_consistent_length(target, np.empty(rows))
    size, spread = np.abs(target).max(), np.ptp(target, axis=0)
    if size > MAX_TARGET or ((spread > 0) & (spread < 1 / MAX_TARGET)).any():
        why = f"has values of {size:.3g}" if size > MAX_TARGET else f"varies by {spread[spread > 0].min():.3g} only"
        raise InputError(f"y {why}: float64 cannot hold its variance; pass y in other units")
    return target


def _as_numbers(y: Any) -> Any:
    """Return targets as numbers; texts are read as the texts of features. Raise for the first that is not a number."""
    array = np.asarray(y)
    if array.dtype.kind not in "bmMOUS":
        return y
    wide = array.reshape(len(array), math.prod(array.shape[1:]))
    names = list(getattr(y, "columns", [getattr(y, "name", None) or "y"]))
    names = names if len(names) == wide.shape[1] else [f"y{t}" for t in range(wide.shape[1])]
    values = np.empty(wide.shape)
    for t, name in enumerate(names):
        values[:, t] = number_column(str(name), pd.Series(wide[:, t])).values
        for row in np.flatnonzero(np.isnan(values[:, t])):
            if isinstance(wide[row, t], str):
                text = wide[row, t]
                problem = f"the target {str(name)!r} must be numbers, and one is {text!r:.60}"
                raise InputError(problem, row=int(row), value=text, hint="correct it, or leave out the row")
    return values.reshape(array.shape)


def number_column(name: str, values: "pd.Series[Any]") -> Column:
    """Return a column of targets; text counts only if it is numbers and marks of missing values."""
    if values.isna().all():
        raise InputError(f"the target {name!r} has no values", column=name)
    rows = np.flatnonzero(values.notna())
    first = rows[0]
    try:
        kind, content = decide_kind(name, values)
    except InputError as error:
        error.hint = NOT_TARGETS["category"][1]
        raise
    found = "duration" if content == "duration" else kind
    cells = values.array
    if booleans := [k for k in (rows if values.dtype == object else ()) if isinstance(cells[k], bool | np.bool_)]:
        found, first = "boolean", booleans[0]
    if found == "number":
        return read_column(name, values, kind, content)
    if found == "category":  # numbers among texts are not wrong
        first = next((k for k in rows if np.isnan(parse_number(str(values.iloc[k])))), first)
    what, advice = NOT_TARGETS[found]
    problem = f"the target {name!r} must be numbers, not {what} such as {shorten(values.iloc[first])}"
    wrong: type[HowsureError] = InputError if found == "category" else InputTypeError
    raise wrong(problem, column=name, row=int(first), value=values.iloc[first], hint=advice)


NOT_TARGETS = {
    "duration": ("durations", "write them as numbers, such as seconds"),
    "boolean": ("true and false", "write 1 and 0 if you mean these"),
    "date": ("dates", "write them as numbers, such as days since a fixed date"),
    "category": ("text", "write numbers without units; for classes use a classifier"),
}


# Shared values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedValues:
    """Values of a target that rows share.

    Args:
        values: in increasing order. A regular grid continues beyond the rows.
        possible: whether a new row has one of these values too.
    """

    values: Array
    possible: bool


def find_shared_values(y: Array) -> SharedValues | None:
    """Return the values of a target, (rows,), if its rows share them; None for a continuum, and for a single value.

    They share them if there are five rows or more for each value, or if all values lie on a regular grid with steps of
    at least 0.05 standard deviations, and half of the rows have the value of another row. At most 50 values, and those
    of a regular grid, are the only ones that a new row can have. A regular grid of more than two values has its gaps
    filled, and continues beyond an end unless that has five rows or more, and more than half as many as its neighbour:
    such an end is a bound.
    """
    values, counts = np.unique(y, return_counts=True)
    middle = 0.5 * (values[1:] + values[:-1])
    if len(values) < 2 or not ((values[:-1] < middle) & (middle < values[1:])).all():  # neighbours in float64
        return None
    step = _grid_step(values)
    coarse = step is not None and step >= COARSE_STEP * y.std() and counts[counts > 1].sum() >= 0.5 * len(y)
    if len(y) < ROWS_PER_VALUE * len(values) and not coarse:
        return None
    count = MAX_GRID_VALUES + 1 if step is None else round((values[-1] - values[0]) / step) + 1
    if step is None or len(values) == 2 or count > MAX_GRID_VALUES:
        return SharedValues(values, len(values) <= MAX_LISTED_VALUES)
    margin = round(GRID_MARGIN * count)
    below, above = (0 if _is_bound(*ends) else margin for ends in (counts[:2], counts[:-3:-1]))
    # decimal numbers as they are written, and the values of rows exactly as they are
    grid = np.array(
        [float(f"{value:.{GRID_DIGITS}g}") for value in values[0] + step * np.arange(-below, count + above)]
    )
    grid[below + np.round((values - values[0]) / step).astype(np.int64)] = values
    return SharedValues(grid, True)


def _is_bound(end: int, neighbour: int) -> bool:
    """Return whether an end of a grid with ``end`` rows is a bound of its values."""
    return bool(end >= ROWS_PER_VALUE and end > BOUND_RATIO * neighbour)


def find_atom(y: Array) -> float | None:
    """Return the value of a target, (rows,), that stands out of a continuum; None if there is none."""
    values, counts = np.unique(y, return_counts=True)
    if len(values) < 3:
        return None
    *_, second, first = np.sort(counts)
    if first < max(MIN_ATOM_ROWS, MIN_ATOM_SHARE * len(y), MIN_ATOM_RATIO * second):
        return None
    atom = float(values[counts.argmax()])
    return atom if find_shared_values(y[y != atom]) is None and len(y) - first >= MIN_ATOM_ROWS else None


def _grid_step(values: Array) -> float | None:
    """Return the distance of neighbours if the values lie on a regular grid; None if they do not."""
    gaps = np.diff(values)
    step = float(gaps.min())
    multiples = gaps / step
    if np.any(np.abs(multiples - np.round(multiples)) > GRID_TOLERANCE * multiples):
        return None
    return float((values[-1] - values[0]) / np.round(multiples).sum())


# Targets that cannot be negative -------------------------------------------------------------------------------------


def check_sign(y: Array, kind: str, name: str) -> None:
    """Raise if a target, (rows,), has values that a transform of this kind cannot have."""
    wrong = y <= 0 if kind == "log" else y < 0
    if not wrong.any():
        return
    first = int(wrong.argmax())
    rule = "> 0" if kind == "log" else "≥ 0"
    advice = (
        'use target_transform="positive", which takes zeros'
        if kind == "log" and (y >= 0).all()
        else "use target_transform=None"
    )
    raise InputError(
        f'target_transform="{kind}" needs {name} {rule}, and {int(wrong.sum())} of {len(y)} values are not '
        f"(first: {y[first]:g})",
        row=first,
        value=float(y[first]),
        hint=advice,
    )


def positive_numbers(y: Array) -> tuple[float, float]:
    """Return scale and shift of the transform "positive" for a target, (rows,), that is never negative.

    The scale is the largest value, so that the transform is almost a logarithm for the values of training, but no more
    than three times their 95% quantile: a single large value would otherwise decide the means of all rows. The shift
    is 0 without zeros, and otherwise half of a small positive value.
    """
    above = y[y > 0]
    if not len(above):
        return 1.0, 1.0
    scale = float(min(above.max(), 3 * np.quantile(above, 0.95)))
    if len(above) == len(y):
        return scale, 0.0
    return scale, 0.5 * float(np.quantile(above, SMALL_QUANTILE))
