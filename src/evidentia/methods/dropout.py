"""Monte Carlo dropout (Gal and Ghahramani 2016), with a Gaussian likelihood."""

from dataclasses import dataclass
from typing import Any

import torch

from evidentia.methods.gaussian import GaussianLikelihood
from evidentia.nn import Population

__all__ = ["MCDropout"]


@dataclass(frozen=True)
class MCDropout(GaussianLikelihood):
    """Train with dropout, predict with ``samples`` thinned networks, evaluated as one population.

    The rate is that of the network. A draw drops the same units for all rows; the draws follow from the seeds.
    """

    samples: int = 5

    def networks(self, population: Any) -> tuple[Population, int]:
        generator = torch.Generator().manual_seed(population.seeds[0])
        return population.thin(self.samples, generator), self.samples
