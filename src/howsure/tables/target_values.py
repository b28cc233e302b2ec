"""Checks of target values: whether they are numbers, which of them rows share, and whether they can be negative."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length

from howsure.errors import HowsureError, InputError, InputTypeError
from howsure.prediction import real_numbers
from howsure.tables.numbers import warn_of_rounding

__all__ = ["SharedValues", "check_sign", "find_atom", "find_shared_values", "positive_numbers", "read_target"]

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
    target: Array = check_array(_check_numbers(y), ensure_2d=False, dtype=np.float64, input_name="y")
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


def _check_numbers(y: Any) -> Any:
    """Return targets as numbers. Raise for the first target that is not a quantity."""
    array = np.asarray(y)
    if array.dtype.kind not in "bmMOUS":
        return y
    values = np.empty(array.shape, dtype=object)
    for index, value in np.ndenumerate(array):
        if isinstance(value, bool | np.bool_):
            raise _no_quantity(InputTypeError, "True and False", index, value, "pass 0 and 1 if you mean these")
        if isinstance(value, dt.date | dt.timedelta | np.datetime64 | np.timedelta64):
            advice = "pass numbers, such as seconds, or days since a fixed date"
            raise _no_quantity(InputTypeError, "dates or durations", index, value, advice)
        try:
            values[index] = float(value) if isinstance(value, str | bytes) else value
        except ValueError:
            advice = "use a classifier for classes, and remove units and separators from numbers"
            raise _no_quantity(InputError, "text", index, value, advice) from None
    return values


def _no_quantity(error: type[HowsureError], kind: str, index: Any, value: Any, advice: str) -> HowsureError:
    message = "this is a regressor, which predicts numbers, and y must be real numbers"
    row = index[0] if index else 0
    return error(f"{message}: y holds {kind} (first: {str(value)!r})", row=row, value=value, hint=advice)


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
