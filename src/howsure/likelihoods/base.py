"""Interface of a likelihood, and the recipe of its networks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from howsure.nn import Population
from howsure.prediction import Answer
from howsure.training import Settings

__all__ = ["Cells", "Method", "Network", "Recipe"]

Cells = tuple[Tensor, Tensor]  # lower and upper ends


class Method(ABC):
    """A likelihood: its raw outputs, their distribution and loss. Some also build or draw networks differently."""

    outputs: ClassVar[int]
    validation_fraction: ClassVar[float] = 0.1  # of the rows, to stop by; 0 for methods that train to the end

    def recipe(self, rows: int) -> "Recipe":
        """Return a network and settings for a table of ``rows`` rows."""
        return Recipe.for_rows(rows)

    @abstractmethod
    def answer(self, raw: Tensor) -> Answer:
        """Return the distribution of shape (…) that raw outputs (…, outputs) stand for."""

    @abstractmethod
    def loss(self, answer: Any, y: Tensor, networks: nn.Module | None = None, cells: Cells | None = None) -> Tensor:
        """Return the minimised loss, elementwise.

        Args:
            answer: the output distribution of the networks.
            y: targets, or bounds of them.
            networks: the module with these outputs. A method whose parameters differ between members, or change during
                training, keeps them there, as buffers that :meth:`build` registers.
            cells: lower and upper ends of the cells that targets lie in, each of the shape of y; equal where y is the
                value. None: all are values. A method that cannot learn from cells raises an InputError.
        """

    def loss_of_raw(
        self, raw: Tensor, y: Tensor, networks: nn.Module | None = None, cells: Cells | None = None
    ) -> Tensor:
        """Return the loss of raw outputs (…, outputs), computed by a fast kernel where one exists."""
        return self.loss(self.answer(raw), y, networks, cells)

    @property
    def one_pass(self) -> bool:
        """Whether a kernel computes the loss and its gradient in one pass from raw outputs."""
        return False

    def mean_loss(self, answer: Any, y: Tensor, mask: Tensor, networks: nn.Module | None = None) -> Tensor:
        """Return the mean of the loss over the targets that the mask counts, 0 if there are none."""
        each = self.loss(answer, torch.where(mask, y, 0.0), networks)
        return torch.where(mask, each, 0.0).sum() / mask.sum().clamp(min=1)

    def nll(self, answer: Any, y: Tensor, cells: Cells | None = None) -> Tensor:
        """Return the negative log likelihood of targets or cells, elementwise. It is the score of validation rows."""
        predictive = answer.predictive()
        if cells is None:
            nll: Tensor = -predictive.log_prob(y)
        else:
            parameters = (getattr(predictive, name) for name in predictive.arguments)
            nll = predictive.formulas.cell_nll(y, *cells, *parameters)
        return nll

    def build(self, seeds: Sequence[int], in_features: int, outputs: int, network: "Network") -> Population:
        """Return the networks to train."""
        return Population(seeds, in_features, network.hidden, outputs, network.activation)

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
    """Network, settings and batch size: the choices before a fit."""

    network: Network
    settings: Settings
    batch_size: int

    @classmethod
    def for_rows(cls, rows: int) -> "Recipe":
        """Return the recipe for a table of ``rows`` training rows. Sizes and steps grow with it.

        The steps are the most that are taken: training stops when validation scores no longer improve. Until the last
        steps that noiseless tables need, the learning rate is constant and the weights are averaged, so that the
        weights of any step are usable. ``docs/choices.md`` explains how these numbers were found.
        """
        size = max(1.0, rows / 1000)
        steps = round(min(6000 * (rows / 1000) ** 0.301, 12_000))
        settings = Settings(
            steps=steps,
            learning_rate=5e-3,
            warmup=150 / steps,
            decay=0.8,
            averaging=0.05,
            evaluate_every=round(min(66 * size**0.48, 200)),
            plateau=0.25,
        )
        layers = 3 if rows < 3000 else 4
        # units of a layer, so that the multiplications between hidden layers grow alike with three layers and with four
        width = min((8_192 * size**0.46 / (layers - 1)) ** 0.5, 256)
        batch_size = min(64 * size**0.375, 256)
        return cls(Network((_multiple_of_8(width),) * layers, "gelu"), settings, _multiple_of_8(batch_size))

    def with_steps(self, steps: int) -> "Recipe":
        """Return the recipe with this number of steps, and at least 20 evaluations."""
        every = max(1, min(self.settings.evaluate_every, steps // 20))
        return replace(self, settings=replace(self.settings, steps=steps, evaluate_every=every))


def _multiple_of_8(x: float) -> int:
    """Return the nearest multiple of 8, which a processor's vector units are made for."""
    return 8 * round(x / 8)
