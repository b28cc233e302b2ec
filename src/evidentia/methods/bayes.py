"""Bayes by backprop (Blundell et al. 2015): a normal distribution over every weight, with a Gaussian likelihood."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evidentia.methods.base import Network
from evidentia.methods.gaussian import GaussianLikelihood
from evidentia.nn import BayesPopulation, Population

__all__ = ["BayesByBackprop"]


@dataclass(frozen=True)
class BayesByBackprop(GaussianLikelihood):
    """Minimise the negative evidence lower bound; predict with ``samples`` draws of the weights as one population."""

    samples: int = 5
    prior_std: float = 1.0

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: Network) -> Population:
        return BayesPopulation(
            seeds, in_features, network.hidden, outputs, network.activation, network.dropout, self.prior_std
        )

    def complexity(self, population: Any) -> Tensor:
        divergence: Tensor = population.divergence()
        return divergence

    def networks(self, population: Any) -> tuple[Population, int]:
        generator = torch.Generator().manual_seed(population.seeds[0])
        return population.draw(self.samples, generator), self.samples
