"""The models of the depth experiment: image models with draws of dropout, and least squares with its noise."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from howsure.distributions import Mixture, Normal
from howsure.errors import InputError
from howsure.images import FittedImages, Pairs
from howsure.images.model import ImageHeader
from howsure.images.networks import raw_maps
from howsure.likelihoods import Method
from howsure.prediction import Answer, Prediction
from howsure.tables.state import METHODS
from howsure_paper.baselines import LeastSquares

__all__ = ["DepthModel"]

NOISE_IMAGES = 24  # images in a batch when the noise is chosen
NOISE_PIXELS = 29  # the noise is chosen by every 29th pixel that has a target
_DRAWING = threading.Lock()  # a draw changes the mode and the generator of its network: one thread at a time


@dataclass(frozen=True, eq=False, repr=False)
class DepthModel(FittedImages):
    """An image model whose members can be draws of dropout, and whose method can be least squares.

    Args:
        draws: if not 0, each network predicts with ``draws`` draws of its dropout, and the draws are the members.
        seed: the seed of the training, from which the draws of a prediction follow too.
    """

    draws: int = 0
    seed: int = 0

    methods: ClassVar[Mapping[str, type[Method]]] = {**METHODS, LeastSquares.__name__: LeastSquares}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws < 0:
            raise InputError(f"draws must be at least 0, got {self.draws}")
        if self.draws and not self.recipe.dropout:
            raise InputError("draws need networks that were trained with dropout; set recipe.dropout")
        if self.draws and self.fading is not None:
            raise InputError("a model with draws of dropout cannot fade; set fading=None or draws=0")

    @classmethod
    def of(cls, fitted: FittedImages, seed: int = 0) -> Self:
        """Return a fitted image model as a depth model without draws."""
        return cls(**{field.name: getattr(fitted, field.name) for field in fields(FittedImages)}, seed=seed)

    @property
    def members(self) -> int:
        """Number of distributions that a prediction has for each pixel."""
        return len(self.networks) * max(1, self.draws)

    def predict(self, images: Any, generator: torch.Generator | None = None) -> Prediction:
        """Return the prediction of all images, as :meth:`predict_batches` computes it."""
        return Prediction.cat(self.predict_batches(images, generator))

    def predict_batches(self, images: Any, generator: torch.Generator | None = None) -> Iterator[Prediction]:
        """Return an iterator over the predictions of consecutive batches of images.

        Args:
            images: as :meth:`howsure.FittedImages.predict` takes them.
            generator: draws of dropout come from it; by default they follow from the seed of the model.
        """
        if not self.draws:
            return super().predict_batches(images)
        batches = enumerate(self._batches(self._inputs(images)))
        return (self._drawn(batch, generator or self._generator(k)) for k, batch in batches)

    def answers(self, images: Tensor, generator: torch.Generator | None = None) -> Answer:
        """Return the distribution of each member for images, (members, N, H, W), before any fading.

        Args:
            images: as :meth:`howsure.FittedImages.answers` takes them.
            generator: draws of dropout come from it; by default they come from torch's global generator.
        """
        passes = [
            _Pass(network, self.draws > 0, generator) for network in self.networks for _ in range(max(1, self.draws))
        ]
        return self._answer(raw_maps(passes, self._seen_by_networks(images), self._half), self._size(images))

    @torch.no_grad()
    def _drawn(self, batch: Tensor, generator: torch.Generator) -> Prediction:
        return Prediction(self.answers(batch, generator), members=0)

    def _generator(self, batch: int) -> torch.Generator:
        """Return a generator that follows from the seed and the number of a batch."""
        seed = np.random.SeedSequence([self.seed, batch]).generate_state(1)[0]
        return torch.Generator(self.device).manual_seed(int(seed))

    @torch.no_grad()
    def choose_noise(self, pairs: Pairs, generator: torch.Generator | None = None) -> Self:
        """Return a least-squares model with the noise of the highest likelihood; another model as it is.

        Least squares does not predict how large the noise is. It gets one standard deviation for all pixels.

        Args:
            pairs: that the noise is chosen by.
            generator: draws of dropout come from it; by default they come from torch's global generator.
        """
        if not isinstance(self.method, LeastSquares):
            return self
        means, known = [], []
        for part in pairs.to(self.device).chunks(NOISE_IMAGES):
            chosen = ~part.maps.isnan()
            answer = self.answers(part.images, generator)
            assert isinstance(answer, Normal)
            means.append(answer.loc[:, chosen][:, ::NOISE_PIXELS])
            known.append(part.maps[chosen][::NOISE_PIXELS])
        loc, y = torch.cat(means, 1), torch.cat(known)
        # in units of the targets' deviation, or of the errors where these are far from it
        error = float((loc.mean(0) - y).square().mean().sqrt())
        unit = self.scale if 0.01 * self.scale < error < self.scale else 3 * error or self.scale
        candidates = np.geomspace(0.01, 1, 61)
        deviations = [torch.full_like(loc, float(s) * unit) for s in candidates]
        nll = [-float(Mixture(Normal(loc, s), validate_args=False).log_prob(y).mean()) for s in deviations]
        best = float(candidates[int(np.argmin(nll))])
        noise = best if unit == self.scale else best * unit / self.scale
        return replace(self, method=replace(self.method, noise=noise))

    def state(self) -> tuple[dict[str, Tensor], ImageHeader]:
        """Return the tensors of the model by name, and the header of its file."""
        tensors, header = super().state()
        return tensors, replace(header, extra={"draws": self.draws, "seed": self.seed})

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: ImageHeader) -> Self:
        """Return the model that :meth:`state` described, on the CPU."""
        model = super().from_state(tensors, header)
        return replace(model, draws=int(header.extra["draws"]), seed=int(header.extra["seed"]))


@dataclass(frozen=True)
class _Pass:
    """A forward pass of a network: with a new draw of its dropout, or with its dropout off."""

    network: Any
    draw: bool
    generator: torch.Generator | None

    def __call__(self, x: Tensor) -> Tensor:
        maps: Tensor
        if not any(drop.p for drop in getattr(self.network, "drops", ())):
            maps = self.network(x)
            return maps
        with _DRAWING:
            self.network.eval()  # further training may have switched dropout on
            if not self.draw:
                maps = self.network(x)
                return maps
            before, self.network.generator = self.network.generator, self.generator
            try:
                self.network.drops.train()
                maps = self.network(x)
            finally:
                self.network.generator = before
                self.network.drops.eval()
        return maps
