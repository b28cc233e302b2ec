"""Censored targets: their description for fits, and their likelihood."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from howsure.distributions import Mixture
from howsure.distributions.mixture import log_cell_prob
from howsure.errors import InputError, InputTypeError

__all__ = ["cells_of_bounds", "log_likelihood", "read_censored"]

MEANING = "0 or False where y is the value, 1 or True where the value is at least y, -1 where it is at most y"
Array = NDArray[np.float64]


def read_censored(
    censored: Any, y: NDArray[np.float64], rows: NDArray[np.int64] | None = None
) -> NDArray[np.int8] | None:
    """Return 0 for targets that are values, 1 for lower bounds and −1 for upper bounds, of the shape of y.

    Returns None if all targets are values.

    Args:
        censored: −1, 0 and 1, or booleans, (N,) for all targets of a row or of the shape of y.
        y: targets and bounds, (N,) or (N, T).
        rows: those that count; None counts all.

    Raises:
        InputTypeError: for entries that are not numbers.
        InputError: for a wrong shape, other numbers, or a target without any value.
    """
    if censored is None:
        return None
    if isinstance(censored, Tensor):
        censored = censored.numpy(force=True)
    table = np.asarray(censored)
    if table.dtype.kind not in "biuf":
        raise InputTypeError(f"censored must be numbers or booleans, not {table.dtype}: {MEANING}")
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    if table.shape not in {y.shape, y.shape[:1]}:
        also = "" if y.ndim == 1 else f" or {y.shape}"
        raise InputError(f"censored must have shape {y.shape[:1]}{also}, as y has, got {table.shape}")
    wrong = ~np.isin(table, (-1, 0, 1))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"censored must be -1, 0 or 1, got {table[at]}", row=at[0], value=table[at], hint=MEANING)
    known = np.broadcast_to(table.reshape(len(y), *(-1,) * (y.ndim - 1)), y.shape).astype(np.int8)
    counted = known.reshape(len(y), -1) if rows is None else known.reshape(len(y), -1)[rows]
    without = np.flatnonzero((counted != 0).all(0))
    if len(counted) and len(without):
        which = "y" if y.ndim == 1 else f"y[:, {without[0]}]"
        raise InputError(f"all {len(counted)} rows of {which} are censored; at least one value must be known")
    return known if counted.any() else None


def cells_of_bounds(y: Array, censored: NDArray[np.int8] | None) -> Array | None:
    """Return the ends of the cells that targets lie in, of the shape of y and a last dimension of size 2.

    Args:
        y: values and bounds.
        censored: of the shape of y, as `read_censored` returns it; None: all are values, and so is the result.
    """
    if censored is None:
        return None
    return np.stack([np.where(censored < 0, -np.inf, y), np.where(censored > 0, np.inf, y)], -1)


def log_likelihood(mixture: Mixture, y: Tensor, cells: Tensor | None) -> Tensor:
    """Return the log density of values and the log probability of cells.

    Args:
        mixture: of y, in float64.
        y: values.
        cells: lower and upper ends in the last dimension, equal where y is the value; None: all are values.
    """
    if cells is None:
        return mixture.log_prob(y)
    lower, upper = cells.unbind(-1)
    return log_cell_prob(mixture, lower, upper, y)
