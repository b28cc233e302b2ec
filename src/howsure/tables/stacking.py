"""How much the networks of a mixture count: weights by the likelihood of rows that they did not learn from."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.formulas import student_t
from howsure.tables.experts.linear import LinearExpert
from howsure.tables.members import kinds_of
from howsure.tables.model import TableModel
from howsure.tables.target import Atom, Target
from howsure.tables.views import Views
from howsure.training.batches import pad_rows

__all__ = ["stacked", "stacking_weights", "validation_log_densities"]

Array = NDArray[np.float64]
ROUNDS = 1000  # of the iteration, which converges to a maximum
VALIDATION_ROWS = 1000  # of each member whose densities are computed at once
ONE_STANDARD_ERROR = 1.0
MIN_LINEAR_SHARE = 0.01  # below which the linear expert is left out
MAX_LINEAR_SHARE = 0.9999  # so that the networks keep a weight
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


def stacked(model: TableModel, views: Views, target: Target, linear: bool = False) -> TableModel:
    """Return the model with weights of its networks by their inputs, and a linear expert if that has a weight.

    All networks that see the same have the same weight. It follows from the likelihood of validation rows, each
    predicted by the networks that held it out. The linear expert predicts each of these rows as left out.

    Args:
        model: the networks.
        views: the inputs of the networks.
        target: as they learned it.
        linear: whether a linear expert may join them.
    """
    members = views.members
    kind_of = kinds_of(members)
    kinds = 1 + max(kind_of)
    if kinds == 1 or not all(len(m.validation) for m in members):
        return model
    rows, table = _held_out(model, views, target, kind_of, kinds)
    if not len(rows):
        return model
    expert = _linear_expert(views, target) if linear and not isinstance(target.transform, Atom) else None
    if expert is not None:
        table = np.column_stack([table, expert[1][rows]])
    counts = None if target.weights is None else target.weights[rows]
    weights = stacking_weights(table, counts)
    if expert is not None:
        share, weights = float(weights[-1]), weights[:-1]
        if _is_enough(table, np.append(weights, share)):
            share = 1.0
        if share >= MIN_LINEAR_SHARE:
            model.linear = expert[0]
            model.linear.share.fill_(min(share, MAX_LINEAR_SHARE))
    each = (weights / np.bincount(kind_of, minlength=kinds))[kind_of]
    model.weights = torch.from_numpy(each / each.sum())
    return model


def _is_enough(log_densities: Array, weights: Array) -> bool:
    """Return whether the last expert alone is as likely as the mixture, up to one standard error over rows.

    The networks were stopped by the rows that are compared, which favors them over the linear expert.
    """
    largest = log_densities.max(1, keepdims=True)
    whole = np.log(np.exp(log_densities - largest) @ weights) + largest[:, 0]
    gain = whole - log_densities[:, -1]
    return bool(gain.mean() <= ONE_STANDARD_ERROR * gain.std() / len(gain) ** 0.5)


def _linear_expert(views: Views, target: Target) -> tuple[LinearExpert, Array] | None:
    """Return the linear expert, and the mean log density over targets of all rows as left out; None without one.

    There is none for censored targets, which have no value to regress on.
    """
    cells, y = target.cells, target.table
    if cells is not None and (np.isinf(cells).any(-1) & (cells == y[..., None]).any(-1)).any():
        return None
    found = LinearExpert.fit(views.features, y, target.weights)
    if found is None:
        return None
    expert, left_out = found
    predictive, values = left_out.predictive(), torch.from_numpy(y)
    lower, upper = (values, values) if cells is None else torch.from_numpy(cells).unbind(-1)
    nll = student_t.cell_nll(values, lower, upper, predictive.df, predictive.loc, predictive.scale)
    return expert, -nll.mean(1).numpy()


def _held_out(
    model: TableModel, views: Views, target: Target, kind_of: Sequence[int], kinds: int
) -> tuple[NDArray[np.int64], Array]:
    """Return the rows that networks of every kind held out, and the mean log densities of each kind there."""
    scores = validation_log_densities(model, views, target)
    total, count = np.zeros((len(views.x), kinds)), np.zeros((len(views.x), kinds))
    for k, (member, score) in enumerate(zip(views.members, scores, strict=True)):
        held = member.validation.numpy()
        total[held, kind_of[k]] += score.numpy()
        count[held, kind_of[k]] += 1
    rows = np.flatnonzero((count > 0).all(1) & np.isfinite(total).all(1))
    return rows, total[rows] / count[rows]


@torch.no_grad()
def validation_log_densities(model: TableModel, views: Views, target: Target) -> list[Tensor]:
    """Return the log density, in the units of y, that each member gives its validation rows: mean over targets.

    Of bounds it is the log probability.
    """
    rows, counts = pad_rows([m.validation for m in views.members])
    targets, cells = torch.from_numpy(target.table), None if target.cells is None else torch.from_numpy(target.cells)
    parts = []
    for some in rows.split(VALIDATION_ROWS, 1):
        answer, _ = model.before_evidence(views.table[some])
        ends = None if cells is None else cells[some].unbind(-1)
        own = None if ends is None else (model.scale_y(ends[0]), model.scale_y(ends[1]))
        likelihood = -model.method.nll(answer, model.scale_y(targets[some]), own)
        change = model.scale_y.scale.log()  # of a density by the units of y
        likelihood = likelihood - (change if ends is None else torch.where(ends[0] == ends[1], change, 0.0))
        parts.append(likelihood.mean(-1))
    whole = torch.cat(parts, 1)
    return [each[:count] for each, count in zip(whole, counts.tolist(), strict=True)]
