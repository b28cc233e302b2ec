r"""Equal-weight mixtures of Student t or normal members: the mean distance of two draws, and the entropy.

The arguments ``df`` (None for normal members), ``loc`` and ``scale`` have the shape (members, rows) and should be
float64. Results have the shape (rows,).

For normal members the mean distance has a closed form. Everything else is integrated numerically, row by row: the real
line is cut into panels with eight Gauss–Legendre nodes each. Every member limits the length of a panel, and the
shortest limit counts: two scales in the body of a normal member, a threefold growth of the distance along a heavy tail,
no limit where the member has no mass left. So a narrow member is resolved beside or inside a broad one, wherever it
lies, and eight overlapping members need hardly more panels than one.

The panels depend on the parameters but are held fixed in differentiation, which is exact up to the error of the
quadrature.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from evidentia.formulas import gaussian
from evidentia.formulas.special import LOG_2PI, rho_excess

__all__ = ["entropy", "half_spread"]

_TAIL = 1e-9  # mass of a member that lies beyond its outermost panel, on either side
_NORMAL_REACH = 6.0  # the normal quantile of that mass
_BODY_STEP = 2.0  # length of a panel in the body of a member, in units of its scale
_TAIL_STEP = math.log(3)  # logarithm of the growth of the distance within a panel along a heavy tail
_DENSITIES_AT_ONCE = 1 << 18  # arrays of this size stay in the cache of a CPU
_ROWS_AT_ONCE = 1 << 13  # rows that are divided into panels together


def _panel_rule(count: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Return nodes and weights on [0, 1], and the matrix that integrates the interpolant from 0 to each node."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    degrees = np.eye(count)
    values = np.polynomial.legendre.legvander(nodes, count - 1)
    sums = np.stack([np.polynomial.legendre.legval(nodes, np.polynomial.legendre.legint(d, lbnd=-1)) for d in degrees])
    partial = sums.T @ np.linalg.inv(values) / 2
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist(), partial.tolist()


_NODES, _WEIGHTS, _PARTIAL = _panel_rule(8)


def half_spread(df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return half the mean distance of two independent draws, :math:`\tfrac12\mathbb E|X-X'|`; needs df > 1.

    Normal members have a closed form; otherwise it is :math:`\int F(1-F)`. Beyond the panels, at a distance d from the
    member, a tail has the mass :math:`F \approx p\,d/n` and follows a power of d, so that its integral is known.
    """
    if df is None:
        return _normal_half_spread(loc, scale)

    def integral(edges: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        x, h = _nodes(edges)
        density = _log_densities(x, df, loc, scale).exp().mean(1).view(len(h), len(_NODES), h.shape[1])
        below, below_area = _tail_beyond(edges[0], df, loc, scale)
        above, above_area = _tail_beyond(edges[-1], df, loc, scale)
        inside = h.unsqueeze(1) * torch.einsum("kl,plr->pkr", loc.new_tensor(_PARTIAL), density)
        weights = loc.new_tensor(_WEIGHTS).unsqueeze(1)
        mass = h * (weights * density).sum(1)
        # sum each tail from its own end, so that neither is a small difference of large numbers
        lower = below + (mass.cumsum(0) - mass).unsqueeze(1) + inside
        upper = above + (mass.flip(0).cumsum(0).flip(0).unsqueeze(1) - inside)
        return (h * (weights * lower * upper).sum(1)).sum(0) + below_area + above_area

    return _integrate(integral, df, loc, scale)


def _normal_half_spread(loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`\frac1{2M^2}\sum_{ij}\mathbb E|X_i - X_j|`.

    The difference :math:`X_i - X_j` is normal with deviation :math:`\sqrt{\sigma_i^2 + \sigma_j^2}`.
    """
    members = len(loc)
    total = scale.sum(0) / math.sqrt(math.pi)  # the pairs of a member with itself
    for i in range(1, members):
        sigma = torch.hypot(scale[i], scale[:i])
        total = total + gaussian.mean_absolute(loc[i] - loc[:i], sigma).sum(0)
    return total / members**2


def entropy(df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return the differential entropy, :math:`-\int p\ln p`."""

    def integral(edges: Tensor, df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
        x, h = _nodes(edges)
        log_p = torch.logsumexp(_log_densities(x, df, loc, scale), 1) - math.log(len(loc))
        surprise = (-log_p * log_p.exp()).view(len(h), len(_NODES), h.shape[1])
        return (h * (loc.new_tensor(_WEIGHTS).unsqueeze(1) * surprise).sum(1)).sum(0)

    return _integrate(integral, df, loc, scale)


def _integrate(integral: Callable[..., Tensor], df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
    """Return ``integral(edges, df, loc, scale)`` of all rows, block by block; NaN where a parameter is not finite."""
    if loc.shape[1] == 0:
        return loc.sum(0)
    loc = loc - loc.detach().mean(0)  # a common offset would only cost digits
    blocks = []
    for block in torch.arange(loc.shape[1], device=loc.device).split(_ROWS_AT_ONCE):
        parameters = _select(block, df, loc, scale)
        edges = _edges(*parameters)
        # group rows that need about equally many panels, so that one difficult row does not slow down the others
        counts, order = (edges[1:] > edges[:-1]).sum(0).sort(descending=True)
        parts, panels, start = [], counts.tolist(), 0
        while start < len(panels):
            count = max(1, panels[start])
            rows = order[start : start + max(1, _DENSITIES_AT_ONCE // (count * len(_NODES) * len(loc)))]
            parts.append(integral(edges[: count + 1, rows], *_select(rows, *parameters)))
            start += len(rows)
        blocks.append(torch.cat(parts)[order.argsort()])
    valid = torch.stack([p.isfinite().all(0) for p in (df, loc, scale) if p is not None]).all(0)
    return torch.where(valid, torch.cat(blocks), math.nan)


def _select(rows: Tensor, df: Tensor | None, loc: Tensor, scale: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    return None if df is None else df[:, rows], loc[:, rows], scale[:, rows]


def _nodes(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of all panels, (panels · 8, 1, rows), and the panels' lengths, (panels, rows)."""
    h = edges[1:] - edges[:-1]
    x = edges[:-1].unsqueeze(1) + h.unsqueeze(1) * edges.new_tensor(_NODES).unsqueeze(1)
    return x.flatten(0, 1).unsqueeze(1), h


def _log_densities(x: Tensor, df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the members' log densities at x, (…, members, rows)."""
    if df is None:
        return gaussian.log_prob(x, loc, scale)
    z = (x - loc) / scale
    return (rho_excess(0.5 * df) - 0.5 * LOG_2PI - scale.log()) - 0.5 * (df + 1) * torch.log1p(z * z / df)


def _tail_beyond(edge: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mass beyond the outermost edge, and the integral of that tail."""
    distance = (edge - loc).abs()
    mass = _log_densities(edge, df, loc, scale).exp() * distance / df
    return mass.mean(0), (mass * distance / (df - 1)).mean(0)


@torch.no_grad()
def _edges(df: Tensor | None, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the edges of the panels, (panels + 1, rows); a row with fewer panels than others repeats its last edge."""
    reach = scale * _NORMAL_REACH
    if df is not None:
        root, step = scale * df.sqrt(), (_BODY_STEP * df.rsqrt()).clamp(max=_TAIL_STEP)
        reach = root * torch.sinh(_student_reach(df))
    low, high = loc - reach, loc + reach
    edges, end = [low.amin(0)], high.amax(0)
    for _ in range(100 * (1 + len(loc))):  # only parameters beyond the resolution of float64 need so many
        rows = (edges[-1] < end).nonzero().squeeze(1)
        if len(rows) == 0:
            break
        x, m, first, last = edges[-1][rows], loc[:, rows], low[:, rows], high[:, rows]
        if df is None:
            stop = x + _BODY_STEP * scale[:, rows]
        else:
            stop = m + root[:, rows] * torch.sinh(torch.asinh((x - m) / root[:, rows]) + step[:, rows])
        stop = torch.where(x < last, torch.maximum(stop, first), math.inf).amin(0)
        edges.append(edges[-1].index_copy(0, rows, torch.minimum(stop, end[rows])))
    return torch.stack(edges)


def _student_reach(df: Tensor) -> Tensor:
    """Return a tight upper bound on asinh(t/√n), where t is the quantile with the mass `_TAIL` above it."""
    x = _NORMAL_REACH**2 / (df - 0.5).clamp(min=0.3)
    light = 0.5 * x + torch.log1p((-torch.expm1(-x)).sqrt())  # from the normal quantile, as in `student_t`
    heavy = math.log(2) - math.log(_TAIL) / df  # from the power of the distance that a heavy tail follows
    return torch.minimum(light, heavy)
