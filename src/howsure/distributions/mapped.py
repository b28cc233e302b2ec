"""Base classes of distributions of a non-decreasing function of a mixture on the real line, and of these functions."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from howsure.distributions.arguments import as_value, class_name
from howsure.distributions.base import Predictive, Tree, Univariate, on_leaves
from howsure.distributions.mixture import Mixture
from howsure.errors import InputTypeError
from howsure.formulas import mixture

__all__ = ["MappedMixture", "OverMixture", "TargetMap"]


class TargetMap:
    """A non-decreasing function from the variable that a model predicts to the target, equal if its values are."""

    kind: str
    has_moments: bool  # whether the target has a mean, a variance and a CRPS

    def forward(self, z: Tensor) -> Tensor:
        """Return the target for z."""
        raise NotImplementedError

    def lowest(self, y: Tensor) -> Tensor:
        """Return the largest z whose target is at most y; −∞ if there is none."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the function as plain values."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TargetMap) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(str(self.to_dict()))


class OverMixture(Predictive, Tree):
    """A distribution that consists of a mixture and of something else."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    leaves: ClassVar[tuple[str, ...]] = ("base",)

    base: Mixture

    @property
    def members(self) -> int:
        """Number of distributions that are mixed."""
        return self.base.members

    @property
    def weights(self) -> Tensor | None:
        """How much each member counts; None: all count the same."""
        return self.base.weights

    @property
    def components(self) -> Univariate:
        """The members' distributions of the variable on the real line."""
        return self.base.components

    @property
    def _dtype(self) -> torch.dtype:
        return self.components.loc.dtype

    def _result_dtype(self, value: Tensor) -> torch.dtype:
        return torch.promote_types(value.dtype, self._dtype)

    def _value(self, value: Any) -> Tensor:
        return as_value(type(self).__name__, value, self.components.loc)


class MappedMixture(OverMixture):
    """A function of a mixture, whose subclasses compute the means and variances of the members."""

    context = "transform"

    transform: TargetMap

    def __init__(self, base: Mixture | Univariate, transform: TargetMap, *, validate_args: bool | None = None) -> None:
        if isinstance(base, Univariate):  # a mixture of one
            base = Mixture(on_leaves(lambda t: t.unsqueeze(0), base))
        owner = type(self).__name__
        if not isinstance(base, Mixture):
            raise InputTypeError(f"{owner} takes a Mixture, a StudentT or a Normal, not {class_name(base)}")
        self._set_leaves([base], bool(validate_args), transform)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        """Return the distribution with its parameters expanded to ``batch_shape``."""
        return self._over(self.base.expand(batch_shape))

    def to(self, target: torch.device | torch.dtype | str | int, *, non_blocking: bool = False) -> Self:
        """Return the same on another device or in another dtype, as :meth:`howsure.Mixture.to` does."""
        return self._over(self.base.to(target, non_blocking=non_blocking))

    def detach(self) -> Self:
        """Return the same without its graph of gradients."""
        return self._over(self.base.detach())

    def _over(self, base: Mixture) -> Self:
        """Return the same function of another mixture."""
        new = self._from_leaves([base], self.transform)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r}, {self.transform!r})"

    def _observed(self, value: Any) -> Tensor:
        """Return a value as a tensor, or raise if it lies outside the support and arguments are validated."""
        y = self._value(value)
        if self._validate_args:
            self._validate_sample(y)
        return y

    @property
    def _member_moments(self) -> tuple[Tensor, ...]:
        """Means and variances of the members, and perhaps more, each (members, *batch)."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        return self._mean_of(self._member_moments[0]).to(self._dtype)

    @property
    def within_variance(self) -> Tensor:
        """Mean of the members' variances."""
        return self._mean_of(self._member_moments[1]).to(self._dtype)

    @property
    def between_variance(self) -> Tensor:
        """Variance of the members' means: the mean of the squared distances from their mean."""
        weights = self.base._weights_first(self.batch_shape)
        return mixture.spread_of_means(self._member_moments[0], weights).to(self._dtype)

    @property
    def variance(self) -> Tensor:
        return self.within_variance + self.between_variance

    def _mean_of(self, x: Tensor) -> Tensor:
        """Return the mean over members, which lie in dimension 0."""
        return mixture.mean(x, self.base._weights_first(self.batch_shape))

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return P(Y ≤ value)."""
        y = self._observed(value)
        return self.base.cdf(self.transform.lowest(y)).to(self._result_dtype(y))

    def sf(self, value: Tensor | float) -> Tensor:
        """Return P(Y > value), exact in the upper tail."""
        y = self._observed(value)
        return self.base.sf(self.transform.lowest(y)).to(self._result_dtype(y))

    def quantile(self, value: Tensor | float, upper: Tensor | bool) -> Tensor:
        """Return `isf` of ``value`` where ``upper`` is true, else `icdf`: the smallest y with enough probability."""
        q = self._value(value)
        return self.transform.forward(self.base.quantile(q, upper)).to(self._result_dtype(q))

    def sample(self, sample_shape: _size = torch.Size()) -> Tensor:
        return self.transform.forward(self.base.sample(sample_shape)).to(self._dtype)
