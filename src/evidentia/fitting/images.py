"""Fit a U-Net from images to maps (depth, say) by any method, and ask one or several of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evidentia.distributions import Mixture
from evidentia.errors import InputError
from evidentia.methods.base import Method
from evidentia.nn import UNet
from evidentia.training import Augmentation, ImageBatches, Settings, Training, resolve_device, seeded, train
from evidentia.training.checkpoint import fingerprint
from evidentia.training.images import to_network

__all__ = ["ImageRecipe", "Pairs", "answers", "fit_images"]

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
SCORES = ("nll", "rmse")
_COMPILED: dict[str, Loss] = {}


@dataclass(frozen=True)
class Pairs:
    """Images (N, H, W, 3) as bytes and maps (N, H, W), NaN where there is no target, on one device."""

    images: Tensor
    maps: Tensor

    def to(self, device: torch.device) -> "Pairs":
        return Pairs(self.images.to(device), self.maps.to(device))

    def chunks(self, size: int = 48) -> Iterator["Pairs"]:
        """A few at a time."""
        return map(Pairs, self.images.split(size), self.maps.split(size))


@dataclass(frozen=True)
class ImageRecipe:
    """Network, settings and how images are varied."""

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
    select: str = "nll"  # what the validation pairs choose the weights by, or "rmse"

    def __post_init__(self) -> None:
        if self.select not in SCORES:
            raise InputError(f"weights are selected by {' or '.join(SCORES)}, not {self.select!r}")

    def network(self, outputs: int, seed: int) -> UNet:
        """A fresh one."""
        return UNet(outputs, width=self.width, blocks=self.blocks, dropout=self.dropout, head=self.head, seed=seed)


def fit_images(
    method: Method,
    pairs: Pairs,
    validation: Pairs,
    recipe: ImageRecipe | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> tuple[UNet, Training]:
    """Train one network, and leave it with the weights that the validation pairs like best.

    All pairs are kept on the device. There, on CUDA, the step is compiled and captured, and convolutions run in the
    precision of the settings; on a CPU it is float32.
    """
    recipe = recipe or ImageRecipe()
    place = resolve_device(device)
    cuda = place.type == "cuda"
    settings = recipe.settings if cuda else replace(recipe.settings, precision="float32")
    network = recipe.network(method.outputs, seed).to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    there = pairs.to(place)
    batches = ImageBatches(there.images, there.maps, recipe.batch_size, seed, recipe.augmentation)
    if not cuda:  # a compiled step knows torch's global generator only, which is seeded for it below
        network.generator = torch.Generator(place).manual_seed(seed)
    watch = _score_of(method, validation.to(place), recipe.select, settings.precision)
    try:
        with seeded(seed, place) if cuda else nullcontext(), fastest_convolutions():  # the seed is for dropout
            training = train(
                network,
                batches,
                loss_on(method, place),
                validate=watch,
                settings=settings,
                checkpoint=checkpoint,
                identity="" if checkpoint is None else _identity(method, recipe, seed, pairs, validation),
                progress=progress,
            )
    except torch.OutOfMemoryError as error:
        fits = largest_batch(lambda size: _try(network, method, batches, size), recipe.batch_size)
        raise InputError(_too_large(recipe.batch_size, fits)) from error
    network.generator = None
    return network, training


def _identity(method: Method, recipe: ImageRecipe, seed: int, *pairs: Pairs) -> str:
    """A hash of all that a training depends on beside its settings: method, network, seed and data."""
    about = replace(recipe, settings=Settings())  # settings are compared by the loop, which names the one that differs
    return fingerprint(method, about, seed, *(t for part in pairs for t in (part.images, part.maps)))


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """cuDNN tries its algorithms for each shape and keeps the fastest: worth it for thousands of steps of one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def loss_on(method: Method, place: torch.device) -> Loss:
    """The loss of a step; on CUDA compiled, once for all networks that are trained by this method."""
    if place.type != "cuda":
        return _loss_of(method)
    return _COMPILED.setdefault(repr(method), torch.compile(_loss_of(method), dynamic=False))


def _loss_of(method: Method) -> Loss:
    def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x, y = batch
        known = ~y.isnan()
        each = method.loss(_answer(method, module(x)), torch.where(known, y, 0.0), module)
        return torch.where(known, each, 0.0).sum() / known.sum().clamp(min=1)

    return loss


def _answer(method: Method, raw: Tensor) -> Any:
    """Raw maps (…, outputs, H, W) → a distribution of shape (…, H, W)."""
    return method.answer(raw.movedim(-3, -1))


def _score_of(method: Method, validation: Pairs, select: str, precision: str) -> Callable[[nn.Module], Tensor]:
    """Network → its score on the validation pairs; smaller is better."""

    def score(module: nn.Module) -> Tensor:
        total, count = torch.zeros((), dtype=torch.float32, device=validation.maps.device), 0
        for part in validation.chunks():
            answer = answers(method, [module], part.images, precision=precision)
            known = ~part.maps.isnan()
            y = torch.where(known, part.maps, 0.0)
            predictive = Mixture(answer.predictive(), validate_args=False)
            each = -predictive.log_prob(y) if select == "nll" else (y - predictive.mean).square()
            total += torch.where(known, each, 0.0).sum()
            count += int(known.sum())
        mean = total / max(count, 1)
        return mean if select == "nll" else mean.sqrt()

    return score


def answers(
    method: Method, networks: Sequence[nn.Module], images: Tensor, draws: int = 0, precision: str = "float32"
) -> Any:
    """What each network says about images (N, H, W, 3), or each of so many draws of its dropout: (K, N, H, W).

    ``images`` may also be what a network sees, (N, 3, H, W) in [0, 1], for gradients by the image.
    """
    x = to_network(images) if images.dtype == torch.uint8 else images
    half = precision == "bfloat16"
    raw = []
    with torch.autocast(x.device.type, torch.bfloat16) if half else nullcontext():
        for network in networks:
            with network.sampling() if draws else nullcontext():  # type: ignore[operator]
                raw += [network(x) for _ in range(max(1, draws))]
    return _answer(method, torch.stack(raw))


def largest_batch(fits: Callable[[int], bool], size: int) -> int:
    """The largest of size/2, size/4, … that fits; 0 if not even 1 does."""
    while size > 1:
        size //= 2
        if fits(size):
            return size
    return 0


def _try(network: nn.Module, method: Method, batches: ImageBatches, size: int) -> bool:
    """Whether a step of this many images fits into memory."""
    network.zero_grad(set_to_none=True)
    if batches.images.device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        smaller = ImageBatches(batches.images, batches.maps, size, 0, batches.augmentation)
        _loss_of(method)(network, smaller.next()).backward()
    except torch.OutOfMemoryError:
        return False
    return True


def _too_large(size: int, fits: int) -> str:
    hint = (
        f"a batch of {fits} fits" if fits else "not even a batch of 1 fits: take smaller images or a narrower network"
    )
    return f"a batch of {size} images does not fit into the memory of the device; {hint}"
