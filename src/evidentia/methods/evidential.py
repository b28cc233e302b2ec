"""The paper's method: a Normal Inverse-Gamma per target, fitted by its marginal likelihood and an evidence penalty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from evidentia.distributions import NormalInverseGamma
from evidentia.formulas.penalties import Penalty
from evidentia.losses import evidential_loss
from evidentia.methods.base import Method
from evidentia.nn.population import per_member

__all__ = ["Evidential"]


@dataclass(frozen=True)
class Evidential(Method):
    """Deep evidential regression.

    ``weight`` is λ for standardised targets: one number, or one per member of the population.
    """

    weight: float | Sequence[float] = 0.01
    penalty: str | Penalty = "error"
    extra: Mapping[str, float] = field(default_factory=dict)
    outputs = 4
    searched = "weight", (0.0, 0.001, 0.01, 0.1, 1.0)  # the smallest of those that tie: docs/tables.md has the figures

    def answer(self, raw: Tensor) -> NormalInverseGamma:
        return NormalInverseGamma.from_raw(raw)

    def loss(self, answer: NormalInverseGamma, y: Tensor) -> Tensor:
        weight = self.weight if isinstance(self.weight, int | float) else self._per_member(y)
        return evidential_loss(answer, y, weight, self.penalty, extra=self.extra, reduction="none")

    def fused(self, members: int, device: torch.device) -> dict[str, Any] | None:
        if self.penalty != "error" or self.extra:
            return None
        weight = torch.tensor(per_member("weight", self.weight, members), dtype=torch.float32, device=device)
        return {"evidential": True, "weight": weight}

    def _per_member(self, y: Tensor) -> Tensor:
        """The weights as (M, 1, 1) on the device of y, made once: a captured graph cannot copy from the host."""
        known: Tensor | None = self.__dict__.get("_weights")
        if known is None or known.device != y.device:
            known = torch.tensor(self.weight, dtype=torch.float32, device=y.device).view(-1, *[1] * (y.ndim - 1))
            object.__setattr__(self, "_weights", known)
        return known
