"""The networks of a model of images, and how a method asks them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from evidentia.errors import InputError
from evidentia.methods import Method
from evidentia.nn import UNet
from evidentia.nn.appearance import BLOCKS
from evidentia.training import Augmentation, Settings

__all__ = ["ImageRecipe", "answer_of", "maps_and_features", "pooled_features", "raw_maps"]

SCORES = ("nll", "rmse")
SMALL = 1 << 22  # numbers of all members together that are simply put side by side
_DRAWING = threading.Lock()  # dropout draws change a network's mode and generator: one thread at a time


@dataclass(frozen=True)
class ImageRecipe:
    """Network, settings and how images are varied.

    Args:
        width: channels of the first block.
        blocks: of the encoder; each halves the image.
        head: "direct", or "paper" for the authors' own (:class:`evidentia.nn.UNet`).
        dropout: rate of spatial dropout.
        batch_size: images a step.
        settings: steps, learning rate and the like. The precision is that of training and prediction on CUDA; a CPU
            computes in float32.
        augmentation: how each pair is varied, or None.
        select: what the validation pairs choose the weights by, "nll" or "rmse".
    """

    width: int = 32
    blocks: int = 5
    head: str = "direct"
    dropout: float = 0.0
    batch_size: int = 32
    settings: Settings = field(
        default_factory=lambda: Settings(
            steps=6000, learning_rate=1e-3, evaluate_every=250, precision="bfloat16", checkpoint_every=8
        )
    )
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    select: str = "nll"

    def __post_init__(self) -> None:
        if self.select not in SCORES:
            raise InputError(f"weights are selected by {' or '.join(SCORES)}, not {self.select!r}")

    def network(self, outputs: int, seed: int) -> UNet:
        """Return a new network."""
        return UNet(outputs, width=self.width, blocks=self.blocks, dropout=self.dropout, head=self.head, seed=seed)


def answer_of(method: Method, raw: Tensor) -> Any:
    """Return the distribution of shape (…, H, W) that raw maps (…, outputs, H, W) stand for."""
    return method.answer(raw.movedim(-3, -1))


def raw_maps(
    networks: Sequence[nn.Module], x: Tensor, draws: int, half: bool, generator: torch.Generator | None = None
) -> Tensor:
    """Return the raw maps of every network, or of each of so many draws of its dropout, (members, N, outputs, H, W)."""
    return _asked(networks, x, draws, half, generator, None)


def maps_and_features(
    networks: Sequence[nn.Module], x: Tensor, draws: int, half: bool, generator: torch.Generator | None = None
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Return the raw maps, and for every network the pooled features of its first blocks.

    They come from one pass; draws of dropout have one more, without dropout, through these blocks.
    """
    features: list[tuple[Tensor, ...]] = []
    maps = _asked(networks, x, draws, half, generator, features)
    return maps, features


@torch.no_grad()
def pooled_features(network: UNet, x: Tensor, half: bool) -> tuple[Tensor, ...]:
    """Return the pooled features of the first blocks, without dropout."""
    with (
        torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False),
        _asking(network, False, None),
    ):
        return network.pooled(x, BLOCKS)


def _asked(
    networks: Sequence[Any],
    x: Tensor,
    draws: int,
    half: bool,
    generator: torch.Generator | None,
    features: list[tuple[Tensor, ...]] | None,
) -> Tensor:
    """Return the raw maps; ``features``, if it is a list, is given those of every network."""
    count = len(networks) * max(1, draws)
    maps: list[Tensor] = []
    kept: Tensor | None = None
    filled = 0
    # Whatever the caller's own context says. Inside another autocast context torch would keep its bfloat16 copies of
    # the weights, and answer with them when the weights have long been others.
    with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
        for network in networks:
            if features is not None and draws:
                features.append(pooled_features(network, x, half))
            with _asking(network, draws > 0, generator):
                for _ in range(max(1, draws)):
                    if features is None or draws:
                        latest = network(x)
                    else:
                        latest, found = network.forward_with_features(x, BLOCKS)
                        features.append(found)
                    if torch.is_grad_enabled() or count * latest.numel() <= SMALL:
                        maps.append(latest)
                        continue
                    # into one block of memory: many small ones would tear it into pieces that are hard to use again
                    if kept is None:
                        kept = latest.new_empty((count, *latest.shape))
                    kept[filled] = latest
                    filled += 1
    return torch.stack(maps) if kept is None else kept


@contextmanager
def _asking(network: Any, draw: bool, generator: torch.Generator | None) -> Iterator[None]:
    """Let dropout draw from this generator (None is torch's global one), or see to it that nobody else lets it draw."""
    if not any(drop.p for drop in getattr(network, "drops", ())):
        yield
        return
    with _DRAWING:
        network.eval()  # someone may have trained it further
        before = network.generator
        try:
            with network.sampling() if draw else nullcontext():
                network.generator = generator if draw else before
                yield
        finally:
            network.generator = before
