r"""Targets that cannot be negative: the softplus of a Student t or normal variable, its moments and its CRPS.

A network answers for a variable Z on the whole real line, and the target is

.. math:: Y = \max(0,\; g(Z) - \varepsilon), \qquad g(z) = s\,\ln(1 + e^{z/s}).

g is exponential far below zero and the identity far above it, so that Y has the moments that Z has. The exponential
function in its place would leave a Student t without any: :math:`e^T` has no mean. The offset :math:`\varepsilon` is
positive where the targets have zeros, and Y then has an atom at 0.

The inverse and its derivative share one logarithm, which is exact at both ends. With
:math:`\ell = \ln(1 - e^{-v/s})`, where :math:`v = y + \varepsilon`:

.. math:: z = g^{-1}(v) = v + s\,\ell, \qquad \ln g'(z) = \ell.

Moments and CRPS are integrated numerically, by panels of eight Gauss–Legendre nodes. A panel is short for every member
(two scales in the body, a threefold growth of the distance along a heavy tail) and for g (edges between −40 s and 40 s,
at :math:`g^{-1}(\varepsilon)` and at the target). Beyond the panels g is the identity, and what is left has a closed
form. ``df`` is None for normal members. Everything should be float64.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from howsure.formulas import mixture
from howsure.formulas.special import LOG_2PI, rho_excess

__all__ = ["crps", "inverse_softplus", "log_slope", "moments", "softplus"]

_LINEAR = 40.0  # where the softplus equals its argument to the last digit of float64, in units of s
_MARKS = (-_LINEAR, -22.0, -10.0, -4.0, 0.0, 4.0, 10.0, 22.0, _LINEAR)  # edges of panels that are short for g
_BODY_STEP = 2.0  # length of a panel in the body of a member, in units of its scale
_TAIL_STEP = math.log(3)  # logarithm of the growth of the distance within a panel along a heavy tail
# masses of a member beyond its panels, with the normal quantiles that have them
_BARELY = (1e-40, 13.32)  # of moments, where a tail counts until g is the identity or y is 0
_LITTLE = (1e-16, 8.23)
_SMALL = (1e-8, 5.62)  # of a CRPS, where tails count by their squares
_VALUES_AT_ONCE = 1 << 18  # arrays of this size stay in the cache of a CPU
_ROWS_AT_ONCE = 1 << 14  # rows that are divided into panels together
_STEPS = 600  # panels of a row at most: only parameters beyond the resolution of float64 need so many


def _panel_rule(count: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Return nodes and weights on [0, 1], and the matrix that integrates the interpolant from 0 to each node."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    values = np.polynomial.legendre.legvander(nodes, count - 1)
    sums = [np.polynomial.legendre.legval(nodes, np.polynomial.legendre.legint(d, lbnd=-1)) for d in np.eye(count)]
    partial = np.stack(sums).T @ np.linalg.inv(values) / 2
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist(), partial.tolist()


_NODES, _WEIGHTS, _PARTIAL = _panel_rule(8)


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

    The integrals are those of the distance of y from its value at the location of Z, so that a variance that is small
    beside the mean has all its digits. Like those of Z, the variance is infinite for df ≤ 2 and all is NaN for df ≤ 1.

    Args:
        df, df_minus_two, loc, scale: of Z; the first two are None for a normal Z.
        s: the unit of the softplus, > 0.
        shift: ε, ≥ 0.
    """
    loc, scale, shift = loc / s, scale / s, shift / s  # from here on s = 1
    centre = torch.maximum(softplus(loc), shift)
    zero = inverse_softplus(shift)
    little, barely = _reach(df, scale, _LITTLE), _reach(df, scale, _BARELY)
    # as far as y is neither 0 nor z, unless there is no mass left
    upper = torch.minimum((loc + little).clamp(min=_LINEAR), loc + barely)
    lower = torch.maximum(torch.minimum(loc - little, zero.clamp(min=-_LINEAR)), loc - barely)
    marks = torch.cat([loc.new_tensor(_MARKS).unsqueeze(1).expand(-1, len(loc)), zero.unsqueeze(0)])

    def integrals(edges: Tensor, rows: Tensor) -> Tensor:
        x, h = _nodes(edges)
        m, start, end = centre[rows], edges[0], edges[-1]
        weight = _per_panel(_log_density(x, _take(df, rows), loc[rows], scale[rows]).exp(), h)
        free = _per_panel(softplus(x) - m, h)
        weight = weight * (h.unsqueeze(1) * h.new_tensor(_WEIGHTS).unsqueeze(1))
        part = weight * free
        sums = [part.sum((0, 1))] * 2
        if bool((shift[rows] > 0).any()):
            free = torch.maximum(free, shift[rows] - m)
            part = weight * free
            sums[1] = part.sum((0, 1))
        sums.append((part * free).sum((0, 1)))
        tails = _moment_tails(df, df_minus_two, loc, scale, shift, centre, rows, start, end)
        return torch.stack([a + b for a, b in zip(sums, tails, strict=True)])

    alone = (None if df is None else df.unsqueeze(0), loc.unsqueeze(0), scale.unsqueeze(0), barely.unsqueeze(0))
    free, first, second = _by_panels(integrals, *alone, lower, upper, marks)
    variance = (second - first.square()).clamp(min=0)
    if df is not None and df_minus_two is not None:
        variance = torch.where(df_minus_two > 0, variance, math.inf)
        free, first, variance = (torch.where(df > 1, t, math.nan) for t in (free, first, variance))
    return (centre - shift + first) * s, variance * s.square(), (centre + free) * s


def _moment_tails(
    df: Tensor | None,
    df_minus_two: Tensor | None,
    loc: Tensor,
    scale: Tensor,
    shift: Tensor,
    centre: Tensor,
    rows: Tensor,
    start: Tensor,
    end: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return what the tails beyond the panels add to the three integrals of `moments`.

    Below, y is 0 or ε less than 0. Above, it is z, and the partial moments of a standard t beyond a are
    :math:`M_1 = \frac{n}{n-1}(1+\frac{a^2}{n})f(a)` and :math:`M_2 = \frac{n}{n-2}(S + a(1+\frac{a^2}{n})f(a))`.
    """
    none = torch.zeros_like(start)
    if df is None or df_minus_two is None:
        return none, none, none  # a normal tail of this mass is nothing
    n, m, sigma, mid, eps = df[rows], loc[rows], scale[rows], centre[rows], shift[rows]

    def tail(edge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = (edge - m).abs() / sigma
        density = _log_density(edge, n, m, sigma).exp() * sigma
        return a, density, density * a / n

    below = tail(start)[2]
    a, density, above = tail(end)
    first = n / (n - 1) * (1 + a * a / n) * density
    excess = df_minus_two[rows]
    second = torch.where(excess > 0, n / excess * (above + a * (1 + a * a / n) * density), math.inf)
    b = m - mid
    lowest = torch.where(eps > 0, eps - mid, -mid)
    free = -mid * below + b * above + sigma * first
    clipped = lowest * below + b * above + sigma * first
    square = lowest.square() * below + b * b * above + 2 * b * sigma * first + sigma.square() * second
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
    reach = _reach(df, scale, _SMALL)
    lower, upper = (loc - reach).amin(0), (loc + reach).amax(0)
    marks = torch.stack([*(torch.full_like(y, mark) for mark in _MARKS), zero, target])

    def integral(edges: Tensor, rows: Tensor) -> Tensor:
        x, h = _nodes(edges)
        n, m, sigma, w = _take(df, rows), loc[:, rows], scale[:, rows], _take(weights, rows)
        density = _log_density(x.unsqueeze(1), n, m, sigma).exp()
        density = _per_panel(density.mean(1) if w is None else (w * density).sum(1), h)
        below = _mass_beyond(edges[0], n, m, sigma, w)
        above = _mass_beyond(edges[-1], n, m, sigma, w)
        inside = h.unsqueeze(1) * torch.einsum("kl,plr->pkr", loc.new_tensor(_PARTIAL), density)
        mass = h * _weighted(density)
        # sum each tail from its own end, so that neither is a small difference of large numbers
        left = below + (mass.cumsum(0) - mass).unsqueeze(1) + inside
        right = above + (mass.flip(0).cumsum(0).flip(0).unsqueeze(1) - inside)
        middle = 0.5 * (edges[1:] + edges[:-1])
        wrong = torch.where((middle < target[rows]).unsqueeze(1), left, right) / (below + above + mass.sum(0))
        slope = _per_panel(torch.sigmoid(x), h)
        counts = (middle > zero[rows]).to(h.dtype)
        return _total(h * counts, wrong.square() * slope).unsqueeze(0)

    (found,) = _by_panels(integral, df, loc, scale, reach, lower, upper, marks)
    at_zero, at_target = softplus(zero), softplus(target)
    beyond = at_target - torch.maximum(softplus(upper), at_zero)  # the target lies above all panels, or below
    short = torch.maximum(softplus(lower), at_zero) - at_target
    valid = loc.isfinite().all(0) & scale.isfinite().all(0) & y.isfinite()
    if df is not None:
        valid = valid & (df > 1).all(0)
    total = found + beyond.clamp(min=0) + short.clamp(min=0) + (-y).clamp(min=0)
    return torch.where(valid, total, math.nan) * s


# Panels ---------------------------------------------------------------------------------------------------------------


def _by_panels(
    integral: Callable[[Tensor, Tensor], Tensor],
    df: Tensor | None,
    loc: Tensor,
    scale: Tensor,
    reach: Tensor,
    lower: Tensor,
    upper: Tensor,
    marks: Tensor,
) -> Tensor:
    """Return ``integral(edges, rows)``, (results, rows), of all rows, block by block.

    Args:
        integral: (edges of the panels of some rows, these rows) → results.
        df, loc, scale: of the members, (members, rows).
        reach: distance from a member's location within which it limits the length of panels, (members, rows).
        lower, upper: ends of the panels, (rows,).
        marks: further edges, (marks, rows).
    """
    members, rows = loc.shape
    if rows == 0:
        return integral(torch.stack([lower, upper]), torch.arange(0, device=loc.device))
    blocks = []
    for block in torch.arange(rows, device=loc.device).split(_ROWS_AT_ONCE):
        members_of = (_take(df, block), loc[:, block], scale[:, block], reach[:, block])
        edges = _edges(*members_of, lower[block], upper[block], marks[:, block])
        # group rows that need about equally many panels, so that one difficult row does not slow down the others
        counts, order = (edges[1:] > edges[:-1]).sum(0).sort(descending=True)
        parts, panels, start = [], counts.tolist(), 0
        while start < len(panels):
            count = max(1, panels[start])
            some = order[start : start + max(1, _VALUES_AT_ONCE // (count * len(_NODES) * members))]
            parts.append(integral(edges[: count + 1, some], block[some]))
            start += len(some)
        blocks.append(torch.cat(parts, 1)[:, order.argsort()])
    return torch.cat(blocks, 1)


@torch.no_grad()
def _edges(
    df: Tensor | None, loc: Tensor, scale: Tensor, reach: Tensor, lower: Tensor, upper: Tensor, marks: Tensor
) -> Tensor:
    """Return the edges of the panels, (panels + 1, rows); a row with fewer panels than others repeats its last edge."""
    root = scale if df is None else scale * df.sqrt()
    step = None if df is None else (_BODY_STEP * df.rsqrt()).clamp(max=_TAIL_STEP)
    edges = [lower]
    rows = (lower < upper).nonzero().squeeze(1)  # without those of NaN
    loc, root, reach, marks = (t[:, rows] for t in (loc, root, reach, marks))
    upper, step = upper[rows], None if step is None else step[:, rows]
    for _ in range(_STEPS):
        if len(rows) == 0:
            break
        x = edges[-1][rows]
        u = (x - loc) / root
        stop = loc + root * (u + _BODY_STEP if step is None else torch.sinh(torch.asinh(u) + step))
        stop = torch.where(x < loc + reach, torch.maximum(stop, loc - reach), math.inf)  # no limit beyond its mass
        ahead = torch.where(marks > x, marks, math.inf).amin(0)
        stop = torch.minimum(torch.minimum(stop.amin(0), ahead), upper)
        edges.append(edges[-1].index_copy(0, rows, stop))
        open_rows = ((stop < upper) & (stop > x)).nonzero().squeeze(1)
        rows, upper = rows[open_rows], upper[open_rows]
        loc, root, reach, marks = (t[:, open_rows] for t in (loc, root, reach, marks))
        step = None if step is None else step[:, open_rows]
    return torch.stack(edges) if len(edges) > 1 else torch.stack([lower, lower])


def _reach(df: Tensor | None, scale: Tensor, tail: tuple[float, float]) -> Tensor:
    """Return a tight upper bound on the distance from the location beyond which a tail of this mass lies."""
    mass, quantile = tail
    if df is None:
        return quantile * scale
    x = quantile**2 / (df - 0.5).clamp(min=0.3)
    light = 0.5 * x + torch.log1p((-torch.expm1(-x)).sqrt())  # from the normal quantile
    heavy = math.log(2) - math.log(mass) / df  # from the power of the distance that a heavy tail follows
    return scale * df.sqrt() * torch.sinh(torch.minimum(light, heavy))


def _nodes(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of all panels, (panels · 8, rows), and the panels' lengths, (panels, rows)."""
    h = edges[1:] - edges[:-1]
    x = edges[:-1].unsqueeze(1) + h.unsqueeze(1) * edges.new_tensor(_NODES).unsqueeze(1)
    return x.flatten(0, 1), h


def _per_panel(values: Tensor, h: Tensor) -> Tensor:
    """Return values at the nodes as (panels, 8, rows)."""
    return values.view(len(h), len(_NODES), h.shape[1])


def _weighted(values: Tensor) -> Tensor:
    return (values.new_tensor(_WEIGHTS).unsqueeze(1) * values).sum(1)


def _total(h: Tensor, values: Tensor) -> Tensor:
    """Return the integral over all panels of values at the nodes, (panels, 8, rows)."""
    return (h * _weighted(values)).sum(0)


def _log_density(x: Tensor, df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
    z = (x - loc) / scale
    if df is None:
        return -0.5 * z * z - (scale.log() + 0.5 * LOG_2PI)
    return (rho_excess(0.5 * df) - 0.5 * LOG_2PI - scale.log()) - 0.5 * (df + 1) * torch.log1p(z * z / df)


def _mass_beyond(edge: Tensor, df: Tensor | None, loc: Tensor, scale: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mass of the mixture beyond its outermost edge, which follows a power of the distance."""
    if df is None:
        return torch.zeros_like(edge)
    mass = _log_density(edge, df, loc, scale).exp() * (edge - loc).abs() / df
    return mass.mean(0) if weights is None else (weights * mass).sum(0)


def _take(parameter: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if parameter is None else parameter[..., rows]
