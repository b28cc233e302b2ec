"""What a method is, and what has to be chosen before one is fitted: network and recipe."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from evidentia.nn import Population
from evidentia.prediction import Answer
from evidentia.training import Settings

__all__ = ["Method", "Network", "Recipe"]


class Method(ABC):
    """A method is its raw outputs, its answer to them and its loss; some also build or draw networks their own way."""

    outputs: ClassVar[int]
    validation_share: ClassVar[float] = 0.1  # of the rows, to stop by; 0 for methods that train to the end
    # name of the field that is worth a search, and its candidates; of those that tie, the first is taken
    searched: ClassVar[tuple[str, tuple[float, ...]] | None] = None

    def recipe(self, rows: int) -> "Recipe":
        """Return a network and settings that suit a table of so many rows."""
        return Recipe.for_rows(rows)

    @abstractmethod
    def answer(self, raw: Tensor) -> Answer:
        """Return the distribution of shape (…) that raw outputs (…, outputs) stand for."""

    @abstractmethod
    def loss(self, answer: Any, y: Tensor, networks: nn.Module | None = None) -> Tensor:
        """Return what is minimised, elementwise.

        ``networks`` is the module that answered. A method whose numbers differ from member to member, or change during
        training, keeps them there, as buffers that :meth:`build` registers.
        """

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: "Network") -> Population:
        """Return the networks to train."""
        return Population(seeds, in_features, network.hidden, outputs, network.activation)

    def complexity(self, population: Any) -> Tensor | None:
        """Return a term per member that is added to its loss once per data set, in nats; None if there is none."""
        return None

    def fused(self, population: Population) -> dict[str, Any] | None:
        """Return the loss as ``kernels.small_networks.Likelihood`` takes it, or None if the kernel does not have it."""
        return None

    def networks(self, population: Any, members: Sequence[int]) -> Population:
        """Return the networks to predict with: equally many for each of these members, one member after the other."""
        some: Population = population.select(members)
        return some


@dataclass(frozen=True)
class Network:
    """The shape of each network."""

    hidden: tuple[int, ...] = (128, 128)
    activation: str = "silu"


@dataclass(frozen=True)
class Recipe:
    """Network, settings and batch size: what has to be chosen before a fit."""

    network: Network
    settings: Settings
    batch_size: int

    @classmethod
    def for_rows(cls, rows: int) -> "Recipe":
        """Chosen by the number of training rows alone.

        For small tables a learning rate of 5e-3 had the best validation score, or one close to it, on all five small
        UCI sets; 1e-3 left Energy half-trained (``docs/training.md`` tells the story).
        """
        if rows < 5000:
            return cls(Network((128, 128)), Settings(steps=4000, learning_rate=5e-3, evaluate_every=50), 64)
        return cls(Network((256, 256, 256)), Settings(steps=20_000, learning_rate=1e-3, evaluate_every=200), 256)
