"""The training of one network of a model of images: loss, validation score, and batches that fit into memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from howsure.distributions import Mixture
from howsure.errors import InputError
from howsure.images.batches import ImageBatches, to_network
from howsure.images.networks import ImageRecipe, answer_of, raw_maps
from howsure.images.pairs import Pairs, padded
from howsure.likelihoods import Method
from howsure.nn import UNet
from howsure.training import Settings, Training, seeded, train
from howsure.training.checkpoint import fingerprint

__all__ = ["compiled_loss", "fastest_convolutions", "loss_of", "train_network"]

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


def loss_of(method: Method, device: torch.device, loc: float = 0.0, scale: float = 1.0) -> Loss:
    """Return (network, batch) → loss for targets in units of ``scale`` from ``loc``; on CUDA it is compiled."""
    return (compiled_loss if device.type == "cuda" else _loss_of)(method, loc, scale)


@lru_cache(maxsize=8)
def compiled_loss(method: Method, loc: float, scale: float) -> Loss:
    """Return (network, batch) → loss, compiled once for all networks of one method."""
    if method.one_pass:  # the network alone, because the loss has a custom kernel
        return _loss_of(method, loc, scale, torch.compile(_forward, dynamic=False))
    compiled: Loss = torch.compile(_loss_of(method, loc, scale), dynamic=False)
    return compiled


def train_network(
    method: Method,
    pairs: Pairs,
    validation: Pairs | None,
    recipe: ImageRecipe,
    scaling: tuple[float, float],
    seed: int,
    device: torch.device,
    checkpoint: str | Path | None,
    progress: bool,
) -> tuple[UNet, Training]:
    """Train one network, and return it with the weights of the best validation score."""
    cuda = device.type == "cuda"
    settings = recipe.settings if cuda else replace(recipe.settings, precision="float32")
    network = recipe.network(method.outputs, seed).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    there = padded(pairs, network.multiple).to(device)
    batches = ImageBatches(there.images, there.maps, recipe.batch_size, seed, recipe.augmentation)
    if not cuda:  # a compiled step uses torch's global generator only, which is seeded below
        network.generator = torch.Generator(device).manual_seed(seed)
    score = None
    if validation is not None:
        held = padded(validation, network.multiple).to(device)
        score = _score_of(method, held, scaling, recipe.select, settings.precision == "bfloat16")
    try:
        with seeded(seed, device) if cuda else nullcontext(), fastest_convolutions():  # the seed is for dropout
            training = train(
                network,
                batches,
                loss_of(method, device, *scaling),
                validate=score,
                settings=settings,
                checkpoint=checkpoint,
                identity="" if checkpoint is None else _identity(method, recipe, scaling, seed, pairs, validation),
                progress=progress,
            )
    except torch.OutOfMemoryError as error:
        hint = "lower recipe.batch_size, or take smaller images or a narrower network"
        message = f"a batch of {recipe.batch_size} images does not fit into the memory of the device"
        raise InputError(message, hint=hint) from error
    network.generator = None
    return network.eval(), training


def _identity(
    method: Method, recipe: ImageRecipe, scaling: tuple[float, float], seed: int, pairs: Pairs, validation: Pairs | None
) -> str:
    """Return a hash of method, network, scale, seed and data."""
    about = replace(recipe, settings=Settings())  # settings are compared by the loop, which names the one that differs
    parts = [pairs] if validation is None else [pairs, validation]
    return fingerprint(method, about, scaling, seed, *(t for part in parts for t in (part.images, part.maps)))


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms for each shape and keep the fastest, for thousands of steps of one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _forward(module: nn.Module, x: Tensor) -> Tensor:
    raw: Tensor = module(x)
    return raw


def _loss_of(
    method: Method, loc: float, scale: float, forward: Callable[[nn.Module, Tensor], Tensor] = _forward
) -> Loss:
    def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x, y = batch
        return method.mean_loss(answer_of(method, forward(module, x)), (y - loc) / scale, ~y.isnan(), module)

    return loss


def _score_of(
    method: Method, validation: Pairs, scaling: tuple[float, float], select: str, half: bool
) -> Callable[[nn.Module], Tensor]:
    """Return network → its score on the validation pairs, for scaled targets; smaller is better."""
    loc, scale = scaling

    def score(module: nn.Module) -> Tensor:
        total, count = torch.zeros((), dtype=torch.float32, device=validation.maps.device), 0
        for part in validation.chunks():
            answer = answer_of(method, raw_maps([module], to_network(part.images), half))
            known = ~part.maps.isnan()
            y = torch.where(known, (part.maps - loc) / scale, 0.0)
            predictive = Mixture(answer.predictive(), validate_args=False)
            each = -predictive.log_prob(y) if select == "nll" else (y - predictive.mean).square()
            total += torch.where(known, each, 0.0).sum()
            count += int(known.sum())
        mean = total / max(count, 1)
        return mean if select == "nll" else mean.sqrt()

    return score
