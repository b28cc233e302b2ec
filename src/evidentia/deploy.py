"""A network of one's own leaves Python: tensors in, plain named tensors out, intervals included.

:class:`Deploy` wraps a network whose answers are distributions. What it returns is a dictionary of tensors, computed by
few and common operations, so that ``torch.export``, ONNX and AOTInductor take it, and whoever loads the result needs no
evidentia. :class:`Summaries` is the part of it that comes after the network.
"""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from evidentia.distributions import Faded, Gaussian, Mixture, NormalInverseGamma, StudentT
from evidentia.distributions.mixture import normalised_weights
from evidentia.errors import InputError, InputTypeError
from evidentia.formulas import nig, quick_quantile

__all__ = ["Summaries", "summaries"]

MOST_COVERAGE = 0.999999  # the largest for which the quick quantile is right to 1e-5


class Summaries:
    """What a prediction states in numbers, from an answer of one or several networks, by few and plain operations.

    Called with an answer, it returns a dictionary of tensors of the shape of the prediction:

    - ``mean``, ``std``;
    - ``aleatoric_std``, ``epistemic_std``: the default decomposition of :class:`~evidentia.Prediction`. A part that
      the answer does not have is left out: a single Gaussian has no epistemic one;
    - ``lower``, ``upper``: the ends of the central interval;
    - ``familiarity``, one number for each row, if the answer is a :class:`~evidentia.Faded`.

    They are those of :class:`~evidentia.Prediction` to a relative 1e-5, in float32; the ends of a mixture relative to
    their own size or to the mixture's deviation. Make it before a program is traced.

    Args:
        coverage: probability of the interval, at most 0.999999; None leaves it out.
        members: the dimension of the answer along which several networks stand; None: there is one, or a Mixture.
        weights: how much each of them counts, numbers ≥ 0, not all 0. None: all count the same.

    >>> answer = NormalInverseGamma(gamma=torch.zeros(2), nu=2.0, alpha=3.0, beta=4.0)
    >>> {name: value[0].item() for name, value in Summaries(coverage=0.5)(answer).items()}["std"] ** 2
    3.0000...
    """

    coverage: float | None
    members: int | None
    weights: tuple[float, ...] | None

    def __init__(
        self,
        coverage: float | None = 0.9,
        members: int | None = None,
        weights: Tensor | Sequence[float] | None = None,
    ) -> None:
        if coverage is not None and (
            isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage <= MOST_COVERAGE
        ):
            raise InputError(f"coverage must be a number between 0 and {MOST_COVERAGE}, or None, got {coverage!r}")
        if members is not None and (isinstance(members, bool) or not isinstance(members, int)):
            raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
        if weights is not None and members is None:
            raise InputError("weights= says how much each member counts; say with members= along which dimension")
        self.coverage, self.members = None if coverage is None else float(coverage), members
        self.weights = None if weights is None else _checked_weights(weights)
        # made here, because it asks for exact quantiles, which no exporter knows
        self._student = None if coverage is None else quick_quantile.StudentQuantile(0.5 * (1 - float(coverage)))

    def __call__(self, answer: Any) -> dict[str, Tensor]:
        """Return the named tensors of an answer."""
        if isinstance(answer, Mixture):
            return self._of_mixture(answer)
        if not isinstance(answer, NormalInverseGamma | Gaussian | StudentT | Faded):
            raise InputTypeError(
                "the network must answer with a NormalInverseGamma, a Gaussian, a StudentT, a Faded or a Mixture, not "
                f"{type(answer).__name__}"
            )
        if self.members is None:
            return self._of_members(_on_leaves(lambda p: p.unsqueeze(0), answer), None)
        shape = tuple(answer.batch_shape)
        if not -len(shape) <= self.members < len(shape):
            raise InputError(f"members={self.members}: the answer of shape {shape} has no such dimension")
        return self._of_members(*self._counted(_on_leaves(lambda p: p.movedim(self.members, 0), answer)))

    def _of_mixture(self, answer: Mixture) -> dict[str, Tensor]:
        if self.members is not None:
            raise InputError("a Mixture knows which dimension is that of its members; leave out members=")
        each, weights = answer.components, answer.weights
        if weights is not None:
            if weights.ndim > 1:
                raise InputError("the members of a mixture have the same weights in all rows, and these differ")
            weights = weights.to(each.loc.dtype).view(-1, *[1] * (len(each.batch_shape) - 1))
        return self._of_members(_on_leaves(lambda p: p.movedim(answer.dim, 0), each), weights)

    def _counted(self, given: Any) -> tuple[Any, Tensor | None]:
        """Return the members that count, which lie in dimension 0, and their weights as a tensor that broadcasts."""
        members, *rest = given.batch_shape
        if self.weights is None:
            if members == 0:
                raise InputError("the answer has no members; there must be at least one network")
            return given, None
        if len(self.weights) != members:
            raise InputError(f"there are {len(self.weights)} weights, and the answer has {members} members")
        # members of weight 0 are left out, so that they may even be NaN
        chosen = [k for k, weight in enumerate(self.weights) if weight > 0]
        if len(chosen) < members:
            given = _on_leaves(lambda p: torch.stack([p[k] for k in chosen]), given)
        first = _first_leaf(given)
        shares = [self.weights[k] for k in chosen]
        if len(chosen) == 1:
            return given, None
        return given, torch.tensor(shares, dtype=first.dtype, device=first.device).view(-1, *[1] * len(rest))

    def _of_members(self, given: Any, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the summaries of answers whose members lie in dimension 0."""
        faded = given if isinstance(given, Faded) else None
        plain = given if faded is None else faded.base
        several = plain.batch_shape[0] > 1

        def over_members(x: Tensor) -> Tensor:
            if not several:
                return x.squeeze(0)
            return x.mean(0) if weights is None else (weights * x).sum(0)

        noise: Tensor | None = None
        if isinstance(plain, NormalInverseGamma):
            noise, means = plain.aleatoric_variance, plain.gamma
            doubt = noise / plain.nu
            within = over_members(noise) + over_members(doubt)
        else:
            means, doubt = plain.loc, plain.variance
            within = over_members(doubt)
            noise = doubt if isinstance(plain, Gaussian) else None
        mean = over_members(means)
        found: list[Tensor] = []  # the parts of the epistemic variance
        aleatoric = within if several else None if noise is None else over_members(noise)
        if isinstance(plain, NormalInverseGamma) and not several:
            found.append(over_members(doubt))
        added = [over_members((means - mean).square())] if several else []
        added += [] if faded is None else [over_members(nig.added_variance(doubt, faded.keep))]
        found += added
        variance = sum(added, within)
        result = {"mean": mean, "std": variance.sqrt()}
        if aleatoric is not None:
            result["aleatoric_std"] = aleatoric.sqrt()
            if found:
                result["epistemic_std"] = sum(found[1:], found[0]).sqrt()
        if self._student is not None:
            answer = given if faded is None else faded.faded()
            result["lower"], result["upper"] = _ends(answer.predictive(), self._student, weights)
        if faded is not None:
            share = over_members(faded.keep)
            result["familiarity"] = share.flatten(1).mean(1) if share.ndim > 1 else share
        return result


def _ends(
    each: StudentT | Gaussian, student: quick_quantile.StudentQuantile, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of the mixture of all members, which lie in dimension 0."""
    if isinstance(each, StudentT):
        df, quantile = each.df, student(each.df)
    else:
        df = torch.full_like(each.loc, quick_quantile.NORMAL_DF)
        quantile = torch.full_like(each.loc, quick_quantile.normal_quantile(student.q))
    if each.batch_shape[0] == 1:
        loc, half = each.loc.squeeze(0), (each.scale * quantile).squeeze(0)
        return loc - half, loc + half
    return quick_quantile.mixture_ends(df, each.loc, each.scale, quantile, student.q, weights)


def summaries(
    answer: Any,
    *,
    coverage: float | None = 0.9,
    members: int | None = None,
    weights: Tensor | Sequence[float] | None = None,
) -> dict[str, Tensor]:
    """Return what `Summaries` with these arguments makes of an answer."""
    return Summaries(coverage, members, weights)(answer)


def _checked_weights(weights: Any) -> tuple[float, ...]:
    """Return weights as numbers that sum to 1."""
    given = weights if isinstance(weights, Tensor) else torch.as_tensor(weights, dtype=torch.float64)
    return tuple(normalised_weights("Deploy", given.detach().cpu(), given.numel(), validate=True).tolist())


def _on_leaves(change: Any, answer: Any) -> Any:
    return _pytree.tree_map(change, answer)


def _first_leaf(answer: Any) -> Tensor:
    leaf: Tensor = _pytree.tree_leaves(answer)[0]
    return leaf
