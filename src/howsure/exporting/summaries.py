"""Mean, deviations and interval of output distributions, by few and common operations that exporters support."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from howsure.conformal import REFERENCE_COVERAGE, ConformalCalibration
from howsure.distributions import Mixture, Normal, NormalInverseGamma, StudentT, Support, Transform
from howsure.distributions.arguments import class_name
from howsure.errors import InputError, InputTypeError
from howsure.formulas import quick_quantile

__all__ = ["Summaries"]

MAX_COVERAGE = 0.999999  # the largest for which the quick quantile is right to 1e-5


class Summaries(nn.Module):
    """Named tensors of an output distribution, of the shape of the prediction.

    - ``mean``, ``std``;
    - ``aleatoric_std``, ``epistemic_std``: the default decomposition of :class:`~howsure.Prediction`. A part that
      the distribution does not have is left out: a single Gaussian has no epistemic one;
    - ``lower``, ``upper``: the ends of the central interval.

    They equal :class:`~howsure.Prediction` to a relative 1e-5 in float32, the ends of a mixture relative to
    their own size or to the mixture's deviation. Make it before a program is traced.

    Args:
        coverage: probability of the interval, at most 0.999999; None leaves it out.
        calibration: by a scale or conformal, which is applied to all tensors; None for none.
        transform: of the targets. Then the tensors are ``median``, ``lower`` and ``upper`` in the units of y.
        from_parameters: whether ν divides the variance of several members too, as for a
            :class:`~howsure.Prediction` with a familiarity.

    >>> answer = NormalInverseGamma(gamma=torch.zeros(2), nu=2.0, alpha=3.0, beta=4.0)
    >>> found = Summaries(coverage=0.5)(answer)
    >>> {name: round(value[0].item(), 4) for name, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'mean': 0.0, 'std': 1.7321, 'aleatoric_std': 1.4142, 'epistemic_std': 1.0, 'lower': -1.0148, 'upper': 1.0148}
    """

    factor: Tensor | None  # of all deviations, (T,)
    stretch: Tensor | None  # of the half-widths of the interval of REFERENCE_COVERAGE, (T,); see howsure.conformal

    def __init__(
        self,
        coverage: float | None = 0.9,
        calibration: Any = None,
        transform: Transform | Support | None = None,
        from_parameters: bool = False,
    ) -> None:
        super().__init__()
        real = isinstance(coverage, Real) and not isinstance(coverage, bool)
        if coverage is not None and not (real and 0 < coverage <= MAX_COVERAGE):
            raise InputError(f"coverage must be a number between 0 and {MAX_COVERAGE}, or None, got {coverage!r}")
        self.transform, self.from_parameters = transform, from_parameters
        factor, stretch = _factors(calibration, coverage)
        self.register_buffer("factor", factor)
        self.register_buffer("stretch", stretch)
        level = coverage if coverage is None or stretch is None else REFERENCE_COVERAGE
        # made here, because exporters do not support the exact quantiles
        self.student = None if level is None else quick_quantile.StudentQuantile(0.5 * (1 - float(level)))

    def forward(self, answer: Any) -> dict[str, Tensor]:
        """Return the named tensors of an output distribution of one network, or of a mixture."""
        if isinstance(answer, Mixture):
            each, weights = answer.components, answer.weights
            weights = None if weights is None else weights.movedim(-1, 0)
            return self.of_members(_pytree.tree_map(lambda p: p.movedim(answer.dim, 0), each), weights)
        if not isinstance(answer, NormalInverseGamma | Normal | StudentT):
            kinds = "a NormalInverseGamma, a Normal, a StudentT or a Mixture"
            raise InputTypeError(f"the network must output {kinds}, not {class_name(answer)}")
        return self.of_members(_pytree.tree_map(lambda p: p.unsqueeze(0), answer))

    def of_members(self, plain: Any, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return the named tensors of a distribution with members in dimension 0, and their weights (M, …)."""
        several = plain.batch_shape[0] > 1
        if weights is not None:
            ones = [1] * (len(plain.batch_shape) - weights.ndim)  # weights of all rows, or of each row
            weights = weights.to(plain.mean.dtype).view(*weights.shape, *ones)

        def over_members(x: Tensor) -> Tensor:
            if not several:
                return x.squeeze(0)
            return x.mean(0) if weights is None else (weights * x).sum(0)

        found = _moments(plain, several, over_members, self.from_parameters)
        student = plain.predictive()
        if self.transform is not None:
            found["median"] = _ends(student, 0.5, torch.zeros_like, weights)[0]
        if self.student is not None:
            found["lower"], found["upper"] = _ends(student, self.student.q, self.student, weights)
        if self.factor is not None:
            found = _calibrated(found, self.factor, self.stretch)
        if self.transform is not None:
            names = ("median", "lower", "upper")
            found = {name: _in_units(self.transform, found[name]) for name in names if name in found}
        return found


def _moments(
    plain: Any, several: bool, over_members: Callable[[Tensor], Tensor], from_parameters: bool
) -> dict[str, Tensor]:
    """Return mean and deviations of a distribution with members in dimension 0."""
    evidential = isinstance(plain, NormalInverseGamma)
    by_nu = evidential and (from_parameters or not several)
    means = plain.gamma if evidential else plain.loc
    noise = plain.aleatoric_variance if evidential else plain.variance
    mean, aleatoric = over_members(means), over_members(noise)
    epistemic = [over_members(noise / plain.nu)] if evidential else []
    within = sum(epistemic, aleatoric)
    if not by_nu:  # the law of total variance over members
        aleatoric, epistemic = within, []
    between = [over_members((means - mean).square())] if several else []
    epistemic += between
    result = {"mean": mean, "std": sum(between, within).sqrt()}
    if several or not isinstance(plain, StudentT):
        result["aleatoric_std"] = aleatoric.sqrt()
        if epistemic:
            result["epistemic_std"] = sum(epistemic[1:], epistemic[0]).sqrt()
    return result


def _ends(
    each: StudentT | Normal, q: float, student: Callable[[Tensor], Tensor], weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the points with the probability q below and above them, of the mixture of members in dimension 0.

    Args:
        each: the members.
        q: the probability, at most ½.
        student: from df to the quantile of a standard Student t.
        weights: of the members, of a shape that broadcasts with them; None: all count the same.
    """
    if isinstance(each, StudentT):
        df, quantile = each.df, student(each.df)
    else:
        df = torch.full_like(each.loc, quick_quantile.NORMAL_DF)
        quantile = torch.full_like(each.loc, quick_quantile.normal_quantile(q))
    if each.batch_shape[0] == 1:
        loc, half = each.loc.squeeze(0), (each.scale * quantile).squeeze(0)
        return loc - half, loc + half
    return quick_quantile.mixture_ends(df, each.loc, each.scale, quantile, q, weights)


def _factors(calibration: Any, coverage: float | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the ``factor`` and ``stretch`` of a calibration."""
    if isinstance(calibration, ConformalCalibration):
        if calibration.groups is not None:
            raise InputError("a calibration by groups cannot be exported", hint="calibrate without groups=")
        scale, interval = (calibration.factors(c)[-1] for c in (REFERENCE_COVERAGE, coverage or REFERENCE_COVERAGE))
        return torch.from_numpy(scale), torch.from_numpy(interval)
    if calibration is not None and calibration.method == "isotonic":
        hint = 'calibrate with method="scale" or "conformal"'
        raise InputError("an isotonic calibration cannot be exported", hint=hint)
    return None if calibration is None else torch.from_numpy(calibration.factors), None


def _calibrated(found: dict[str, Tensor], factor: Tensor, stretch: Tensor | None) -> dict[str, Tensor]:
    """Return tensors stretched about the mean; with ``stretch`` the interval is stretched conformally instead."""
    mean = found["mean"]
    factor = factor.to(mean.dtype)
    moved = {name: mean + factor * (found[name] - mean) for name in ("median", "lower", "upper") if name in found}
    wider = {name: factor * x for name, x in found.items() if name.endswith("std")}
    if stretch is not None and "lower" in found:
        lower, upper = found["lower"], found["upper"]
        stretch, quarter = stretch.to(mean.dtype), 0.25 * (upper - lower)
        centre = torch.minimum(torch.maximum(mean, lower + quarter), upper - quarter)
        middle = mean + factor * (centre - mean)
        moved |= {"lower": middle - stretch * (centre - lower), "upper": middle + stretch * (upper - centre)}
    return found | wider | moved


def _in_units(transform: Transform | Support, z: Tensor) -> Tensor:
    """Return y for z. Possible values are chosen by comparisons, which every format has."""
    if isinstance(transform, Transform):
        return transform.forward(z)
    steps = (z.unsqueeze(-1) > transform.edges).double() * transform.values.diff()
    return transform.values[0] + steps.sum(-1)
