r"""Quantiles of a fixed level for programs that leave Python: few operations, float32, no branches.

:mod:`howsure.formulas.student_t` and :mod:`howsure.formulas.mixture` are exact for every level and every tail, but
need float64, special functions and loops that depend on their values. An exported network has a fixed level and needs
six digits. Here every function consists of additions, products, roots, exponentials, logarithms
and comparisons, works in the dtype of its arguments (float32 is enough), and takes df from 2 on.

**One Student t.** For a fixed level, :math:`\ln t(n)` is so smooth in :math:`2/n` that a polynomial of degree 12 has a
relative error below 1e-6, for tails from 0.499 down to 1e-6. :class:`StudentQuantile` makes it from exact quantiles.

**A mixture.** :func:`mixture_ends` searches both ends of a central interval at once, by a fixed number of steps. The
tails follow :mod:`howsure.formulas.student_tail` with one step of its recurrence and a smaller table,

.. math:: P(T > t) = (1+s^2)^{-n/2}\Bigl(\frac{\kappa\tau}{n+1} + v\,\frac{A(r, m)}{1+2r}\Bigr), \qquad m = n + 2,

with :math:`\kappa = \Gamma(\frac{m+1}2)/(\sqrt\pi\,\Gamma(\frac m2))`, :math:`r = \tau\sqrt{m/2}` and
:math:`A = (1+2r)\,\kappa\,G_m`, which is a polynomial in :math:`1/(r+2.5)` and :math:`1/m` with a relative error below
1e-6.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from howsure.formulas import student_tail

__all__ = ["NORMAL_DF", "StudentQuantile", "mixture_ends", "normal_quantile"]

NORMAL_DF = 1e12  # a Student t with this many degrees of freedom is normal to rounding

_DEGREE = 12  # of the polynomial for the quantile of one Student t
_STEPS = 30  # at most, of the search for the quantiles of a mixture: these halve its bracket to 1e-9 of its width
_TOLERANCE = 1e-6  # size of the last step, in units of the members' mean scale
_CENTRE = 2.5  # r at the middle of the range of 1/(r + centre)
_POINTS = 10, 6  # Chebyshev points in 1/(r + centre), and in 1/m
_TRUSTED_DISTANCE = 1e-4  # relative distance of a tail from its level below which every Newton step is taken
_MIN_M = 4.0  # m = n + 2
_MAX_DISTANCE = 1e15  # in units of the scale: its square is still a float32 number


def normal_quantile(q: float) -> float:
    """Return the z with P(Z > z) = q."""
    return -NormalDist().inv_cdf(q)


class StudentQuantile:
    r"""Quantile of the standard Student t with a fixed probability q above it, as a function of df ≥ 2.

    Create it before a program is traced: it computes exact quantiles, and exporters do not support these.

    Args:
        q: the probability of the upper tail, 0 < q < ½.

    >>> StudentQuantile(0.05)(torch.tensor([2.0, 2e8]))
    tensor([2.9200, 1.6449])
    """

    q: float
    coefficients: tuple[float, ...]

    def __init__(self, q: float) -> None:
        self.q = q
        x = student_tail.chebyshev_points(_DEGREE + 1)
        df = torch.from_numpy(4 / (1 + x))
        exact = student_tail.upper_quantile(torch.full_like(df, q), df).log().numpy()
        self.coefficients = tuple(student_tail.powers_from_values(exact[:, None])[:, 0].tolist())

    def __call__(self, df: Tensor) -> Tensor:
        """Return the t with P(T > t) = q; NaN for df < 2."""
        x = 4 / df - 1
        return torch.where(df < 2, math.nan, _horner(self.coefficients, x).exp())


def _horner(coefficients: Sequence[float] | Sequence[Tensor], x: Tensor) -> Tensor:
    """Return Σ_k coefficients_k x^k."""
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total = (total + coefficient) * x
    return total + coefficients[0]


class _Shape(NamedTuple):
    """Functions of the members' degrees of freedom, computed once for all steps.

    No tensor is a view of another one, because loops in traced programs reject views.
    """

    inverse: Tensor  # 1/n
    exponent: Tensor  # −n/2
    polynomial: Tensor  # coefficients of the powers of x, along the first dimension
    lead: Tensor  # κ/(n + 1)
    peak: Tensor  # the density at zero
    reach: Tensor  # r/τ


def _table() -> list[list[float]]:
    """Return the coefficients of the powers of 8/m − 1, in columns.

    The rows are the coefficients of A, by powers of 2·centre/(r + centre) − 1, and the last is κ√(2π/m).
    """
    r, m = student_tail.grid(_POINTS, _CENTRE, _MIN_M)
    unit, integral, _ = student_tail.integrate(r, m)
    gammas = np.array([[math.exp(math.lgamma((each + 1) / 2) - math.lgamma(each / 2)) for each in m[0]]])
    values = gammas / math.sqrt(math.pi) * (1 + 2 * r) * unit * integral
    rows = np.concatenate([student_tail.powers_from_values(values), gammas * np.sqrt(2 / m)])
    table: list[list[float]] = student_tail.powers_from_values(rows.T).T.tolist()
    return table


_TABLE = _table()


def _shape_of(df: Tensor) -> _Shape:
    m = df + 2
    x = 2 * _MIN_M / m - 1
    table = torch.tensor(_TABLE[:-1], dtype=df.dtype, device=df.device).view(*_POINTS, *[1] * df.ndim)
    polynomial = _horner(table.unbind(1), x)
    lead = _horner(_TABLE[-1], x) * torch.sqrt(m / (2 * math.pi)) / (df + 1)
    return _Shape(1 / df, -0.5 * df, polynomial, lead, lead * df.sqrt(), torch.sqrt(0.5 * m))


def _tail_and_density(z: Tensor, shape: _Shape) -> tuple[Tensor, Tensor]:
    """Return P(T > z) and the density of the standard Student t at z."""
    size = z.abs().clamp(max=_MAX_DISTANCE)
    square = size * (size * shape.inverse)
    v = 1 / (1 + square)
    cosine = v.sqrt()
    tau = square.sqrt() * cosine
    r = shape.reach * tau
    body = torch.exp(shape.exponent * torch.log1p(square))
    smooth = _horner(shape.polynomial.unbind(0), 2 * _CENTRE / (r + _CENTRE) - 1)
    tail = body * (shape.lead * tau + v * smooth / (1 + 2 * r))
    return torch.where(z < 0, 1 - tail, tail), body * cosine * shape.peak


def mixture_ends(
    df: Tensor, loc: Tensor, scale: Tensor, quantile: Tensor, q: float, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the points with the probability q below and above them, of a mixture of Student t members.

    Their error is at most 1e-5 of the mixture's width or of their size. Where members are so far apart that the tail is
    flat between them at the level q, the result is a point at which the tail is q to 1e-6.

    Args:
        df, loc, scale: parameters of the members, (members, …), df ≥ 2; normal members have `NORMAL_DF`.
        quantile: the point of each standard member with the probability q above it, (members, …).
        q: the probability of either tail, 0 < q < ½.
        weights: how much each member counts, (members, 1, …), of sum 1; None: all count the same.
    """

    def mean(x: Tensor, dim: int) -> Tensor:
        return x.mean(dim) if weights is None else (weights * x).sum(dim)

    centre = mean(loc, 0)  # a location common to all members would only cost digits
    around = loc - centre
    around = torch.stack([-around, around])  # the lower tail is the upper one of the mirrored mixture
    ends = around + scale * quantile
    left, right, shape, rate = ends.amin(1), ends.amax(1), _shape_of(df), 1 / scale
    close = _TOLERANCE * mean(scale, 0)

    def is_open(count: Tensor, _x: Tensor, _left: Tensor, _right: Tensor, step: Tensor) -> Tensor:
        return (count < _STEPS) & (step > close).any()

    def improve(count: Tensor, x: Tensor, left: Tensor, right: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        tails, densities = _tail_and_density((x.unsqueeze(1) - around) * rate, shape)
        tail = mean(tails, 1)
        miss = torch.log(tail / q)  # > 0: the quantile lies to the right
        left, right = torch.where(miss >= 0, x, left), torch.where(miss <= 0, x, right)
        step = miss * tail / mean(densities * rate, 1)
        # Newton's step where it stays in the bracket and is less than half the last one, else half the bracket
        quick = (step.abs() < 0.5 * before) | (miss.abs() < _TRUSTED_DISTANCE)
        new = torch.where(quick & (x + step >= left) & (x + step <= right), x + step, 0.5 * (left + right))
        return count + 1, new, left, right, (new - x).abs()

    state: tuple[Tensor, ...] = (
        torch.zeros((), dtype=torch.int64, device=loc.device),
        mean(ends, 1),
        left,
        right,
        right - left,
    )
    state = _loop(is_open, improve, state)
    return centre - state[1][0], centre + state[1][1]


def _loop(is_open: Callable[..., Tensor], improve: Callable[..., Any], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the state after as many rounds as are needed; in a program that is traced, the loop is one operation."""
    if torch.compiler.is_compiling():
        found: tuple[Tensor, ...] = torch.while_loop(is_open, improve, state)
        return found
    while bool(is_open(*state)):
        state = improve(*state)
    return state
