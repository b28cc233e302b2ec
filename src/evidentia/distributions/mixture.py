"""Equal-weight mixtures: what several networks, or several samples of one, say together."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size
from torch.utils import _pytree

from evidentia.distributions._base import Univariate
from evidentia.errors import InputError, InputTypeError
from evidentia.formulas.special import half_line_rule

__all__ = ["Mixture"]

_RULE = half_line_rule(step=0.2, first=-17, last=65)  # up to e^13 units away: variances may barely exist
_CHUNK = 1 << 22  # how many densities to evaluate at once


class Mixture(Distribution):
    """The members of ``components`` along ``dim`` of their batch shape, mixed with equal weights.

    The components are a :class:`~evidentia.StudentT` or a :class:`~evidentia.Gaussian`; of a Normal Inverse-Gamma,
    mix its ``predictive()``. The variance follows the law of total variance: ``within_variance`` is the mean of the
    members' variances, ``between_variance`` the variance of their means.

    >>> from evidentia import Gaussian
    >>> two = Mixture(Gaussian(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 1.0])))
    >>> two.mean, two.within_variance, two.between_variance
    (tensor(5.), tensor(1.), tensor(25.))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real

    components: Univariate
    dim: int

    def __init__(self, components: Univariate, dim: int = 0, *, validate_args: bool | None = None) -> None:
        if not isinstance(components, Univariate):
            kind = type(components).__name__
            hint = "; mix its predictive()" if hasattr(components, "predictive") else ""
            raise InputTypeError(f"Mixture takes a StudentT or a Gaussian with a member dimension, not {kind}{hint}")
        ndim = len(components.batch_shape)
        if not -ndim <= dim < ndim or components.batch_shape[dim] == 0:
            raise InputError(
                f"Mixture: dimension {dim} of the components' batch shape {tuple(components.batch_shape)} "
                "must exist and have at least one member"
            )
        # from the right, so that sample dimensions on the left do not move it
        self._fill(components, dim % ndim - ndim, components._validate_args if validate_args is None else validate_args)

    def _fill(self, components: Any, dim: int, validate_args: bool | None) -> None:
        self.components, self.dim = components, dim
        shape = getattr(components, "batch_shape", ())
        rest = [size for k, size in enumerate(shape) if k != len(shape) + dim]
        Distribution.__init__(self, torch.Size(rest), validate_args=validate_args)

    @property
    def members(self) -> int:
        """How many distributions are mixed."""
        return self.components.batch_shape[self.dim]

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        shape = list(batch_shape)
        shape.insert(len(shape) + 1 + self.dim, self.members)
        new: Self = self.__new__(type(self)) if _instance is None else _instance
        new._fill(self.components.expand(shape), self.dim, self._validate_args)
        return new

    # Moments ----------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        return self.components.mean.mean(self.dim)

    @property
    def within_variance(self) -> Tensor:
        """Mean of the members' variances."""
        return self.components.variance.mean(self.dim)

    @property
    def between_variance(self) -> Tensor:
        """Variance of the members' means (divided by their number)."""
        return self._variance_of(self.components.mean)

    @property
    def variance(self) -> Tensor:
        return self.within_variance + self.between_variance

    # Density and tails ------------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.logsumexp(self.components.log_prob(self._member(value)), self.dim) - math.log(self.members)

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y ≤ value), exact in the lower tail."""
        return self.components.cdf(self._member(value)).mean(self.dim)

    def sf(self, value: Tensor) -> Tensor:
        """P(Y > value), exact in the upper tail."""
        return self.components.sf(self._member(value)).mean(self.dim)

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile of probability ``value`` from below; exact in the lower tail."""
        return self._quantile(value, upper=False)

    def isf(self, value: Tensor) -> Tensor:
        """The quantile of probability ``value`` from above; exact in the upper tail."""
        return self._quantile(value, upper=True)

    def crps(self, value: Tensor) -> Tensor:
        r"""Continuous ranked probability score, :math:`\mathbb E|X-y| - \tfrac12\mathbb E|X-X'|`.

        The first mean is in closed form; the second is :math:`2\int F(1-F)`, see :meth:`entropy` for its accuracy.
        """
        wide = self._wide()
        y = wide._member(value.double())
        each = wide.components
        distance = each.crps(y) + each.half_spread()  # E|X−y|, from the same formula for one member

        def crossing(x: Tensor) -> Tensor:
            below = wide.cdf(x)
            return below * (1 - below)

        spread = each.half_spread().mean(self.dim) if self.members == 1 else wide._integrate(crossing)
        return (distance.mean(self.dim) - spread).to(self._dtype(value))

    def entropy(self) -> Tensor:
        r""":math:`-\int p\ln p`, by quadrature: to 1e-5 where the members overlap, to 1e-2 for far-apart needles."""
        if self.members == 1:
            return self.components.entropy().squeeze(self.dim)
        wide = self._wide()

        def surprise(x: Tensor) -> Tensor:
            log_p = wide.log_prob(x)
            return -log_p * log_p.exp()

        return wide._integrate(surprise).to(self.components.mean.dtype)

    def _variance_of(self, x: Tensor) -> Tensor:
        return (x - x.mean(self.dim, keepdim=True)).square().mean(self.dim)  # torch's own warns where there are no rows

    def _wide(self) -> "Mixture":
        return Mixture(self.components.double(), self.dim, validate_args=False)

    def _dtype(self, value: Tensor) -> torch.dtype:
        return torch.promote_types(value.dtype, self.components.mean.dtype)

    def _integrate(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        """∫ f over the line, from the mean outwards in steps that grow with the distance."""
        loc = self.components.loc.mean(self.dim)
        spread = self.components.scale.square().mean(self.dim) + self._variance_of(self.components.loc)
        unit = spread.sqrt()
        nodes, weights = loc.new_tensor(_RULE).view(-1, 2, *[1] * loc.ndim).unbind(1)
        total = torch.zeros_like(loc)
        at_once = max(1, _CHUNK // max(1, loc.numel() * self.members))
        for u, weight in zip(nodes.split(at_once), weights.split(at_once), strict=True):
            total = total + (weight * (f(loc + u * unit) + f(loc - u * unit))).sum(0)
        return total * unit

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        every = self.components.sample(sample_shape)
        shape = torch.Size(sample_shape) + self.batch_shape
        chosen = torch.randint(self.members, shape, device=every.device).unsqueeze(self.dim)
        return every.gather(every.ndim + self.dim, chosen).squeeze(self.dim)

    def _member(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return value.unsqueeze(self.dim)

    def _quantile(self, p: Tensor, upper: bool) -> Tensor:
        wide = self._wide()
        q = p.double().expand(torch.broadcast_shapes(p.shape, self.batch_shape))
        with torch.no_grad():
            y = wide._solve(q, upper)
            bounded = y.isfinite()
            y = torch.where(bounded, y, 0.0)
            slope = wide.log_prob(y).exp()
        # as for one Student t: a Newton step that carries the implicit derivatives
        miss = wide.sf(y) - q if upper else q - wide.cdf(y)
        at_end = torch.where((q == 0) ^ upper, -math.inf, math.inf)
        answer = torch.where(bounded, y + miss / slope, torch.where((q >= 0) & (q <= 1), at_end, math.nan))
        return answer.to(self._dtype(p))

    def _solve(self, p: Tensor, upper: bool) -> Tensor:
        """Newton's method for the logarithm of the smaller tail, kept inside a bracket.

        The quantile of a mixture lies between the smallest and the largest of its members'.
        """
        high = p > 0.5  # then the other tail is the smaller one
        upper_tail = ~high if upper else high
        q = torch.where(high, 1 - p, p)
        each = self._member(q)
        ends = torch.where(self._member(upper_tail), self.components.isf(each), self.components.icdf(each))
        left, right = ends.amin(self.dim), ends.amax(self.dim)
        y = 0.5 * (left + right)
        for _ in range(100):
            tail = self._tail(y, upper_tail)
            beyond = torch.log(tail / q) * torch.where(upper_tail, 1.0, -1.0)  # > 0: the quantile lies to the right
            if not bool(((beyond.abs() > 1e-12) & (left < right)).any()):
                break
            left, right = torch.where(beyond >= 0, y, left), torch.where(beyond <= 0, y, right)
            newton = y + beyond * tail / self.log_prob(y).exp()
            inside = (newton > left) & (newton < right)
            y = torch.where(left < right, torch.where(inside, newton, 0.5 * (left + right)), y)
        return y

    def _tail(self, y: Tensor, upper: Tensor) -> Tensor:
        """The upper tail where asked for, else the lower one: the components are symmetric, so that one is enough."""
        mirrored = 2 * self.components.loc - self._member(y)
        return self.components.cdf(torch.where(self._member(upper), mirrored, self._member(y))).mean(self.dim)


def _unflatten(values: Any, dim: int) -> Mixture:
    new = Mixture.__new__(Mixture)
    new._fill(values[0], dim, validate_args=False)
    return new


_pytree.register_pytree_node(
    Mixture,
    lambda m: ([m.components], m.dim),
    _unflatten,
    serialized_type_name="evidentia.Mixture",
    flatten_with_keys_fn=lambda m: ([(_pytree.GetAttrKey("components"), m.components)], m.dim),
)
