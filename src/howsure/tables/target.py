"""Targets as networks learn them: ties spread, and a transform where the target cannot be negative."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.distributions import Transform
from howsure.tables.target_values import check_sign, describe_ties, find_ties, positive_numbers, spread_ties

__all__ = ["Target", "prepare_target"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Target:
    """Targets as networks learn them, and the rows that they learn from.

    Args:
        values: of all rows, (N,) or (N, T); those that no network learns from are as they were, or 0 with a transform.
        rows: that networks learn from.
        weights: of all rows, (N,); None: all count the same.
        censored: of the shape of the values: 0 for a value, 1 and −1 for a lower and an upper bound; None: all values.
        transform: from these values to the target, or None.
        notices: warnings for the user about values that many rows share.
    """

    values: Array
    rows: NDArray[np.int64]
    weights: Array | None = None
    censored: NDArray[np.int8] | None = None
    transform: Transform | None = None
    notices: tuple[str, ...] = ()

    @property
    def table(self) -> Array:
        """The values as (N, T)."""
        return self.values.reshape(len(self.values), -1)

    @property
    def bounds(self) -> NDArray[np.int8] | None:
        """The bounds as (N, T)."""
        return None if self.censored is None else self.censored.reshape(self.table.shape)


def prepare_target(
    y: Array,
    rows: NDArray[np.int64],
    kind: str | None,
    seed: int,
    names: Sequence[str] | None = None,
    censored: NDArray[np.int8] | None = None,
    weights: Array | None = None,
) -> Target:
    """Return the targets, (N,) or (N, T), as networks learn them from some of the rows.

    Without ties and without a transform they are returned as they are. Bounds of censored targets are no ties, however
    many rows share one, and are not spread.

    Args:
        y: targets.
        rows: those that count.
        kind: "positive", "log" or None.
        seed: of the random numbers that spread ties.
        names: of several targets.
        censored: of the shape of y, as `read_censored` returns it; None: all are values.
        weights: of all rows, (N,).
    """
    table = y.reshape(len(y), -1)
    several = table.shape[1] > 1
    values = np.zeros_like(table) if kind else table.copy()
    scales, shifts, notices = [], [], []
    for t in range(table.shape[1]):
        own = table[rows, t]
        name = f"y[{names[t]!r}]" if several and names is not None else f"y[:, {t}]" if several else "y"
        if kind is not None:
            check_sign(own, rows, kind, name)
        known = slice(None) if censored is None else censored.reshape(table.shape)[rows, t] == 0
        ties = find_ties(own[known])
        scale, shift = positive_numbers(own, ties) if kind == "positive" else (1.0, 0.0)
        if ties is not None:
            notices.append(describe_ties(ties, name, kind is None and bool((own >= 0).all())))
            own = own.copy()
            own[known] = spread_ties(own[known], ties, (seed, t), None if kind is None else shift)
        values[rows, t] = own
        scales.append(scale)
        shifts.append(shift)
    if kind is None:
        return Target(values.reshape(y.shape), rows, weights, censored, None, tuple(notices))
    transform = Transform(kind, scales, shifts) if several else Transform(kind, scales[0], shifts[0])
    # a tied 0 lies below 0 now, and the shift lifts it: the transform of the lifted values is that without a shift
    lifted = torch.from_numpy(values[rows] + np.array(shifts))
    before = Transform(kind, scales) if several else Transform(kind, scales[0])
    values[rows] = before.inverse(lifted).numpy()
    return Target(values.reshape(y.shape), rows, weights, censored, transform, tuple(notices))
