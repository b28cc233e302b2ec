r"""Tails and densities of the standard Student t without an integral, to rounding, for every number of degrees.

With :math:`s = t/\sqrt n`, :math:`\tau = s/\sqrt{1+s^2}`, :math:`v = 1-\tau^2` and the density :math:`k` at zero, the
upper tail at :math:`t \ge 0` is

.. math:: P(T > t) = k\sqrt n\,(1+s^2)^{-n/2}\,G_n, \qquad
          G_n = \int_0^\infty (\cosh x + \tau\sinh x)^{-n}\,dx
              = \frac{\tau}{n} + v\,\frac{n+1}{n}\,G_{n+2}.

The recurrence, from integration by parts, has positive terms only. Eight steps of it lead to :math:`m = n + 16`
degrees, where :math:`(1+2r)\sqrt{m/2}\,G_m` with :math:`r = \tau\sqrt{m/2}` is so smooth in :math:`1/(r + 3.75)` and
:math:`1/m` that a polynomial through 24 × 10 Chebyshev points has a relative error below 1e-14. (As :math:`m` grows it
becomes :math:`\tfrac12\sqrt\pi\,(1+2r)\,e^{r^2}\mathrm{erfc}(r)`, for which Shepherd and Laframboise (1981) used
this variable.) Its values are integrated when the module is imported, so that there is no table to trust.

Everything here is float64; :mod:`howsure.formulas.student_t` adds gradients.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from torch import Tensor

from howsure.formulas.special import RHO_SERIES, half_line_rule
from howsure.tracing import is_traced

__all__ = [
    "Shape",
    "Tail",
    "by_chunks",
    "chebyshev_points",
    "chunk_size",
    "grid",
    "integral_slope",
    "integrate",
    "powers_from_values",
    "quantile",
    "shape_of",
    "tail",
    "upper_quantile",
    "upper_tail",
]

CHUNK = 1 << 14  # numbers that are worked on at once: 24 coefficients of each stay in the cache of a CPU

_MAX_SIZE_AT_ONCE = 128  # up to this size, all powers are computed at once
_STEPS = 8  # of the recurrence
_CENTRE = 3.75  # r at the middle of the range of 1/(r + centre)
_POINTS = 24, 10  # Chebyshev points in 1/(r + centre), and in 1/m


def chebyshev_points(count: int) -> NDArray[np.float64]:
    """Return the zeros of the Chebyshev polynomial of this degree, in [−1, 1]."""
    return np.cos(np.pi * (np.arange(count) + 0.5) / count)


def powers_from_values(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of the powers of x from values at the Chebyshev points, along the first dimension.

    The coefficients of the Chebyshev polynomials come first. They decay, so that the others do not cancel.
    """
    series = np.linalg.solve(chebyshev.chebvander(chebyshev_points(len(values)), len(values) - 1), values)
    return np.stack([np.append(p := chebyshev.cheb2poly(c), np.zeros(len(c) - len(p))) for c in series.T], axis=1)


def grid(points: tuple[int, int], centre: float, least_m: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return r in a column and m ≥ ``least_m`` in a row, at Chebyshev points in 1/(r + centre) and in 1/m."""
    x, c = (chebyshev_points(count) for count in points)
    return (centre * (1 - x) / (1 + x))[:, None], (2 * least_m / (1 + c))[None, :]


def integrate(r: NDArray[np.float64], m: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return a unit of length, and G_m and −m ∂G_m/∂m in this unit."""
    tau = r * np.sqrt(2 / m)
    unit = np.sqrt(2 / m) / (r + np.sqrt(r * r + 1))  # the integrand lies between exp(−x/unit) and exp(−(x/unit)²)
    values, slopes = np.zeros(unit.shape), np.zeros(unit.shape)
    for u, weight in half_line_rule(step=0.125, first=-27, last=29):
        half = np.sinh(0.5 * u * unit)
        # cosh s + τ sinh s − 1 with positive terms only
        exponent = m * np.log1p(2 * half * (half + tau * np.sqrt(1 + half * half)))
        values += weight * np.exp(-exponent)
        slopes += weight * exponent * np.exp(-exponent)
    return unit, values, slopes


def _interpolate() -> tuple[list[list[float]], list[list[float]]]:
    """Return the coefficients of √(m/2)(1+2r)G_m: powers of 2·centre/(r+centre) − 1 by powers of 4·steps/m − 1.

    The second are the coefficients of −m ∂G_m/∂m instead of G_m.
    """
    r, m = grid(_POINTS, _CENTRE, 2 * _STEPS)
    unit, values, slopes = integrate(r, m)
    size = unit * np.sqrt(m / 2) * (1 + 2 * r)
    first, second = (powers_from_values(powers_from_values(size * v).T).T.tolist() for v in (values, slopes))
    return first, second


_TABLE, _SLOPE_TABLE = _interpolate()


def _tables(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tables in the dtype and on the device of a tensor.

    They are kept, because a copy from the CPU is not allowed while a CUDA graph is captured: a call before the capture
    makes them.
    """
    if is_traced(like):  # a kept tensor would belong to this trace
        first, second = (torch.tensor(table, dtype=like.dtype, device=like.device) for table in (_TABLE, _SLOPE_TABLE))
        return first, second
    return _kept_tables(like.dtype, like.device)


@functools.cache
def _kept_tables(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        first, second = (torch.tensor(table, dtype=dtype, device=device) for table in (_TABLE, _SLOPE_TABLE))
    return first, second


class Shape(NamedTuple):
    """Functions of the degrees of freedom, computed once for many tails."""

    df: Tensor
    root: Tensor  # √n
    height: Tensor  # the density at zero
    terms: Tensor  # (8, …): G_n without its last term is τ Σ_j terms_j v^j
    last: Tensor  # the factor of the last term, with √(2/m) of its scale
    reach: Tensor  # r/τ, over the centre
    polynomial: Tensor  # (24, …): coefficients of the powers of x

    def select(self, keep: Tensor) -> "Shape":
        """Return the shapes that an index in the last dimension keeps."""
        return Shape(*(part[..., keep] for part in self))


class Tail(NamedTuple):
    """Tail and density of the standard t at one argument, with their common factor e^exponent taken out."""

    exponent: Tensor  # −n/2 · ln(1 + s²)
    integral: Tensor  # G_n
    cosine: Tensor  # 1/√(1 + s²)
    sine: Tensor  # τ


def shape_of(df: Tensor) -> Shape:
    """Return the functions of the degrees of freedom that tails need."""
    steps = 2.0 * torch.arange(_STEPS, dtype=df.dtype, device=df.device).view(-1, *[1] * df.ndim)
    degrees = df + steps  # (8, …)
    growth = ((degrees + 1) / degrees).cumprod(0)
    terms = torch.cat([torch.ones_like(growth[:1]), growth[:-1]]) / degrees
    m = df + 2 * _STEPS
    # Γ(α+½)/Γ(α) at α = n/2 from its value at α + 8, by Stirling's series. The steps have the factors of the recurrence
    inverse = 2 / m
    square = inverse * inverse
    series = torch.full_like(df, RHO_SERIES[-1])
    for coefficient in reversed(RHO_SERIES[:-1]):
        series = series * square + coefficient
    height = torch.sqrt(m / (2 * math.pi * df)) * torch.exp(series * inverse) / growth[-1]
    table = _tables(df)[0]
    powers = _powers(2 * _STEPS * inverse - 1, _POINTS[1])
    polynomial = (table @ powers.flatten(1)).unflatten(1, df.shape) if df.ndim else table @ powers
    return Shape(df, df.sqrt(), height, terms, growth[-1] * inverse.sqrt(), torch.sqrt(0.5 * m) / _CENTRE, polynomial)


def _powers(x: Tensor, count: int) -> Tensor:
    """Return 1, x, x², … in a new first dimension."""
    powers = [torch.ones_like(x), x]
    for k in range(2, count):
        powers.append(powers[k // 2] * powers[k - k // 2])
    return torch.stack(powers)


def tail(t: Tensor, shape: Shape) -> Tail:
    """Return the parts of the upper tail and of the density at t ≥ 0, also for infinite t."""
    bounded = t.clamp(max=1e150)
    square = bounded * (bounded / shape.df)  # s², with fewer roundings than s = t/√n has: they count n-fold below
    cosine = torch.rsqrt(1 + square)
    tau, v = square.sqrt() * cosine, cosine * cosine
    r = shape.reach * tau
    x = 2 * torch.reciprocal(1 + r) - 1
    smooth, first = _polynomial(shape.polynomial, x), _polynomial(shape.terms, v)
    v4 = (v * v).square()
    rest = shape.last * v4 * v4 * smooth / (1 + 2 * _CENTRE * r)
    # far out the 1 is below the rounding of s², which may overflow
    logarithm = torch.where(t > 1e140, 2 * (t / shape.root).log(), torch.log1p(square))
    return Tail(-0.5 * shape.df * logarithm, torch.addcmul(rest, tau, first), cosine, tau)


def _polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    """Return Σ_k coefficients_k x^k, with the coefficients along the first dimension."""
    if not torch.compiler.is_compiling() and x.numel() <= _MAX_SIZE_AT_ONCE:  # operations cost more than numbers
        exponents = torch.arange(len(coefficients), dtype=x.dtype, device=x.device).view(-1, *[1] * x.ndim)
        return (coefficients * x**exponents).sum(0)
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = torch.addcmul(coefficients[k], total, x)
    return total


def integral_slope(s: Tensor, df: Tensor) -> Tensor:
    r"""Return :math:`K_n = -\partial G_n/\partial n` for s = t/√n ≥ 0, differentiable.

    From the recurrence of :math:`G_n` follows one for this, again with positive terms only:
    :math:`K_n = (\tau + vG_{n+2})/n^2 + v\frac{n+1}n K_{n+2}`.
    """
    m = df + 2 * _STEPS
    cosine = torch.rsqrt(1 + s * s)
    tau, v = (s * cosine).clamp(max=1), cosine * cosine
    r = torch.sqrt(0.5 * m) * tau
    x = 2 * torch.reciprocal(1 + r / _CENTRE) - 1
    powers = _powers(4 * _STEPS / m - 1, _POINTS[1])
    size = torch.sqrt(2 / m) / (1 + 2 * r)
    found = [size * _polynomial(torch.tensordot(table, powers, dims=1), x) for table in _tables(df)]
    g, k = found[0], found[1] / m
    for step in reversed(range(_STEPS)):
        n = df + 2 * step
        g = v * g
        k = (tau + g) / (n * n) + v * (k + k / n)
        g = g + (tau + g) / n
    return k


def upper_tail(t: Tensor, df: Tensor) -> Tensor:
    """Return P(T > t) for t ≥ 0."""

    def of_chunk(t: Tensor, df: Tensor) -> Tensor:
        shape = shape_of(df)
        found = tail(t, shape)
        return shape.height * shape.root * found.exponent.exp() * found.integral

    return by_chunks(of_chunk, t, df)


def chunk_size(x: Tensor) -> int:
    """Return how many numbers to work on at once on the device of x."""
    return CHUNK if x.device.type == "cpu" else 64 * CHUNK


def by_chunks(f: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return an elementwise function of tensors of one shape, computed with few numbers at a time on a CPU."""
    first = tensors[0]
    size = chunk_size(first)
    # a compiler divides the work itself, and a branch on sizes would limit the sizes of an exported program
    if torch.compiler.is_compiling() or first.numel() <= size:
        return f(*tensors)
    chunks = zip(*(x.reshape(-1).split(size) for x in tensors), strict=True)
    return torch.cat([f(*chunk) for chunk in chunks]).reshape(first.shape)


def upper_quantile(q: Tensor, df: Tensor) -> Tensor:
    """Return the t ≥ 0 with P(T > t) = q, for q ≤ ½; NaN for q outside [0, ½]."""
    return by_chunks(lambda q, df: quantile(q, shape_of(df)), q, df)


def quantile(q: Tensor, shape: Shape) -> Tensor:
    """Return the t ≥ 0 with P(T > t) = q by Halley's method for ln P in w = asinh(t/√n), where ln P is concave."""
    df, log_q = shape.df, q.log()
    log_lead = (shape.height * shape.root).log()
    # start from the normal quantile z by (n − ½) ln cosh² w = z², which is exact as n grows and within 64 nat of 1e-30
    # at n = 1; two rounds then reach 1e-11, and the third reaches rounding
    x = torch.special.ndtri(q).square() / (df - 0.5).clamp(min=0.5)
    w = (0.5 * x + torch.log1p((-torch.expm1(-x)).sqrt())).clamp(max=700)
    # far out the tail is a power of t: P = k√n/n · (2s)^(−n) …, with a relative error of n²/t²
    power = (log_lead - df.log() - log_q) / df
    w = torch.where(power > 4, (power + math.log(2)).clamp(max=700), w)
    for _ in range(3):
        found = tail(shape.root * torch.sinh(w), shape)
        miss = log_lead + found.exponent + found.integral.log() - log_q
        curvature = (1 - df * found.sine * found.integral).clamp(min=0)
        w = (w + miss * found.integral / (1 + 0.5 * miss * curvature).clamp(min=0.5)).clamp(min=0)
    return torch.where(q == 0, math.inf, shape.root * torch.sinh(w))
