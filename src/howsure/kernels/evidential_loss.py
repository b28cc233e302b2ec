r"""Loss and gradient of an evidential network in one pass from its raw outputs, without a graph of twenty operations.

The same loss as ``formulas.nig.from_raw``, ``formulas.nig.nll`` and a penalty of ``formulas.penalties``, with their
derivatives written out. With :math:`r = y - \gamma`, :math:`q = r^2 / (2\beta(1 + 1/\nu))` and
:math:`k = (\alpha + \tfrac12)\,q/(1+q)` the derivatives of the likelihood are

.. math:: \frac{\partial L}{\partial\gamma} = -\frac{2k}r, \quad
          \frac{\partial L}{\partial\nu} = \frac{k - \frac12}{\nu(\nu+1)}, \quad
          \frac{\partial L}{\partial\alpha} = \ln(1+q) - \rho'(\alpha), \quad
          \frac{\partial L}{\partial\beta} = \frac{\frac12 - k}\beta.

There are two implementations: tensor operations for every device, in parts that fit into a processor's cache; and a
Triton kernel (:mod:`howsure.kernels.evidential_loss_triton`) for CUDA.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from howsure.errors import InputError
from howsure.formulas import nig, penalties
from howsure.formulas.nig import ALPHA_MINUS_ONE_FLOOR, BETA_FLOOR, NU_FLOOR
from howsure.formulas.special import LOG_2PI, rho, rho_prime
from howsure.kernels.polynomials import RHO, RHO_PRIME

__all__ = ["PENALTIES", "evidential_loss_from_raw", "uses_triton"]

PENALTIES = ("error", "standard_score")

# Largest q: an infinite q would become NaN. It is reached where errors are 1e18 times as large as expected.
MAX_Q = 1e37

# Targets that are computed at once on a CPU: their dozen intermediate results stay in its cache.
PART = 1 << 17


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

    It is :func:`howsure.evidential_loss` without most of its checks and without a distribution object. Only ``raw``
    gets a gradient. With ``create_graph=True``, and for many gradients at once, the formulas compute it instead.

    Args:
        raw: four raw outputs along ``dim``, floating point.
        y: targets, of the shape of ``raw`` without that dimension.
        weight: λ, a number or a tensor that broadcasts to y.
        penalty: "error" or "standard_score".
        dim: the dimension of size 4.
        mask: True where a target counts. Targets that do not count may be NaN, and so may their raw outputs.
        sample_weight: weights of the targets, of the shape of y. A target with weight 0 does not count.
        reduction: "mean" over the targets that count, "sum", or "none".

    Returns:
        A scalar, or with ``reduction="none"`` a tensor of the shape of y.

    Raises:
        InputError: for shapes that do not fit, and an unknown penalty or reduction.

    >>> raw, y = torch.zeros(3, 4, requires_grad=True), torch.zeros(3)
    >>> evidential_loss_from_raw(raw, y)
    tensor(0.9918, grad_fn=<_LossFromRawBackward>)
    """
    rows = raw.movedim(dim, -1)
    if rows.shape[-1] != 4 or rows.shape[:-1] != y.shape:
        raise InputError(f"raw outputs of shape {tuple(raw.shape)} do not fit targets of shape {tuple(y.shape)}")
    if penalty not in PENALTIES or reduction not in ("mean", "sum", "none"):
        raise InputError(f"unknown penalty {penalty!r} or reduction {reduction!r}")
    if not isinstance(weight, Tensor):
        penalty = penalty if weight else "none"
    elif weight.numel() == 1:
        weight = weight.reshape(()) if weight.device == y.device else weight.item()
    else:
        weight = weight.to(_at_least_float32(raw, y)).expand(y.shape).reshape(-1)
    counts = _counts(raw, y, mask, sample_weight, reduction)
    each = reduction == "none"
    loss: Tensor = _LossFromRaw.apply(rows.reshape(-1, 4), y.reshape(-1), weight, counts, penalty, each)
    return loss.view(y.shape) if each else loss


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
    counts = counts.reshape(-1)
    if reduction != "mean":
        return counts
    total = counts.sum(dtype=torch.float64)
    return counts / torch.where(total > 0, total, 1.0)


def _at_least_float32(raw: Tensor, y: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(raw.dtype, y.dtype), torch.float32)


class _LossFromRaw(torch.autograd.Function):
    """Loss of raw outputs (N, 4) and targets (N,); weight and counts are numbers, one in memory, or (N,)."""

    @staticmethod
    def forward(
        ctx: Any, raw: Tensor, y: Tensor, weight: Tensor | float, counts: Tensor | float, penalty: str, each: bool
    ) -> Tensor:
        ctx.penalty, ctx.each, ctx.triton = penalty, each, uses_triton(raw, y)
        # With reduction "none" each loss has an upstream gradient, and the kernel waits for it. float16 waits too: the
        # upstream gradient can be a factor that keeps the gradient inside the range of float16.
        late = raw.dtype == torch.float16 or (ctx.triton and each)
        gradient = raw.new_empty(raw.shape) if ctx.needs_input_grad[0] and not late else None
        losses = y.new_empty(y.shape, dtype=_at_least_float32(raw, y)) if each else None
        total = _backend(ctx.triton)(raw, y, weight, counts, penalty, losses=losses, gradient=gradient)
        ctx.gradient = gradient
        ctx.save_for_backward(raw, y, *(t for t in (weight, counts) if isinstance(t, Tensor)))
        ctx.numbers = tuple(None if isinstance(t, Tensor) else t for t in (weight, counts))
        return total if losses is None else losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None  # a second backward pass computes it again
        raw, y, *others = ctx.saved_tensors
        rest = iter(others)
        weight, counts = (next(rest) if number is None else number for number in ctx.numbers)
        if ctx.each and isinstance(counts, Tensor):
            upstream = torch.where(counts != 0, upstream, 0.0)  # targets that do not count may have NaN upstream
        if torch.is_grad_enabled() or _is_batched(upstream):
            gradient = _by_formulas(raw, y, weight, counts, ctx.penalty, ctx.each, upstream)
        elif gradient is None:
            gradient = raw.new_empty(raw.shape)
            _backend(ctx.triton)(raw, y, weight, counts * upstream, ctx.penalty, losses=None, gradient=gradient)
        elif ctx.triton:
            from howsure.kernels.evidential_loss_triton import scale_by

            gradient = scale_by(gradient, upstream)
        else:
            gradient = gradient.mul_(upstream.unsqueeze(-1))
        return gradient, None, None, None, None, None


def _is_batched(upstream: Tensor) -> bool:
    """Return whether this is many gradients at once, as torch.autograd.grad(…, is_grads_batched=True) has them."""
    kinds = torch._C._functorch
    return bool(kinds.is_batchedtensor(upstream) or kinds.is_legacy_batchedtensor(upstream))


def _by_formulas(
    raw: Tensor,
    y: Tensor,
    weight: Tensor | float,
    counts: Tensor | float,
    penalty: str,
    each: bool,
    upstream: Tensor,
) -> Tensor:
    """Return the gradient by the formulas, which can be differentiated again where gradients are recorded."""
    own, again = raw, torch.is_grad_enabled()
    with torch.enable_grad():
        if isinstance(counts, Tensor):
            counted = counts != 0
            own, y = torch.where(counted.unsqueeze(-1), raw, 0.0), torch.where(counted, y, 0.0)
        parameters = nig.from_raw(own)
        loss = nig.nll(y, *parameters)
        if penalty != "none":
            loss = loss + weight * penalties.PENALTIES[penalty](y, *parameters)
        loss = loss * counts if each else (loss * counts).sum()
    (gradient,) = torch.autograd.grad(loss, raw, upstream, create_graph=again)
    return gradient


def _backend(triton: bool) -> Callable[..., Tensor]:
    """Return the function that computes losses and gradients into memory, and returns the sum of the losses."""
    if not triton:
        return _by_tensors
    from howsure.kernels.evidential_loss_triton import run

    return run


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
) -> Tensor:
    """Compute losses and gradients by tensor operations; arguments as of the Triton kernel's ``run``."""
    dtype = _at_least_float32(raw, y)
    total = y.new_zeros((), dtype=torch.float64 if y.device.type != "mps" else dtype)
    step = PART if y.device.type == "cpu" else max(1, len(y))
    for part in (slice(first, first + step) for first in range(0, len(y), step)):
        rows, targets = raw[part].t().to(dtype).contiguous(), y[part].to(dtype)
        lam, count = (t[part] if isinstance(t, Tensor) and t.ndim else t for t in (weight, counts))
        if isinstance(count, Tensor) and count.ndim:
            counted = count != 0
            rows, targets = torch.where(counted, rows, 0.0), torch.where(counted, targets, 0.0)
        value, slopes = _closed_form(rows, targets, lam, penalty, gradient is not None)
        value = value * count
        if losses is not None:
            losses[part] = value
        else:
            total = total + value.sum()
        if gradient is not None and slopes is not None:
            gradient[part] = slopes.mul_(count).t()
    return total.to(dtype)


def _closed_form(
    rows: Tensor, y: Tensor, weight: Tensor | float, penalty: str, want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return losses, and their derivatives by raw outputs (4, N), of raw outputs (4, N) and targets (N,)."""
    nu, a, beta = softplus(rows[1:], threshold=40).unbind(0)
    nu, a, beta = nu.add_(NU_FLOOR), a.add_(ALPHA_MINUS_ONE_FLOOR), beta.add_(BETA_FLOOR)
    residual, inverse = y - rows[0], nu.reciprocal()
    spread = inverse + 1
    width = beta * spread
    part = residual / (2 * width)
    q = (residual * part).clamp_(max=MAX_Q)
    fit, exponent = torch.log1p(q), a + 1.5
    evidence = torch.add(a, nu, alpha=2).add_(1)
    half_log, rho_prime = _rho(a)  # ln of 2π times the width, minus 2ρ, is one logarithm less
    unit: Any = weight
    if penalty == "standard_score":
        unit = weight * ((1 + a) / width).sqrt_()
    score = None if penalty == "none" else unit * residual.abs()
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
        return rho(1 + a), rho_prime(1 + a)
    z = a + 0.75
    inverse = z.reciprocal()
    u = inverse * inverse
    value = _horner(u, RHO).mul_(u).add_(z.log_(), alpha=0.5)
    return value, _horner(u, RHO_PRIME).mul_(u).add_(0.5).mul_(inverse)


def _horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total.add_(c).mul_(x)
    return total.add_(coefficients[0])
