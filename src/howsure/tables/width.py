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

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.calibration import calibrate
from howsure.prediction import Answer, Prediction
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
    known = None if target.bounds is None else target.bounds[rows] == 0
    if known is not None and known.sum(0).min() < MIN_ROWS:
        return model
    p = Prediction(single, members=0, weights=of_kinds)
    alone = torch.from_numpy(calibrate(p, target.table[rows], mask=known).factors)
    rho = _ratio(answer, weights, kind_of, kinds)
    count_rows = torch.full_like(alone, len(rows)) if known is None else torch.from_numpy(known.sum(0)).to(alone)
    square = (count_rows * alone.square() + PRIOR_ROWS) / (count_rows + PRIOR_ROWS) - rho
    model.width = square.clamp(NARROWEST**2, WIDEST**2).sqrt()
    return model


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
