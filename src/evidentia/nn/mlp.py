"""A plain multi-layer perceptron, and the pieces it shares with a population of them."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from evidentia.errors import InputError

__all__ = ["ACTIVATIONS", "MLP", "draw_layers"]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"relu": functional.relu, "silu": functional.silu, "gelu": functional.gelu, "tanh": torch.tanh}
)


def draw_layers(sizes: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Weights (in, out) and biases (out,) of every layer, uniform in ±1/√in as in ``nn.Linear``, from this seed alone.

    Drawn on the CPU, so that a seed means the same network on every device and in a population of any size.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = 1 / math.sqrt(inputs)
        weight = (torch.rand(inputs, outputs, generator=generator) * 2 - 1) * bound
        layers.append((weight, (torch.rand(outputs, generator=generator) * 2 - 1) * bound))
    return layers


def by_output(weight: Tensor) -> Tensor:
    """The (in, out) weights of a layer with few outputs, laid out in memory output by output.

    The same numbers; a CPU multiplies by four such columns three times as fast.
    """
    return weight.mT.contiguous().mT if weight.device.type == "cpu" else weight


def check_architecture(sizes: Sequence[int], activation: str, *dropout: float) -> None:
    """One clear error for what cannot be built."""
    if any(size < 1 for size in sizes):
        raise InputError(f"layer sizes must be at least 1, got {tuple(sizes)}")
    if activation not in ACTIVATIONS:
        raise InputError(f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
    for rate in dropout:
        if not 0 <= rate < 1:
            raise InputError(f"dropout must lie in [0, 1), got {rate}")


class MLP(nn.Module):
    """Linear layers with an activation (and dropout, if asked) after each but the last: (…, F) → (…, outputs).

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
        self.sizes = (in_features, *hidden, outputs)
        check_architecture(self.sizes, activation, dropout)
        self.activation, self.dropout = activation, dropout
        drawn = draw_layers(self.sizes, seed)
        self.weights = nn.ParameterList(weight for weight, _ in drawn)
        self.biases = nn.ParameterList(bias for _, bias in drawn)

    def forward(self, x: Tensor) -> Tensor:
        *inner, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in inner:
            x = ACTIVATIONS[self.activation](functional.linear(x, weight.mT, bias))
            if self.dropout:
                x = functional.dropout(x, self.dropout, self.training)
        return functional.linear(x, by_output(last[0]).mT, last[1])

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, activation={self.activation}, dropout={self.dropout}"
