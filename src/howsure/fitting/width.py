r"""How wide a mixture of networks should be: one factor for each target, learned from rows that networks held out.

A network that is trained and stopped by likelihood states about the error that it makes alone. A mixture adds the
disagreement of its networks to that, although its mean is better than theirs: its intervals are too wide. With A the
variance of a mixture of one network of each kind, V what networks of a kind differ by, and m networks of each kind,
the mixture of all states :math:`A + V(1-1/m)`. If one of each kind should state :math:`s_1^2 A`, all of them should
state less, because the mean of all is nearer to the target, by up to :math:`V(1-1/m)`. With
:math:`\rho = V(1-1/m)/A` the factor is

.. math:: s^2 = \frac{s_1^2 - \rho/2}{1 + \rho}.

The factor :math:`s_1` has the largest likelihood of rows that were held out, each predicted by one network of every
kind that held it out. The ratio ρ is the median over the same rows, of all networks. Half of what the mean gains is
counted: the same rows told when to stop and how much kinds count, so that :math:`s_1` is a little too small. On rows
set aside from the training rows of nine tables, a half gave the intervals that covered nearest to 90 %
(``docs/tables.md``).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.calibration import calibrate
from howsure.fitting.members import Member, kinds_of
from howsure.fitting.tables import Fitted
from howsure.prediction import Answer, Prediction

__all__ = ["with_scale"]

Array = NDArray[np.float64]
FEWEST = 50  # held-out rows from which a factor is learned
MOST = 5000  # of them that it is learned from
GAIN = 0.5  # of the ratio ρ by which the mean of all networks is better than that of one of each kind
NARROWEST, WIDEST = 0.5, 2.0  # a factor beyond these says that something else is wrong


def with_scale(
    fitted: Fitted, x: Array, y: Array, members: Sequence[Member], censored: NDArray[np.int8] | None = None
) -> Fitted:
    """Return the model with the factors that its predictions are stretched by, if there are rows enough to learn them.

    A single network stays as it is.

    Args:
        fitted: a trained model, after its kinds of networks were weighted and its evidence fades.
        x: what its networks saw of all rows.
        y: targets, as they learned them.
        members: the rows of each network, as it was fitted.
        censored: of the shape of y, as for :func:`howsure.fitting.fit`; None: all targets are values.
    """
    kind_of = torch.tensor(kinds_of(members), device="cpu")
    kinds = 1 + int(kind_of.max())
    rows, holders = _held_out(members, kind_of, kinds, len(x))
    if len(members) == 1 or len(rows) < FEWEST:
        return fitted
    table, count = torch.from_numpy(x[rows]), len(members)
    answer = fitted.faded_own(table.expand(count, *table.shape))
    weights = torch.full((count,), 1 / count, dtype=torch.float64, device="cpu")
    weights = weights if fitted.weights is None else fitted.weights
    of_kinds = torch.stack([weights[kind_of == k].sum() for k in range(kinds)])
    place = torch.arange(len(rows), device="cpu")
    single: Answer = torch.utils._pytree.tree_map(lambda p: p[holders, place], answer)
    targets = y.reshape(len(y), -1)[rows]
    known = None if censored is None else censored.reshape(len(y), -1)[rows] == 0
    if known is not None and known.sum(0).min() < FEWEST:
        return fitted
    p = Prediction(single, members=0, weights=of_kinds)
    alone = torch.from_numpy(calibrate(p, targets, mask=known).factors)
    rho = _ratio(answer, weights, kind_of, kinds)
    square = (alone.square() - GAIN * rho) / (1 + rho)
    some = replace(fitted, scale=square.clamp(NARROWEST**2, WIDEST**2).sqrt())
    some.training = fitted.training
    return some


def _held_out(members: Sequence[Member], kind_of: Tensor, kinds: int, rows: int) -> tuple[NDArray[np.int64], Tensor]:
    """Return rows that a network of every kind held out, and which network that was, (kinds, rows)."""
    holder = np.full((kinds, rows), -1)
    for k, member in enumerate(members):
        holder[int(kind_of[k]), member.validation.numpy()] = k
    held = np.flatnonzero((holder >= 0).all(0))
    held = held[np.linspace(0, len(held) - 1, min(len(held), MOST)).astype(np.int64)]
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
