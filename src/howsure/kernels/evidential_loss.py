r"""Loss and gradient of an evidential network in one pass from its raw outputs, without a graph of twenty operations.

The same loss as ``formulas.nig.from_raw``, ``formulas.nig.nll`` and a penalty of ``formulas.penalties``, with their
derivatives written out. With :math:`r = y - \gamma`, :math:`q = r^2 / (2\beta(1 + 1/\nu))` and
:math:`k = (\alpha + \tfrac12)\,q/(1+q)` those of the likelihood are

.. math:: \frac{\partial L}{\partial\gamma} = -\frac{2k}r, \quad
          \frac{\partial L}{\partial\nu} = \frac{k - \frac12}{\nu(\nu+1)}, \quad
          \frac{\partial L}{\partial\alpha} = \ln(1+q) - \rho'(\alpha), \quad
          \frac{\partial L}{\partial\beta} = \frac{\frac12 - k}\beta.

There are two implementations: tensor operations for every device, in parts that fit into a processor's cache; and a
Triton kernel (:mod:`howsure.kernels.evidential_loss_triton`) for CUDA.
"""

import functools
import importlib.util
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from howsure.errors import InputError
from howsure.formulas import nig, penalties
from howsure.formulas.nig import ALPHA_MINUS_ONE_FLOOR, BETA_FLOOR, NU_FLOOR
from howsure.formulas.special import LOG_2PI, rho_from_one
from howsure.kernels.polynomials import RHO, RHO_PRIME

__all__ = ["PENALTIES", "evidential_loss_from_raw", "uses_triton"]

PENALTIES = ("error", "standard_score")

# Largest q: an infinite q would become NaN. It is reached where errors are 1e18 times as large as expected.
LARGEST_Q = 1e37

# Targets that are computed at once on a CPU: their dozen intermediate results stay in its cache.
PART = 1 << 17


class _Plan(NamedTuple):
    """Static arguments of the loss: a penalty of PENALTIES or "none"; and whether each target keeps its own loss."""

    penalty: str
    each: bool
    dim: int
    triton: bool


def evidential_loss_from_raw(
    raw: Tensor,
    y: Tensor,
    weight: Tensor | float = 0.01,
    penalty: str = "error",
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the evidential loss of raw outputs; the backward pass finds their gradient already computed.

    It is :func:`howsure.evidential_loss` without most of its checks and without an answer object. Only ``raw`` gets a
    gradient. With ``create_graph=True``, and for many gradients at once, the formulas compute it instead.

    Args:
        raw: four raw outputs along ``dim``, floating point.
        y: targets, of the shape of ``raw`` without that dimension.
        weight: λ, a number or a tensor that broadcasts to y.
        penalty: "error" or "standard_score".
        dim: the dimension of size 4.
        mask: True where a target counts. Targets that do not count may be NaN, and so may their raw outputs.
        sample_weight: how much each target counts, of the shape of y; a target with weight 0 does not count.
        reduction: "mean" over the targets that count, "sum", or "none".

    Raises:
        InputError: for shapes that do not fit, and an unknown penalty or reduction.

    >>> raw, y = torch.zeros(3, 4, requires_grad=True), torch.zeros(3)
    >>> evidential_loss_from_raw(raw, y)
    tensor(0.9267, grad_fn=<_LossFromRawBackward>)
    """
    dim = dim % raw.ndim - raw.ndim
    if raw.shape[dim] != 4 or raw.movedim(dim, -1).shape[:-1] != y.shape:
        raise InputError(f"raw outputs of shape {tuple(raw.shape)} do not fit targets of shape {tuple(y.shape)}")
    if penalty not in PENALTIES or reduction not in ("mean", "sum", "none"):
        raise InputError(f"unknown penalty {penalty!r} or reduction {reduction!r}")
    if not isinstance(weight, Tensor) and weight == 0:
        penalty = "none"
    if isinstance(weight, Tensor):
        weight = weight.to(_at_least_float32(raw, y))
    counts = _counts(raw, y, mask, sample_weight, reduction)
    loss: Tensor = _LossFromRaw.apply(
        raw, y, weight, counts, _Plan(penalty, reduction == "none", dim, uses_triton(raw, y))
    )
    return loss


def uses_triton(raw: Tensor, y: Tensor) -> bool:
    """Return whether the Triton kernel computes the loss: on CUDA, if Triton is installed, unless in float64."""
    known = (torch.float32, torch.bfloat16, torch.float16)
    return raw.is_cuda and raw.dtype in known and y.dtype in known and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _counts(
    raw: Tensor, y: Tensor, mask: Tensor | None, sample_weight: Tensor | None, reduction: str
) -> Tensor | float:
    """Return the factor of each target's loss before losses are summed: a number, or a tensor with 0 where masked."""
    if mask is None and sample_weight is None:
        return 1 / y.numel() if reduction == "mean" and y.numel() else 1.0
    counts = torch.ones_like(y) if sample_weight is None else sample_weight
    counts = counts.to(_at_least_float32(raw, y))
    if mask is not None:
        counts = torch.where(mask, counts, 0.0)
    if reduction != "mean":
        return counts
    total = counts.sum(dtype=torch.float64)
    return counts / torch.where(total > 0, total, 1.0)


def _at_least_float32(raw: Tensor, y: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(raw.dtype, y.dtype), torch.float32)


class _LossFromRaw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, raw: Tensor, y: Tensor, weight: Tensor | float, counts: Tensor | float, plan: _Plan
    ) -> Tensor:
        # Losses one by one have an upstream gradient each: the kernel rather computes theirs when it has that. Those of
        # float16 are computed then, too, because it can be a factor that keeps them inside the range of float16.
        late = raw.dtype == torch.float16 or (plan.triton and plan.each)
        loss, ctx.gradient = _compute(raw, y, weight, counts, plan, True, ctx.needs_input_grad[0] and not late)
        ctx.save_for_backward(raw, y, *(t for t in (weight, counts) if isinstance(t, Tensor)))
        ctx.numbers = tuple(None if isinstance(t, Tensor) else t for t in (weight, counts))
        ctx.plan = plan
        assert loss is not None
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None  # a second backward pass computes it again
        raw, y, *others = ctx.saved_tensors
        rest = iter(others)
        weight, counts = (next(rest) if number is None else number for number in ctx.numbers)
        plan: _Plan = ctx.plan
        if plan.each and isinstance(counts, Tensor):
            upstream = torch.where(counts != 0, upstream, 0.0)  # what does not count may have NaN upstream
        if torch.is_grad_enabled() or _is_batched(upstream):
            gradient = _by_formulas(raw, y, weight, counts, plan, upstream)
        elif gradient is None:
            _, gradient = _compute(raw, y, weight, counts * upstream, plan, False, True)
        elif plan.triton:
            from howsure.kernels.evidential_loss_triton import scale_by

            gradient = scale_by(gradient, upstream)
        else:
            gradient = gradient.mul_(upstream.unsqueeze(plan.dim) if plan.each else upstream)
        return gradient, None, None, None, None


def _is_batched(upstream: Tensor) -> bool:
    """Return whether this is many gradients at once, as torch.autograd.grad(…, is_grads_batched=True) has them."""
    kinds = torch._C._functorch
    return bool(kinds.is_batchedtensor(upstream) or kinds.is_legacy_batchedtensor(upstream))


def _by_formulas(
    raw: Tensor, y: Tensor, weight: Tensor | float, counts: Tensor | float, plan: _Plan, upstream: Tensor
) -> Tensor:
    """Return the gradient by the formulas, which can be differentiated again where gradients are recorded."""
    own, again = raw, torch.is_grad_enabled()
    with torch.enable_grad():
        if isinstance(counts, Tensor):
            counted = counts != 0
            own, y = torch.where(counted.unsqueeze(plan.dim), raw, 0.0), torch.where(counted, y, 0.0)
        parameters = nig.from_raw(own, plan.dim)
        loss = nig.nll(y, *parameters)
        if plan.penalty != "none":
            loss = loss + weight * penalties.PENALTIES[plan.penalty](y, *parameters)
        loss = loss * counts if plan.each else (loss * counts).sum()
    (gradient,) = torch.autograd.grad(loss, raw, upstream, create_graph=again)
    return gradient


def _compute(
    raw: Tensor,
    y: Tensor,
    weight: Tensor | float,
    counts: Tensor | float,
    plan: _Plan,
    want_loss: bool,
    want_gradient: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the loss and its gradient by the raw outputs, each if it is wanted."""
    raw, place = _in_order(raw, plan.dim)
    planes = _planes(raw, plan.dim, place)
    outer, _, inner = planes.shape
    gradient = torch.empty_like(raw) if want_gradient else None
    slopes = None if gradient is None else _planes(gradient, plan.dim, place)
    losses = y.new_empty((outer, inner), dtype=_at_least_float32(raw, y)) if want_loss and plan.each else None
    run = _by_tensors
    if plan.triton:
        from howsure.kernels.evidential_loss_triton import run
    weight, counts = (_factor(t, y, outer, inner) for t in (weight, counts))
    want_sum = want_loss and not plan.each
    total = run(
        planes, y.reshape(outer, inner), weight, counts, plan.penalty,
        losses=losses, gradient=slopes, want_sum=want_sum,
    )  # fmt: skip
    return total if losses is None else losses.view(y.shape), gradient


def _in_order(raw: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return raw outputs, and the position of ``dim`` in the order of their memory; copied if it lies in no order."""
    for place in reversed(range(raw.ndim)):
        if raw.movedim(dim, place).is_contiguous():
            return raw, place
    return raw.contiguous(), dim % raw.ndim


def _planes(x: Tensor, dim: int, place: int) -> Tensor:
    """Return a view of shape (outer, 4, inner) of outputs in order.

    Maps whose channels lie side by side ("channels last") have inner = 1, as outputs in the last dimension have.
    """
    moved = x.movedim(dim, place)
    return moved.reshape(math.prod(moved.shape[:place]), 4, math.prod(moved.shape[place + 1 :]))


def _factor(x: Tensor | float, y: Tensor, outer: int, inner: int) -> Tensor | float:
    """Return a number, a tensor with one number on the device of y, or a tensor of shape (outer, inner)."""
    if not isinstance(x, Tensor):
        return x
    if x.numel() == 1:
        return x.reshape(()) if x.device == y.device else x.item()
    return x.expand(y.shape).reshape(outer, inner)


# Tensor operations --------------------------------------------------------------------------------------------------


def _by_tensors(
    raw: Tensor,
    y: Tensor,
    weight: Tensor | float,
    counts: Tensor | float,
    penalty: str,
    *,
    losses: Tensor | None,
    gradient: Tensor | None,
    want_sum: bool,
) -> Tensor | None:
    """Compute losses and gradients by tensor operations; arguments as of the Triton kernel's ``run``."""
    dtype = _at_least_float32(raw, y)
    total = y.new_zeros((), dtype=torch.float64 if y.device.type != "mps" else dtype)
    for part in _parts(y):
        rows, targets = raw[part[0], :, part[1]].movedim(1, 0).to(dtype).contiguous(), y[part].to(dtype)
        lam, count = (t[part] if isinstance(t, Tensor) and t.ndim else t for t in (weight, counts))
        if isinstance(count, Tensor) and count.ndim:
            counted = count != 0
            rows, targets = torch.where(counted, rows, 0.0), torch.where(counted, targets, 0.0)
        want_loss = want_sum or losses is not None
        value, slopes = _closed_form(rows, targets, lam, penalty, want_loss, gradient is not None)
        if losses is not None and value is not None:
            losses[part] = value * count
        elif value is not None:
            total = total + (value * count if isinstance(count, Tensor) else value).sum()
        if gradient is not None and slopes is not None:
            gradient[part[0], :, part[1]] = slopes.mul_(count).movedim(0, 1)
    if not want_sum:
        return None
    total = total if isinstance(counts, Tensor) else total * counts
    return total.to(dtype)


def _parts(y: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of targets (outer, inner) with at most ``PART`` targets each on a CPU; elsewhere one with all."""
    outer, inner = y.shape
    part = PART if y.device.type == "cpu" else max(1, y.numel())
    rows = max(1, part // max(1, inner))
    for first in range(0, outer, rows):
        for start in range(0, inner, part):
            yield slice(first, first + rows), slice(start, start + part)


def _closed_form(
    rows: Tensor, y: Tensor, weight: Tensor | float, penalty: str, want_loss: bool, want_gradient: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return losses, and their derivatives by raw outputs as (4, …), of raw outputs (4, …) and targets (…)."""
    nu, a, beta = softplus(rows[1:], threshold=40).unbind(0)
    nu, a, beta = nu.add_(NU_FLOOR), a.add_(ALPHA_MINUS_ONE_FLOOR), beta.add_(BETA_FLOOR)
    residual, inverse = y - rows[0], nu.reciprocal()
    spread = inverse + 1
    width = beta * spread
    part = residual / (2 * width)
    q = (residual * part).clamp_(max=LARGEST_Q)
    fit, exponent = torch.log1p(q), a + 1.5
    evidence = torch.add(a, nu, alpha=2).add_(1)
    half_log, rho_prime = _rho(a)  # ln of 2π times the width, minus 2ρ, is one logarithm less
    unit: Any = weight
    if penalty == "standard_score":
        unit = weight * ((1 + a) / width).sqrt_()
    score = None if penalty == "none" else unit * residual.abs()
    loss = None
    if want_loss:
        loss = width.log().mul_(0.5).sub_(half_log).add_(0.5 * LOG_2PI).addcmul_(exponent, fit)
        if score is not None:
            loss.addcmul_(score, evidence)
    if not want_gradient:
        return loss, None
    slope = exponent / (1 + q)
    excess = (slope * q).sub_(0.5)
    if penalty == "standard_score":
        assert score is not None
        half = 0.5 * score * evidence
        excess.add_(half)  # it scales with β and ν as the likelihood does
        rho_prime.sub_(half / (1 + a))
    slopes = torch.sigmoid(rows)
    by_nu = excess * inverse
    by_nu.mul_(inverse).div_(spread)
    by_alpha = fit.sub_(rho_prime)
    torch.mul(slope, part, out=slopes[0]).mul_(-2)
    if score is not None:
        slopes[0].sub_(residual.sign().mul_(evidence).mul_(unit))
        by_nu.add_(score, alpha=2)
        by_alpha.add_(score)
    slopes[1].mul_(by_nu)
    slopes[2].mul_(by_alpha)
    slopes[3].mul_(excess.div_(beta)).neg_()
    return loss, slopes


def _rho(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return ρ(1 + a) = ln Γ(a + 3/2) − ln Γ(a + 1) and its derivative, for a > 0."""
    if a.dtype != torch.float32:
        return rho_from_one(1 + a)
    z = a + 0.75
    inverse = z.reciprocal()
    u = inverse * inverse
    rho = _horner(u, RHO).mul_(u).add_(z.log_(), alpha=0.5)
    return rho, _horner(u, RHO_PRIME).mul_(u).add_(0.5).mul_(inverse)


def _horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total.add_(c).mul_(x)
    return total.add_(coefficients[0])
