"""The Gaussian likelihood: mean and deviation per target. A population of such networks is a deep ensemble."""

from dataclasses import dataclass

from torch import Tensor, nn

from howsure.distributions import Normal
from howsure.likelihoods.base import Cells, Method
from howsure.losses import normal_loss

__all__ = ["NormalLikelihood"]


@dataclass(frozen=True)
class NormalLikelihood(Method):
    """Maximum likelihood of a normal distribution (the paper's Sec. 2.2)."""

    outputs = 2

    def answer(self, raw: Tensor) -> Normal:
        return Normal.from_raw(raw)

    def loss(self, answer: Normal, y: Tensor, networks: nn.Module | None = None, cells: Cells | None = None) -> Tensor:
        return normal_loss(answer, y, cells=cells, reduction="none")
