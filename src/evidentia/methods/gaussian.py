"""The Gaussian likelihood: mean and deviation per target. A population of such networks is a deep ensemble."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evidentia.distributions import Gaussian
from evidentia.losses import gaussian_loss
from evidentia.methods.base import Method
from evidentia.nn import Population

__all__ = ["GaussianLikelihood"]


@dataclass(frozen=True)
class GaussianLikelihood(Method):
    """Maximum likelihood of a normal distribution (the paper's Sec. 2.2)."""

    outputs = 2

    def answer(self, raw: Tensor) -> Gaussian:
        return Gaussian.from_raw(raw)

    def loss(
        self, answer: Gaussian, y: Tensor, networks: nn.Module | None = None, censored: Tensor | None = None
    ) -> Tensor:
        return gaussian_loss(answer, y, censored=censored, reduction="none")

    def fused(self, population: Population) -> dict[str, Any] | None:
        device = population.weights[0].device
        return {"evidential": False, "weight": torch.zeros(population.members, dtype=torch.float32, device=device)}
