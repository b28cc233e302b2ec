"""Constant targets, and scores of a model with the distribution of the targets and without features."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.formulas import student_t

__all__ = ["constant_cell_score", "constant_score", "varies"]

DEGREES = (2.0, 3.0, 5.0, 10.0, 100.0)  # of freedom. The best is used
ROUNDS = 30  # of expectation maximisation, which has converged long before
MAX_TARGETS = 5000  # targets


def constant_score(y: Tensor) -> float:
    """Return the mean NLL of targets under the Student t that fits them best, whatever their features; (rows, targets).

    Location and scale are fitted by expectation maximisation for each of a few degrees of freedom.
    """
    some = y[:: max(1, len(y) // MAX_TARGETS)].double().cpu()
    df = torch.tensor(DEGREES, dtype=torch.float64, device="cpu").view(-1, 1, 1)
    loc, square = some.mean(0).expand(len(df), 1, -1), some.var(0, correction=0).clamp(min=1e-12).expand(len(df), 1, -1)
    for _ in range(ROUNDS):
        count = (df + 1) / (df + (some - loc).square() / square)
        loc = (count * some).sum(1, keepdim=True) / count.sum(1, keepdim=True)
        square = (count * (some - loc).square()).mean(1, keepdim=True).clamp(min=1e-12)
    nll = -student_t.log_prob(some, df, loc, square.sqrt()).mean(1)
    return float(nll.min(0).values.mean())


def constant_cell_score(cells: Tensor) -> float | None:
    """Return the mean NLL of the cells (rows, 2) of a target under their frequencies; None unless rows share them."""
    counts = torch.unique(cells, dim=0, return_counts=True)[1].double()
    if 2 * len(counts) > len(cells):
        return None
    shares = counts / len(cells)
    return -float((shares * shares.log()).sum())


def varies(y: NDArray[np.float64]) -> bool:
    """Return whether each target, (rows, targets), varies by more than a few units in the last place.

    >>> varies(np.full((9, 1), 1e9)), varies(np.arange(9.0)[:, None])
    (False, True)
    """
    return bool((np.ptp(y, axis=0) > 4 * np.finfo(float).eps * np.abs(y).max(0)).all())
