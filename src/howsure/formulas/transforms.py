r"""Targets that cannot be negative: the softplus of a Student t or normal variable, its moments and its CRPS.

A network predicts the distribution of a variable Z on the whole real line, and the target is

.. math:: Y = \max(0,\; g(Z) - \varepsilon), \qquad g(z) = s\,\ln(1 + e^{z/s}).

g is exponential far below zero and the identity far above it, so that Y has the moments that Z has. The exponential
function in its place would leave a Student t without any: :math:`e^T` has no mean. The offset :math:`\varepsilon` is
positive where the targets have zeros, and Y then has an atom at 0.

The inverse and its derivative share one logarithm, which is exact at both ends. With
:math:`\ell = \ln(1 - e^{-v/s})`, where :math:`v = y + \varepsilon`:

.. math:: z = g^{-1}(v) = v + s\,\ell, \qquad \ln g'(z) = \ell.

Moments and CRPS are integrated by :mod:`howsure.formulas.quadrature`, with panels that are short for every member and
for g (edges between −40 s and 40 s, at :math:`g^{-1}(\varepsilon)` and at the target). Beyond the panels g is the
identity, and the rest has a closed form. ``df`` is None for normal members. Everything should be float64.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from howsure.formulas import mixture, quadrature
from howsure.formulas.quadrature import select

__all__ = ["crps", "inverse_softplus", "log_slope", "moments", "softplus"]

_LINEAR = 40.0  # where the softplus equals its argument to the last digit of float64, in units of s
_MARKS = (-_LINEAR, -22.0, -10.0, -4.0, 0.0, 4.0, 10.0, 22.0, _LINEAR)  # edges of panels that are short for g
# masses of a member beyond its panels, with the normal quantiles that have them
_BARELY = (1e-40, 13.32)  # of moments, where a tail counts until g is the identity or y is 0
_LITTLE = (1e-16, 8.23)
_SMALL = (1e-8, 5.62)  # of a CRPS, where tails count by their squares


def softplus(z: Tensor, s: Tensor | float = 1.0) -> Tensor:
    r"""Return :math:`s\ln(1 + e^{z/s})`; torch's own is the identity from z = 20 s on, an error of 2e-9 s."""
    return z.clamp(min=0) + s * torch.log1p(torch.exp(-z.abs() / s))


def log_slope(v: Tensor, s: Tensor | float = 1.0) -> Tensor:
    r"""Return :math:`\ln(1 - e^{-v/s})`, the log derivative of the softplus where its value is v; −∞ for v ≤ 0."""
    x = (v / s).clamp(min=0)
    return torch.where(x > 0.7, torch.log1p(-torch.exp(-x)), torch.log(-torch.expm1(-x)))


def inverse_softplus(v: Tensor, s: Tensor | float = 1.0) -> Tensor:
    """Return the number whose softplus is v; −∞ for v ≤ 0."""
    return v.clamp(min=0) + s * log_slope(v, s)


def moments(
    df: Tensor | None, df_minus_two: Tensor | None, loc: Tensor, scale: Tensor, s: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return mean and variance of max(0, g(Z) − ε), and the mean of g(Z), each of the shape of ``loc``, (elements,).

    The integrands use the distance of y from its value at the location of Z, so that a variance that is small compared
    with the mean has all its digits. As for Z, the variance is infinite for df ≤ 2 and all is NaN for df ≤ 1.

    Args:
        df, df_minus_two, loc, scale: parameters of Z. The first two are None for a normal Z.
        s: the unit of the softplus, > 0.
        shift: ε, ≥ 0.
    """
    loc, scale, shift = loc / s, scale / s, shift / s  # from here on s = 1
    centre = torch.maximum(softplus(loc), shift)
    zero = inverse_softplus(shift)
    alone = (None if df is None else df.unsqueeze(0), loc.unsqueeze(0), scale.unsqueeze(0))
    little, barely = (quadrature.reach(df, scale, tail) for tail in (_LITTLE, _BARELY))
    # as far as y is neither 0 nor z, unless there is no mass left
    upper = torch.minimum((loc + little).clamp(min=_LINEAR), loc + barely)
    lower = torch.maximum(torch.minimum(loc - little, zero.clamp(min=-_LINEAR)), loc - barely)
    marks = torch.cat([loc.new_tensor(_MARKS).unsqueeze(1).expand(-1, len(loc)), zero.unsqueeze(0)])
    prepared = quadrature.density_parameters(*alone)

    def integrals(edges: Tensor, rows: Tensor) -> Tensor:
        x, h = quadrature.nodes(edges)
        own, m = select(rows, *prepared), centre[rows]
        weight = quadrature.density(x, *own) * (h.unsqueeze(1) * h.new_tensor(quadrature.WEIGHTS).unsqueeze(1))
        free = softplus(x) - m
        part = weight * free
        sums = [part.sum((0, 1))] * 2
        if bool((shift[rows] > 0).any()):
            free = torch.maximum(free, shift[rows] - m)
            part = weight * free
            sums[1] = part.sum((0, 1))
        sums.append((part * free).sum((0, 1)))
        if df is None or df_minus_two is None:
            return torch.stack(sums)  # a normal tail of this mass is nothing
        shape = df[rows], df_minus_two[rows], loc[rows], scale[rows]
        tails = _moment_tails(lambda x: quadrature.density(x, *own), *shape, shift[rows], m, edges[0], edges[-1])
        return torch.stack([a + b for a, b in zip(sums, tails, strict=True)])

    free, first, second = quadrature.by_panels(integrals, *alone, barely.unsqueeze(0), lower, upper, marks)
    variance = (second - first.square()).clamp(min=0)
    if df is not None and df_minus_two is not None:
        variance = torch.where(df_minus_two > 0, variance, math.inf)
        free, first, variance = (torch.where(df > 1, t, math.nan) for t in (free, first, variance))
    return (centre - shift + first) * s, variance * s.square(), (centre + free) * s


def _moment_tails(
    density: Callable[[Tensor], Tensor],
    df: Tensor,
    excess: Tensor,
    loc: Tensor,
    scale: Tensor,
    shift: Tensor,
    centre: Tensor,
    start: Tensor,
    end: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the contributions of a Student t's tails beyond the panels to the three integrals of `moments`.

    Below, y is 0 or ε less than 0. Above, it is z, and the partial moments of a standard t beyond a are
    :math:`M_1 = \frac{n}{n-1}(1+\frac{a^2}{n})f(a)` and :math:`M_2 = \frac{n}{n-2}(S + a(1+\frac{a^2}{n})f(a))`.
    """

    def tail(edge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = (edge - loc).abs() / scale
        standard = density(edge) * scale
        return a, standard, standard * a / df

    below = tail(start)[2]
    a, standard, above = tail(end)
    first = df / (df - 1) * (1 + a * a / df) * standard
    second = torch.where(excess > 0, df / excess * (above + a * (1 + a * a / df) * standard), math.inf)
    b = loc - centre
    lowest = torch.where(shift > 0, shift - centre, -centre)
    free = -centre * below + b * above + scale * first
    clipped = lowest * below + b * above + scale * first
    square = lowest.square() * below + b * b * above + 2 * b * scale * first + scale.square() * second
    return free, clipped, square


def crps(
    y: Tensor,
    df: Tensor | None,
    loc: Tensor,
    scale: Tensor,
    s: Tensor,
    shift: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Return the CRPS of a mixture, :math:`\int_0^\infty (F_Y(t) - 1[t \ge y])^2\,dt`, (rows,).

    In z it is :math:`\int (F(z) - 1[z \ge z_y])^2 g'(z)\,dz` from :math:`g^{-1}(\varepsilon)` on. F is the sum of the
    densities at the nodes, from the nearer end. A target below 0 adds its distance from 0.

    Args:
        y: targets, (rows,).
        df, loc, scale: of the members, (members, rows); df is None for normal members, and otherwise > 1.
        s, shift: as in `moments`, (rows,).
        weights: of the members, (members, rows), ≥ 0 and of sum 1; None: all count the same.
    """
    df, loc, scale = mixture.without_idle(df, loc, scale, weights)
    y, loc, scale, shift = y / s, loc / s, scale / s, shift / s  # from here on s = 1
    target = inverse_softplus(y.clamp(min=0) + shift)
    zero = inverse_softplus(shift)
    distance = quadrature.reach(df, scale, _SMALL)
    lower, upper = (loc - distance).amin(0), (loc + distance).amax(0)
    marks = torch.stack([*(torch.full_like(y, mark) for mark in _MARKS), zero, target])
    prepared = (*quadrature.density_parameters(df, loc, scale), weights)

    def integral(edges: Tensor, rows: Tensor) -> Tensor:
        x, h = quadrature.nodes(edges)
        own = select(rows, *prepared)
        below, above = (quadrature.tail_beyond(edge, *own)[0] for edge in (edges[0], edges[-1]))
        left, right, mass = quadrature.both_tails(h, quadrature.density(x, *own), below, above)
        middle = 0.5 * (edges[1:] + edges[:-1])
        wrong = torch.where((middle < target[rows]).unsqueeze(1), left, right) / mass
        counts = (middle > zero[rows]).to(h.dtype)
        return quadrature.total(h * counts, wrong.square() * torch.sigmoid(x)).unsqueeze(0)

    (found,) = quadrature.by_panels(integral, df, loc, scale, distance, lower, upper, marks)
    at_zero, at_target = softplus(zero), softplus(target)
    beyond = at_target - torch.maximum(softplus(upper), at_zero)  # the target lies above all panels, or below
    short = torch.maximum(softplus(lower), at_zero) - at_target
    valid = loc.isfinite().all(0) & scale.isfinite().all(0) & y.isfinite()
    if df is not None:
        valid = valid & (df > 1).all(0)
    total = found + beyond.clamp(min=0) + short.clamp(min=0) + (-y).clamp(min=0)
    return torch.where(valid, total, math.nan) * s
