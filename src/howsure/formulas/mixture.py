r"""Mixtures of Student t or normal members: quantiles, the mean distance of two draws, and the entropy.

The arguments ``df`` (None for normal members), ``loc``, ``scale`` and ``weights`` have the shape (members, rows) and
should be float64. Results have the shape (rows,). Weights are at least 0 and sum to 1 over the members; without them
(None) all members count the same. A member of weight 0 is left out, whatever its parameters are, NaN included.

Quantiles are found by Halley's method within a bracket. For normal members the mean distance has a closed form; else
it and the entropy are integrated by :mod:`howsure.formulas.quadrature`, which is exact in differentiation up to the
error of the quadrature.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from howsure.formulas import normal, quadrature, student_tail
from howsure.formulas.quadrature import select
from howsure.threads import one_thread
from howsure.tracing import is_traced

__all__ = ["entropy", "half_spread", "log_mean_exp", "mean", "quantile", "spread_of_means", "steps", "without_idle"]

_TAIL = (1e-9, 6.0)  # mass of a member beyond its outermost panel, and the normal quantile of that mass
_MIN_ROWS_TO_SPLIT = 64  # with more open rows, the search continues with the open rows alone
_TRUSTED_DISTANCE = 1e-4  # relative distance of a tail from its level below which every Halley step is taken
_MAX_EXPONENT = 80.0  # of terms with weight 0: their exponentials are finite, also in float32


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
    total = (weights * (counted - largest).clamp(max=_MAX_EXPONENT).exp()).sum(dim)
    nothing = total == 0
    logarithm = torch.where(nothing, 1.0, total).log()  # so that the derivative of nothing is 0 and not NaN
    return (torch.where(nothing, -math.inf, logarithm) + largest.squeeze(dim)).to(x.dtype)


def steps(weights: Tensor, dim: int = 0) -> Tensor:
    """Return the cumulative sums of the weights, ending at 1, by which a uniform number chooses a member.

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
    """Return the parameters, with members of weight 0 replaced by the heaviest member, so that they need no panels."""
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
    """Return the result of :func:`quantile`."""
    df, loc, scale = without_idle(df, loc, scale, weights)
    sign = torch.where(upper, 1.0, -1.0).to(loc.dtype)  # a lower tail is the upper one of the mirrored mixture
    step = max(1, student_tail.chunk_size(loc) // len(loc))
    found = []
    for first in range(0, len(q), step):
        rows = slice(first, first + step)
        n, m, s, w = select(rows, df, loc, scale, weights)
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
    it or is not less than half of the step before: between members that are far apart it can oscillate without end.
    A row that has converged stays where it is, and takes no part in later rounds once half of the rows have.
    """
    ends = loc + scale * standard.quantile(q)
    left, right = ends.amin(0), ends.amax(0)
    x = 0.5 * (left + right)
    found, before = x.clone(), right - left
    index, open_rows = torch.arange(len(q), device=q.device), left < right
    for _ in range(200):
        count = int(open_rows.sum())
        if count == 0 or (2 * count <= len(index) and len(index) > _MIN_ROWS_TO_SPLIT):
            found[index] = x
            if count == 0:
                break
            keep = open_rows.nonzero().squeeze(1)
            standard, (loc, scale, weights) = standard.select(keep), select(keep, loc, scale, weights)
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
        trusted = (step.abs() < 0.5 * before) | (beyond.abs() < _TRUSTED_DISTANCE)
        inside = (x + step > left) & (x + step < right) & trusted
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

    def integral(edges: Tensor, *own: Any) -> Tensor:
        x, h = quadrature.nodes(edges)
        (below, below_area), (above, above_area) = (
            quadrature.tail_beyond(edges[0], *own),
            quadrature.tail_beyond(edges[-1], *own),
        )
        lower, upper, _ = quadrature.both_tails(h, quadrature.density(x, *own), below, above)
        return quadrature.total(h, lower * upper) + below_area + above_area

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

    def integral(edges: Tensor, *own: Any) -> Tensor:
        x, h = quadrature.nodes(edges)
        p = quadrature.density(x, *own)
        return quadrature.total(h, -p * p.clamp(min=torch.finfo(p.dtype).tiny).log())  # 0 where there is no density

    return _integrate(integral, df, loc, scale, weights)


def _integrate(
    integral: Callable[..., Tensor], df: Tensor | None, loc: Tensor, scale: Tensor, weights: Tensor | None
) -> Tensor:
    """Return ``integral(edges, *parameters)`` of all rows; NaN where a parameter is not finite.

    The parameters are the arguments of :func:`howsure.formulas.quadrature.density`.
    """
    if loc.shape[1] == 0:
        return loc.sum(0)
    valid = torch.stack([p.isfinite().all(0) for p in (df, loc, scale, weights) if p is not None]).all(0)
    loc = loc - loc.detach().mean(0)  # a common offset would only cost digits
    prepared = (*quadrature.density_parameters(df, loc, scale), weights)

    def of_rows(edges: Tensor, rows: Tensor) -> Tensor:
        own = select(rows, *prepared)
        if is_traced(edges, *(p for p in own if p is not None)):  # transforms take no hooks
            return integral(edges, *own).unsqueeze(0)
        # the graph holds the parameters instead of the densities at hundreds of nodes per row
        found: Tensor = checkpoint(integral, edges, *own, use_reentrant=False, preserve_rng_state=False)
        return found.unsqueeze(0)

    distance = quadrature.reach(df, scale, _TAIL)
    ends = (loc - distance).amin(0), (loc + distance).amax(0)
    return torch.where(valid, quadrature.by_panels(of_rows, df, loc, scale, distance, *ends).squeeze(0), math.nan)
