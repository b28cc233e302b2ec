r"""Log probability that a Student t or normal variable lies in a cell :math:`(a, b]`, with exact gradients.

Targets with shared values, such as counts and grades, are known up to a cell, and censored targets up to a cell with an
infinite end. The difference of two tails cancels where the cell is narrow or far from the location. So a cell is first
mirrored such that its upper end is the farther one from the location. With the tails Q and the density f of the
standard variable there are three cases:

=================  ====================================================================
:math:`0 \le a`    :math:`\ln Q(a) + \ln(1 - e^{\ln Q(b) - \ln Q(a)})`
:math:`a < 0`      :math:`\ln(1 - Q(-a) - Q(b))`
narrow             :math:`\ln\bigl(w\sum_i\omega_i f(t_i)\bigr)` by Gauss and Legendre
=================  ====================================================================

No tail is formed before its logarithm, so none underflows. The gradients are closed forms of the same quantities, such
as :math:`\partial\ln P/\partial a = -f(a)/P`, and by the degrees of freedom
:math:`(\partial_n Q(a) - \partial_n Q(b))/P`. Here :math:`\partial_n\ln Q` is a central difference over 1e-4 of n,
with an error of 1e-8: it costs no further operation, because all three tails are computed at once. Everything is
computed in float64.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from howsure.formulas import student_tail
from howsure.formulas.special import LOG_2PI, in_float64
from howsure.tracing import is_traced

__all__ = ["normal_log_prob", "student_log_prob"]

DF_STEP = 1e-4  # relative, of the difference that stands for the derivative by the degrees of freedom
NARROW = 0.05  # width of a cell, in lengths over which the density changes, below which the density is integrated
_NODES = (-math.sqrt(0.6), 0.0, math.sqrt(0.6))  # of Gauss and Legendre on [−1, 1]
_WEIGHTS = (5 / 18, 8 / 18, 5 / 18)


def student_log_prob(lower: Tensor, upper: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return ln P(lower < Y ≤ upper) for a Student t. The ends of a cell may be infinite.

    It has first derivatives by all arguments. A cell from −∞ to ∞ has the log probability 0.
    """
    return in_float64(lambda *x: student_tail.by_chunks(_StudentCell.log_prob, *x), lower, upper, df, loc, scale)


def normal_log_prob(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return ln P(lower < Y ≤ upper) for a normal distribution; arguments as in `student_log_prob`."""
    return in_float64(_NormalCell.log_prob, lower, upper, loc, scale)


def _ends(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the standardized ends after mirroring, whether a cell was mirrored, and its standardized width."""
    a, b = (lower - loc) / scale, (upper - loc) / scale
    mirrored = a.abs() > b.abs()
    return torch.where(mirrored, -b, a), torch.where(mirrored, -a, b), mirrored, (upper - lower) / scale


def _combine(left: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Return ln P of a cell from the log tails at |a| and at b, and whether a < 0."""
    outside = (near.exp() + far.exp()).masked_fill(~left, 0.0)
    beyond = (far - near).masked_fill(left, -1.0)
    return torch.where(left, torch.log1p(-outside), near + torch.log(-torch.expm1(beyond)))


def _gauss(a: Tensor, b: Tensor, narrow: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of narrow cells, (3, …), and the logarithms of their weights."""
    middle, half = torch.where(narrow, 0.5 * (a + b), 0.0), torch.where(narrow, 0.5 * (b - a), 0.0)
    nodes = torch.stack([middle + half * x for x in _NODES])
    weights = torch.stack([torch.full_like(middle, math.log(w)) for w in _WEIGHTS])
    return nodes, weights


def _student_cell(lower: Tensor, upper: Tensor, df: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Return ln P, and its derivatives by lower, upper, df, loc and scale; float64."""
    a, b, mirrored, width = _ends(lower, upper, loc, scale)
    left = a < 0
    degrees = df * torch.stack([torch.ones_like(df), *(torch.full_like(df, 1 + d) for d in (-DF_STEP, DF_STEP))])
    t = torch.stack([a.abs(), b]).unsqueeze(1)  # (2, 1, …)
    endless = t.isinf()
    t = t.masked_fill(endless, 1.0)
    shape = student_tail.shape_of(degrees.unsqueeze(0))
    found = student_tail.tail(t, shape)
    log_height = shape.height.log()
    log_tails = (log_height + shape.root.log() + found.exponent + found.integral.log()).masked_fill(endless, -math.inf)
    log_tail = log_tails[:, 0]
    log_p = _combine(left, log_tail[0], log_tail[1])
    square = (t * t / shape.df)[:, 0]
    log_density = log_height[0, 0] - 0.5 * (df + 1) * torch.log1p(square)
    log_density = log_density.masked_fill(endless[:, 0], -math.inf)
    near, far = (log_density - log_p).exp()
    by_loc = near - far
    by_scale = a.masked_fill(endless[0, 0], 0.0) * near - t[1, 0] * far
    slope = (log_tails[:, 2] - log_tails[:, 1]).masked_fill(endless[:, 0], 0.0) / (2 * DF_STEP * df)
    near_df, far_df = (log_tail - log_p).exp() * slope
    by_df = torch.where(left, -near_df, near_df) - far_df
    middle = 0.5 * (a + b)
    rate = torch.maximum((df + 1) * middle / (df + middle * middle), ((df + 1) / df).sqrt())
    narrow = width * rate < NARROW
    if is_traced(a) or a.is_cuda or bool(narrow.any()):  # reading a value would make a GPU wait
        nodes, log_weights = _gauss(a, b, narrow)
        growth = nodes * nodes / df
        ratio = torch.log1p(growth)
        terms = log_weights + log_height[0, 0] - 0.5 * (df + 1) * ratio
        mean_density = torch.logsumexp(terms, 0)
        shares = (terms - mean_density).exp()
        score = (df + 1) * nodes / (df + nodes * nodes)  # −f'/f
        height_slope = (log_height[0, 2] - log_height[0, 1]) / (2 * DF_STEP * df)
        density_slope = height_slope - 0.5 * ratio + 0.5 * (df + 1) / df * growth / (1 + growth)
        log_p = torch.where(narrow, mean_density + width.masked_fill(~narrow, 1.0).log(), log_p)
        near, far = (log_density - log_p).exp()
        by_loc = torch.where(narrow, (shares * score).sum(0), by_loc)
        by_scale = torch.where(narrow, (shares * (nodes * score)).sum(0) - 1, by_scale)
        by_df = torch.where(narrow, (shares * density_slope).sum(0), by_df)
    sign = torch.where(mirrored, -1 / scale, 1 / scale)
    at_lower, at_upper = torch.where(mirrored, far, near), torch.where(mirrored, near, far)
    return log_p, -at_lower / scale, at_upper / scale, by_df, sign * by_loc, by_scale / scale


def _normal_cell(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Return ln P, and its derivatives by lower, upper, loc and scale; float64."""
    a, b, mirrored, width = _ends(lower, upper, loc, scale)
    t = torch.stack([a.abs(), b])
    endless = t.isinf()
    t = torch.where(endless, 1.0, t)
    # ln Q = −t²/2 + ln(erfcx(t/√2)/2), which does not underflow
    log_tail = -0.5 * t * t + torch.log(0.5 * torch.special.erfcx(t / math.sqrt(2)))
    log_tail = torch.where(endless, -math.inf, log_tail)
    log_p = _combine(a < 0, log_tail[0], log_tail[1])
    narrow = width * torch.clamp(0.5 * (a + b), min=1.0) < NARROW
    nodes, log_weights = _gauss(a, b, narrow)
    terms = log_weights - 0.5 * LOG_2PI - 0.5 * nodes * nodes
    mean_density = torch.logsumexp(terms, 0)
    shares = (terms - mean_density).exp()
    log_p = torch.where(narrow, mean_density + torch.where(narrow, width, 1.0).log(), log_p)
    log_density = torch.where(endless, -math.inf, -0.5 * LOG_2PI - 0.5 * t * t)
    near, far = (log_density - log_p).exp()
    by_loc = torch.where(narrow, (shares * nodes).sum(0), near - far)
    by_scale = torch.where(
        narrow, (shares * (nodes * nodes)).sum(0) - 1, torch.where(endless[0], 0.0, a) * near - t[1] * far
    )
    sign = torch.where(mirrored, -1.0, 1.0)
    at_lower, at_upper = torch.where(mirrored, far, near), torch.where(mirrored, near, far)
    return log_p, -at_lower / scale, at_upper / scale, sign * by_loc / scale, by_scale / scale


class _Cell(torch.autograd.Function):
    """Log probability of cells, and its derivatives by all arguments as further outputs."""

    generate_vmap_rule = True

    @classmethod
    def log_prob(cls, *arguments: Tensor) -> Tensor:
        found: Tensor = cls.apply(*arguments)[0]  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG004
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        needed = zip(ctx.needs_input_grad, ctx.saved_tensors, strict=True)
        return tuple(grad * slope if wanted else None for wanted, slope in needed)


class _StudentCell(_Cell):
    forward = staticmethod(_student_cell)


class _NormalCell(_Cell):
    forward = staticmethod(_normal_cell)
