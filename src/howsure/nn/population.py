"""Many independent networks as one module, over a leading member axis.

The networks of a tabular model are so small that overhead dominates a training step. M of them, as one batched matrix
product, cost little more than one: the twenty splits of a benchmark, the folds and weights of a search, or the members
of a mixture train in the time of a single run.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import is_whole
from howsure.nn.embedding import PiecewiseLinear

__all__ = ["ACTIVATIONS", "Population", "draw_layers", "per_member"]

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


def per_member(name: str, value: float | Sequence[float], members: int) -> tuple[float, ...]:
    """Return one number for each member: the given sequence, or the given number for all. ``name`` is for the error."""
    each = value.tolist() if isinstance(value, np.ndarray | np.generic | Tensor) else value
    if not isinstance(each, Sequence):
        return (float(each),) * members
    if len(each) != members:
        raise InputError(f"{name} has {len(each)} values for {members} members; give one number, or one per member")
    return tuple(float(v) for v in each)


def _checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(seeds, Iterable):
        raise InputTypeError(f"seeds must be a sequence of whole numbers, got {seeds!r}")
    each = tuple(seeds)
    if not each:
        raise InputError("a population needs at least one member: seeds is empty")
    for seed in each:
        if not is_whole(seed):
            raise InputTypeError(f"seeds must be whole numbers, got {seed!r}")
        if not -(2**63) <= seed < 2**64:
            raise InputError(f"seeds must lie in [-2^63, 2^64), as torch's generators take them, got {seed}")
    return tuple(int(seed) for seed in each)


class Population(nn.Module):
    """M independent multi-layer perceptrons of one shape: features (M, N, F) or (N, F) → (M, N, outputs).

    The first dimension of every parameter is the member. The weights at the start of
    member i depend on ``seeds[i]`` alone.
    Parameters are float32, whatever torch's default dtype is.

    Args:
        seeds: one seed per member, from which its initial weights follow.
        in_features: F.
        hidden: number of units in each hidden layer.
        outputs: number of outputs.
        activation: "relu", "silu", "gelu" or "tanh".

    >>> Population(seeds=range(5), in_features=8, hidden=(50,), outputs=4)(torch.zeros(3, 8)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        seeds: Sequence[int],
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        sizes, seeds = layer_sizes(in_features, hidden, outputs), _checked_seeds(seeds)
        layers = list(zip(*(draw_layers(sizes, seed) for seed in seeds), strict=True))  # the members' of each layer
        weights = [torch.stack([weight for weight, _ in layer]) for layer in layers]
        biases = [torch.stack([bias for _, bias in layer]).unsqueeze(1) for layer in layers]
        self._set_layers(seeds, activation, weights, biases)

    def _set_layers(
        self, seeds: Sequence[int], activation: str, weights: Iterable[Tensor], biases: Iterable[Tensor]
    ) -> None:
        """Set all attributes of a module that has none."""
        if activation not in ACTIVATIONS:
            raise InputError(f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
        self.seeds, self.activation = tuple(seeds), activation
        self.weights, self.biases = nn.ParameterList(weights), nn.ParameterList(biases)
        self.sizes: tuple[int, ...] = (self.weights[0].shape[1], *(weight.shape[2] for weight in self.weights))
        self.embedding: PiecewiseLinear | None = None

    @property
    def members(self) -> int:
        """Number of networks."""
        return len(self.seeds)

    @property
    def in_features(self) -> int:
        """Number of features that the networks take, before an embedding."""
        return self.sizes[0] if self.embedding is None else self.embedding.in_features

    def embed(self, embedding: PiecewiseLinear) -> Self:
        """Let the networks see features through an embedding, whose outputs are the inputs of the first layer."""
        if embedding.in_features + embedding.bins != self.sizes[0]:
            raise InputError(
                f"the embedding has {embedding.in_features} + {embedding.bins} outputs, but the first layer "
                f"{self.sizes[0]} inputs"
            )
        self.embedding = embedding
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(self._inputs(x))[0]

    def _inputs(self, x: Tensor) -> Tensor:
        """Return the inputs of the first layer, or raise an error if the features do not fit."""
        x = self._checked(x)
        return x if self.embedding is None else self.embedding(x)

    def _checked(self, x: Tensor) -> Tensor:
        """Return the features as (M, N, F), or raise an error if they do not fit."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"Population expects a tensor of features, not {type(x).__name__}")
        if not x.is_floating_point():
            raise InputTypeError(f"Population expects floating-point features, not {x.dtype}; convert with x.float()")
        if x.ndim == 2:
            x = x.expand(self.members, *x.shape)
        if x.ndim != 3 or x.shape[0] != self.members or x.shape[2] != self.in_features:
            raise InputError(
                f"Population expects features of shape ({self.members}, N, {self.in_features}) or "
                f"(N, {self.in_features}), got {tuple(x.shape)}"
            )
        return x

    def with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs (M, N, outputs) and the outputs of all hidden layers (M, N, units).

        A network without hidden layers has its inputs as features.
        """
        x = self._inputs(x)
        outputs, hidden = self._pass(x)
        return outputs, torch.cat(hidden or [x], -1)

    def _pass(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs, and the outputs of each hidden layer, for inputs of the first layer."""
        *inner, last = zip(self.weights, self.biases, strict=True)
        hidden = []
        for weight, bias in inner:
            x = self._hidden(x, weight, bias)
            hidden.append(x)
        return torch.baddbmm(last[1], x, output_major(last[0])), hidden

    def _hidden(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the outputs of a hidden layer."""
        return ACTIVATIONS[self.activation](torch.baddbmm(bias, x, weight))

    def select(self, members: Sequence[int]) -> "Population":
        """Return a population of copies of these members, for prediction."""
        chosen = list(members)
        weights, biases = ([p.detach()[chosen] for p in ps] for ps in (self.weights, self.biases))
        return self._plain(chosen, weights, biases)

    def _plain(self, members: Sequence[int], weights: Iterable[Tensor], biases: Iterable[Tensor]) -> "Population":
        """Return a population with these weights and biases, and with the seeds of these members."""
        some = self._bare()
        nn.Module.__init__(some)
        some._set_layers([self.seeds[i] for i in members], self.activation, weights, biases)
        some.embedding = None if self.embedding is None else self.embedding.select(members)
        return some.to(some.weights[0].device).train(self.training)

    @classmethod
    def blank(cls, members: int, sizes: Sequence[int], activation: str) -> "Population":
        """Return networks of these layer sizes whose weights are 0, and whose seeds are not known."""
        blank = cls.__new__(cls)
        nn.Module.__init__(blank)
        weights = [torch.zeros(members, *layer, device="cpu") for layer in itertools.pairwise(sizes)]
        biases = [torch.zeros(members, 1, size, device="cpu") for size in sizes[1:]]
        blank._set_layers((0,) * members, activation, weights, biases)
        return blank

    def _bare(self) -> "Population":
        """Return an object of the class that :meth:`select` returns, before its ``__init__``."""
        return Population.__new__(Population)
