r"""Mixtures of Student t or normal members: quantiles, the mean distance of two draws, and the entropy.

The arguments ``df`` (None for normal members), ``loc``, ``scale`` and ``weights`` have the shape (members, rows) and
should be float64. Results have the shape (rows,). Weights are at least 0 and sum to 1 over the members; without them
(None) all members count the same. A member of weight 0 is left out, whatever its parameters are, NaN included.

Quantiles are found by Halley's method within a bracket. For normal members the mean distance has a closed form; else
it and the entropy are integrated numerically, row by row: the real
line is cut into panels with eight Gauss–Legendre nodes each. Every member limits the length of a panel, and the
shortest limit counts: two scales in the body of a normal member, a threefold growth of the distance along a heavy tail,
no limit where the member has no mass left. So a narrow member is resolved beside or inside a broad one, wherever it
lies, and eight overlapping members need hardly more panels than one.

The panels depend on the parameters but are held fixed in differentiation, which is exact up to the error of the
quadrature.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.formulas import normal, student_tail
from howsure.formulas.special import LOG_2PI, rho_excess
from howsure.threads import one_thread
from howsure.tracing import is_traced

__all__ = ["entropy", "half_spread", "log_mean_exp", "mean", "quantile", "spread_of_means", "steps", "without_idle"]

_TAIL = 1e-9  # mass of a member that lies beyond its outermost panel, on either side
_NORMAL_REACH = 6.0  # the normal quantile of that mass
_BODY_STEP = 2.0  # length of a panel in the body of a member, in units of its scale
_TAIL_STEP = math.log(3)  # logarithm of the growth of the distance within a panel along a heavy tail
_AT_ONCE = {"cpu": (1 << 15) - 1}  # numbers in an array: these stay in the cache, and one thread works on them
_ELSEWHERE = 1 << 22  # the same on a GPU
_FEW = 64  # rows from which on it pays to search for the rest alone
_CLOSE = 1e-4  # relative distance of a tail from its level from which on Halley's steps are not doubted
_LARGEST_EXPONENT = 80.0  # of what is added with weight 0: its exponential is finite, also in float32


def _panel_rule(count: int) -> tuple[list[float], list[float], list[list[float]]]:
    """Return nodes and weights on [0, 1], and the matrix that integrates the interpolant from 0 to each node."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    degrees = np.eye(count)
    values = np.polynomial.legendre.legvander(nodes, count - 1)
    sums = np.stack([np.polynomial.legendre.legval(nodes, np.polynomial.legendre.legint(d, lbnd=-1)) for d in degrees])
    partial = sums.T @ np.linalg.inv(values) / 2
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist(), partial.tolist()


_NODES, _WEIGHTS, _PARTIAL = _panel_rule(8)


def mean(x: Tensor, weights: Tensor | None = None, dim: int = 0) -> Tensor:
    r"""Return :math:`\sum_k w_k x_k` along a dimension, in the dtype of x; without weights, the mean.

    Where a weight is 0, an x that is not finite does not count. Derivatives with respect to the weights are the x.

    Args:
        x: values of the members.
        weights: a tensor that broadcasts with x.
        dim: the dimension of the members.
    """
    if weights is None:
        return x.mean(dim)
    return (weights * _counted(x, weights, 0.0)).sum(dim).to(x.dtype)


def spread_of_means(means: Tensor, weights: Tensor | None = None, dim: int = 0) -> Tensor:
    r"""Return the variance of members' means, :math:`\sum_k w_k (x_k - \sum_l w_l x_l)^2`; arguments as in `mean`."""
    if weights is None:
        return (means - means.mean(dim, keepdim=True)).square().mean(dim)  # torch.var warns where there are no rows
    counted = _counted(means, weights, 0.0).double()
    distance = counted - (weights * counted).sum(dim, keepdim=True)
    return (weights * _counted(distance.square(), weights, 0.0)).sum(dim).to(means.dtype)


def log_mean_exp(x: Tensor, weights: Tensor | None = None, dim: int = 0) -> Tensor:
    r"""Return :math:`\ln\sum_k w_k e^{x_k}` along a dimension, as of log densities; arguments as in `mean`.

    The logarithms of weights do not occur, so that a weight of 0 has a derivative too.
    """
    if weights is None:
        return torch.logsumexp(x, dim) - math.log(x.shape[dim])
    counted = _counted(x, weights, -math.inf).double()
    largest = torch.where(weights > 0, counted, -math.inf).detach().amax(dim, keepdim=True)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    total = (weights * (counted - largest).clamp(max=_LARGEST_EXPONENT).exp()).sum(dim)
    nothing = total == 0
    logarithm = torch.where(nothing, 1.0, total).log()  # so that the derivative of nothing is 0 and not NaN
    return (torch.where(nothing, -math.inf, logarithm) + largest.squeeze(dim)).to(x.dtype)


def steps(weights: Tensor, dim: int = 0) -> Tensor:
    """Return the sums of the weights up to each member, of which the last is 1: a uniform number chooses a member.

    The member is the number of steps that are at most the uniform number; one of weight 0 is never chosen.
    """
    total = weights.double().cumsum(dim)
    return total / total.narrow(dim, -1, 1)


def _counted(x: Tensor, weights: Tensor, other: float) -> Tensor:
    """Return x with another number where it is not finite and has no weight."""
    return torch.where((weights > 0) | x.isfinite(), x, other)


def without_idle(
    df: Tensor | None, loc: Tensor, scale: Tensor, weights: Tensor | None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the parameters; members of weight 0 have those of the heaviest member, and so need no panels."""
    if weights is None:
        return df, loc, scale
    heaviest, counts = weights.detach().argmax(0, keepdim=True), weights > 0
    loc, scale = (torch.where(counts, p, p.gather(0, heaviest)) for p in (loc, scale))
    return None if df is None else torch.where(counts, df, df.gather(0, heaviest)), loc, scale


def _average(x: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean over members of finite values, (members, …)."""
    return x.mean(0) if weights is None else (weights * x).sum(0)


@torch.no_grad()
def quantile(
    df: Tensor | None, loc: Tensor, scale: Tensor, q: Tensor, upper: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return the points at which a tail of the mixture is q ≤ ½, to a relative 1e-12 of the tail, or to rounding.

    It is NaN where q or a parameter is, and infinite for q = 0. Has no gradients.

    The rounds of the search depend on the values. So it is one operator for ``torch.compile``, ``torch.export`` and
    ``torch.func.vmap``, which cannot look inside: ``howsure::mixture_quantile``.

    Args:
        df, loc, scale: parameters of the members, (members, rows).
        q: probabilities, (rows,).
        upper: whether q is the upper tail, (rows,); else it is the lower one.
        weights: of the members, (members, rows).
    """
    # the operator is for those who trace: it loads torch's compiler
    found: Tensor = (_quantile if is_traced(loc.detach()) else _quantile_of_rows)(df, loc, scale, q, upper, weights)
    return found


@one_thread()
@torch.no_grad()
def _quantile_of_rows(
    df: Tensor | None, loc: Tensor, scale: Tensor, q: Tensor, upper: Tensor, weights: Tensor | None
) -> Tensor:
    """Return what :func:`quantile` describes."""
    df, loc, scale = without_idle(df, loc, scale, weights)
    sign = torch.where(upper, 1.0, -1.0).to(loc.dtype)  # a lower tail is the upper one of the mirrored mixture
    step = max(1, student_tail.chunk_size(loc) // len(loc))
    found = []
    for first in range(0, len(q), step):
        rows = slice(first, first + step)
        n, m, s, w = _select(rows, df, loc, scale, weights)
        standard = _Normal() if n is None else _Student(student_tail.shape_of(n))
        found.append(sign[rows] * _search(standard, sign[rows] * m, s, q[rows], w))
    return torch.cat(found) if found else loc.new_empty(0)


_quantile = torch.library.custom_op(
    "howsure::mixture_quantile",
    _quantile_of_rows,
    mutates_args=(),
    schema="(Tensor? df, Tensor loc, Tensor scale, Tensor q, Tensor upper, Tensor? weights) -> Tensor",
)


@_quantile.register_fake
def _quantile_shape(_df: Any, loc: Tensor, _scale: Any, q: Tensor, _upper: Any, _weights: Any) -> Tensor:
    """Return an empty tensor of the shape and dtype of the result."""
    return loc.new_empty(q.shape)


@_quantile.register_vmap
def _quantile_of_batches(info: Any, in_dims: Any, *given: Tensor | None) -> tuple[Tensor, int]:
    """Return the quantiles of a batch of mixtures: its entries are more rows."""

    def as_rows(x: Tensor | None, dim: int | None) -> Tensor | None:
        if x is None:
            return None
        full = x.unsqueeze(-2).expand(*x.shape[:-1], info.batch_size, -1) if dim is None else x.movedim(dim, -2)
        return full.flatten(-2)

    found = _quantile(*(as_rows(x, dim) for x, dim in zip(given, in_dims, strict=True)))
    return found.view(info.batch_size, len(found) // info.batch_size), 0


class _Normal:
    """Standard normal members, as `_search` needs them."""

    def select(self, _: Tensor) -> "_Normal":
        return self

    def quantile(self, q: Tensor) -> Tensor:
        """Return the z with q above it."""
        z: Tensor = -torch.special.ndtri(q)
        return z

    def at(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the upper tail at z, the density, and the derivative of the density."""
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return 0.5 * torch.erfc(z / math.sqrt(2)), density, -z * density


class _Student:
    """Standard Student t members, as `_search` needs them."""

    def __init__(self, shape: student_tail.Shape) -> None:
        self.shape = shape

    def select(self, keep: Tensor) -> "_Student":
        return _Student(self.shape.select(keep))

    def quantile(self, q: Tensor) -> Tensor:
        """Return the z with q above it, for q ≤ ½."""
        return student_tail.quantile(q.expand_as(self.shape.df), self.shape)

    def at(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the upper tail at z, the density, and the derivative of the density."""
        shape = self.shape
        found = student_tail.tail(z.abs(), shape)
        peak = shape.height * found.exponent.exp()
        beyond, density = peak * shape.root * found.integral, peak * found.cosine
        slope = density * found.cosine * found.sine * ((shape.df + 1) / shape.root)
        return torch.where(z < 0, 1 - beyond, beyond), density, torch.where(z < 0, slope, -slope)


def _search(standard: _Normal | _Student, loc: Tensor, scale: Tensor, q: Tensor, weights: Tensor | None) -> Tensor:
    """Return the points at which the upper tail of the mixture is q.

    Halley's method for the logarithm of the tail, with a step to the middle of the bracket where Halley's would leave
    it or is not less than half of the step before: between members that are far apart it can jump to and fro for ever.
    A row that has converged stays where it is, and takes no part in later rounds once half of the rows have.
    """
    ends = loc + scale * standard.quantile(q)
    left, right = ends.amin(0), ends.amax(0)
    x = 0.5 * (left + right)
    found, before = x.clone(), right - left
    index, open_rows = torch.arange(len(q), device=q.device), left < right
    for _ in range(200):
        count = int(open_rows.sum())
        if count == 0 or (2 * count <= len(index) and len(index) > _FEW):
            found[index] = x
            if count == 0:
                break
            keep = open_rows.nonzero().squeeze(1)
            standard, (loc, scale, weights) = standard.select(keep), _select(keep, loc, scale, weights)
            x, q, left, right, index = x[keep], q[keep], left[keep], right[keep], index[keep]
            open_rows, before = open_rows[keep], before[keep]
        tail, density, slope = standard.at((x - loc) / scale)
        tail, density = _average(tail, weights), _average(density / scale, weights)
        slope = _average(slope / (scale * scale), weights)
        beyond = torch.log(tail / q)  # > 0: the quantile lies to the right
        left, right = torch.where(beyond >= 0, x, left), torch.where(beyond <= 0, x, right)
        middle = 0.5 * (left + right)
        newton = beyond * tail / density
        step = newton / (1 + 0.5 * (beyond + newton * slope / density)).clamp(0.5, 2)
        inside = (x + step > left) & (x + step < right) & ((step.abs() < 0.5 * before) | (beyond.abs() < _CLOSE))
        open_rows = open_rows & (beyond.abs() > 1e-12) & (left < middle) & (middle < right)
        last, x = x, torch.where(open_rows, torch.where(inside, x + step, middle), x)
        before = (x - last).abs()
    else:
        found[index] = x
    return found


def half_spread(df: Tensor | None, loc: Tensor, scale: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Return half the mean distance of two independent draws, :math:`\tfrac12\mathbb E|X-X'|`; needs df > 1.

    Normal members have a closed form; otherwise it is :math:`\int F(1-F)`. Beyond the panels, at a distance d from the
    member, a tail has the mass :math:`F \approx p\,d/n` and follows a power of d, so that its integral is known.
    """
    df, loc, scale = without_idle(df, loc, scale, weights)
    if df is None:
        return _normal_half_spread(loc, scale, weights)

    def integral(edges: Tensor, df: Tensor, *shape: Any) -> Tensor:
        x, h = _nodes(edges)
        density = _density(x, df, *shape)
        below, below_area = _tail_beyond(edges[0], df, *shape)
        above, above_area = _tail_beyond(edges[-1], df, *shape)
        inside = h.unsqueeze(1) * torch.einsum("kl,plr->pkr", edges.new_tensor(_PARTIAL), density)
        weights = edges.new_tensor(_WEIGHTS).unsqueeze(1)
        mass = h * (weights * density).sum(1)
        # sum each tail from its own end, so that neither is a small difference of large numbers
        lower = below + (mass.cumsum(0) - mass).unsqueeze(1) + inside
        upper = above + (mass.flip(0).cumsum(0).flip(0).unsqueeze(1) - inside)
        return (h * (weights * lower * upper).sum(1)).sum(0) + below_area + above_area

    return _integrate(integral, df, loc, scale, weights)


def _normal_half_spread(loc: Tensor, scale: Tensor, weights: Tensor | None) -> Tensor:
    r"""Return :math:`\frac12\sum_{ij}w_iw_j\mathbb E|X_i - X_j|`, or without weights :math:`\frac1{2M^2}\sum_{ij}…`.

    The difference :math:`X_i - X_j` is normal with deviation :math:`\sqrt{\sigma_i^2 + \sigma_j^2}`.
    """
    members = len(loc)
    own = scale if weights is None else weights.square() * scale
    total = own.sum(0) / math.sqrt(math.pi)  # the pairs of a member with itself
    for i in range(1, members):
        sigma = torch.hypot(scale[i], scale[:i])
        pairs = normal.mean_absolute(loc[i] - loc[:i], sigma)
        total = total + (pairs if weights is None else weights[i] * weights[:i] * pairs).sum(0)
    return total / members**2 if weights is None else total


def entropy(df: Tensor | None, loc: Tensor, scale: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Return the differential entropy, :math:`-\int p\ln p`."""
    df, loc, scale = without_idle(df, loc, scale, weights)

    def integral(edges: Tensor, df: Tensor | None, *shape: Any) -> Tensor:
        x, h = _nodes(edges)
        density = _density(x, df, *shape)
        surprise = -density * density.clamp(min=torch.finfo(density.dtype).tiny).log()  # 0 where there is no density
        return (h * (edges.new_tensor(_WEIGHTS).unsqueeze(1) * surprise).sum(1)).sum(0)

    return _integrate(integral, df, loc, scale, weights)


@one_thread()
def _integrate(
    integral: Callable[..., Tensor], df: Tensor | None, loc: Tensor, scale: Tensor, weights: Tensor | None
) -> Tensor:
    """Return ``integral(edges, *parameters)`` of all rows, block by block; NaN where a parameter is not finite.

    The parameters are those of :func:`_density_parameters`, and the weights.
    """
    if loc.shape[1] == 0:
        return loc.sum(0)
    valid = torch.stack([p.isfinite().all(0) for p in (df, loc, scale, weights) if p is not None]).all(0)
    loc = loc - loc.detach().mean(0)  # a common offset would only cost digits
    prepared = (*_density_parameters(df, loc, scale), weights)
    at_once = _AT_ONCE.get(loc.device.type, _ELSEWHERE)
    step = max(1, at_once // len(loc))
    blocks = []
    for first in range(0, loc.shape[1], step):
        block = slice(first, first + step)
        edges = _edges(*_select(block, df, loc, scale))
        parameters = _select(block, *prepared)
        # group rows that need about equally many panels, so that one difficult row does not slow down the others
        counts, order = (edges[1:] > edges[:-1]).sum(0).sort(descending=True)
        parts, panels, start = [], counts.tolist(), 0
        while start < len(panels):
            count = max(1, panels[start])
            rows = order[start : start + max(1, at_once // (count * len(_NODES)))]
            part: Tensor = _Recomputed.apply(integral, edges[: count + 1, rows], *_select(rows, *parameters))  # type: ignore[no-untyped-call]
            parts.append(part)
            start += len(rows)
        blocks.append(torch.cat(parts)[order.argsort()])
    return torch.where(valid, torch.cat(blocks), math.nan)


class _Recomputed(torch.autograd.Function):
    """Compute an integral, and in the backward pass once more.

    So that the graph holds the parameters and not the densities at all nodes, of which there are hundreds a row.
    """

    @staticmethod
    def forward(integral: Callable[..., Tensor], edges: Tensor, *parameters: Tensor | None) -> Tensor:
        return integral(edges, *parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Tensor) -> None:
        ctx.integral = inputs[0]
        ctx.present = [p is not None for p in inputs[2:]]
        ctx.save_for_backward(inputs[1], *(p for p in inputs[2:] if p is not None))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        edges, *given = ctx.saved_tensors

        def of_given(*given: Tensor) -> Tensor:
            rest = iter(given)
            result: Tensor = ctx.integral(edges, *(next(rest) if there else None for there in ctx.present))
            return result

        found = iter(torch.func.vjp(of_given, *given)[1](grad))
        return None, None, *(next(found) if there else None for there in ctx.present)


def _select(rows: Tensor | slice, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Return some rows of each parameter that there is."""
    return tuple(None if p is None else p[:, rows] for p in parameters)


def _nodes(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of all panels, (panels, 8, rows), and the panels' lengths, (panels, rows)."""
    h = edges[1:] - edges[:-1]
    return edges[:-1].unsqueeze(1) + h.unsqueeze(1) * edges.new_tensor(_NODES).unsqueeze(1), h


def _density_parameters(df: Tensor | None, loc: Tensor, scale: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Return df, loc, what the distance from loc is multiplied with, and the log density at loc."""
    if df is None:
        return None, loc, 1 / scale, -0.5 * LOG_2PI - scale.log()
    return df, loc, 1 / (scale * df.sqrt()), rho_excess(0.5 * df) - 0.5 * LOG_2PI - scale.log()


def _density(x: Tensor, df: Tensor | None, loc: Tensor, factor: Tensor, peak: Tensor, weights: Tensor | None) -> Tensor:
    """Return the density of the mixture at x, (…, rows)."""
    total = torch.zeros_like(x)
    for k in range(len(loc)):  # one member after the other, so that what is computed at once stays small
        each = _log_density(x, None if df is None else df[k], loc[k], factor[k], peak[k]).exp()
        total = total + (each if weights is None else weights[k] * each)
    return total / len(loc) if weights is None else total


def _log_density(x: Tensor, df: Tensor | None, loc: Tensor, factor: Tensor, peak: Tensor) -> Tensor:
    """Return log densities of members at x; the parameters are those of :func:`_density_parameters`."""
    u = (x - loc) * factor
    if df is None:
        return peak - 0.5 * u * u
    return torch.addcmul(peak, torch.log1p(u * u), -0.5 * (df + 1))


def _tail_beyond(
    edge: Tensor, df: Tensor, loc: Tensor, factor: Tensor, peak: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the mass beyond the outermost edge, and the integral of that tail."""
    distance = (edge - loc).abs()
    mass = _log_density(edge, df, loc, factor, peak).exp() * distance / df
    return _average(mass, weights), _average(mass * distance / (df - 1), weights)


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
