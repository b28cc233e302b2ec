r"""The Triton twin of :mod:`howsure.kernels.evidential_loss`: inputs are read once, gradients written once.

An element in float32 moves 36 bytes: four raw outputs and the target in, four gradients out. To stay at the speed of
memory, the arithmetic shares one exponential between each softplus and its derivative, takes two hardware logarithms
and seven reciprocals, and polynomials for the rest (:mod:`howsure.kernels.polynomials`): for :math:`\ln(1+x)` with x
in [0, 1], and in powers of :math:`z^{-2}` with :math:`z = \alpha - \tfrac14`

.. math:: \rho(\alpha) = \tfrac12\ln z + z^{-2}H(z^{-2}), \qquad
          \rho'(\alpha) = z^{-1}\bigl(\tfrac12 + z^{-2}K(z^{-2})\bigr).

All arithmetic is float32; raw outputs and targets may be bfloat16 or float16.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from howsure.kernels.polynomials import LOG1P, RHO, RHO_PRIME

__all__ = ["INTERPRETED", "inverse", "log", "loss_and_slopes", "run", "scale_by", "softplus"]

# in the interpreter, which runs kernels on a CPU for tests, there is no machine code
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# Each thread has one target at a time, so that wide loads need no exchange between threads.
SIZE, TILES, WARPS = 256, 8, 8
MIN_TARGETS_FOR_TILES = 1 << 22  # from here on a block takes several tiles. Fewer are divided among all processors

_L = tl.constexpr(tuple(LOG1P))
_H = tl.constexpr(tuple(RHO))
_K = tl.constexpr(tuple(RHO_PRIME))

PENALTY_CODES = {"none": 0, "error": 1, "standard_score": 2}


def run(
    raw: Tensor,
    y: Tensor,
    weight: Tensor | float,
    counts: Tensor | float,
    penalty: str,
    *,
    losses: Tensor | None,
    gradient: Tensor | None,
) -> Tensor:
    """Compute losses and gradients into the tensors ``losses`` and ``gradient``, or return the sum of the losses.

    Args:
        raw: raw outputs (N, 4).
        y: targets (N,).
        weight: λ, a number, a tensor with one number, or (N,).
        counts: the factor of losses and gradients, in the same three forms. A target with 0 may be NaN.
        penalty: a key of ``PENALTY_CODES``.
        losses: contiguous memory (N,), or None for the sum.
        gradient: contiguous memory (N, 4), or None.
    """
    tiles = TILES if len(y) >= MIN_TARGETS_FOR_TILES else 1
    blocks = triton.cdiv(len(y), SIZE * tiles)
    sums = torch.empty(blocks, dtype=torch.float32, device=raw.device)
    (weights, weight_number, weight_form), (factors, factor, form) = _argument(weight), _argument(counts)
    if len(y):
        _loss_and_gradient[(blocks,)](
            raw.contiguous(), y.contiguous(), weights, factors, losses, gradient, None if losses is not None else sums,
            len(y), weight_number, factor,
            PENALTY=PENALTY_CODES[penalty],
            WEIGHT=weight_form,
            COUNTS=form,
            FAST=not INTERPRETED,
            SIZE=SIZE,
            TILES=tiles,
            num_warps=WARPS,
            enable_fp_fusion=True,
        )  # fmt: skip
    return sums.sum()


def _argument(x: Tensor | float) -> tuple[Tensor | None, float, int]:
    """Return a tensor, a number and their form: 0 for a number, 1 for one number in memory, 2 for one each target."""
    if not isinstance(x, Tensor):
        return None, x, 0
    return x.contiguous(), 0.0, 2 if x.ndim else 1


def scale_by(gradient: Tensor, upstream: Tensor) -> Tensor:
    """Return the gradient times a number on the device, in place. If the number is 1, nothing is read or written."""
    size = gradient.numel()
    if size:
        programs = min(triton.cdiv(size, 4096), 1056)  # eight for each processor of an H200
        _scale[(programs,)](gradient, upstream, size, programs * 4096, SIZE=4096, num_warps=8)
    return gradient


@triton.jit
def _scale(values, factor, size, stride, SIZE: tl.constexpr):
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * SIZE, size, stride):
            e = start + tl.arange(0, SIZE)
            x = tl.load(values + e, mask=e < size)
            tl.store(values + e, (x.to(tl.float32) * by).to(x.dtype), mask=e < size)


@triton.jit
def _loss_and_gradient(
    raw, y, weight, counts, losses, gradient, sums,
    size, weight_number, count_number,
    PENALTY: tl.constexpr, WEIGHT: tl.constexpr, COUNTS: tl.constexpr, FAST: tl.constexpr,
    SIZE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Compute ``TILES`` times ``SIZE`` targets."""
    block = tl.program_id(0)
    shared_weight, shared_count = weight_number, count_number
    if WEIGHT == 1:
        shared_weight = tl.load(weight).to(tl.float32)
    if COUNTS == 1:
        shared_count = tl.load(counts).to(tl.float32)
    total = tl.zeros((SIZE,), tl.float32)
    for tile in range(TILES):
        # the four of a target side by side: one wide load, taken apart in registers
        e = (block.to(tl.int64) * TILES + tile) * SIZE + tl.arange(0, SIZE)
        inside = e < size
        at = 4 * e[:, None] + tl.arange(0, 4)[None, :]
        all_four = tl.load(raw + at, mask=inside[:, None], other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(all_four, (SIZE, 2, 2)))
        gamma, raw_alpha = tl.split(even)
        raw_nu, raw_beta = tl.split(odd)
        lam, factor, counted = shared_weight, shared_count, inside
        if COUNTS == 2:
            factor = tl.load(counts + e, mask=inside, other=0.0).to(tl.float32)
            counted = inside & (factor != 0)
            # targets that do not count may be NaN
            gamma, raw_nu = tl.where(counted, gamma, 0.0), tl.where(counted, raw_nu, 0.0)
            raw_alpha, raw_beta = tl.where(counted, raw_alpha, 0.0), tl.where(counted, raw_beta, 0.0)
        target = tl.load(y + e, mask=counted, other=0.0).to(tl.float32)
        if WEIGHT == 2:
            lam = tl.load(weight + e, mask=counted, other=0.0).to(tl.float32)
        value, _, by_gamma, by_nu, by_alpha, by_beta = loss_and_slopes(
            gamma, raw_nu, raw_alpha, raw_beta, target, lam, factor, PENALTY, FAST
        )
        if losses is not None:
            tl.store(losses + e, value.to(losses.dtype.element_ty), mask=inside)
        if sums is not None:
            total += tl.where(inside, value, 0.0)
        if gradient is not None:
            together = tl.join(tl.join(by_gamma, by_alpha), tl.join(by_nu, by_beta))
            together = tl.reshape(together, (SIZE, 4)).to(gradient.dtype.element_ty)
            tl.store(gradient + at, together, mask=inside[:, None])
    if sums is not None:
        tl.store(sums + block, tl.sum(total, 0))


@triton.jit
def loss_and_slopes(gamma, raw_nu, raw_alpha, raw_beta, target, lam, factor, PENALTY: tl.constexpr, FAST: tl.constexpr):
    """Return loss and penalty of each target, and the gradient of the loss by the four raw outputs.

    Loss and gradient are multiplied by ``factor``. The penalty is multiplied neither by that nor by λ. Results that the
    caller does not use cost nothing: the function is inlined, and the compiler removes their arithmetic.
    """
    nu, nu_slope = softplus(raw_nu, FAST)
    a, alpha_slope = softplus(raw_alpha, FAST)
    beta, beta_slope = softplus(raw_beta, FAST)
    nu, a, beta = nu + 1e-6, a + 1e-6, beta + 1e-9  # the floors of formulas.nig.from_raw
    r = target - gamma
    inverse_nu = inverse(nu, FAST)
    width = beta + beta * inverse_nu
    inverse_width = inverse(width, FAST)
    pull = r * inverse_width
    q = tl.minimum(0.5 * r * pull, 1e37, propagate_nan=tl.PropagateNan.ALL)  # an overflow would become NaN
    fit = tl.where(q < 1, q * _polynomial(tl.minimum(q, 1.0), _L), log(1 + q, FAST))
    inverse_z = inverse(0.75 + a, FAST)
    u = inverse_z * inverse_z
    slope = (1.5 + a) * inverse(1 + q, FAST)
    excess = slope * q - 0.5
    by_gamma = -slope * pull
    by_alpha = fit - inverse_z * (0.5 + u * _polynomial(u, _K))
    penalty = tl.zeros_like(r)
    if PENALTY != 0:
        evidence, unit, size = 2 * nu + (1 + a), lam, tl.abs(r)
        if PENALTY == 2:
            relative = tl.sqrt((1 + a) * inverse_width)
            unit, size = unit * relative, size * relative
        penalty, score = size * evidence, unit * tl.abs(r)
        sign = tl.minimum(tl.maximum(r * 3e38, -1.0), 1.0)  # 0 of 0, as everywhere
        by_gamma -= sign * (unit * evidence)
        by_alpha += score
    if PENALTY == 2:  # this penalty scales with ν and β as the likelihood does
        half = 0.5 * score * evidence
        excess += half
        by_alpha += half * inverse(1 + a, FAST)
    by_nu = excess * (inverse_nu * inverse_nu * (beta * inverse_width))  # times 1/(ν(ν+1))
    by_beta = -excess * ((1 + inverse_nu) * inverse_width)
    loss = 0.5 * log(6.283185307179586 * (width * inverse_z), FAST) + (1.5 + a) * fit - u * _polynomial(u, _H)
    if PENALTY != 0:
        by_nu += 2 * score
        loss += score * evidence
    by_nu, by_alpha = by_nu * (nu_slope * factor), by_alpha * (alpha_slope * factor)
    return loss * factor, penalty, by_gamma * factor, by_nu, by_alpha, by_beta * (beta_slope * factor)


@triton.jit
def softplus(x, FAST: tl.constexpr):
    """Return ln(1 + eˣ) and its derivative, which share an exponential."""
    e = tl.exp2(-1.4426950408889634 * tl.abs(x))
    share = inverse(1 + e, FAST)
    return tl.maximum(x, 0.0) + e * _polynomial(e, _L), tl.where(x > 0, share, e * share)


@triton.jit
def _polynomial(x, C: tl.constexpr):
    """Return Σ C[k]·xᵏ by Horner's rule."""
    last: tl.constexpr = len(C.value) - 1
    total = tl.full(x.shape, C.value[last], tl.float32)
    for k in tl.static_range(1, last + 1):
        total = total * x + C.value[last - k]
    return total


@triton.jit
def inverse(x, FAST: tl.constexpr):
    """Return 1/x."""
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return 1.0 / x


@triton.jit
def log(x, FAST: tl.constexpr):
    """Return ln x; of a number near 1 the absolute error is 2e-7, and the kernel needs no more."""
    if FAST:
        binary = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
        return 0.6931471805599453 * binary
    return tl.log(x)
