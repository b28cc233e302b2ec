"""Distributions on a list of possible values: each value has the probability of its cell under a mixture."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from howsure.distributions.arguments import class_name
from howsure.distributions.base import Univariate, on_leaves
from howsure.distributions.mapped import MappedMixture, TargetMap
from howsure.distributions.mixture import Mixture, log_cell_prob
from howsure.errors import InputError, InputTypeError
from howsure.formulas import mixture

__all__ = ["Discrete", "Support"]

MAX_DIRECT = 64  # values of a regular grid up to which sums run over all of them
SNAP = 1e-3  # a number this close to a value, in distances of neighbours, is that value: float32 rounds
VALUES_AT_ONCE = 1 << 20
# distances of the nodes of a sum over a regular grid from the location of a member, in scales
_BODY = [0.25 * k for k in range(1, 13)]
_TAIL = [3 * 1.2**k for k in range(1, 20)] + [100 * 2.0**k for k in range(1, 11)]
NODES = [-x for x in reversed(_BODY + _TAIL)] + [0.0] + _BODY + _TAIL


class Support(TargetMap):
    """Possible values of a target, and the edges of their cells in the variable that a model predicts.

    Args:
        values: in increasing order, at least two.
        edges: between neighbouring values, in increasing order; None: their midpoints. The cells of the first and of
            the last value have an infinite end.

    >>> grades = Support([3.0, 4.0, 5.0])
    >>> grades.forward(torch.tensor([-1.0, 4.4, 4.6]))
    tensor([3., 4., 5.], dtype=torch.float64)
    """

    kind = "discrete"
    has_moments = True

    def __init__(self, values: Any, edges: Any = None) -> None:
        # on the CPU by name: torch's device context would decide otherwise
        self.values = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
        if self.values.ndim != 1 or len(self.values) < 2 or not _increases(self.values):
            raise InputError("the possible values must be at least two finite numbers in increasing order")
        middle = 0.5 * (self.values[1:] + self.values[:-1])
        self.edges = middle if edges is None else torch.as_tensor(edges, dtype=torch.float64, device="cpu").detach()
        if self.edges.shape != middle.shape or not _increases(self.edges):
            raise InputError(
                f"{len(self.values)} possible values have {len(middle)} edges, finite numbers in increasing order"
            )

    @property
    def few(self) -> bool:
        """Whether moments are sums over all values; otherwise these are a regular grid, with edges at midpoints."""
        if len(self.values) <= MAX_DIRECT:
            return True
        gaps = self.values.diff()
        centred = (self.edges - 0.5 * (self.values[1:] + self.values[:-1])).abs().max() <= 1e-9 * gaps.min()
        return not bool((gaps.max() - gaps.min() <= 1e-6 * gaps.min()) & centred)

    def forward(self, z: Tensor) -> Tensor:
        """Return the value in whose cell z lies; NaN for NaN."""
        values, edges = self.values.to(z.device), self.edges.to(z.device)
        found = values[torch.searchsorted(edges, z.double().contiguous())]
        return torch.where(z.isnan(), torch.nan, found)

    def inverse(self, y: Tensor) -> Tensor:
        """Return a point in the middle of the cell of the value nearest to y."""
        gap = self.values.diff()
        low = torch.minimum(self.values[:1] - gap[:1], self.edges[:1] - gap[:1])
        high = torch.maximum(self.values[-1:] + gap[-1:], self.edges[-1:] + gap[-1:])
        full = torch.cat([low, self.edges, high])
        middle = (0.5 * (full[1:] + full[:-1])).to(y.device)
        return middle[self.index(y)[0]]

    def index(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of the value nearest to y, and whether y is that value but for rounding."""
        values = self.values.to(y.device)
        number = y.double().contiguous()
        middle = 0.5 * (values[1:] + values[:-1])
        nearest = torch.searchsorted(middle, number)
        gaps = values.diff()
        gap = torch.minimum(torch.cat([gaps, gaps[-1:]]), torch.cat([gaps[:1], gaps]))
        return nearest, (number - values[nearest]).abs() <= SNAP * gap[nearest]

    def cell(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper edges of the cells with these indices; −1 and beyond have empty cells."""
        infinite = torch.tensor([math.inf], dtype=torch.float64, device="cpu")
        edges = torch.cat([-infinite, self.edges, infinite]).to(index.device)
        return edges[index], edges[index + 1]

    def lowest(self, y: Tensor) -> Tensor:
        """Return the upper edge of the cell of the largest value that is at most y; −∞ if there is none."""
        index, exact = self.index(y)
        return self.cell(torch.where(exact | (self.values.to(y.device)[index] <= y), index, index - 1))[1]

    # As Transform has them --------------------------------------------------------------------------------------------

    def at(self, _shape: Sequence[int], _keys: tuple[Any, ...]) -> "Support":
        """Return the support of a part of a prediction, which is this one."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the support as plain values."""
        return {"kind": self.kind, "values": self.values.tolist(), "edges": self.edges.tolist()}

    @classmethod
    def from_dict(cls, saved: Any) -> "Support":
        """Return the support that :meth:`to_dict` described."""
        if not isinstance(saved, dict) or set(saved) != {"kind", "values", "edges"} or saved["kind"] != cls.kind:
            raise InputError("the possible values of the target do not belong to the model")
        return cls(saved["values"], saved["edges"])

    def fits(self, targets: int) -> bool:
        """Return whether ``targets`` is 1, because a support has one target."""
        return targets == 1

    def __repr__(self) -> str:
        return f"Support({len(self.values)} values from {self.values[0].item():g} to {self.values[-1].item():g})"


class Discrete(MappedMixture):
    r"""Distribution of a target that has only the values of a support, by the cells of a mixture.

    It has the methods of :class:`~howsure.Mixture`, which compute in float64. A value has the probability of its cell,
    ``log_prob`` is its logarithm, ``cdf`` has a step at each value, and quantiles are possible values:
    ``icdf(q)`` is the smallest value with :math:`P(Y \le y) \ge q`. The CRPS is
    :math:`\sum_j (v_{j+1} - v_j)\,(F_j - 1[y \le v_j])^2`.

    Moments on a regular grid of more than 64 values are sums that are taken in panels of n values between nodes,

    .. math:: \sum_{j=a}^{b}\!{}^{''} g_j \approx \frac n2(g_a + g_b) + \frac{n^2 - 1}{12}\,h\,(g'_a - g'_b),

    which is exact for n = 1 and has the error of the corrected trapezoidal rule for many: below 5e-5 scales.

    Args:
        base: a mixture, or one distribution, of a variable on the real line.
        support: the possible values and the edges of their cells.

    >>> from howsure.distributions import Normal
    >>> grade = Discrete(Normal(torch.tensor([4.2, 4.9]), 0.5), Support([3.0, 4.0, 5.0]))
    >>> grade.icdf(0.5), grade.probabilities.sum(-1)
    (tensor([4., 5.]), tensor([1., 1.]))
    """

    support = constraints.real

    transform: Support

    def __init__(self, base: Mixture | Univariate, support: Support) -> None:
        if not isinstance(support, Support):
            raise InputTypeError(f"Discrete: support must be a Support, not {class_name(support)}")
        super().__init__(base, support)

    @property
    def values(self) -> Support:
        """The possible values."""
        return self.transform

    # Probabilities ----------------------------------------------------------------------------------------------------

    @property
    def probabilities(self) -> Tensor:
        """Probability of each possible value, in a new last dimension."""
        edges = self.values.edges.to(self.components.loc.device).view(-1, *(1,) * len(self.batch_shape))
        below, above = (tail(edges).double().movedim(0, -1) for tail in (self.base.cdf, self.base.sf))
        one = torch.ones_like(below[..., :1])
        below, above = torch.cat([below, one], -1), torch.cat([one, above], -1)
        lower, upper = torch.cat([0 * one, below[..., :-1]], -1), torch.cat([above[..., 1:], 0 * one], -1)
        # the difference of the smaller tails
        found = torch.where(below < 0.5, below - lower, above - upper)
        return found.to(self._dtype)

    def log_prob(self, value: Tensor | float) -> Tensor:
        """Return the log probability of the value; −∞ for a number that is not a possible value."""
        y = self._value(value)
        index, possible = self.values.index(y)
        found = log_cell_prob(self.base, *self.values.cell(index))
        return torch.where(possible, found, -torch.inf).to(self._result_dtype(y))

    # Moments ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _member_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the values of each member, (members, *batch), in float64."""
        flat = self.base._flat_components(self.batch_shape).double()
        size = len(self.values.edges) if self.values.few else len(NODES)
        found = _by_rows(lambda some: _moments(self.values, some), self.members * size, flat)
        mean, variance = found.view(2, self.members, *self.batch_shape)
        return mean, variance.clamp(min=0)

    def crps(self, value: Tensor | float) -> Tensor:
        """Return the ranked probability score in the units of y; smaller is better."""
        y = self._value(value)
        shape = torch.broadcast_shapes(y.shape, self.batch_shape)
        flat, weights = self.base._flat_components(shape).double(), self.base._flat_weights(shape)
        target = y.double().expand(shape).reshape(-1)
        values, edges = self.values.values.to(target.device), self.values.edges.to(target.device)

        def of_rows(some: Univariate, y: Tensor, weights: Tensor | None) -> Tensor:
            below = mixture.mean(some.cdf(edges.view(-1, 1, 1)), weights, 1)
            nearest, possible = self.values.index(y)
            reached = torch.arange(len(edges), device=y.device).view(-1, 1) >= nearest
            score = (values.diff().view(-1, 1) * (below - reached.double()).square()).sum(0)
            return score + torch.where(possible, 0.0, (y - values[nearest]).abs())

        found = _by_rows(of_rows, self.members * len(edges), flat, target, weights).view(shape)
        return found.to(self._result_dtype(y))

    def entropy(self) -> Tensor:
        r"""Return the entropy :math:`-\sum_j p_j\ln p_j` in nats."""
        found: Tensor = torch.special.entr(self.probabilities.double()).sum(-1)
        return found.to(self._dtype)


def _moments(support: Support, flat: Univariate) -> Tensor:
    """Return mean and variance of the values of each member, (2, members, rows)."""
    centre = support.index(flat.loc)[0]
    values, edges = support.values.to(flat.loc.device), support.edges.to(flat.loc.device)
    last = len(edges) - 1
    total: Callable[[Tensor, Tensor], Tensor]
    if support.few:
        index, total = torch.arange(last + 1, device=edges.device).view(-1, 1, 1), _plain_sum
    else:
        own = _nodes(support, flat)
        around = [torch.zeros_like(centre), centre - 1, centre, torch.full_like(centre, last)]
        index = torch.cat([own, torch.stack(around)]).clamp(0, last).sort(0).values
        total = _panel_sum(index, float(values[1] - values[0]))
    x = edges[index]
    below = flat.cdf(x)
    above = index >= centre
    tail, slope = torch.where(above, 1 - below, below), torch.zeros_like(below)
    if total is not _plain_sum:
        slope = torch.where(above, -1, 1) * flat.log_prob(x).exp()
    gap = values[index + 1] - values[index]
    middle = 0.5 * (values[index + 1] + values[index]) - values[centre]
    first = total(torch.where(above, gap, -gap) * tail, torch.where(above, gap, -gap) * slope)
    size = 2 * gap * middle.abs()
    second = total(size * tail, size * slope + 2 * gap * middle.sign() * tail)
    return torch.stack([values[centre] + first, second - first.square()])


def _nodes(support: Support, flat: Univariate) -> Tensor:
    """Return the indices of edges between which sums are taken in panels, (nodes, members, rows)."""
    standard = torch.tensor(NODES, dtype=torch.float64, device=flat.loc.device).view(-1, 1, 1)
    step = float(support.values[1] - support.values[0])
    first, last = float(support.edges[0]), len(support.edges) - 1
    place = ((flat.loc + flat.scale * standard - first) / step).nan_to_num(0.0).clamp(0, last).round()
    # a member that is narrow compared with the grid jumps between the two edges around its location
    around = ((flat.loc - first) / step).nan_to_num(0.0).clamp(-1, last).floor()
    return torch.cat([place, torch.stack([around + k for k in range(-1, 3)])]).clamp(0, last).long()


def _plain_sum(g: Tensor, _slope: Tensor) -> Tensor:
    return g.sum(0)


def _panel_sum(index: Tensor, step: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the sum over all edges of a function whose values and slopes at some edges are known.

    Args:
        index: of these edges, sorted along dimension 0, from the first to the last one.
        step: distance of neighbouring edges.
    """
    count = index.diff(dim=0).double()

    def total(g: Tensor, slope: Tensor) -> Tensor:
        panels = 0.5 * count * (g[1:] + g[:-1]) + (count * count - 1) / 12 * step * (slope[:-1] - slope[1:])
        return torch.where(count > 0, panels, 0.0).sum(0) + 0.5 * (g[0] + g[-1])

    return total


def _by_rows(f: Callable[..., Tensor], size: int, flat: Univariate, *others: Tensor | None) -> Tensor:
    """Return a function of rows, which lie in the last dimension of every argument and of the result, in parts."""
    rows = flat.loc.shape[-1]
    step = max(1, VALUES_AT_ONCE // max(1, size))
    parts = []
    for first in range(0, max(rows, 1), step):

        def of_part(t: Tensor, part: slice = slice(first, first + step)) -> Tensor:
            return t[..., part]

        parts.append(f(on_leaves(of_part, flat), *(None if t is None else of_part(t) for t in others)))
    return torch.cat(parts, -1)


def _increases(x: Tensor) -> bool:
    return bool(x.isfinite().all()) and bool((x.diff() > 0).all())
