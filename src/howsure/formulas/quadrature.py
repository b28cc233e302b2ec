r"""Integrals over mixtures of Student t or normal members, by panels of eight Gauss–Legendre nodes, row by row.

Every member limits the length of a panel, and the shortest limit counts: two scales in the body of a member, a
threefold growth of the distance along a heavy tail, no limit where the member has no mass left. So a narrow member is
resolved next to or inside a broad one, and eight overlapping members need hardly more panels than one.
Beyond its outermost panel, a Student t tail follows a power of the distance, so that its integral is known.

The arguments ``df`` (None for normal members), ``loc``, ``scale`` and ``weights`` (None: all count the same) have the
shape (members, rows) and should be float64. Panels are held fixed in differentiation.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.formulas.special import LOG_2PI, rho_excess
from howsure.threads import one_thread

__all__ = [
    "both_tails",
    "by_panels",
    "density",
    "density_parameters",
    "nodes",
    "reach",
    "select",
    "tail_beyond",
    "total",
    "weighted",
]

BODY_STEP = 2.0  # length of a panel in the body of a member, in units of its scale
TAIL_STEP = math.log(3)  # logarithm of the growth of the distance within a panel along a heavy tail
VALUES_AT_ONCE = {"cpu": (1 << 15) - 1}  # numbers in an array: these stay in the cache, and one thread works on them
VALUES_AT_ONCE_ON_GPU = 1 << 22
PANELS_PER_MEMBER = 300  # at most: only parameters beyond the resolution of float64 reach this limit


def _panel_rule(count: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Return nodes and weights on [0, 1], and the matrix that integrates the interpolant from 0 to each node."""
    points, weights = np.polynomial.legendre.leggauss(count)
    degrees = np.eye(count)
    values = np.polynomial.legendre.legvander(points, count - 1)
    sums = np.stack([np.polynomial.legendre.legval(points, np.polynomial.legendre.legint(d, lbnd=-1)) for d in degrees])
    partial = sums.T @ np.linalg.inv(values) / 2
    return ((points + 1) / 2).tolist(), (weights / 2).tolist(), partial.tolist()


NODES, WEIGHTS, PARTIAL = _panel_rule(8)


def select(rows: Tensor | slice, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Return some rows of each parameter that is not None."""
    return tuple(None if p is None else p[:, rows] for p in parameters)


def nodes(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of all panels, (panels, 8, rows), and the panels' lengths, (panels, rows)."""
    h = edges[1:] - edges[:-1]
    return edges[:-1].unsqueeze(1) + h.unsqueeze(1) * edges.new_tensor(NODES).unsqueeze(1), h


def weighted(values: Tensor) -> Tensor:
    """Return the integral over each panel, per unit of its length, of values at the nodes."""
    return (values.new_tensor(WEIGHTS).unsqueeze(1) * values).sum(1)


def total(h: Tensor, values: Tensor) -> Tensor:
    """Return the integral over all panels of values at the nodes, (rows,)."""
    return (h * weighted(values)).sum(0)


def both_tails(h: Tensor, density: Tensor, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mass on the left and on the right of each node, and all mass, from the density at the nodes.

    Each tail is summed from its own end, so that neither is a small difference of large numbers.

    Args:
        h: lengths of the panels.
        density: at the nodes.
        below, above: mass beyond the first and the last edge.
    """
    inside = h.unsqueeze(1) * torch.einsum("kl,plr->pkr", density.new_tensor(PARTIAL), density)
    mass = h * weighted(density)
    left = below + (mass.cumsum(0) - mass).unsqueeze(1) + inside
    right = above + (mass.flip(0).cumsum(0).flip(0).unsqueeze(1) - inside)
    return left, right, below + above + mass.sum(0)


# Densities ------------------------------------------------------------------------------------------------------------


def density_parameters(df: Tensor | None, loc: Tensor, scale: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Return df, loc, the factor of the distance from loc, and the log density at loc."""
    if df is None:
        return None, loc, 1 / scale, -0.5 * LOG_2PI - scale.log()
    return df, loc, 1 / (scale * df.sqrt()), rho_excess(0.5 * df) - 0.5 * LOG_2PI - scale.log()


def density(
    x: Tensor, df: Tensor | None, loc: Tensor, factor: Tensor, peak: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return the density of the mixture at x, (…, rows), from the parameters of :func:`density_parameters`."""
    found = torch.zeros_like(x)
    for k in range(len(loc)):  # one member after the other, so that temporary tensors stay small
        each = _log_density(x, None if df is None else df[k], loc[k], factor[k], peak[k]).exp()
        found = found + (each if weights is None else weights[k] * each)
    return found / len(loc) if weights is None else found


def _log_density(x: Tensor, df: Tensor | None, loc: Tensor, factor: Tensor, peak: Tensor) -> Tensor:
    u = (x - loc) * factor
    if df is None:
        return peak - 0.5 * u * u
    return torch.addcmul(peak, torch.log1p(u * u), -0.5 * (df + 1))


def tail_beyond(
    edge: Tensor, df: Tensor | None, loc: Tensor, factor: Tensor, peak: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mass beyond the outermost edge, and the integral of that tail; of normal members both are 0."""
    if df is None:
        return torch.zeros_like(edge), torch.zeros_like(edge)
    distance = (edge - loc).abs()
    mass = _log_density(edge, df, loc, factor, peak).exp() * distance / df
    area = mass * distance / (df - 1)
    return (mass.mean(0), area.mean(0)) if weights is None else ((weights * mass).sum(0), (weights * area).sum(0))


def reach(df: Tensor | None, scale: Tensor, tail: tuple[float, float]) -> Tensor:
    """Return a tight upper bound on the distance from the location beyond which a tail of some mass lies.

    Args:
        df, scale: of the members.
        tail: the mass, and the quantile of the standard normal distribution with that mass above it.
    """
    mass, quantile = tail
    if df is None:
        return quantile * scale
    x = quantile**2 / (df - 0.5).clamp(min=0.3)
    light = 0.5 * x + torch.log1p((-torch.expm1(-x)).sqrt())  # from the normal quantile
    heavy = math.log(2) - math.log(mass) / df  # from the power of the distance that a heavy tail follows
    return scale * df.sqrt() * torch.sinh(torch.minimum(light, heavy))


# Panels ---------------------------------------------------------------------------------------------------------------


@one_thread()
def by_panels(
    integral: Callable[[Tensor, Tensor], Tensor],
    df: Tensor | None,
    loc: Tensor,
    scale: Tensor,
    reach: Tensor,
    lower: Tensor,
    upper: Tensor,
    marks: Tensor | None = None,
) -> Tensor:
    """Return ``integral(edges, rows)``, (results, rows), of all rows, block by block.

    Args:
        integral: (edges of the panels of some rows, (panels + 1, rows), and the numbers of these rows) → results.
        df, loc, scale: of the members, (members, rows).
        reach: distance from a member's location within which it limits the length of panels, (members, rows).
        lower, upper: ends of the panels, (rows,).
        marks: further edges, (marks, rows).
    """
    members, rows = loc.shape
    if rows == 0:
        return integral(torch.stack([lower, upper]), torch.arange(0, device=loc.device))
    at_once = VALUES_AT_ONCE.get(loc.device.type, VALUES_AT_ONCE_ON_GPU)
    blocks = []
    for block in torch.arange(rows, device=loc.device).split(max(1, at_once // members)):
        edges = _edges(lower[block], upper[block], *select(block, df, loc, scale, reach, marks))
        # group rows that need about equally many panels, so that one difficult row does not slow down the others
        counts, order = (edges[1:] > edges[:-1]).sum(0).sort(descending=True)
        parts, panels, start = [], counts.tolist(), 0
        while start < len(panels):
            count = max(1, panels[start])
            some = order[start : start + max(1, at_once // (count * len(NODES)))]
            parts.append(integral(edges[: count + 1, some], block[some]))
            start += len(some)
        blocks.append(torch.cat(parts, 1)[:, order.argsort()])
    return torch.cat(blocks, 1)


@torch.no_grad()
def _edges(
    lower: Tensor,
    upper: Tensor,
    df: Tensor | None,
    loc: Tensor,
    scale: Tensor,
    reach: Tensor,
    marks: Tensor | None,
) -> Tensor:
    """Return the edges of the panels, (panels + 1, rows); a row with fewer panels than others repeats its last edge."""
    root = scale if df is None else scale * df.sqrt()
    step = None if df is None else (BODY_STEP * df.rsqrt()).clamp(max=TAIL_STEP)
    first, last, edges = loc - reach, loc + reach, [lower]
    rows = (lower < upper).nonzero().squeeze(1)  # without rows of NaN
    for _ in range(PANELS_PER_MEMBER * (1 + len(loc))):
        if len(rows) == 0:
            break
        x, m, width = edges[-1][rows], loc[:, rows], root[:, rows]
        if step is None:
            stop = x + BODY_STEP * width
        else:
            stop = m + width * torch.sinh(torch.asinh((x - m) / width) + step[:, rows])
        stop = torch.where(x < last[:, rows], torch.maximum(stop, first[:, rows]), math.inf).amin(0)
        if marks is not None:
            stop = torch.minimum(stop, torch.where(marks[:, rows] > x, marks[:, rows], math.inf).amin(0))
        stop = torch.minimum(stop, upper[rows])
        edges.append(edges[-1].index_copy(0, rows, stop))
        rows = rows[(stop < upper[rows]) & (stop > x)]
    return torch.stack(edges) if len(edges) > 1 else torch.stack([lower, lower])
