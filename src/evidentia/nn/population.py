"""Many independent networks as one module, over a leading member axis.

The networks of a tabular model are so small that a training step of one is all overhead. M of them as one batched
matrix product cost little more than one: the twenty splits of a benchmark, the folds and weights of a search, or the
members of a mixture train in the time of a single run.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from evidentia.errors import InputError
from evidentia.nn.mlp import ACTIVATIONS, MLP, check_architecture, draw_layers

__all__ = ["BayesPopulation", "Population"]


class Population(nn.Module):
    """M multi-layer perceptrons that share nothing but their shape: (M, N, F) or (N, F) → (M, N, outputs).

    Every parameter has the member as its first dimension. Member i starts as the network ``MLP(seed=seeds[i])``.

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
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.sizes = (in_features, *hidden, outputs)
        check_architecture(self.sizes, activation, dropout)
        if not len(seeds):
            raise InputError("a population needs at least one member: seeds is empty")
        self.seeds, self.activation, self.dropout = tuple(int(s) for s in seeds), activation, dropout
        drawn = [draw_layers(self.sizes, seed) for seed in self.seeds]
        self.weights = nn.ParameterList(torch.stack([d[k][0] for d in drawn]) for k in range(len(self.sizes) - 1))
        self.biases = nn.ParameterList(
            torch.stack([d[k][1] for d in drawn]).unsqueeze(1) for k in range(len(self.sizes) - 1)
        )

    @property
    def members(self) -> int:
        """How many networks there are."""
        return len(self.seeds)

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(self._checked(x), self.weights, self.biases)

    def _checked(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            x = x.expand(self.members, *x.shape)
        if x.ndim != 3 or x.shape[0] != self.members or x.shape[2] != self.sizes[0]:
            raise InputError(
                f"Population expects features of shape ({self.members}, N, {self.sizes[0]}) or (N, {self.sizes[0]}), "
                f"got {tuple(x.shape)}"
            )
        return x

    def _pass(self, x: Tensor, weights: Iterable[Tensor], biases: Iterable[Tensor]) -> Tensor:
        *inner, last = zip(weights, biases, strict=True)
        for weight, bias in inner:
            x = ACTIVATIONS[self.activation](torch.baddbmm(bias, x, weight))
            if self.dropout:
                x = functional.dropout(x, self.dropout, self.training)
        return torch.baddbmm(last[1], x, last[0])

    def select(self, members: Sequence[int], dtype: torch.dtype | None = None) -> "Population":
        """A population of copies of some members, for prediction; in another precision if asked."""
        chosen = list(members)
        weights, biases = ([p.detach()[chosen].to(dtype or p.dtype) for p in ps] for ps in (self.weights, self.biases))
        return self._plain(chosen, weights, biases)

    def _plain(self, members: Sequence[int], weights: Iterable[Tensor], biases: Iterable[Tensor]) -> "Population":
        """A population of this shape with these tensors in the place of drawn ones."""
        some = Population.__new__(Population)
        nn.Module.__init__(some)
        some.sizes, some.activation, some.dropout = self.sizes, self.activation, self.dropout
        some.seeds = tuple(self.seeds[i] for i in members)
        some.weights, some.biases = nn.ParameterList(weights), nn.ParameterList(biases)
        return some.train(self.training)

    def thin(self, samples: int, generator: torch.Generator) -> "Population":
        """Each member ``samples`` times over, with hidden units dropped at the dropout rate, the same for all rows.

        These are Monte Carlo draws of a dropout network, as networks: one batched pass evaluates them all, and a row's
        answer does not depend on the others in the table. The members' draws stand one after the other.
        """
        some = self.select([i for i in range(self.members) for _ in range(samples)])
        keep = 1 - self.dropout
        with torch.no_grad():
            for weight in list(some.weights)[1:]:  # a dropped unit sends nothing to the next layer
                kept = torch.rand(weight.shape[:2], generator=generator) < keep
                weight.mul_((kept / keep).to(weight).unsqueeze(2))
        return some

    def member(self, i: int) -> MLP:
        """A copy of one member as a plain network."""
        first, *hidden, last = self.sizes
        mlp = MLP(first, hidden, last, self.activation, self.dropout, self.seeds[i])
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
    """Networks with an independent normal distribution over every weight (Blundell et al. 2015).

    ``weights`` and ``biases`` are the means. In training each pass draws weights, one set per member; in evaluation the
    means are used. :meth:`draw` makes plain networks of draws.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
        dropout: float = 0.0,
        prior_std: float = 1.0,
        initial_std: float = 0.01,
    ) -> None:
        super().__init__(seeds, in_features, hidden, outputs, activation, dropout)
        self.prior_std = prior_std
        raw = math.log(math.expm1(initial_std))
        self.raw_weight_stds = nn.ParameterList(torch.full_like(w, raw) for w in self.weights)
        self.raw_bias_stds = nn.ParameterList(torch.full_like(b, raw) for b in self.biases)

    def _distributions(self) -> list[tuple[Tensor, Tensor]]:
        means = [*self.weights, *self.biases]
        return [
            (m, functional.softplus(r))
            for m, r in zip(means, [*self.raw_weight_stds, *self.raw_bias_stds], strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        drawn = [m + s * torch.randn_like(m) for m, s in self._distributions()]
        depth = len(self.weights)
        return self._pass(self._checked(x), drawn[:depth], drawn[depth:])

    def divergence(self) -> Tensor:
        """KL of each member's weights from the prior N(0, prior_std²), in closed form."""
        total = torch.zeros(self.members, device=self.weights[0].device)
        for mean, std in self._distributions():
            ratio = (std / self.prior_std).square()
            each = 0.5 * (ratio + (mean / self.prior_std).square() - 1 - ratio.log())
            total = total + each.flatten(1).sum(1)
        return total

    def draw(self, samples: int, generator: torch.Generator) -> Population:
        """Plain networks with drawn weights, ``samples`` of each member, one after the other."""
        members = [i for i in range(self.members) for _ in range(samples)]
        drawn, depth = [], len(self.weights)
        for mean, std in self._distributions():
            noise = torch.randn(len(members), *mean.shape[1:], generator=generator).to(mean)
            drawn.append(mean.detach()[members] + std.detach()[members] * noise)
        return self._plain(members, drawn[:depth], drawn[depth:])
