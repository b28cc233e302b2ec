"""The normal distribution with exact tails, for the Gaussian-likelihood baselines."""

from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Self

import torch
from torch import Tensor

from howsure.distributions.arguments import as_tensors, check_domain, check_floating
from howsure.distributions.base import Univariate
from howsure.formulas import normal

__all__ = ["Normal"]


@dataclass(init=False, repr=False, eq=False, match_args=False)
class Normal(Univariate, torch.distributions.Normal):
    """The normal distribution: ``torch.distributions.Normal`` with exact tails, quantiles and CRPS.

    torch's own ``cdf`` is 0 for every z below −8.3, and it has no function for the upper tail. Methods as in
    :class:`~howsure.StudentT`.

    Args:
        loc: mean.
        scale: standard deviation, > 0.
        validate_args: whether to check parameters and values. None follows torch's global switch.

    Raises:
        InputError: for parameters outside of their range, or shapes that do not broadcast.
        InputTypeError: for a parameter that is neither a tensor nor a number.

    >>> import torch
    >>> Normal(0.0, 1.0).sf(torch.tensor(10.0))
    tensor(7.6199e-24)
    >>> Normal(0.0, 1.0).isf(torch.tensor(7.6199e-24)), Normal(0.0, 1.0).crps(1.0)
    (tensor(10.0000), tensor(0.6024))
    >>> Normal(0.0, 1.0).mean_distance(0.0), Normal(0.0, 1.0).half_spread()
    (tensor(0.7979), tensor(0.5642))
    >>> Normal.from_raw(torch.zeros(5, 2)).affine(10.0, 2.0).mean
    tensor([10., 10., 10., 10., 10.])
    """

    leaves = ("loc", "scale")
    arguments = ("loc", "scale")
    formulas: ClassVar[ModuleType] = normal

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None) -> None:
        owner = type(self).__name__
        given = as_tensors(owner, {"loc": loc, "scale": scale})
        self._set_leaves((given["loc"], given["scale"]), validate_args)
        if self._validate_args:
            check_domain(owner, given, self.arg_constraints)

    @classmethod
    def from_raw(cls, raw: Tensor, dim: int = -1) -> Self:
        """Return a distribution from two raw outputs of a network along ``dim``, which is removed: (N, 2) → (N,).

        The mean is the first output. The standard deviation is the softplus of the second plus 1e-6.

        Args:
            raw: floating-point outputs.
            dim: the dimension of size 2.
        """
        check_floating(f"{cls.__name__}.from_raw: raw", raw)
        return cls._from_leaves(normal.from_raw(raw, dim))

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> Self:
        """Return the distribution of loc + scale·y, for example in other units."""
        return self._from_leaves(torch.broadcast_tensors(loc + scale * self.loc, (scale * self.scale).abs()))
