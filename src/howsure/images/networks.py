"""The recipe of the networks of an image model, and their forward passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from howsure.errors import InputError
from howsure.images.batches import Augmentation
from howsure.likelihoods import Method
from howsure.nn import UNet
from howsure.nn.appearance import BLOCKS
from howsure.training import Settings

__all__ = ["ImageRecipe", "answer_of", "maps_and_features", "pooled_features", "raw_maps"]

SCORES = ("nll", "rmse")
Called = TypeVar("Called")


@dataclass(frozen=True)
class ImageRecipe:
    """Network, settings and augmentation of a model of images.

    Args:
        width: channels of the first block.
        blocks: of the encoder. Each halves the image.
        head: ``"direct"``, or ``"paper"`` for the head of the authors (:class:`howsure.nn.UNet`).
        dropout: rate of spatial dropout.
        batch_size: images a step.
        settings: steps, learning rate and the like. The precision applies to training and prediction on CUDA. A CPU
            computes in float32.
        augmentation: how each pair is varied, or None.
        select: the validation score that chooses the weights, ``"nll"`` or ``"rmse"``.

    Raises:
        InputError: for another ``select``.

    >>> recipe = ImageRecipe(width=8, blocks=2)
    >>> recipe.network(outputs=4, seed=0)(torch.zeros(1, 3, 16, 16)).shape
    torch.Size([1, 4, 16, 16])
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
        """Return a new network.

        Args:
            outputs: raw outputs per pixel, 4 for the evidential likelihood.
            seed: of the initial weights.
        """
        return UNet(outputs, width=self.width, blocks=self.blocks, dropout=self.dropout, head=self.head, seed=seed)


def answer_of(method: Method, raw: Tensor) -> Any:
    """Return the distribution of shape (…, H, W) that raw maps (…, outputs, H, W) stand for."""
    return method.answer(raw.movedim(-3, -1))


def raw_maps(networks: Sequence[Callable[[Tensor], Tensor]], x: Tensor, half: bool) -> Tensor:
    """Return the raw maps of all networks, (networks, N, outputs, H, W).

    Args:
        networks: modules, or functions from images to raw maps. They are called in this order.
        x: images (N, 3, H, W).
        half: compute in bfloat16.
    """
    return _stacked(lambda network: network(x), networks, x.device, half)


def maps_and_features(networks: Sequence[UNet], x: Tensor, half: bool) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Return the raw maps, and for each network the pooled features of its first blocks, from one pass."""
    features: list[tuple[Tensor, ...]] = []

    def forward(network: UNet) -> Tensor:
        raw, found = network.forward_with_features(x, BLOCKS)
        features.append(found)
        return raw

    return _stacked(forward, networks, x.device, half), features


@torch.no_grad()
def pooled_features(network: UNet, x: Tensor, half: bool) -> tuple[Tensor, ...]:
    """Return the pooled features of the first blocks, without dropout."""
    with _precision(x.device, half):
        return _evaluated(network).pooled(x, BLOCKS)


def _stacked(
    forward: Callable[[Called], Tensor], networks: Sequence[Called], device: torch.device, half: bool
) -> Tensor:
    """Return the maps ``forward(network)`` of all networks as one tensor, with a new first dimension."""
    with _precision(device, half):
        return torch.stack([forward(_evaluated(network)) for network in networks])


def _precision(device: torch.device, half: bool) -> torch.autocast:
    """Return a context that computes in bfloat16 or float32, whatever the caller's autocast context is.

    It does not cache the bfloat16 copies of weights: inside another autocast context torch would keep the copies, and
    use them after the weights have changed.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False)


def _evaluated(network: Called) -> Called:
    """Return a network after switching its dropout off, which further training may have switched on."""
    if isinstance(network, nn.Module) and any(drop.p for drop in getattr(network, "drops", ())):
        network.eval()
    return network
