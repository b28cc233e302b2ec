"""The Gaussian likelihood: mean and deviation per target. A population of such networks is a deep ensemble."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evidentia.distributions import Gaussian
from evidentia.losses import gaussian_loss
from evidentia.methods.base import Method

__all__ = ["GaussianLikelihood"]


@dataclass(frozen=True)
class GaussianLikelihood(Method):
    """Maximum likelihood of a normal distribution (the paper's Sec. 2.2)."""

    outputs = 2

    def answer(self, raw: Tensor) -> Gaussian:
        return Gaussian.from_raw(raw)

    def loss(self, answer: Gaussian, y: Tensor) -> Tensor:
        return gaussian_loss(answer, y, reduction="none")

    def fused(self, members: int, device: torch.device) -> dict[str, Any] | None:
        return {"evidential": False, "weight": torch.zeros(members, dtype=torch.float32, device=device)}
