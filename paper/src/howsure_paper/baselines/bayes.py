"""Bayes by backprop (Blundell et al. 2015): a normal distribution over every weight, with a Gaussian likelihood."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from howsure.likelihoods.base import Network, Recipe
from howsure.likelihoods.normal import NormalLikelihood
from howsure.nn import Population
from howsure.training import Settings
from howsure_paper.baselines.population import BayesPopulation

__all__ = ["BayesByBackprop"]


@dataclass(frozen=True)
class BayesByBackprop(NormalLikelihood):
    """Minimise the negative evidence lower bound; predict with ``samples`` draws of the weights as one population.

    ``prior_std`` is that of a layer's output for inputs of size 1: one number, or one per member. A ``temperature``
    below 1 weighs the prior less than the bound does, which a large network on few rows needs in order to learn.
    """

    samples: int = 5
    prior_std: float | Sequence[float] = 3.0
    temperature: float = 1.0
    validation_fraction = 0.0
    draws_noise = True

    def recipe(self, rows: int) -> Recipe:
        """Return a small network for a small table: wide ones fall back to the prior there. All of it grows slowly."""
        size = max(1.0, rows / 1000)
        steps = round(min(8000 * size**0.35, 20_000))
        units = min(max(50, round(50 * (rows / 3000) ** 0.5)), 128)
        rate = max(1e-2 * size**-0.3, 5e-3)
        settings = Settings(steps=steps, learning_rate=rate, evaluate_every=max(1, steps // 20))
        return Recipe(Network((units,) * (1 if rows < 3000 else 2)), settings, 8 * round(min(8 * size**0.6, 32)))

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: Network) -> Population:
        return BayesPopulation(
            seeds, in_features, network.hidden, outputs, network.activation, prior_std=self.prior_std
        )

    def complexity(self, population: Any) -> Tensor:
        divergence: Tensor = population.divergence()
        return self.temperature * divergence

    def networks(self, population: Any, members: Sequence[int]) -> Population:
        drawn: Population = population.draw(members, self.samples)
        return drawn
