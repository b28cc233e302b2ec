"""Many independent networks as one module, over a leading member axis.

The networks of a tabular model are so small that overhead dominates a training step. M of them, as one batched matrix
product, cost little more than one: the twenty splits of a benchmark, the folds and weights of a search, or the members
of a mixture train in the time of a single run.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import is_whole
from howsure.nn.embedding import PiecewiseLinear
from howsure.nn.mlp import ACTIVATIONS, check_architecture, draw_layers, layer_sizes, output_major

__all__ = ["Population", "per_member"]


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
        self.sizes = layer_sizes(in_features, hidden, outputs)
        self.seeds, self.activation = _checked_seeds(seeds), activation
        self.embedding: PiecewiseLinear | None = None
        check_architecture(activation)
        drawn = [draw_layers(self.sizes, seed) for seed in self.seeds]
        self.weights = nn.ParameterList(torch.stack([d[k][0] for d in drawn]) for k in range(len(self.sizes) - 1))
        self.biases = nn.ParameterList(
            torch.stack([d[k][1] for d in drawn]).unsqueeze(1) for k in range(len(self.sizes) - 1)
        )

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
        return self._pass(self._inputs(x), self.weights, self.biases)

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
        layers = [x] if len(self.weights) == 1 else []
        for weight, bias in list(zip(self.weights, self.biases, strict=True))[:-1]:
            x = self._hidden(x, weight, bias)
            layers.append(x)
        return torch.baddbmm(self.biases[-1], x, output_major(self.weights[-1])), torch.cat(layers, -1)

    def _pass(self, x: Tensor, weights: Iterable[Tensor], biases: Iterable[Tensor]) -> Tensor:
        """Return the outputs for features (M, N, F), computed with these weights and biases."""
        *inner, last = zip(weights, biases, strict=True)
        for weight, bias in inner:
            x = self._hidden(x, weight, bias)
        return torch.baddbmm(last[1], x, output_major(last[0]))

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
        some.sizes, some.activation = self.sizes, self.activation
        some.embedding = None if self.embedding is None else self.embedding.select(members)
        some.seeds = tuple(self.seeds[i] for i in members)
        some.weights, some.biases = nn.ParameterList(weights), nn.ParameterList(biases)
        return some.to(some.weights[0].device).train(self.training)

    @classmethod
    def blank(cls, members: int, sizes: Sequence[int], activation: str) -> "Population":
        """Return networks of these layer sizes whose weights are 0, and whose seeds are not known."""
        check_architecture(activation)
        blank = cls.__new__(cls)
        nn.Module.__init__(blank)
        blank.sizes, blank.activation, blank.seeds = tuple(sizes), activation, (0,) * members
        blank.embedding = None
        layers = list(itertools.pairwise(sizes))
        blank.weights = nn.ParameterList(torch.zeros(members, *layer, device="cpu") for layer in layers)
        blank.biases = nn.ParameterList(torch.zeros(members, 1, layer[1], device="cpu") for layer in layers)
        return blank

    def _bare(self) -> "Population":
        """Return an object of the class that :meth:`select` returns, before its ``__init__``."""
        return Population.__new__(Population)

    def extra_repr(self) -> str:
        return f"members={self.members}, sizes={self.sizes}, activation={self.activation}"
