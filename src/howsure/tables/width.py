r"""Width of a mixture: one factor of its networks' scales for each target, learned from rows that networks held out.

A network that is trained and stopped by likelihood states its own error. A mixture adds the disagreement of its
networks to that and counts it twice. With V the variance between networks of a kind, A the rest of the mixture's
variance, m networks of each kind and :math:`\rho = V(1-1/m)/A`, the scales of the networks are multiplied by f,

.. math:: f^2 = \frac{n s_1^2 + n_0}{n + n_0} - \rho,

so that the mixture has the variance that one network of each kind should have. The factor :math:`s_1` has the highest
likelihood of n held-out rows, each predicted by one network of every kind that held it out. The same rows stopped the
training and weighed the kinds, so that :math:`s_1` is a little too small: it counts as if :math:`n_0 = 50` more rows
had the factor 1.
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from howsure.calibration import calibrate
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
    answer = model.from_views(views.table[rows])[0]
    weights = torch.full((len(members),), 1 / len(members), dtype=torch.float64, device="cpu")
    weights = weights if model.weights is None else model.weights
    of_kinds = torch.stack([weights[kind_of == k].sum() for k in range(kinds)])
    place = torch.arange(len(rows), device="cpu")
    single: Answer = torch.utils._pytree.tree_map(lambda p: p[holders, place], answer)
    p = Prediction(single, members=0, weights=of_kinds)
    if target.cells is None:
        counts = torch.full((model.targets,), len(rows), dtype=torch.float64, device="cpu")
        alone = torch.from_numpy(calibrate(p, target.table[rows]).factors)
    else:
        counts, alone = _factors_of_cells(p, torch.from_numpy(target.table[rows]), torch.from_numpy(target.cells[rows]))
    rho = _ratio(answer, weights, kind_of, kinds)
    square = (counts * alone.square() + PRIOR_ROWS) / (counts + PRIOR_ROWS) - rho
    made = square.clamp(NARROWEST**2, WIDEST**2).sqrt()
    model.width = torch.where(counts < MIN_ROWS, 1.0, made)
    return model


def _factors_of_cells(p: Prediction, y: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each target the number of rows about which something is known, and the best factor s₁.

    Args:
        p: (rows, T).
        y: (rows, T).
        cells: lower and upper ends, (rows, T, 2).
    """
    counts, factors = [], []
    for t in range(y.shape[1]):
        rows = cells[:, t].isfinite().any(-1)
        counts.append(float(rows.sum()))
        factors.append(_best_factor(p[rows, t], y[rows, t], cells[rows, t]) if counts[-1] >= MIN_ROWS else 1.0)
    return torch.tensor(counts, dtype=torch.float64, device="cpu"), torch.tensor(
        factors, dtype=torch.float64, device="cpu"
    )


def _best_factor(p: Prediction, y: Tensor, cells: Tensor) -> float:
    """Return the factor between the bounds under which these targets and cells are most likely."""

    def surprise(log_factor: float) -> float:
        mixture = cast(Mixture, p.scaled(math.exp(log_factor)).distribution)
        return -float(log_likelihood(mixture, y, cells).mean())

    bounds = (math.log(NARROWEST), math.log(WIDEST))
    return math.exp(minimize_scalar(surprise, bounds=bounds, method="bounded", options={"xatol": 1e-3}).x)


def _held_out(members: Sequence[Member], kind_of: Tensor, kinds: int, rows: int) -> tuple[NDArray[np.int64], Tensor]:
    """Return rows that a network of every kind held out, and which network that was, (kinds, rows)."""
    holder = np.full((kinds, rows), -1)
    for k, member in enumerate(members):
        holder[int(kind_of[k]), member.validation.numpy()] = k
    held = np.flatnonzero((holder >= 0).all(0))
    held = held[np.linspace(0, len(held) - 1, min(len(held), MAX_ROWS)).astype(np.int64)]
    return held, torch.from_numpy(holder[:, held])


def _ratio(answer: Answer, weights: Tensor, kind_of: Tensor, kinds: int) -> Tensor:
    """Return the median over rows of the variance within kinds over the rest, (targets,)."""
    predictive = answer.predictive()
    loc, square = predictive.loc, predictive.scale.square()
    each = weights.view(-1, 1, 1)
    mean, rest = (each * loc).sum(0), (each * square).sum(0)
    within = torch.zeros_like(mean)
    for k in range(kinds):
        own = loc[kind_of == k]
        share = weights[kind_of == k].sum()
        within = within + share * own.var(0, correction=0)
        rest = rest + share * (own.mean(0) - mean).square()
    return (within / rest).median(0).values
