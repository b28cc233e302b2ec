"""Populations whose training draws noise: Monte Carlo dropout and Bayes by backprop.

Training noise comes from ``generator``, or from torch's global generator if that is None. Networks that train in
several threads at once need a generator each, on the device of the parameters. From the same seed it draws the same
numbers as the global one; it is not part of the state dict.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from howsure.errors import InputError
from howsure.nn import Population
from howsure.nn.population import ACTIVATIONS, per_member

__all__ = ["BayesPopulation", "DropoutPopulation"]


def seeded_noise(
    population: Population,
    draw: Callable[..., Tensor],
    members: Sequence[int],
    samples: int,
    sizes: Sequence[int],
) -> Any:
    """Return ``samples`` rows of noise per member for each of the sizes, from the members' seeds alone.

    It is drawn in float32 on the CPU, for the reasons given at :func:`draw_layers`.

    Args:
        population: the networks.
        draw: ``torch.rand`` or ``torch.randn``.
        members: indices of members.
        samples: draws per member; the rows are grouped by member.
        sizes: lengths of the rows.
    """
    generators = [torch.Generator(device="cpu").manual_seed(population.seeds[i]) for i in members]
    shape, kind = (samples, sum(sizes)), {"dtype": torch.float32, "device": "cpu"}
    drawn = torch.cat([draw(shape, generator=g, **kind) for g in generators])
    return drawn.to(population.weights[0]).split(list(sizes), 1)


class DropoutPopulation(Population):
    """Population whose hidden units are dropped in training (Gal and Ghahramani 2016).

    Args:
        seeds, in_features, hidden, outputs, activation: as in :class:`howsure.nn.Population`.
        dropout: the probability that a hidden unit is dropped: one number, or one per member.
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
        super().__init__(seeds, in_features, hidden, outputs, activation)
        rates = per_member("dropout", dropout, self.members)
        for rate in rates:
            if not 0 <= rate < 1:
                raise InputError(f"dropout must lie in [0, 1), got {rate}")
        if any(rates) and not hidden:
            raise InputError("dropout needs a hidden layer, but hidden=() has none")
        self._set_dropout(rates)

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

    def _hidden(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self._drop(super()._hidden(x, weight, bias))

    def _bare(self) -> Population:
        return DropoutPopulation.__new__(DropoutPopulation)

    def _plain(self, members: Sequence[int], weights: Iterable[Tensor], biases: Iterable[Tensor]) -> Population:
        some: Any = super()._plain(members, weights, biases)
        some._set_dropout([self.dropout[i] for i in members])
        plain: Population = some.to(some.weights[0].device)
        return plain

    def thin(self, members: Sequence[int], samples: int) -> "DropoutPopulation":
        """Return Monte Carlo dropout draws: ``samples`` copies of each member, with hidden units dropped.

        A draw drops the same units for all rows, so that the answer for a row does not depend on the other rows. One
        batched pass evaluates all draws. They follow from the members' seeds and are grouped by member.
        """
        some: Any = self.select([i for i in members for _ in range(samples)])
        with torch.no_grad():
            uniform = seeded_noise(self, torch.rand, members, samples, self.sizes[1:-1])
            for weight, u in zip(list(some.weights)[1:], uniform, strict=True):
                # a unit is dropped by zero weights to the next layer
                weight.mul_((u.unsqueeze(2) < some.keep) / some.keep)
        copies: DropoutPopulation = some
        return copies


class BayesPopulation(Population):
    """Population of networks with an independent normal distribution over every weight (Blundell et al. 2015).

    ``weights`` and ``biases`` are the means. In training the pre-activations of every row are drawn, which has the same
    distribution as drawing weights and gives a gradient with far less noise (Kingma et al. 2015). In evaluation the
    means are used. :meth:`draw` returns plain networks with drawn weights.

    Args:
        seeds, in_features, hidden, outputs, activation: as in :class:`Population`.
        prior_std: the prior of a weight is N(0, prior_std²/inputs), so that the prior over functions hardly depends on
            the width. One number, or one per member.
        initial_std: initial standard deviation of the weights, times √inputs.
    """

    prior_std: Tensor
    generator: torch.Generator | None = None

    def __init__(
        self,
        seeds: Sequence[int],
        in_features: int,
        hidden: Sequence[int] = (50,),
        outputs: int = 4,
        activation: str = "relu",
        prior_std: float | Sequence[float] = 1.0,
        initial_std: float = 0.1,
    ) -> None:
        super().__init__(seeds, in_features, hidden, outputs, activation)
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
                x = ACTIVATIONS[self.activation](x)
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
        noise = seeded_noise(self, torch.randn, members, samples, [m[0].numel() for m, _ in pairs])
        drawn = [
            (m[copies] + s[copies] * part.view(-1, *m.shape[1:])).detach()
            for (m, s), part in zip(pairs, noise, strict=True)
        ]
        return self._plain(copies, drawn[:depth], drawn[depth:])
