r"""Student's t: density, both tails, both quantiles, entropy and CRPS, correct from df = 2 + 1e-6 to 1e8.

The predictive distribution of a Normal Inverse-Gamma is a Student t with :math:`2\alpha` degrees of freedom, so every
interval, coverage curve and score of an evidential model comes through here. torch has no incomplete beta function;
the tails are computed as follows. With :math:`\sinh w = t/\sqrt n` the density becomes proportional to
:math:`\cosh^{-n} w`, which is log-concave, and for :math:`t \ge 0`

.. math:: P(T > t) = \frac{e^{\rho(n/2)}}{\sqrt\pi}\Bigl(1 + \frac{t^2}{n}\Bigr)^{-n/2} G, \qquad
          G = \int_0^\infty \exp\bigl(-n \ln(\cosh s + \tau\sinh s)\bigr)\,ds, \quad \tau = \frac{t}{\sqrt{n+t^2}}.

No term cancels, so the *relative* error of a tail of 1e-30 is that of a tail of 0.3. :math:`G` is smooth and is
integrated by the trapezoidal rule after the substitution :math:`s \propto e^{x - e^{-x}}` (Takahasi and Mori 1974),
to 1e-14. Tails and quantiles are evaluated in float64 whatever the dtype of the arguments, and answered in theirs.

Gradients exist with respect to every argument, the degrees of freedom included.
"""

import math
from typing import Any

import torch
from torch import Tensor

from evidentia.formulas.special import LOG_2PI, half_line_rule, in_float64, rho, rho_excess, rho_excess_prime, rho_prime

__all__ = ["cdf", "crps", "entropy", "half_spread", "icdf", "isf", "log_prob", "sf", "variance"]


def log_prob(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r""":math:`\rho_\text{excess}(\tfrac n2) - \tfrac12\ln 2\pi - \ln s - \tfrac{n+1}2\ln(1 + z^2/n)`.

    Here :math:`z = (y - m)/s` and :math:`\rho_\text{excess}(a) = \rho(a) - \tfrac12\ln a`; as df grows each term
    tends to its counterpart in the normal density, and no switch to it is needed.
    """
    z = (y - loc) / scale
    return rho_excess(0.5 * df) - 0.5 * LOG_2PI - scale.log() - 0.5 * (df + 1) * _log1p_ratio(z, df)


def _log1p_ratio(z: Tensor, df: Tensor) -> Tensor:
    r""":math:`\ln(1 + z^2/n)`, also where :math:`z^2` overflows: there it is :math:`2\ln|z| - \ln n`."""
    far = z.abs() > 1e8 * df.sqrt()  # there the 1 is beyond all digits
    near = torch.where(far, 0.0, z)
    beyond = torch.where(far, z.abs(), 1.0)
    return torch.where(far, 2 * beyond.log() - df.log(), torch.log1p(near * (near / df)))


def variance(df_minus_two: Tensor, scale: Tensor) -> Tensor:
    r""":math:`s^2\,n/(n-2)`; infinite for :math:`1 < n \le 2`, undefined (nan) below. Takes n − 2 for exactness."""
    d = df_minus_two
    heavy = torch.where(d > -1, math.inf, math.nan).to(d.dtype)
    return torch.where(d > 0, scale * scale * (1 + 2 / torch.where(d > 0, d, 1.0)), heavy)


def entropy(df: Tensor, scale: Tensor) -> Tensor:
    r""":math:`H = \tfrac{n+1}2\,\rho'(\tfrac n2) - \rho_\text{excess}(\tfrac n2) + \tfrac12\ln 2\pi + \ln s`."""
    a = 0.5 * df
    half = 0.5 + 0.25 / a + (a + 0.5) * rho_excess_prime(a)
    return half - rho_excess(a) + 0.5 * LOG_2PI + scale.log()


def cdf(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """P(Y ≤ y), with full relative accuracy in the lower tail; use :func:`sf` for the upper one."""
    return in_float64(lambda y, df, loc, scale: _lower((y - loc) / scale, df), y, df, loc, scale)


def sf(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """P(Y > y) = 1 − cdf(y), with full relative accuracy in the upper tail."""
    return in_float64(lambda y, df, loc, scale: _lower((loc - y) / scale, df), y, df, loc, scale)


def icdf(p: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The y with cdf(y) = p; exact for small p. Use :func:`isf` for quantiles of the upper tail."""
    return in_float64(lambda p, df, loc, scale: loc + scale * _quantile(p, df), p, df, loc, scale)


def isf(q: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The y with sf(y) = q; exact for small q."""
    return in_float64(lambda q, df, loc, scale: loc - scale * _quantile(q, df), q, df, loc, scale)


def crps(y: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""The continuous ranked probability score :math:`\int (F(x) - 1[x \ge y])^2 dx`, for df > 1.

    .. math:: s\Bigl\{|z|\bigl(1 - 2Q(|z|)\bigr) + 2f(z)\frac{n + z^2}{n-1}
              - \frac{2\sqrt n}{n-1}\frac{B(\frac12, n-\frac12)}{B(\frac12, \frac n2)^2}\Bigr\}

    (Jordan, Krüger and Lerch 2019, with :math:`Q = 1 - F`; the ratio of beta functions is
    :math:`e^{2\rho(n/2) - \rho(n-1/2)}/\sqrt\pi`).
    """
    return in_float64(lambda y, df, loc, scale: scale * _standard_crps((y - loc) / scale, df), y, df, loc, scale)


def half_spread(df: Tensor, scale: Tensor) -> Tensor:
    r""":math:`\tfrac12\mathbb E|X-X'|`, the last term of the CRPS, for df > 1."""
    # √n/(n−1) · exp(2ρ(n/2) − ρ(n−½)) with the powers of n taken out, which cancel for large n
    shape = torch.exp(2 * rho_excess(0.5 * df) - rho_excess(df - 0.5)) * torch.rsqrt(1 - 0.5 / df)
    return scale * shape * (df / (df - 1)) / math.sqrt(math.pi)


def _standard_crps(z: Tensor, df: Tensor) -> Tensor:
    size = torch.where(z < 0, -z, z)
    within = size * (1 - 2 * _upper_tail(size, df))
    # f(z)(1 + z²/n): the power of 1 + z²/n taken together, so that the product of 0 and infinity does not arise
    peak = rho_excess(0.5 * df) - 0.5 * LOG_2PI - 0.5 * (df - 1) * _log1p_ratio(z, df)
    density = 2 * peak.exp() * (df / (df - 1))
    return within + density - half_spread(df, torch.ones_like(df))


def _lower(z: Tensor, df: Tensor) -> Tensor:
    """P(T ≤ z) for the standard t."""
    left = z < 0
    tail = _upper_tail(torch.where(left, -z, z), df)
    return torch.where(left, tail, 1 - tail)


def _density(t: Tensor, df: Tensor) -> Tensor:
    return torch.exp(log_prob(t, df, torch.zeros_like(t), torch.ones_like(t)))


class _UpperTail(torch.autograd.Function):
    """Q(t, n) = P(T > t) for t ≥ 0, with exact derivatives in both arguments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, df: Tensor) -> Tensor:
        body, g, _ = _tail_parts(t, df)
        return body.exp() * g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        t, df, q = ctx.saved_tensors
        by_t = -grad * _density(t, df) if ctx.needs_input_grad[0] else None
        by_df = None
        if ctx.needs_input_grad[1]:
            body, _, g1 = _tail_parts(t, df)
            body = body.exp()
            slope = 0.5 * (rho_prime(0.5 * df) - _log1p_ratio(t, df))
            by_df = grad * (q * slope - body * (g1 - 0.5 * _tanh(t, df)) / df)
        return by_t, by_df


def _upper_tail(t: Tensor, df: Tensor) -> Tensor:
    tail: Tensor = _UpperTail.apply(t, df)  # type: ignore[no-untyped-call]
    return tail


_RULE = half_line_rule(step=0.125, first=-27, last=29)


def _tanh(t: Tensor, df: Tensor) -> Tensor:
    """τ = tanh w = t/√(n+t²), also for infinite t."""
    t = t.clamp(max=1e150)
    return t * torch.rsqrt(df + t * t)


def _tail_parts(t: Tensor, df: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(ln of e^ρ(n/2)/√π (1+t²/n)^(−n/2), G, G₁ = ∫ E e^(−E) ds) of the upper tail, E(s) = n ln(cosh s + τ sinh s)."""
    tau = _tanh(t, df)
    # E ≈ n(τs + s²/2) reaches 1 at s = unit: in this unit the integrand lies between exp(−u) and exp(−u²)
    unit = (2 / df) / (tau + (tau * tau + 2 / df).sqrt())
    g, g1 = torch.zeros_like(unit), torch.zeros_like(unit)
    for u, weight in _RULE:
        half = torch.sinh(0.5 * u * unit)
        # cosh s − 1 = 2 sinh²(s/2) and sinh s = 2 sinh(s/2) cosh(s/2): a sum of positive terms
        e = df * torch.log1p(2 * half * (half + tau * (1 + half * half).sqrt()))
        term = weight * torch.exp(-e)
        g, g1 = g + term, g1 + e * term
    body = rho(0.5 * df) - 0.5 * df * _log1p_ratio(t, df) - 0.5 * math.log(math.pi)
    return body, g * unit, g1 * unit


def _quantile(p: Tensor, df: Tensor) -> Tensor:
    """The z with P(T ≤ z) = p for the standard t, differentiable in both."""
    left = p < 0.5
    q = torch.where(left, p, 1 - p)
    with torch.no_grad():
        t = _upper_quantile(q, df)
        bounded = t.isfinite()
        slope = _density(torch.where(bounded, t, 1.0), df)
        bounded = bounded & (slope > 1e-290)  # a smaller one has lost its digits: no step, and no derivatives there
        anchor, slope = torch.where(bounded, t, 1.0), torch.where(bounded, slope, 1.0)
    # one more Newton step, a polish in value, carries the implicit derivatives by q and df
    t = t + torch.where(bounded, (_upper_tail(anchor, df) - q) / slope, 0.0)
    return torch.where(left, -t, t)


def _upper_quantile(q: Tensor, df: Tensor) -> Tensor:
    """t ≥ 0 with P(T > t) = q ≤ ½: Halley's iteration for ln P in w = asinh(t/√n), in which ln P is concave."""
    # start from the normal quantile z by (n − ½) ln cosh² w = z², exact as n grows, within 64 nat of 1e-30 at n = 1;
    # from there two rounds reach 1e-11 and the third rounding
    x = torch.special.ndtri(q).square() / (df - 0.5).clamp(min=0.5)
    w = (0.5 * x + torch.log1p((-torch.expm1(-x)).sqrt())).clamp(max=700)
    # far out the tail is a power of t: P = e^ρ/(n√π) (t/√n)^(−n), within n²/t² of itself
    power = (rho(0.5 * df) - 0.5 * math.log(math.pi) - df.log() - q.log()) / df
    w = torch.where(power > 4, (power + math.log(2)).clamp(max=700), w)
    for _ in range(3):
        body, g, _ = _tail_parts(df.sqrt() * torch.sinh(w), df)
        miss = body + g.log() - q.log()
        curvature = (1 - df * torch.tanh(w) * g).clamp(min=0)
        w = (w + miss * g / (1 + 0.5 * miss * curvature).clamp(min=0.5)).clamp(min=0)
    return torch.where(q == 0, math.inf, df.sqrt() * torch.sinh(w))
