"""The paper's method: a Normal Inverse-Gamma per target, fitted by its marginal likelihood and an evidence penalty."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from howsure.distributions import NormalInverseGamma
from howsure.formulas.penalties import Penalty
from howsure.kernels.evidential_loss import PENALTIES, evidential_loss_from_raw
from howsure.likelihoods.base import Cells, Method, Network
from howsure.losses import evidential_loss
from howsure.nn import Population
from howsure.nn.population import per_member

__all__ = ["Evidential"]


@dataclass(frozen=True)
class Evidential(Method):
    """Deep evidential regression.

    Args:
        weight: λ for standardised targets: one number, or one per member of the population.
        penalty: a name or a function, as :func:`howsure.evidential_loss` takes it.
    """

    weight: float | Sequence[float] = 0.01
    penalty: str | Penalty = "error"
    outputs = 4

    def __post_init__(self) -> None:
        if not np.ndim(self.weight):  # a number of any kind as Python's own, which a compiled loss takes as a constant
            object.__setattr__(self, "weight", float(cast(float, self.weight)))

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: Network) -> Population:
        population = super().build(seeds, in_features, outputs, network)
        # on the device of the networks, where a captured graph can read it; a setting, so no part of a saved model
        each = torch.tensor(
            per_member("weight", self.weight, len(seeds)), dtype=torch.float32, device=population.weights[0].device
        )
        population.register_buffer("evidence_weight", each.view(-1, 1, 1), persistent=False)
        return population

    def answer(self, raw: Tensor) -> NormalInverseGamma:
        return NormalInverseGamma.from_raw(raw)

    def loss(
        self,
        answer: NormalInverseGamma,
        y: Tensor,
        networks: nn.Module | None = None,
        cells: Cells | None = None,
    ) -> Tensor:
        weight = self._weight(networks)
        return evidential_loss(answer, y, weight, self.penalty, cells=cells, reduction="none")

    @property
    def one_pass(self) -> bool:
        return self.penalty in PENALTIES and type(self).loss is Evidential.loss

    def mean_loss(
        self, answer: NormalInverseGamma, y: Tensor, mask: Tensor, networks: nn.Module | None = None
    ) -> Tensor:
        if not self.one_pass:
            return super().mean_loss(answer, y, mask, networks)
        return evidential_loss(answer, y, self._weight(networks), self.penalty, mask=mask)

    def loss_of_raw(
        self, raw: Tensor, y: Tensor, networks: nn.Module | None = None, cells: Cells | None = None
    ) -> Tensor:
        if not self.one_pass or cells is not None:
            return super().loss_of_raw(raw, y, networks, cells)
        return evidential_loss_from_raw(raw, y, self._weight(networks), str(self.penalty), reduction="none")

    def _weight(self, networks: nn.Module | None) -> Tensor | float:
        """Return λ, one number or one for each member."""
        if isinstance(self.weight, float):
            return self.weight
        each: Tensor = cast(Any, networks).evidence_weight
        return each
