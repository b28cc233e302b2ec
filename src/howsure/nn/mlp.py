"""A plain multi-layer perceptron, and functions it shares with a population of them."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import check_features, is_whole

__all__ = ["ACTIVATIONS", "MLP", "draw_layers"]

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


class MLP(nn.Module):
    """Multi-layer perceptron from features (…, F) to (…, outputs), with an activation after each layer but the last.

    Parameters are float32, whatever torch's default dtype is; ``.double()`` and ``.to`` change them afterwards.

    Args:
        in_features: F.
        hidden: number of units in each hidden layer.
        outputs: number of outputs.
        activation: a name in ``ACTIVATIONS``: "relu", "silu", "gelu" or "tanh".
        seed: the initial weights follow from it; torch's generator is untouched.

    >>> MLP(8, hidden=(50,), outputs=4)(torch.zeros(3, 8)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.sizes = layer_sizes(in_features, hidden, outputs)
        check_architecture(activation)
        self.activation = activation
        drawn = draw_layers(self.sizes, seed)
        self.weights = nn.ParameterList(weight for weight, _ in drawn)
        self.biases = nn.ParameterList(bias for _, bias in drawn)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.sizes[0])
        *inner, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in inner:
            x = ACTIVATIONS[self.activation](functional.linear(x, weight.mT, bias))
        return functional.linear(x, output_major(last[0]).mT, last[1])

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, activation={self.activation}"
