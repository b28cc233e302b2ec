r"""Loss and gradient of an evidential network in one pass from its raw outputs, without a graph of twenty operations.

The same loss as ``formulas.nig.from_raw``, ``formulas.nig.nll`` and a penalty of ``formulas.penalties``, with their
derivatives written out. With :math:`r = y - \gamma`, :math:`q = r^2 / (2\beta(1 + 1/\nu))` and
:math:`k = (\alpha + \tfrac12)\,q/(1+q)` those of the likelihood are

.. math:: \frac{\partial L}{\partial\gamma} = -\frac{2k}r, \quad
          \frac{\partial L}{\partial\nu} = \frac{k - \frac12}{\nu(\nu+1)}, \quad
          \frac{\partial L}{\partial\alpha} = \ln(1+q) - \rho'(\alpha), \quad
          \frac{\partial L}{\partial\beta} = \frac{\frac12 - k}\beta.

There are two forms: tensor operations, on every device, in parts that fit into a processor's cache; and a Triton
kernel (:mod:`howsure.kernels.evidential_loss_triton`) for CUDA. :func:`obstacle` says why the second cannot be used.
"""

import functools
import importlib.util
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from howsure.errors import InputError
from howsure.formulas import nig, penalties
from howsure.formulas.nig import ALPHA_MINUS_ONE_FLOOR, BETA_FLOOR, NU_FLOOR
from howsure.formulas.special import LOG_2PI, rho_from_one
from howsure.kernels.polynomials import RHO, RHO_PRIME

__all__ = ["KERNELS", "PENALTIES", "evidential_loss", "obstacle"]

KERNELS = ("triton", "tensors")
PENALTIES = ("error", "standard_score")

# Largest q: what overflows would become NaN. It is reached where errors are 1e18 times as large as expected.
LARGEST = 1e37

# Targets that are computed at once on a CPU: their dozen intermediate results stay in its cache.
PART = 1 << 16


class _Plan(NamedTuple):
    """What is computed, and how."""

    penalty: str  # of PENALTIES, or "none"
    reduction: str
    dim: int
    triton: bool


class _Given(NamedTuple):
    """What it is computed from; ``scale`` is what a sum of losses is multiplied by."""

    raw: Tensor
    y: Tensor
    weight: Tensor | float
    mask: Tensor | None
    sample_weight: Tensor | None
    scale: Tensor | float


def evidential_loss(
    raw: Tensor,
    y: Tensor,
    weight: Tensor | float,
    *,
    penalty: str = "error",
    dim: int = -1,
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    reduction: str = "none",
    kernel: str | None = None,
) -> Tensor:
    """Return the negative log likelihood plus ``weight`` times a penalty.

    Only ``raw`` gets a gradient. With ``create_graph=True`` the backward pass computes it by the formulas instead,
    which can be differentiated again.

    Args:
        raw: four raw outputs along ``dim``, floating point.
        y: targets, of the shape of ``raw`` without that dimension.
        weight: λ, a number or a tensor that broadcasts to y.
        penalty: "error" or "standard_score".
        dim: the dimension of size 4.
        mask: True where a target counts. What does not count may be NaN.
        sample_weight: how much each target counts, of the shape of y.
        reduction: "mean" over the targets that count, "sum", or "none".
        kernel: "triton", "tensors", or None for Triton where it can be used.

    Raises:
        InputError: for a kernel that is unknown or cannot be used here.
    """
    if kernel not in (None, *KERNELS):
        raise InputError(f"unknown kernel {kernel!r}; known are {', '.join(KERNELS)}")
    triton = kernel == "triton" or (kernel is None and raw.device.type == "cuda")
    why_not = obstacle(raw, y) if triton else None
    if kernel == "triton" and why_not:
        raise InputError(f"the kernel 'triton' of the evidential loss cannot be used: {why_not}")
    plan = _Plan(penalty, reduction, dim % raw.ndim - raw.ndim, triton and why_not is None)
    if not isinstance(weight, Tensor) and weight == 0:
        plan = plan._replace(penalty="none")
    loss: Tensor = _EvidentialLoss.apply(raw, y, weight, mask, sample_weight, plan)
    return loss


def obstacle(raw: Tensor, y: Tensor) -> str | None:
    """Return why the Triton kernel cannot be used for these raw outputs and targets, in words; None if it can."""
    for name, tensor in (("raw outputs", raw), ("targets", y)):
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"{name} are {tensor.dtype}, and it computes in float32"
    if not _has_triton():
        return "Triton is not installed"
    if raw.device.type != "cuda" and not _interpreted():
        return f"the device is {raw.device.type}, not cuda"
    return None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _interpreted() -> bool:
    from howsure.kernels import evidential_loss_triton

    return evidential_loss_triton.INTERPRETED


class _EvidentialLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        raw: Tensor,
        y: Tensor,
        weight: Tensor | float,
        mask: Tensor | None,
        sample_weight: Tensor | None,
        plan: _Plan,
    ) -> Tensor:
        compute = _by_triton if plan.triton else _by_tensors
        # Losses one by one have an upstream gradient each: the kernel rather computes theirs when it has that. Those of
        # float16 are computed then, too, because it can be a factor that keeps them inside the range of float16.
        late = raw.dtype == torch.float16 or (plan.triton and plan.reduction == "none")
        wanted = ctx.needs_input_grad[0] and not late
        scale = _scale(y, mask, sample_weight, plan.reduction)
        given = _Given(raw, y, weight, mask, sample_weight, scale)
        loss, gradient = compute(given, plan, None, True, wanted)
        ctx.save_for_backward(*(t for t in given if isinstance(t, Tensor)))
        ctx.arguments = tuple(isinstance(t, Tensor) or t for t in given)
        ctx.plan, ctx.gradient = plan, gradient
        assert loss is not None
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None  # a second backward pass computes it again
        saved = iter(ctx.saved_tensors)
        given = _Given(*(next(saved) if t is True else t for t in ctx.arguments))
        plan: _Plan = ctx.plan
        if plan.reduction == "none" and given.mask is not None:
            upstream = torch.where(given.mask, upstream, 0.0)  # 0 times what is infinite or NaN would be NaN
        if torch.is_grad_enabled():
            gradient = _differentiable(given, plan, upstream)
        elif gradient is not None:
            gradient = _times(gradient, upstream, plan)
        else:
            compute, batched = _by_triton if plan.triton else _by_tensors, _is_batched(upstream)
            each = upstream if plan.reduction == "none" and not batched else None
            if plan.reduction != "none" and not batched:
                given = given._replace(scale=given.scale * upstream)
            _, gradient = compute(given, plan, each, False, True)
            if batched and gradient is not None:
                gradient = _times(gradient, upstream, plan)
        return gradient, None, None, None, None, None


def _scale(y: Tensor, mask: Tensor | None, sample_weight: Tensor | None, reduction: str) -> Tensor | float:
    """Return what a sum of losses is multiplied by: of a mean, 1 over what counts, or 1 if nothing does."""
    if reduction != "mean" or not y.numel():
        return 1.0
    if mask is None and sample_weight is None:
        return 1 / y.numel()
    if sample_weight is None:
        total = mask.sum(dtype=torch.float64)  # type: ignore[union-attr]
    else:
        counted = sample_weight if mask is None else torch.where(mask, sample_weight, 0.0)
        total = counted.sum(dtype=torch.float64)
    return torch.where(total > 0, 1 / total, 1.0)


def _times(gradient: Tensor, upstream: Tensor, plan: _Plan) -> Tensor:
    """Return the gradient times one number, or one for each target, in place."""
    each = upstream.unsqueeze(plan.dim) if plan.reduction == "none" else upstream
    if _is_batched(upstream):
        return (gradient * each).to(gradient.dtype)
    if not plan.triton:
        return gradient.mul_(each)
    from howsure.kernels.evidential_loss_triton import scale_by

    return scale_by(gradient, upstream)


def _is_batched(upstream: Tensor) -> bool:
    """Return whether this is many gradients at once, as torch.autograd.grad(…, is_grads_batched=True) has them."""
    kinds = torch._C._functorch
    return bool(kinds.is_batchedtensor(upstream) or kinds.is_legacy_batchedtensor(upstream))


def _differentiable(given: _Given, plan: _Plan, upstream: Tensor) -> Tensor:
    """Return the gradient by the formulas, as a tensor that can be differentiated again."""
    raw, y, weight, mask, sample_weight, scale = given
    own = raw if mask is None else torch.where(mask.unsqueeze(plan.dim), raw, 0.0)
    parameters = nig.from_raw(own, plan.dim)
    y = y if mask is None else torch.where(mask, y, 0.0)
    loss = nig.nll(y, *parameters)
    if plan.penalty != "none":
        loss = loss + weight * penalties.PENALTIES[plan.penalty](y, *parameters)
    if sample_weight is not None:
        loss = loss * sample_weight
    if mask is not None:
        loss = torch.where(mask, loss, 0.0)
    if plan.reduction != "none":
        loss = loss.sum() * scale
    (gradient,) = torch.autograd.grad(loss, raw, upstream, create_graph=True)
    return gradient


# Triton -------------------------------------------------------------------------------------------------------------


def _by_triton(
    given: _Given, plan: _Plan, upstream: Tensor | None, want_loss: bool, want_gradient: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return losses and gradients by the kernel, each if it is wanted."""
    from howsure.kernels import evidential_loss_triton as twin

    raw, y, weight, mask, sample_weight, scale = given
    raw, outer, inner = _in_order(raw, plan.dim)
    each = plan.reduction == "none"
    gradient = torch.empty_like(raw) if want_gradient else None
    if not y.numel():
        return y.new_zeros(y.shape if each else (), dtype=torch.float32) if want_loss else None, gradient
    losses = torch.empty(y.shape, dtype=torch.float32, device=y.device) if want_loss and each else None
    if isinstance(weight, Tensor) and (weight.device != raw.device or weight.numel() != 1):
        on_cpu = weight.device != raw.device  # a number, as losses.evidential_loss sees to
        weight = weight.item() if on_cpu else weight.expand(y.shape).contiguous()
    rows = (t if t is None else t.contiguous() for t in (y, mask, sample_weight, upstream))
    y, mask, sample_weight, upstream = rows  # type: ignore[assignment]
    total = twin.run(
        raw, y, weight,
        outer=outer, inner=inner, penalty=plan.penalty, mask=mask, counts=sample_weight, scale=scale,
        upstream=upstream, losses=losses, gradient=gradient, want_sum=want_loss and not each,
    )  # fmt: skip
    return losses if each else total, gradient


def _in_order(raw: Tensor, dim: int) -> tuple[Tensor, int, int]:
    """Return raw outputs that lie in memory as (outer, 4, inner) in the order of the targets, and the two sizes.

    Maps whose channels lie side by side ("channels last") have inner = 1, as outputs in the last dimension have. Only
    what lies in no such order is copied.
    """
    rest = raw.movedim(dim, -1).shape[:-1]
    for place in reversed(range(raw.ndim)):
        if raw.movedim(dim, place).is_contiguous():
            return raw, rest[:place].numel(), rest[place:].numel()
    return _in_order(raw.contiguous(), dim)


# Tensor operations --------------------------------------------------------------------------------------------------


def _by_tensors(
    given: _Given, plan: _Plan, upstream: Tensor | None, want_loss: bool, want_gradient: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return losses and gradients by tensor operations, each if it is wanted."""
    raw, y, weight, mask, sample_weight, scale = given
    dtype = torch.promote_types(torch.promote_types(raw.dtype, y.dtype), torch.float32)
    each = plan.reduction == "none"
    gradient = torch.empty_like(raw) if want_gradient else None
    loss = y.new_empty(y.shape, dtype=dtype) if want_loss and each else None
    total: Any = y.new_zeros((), dtype=torch.float64 if y.device.type != "mps" else dtype)
    weight = weight.expand(y.shape) if isinstance(weight, Tensor) and weight.ndim else weight
    by_four = None if gradient is None else gradient.movedim(plan.dim, 0)
    four = raw.movedim(plan.dim, 0)
    for part in _parts(y.shape) if y.device.type == "cpu" else ((...,),):
        rows = four[:, *part].to(dtype).contiguous()
        targets, counted = y[part].to(dtype), None if mask is None else mask[part]
        if counted is not None:
            rows, targets = torch.where(counted, rows, 0.0), torch.where(counted, targets, 0.0)
        own = weight[part] if isinstance(weight, Tensor) and weight.ndim else weight
        value, slopes = _closed_form(rows, targets, own, plan.penalty, want_loss, want_gradient)
        times = None if sample_weight is None else sample_weight[part].to(dtype)
        if value is not None:
            value = value if times is None else value * times
            value = value if counted is None else torch.where(counted, value, 0.0)
            if loss is not None:
                loss[part] = value
            else:
                total = total + value.sum()
        if slopes is not None and by_four is not None:
            factor: Any = scale if times is None else scale * times
            factor = factor if upstream is None else factor * upstream[part]
            slopes = slopes * factor if isinstance(factor, Tensor) else slopes.mul_(factor)
            by_four[:, *part] = slopes if counted is None else torch.where(counted, slopes, 0.0)
    if want_loss and not each:
        loss = (total * scale).to(dtype)
    return loss, gradient


def _parts(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield slices of the first dimensions with about ``PART`` targets each."""
    size = math.prod(shape)
    if size <= PART:
        yield (slice(None),) if shape else ()
    elif size // shape[0] > PART:
        for k in range(shape[0]):
            yield from ((slice(k, k + 1), *rest) for rest in _parts(shape[1:]))
    else:
        rows = PART * shape[0] // size
        for first in range(0, shape[0], rows):
            yield (slice(first, first + rows),)


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
    q = (residual * part).clamp_(max=LARGEST)
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
