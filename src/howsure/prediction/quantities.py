"""Quantities of predictions as tensors, computed a few rows at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.distributions import Discrete, Normal, NormalInverseGamma, StudentT, Support, Transformed
from howsure.formulas import mixture as mixtures
from howsure.prediction.state import CPU_PART, PART, Predictive, State, device_of
from howsure.threads import one_thread

__all__ = [
    "Moments",
    "at_targets",
    "before_transform",
    "by_parts",
    "central_ends",
    "draws",
    "in_one_pass",
    "moments_of",
    "randomised_pit",
    "strictly_below",
    "without_transform",
]

Array = NDArray[Any]  # of floats: float64 or float32
Some = TypeVar("Some", bound=State)


def in_one_pass(function: Callable[..., tuple[Any, ...]], p: State, *targets: Tensor) -> tuple[Any, ...]:
    """Return the tensors that a function makes of a prediction and targets, part by part, for all rows."""
    found: list[tuple[Any, ...]] = []
    first = 0
    for part in p._parts():
        if part.shape == p.shape:
            rows = targets
        else:
            rows = tuple(t[first : first + len(part)] for t in targets)
            first += len(part)
        with one_thread():
            found.append(function(part, *rows))
    if len(found) == 1:
        return found[0]
    return tuple(None if column[0] is None else torch.cat(column) for column in zip(*found, strict=True))


def by_parts(p: State, quantity: Callable[..., Tensor], *targets: Tensor) -> Tensor:
    """Return quantity(mixture, *targets) of all rows on the device of the prediction."""

    def of_part(part: State, *rows: Tensor) -> tuple[Tensor]:
        return (quantity(part.distribution, *(t.to(device_of(part.answers)) for t in rows)),)

    with torch.no_grad():
        found: Tensor = in_one_pass(of_part, p, *targets)[0]
    return found


def at_targets(p: State, quantity: str, y: Tensor) -> Tensor:
    """Return ``"log_prob"``, ``"cdf"`` or ``"crps"`` of the distribution at every target, on its device.

    Args:
        p: the prediction.
        quantity: one of these names.
        y: targets of the shape of the prediction, as its method ``target`` returns them.
    """
    return by_parts(p, lambda mixture, y: getattr(mixture, quantity)(y), y)


def central_ends(p: State, coverages: Sequence[float]) -> Tensor:
    """Return the ends of central intervals, without a guarantee, on the device of p: (*shape, coverages, 2)."""
    ends = [(0.5 * (1 - coverage), upper) for coverage in coverages for upper in (False, True)]
    found = by_parts(p, lambda mixture: quantiles(mixture, ends))
    return found.reshape(*p.shape, len(coverages), 2)


def draws(p: State, n: int, generator: torch.Generator) -> Tensor:
    """Return n draws of a new y, (n, *shape), on the CPU."""

    def of_part(part: State) -> tuple[Tensor]:
        step = max(1, PART // max(1, int(np.prod(part.shape))))  # n may be large where rows are few
        counts = [min(step, n - k) for k in range(0, n, step)]
        steps = None if part._weights is None else mixtures.steps(part._weights.detach()).to(generator.device)
        predictive, found = part.answers.predictive(), list[Tensor]()
        for count in counts:
            drawn = sample_members(predictive, count, generator, steps, part.gate, part.atom)
            found.append((drawn if part.transform is None else part.transform.forward(drawn).to(drawn.dtype)).cpu())
        return (torch.cat(found).movedim(0, -1),)

    return cast(Tensor, in_one_pass(of_part, p)[0]).movedim(-1, 0).contiguous()


def quantiles(mixture: Predictive, tails: Sequence[tuple[float, bool]]) -> Tensor:
    """Return several quantiles in a new last dimension, in the dtype of the mixture.

    Args:
        mixture: a mixture, its transform, or one with an atom.
        tails: pairs (probability, upper): the probability lies above the quantile if ``upper``, else below it.
    """
    loc, shape = mixture.components.loc, [1] * len(mixture.batch_shape)
    levels = torch.tensor([p for p, _ in tails], dtype=torch.float64, device=loc.device).view(-1, *shape)
    upper = torch.tensor([above for _, above in tails], device=loc.device).view(-1, *shape)
    at_once = max(1, 2 * (CPU_PART if loc.device.type == "cpu" else PART) // max(1, loc.numel()))
    found = [mixture.quantile(q, up) for q, up in zip(levels.split(at_once), upper.split(at_once), strict=True)]
    return torch.cat(found).movedim(0, -1).to(loc.dtype)


def sample_members(
    each: StudentT | Normal,
    n: int,
    generator: torch.Generator,
    steps: Tensor | None,
    gate: Tensor | None,
    atom: float | None,
) -> Tensor:
    """Return n draws of the predictive distribution of each row: of a member chosen at random, (n, *rows).

    The steps are the sums of the members' weights up to each, None where all members count the same. The gate is the
    probability of the atom by each member.
    """
    with torch.no_grad():
        shape = (n, *each.batch_shape[1:])
        options: Any = {"generator": generator, "device": generator.device}
        if steps is None:
            member = torch.randint(each.batch_shape[0], shape, **options)
        else:
            level = torch.rand(shape, dtype=torch.float64, **options)
            member = torch.zeros(shape, dtype=torch.int64, device=generator.device)
            for step in steps[:-1]:  # of one number, or of one for each row
                member += level >= step
        noise = torch.randn(shape, dtype=each.loc.dtype, **options)
        if isinstance(each, StudentT):  # a chi-square over its degrees of freedom is a Gamma(df/2) over df/2
            half = 0.5 * each.df.gather(0, member)
            noise = noise * torch.rsqrt(torch._standard_gamma(half, generator=generator) / half)
        drawn = each.loc.gather(0, member) + each.scale.gather(0, member) * noise
        if gate is None:
            return drawn
        chosen = torch.rand(shape, dtype=torch.float64, **options) < gate.gather(0, member)
        return torch.where(chosen, torch.full_like(drawn, float(atom or 0)), drawn)


# Targets --------------------------------------------------------------------------------------------------------------


def without_transform(p: Some) -> Some:
    """Return the prediction of the variable before the transform of the target, without a guarantee."""
    new = p._apply(lambda t: t)
    new.transform = new.guarantee = None
    return new


def before_transform(p: State, y: Array) -> Array:
    """Return the variable before the transform for targets of the shape of p, −∞ for targets outside of its range."""
    return y if p.transform is None else p.transform.inverse(torch.from_numpy(np.array(y))).numpy()


def strictly_below(p: State, y: Array, at: Array) -> Array:
    """Return P(Y < y), which differs from P(Y ≤ y) if y has positive probability.

    Args:
        p: the prediction.
        y: targets of its shape.
        at: their P(Y ≤ y).
    """
    if isinstance(p.transform, Support):
        index = p.transform.index(torch.from_numpy(np.asarray(y, dtype=float)))[0]
        before = at_targets(p, "cdf", p.transform.values[(index - 1).clamp(min=0)]).cpu().numpy()
        return np.where(index.numpy() > 0, before, 0.0)
    if p.atom is not None and p.gate is not None:
        probability = p._mean_over_members(p.gate.double()).cpu().numpy()
        return np.where(y == p.atom, at - probability, at)
    return at if p.transform is None else np.where(y <= 0, 0.0, at)


def randomised_pit(p: State, y: Array) -> tuple[Array, Array, Array]:
    """Return P(Y < y), P(Y ≤ y), and numbers drawn between both, which are uniform if the prediction is right."""
    at = at_targets(p, "cdf", torch.from_numpy(np.array(y))).cpu().double().numpy()
    below = strictly_below(p, y, at)
    return below, at, below + (at - below) * np.random.default_rng(0).random(at.shape)


# Moments --------------------------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """Means and variances of a prediction: of the mixture, and by the paper's formula if there is one."""

    mean: Tensor
    within: Tensor
    between: Tensor
    aleatoric: Tensor | None
    epistemic: Tensor | None

    @property
    def variance(self) -> Tensor:
        return self.within + self.between


def moments_of(p: State) -> Moments:
    """Return means and variances: from the parameters alone, or in the units of y where there is a transform."""
    answer = p.answers
    if p.transform is not None:
        mixture = cast(Transformed | Discrete, p.distribution)
        within, between = mixture.within_variance, mixture.between_variance
        aleatoric = within if isinstance(answer, Normal) else None
        epistemic = between if isinstance(answer, Normal) and p.several else None
        return Moments(mixture.mean, within, between, aleatoric, epistemic)
    if isinstance(answer, NormalInverseGamma):
        noise, means = answer.aleatoric_variance, answer.gamma
        doubt: Tensor | None = noise / answer.nu
    else:
        noise, means, doubt = answer.variance, answer.mean, None
    if p.gate is not None:
        gate, distance = p.gate.to(means.dtype), means - float(p.atom or 0)
        doubt = None if doubt is None else (1 - p.gate) * doubt
        means, noise = means - gate * distance, (1 - gate) * (noise + gate * distance.square())
    within = aleatoric = p._mean_over_members(noise)
    between = mixtures.spread_of_means(means, p._weights_like(means))
    parts = [between] if p.several else []
    if doubt is not None:
        parts.insert(0, p._mean_over_members(doubt))
        within = aleatoric + parts[0]
    mean = p._mean_over_members(means)
    if isinstance(answer, StudentT):
        return Moments(mean, within, between, None, None)
    return Moments(mean, within, between, aleatoric, sum(parts[1:], parts[0]) if parts else None)
