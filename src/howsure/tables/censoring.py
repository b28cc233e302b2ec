"""Targets of which only a bound is known: what fits take, and their likelihood by a distribution."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.errors import InputError, InputTypeError

__all__ = ["log_likelihood", "read_censored"]

MEANING = "0 or False where y is the value, 1 or True where the value is at least y, -1 where it is at most y"
LEAST = 1e-300  # smaller probabilities of a bound count as this


def read_censored(
    censored: Any, y: NDArray[np.float64], rows: NDArray[np.int64] | None = None
) -> NDArray[np.int8] | None:
    """Return what is known of each target, of the shape of y: 0 its value, 1 that it is at least y, −1 at most.

    Returns None if all targets are values.

    Args:
        censored: −1, 0 and 1, or booleans, (N,) for all targets of a row or of the shape of y.
        y: targets and bounds, (N,) or (N, T).
        rows: those that count; None counts all.

    Raises:
        InputTypeError: for what are not numbers.
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
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"censored must be -1, 0 or 1, got {table[first]} in row {first[0]}: {MEANING}")
    known = np.broadcast_to(table.reshape(len(y), *(-1,) * (y.ndim - 1)), y.shape).astype(np.int8)
    counted = known.reshape(len(y), -1) if rows is None else known.reshape(len(y), -1)[rows]
    without = np.flatnonzero((counted != 0).all(0))
    if len(counted) and len(without):
        which = "y" if y.ndim == 1 else f"y[:, {without[0]}]"
        raise InputError(f"all {len(counted)} rows of {which} are censored; at least one value must be known")
    return known if counted.any() else None


def log_likelihood(distribution: Any, y: Tensor, censored: Tensor | None) -> Tensor:
    """Return the log density of values and the log probability of bounds.

    Args:
        distribution: of y, with ``log_prob``, ``cdf`` and ``sf``, in float64.
        y: values and bounds.
        censored: of the shape of y, as `read_censored` returns it; None: all are values.
    """
    density: Tensor = distribution.log_prob(y)
    if censored is None:
        return density
    tail = torch.where(censored > 0, distribution.sf(y), distribution.cdf(y)).clamp(min=LEAST)
    return torch.where(censored == 0, density, tail.log())
