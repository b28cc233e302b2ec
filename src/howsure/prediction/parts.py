"""Distributions of several networks, whose members lie in dimension 0: their tensors, quantiles and draws."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from howsure.distributions import (
    Discrete,
    Mixture,
    Normal,
    NormalInverseGamma,
    StudentT,
    Transformed,
    WithAtom,
)
from howsure.distributions._base import class_name
from howsure.errors import InputError, InputTypeError

__all__ = [
    "Answer",
    "Predictive",
    "device_of",
    "first_leaf",
    "index_of",
    "join",
    "members_first",
    "on_device",
    "on_leaves",
    "quantiles",
    "sample_members",
    "stretch",
]

Answer = NormalInverseGamma | StudentT | Normal
Predictive = Mixture | Transformed | Discrete | WithAtom
PART = 1 << 22  # numbers of a distribution that are processed at once
CPU_PART = (1 << 14) - 1  # the same on a CPU, limited by its cache


def members_first(answer: Any, members: Any) -> Answer:
    """Return a distribution with its members in dimension 0, after checking that it has this dimension."""
    if not isinstance(answer, Answer):
        raise InputError(
            f"Prediction takes a NormalInverseGamma, a Normal, a StudentT or a Mixture, not {class_name(answer)}"
        )
    if members is None:
        return on_leaves(lambda p: p.unsqueeze(0), answer)
    if isinstance(members, bool) or not isinstance(members, int):
        raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
    shape = tuple(answer.batch_shape)
    if not -len(shape) <= members < len(shape) or shape[members] == 0:
        raise InputError(
            f"members= is the dimension of the networks: an output of shape {shape} has no "
            f"dimension {members} with at least one network"
        )
    return on_leaves(lambda p: p.movedim(members, 0), answer)


def on_leaves(change: Callable[[Tensor], Tensor], answer: Answer) -> Answer:
    """Return a distribution with every tensor changed."""
    changed: Answer = _pytree.tree_map(change, answer)
    return changed


def join(answers: Sequence[Answer]) -> Answer:
    """Return the distributions of several parts of the rows as one, members in dimension 0."""
    if len(answers) == 1:
        return answers[0]
    joined: Answer = _pytree.tree_map(lambda *parts: torch.cat(parts, 1), *answers)
    return joined


def first_leaf(answer: Answer) -> Any:
    """Return the first tensor of a distribution. It is None if tree functions removed it."""
    return getattr(answer, answer.leaves[0], None)


def device_of(answer: Answer) -> torch.device:
    """Return the device of a distribution."""
    device: torch.device = first_leaf(answer).device
    return device


def index_of(key: Any, size: int) -> Any:
    """Return an index as torch takes it: lists and arrays as tensors, and slices that go backwards as lists."""
    if isinstance(key, str | bytes | dict | float):
        raise InputTypeError(f"a prediction is indexed by positions of rows and targets, not by {key!r}", value=key)
    if isinstance(key, slice) and key.step is not None and key.step < 0:
        key = list(range(*key.indices(size)))
    if isinstance(key, np.integer) or (isinstance(key, np.ndarray | Tensor) and key.ndim == 0):
        return bool(key) if getattr(key, "dtype", None) in (np.bool_, torch.bool) else int(key)
    if isinstance(key, list | np.ndarray | range):
        array = np.asarray(key)
        return torch.from_numpy(array.astype(np.int64) if not array.size else array.copy())
    return key


def on_device(keys: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    """Return indices whose tensors lie on a device."""
    return tuple(k.to(device) if isinstance(k, Tensor) else k for k in keys)


def stretch(answer: Any, factor: Tensor, mean: Tensor) -> Any:
    """Return a distribution stretched about a mean, which has no dimension of members."""
    leaves: tuple[Tensor, ...]
    if isinstance(answer, NormalInverseGamma):
        around = answer.gamma + (factor - 1) * (answer.gamma - mean)  # exact for a factor of 1
        leaves = (around, answer.nu, answer.alpha_minus_one, factor.square() * answer.beta)
    elif isinstance(answer, StudentT):
        around = answer.loc + (factor - 1) * (answer.loc - mean)
        leaves = (answer.df, around, factor * answer.scale, answer.df_minus_two)
    else:
        leaves = (answer.loc + (factor - 1) * (answer.loc - mean), factor * answer.scale)
    return answer._from_leaves(torch.broadcast_tensors(*leaves))


def quantiles(mixture: Predictive, tails: Sequence[tuple[float, bool]]) -> Tensor:
    """Return several quantiles in a new last dimension, in the dtype of the mixture.

    Args:
        mixture: a mixture, its transform, or one with an atom.
        tails: pairs (probability, upper): the probability lies above the quantile if ``upper``, else below it.
    """
    base = mixture.base if isinstance(mixture, Transformed | Discrete) else mixture
    loc = base.components.loc
    shape = [1] * len(base.batch_shape)
    levels = torch.tensor([p for p, _ in tails], dtype=torch.float64, device=loc.device).view(-1, *shape)
    upper = torch.tensor([above for _, above in tails], device=loc.device).view(-1, *shape)
    at_once = max(1, 2 * (CPU_PART if loc.device.type == "cpu" else PART) // max(1, loc.numel()))
    found = [base.quantile(q, up) for q, up in zip(levels.split(at_once), upper.split(at_once), strict=True)]
    quantiles = torch.cat(found)
    if isinstance(mixture, Transformed | Discrete):
        quantiles = mixture.transform.forward(quantiles)
    return quantiles.movedim(0, -1).to(loc.dtype)


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
