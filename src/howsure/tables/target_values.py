"""What is in the target: numbers or not, values that many rows share, and what keeps it from being negative."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError, InputTypeError

__all__ = ["Ties", "check_numbers", "find_ties", "positive_numbers", "spread_ties"]

Array = NDArray[np.float64]
SHARE = 0.05  # of the rows: a value that so many have dominates
ROWS = 5  # at least, or every value of a small table would
# Width over which the rows of a dominating value are spread, in units of the spread of y: 5 share³, and at least 0.05.
# Chosen on made tables, by CRPS and the coverage of intervals: the rarer the value, the less there is to gain.
WIDTH = 5.0
LEAST_WIDTH = 0.05
GRID_WIDTH = 0.5  # of the distance of neighbours; more costs CRPS on the quality of wines, less leaves intervals narrow
LOWEST = 0.05  # of positive values: this quantile is what counts as a small one


# What regressors take ------------------------------------------------------------------------------------------------


def check_numbers(y: Any) -> Any:
    """Return targets whose text, if there is any, has become numbers; raise for targets that are no quantities."""
    array = np.asarray(y)
    if array.dtype.kind == "b":
        raise InputTypeError(_no_quantity("True and False", array, "pass y.astype(float) if you mean 0 and 1"))
    if array.dtype.kind in "mM":
        kind, advice = ("dates", "days since a fixed date") if array.dtype.kind == "M" else ("durations", "seconds")
        raise InputTypeError(_no_quantity(kind, array, f"pass numbers, such as {advice}"))
    if array.dtype.kind not in "OUS":
        return y
    values = np.empty(array.shape, dtype=object)
    for index, value in np.ndenumerate(array):
        if isinstance(value, bool | np.bool_):
            raise InputTypeError(_no_quantity("True and False", array, "pass 0 and 1 if you mean these", index))
        if isinstance(value, dt.date | dt.timedelta | np.datetime64 | np.timedelta64):
            raise InputTypeError(_no_quantity("dates or durations", array, "pass numbers", index))
        values[index] = _number(value, array, index) if isinstance(value, str | bytes) else value
    return values


def _number(value: str | bytes, array: NDArray[Any], index: tuple[int, ...]) -> float:
    try:
        return float(value)
    except ValueError:
        advice = "for classes use a classifier; where the text has units or separators, take the numbers out of it"
        raise InputError(_no_quantity("text", array, advice, index)) from None


def _no_quantity(kind: str, array: NDArray[Any], advice: str, index: tuple[int, ...] | None = None) -> str:
    index = (0,) * array.ndim if index is None else index
    first = f" (first: {str(array[index])!r} in row {index[0]})" if array.size else ""
    return f"this is a regressor, which predicts numbers, and y must be real numbers: y holds {kind}{first}; {advice}"


# Ties -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ties:
    """Values of a target that so many rows share that a density would collapse on them.

    Args:
        value: the most frequent value.
        share: its share of the rows.
        values: those that dominate.
        width: over which the rows of a dominating value are spread.
        spacing: over which all others are spread: half the distance of neighbours where most values are shared, as
            those of whole numbers are. 0 where single values stand out of a continuum.
    """

    value: float
    share: float
    values: Array
    width: float
    spacing: float


def find_ties(y: Array) -> Ties | None:
    """Return the ties of a target, (rows,), or None where no value dominates, or where there is only one value."""
    values, counts = np.unique(y, return_counts=True)
    often = counts >= max(ROWS, SHARE * len(y))
    if len(values) == 1 or not often.any():
        return None
    top = int(counts.argmax())
    share = float(counts[top] / len(y))
    spacing = GRID_WIDTH * _spacing(values, counts) if _is_grid(values, counts, often) else 0.0
    width = max(LEAST_WIDTH, WIDTH * share**3 * _need(share)) * _spread(y, values[top])
    if often.sum() > 1:  # neighbours that dominate both must not be smeared over each other
        width = min(width, float(np.diff(values[often]).min()) * (GRID_WIDTH if spacing else 1))
    return Ties(float(values[top]), share, values[often], max(width, spacing), spacing)


def _need(share: float) -> float:
    """Return how much of the width a value with this share of the rows needs.

    From nine tenths on, 90 % intervals need not hold anything but the value itself.
    """
    return float(np.clip((0.95 - share) / 0.1, 0, 1))


def _is_grid(values: Array, counts: NDArray[np.int64], often: NDArray[np.bool_]) -> bool:
    """Return whether the values are whole numbers, or others at equal distances, and not a continuum with an atom."""
    others = counts[~often].sum()
    gaps = np.diff(values)
    steps = gaps / gaps.min()
    even = bool(np.all(np.abs(steps - np.round(steps)) < 1e-6 * np.maximum(steps, 1)))
    shared = counts[~often & (counts > 1)].sum()
    # the values of a grid are shared; a few strays, also at uneven distances, do not make a continuum
    if others <= 0.01 * counts.sum() or shared > 0.5 * others:
        return True
    return even and often.sum() > 1 and bool(others <= 0.2 * counts.sum())


def _spacing(values: Array, counts: NDArray[np.int64]) -> float:
    """Return the typical distance of neighbouring values: the median, weighted by the rarer of the two."""
    gaps, weights = np.diff(values), np.minimum(counts[1:], counts[:-1])
    order = gaps.argsort()
    middle = np.searchsorted(weights[order].cumsum(), 0.5 * weights.sum())
    return float(gaps[order][middle])


def _spread(y: Array, value: float) -> float:
    """Return the geometric mean of standard and mean absolute deviation, but no more than heavy tails leave of it.

    That is three times the median distance of the other rows from the value.
    """
    centred = np.abs(y - y.mean())
    usual = float(np.sqrt(np.sqrt(np.mean(centred**2)) * centred.mean()))
    return min(usual, 3 * float(np.median(np.abs(y[y != value] - value))))


def spread_ties(y: Array, ties: Ties, seed: Sequence[int], shift: float | None = None) -> Array:
    """Return targets, (rows,), with their tied values spread evenly over the width of the ties.

    Args:
        y: targets.
        ties: what `find_ties` found in them.
        seed: of the random numbers; the same rows and seed give the same targets.
        shift: what is added to targets that cannot be negative, before they are transformed. Then no target comes below
            minus this number, and a 0 that stands out is spread below 0, where the transform makes it 0 again.
    """
    random = np.random.default_rng(list(seed)).uniform(-1, 1, len(y))
    half = 0.5 * np.where(np.isin(y, ties.values), ties.width, ties.spacing)
    if shift is not None:
        half = np.minimum(half, 0.9 * (y + shift))
    result: Array = np.where(half > 0, y + half * random, y)
    if shift and _zero_stands_out(ties):
        zero = y == 0
        result[zero] = 0.5 * ties.width * (random[zero] - 1)
    return result


def _zero_stands_out(ties: Ties) -> bool:
    """Return whether 0 dominates and is more than the first of whole numbers."""
    return 0 in ties.values and (not ties.spacing or (ties.value == 0 and ties.share > 0.5))


def describe_ties(ties: Ties, name: str, can_be_positive: bool) -> str:
    """Return a warning for the user: what was found, what was done, and what to look at or to try."""
    zeros = can_be_positive and _zero_stands_out(ties)
    better = ' target_transform="positive" gives zeros a probability of their own.' if zeros else ""
    return (
        f"{ties.share:.0%} of the values of {name} are {ties.value:g}: a density is the wrong model where many rows "
        f"share a value. Such values were spread over a width of {ties.width:.3g}, so that no network puts all of its "
        "density on one of them. CRPS and coverage say more than NLL here: howsure.metrics.summary(prediction, y)."
        f"{better}"
    )


# Targets that cannot be negative -------------------------------------------------------------------------------------


def check_sign(y: Array, rows: NDArray[np.int64], kind: str, name: str) -> None:
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
        f"(first: {y[first]:g} in row {int(rows[first])}); {advice}"
    )


def positive_numbers(y: Array, ties: Ties | None) -> tuple[float, float]:
    """Return scale and shift of the transform "positive" for a target, (rows,), that is never negative.

    The scale is the largest value, so that the transform is almost a logarithm for the values of training, but no more
    than three times their 95 % quantile: a single large value would otherwise decide the means of all rows. The shift
    is 0 unless there are zeros; then it is half of a small positive value, and no less than what ties are spread over.
    """
    above = y[y > 0]
    if not len(above):
        return 1.0, 1.0
    scale = float(min(above.max(), 3 * np.quantile(above, 0.95)))
    if len(above) == len(y):
        return scale, 0.0
    shift = 0.5 * float(np.quantile(above, LOWEST))
    if ties is not None:
        shift = max(shift, (1.05 if _zero_stands_out(ties) else 0.55) * ties.width)
    return scale, shift
