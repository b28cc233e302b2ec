"""Base class of distributions of a non-decreasing function of a mixture on the real line."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from howsure.distributions._base import Univariate, as_value, class_name
from howsure.distributions.mixture import Mixture
from howsure.errors import InputTypeError
from howsure.formulas import mixture


class MappedMixture(Distribution):
    """A distribution over a mixture, whose subclasses compute the means and variances of the members."""

    arg_constraints: dict[str, constraints.Constraint] = {}

    base: Mixture

    def _set_base(self, base: Mixture | Univariate) -> None:
        """Keep the mixture, or one distribution as a mixture of one."""
        if isinstance(base, Univariate):
            leaves = (getattr(base, name).unsqueeze(0) for name in base.leaves)
            base = Mixture(base._from_leaves(leaves), dim=0, validate_args=False)
        owner = type(self).__name__
        if not isinstance(base, Mixture):
            raise InputTypeError(f"{owner} takes a Mixture, a StudentT or a Normal, not {class_name(base)}")
        self.base = base
        Distribution.__init__(self, base.batch_shape, validate_args=False)

    @property
    def _member_moments(self) -> tuple[Tensor, ...]:
        """Means and variances of the members, and perhaps more, each (members, *batch)."""
        raise NotImplementedError

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
    def dim(self) -> int:
        """Dimension of the members in ``components``, counted from the right."""
        return self.base.dim

    # Moments ----------------------------------------------------------------------------------------------------------

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

    # Tensors ----------------------------------------------------------------------------------------------------------

    @property
    def _dtype(self) -> torch.dtype:
        return self.components.loc.dtype

    def _result_dtype(self, value: Tensor) -> torch.dtype:
        return torch.promote_types(value.dtype, self._dtype)

    def _value(self, value: Any) -> Tensor:
        return as_value(type(self).__name__, value, self.components.loc)
