"""Plain regression: least squares, no uncertainty of its own. Dropout draws and ensembles of it have their spread."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from howsure.distributions import Normal
from howsure.errors import InputError
from howsure.likelihoods.base import Method

__all__ = ["LeastSquares"]


@dataclass(frozen=True)
class LeastSquares(Method):
    """One output, the squared error. The answer is a Gaussian whose deviation ``noise`` is the same everywhere.

    Least squares does not say how large the noise is; choose it on validation rows (1 until then).
    """

    noise: float = 1.0
    outputs = 1

    def answer(self, raw: Tensor) -> Normal:
        loc = raw.to(torch.promote_types(raw.dtype, torch.float32)).squeeze(-1)
        # made on the device, where a captured graph can make it, and not copied there
        noise = torch.full((), self.noise, dtype=loc.dtype, device=loc.device)
        return Normal(loc, noise.expand_as(loc), validate_args=False)

    def loss(
        self, answer: Normal, y: Tensor, networks: nn.Module | None = None, cells: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        if cells is not None:
            raise InputError(
                "least squares has no likelihood to learn from censored targets; use Evidential or NormalLikelihood"
            )
        return (y - answer.loc).square()
