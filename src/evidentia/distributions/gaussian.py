"""The normal distribution with exact tails, for the Gaussian-likelihood baselines."""

from types import ModuleType
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Normal

from evidentia.distributions._base import Univariate, as_tensors, check_domain, register_pytree
from evidentia.formulas import gaussian

__all__ = ["Gaussian"]


class Gaussian(Univariate, Normal):
    """``torch.distributions.Normal`` with the tails, quantiles and CRPS of :class:`~evidentia.StudentT`.

    torch's ``cdf`` answers 0 for every z below −8.3 and has no upper tail of its own.

    >>> import torch
    >>> Gaussian(0.0, 1.0).sf(torch.tensor(10.0))
    tensor(7.6199e-24)
    """

    leaves = ("loc", "scale")
    arguments = ("loc", "scale")
    formulas: ClassVar[ModuleType] = gaussian

    def __init__(self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None) -> None:
        owner = type(self).__name__
        given = as_tensors(owner, {"loc": loc, "scale": scale})
        self._fill((given["loc"], given["scale"]), validate_args)
        if self._validate_args:
            check_domain(owner, given, self.arg_constraints)

    @classmethod
    def from_raw(cls, raw: Tensor, dim: int = -1) -> Self:
        """From the two raw outputs of a network along ``dim``, which is consumed: (N, 2) → (N,)."""
        return cls._from_leaves(gaussian.from_raw(raw, dim))

    def predictive(self) -> Self:
        """The distribution of a new y: itself. A Normal Inverse-Gamma has one too, so that callers need not ask."""
        return self

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> Self:
        """The distribution in other units: of m + s·y."""
        return self._from_leaves(torch.broadcast_tensors(loc + scale * self.loc, (scale * self.scale).abs()))

    def half_spread(self) -> Tensor:
        """Half the mean distance of two independent draws, ½E|X−X'| = σ/√π."""
        return gaussian.half_spread(self.scale)


register_pytree(Gaussian)
