r"""Width of a mixture: one factor of its networks' scales, and one of their tails, from rows that networks held out.

A network that is trained and stopped by likelihood states its own error. A mixture adds the disagreement of its
networks to that and counts it twice. With V the variance between networks of a kind, A the rest of the mixture's
variance, m networks of each kind and :math:`\rho = V(1-1/m)/A`, the scales of the networks are multiplied by f,

.. math:: f^2 = \frac{n s_1^2 + n_0}{n + n_0} - \rho,

so that the mixture has the variance that one network of each kind should have. The factor :math:`s_1` has the highest
likelihood of n held-out rows, each predicted by one network of every kind that held it out. The same rows stopped the
training and weighed the kinds, so that :math:`s_1` is a little too small: it counts as if :math:`n_0 = 50` more rows
had the factor 1.

Networks start with heavy tails, and short trainings hardly change them. So α − 1 is multiplied by 1, 2 or 4, whichever
makes the same rows most likely, each with its own :math:`s_1`.
"""

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from howsure.distributions import Mixture
from howsure.prediction import Answer, Prediction
from howsure.tables.censoring import log_likelihood
from howsure.tables.members import Member, kinds_of
from howsure.tables.model import TableModel
from howsure.tables.target import Target
from howsure.tables.views import Views

__all__ = ["with_width"]

Array = NDArray[np.float64]
MIN_ROWS = 20  # held-out rows of a factor
MAX_ROWS = 5000
PRIOR_ROWS = 50  # n₀
NARROWEST, WIDEST = 0.5, 2.0  # bounds of the factor
MAX_FACTOR = 100.0  # largest s₁
TAILS = (1.0, 2.0, 4.0)  # factors of α − 1 that are tried


@torch.no_grad()
def with_width(model: TableModel, views: Views, target: Target) -> TableModel:
    """Return the model with the factors of its networks' scales, if there are enough held-out rows to learn them.

    A single network stays as it is. It is the last stage, after the weights and the evidence.
    """
    members = views.members
    kind_of = torch.tensor(kinds_of(members), device="cpu")
    kinds = 1 + int(kind_of.max())
    rows, holders = _held_out(members, kind_of, kinds, len(views.x))
    if len(members) == 1 or len(rows) < MIN_ROWS:
        return model
    weights = model.network_weights
    of_kinds = torch.stack([weights[kind_of == k].sum() for k in range(kinds)])
    place = torch.arange(len(rows), device="cpu")
    table, y = views.table[rows], torch.from_numpy(target.table[rows])
    cells = None if target.cells is None else torch.from_numpy(target.cells[rows])
    answer_with = _by_tails(model, table)
    factors, surprises = [], []
    for tails in (1.0,) if model.evidence is None else TAILS:
        answer = answer_with(torch.tensor(tails, device="cpu"))
        single: Answer = torch.utils._pytree.tree_map(lambda p: p[holders, place], answer)
        found = _best_factors(Prediction(single, members=0, weights=of_kinds), y, cells)
        factors.append(found[0])
        surprises.append(found[1])
    best = torch.stack(surprises).argmin(0, keepdim=True)
    answer = answer_with(torch.tensor(TAILS, device="cpu")[best])
    counts = torch.full((model.targets,), float(len(rows)), dtype=torch.float64, device="cpu")
    counts = counts if cells is None else cells.isfinite().any(-1).sum(0).double()
    known = torch.from_numpy(target.table)
    rho = _ratio(answer, weights, kind_of, kinds, known.amin(0), known.amax(0))
    square = (counts * torch.stack(factors).gather(0, best)[0].square() + PRIOR_ROWS) / (counts + PRIOR_ROWS) - rho
    model.width = torch.where(counts < MIN_ROWS, 1.0, square.clamp(NARROWEST**2, WIDEST**2).sqrt())
    return model


def _by_tails(model: TableModel, table: Tensor) -> Callable[[Tensor], Answer]:
    """Return a function that gives the model its factors of α − 1 and returns its distributions for views (N, V).

    The networks and the leverage are computed once, as they do not depend on these factors.
    """
    plain, features = model.before_evidence(table)
    evidence = model.evidence
    leverage = None if evidence is None else evidence.leverage(features)

    def answer_with(tails: Tensor) -> Answer:
        found = plain
        if evidence is not None and leverage is not None:
            evidence.tails.copy_(tails.expand_as(evidence.tails))
            found = evidence.with_leverage(plain, leverage)[0]
        answer: Answer = found.affine(model.scale_y.loc, model.scale_y.scale)
        return answer

    return answer_with


def _best_factors(p: Prediction, y: Tensor, cells: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return for each target the best factor s₁, and the mean negative log likelihood with it.

    Args:
        p: (rows, T).
        y: (rows, T).
        cells: lower and upper ends, (rows, T, 2); None for values.
    """
    factors, surprises = [], []
    for t in range(y.shape[1]):
        known = torch.ones(len(y), dtype=torch.bool, device="cpu") if cells is None else cells[:, t].isfinite().any(-1)
        own = None if cells is None else cells[known, t]
        factor, surprise = _best_factor(p[known, t], y[known, t], own) if known.sum() >= MIN_ROWS else (1.0, 0.0)
        factors.append(factor)
        surprises.append(surprise)
    return torch.tensor(factors, dtype=torch.float64, device="cpu"), torch.tensor(surprises, device="cpu")


def _best_factor(p: Prediction, y: Tensor, cells: Tensor | None) -> tuple[float, float]:
    """Return the factor under which these targets are most likely, and their mean negative log likelihood with it."""

    def surprise(log_factor: float) -> float:
        mixture = cast(Mixture, p.scaled(math.exp(log_factor)).distribution)
        return -float(log_likelihood(mixture, y, cells).mean())

    bounds = (-math.log(MAX_FACTOR), math.log(MAX_FACTOR))
    found = minimize_scalar(surprise, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return math.exp(found.x), found.fun


def _held_out(members: Sequence[Member], kind_of: Tensor, kinds: int, rows: int) -> tuple[NDArray[np.int64], Tensor]:
    """Return at most ``MAX_ROWS`` rows that networks of all kinds held out, and these networks, (kinds, rows)."""
    holder = np.full((kinds, rows), -1)
    for k, member in enumerate(members):
        holder[int(kind_of[k]), member.validation.numpy()] = k
    held = np.flatnonzero((holder >= 0).all(0))
    held = held[np.linspace(0, len(held) - 1, min(len(held), MAX_ROWS)).astype(np.int64)]
    return held, torch.from_numpy(holder[:, held])


def _ratio(answer: Answer, weights: Tensor, kind_of: Tensor, kinds: int, lowest: Tensor, highest: Tensor) -> Tensor:
    """Return the median over rows of the variance within kinds over the rest, (targets,).

    Means beyond the lowest and highest target count as these: a variable behind possible values may lie anywhere there.
    """
    predictive = answer.predictive()
    loc, square = predictive.loc.clamp(lowest, highest), predictive.scale.square()
    each = weights.view(-1, 1, 1)
    mean, rest = (each * loc).sum(0), (each * square).sum(0)
    within = torch.zeros_like(mean)
    for k in range(kinds):
        own = loc[kind_of == k]
        share = weights[kind_of == k].sum()
        within = within + share * own.var(0, correction=0)
        rest = rest + share * (own.mean(0) - mean).square()
    return (within / rest).median(0).values
