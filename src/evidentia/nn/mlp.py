"""A plain multi-layer perceptron, and the pieces it shares with a population of them."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evidentia.errors import InputError, InputTypeError

__all__ = ["ACTIVATIONS", "MLP", "draw_layers"]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"relu": functional.relu, "silu": functional.silu, "gelu": functional.gelu, "tanh": torch.tanh}
)


def draw_layers(sizes: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return weights (in, out) and biases (out,) of every layer, uniform in ±1/√in as in ``nn.Linear``.

    They are drawn in float32 on the CPU from this seed alone, so that a seed means the same network on every device, in
    a population of any size, and whatever torch's default dtype is.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float32, device="cpu") * 2 - 1

    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = 1 / math.sqrt(inputs)
        layers.append((uniform(inputs, outputs) * bound, uniform(outputs) * bound))
    return layers


def by_output(weight: Tensor) -> Tensor:
    """The (in, out) weights of a layer with few outputs, laid out in memory output by output.

    The same numbers; a CPU multiplies by four such columns three times as fast.
    """
    return weight.mT.contiguous().mT if weight.device.type == "cpu" else weight


def layer_sizes(in_features: int, hidden: Iterable[int], outputs: int) -> tuple[int, ...]:
    """Return the sizes of all layers as plain integers; ``hidden=()`` is a linear network."""
    if isinstance(hidden, str) or not isinstance(hidden, Iterable):
        raise InputTypeError(f"hidden must be a sequence of layer sizes such as (64,), got {hidden!r}")
    sizes = (in_features, *hidden, outputs)
    for size in sizes:
        if not is_whole(size):
            raise InputTypeError(f"layer sizes must be whole numbers, got {size!r} in {sizes}")
    if min(sizes) < 1:
        raise InputError(f"layer sizes must be at least 1, got {sizes}")
    return tuple(int(size) for size in sizes)


def is_whole(value: Any) -> bool:
    """Whether a value is an integer, Python's or NumPy's; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_architecture(sizes: Sequence[int], activation: str, *dropout: float) -> None:
    """Raise one clear error for what cannot be built; ``sizes`` come from :func:`layer_sizes`."""
    if activation not in ACTIVATIONS:
        raise InputError(f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
    for rate in dropout:
        if not 0 <= rate < 1:
            raise InputError(f"dropout must lie in [0, 1), got {rate}")
    if any(dropout) and len(sizes) == 2:
        raise InputError("dropout drops hidden units, but hidden=() has none; leave out dropout, or add a hidden layer")


def check_features(owner: object, x: Any, size: int) -> None:
    """Raise one clear error where x is not a tensor with features of this size in its last dimension."""
    name = type(owner).__name__
    if not isinstance(x, Tensor):
        raise InputTypeError(f"{name} expects a tensor, not {type(x).__name__}")
    if x.ndim == 0 or x.shape[-1] != size:
        raise InputError(f"{name} expects features of size {size} in the last dimension, got shape {tuple(x.shape)}")


class MLP(nn.Module):
    """Linear layers with an activation (and dropout, if asked) after each but the last: (…, F) → (…, outputs).

    Parameters are float32, whatever torch's default dtype is; ``.double()`` and ``.to`` change them afterwards.

    >>> MLP(8, hidden=(50,), outputs=4)(torch.zeros(3, 8)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.sizes = layer_sizes(in_features, hidden, outputs)
        check_architecture(self.sizes, activation, dropout)
        self.activation, self.dropout = activation, dropout
        drawn = draw_layers(self.sizes, seed)
        self.weights = nn.ParameterList(weight for weight, _ in drawn)
        self.biases = nn.ParameterList(bias for _, bias in drawn)

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, self.sizes[0])
        *inner, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in inner:
            x = ACTIVATIONS[self.activation](functional.linear(x, weight.mT, bias))
            if self.dropout:
                x = functional.dropout(x, self.dropout, self.training)
        return functional.linear(x, by_output(last[0]).mT, last[1])

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, activation={self.activation}, dropout={self.dropout}"
