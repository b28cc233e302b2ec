r"""Student's t: density, both tails, both quantiles, entropy and CRPS, correct from df = 2 + 1e-6 to 1e8.

The predictive distribution of a Normal Inverse-Gamma is a Student t with :math:`2\alpha` degrees of freedom, so every
interval, coverage curve and score of an evidential model is computed here. torch has no incomplete beta function, so
the tails are computed as follows. With :math:`\sinh w = t/\sqrt n` the density becomes proportional to
:math:`\cosh^{-n} w`, which is log-concave, and for :math:`t \ge 0`

.. math:: P(T > t) = \frac{e^{\rho(n/2)}}{\sqrt\pi}\Bigl(1 + \frac{t^2}{n}\Bigr)^{-n/2} G, \qquad
          G = \int_0^\infty \exp\bigl(-n \ln(\cosh s + \tau\sinh s)\bigr)\,ds, \quad \tau = \frac{t}{\sqrt{n+t^2}}.

No term cancels, so a tail of 1e-30 has the same *relative* error as a tail of 0.3. :math:`G` and its derivative by n
are computed by recurrences and polynomials in :mod:`howsure.formulas.student_tail`. Tails and quantiles are computed
in float64 and returned in the dtype of the arguments.

Every function has gradients with respect to all its arguments, the degrees of freedom included.
"""

import math
from typing import Any

import torch
from torch import Tensor

from howsure.formulas import student_tail
from howsure.formulas.cells import student_log_prob
from howsure.formulas.special import LOG_2PI, in_float64, rho, rho_excess, rho_excess_prime, rho_prime

__all__ = [
    "cdf",
    "cell_nll",
    "crps",
    "entropy",
    "half_spread",
    "icdf",
    "isf",
    "log_prob",
    "mean_distance",
    "sf",
    "variance",
]


def log_prob(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return the log density.

    .. math:: \rho_\text{excess}(\tfrac n2) - \tfrac12\ln 2\pi - \ln s - \tfrac{n+1}2\ln(1 + z^2/n)

    Here :math:`z = (y - m)/s` and :math:`\rho_\text{excess}(a) = \rho(a) - \tfrac12\ln a`. As df grows, each term tends
    to its counterpart in the normal density, so that no switch to it is needed.
    """
    z = (y - loc) / scale
    return rho_excess(0.5 * df) - 0.5 * LOG_2PI - scale.log() - 0.5 * (df + 1) * _log1p_ratio(z, df)


def _log1p_ratio(z: Tensor, df: Tensor) -> Tensor:
    r"""Return :math:`\ln(1 + z^2/n)`, as :math:`2\ln|z| - \ln n` where :math:`z^2` may overflow."""
    far = z.abs() > 1e8 * df.sqrt()  # there the 1 is below the rounding of z²/n
    near = torch.where(far, 0.0, z)
    beyond = torch.where(far, z.abs(), 1.0)
    return torch.where(far, 2 * beyond.log() - df.log(), torch.log1p(near * (near / df)))


def variance(df_minus_two: Tensor, scale: Tensor) -> Tensor:
    r"""Return the variance :math:`s^2\,n/(n-2)`; infinite for :math:`1 < n \le 2`, NaN (undefined) below.

    The argument is n − 2 and not n, so that nothing cancels near n = 2.
    """
    d = df_minus_two
    heavy = torch.where(d > -1, math.inf, math.nan).to(d.dtype)
    return torch.where(d > 0, scale * scale * (1 + 2 / torch.where(d > 0, d, 1.0)), heavy)


def entropy(df: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`\tfrac{n+1}2\,\rho'(\tfrac n2) - \rho_\text{excess}(\tfrac n2) + \tfrac12\ln 2\pi + \ln s`."""
    a = 0.5 * df
    half = 0.5 + 0.25 / a + (a + 0.5) * rho_excess_prime(a)
    return half - rho_excess(a) + 0.5 * LOG_2PI + scale.log()


def cdf(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return P(Y ≤ y), with full relative accuracy in the lower tail; use :func:`sf` for the upper one."""
    return in_float64(lambda y, df, loc, scale: _lower((y - loc) / scale, df), y, df, loc, scale)


def sf(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return P(Y > y) = 1 − cdf(y), with full relative accuracy in the upper tail."""
    return in_float64(lambda y, df, loc, scale: _lower((loc - y) / scale, df), y, df, loc, scale)


def cell_nll(y: Tensor, lower: Tensor, upper: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`-\ln P(a < Y \le b)` for cells, and the negative log density of y where a = b."""
    known = lower == upper
    value = -log_prob(torch.where(known, y, loc), df, loc, scale)
    ends = torch.where(known, -math.inf, lower), torch.where(known, math.inf, upper)
    return torch.where(known, value, -student_log_prob(*ends, df, loc, scale).to(value.dtype))


def icdf(p: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the y with cdf(y) = p, accurate for small p; use :func:`isf` for quantiles of the upper tail."""
    return in_float64(lambda p, df, loc, scale: loc + scale * _quantile(p, df), p, df, loc, scale)


def isf(q: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the y with sf(y) = q, accurate for small q."""
    return in_float64(lambda q, df, loc, scale: loc - scale * _quantile(q, df), q, df, loc, scale)


def crps(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return the continuous ranked probability score :math:`\int (F(x) - 1[x \ge y])^2 dx`, for df > 1.

    .. math:: s\Bigl\{|z|\bigl(1 - 2Q(|z|)\bigr) + 2f(z)\frac{n + z^2}{n-1}
              - \frac{2\sqrt n}{n-1}\frac{B(\frac12, n-\frac12)}{B(\frac12, \frac n2)^2}\Bigr\}

    with :math:`Q = 1 - F` (Jordan, Krüger and Lerch 2019). The ratio of beta functions is
    :math:`e^{2\rho(n/2) - \rho(n-1/2)}/\sqrt\pi`.
    """
    return in_float64(lambda y, df, loc, scale: scale * _standard_crps((y - loc) / scale, df), y, df, loc, scale)


def mean_distance(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`\mathbb E|X-y|`, the first two terms of the CRPS, for df > 1."""
    return in_float64(lambda y, df, loc, scale: scale * _standard_distance((y - loc) / scale, df), y, df, loc, scale)


def half_spread(df: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`\tfrac12\mathbb E|X-X'|`, the last term of the CRPS, for df > 1."""
    # √n/(n−1) · exp(2ρ(n/2) − ρ(n−½)) with the powers of n taken out, because they cancel for large n
    shape = torch.exp(2 * rho_excess(0.5 * df) - rho_excess(df - 0.5)) * torch.rsqrt(1 - 0.5 / df)
    return scale * shape * (df / (df - 1)) / math.sqrt(math.pi)


def _standard_crps(z: Tensor, df: Tensor) -> Tensor:
    """Return the CRPS of the standard t at z."""
    return _standard_distance(z, df) - half_spread(df, torch.ones_like(df))


def _standard_distance(z: Tensor, df: Tensor) -> Tensor:
    """Return E|T − z| for the standard t."""
    size = torch.where(z < 0, -z, z)
    within = size * (1 - 2 * _upper_tail(size, df))
    # f(z)(1 + z²/n) with one power of 1 + z²/n, because the product of the two may be 0 times infinity
    peak = rho_excess(0.5 * df) - 0.5 * LOG_2PI - 0.5 * (df - 1) * _log1p_ratio(z, df)
    return within + 2 * peak.exp() * (df / (df - 1))


def _lower(z: Tensor, df: Tensor) -> Tensor:
    """Return P(T ≤ z) for the standard t."""
    left = z < 0
    tail = _upper_tail(torch.where(left, -z, z), df)
    return torch.where(left, tail, 1 - tail)


def _density(t: Tensor, df: Tensor) -> Tensor:
    return torch.exp(log_prob(t, df, torch.zeros_like(t), torch.ones_like(t)))


class _UpperTail(torch.autograd.Function):
    """Compute Q(t, n) = P(T > t) for t ≥ 0, with exact derivatives by both arguments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, df: Tensor) -> Tensor:
        return student_tail.upper_tail(t, df)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        t, df, q = ctx.saved_tensors
        by_t = -grad * _density(t, df) if ctx.needs_input_grad[0] else None
        by_df = None
        if ctx.needs_input_grad[1]:
            body = rho(0.5 * df) - 0.5 * df * _log1p_ratio(t, df) - 0.5 * math.log(math.pi)
            slope = 0.5 * (rho_prime(0.5 * df) - _log1p_ratio(t, df))
            inner = _integral_slope(t * df.rsqrt(), df) - 0.5 * _tanh(t, df) / df
            by_df = grad * (q * slope - body.exp() * inner)
        return by_t, by_df


def _upper_tail(t: Tensor, df: Tensor) -> Tensor:
    tail: Tensor = _UpperTail.apply(t, df)  # type: ignore[no-untyped-call]
    return tail


def _tanh(t: Tensor, df: Tensor) -> Tensor:
    """Return τ = tanh w = t/√(n+t²), also for infinite t."""
    t = t.clamp(max=1e150)
    return t * torch.rsqrt(df + t * t)


def _integral_slope(s: Tensor, df: Tensor) -> Tensor:
    """Return −∂G/∂n at s = t/√n, also for infinite t."""
    return student_tail.by_chunks(student_tail.integral_slope, s.clamp(max=1e150), df)


def _quantile(p: Tensor, df: Tensor) -> Tensor:
    """Return the z with P(T ≤ z) = p for the standard t, differentiable by p and df."""
    left = p < 0.5
    q = torch.where(left, p, 1 - p)
    with torch.no_grad():
        t = student_tail.upper_quantile(q, df)
        bounded = t.isfinite()
        slope = _density(torch.where(bounded, t, 1.0), df)
        bounded = bounded & (slope > 1e-290)  # a smaller density has lost its digits: no step, and no derivatives
        anchor, slope = torch.where(bounded, t, 1.0), torch.where(bounded, slope, 1.0)
    # one more Newton step changes the value by rounding only, and carries the implicit derivatives by q and df
    t = t + torch.where(bounded, (_upper_tail(anchor, df) - q) / slope, 0.0)
    return torch.where(left, -t, t)
