"""Many independent networks as one module, over a leading member axis.

The networks of a tabular model are so small that overhead dominates a training step. M of them, as one batched matrix
product, cost little more than one: the twenty splits of a benchmark, the folds and weights of a search, or the members
of a mixture train in the time of a single run.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from evidentia.errors import InputError, InputTypeError
from evidentia.nn.checks import is_whole
from evidentia.nn.embedding import PiecewiseLinear
from evidentia.nn.mlp import ACTIVATIONS, MLP, check_architecture, draw_layers, layer_sizes, output_major

__all__ = ["BayesPopulation", "Population"]


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

    The first dimension of every parameter is the member. Member i starts with the weights of ``MLP(seed=seeds[i])``.
    Parameters are float32, whatever torch's default dtype is.

    Training noise (dropout, drawn weights) comes from ``generator``, or from torch's global generator if that is None.
    Networks that train in several threads at once need a generator each, on the device of the parameters. From the same
    seed it draws the same numbers as the global one; it is not part of the state dict.

    Args:
        seeds: one seed per member, from which its initial weights follow.
        in_features: F.
        hidden: number of units in each hidden layer.
        outputs: number of outputs.
        activation: "relu", "silu", "gelu" or "tanh".
        dropout: the probability that a hidden unit is dropped in training: one number, or one per member.

    >>> Population(seeds=range(5), in_features=8, hidden=(50,), outputs=4)(torch.zeros(3, 8)).shape
    torch.Size([5, 3, 4])
    """

    keep: Tensor
    generator: torch.Generator | None = None

    def __init__(
        self,
        seeds: Sequence[int],
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
        dropout: float | Sequence[float] = 0.0,
    ) -> None:
        super().__init__()
        self.sizes = layer_sizes(in_features, hidden, outputs)
        self.seeds, self.activation = _checked_seeds(seeds), activation
        self._set_dropout(per_member("dropout", dropout, len(self.seeds)))
        check_architecture(self.sizes, activation, *self.dropout)
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
        return self.sizes[0] if self._embedding is None else self._embedding.in_features

    @property
    def _embedding(self) -> PiecewiseLinear | None:
        return self._modules.get("embedding")  # type: ignore[return-value]

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
        """Return what the first layer sees of the features, or raise an error if they do not fit."""
        x = self._checked(x)
        return x if self._embedding is None else self._embedding(x)

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

    def features(self, x: Tensor) -> Tensor:
        """Return the outputs of the first hidden layer, (M, N, units), by which evidence fades.

        A network without hidden layers has its inputs as features.
        """
        x = self._inputs(x)
        return self._hidden(x, self.weights[0], self.biases[0]) if len(self.weights) > 1 else x

    def forward_from(self, features: Tensor) -> Tensor:
        """Return the outputs, (M, N, outputs), for what :meth:`features` returned."""
        rest = slice(min(1, len(self.weights) - 1), None)
        return self._pass(features, list(self.weights)[rest], list(self.biases)[rest])

    def _pass(self, x: Tensor, weights: Iterable[Tensor], biases: Iterable[Tensor]) -> Tensor:
        """Return the outputs for features (M, N, F), computed with these weights and biases."""
        *inner, last = zip(weights, biases, strict=True)
        for weight, bias in inner:
            x = self._hidden(x, weight, bias)
        return torch.baddbmm(last[1], x, output_major(last[0]))

    def _hidden(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the outputs of a hidden layer."""
        return self._drop(ACTIVATIONS[self.activation](torch.baddbmm(bias, x, weight)))

    def _set_dropout(self, rates: Sequence[float]) -> None:
        self.dropout = tuple(rates)
        keep = torch.tensor([1 - rate for rate in rates], dtype=torch.float32, device="cpu")
        self.register_buffer("keep", keep.view(-1, 1, 1), persistent=False)

    def _drop(self, x: Tensor) -> Tensor:
        """Return x with hidden units dropped at each member's rate; in evaluation return x itself."""
        if not self.training or not any(self.dropout):
            return x
        uniform = torch.empty_like(x).uniform_(generator=self.generator)
        return x * (uniform < self.keep) / self.keep

    def select(self, members: Sequence[int]) -> "Population":
        """Return a population of copies of these members, for prediction."""
        chosen = list(members)
        weights, biases = ([p.detach()[chosen] for p in ps] for ps in (self.weights, self.biases))
        return self._plain(chosen, weights, biases)

    def _plain(self, members: Sequence[int], weights: Iterable[Tensor], biases: Iterable[Tensor]) -> "Population":
        """Return a population with these weights and biases, and with the seeds and dropout rates of these members."""
        some = Population.__new__(Population)
        nn.Module.__init__(some)
        some.sizes, some.activation = self.sizes, self.activation
        if self._embedding is not None:
            some.embedding = self._embedding.select(members)
        some.seeds = tuple(self.seeds[i] for i in members)
        some.weights, some.biases = nn.ParameterList(weights), nn.ParameterList(biases)
        some._set_dropout([self.dropout[i] for i in members])
        return some.to(some.weights[0].device).train(self.training)

    def _noise(self, draw: Callable[..., Tensor], members: Sequence[int], samples: int, sizes: Sequence[int]) -> Any:
        """Return ``samples`` rows of noise per member for each of the sizes, from the members' seeds alone.

        It is drawn in float32 on the CPU, for the reasons given at :func:`draw_layers`.

        Args:
            draw: ``torch.rand`` or ``torch.randn``.
            members: indices of members.
            samples: draws per member; the rows are grouped by member.
            sizes: lengths of the rows.
        """
        generators = [torch.Generator(device="cpu").manual_seed(self.seeds[i]) for i in members]
        shape, kind = (samples, sum(sizes)), {"dtype": torch.float32, "device": "cpu"}
        drawn = torch.cat([draw(shape, generator=g, **kind) for g in generators])
        return drawn.to(self.weights[0]).split(list(sizes), 1)

    def thin(self, members: Sequence[int], samples: int) -> "Population":
        """Return Monte Carlo dropout draws: ``samples`` copies of each member, with hidden units dropped.

        A draw drops the same units for all rows, so that the answer for a row does not depend on the other rows. One
        batched pass evaluates all draws. They follow from the members' seeds and are grouped by member.
        """
        some = self.select([i for i in members for _ in range(samples)])
        with torch.no_grad():
            uniform = self._noise(torch.rand, members, samples, self.sizes[1:-1])
            for weight, u in zip(list(some.weights)[1:], uniform, strict=True):
                # a unit is dropped by zero weights to the next layer
                weight.mul_((u.unsqueeze(2) < some.keep) / some.keep)
        return some

    def member(self, i: int) -> MLP:
        """Return a copy of member i as a plain network."""
        if self._embedding is not None:
            raise InputError("a plain network has no embedding; take select([i]) of the population")
        first, *hidden, last = self.sizes
        mlp = MLP(first, hidden, last, self.activation, self.dropout[i], self.seeds[i])
        mlp.to(self.weights[0])
        with torch.no_grad():
            for mine, theirs in zip(self.weights, mlp.weights, strict=True):
                theirs.copy_(mine[i])
            for mine, theirs in zip(self.biases, mlp.biases, strict=True):
                theirs.copy_(mine[i, 0])
        return mlp

    def extra_repr(self) -> str:
        return f"members={self.members}, sizes={self.sizes}, activation={self.activation}, dropout={self.dropout}"


class BayesPopulation(Population):
    """Population of networks with an independent normal distribution over every weight (Blundell et al. 2015).

    ``weights`` and ``biases`` are the means. In training the pre-activations of every row are drawn, which has the same
    distribution as drawing weights and gives a gradient with far less noise (Kingma et al. 2015). In evaluation the
    means are used. :meth:`draw` returns plain networks with drawn weights.

    Args:
        seeds, in_features, hidden, outputs, activation, dropout: as in :class:`Population`.
        prior_std: the prior of a weight is N(0, prior_std²/inputs), so that the prior over functions hardly depends on
            the width. One number, or one per member.
        initial_std: initial standard deviation of the weights, times √inputs.
    """

    prior_std: Tensor

    def __init__(
        self,
        seeds: Sequence[int],
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
        dropout: float | Sequence[float] = 0.0,
        prior_std: float | Sequence[float] = 1.0,
        initial_std: float = 0.1,
    ) -> None:
        super().__init__(seeds, in_features, hidden, outputs, activation, dropout)
        each = per_member("prior_std", prior_std, self.members)
        for name, std in (*(("prior_std", std) for std in each), ("initial_std", initial_std)):
            if not (math.isfinite(std) and std > 0):
                raise InputError(f"{name} must be a finite number greater than 0, got {std}")
        prior = torch.tensor(each, dtype=torch.float32, device="cpu")
        self.register_buffer("prior_std", prior.view(-1, 1, 1), persistent=False)
        stds = [math.log(math.expm1(initial_std / math.sqrt(size))) for size in self.sizes[:-1]]
        self.raw_weight_stds = nn.ParameterList(
            torch.full_like(w, raw) for w, raw in zip(self.weights, stds, strict=True)
        )
        self.raw_bias_stds = nn.ParameterList(torch.full_like(b, raw) for b, raw in zip(self.biases, stds, strict=True))

    def _distributions(self) -> list[tuple[Tensor, Tensor]]:
        """Return mean and standard deviation of the weights of every layer, followed by those of the biases."""
        means = [*self.weights, *self.biases]
        return [
            (m, functional.softplus(r))
            for m, r in zip(means, [*self.raw_weight_stds, *self.raw_bias_stds], strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x, pairs = self._inputs(x), self._distributions()
        depth = len(self.weights)
        for k in range(depth):
            (weight, weight_std), (bias, bias_std) = pairs[k], pairs[depth + k]
            mean = torch.baddbmm(bias, x, weight)
            variance = torch.baddbmm(bias_std.square(), x.square(), weight_std.square())
            x = mean + variance.sqrt() * torch.empty_like(mean).normal_(generator=self.generator)
            if k < depth - 1:
                x = self._drop(ACTIVATIONS[self.activation](x))
        return x

    def divergence(self) -> Tensor:
        """Return the KL divergence of each member's weights from the prior, (M,), in closed form."""
        total: Tensor = self.weights[0].new_zeros(self.members)
        sizes = self.sizes[:-1]
        for (mean, std), size in zip(self._distributions(), (*sizes, *[1] * len(sizes)), strict=True):
            prior = self.prior_std / math.sqrt(size)
            ratio = (std / prior).square()
            each = 0.5 * (ratio + (mean / prior).square() - 1 - ratio.log())
            total = total + each.flatten(1).sum(1)
        return total

    def draw(self, members: Sequence[int], samples: int) -> Population:
        """Return plain networks with drawn weights, ``samples`` of each member, grouped by member."""
        copies = [i for i in members for _ in range(samples)]
        pairs, depth = self._distributions(), len(self.weights)
        noise = self._noise(torch.randn, members, samples, [m[0].numel() for m, _ in pairs])
        drawn = [
            (m[copies] + s[copies] * part.view(-1, *m.shape[1:])).detach()
            for (m, s), part in zip(pairs, noise, strict=True)
        ]
        return self._plain(copies, drawn[:depth], drawn[depth:])
