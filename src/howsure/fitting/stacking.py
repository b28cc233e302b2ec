"""How much the networks of a mixture count: weights by the likelihood of rows that they did not learn from."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.fitting.members import Member, kinds_of
from howsure.fitting.tables import Fitted

__all__ = ["stacked", "stacking_weights"]

Array = NDArray[np.float64]
ROUNDS = 1000  # of the iteration, which converges to a maximum
LEAST = 0.03  # weight of a kind of network below which predictions do without it
PRIOR = 0.5  # rows that every kind gets, so that a handful of rows does not rule one out


def stacking_weights(log_densities: Array, row_weights: Array | None = None) -> Array:
    r"""Return the weights, (kinds,), of the mixture that gives rows the largest likelihood.

    Stacking of predictive distributions (Yao et al. 2018), by expectation maximisation: a row's share of a kind is
    proportional to its weight times the density it gave the row, and the new weight is the mean share. The likelihood
    is concave in the weights, and never falls.

    Args:
        log_densities: (rows, kinds), of rows that the networks did not learn from.
        row_weights: how much the rows count, (rows,).
    """
    rows, kinds = log_densities.shape
    density = np.exp(log_densities - log_densities.max(1, keepdims=True))
    counts = np.ones(rows) if row_weights is None else row_weights * rows / row_weights.sum()
    weights = np.full(kinds, 1 / kinds)
    for _ in range(ROUNDS):
        shares = density * weights
        shares /= shares.sum(1, keepdims=True)
        new = (counts @ shares + PRIOR) / (rows + PRIOR * kinds)
        if np.abs(new - weights).max() < 1e-6:
            break
        weights = new
    return weights


def stacked(
    fitted: Fitted,
    x: Array,
    y: Array,
    members: Sequence[Member],
    row_weights: Array | None = None,
    censored: NDArray[np.int8] | None = None,
) -> tuple[Fitted, Sequence[Member]]:
    """Return the model whose networks count by what they see, and the members that are left.

    All networks that see the same count alike. What a kind of network is worth is told by the validation rows of its
    members, each predicted by those that held it out. Kinds that hardly count are left out.

    Args:
        fitted: a trained model.
        x: what its networks saw of all rows.
        y: targets, as they learned them.
        members: the rows of each network, as it was fitted.
        row_weights: of all rows.
        censored: of the shape of y, as for :func:`howsure.fitting.fit`; None: all targets are values.
    """
    kind_of = kinds_of(members)
    kinds = 1 + max(kind_of)
    if kinds == 1 or not all(len(m.validation) for m in members):
        return fitted, members
    rows, table = _held_out(fitted, x, y, members, kind_of, kinds, censored)
    if not len(rows):
        return fitted, members
    weights = stacking_weights(table, None if row_weights is None else row_weights[rows])
    weights = np.where(weights < LEAST, 0.0, weights)
    each = weights / np.bincount(kind_of, minlength=kinds)
    kept = [k for k in range(len(members)) if weights[kind_of[k]] > 0]
    count = torch.tensor([each[kind_of[k]] for k in kept], dtype=torch.float64, device="cpu")
    left = fitted if len(kept) == len(members) else fitted.select(kept)
    some = replace(left, weights=count / count.sum())
    some.training = left.training
    return some.trimmed(), [members[k] for k in kept]


def _held_out(
    fitted: Fitted,
    x: Array,
    y: Array,
    members: Sequence[Member],
    kind_of: Sequence[int],
    kinds: int,
    censored: NDArray[np.int8] | None,
) -> tuple[NDArray[np.int64], Array]:
    """Return the rows that networks of every kind held out, and the mean log densities of each kind there."""
    scores = fitted.validation_log_densities(x, y, members, censored)
    total, count = np.zeros((len(x), kinds)), np.zeros((len(x), kinds))
    for k, (member, score) in enumerate(zip(members, scores, strict=True)):
        held = member.validation.numpy()
        total[held, kind_of[k]] += score.numpy()
        count[held, kind_of[k]] += 1
    rows = np.flatnonzero((count > 0).all(1) & np.isfinite(total).all(1))
    return rows, total[rows] / count[rows]
