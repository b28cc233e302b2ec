"""Monte Carlo dropout (Gal and Ghahramani 2016), with a Gaussian likelihood."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howsure.likelihoods.base import Network
from howsure.likelihoods.normal import NormalLikelihood
from howsure.nn import Population
from howsure_paper.baselines.population import DropoutPopulation

__all__ = ["MCDropout"]


@dataclass(frozen=True)
class MCDropout(NormalLikelihood):
    """Train with dropout, predict with ``samples`` thinned networks, evaluated as one population.

    ``rate`` is one number, or one per member. A draw drops the same units for all rows and follows from the seed.
    """

    samples: int = 5
    rate: float | Sequence[float] = 0.05
    draws_noise = True

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: Network) -> Population:
        return DropoutPopulation(seeds, in_features, network.hidden, outputs, network.activation, self.rate)

    def networks(self, population: Any, members: Sequence[int]) -> Population:
        thinned: Population = population.thin(members, self.samples)
        return thinned
