"""Distributions of targets with one value of positive probability, such as amounts with many zeros."""

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from howsure.distributions.arguments import class_name
from howsure.distributions.mapped import OverMixture
from howsure.distributions.mixture import Mixture
from howsure.errors import InputError, InputTypeError

__all__ = ["WithAtom"]


class WithAtom(OverMixture):
    r"""A value a with the probability g, and a mixture X with the probability 1 − g.

    It has the methods of :class:`~howsure.Mixture`. With the density f and the tails of the mixture,

    .. math:: P(Y \le y) = (1 - g)F(y) + g\,1[y \ge a], \qquad
              \mathrm{CRPS} = (1-g)\mathbb E|X-y| + g|a-y| - \tfrac12(1-g)^2\mathbb E|X-X'| - g(1-g)\mathbb E|X-a|.

    ``log_prob`` is :math:`\ln g` at a, a log probability, and :math:`\ln(1-g) + \ln f(y)` elsewhere, a log density.

    Args:
        base: the mixture.
        probability: g, of the batch shape of the mixture, in [0, 1].
        value: a.

    >>> from howsure.distributions import Normal
    >>> rain = WithAtom(Mixture(Normal(torch.full((1, 1), 8.0), 2.0)), torch.tensor([0.8]), 0.0)
    >>> rain.mean, rain.icdf(0.5), rain.icdf(0.95) > 8
    (tensor([1.6000]), tensor([0.]), tensor([True]))
    """

    support = constraints.real
    leaves = ("base", "probability")
    context = "value"

    probability: Tensor
    value: float

    def __init__(self, base: Mixture, probability: Tensor, value: float) -> None:
        if not isinstance(base, Mixture):
            raise InputTypeError(f"WithAtom takes a Mixture, not {class_name(base)}")
        if not isinstance(probability, Tensor) or probability.shape != base.batch_shape:
            raise InputError(f"WithAtom: probability must be a tensor of shape {tuple(base.batch_shape)}")
        self._set_leaves((base, probability.double()), False, float(value))

    # Moments ----------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        g, a = self.probability, self.value
        return ((1 - g) * self.base.mean.double() + g * a).to(self._dtype)

    @property
    def variance(self) -> Tensor:
        g, a = self.probability, self.value
        distance = self.base.mean.double() - a
        return ((1 - g) * self.base.variance.double() + g * (1 - g) * distance.square()).to(self._dtype)

    # Density and tails ------------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor | float) -> Tensor:
        """Return the log probability of the atom, and the log density of other values."""
        y = self._value(value)
        other = torch.log1p(-self.probability) + self.base.log_prob(y).double()
        return torch.where(self._at(y), self.probability.log(), other).to(self._result_dtype(y))

    def _at(self, y: Tensor) -> Tensor:
        return y == torch.as_tensor(self.value, dtype=y.dtype, device=y.device)

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return P(Y ≤ value)."""
        y, g = self._value(value), self.probability
        reached = self._at(y) | (y > self.value)
        return ((1 - g) * self.base.cdf(y).double() + g * reached).to(self._result_dtype(y))

    def sf(self, value: Tensor | float) -> Tensor:
        """Return P(Y > value)."""
        y, g = self._value(value), self.probability
        reached = self._at(y) | (y > self.value)
        return ((1 - g) * self.base.sf(y).double() + g * ~reached).to(self._result_dtype(y))

    def quantile(self, value: Tensor | float, upper: Tensor | bool) -> Tensor:
        """Return `isf` of the value where ``upper`` is true, else `icdf`."""
        p = self._value(value)
        q, g = p.double(), self.probability
        upper = torch.as_tensor(upper, device=q.device)
        atom = torch.as_tensor(self.value, dtype=torch.float64, device=q.device)
        # the mass on the side that q is counted from, up to the atom
        beyond = (1 - g) * torch.where(upper, self.base.sf(atom).double(), self.base.cdf(atom).double())
        at_atom = (q >= beyond) & (q <= beyond + g)
        rest = torch.where(q > beyond, q - g, q) / (1 - g).clamp(min=1e-300)
        valid = torch.where((q >= 0) & (q <= 1), rest.clamp(0, 1), torch.nan)
        found = self.base.quantile(torch.where(at_atom, 0.5, valid), upper.expand(valid.shape))
        return torch.where(at_atom, atom, found).to(self._result_dtype(p))

    def crps(self, value: Tensor | float) -> Tensor:
        """Return the continuous ranked probability score in the units of y; smaller is better."""
        y, g = self._value(value), self.probability
        atom = torch.as_tensor(self.value, dtype=torch.float64, device=y.device)
        spread, from_atom = self.base._half_spread(), self.base._mean_distance(atom)
        score = (1 - g) * self.base._mean_distance(y) + g * (atom - y).abs()
        score = score - (1 - g).square() * spread - g * (1 - g) * from_atom
        return score.to(self._result_dtype(y))

    def entropy(self) -> Tensor:
        """Return the entropy of the choice between atom and mixture, plus the mixture's entropy times its share."""
        g = self.probability
        choice: Tensor = torch.special.entr(g) + torch.special.entr(1 - g)
        return (choice + (1 - g) * self.base.entropy().double()).to(self._dtype)

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        drawn = self.base.sample(sample_shape)
        chosen = torch.rand(drawn.shape, dtype=torch.float64, device=drawn.device) < self.probability
        return torch.where(chosen, torch.as_tensor(self.value, dtype=drawn.dtype, device=drawn.device), drawn)
