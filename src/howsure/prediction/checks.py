"""Checks of numbers that users give, and draws from many of them."""

from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsure.errors import InputError, InputTypeError

__all__ = ["checked_coverages", "checked_levels", "draw_some", "real_numbers"]


def real_numbers(name: str, values: Any) -> NDArray[np.float64]:
    """Return values as a new float64 array with NaN where they are masked or missing; raise for dates, text and others.

    A new one, because arrays of pandas are read-only, which causes a warning of torch.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.array(values)
        if array.dtype.kind in "mMcSU":
            raise TypeError(f"got {array.dtype}")
        if array.dtype.kind == "O":
            import pandas as pd

            array[pd.isna(array)] = np.nan
        result: NDArray[np.float64] = array.astype(float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must be real numbers ({error})") from error
    if hidden is not None:
        result[hidden] = np.nan
    return result


def checked_coverages(coverage: Any) -> list[float]:
    """Return one or several coverages as a list, after checking that they are probabilities, each given once."""
    several = [coverage] if isinstance(coverage, Real | str) or not isinstance(coverage, Iterable) else list(coverage)
    for each in several:
        if not isinstance(each, Real) or not 0 < float(each) < 1:
            raise InputError(f"coverage must lie between 0 and 1, got {each}")
    if not several or len({f"{float(each):g}" for each in several}) < len(several):
        raise InputError(f"coverage is a number between 0 and 1, or several different ones, got {coverage!r}")
    return [float(each) for each in several]


def checked_levels(q: ArrayLike) -> NDArray[np.float64]:
    """Return one or several probabilities of quantiles as an array, after checking them."""
    levels = real_numbers("q", q)
    if levels.ndim > 1 or not levels.size or not ((levels >= 0) & (levels <= 1)).all():
        raise InputError(f"quantiles are a number between 0 and 1, or a list of them, got {q!r}")
    return levels


def draw_some(entries: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return all of few entries, or ``most`` of many, drawn without a change of NumPy's random state, in order."""
    if len(entries) <= most:
        return entries
    return np.sort(np.random.default_rng(0).choice(entries, most, replace=False))
