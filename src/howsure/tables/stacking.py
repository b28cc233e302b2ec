"""How much the networks of a mixture count: weights by the likelihood of rows that they did not learn from."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.tables.members import Member, kinds_of
from howsure.tables.model import Fitted

__all__ = ["stacked", "stacking_weights"]

Array = NDArray[np.float64]
ROUNDS = 1000  # of the iteration, which converges to a maximum
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
) -> Fitted:
    """Return the model whose networks are weighted by what they see.

    All networks that see the same have the same weight. It follows from the likelihood of validation rows, each
    predicted by the networks that held it out.

    Args:
        fitted: a trained model.
        x: what its networks saw of all rows.
        y: targets, as they learned them.
        members: the rows of each network, as it was fitted.
        row_weights: of all rows.
        censored: of the shape of y, as for :func:`howsure.tables.train.fit`; None: all targets are values.
    """
    kind_of = kinds_of(members)
    kinds = 1 + max(kind_of)
    if kinds == 1 or not all(len(m.validation) for m in members):
        return fitted
    rows, table = _held_out(fitted, x, y, members, kind_of, kinds, censored)
    if not len(rows):
        return fitted
    weights = stacking_weights(table, None if row_weights is None else row_weights[rows])
    each = (weights / np.bincount(kind_of, minlength=kinds))[kind_of]
    some = replace(fitted, weights=torch.from_numpy(each / each.sum()))
    some.training = fitted.training
    return some


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
