"""Bayes by backprop (Blundell et al. 2015): a normal distribution over every weight, with a Gaussian likelihood."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evidentia.methods.base import Network
from evidentia.methods.gaussian import GaussianLikelihood
from evidentia.nn import BayesPopulation, Population

__all__ = ["BayesByBackprop"]


@dataclass(frozen=True)
class BayesByBackprop(GaussianLikelihood):
    """Minimise the negative evidence lower bound; predict with ``samples`` draws of the weights as one population.

    ``prior_std`` is that of a layer's output for inputs of size 1: one number, or one per member.
    """

    samples: int = 5
    prior_std: float | Sequence[float] = 3.0

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: Network) -> Population:
        return BayesPopulation(
            seeds, in_features, network.hidden, outputs, network.activation, prior_std=self.prior_std
        )

    def complexity(self, population: Any) -> Tensor:
        divergence: Tensor = population.divergence()
        return divergence

    def networks(self, population: Any, members: Sequence[int]) -> Population:
        drawn: Population = population.draw(members, self.samples)
        return drawn
