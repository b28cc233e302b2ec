"""Layers of multi-layer perceptrons: their activations, sizes and initial weights."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import is_whole

__all__ = ["ACTIVATIONS", "draw_layers"]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"relu": functional.relu, "silu": functional.silu, "gelu": functional.gelu, "tanh": torch.tanh}
)


def draw_layers(sizes: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return random weights (in, out) and biases (out,) of every layer, uniform in ±1/√in as in ``nn.Linear``.

    They are drawn in float32 on the CPU from this seed alone, so that a seed gives the same network on every device, in
    a population of any size, and whatever torch's default dtype is.

    Args:
        sizes: number of inputs, of units in each hidden layer, and of outputs.
        seed: seed of a generator that nothing else uses.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float32, device="cpu") * 2 - 1

    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = 1 / math.sqrt(inputs)
        layers.append((uniform(inputs, outputs) * bound, uniform(outputs) * bound))
    return layers


def output_major(weight: Tensor) -> Tensor:
    """Return the (in, out) weights of a layer with few outputs, laid out in memory output by output.

    A CPU multiplies by four such columns three times as fast. On other devices the weights are returned as they are.
    """
    return weight.mT.contiguous().mT if weight.device.type == "cpu" else weight


def layer_sizes(in_features: int, hidden: Iterable[int], outputs: int) -> tuple[int, ...]:
    """Return the sizes of all layers as Python integers; ``hidden=()`` gives a linear network."""
    if isinstance(hidden, str) or not isinstance(hidden, Iterable):
        raise InputTypeError(f"hidden must be a sequence of layer sizes such as (64,), got {hidden!r}")
    sizes = (in_features, *hidden, outputs)
    for size in sizes:
        if not is_whole(size):
            raise InputTypeError(f"layer sizes must be whole numbers, got {size!r} in {sizes}")
    if min(sizes) < 1:
        raise InputError(f"layer sizes must be at least 1, got {sizes}")
    return tuple(int(size) for size in sizes)


def check_architecture(activation: str) -> None:
    """Raise an error for an unknown activation."""
    if activation not in ACTIVATIONS:
        raise InputError(f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
