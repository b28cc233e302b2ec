"""Training of many networks with one hidden layer, each by one program that keeps its weights in registers (Triton).

A step of a network with 50 units on a batch of one row is a few thousand multiplications, but as tensor operations it
is two hundred kernels that run one after the other. Here one kernel takes many steps: each program reads the rows of
its network and nothing else, and the latency of the chain row → forward → backward → Adam limits the speed.

The steps are those of the training loop, up to rounding: the same rows, the same loss, the same Adam. Gradients are
written by hand; ``tests/test_cuda.py`` compares them with autograd.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Likelihood", "Rows", "run_steps"]


class Rows(NamedTuple):
    """Data for a number of steps: a table, the rows of every step, and each member's scaling."""

    x: Tensor  # (N, F)
    y: Tensor  # (N, 1)
    chosen: Tensor  # (M, steps, B): row numbers of every step
    loc_x: Tensor  # (M, F): each member's own scaling
    scale_x: Tensor
    loc_y: Tensor  # (M,)
    scale_y: Tensor


class Likelihood(NamedTuple):
    """Loss: Gaussian, or evidential with a penalty weight per member.

    After each step the weight grows by ``ascent`` times (mean penalty − ``aim``).
    """

    evidential: bool
    weight: Tensor  # (M,), changed in place
    ascent: float = 0.0
    aim: float = 0.0


def run_steps(
    state: Tensor,
    sizes: tuple[int, int, int],
    rows: Rows,
    likelihood: Likelihood,
    rates: Tensor,
    roots: Tensor,
    *,
    keep: Tensor | None = None,
    prior_std: Tensor | None = None,
    complexity: Tensor | None = None,
    noise: Tensor | None = None,
    warps: int = 4,
) -> Tensor:
    """Take as many steps as ``rates`` has entries, in place, and return each member's last loss, (M,).

    Args:
        state: (3, M, P): parameters and Adam's two moments. A member's P numbers are W1, W2, b1, b2, followed, for
            weights with a distribution, by their raw deviations in the same order.
        sizes: numbers of inputs, hidden units and outputs.
        rows: the data of these steps.
        likelihood: the loss; its weight is changed in place.
        rates, roots: (steps,): the learning rate divided by 1 − β₁ᵗ, and 1/√(1 − β₂ᵗ).
        keep: (M,), for dropout: 1 − the dropout rate. ``noise`` is then uniform, (M, steps, B, hidden).
        prior_std, complexity: (M,), for Bayes by backprop: deviation of the prior, and the weight of the divergence in
            the loss of a row. ``noise`` is then normal, (M, steps, B, hidden + outputs).
        noise: random numbers for dropout or Bayes by backprop.
        warps: warps per program.
    """
    inputs, hidden, outputs = sizes
    members, size = state.shape[1:]
    loss = torch.zeros(members, device=state.device)
    one = likelihood.weight  # placeholder for an absent tensor; the kernel never reads it
    _steps[(members,)](
        *(state[0], state[1], state[2]),
        *rows,
        *(one if t is None else t for t in (noise, keep, prior_std, complexity)),
        *(likelihood.weight, rates, roots, loss),
        *(len(rates), rows.chosen.shape[2], size, likelihood.ascent, likelihood.aim),
        F=inputs,
        H=hidden,
        O=outputs,
        FP=max(2, triton.next_power_of_2(inputs)),
        HP=max(16, triton.next_power_of_2(hidden)),
        EVIDENTIAL=likelihood.evidential,
        DROPOUT=keep is not None,
        BAYES=prior_std is not None,
        num_warps=warps,
    )
    return loss


@triton.jit
def _steps(
    p, m, v,
    x, y, chosen, loc_x, scale_x, loc_y, scale_y,
    noise, keep, prior_std, complexity,
    weight, rates, roots, loss,
    steps, batch, size, ascent, aim,
    F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr,
    EVIDENTIAL: tl.constexpr, DROPOUT: tl.constexpr, BAYES: tl.constexpr,
):  # fmt: skip
    me = tl.program_id(0)
    f, h, o = tl.arange(0, FP), tl.arange(0, HP), tl.arange(0, O)
    p, m, v = p + me * size, m + me * size, v + me * size
    half: tl.constexpr = F * H + H * O + H + O
    w1, w2, b1, b2 = _load(p, F, H, O, FP, HP)
    mw1, mw2, mb1, mb2 = _load(m, F, H, O, FP, HP)
    vw1, vw2, vb1, vb2 = _load(v, F, H, O, FP, HP)
    if BAYES:
        s1, s2, c1, c2 = _load(p + half, F, H, O, FP, HP)
        ms1, ms2, mc1, mc2 = _load(m + half, F, H, O, FP, HP)
        vs1, vs2, vc1, vc2 = _load(v + half, F, H, O, FP, HP)
        prior = tl.load(prior_std + me)
        pull = tl.load(complexity + me)
    lx = tl.load(loc_x + me * F + f, mask=f < F, other=0.0)
    sx = tl.load(scale_x + me * F + f, mask=f < F, other=1.0)
    ly, sy = tl.load(loc_y + me), tl.load(scale_y + me)
    lam = tl.load(weight + me)
    if DROPOUT:
        kept = tl.load(keep + me)
    mean_loss = tl.full((), 0.0, tl.float32)

    for step in range(steps):
        gw1, gb1 = tl.zeros((FP, HP), tl.float32), tl.zeros((HP,), tl.float32)
        gw2, gb2 = tl.zeros((O, HP), tl.float32), tl.zeros((O,), tl.float32)
        if BAYES:  # gradients by the squared deviations
            gs1, gc1 = tl.zeros((FP, HP), tl.float32), tl.zeros((HP,), tl.float32)
            gs2, gc2 = tl.zeros((O, HP), tl.float32), tl.zeros((O,), tl.float32)
            d1, d2, e1, e2 = _softplus(s1), _softplus(s2), _softplus(c1), _softplus(c2)
        mean_loss, excess = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)
        for b in range(batch):
            place = (me * steps + step) * batch + b
            row = tl.load(chosen + place)
            xr = (tl.load(x + row * F + f, mask=f < F, other=0.0) - lx) / sx
            yr = (tl.load(y + row) - ly) / sy
            pre = b1 + tl.sum(xr[:, None] * w1, 0)
            if BAYES:
                e = tl.load(noise + place * (H + O) + h, mask=h < H, other=0.0)
                root1 = tl.sqrt(e1 * e1 + tl.sum((xr * xr)[:, None] * d1 * d1, 0))
                pre += root1 * e
            on = (pre > 0).to(tl.float32)
            if DROPOUT:
                u = tl.load(noise + place * H + h, mask=h < H, other=1.0)
                on *= tl.where(u < kept, 1 / kept, 0.0)
            a = tl.where(h < H, pre * on, 0.0)
            out = b2 + tl.sum(w2 * a[None, :], 1)
            if BAYES:
                eo = tl.load(noise + place * (H + O) + H + o)
                root2 = tl.sqrt(e2 * e2 + tl.sum((a * a)[None, :] * d2 * d2, 1))
                out += root2 * eo
            if EVIDENTIAL:
                each, over, d = _evidential(out, o, yr, lam)
                excess += over - aim
            else:
                each, d = _gaussian(out, o, yr)
            mean_loss += each
            gw2 += d[:, None] * a[None, :]
            gb2 += d
            da = tl.sum(w2 * d[:, None], 0)
            if BAYES:
                dv = d * eo / (2 * root2)
                gs2 += dv[:, None] * (a * a)[None, :]
                gc2 += dv
                da += 2 * a * tl.sum(d2 * d2 * dv[:, None], 0)
            da *= on
            gw1 += xr[:, None] * da[None, :]
            gb1 += da
            if BAYES:
                du = tl.where(h < H, da * e / (2 * root1), 0.0)
                gs1 += (xr * xr)[:, None] * du[None, :]
                gc1 += du
        rate, root = tl.load(rates + step), tl.load(roots + step)
        gw1, gw2, gb1, gb2 = gw1 / batch, gw2 / batch, gb1 / batch, gb2 / batch
        if BAYES:
            # divergence from N(0, prior²/inputs)
            tight = 1 / (prior * prior)
            gw1, gw2 = gw1 + pull * F * tight * w1, gw2 + pull * H * tight * w2
            gb1, gb2 = gb1 + pull * tight * b1, gb2 + pull * tight * b2
            s1, ms1, vs1 = _adam(s1, ms1, vs1, _by_raw(gs1 / batch, d1, s1, pull, F * tight), rate, root)
            s2, ms2, vs2 = _adam(s2, ms2, vs2, _by_raw(gs2 / batch, d2, s2, pull, H * tight), rate, root)
            c1, mc1, vc1 = _adam(c1, mc1, vc1, _by_raw(gc1 / batch, e1, c1, pull, tight), rate, root)
            c2, mc2, vc2 = _adam(c2, mc2, vc2, _by_raw(gc2 / batch, e2, c2, pull, tight), rate, root)
        w1, mw1, vw1 = _adam(w1, mw1, vw1, gw1, rate, root)
        w2, mw2, vw2 = _adam(w2, mw2, vw2, gw2, rate, root)
        b1, mb1, vb1 = _adam(b1, mb1, vb1, gb1, rate, root)
        b2, mb2, vb2 = _adam(b2, mb2, vb2, gb2, rate, root)
        lam += ascent * excess / batch

    _store(p, w1, w2, b1, b2, F, H, O, FP, HP)
    _store(m, mw1, mw2, mb1, mb2, F, H, O, FP, HP)
    _store(v, vw1, vw2, vb1, vb2, F, H, O, FP, HP)
    if BAYES:
        _store(p + half, s1, s2, c1, c2, F, H, O, FP, HP)
        _store(m + half, ms1, ms2, mc1, mc2, F, H, O, FP, HP)
        _store(v + half, vs1, vs2, vc1, vc2, F, H, O, FP, HP)
    tl.store(weight + me, lam)
    tl.store(loss + me, mean_loss / batch)


@triton.jit
def _load(base, F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr):
    """Return W1 (FP, HP), W2 (O, HP), b1 (HP), b2 (O), padded with zeros."""
    f, h, o = tl.arange(0, FP)[:, None], tl.arange(0, HP), tl.arange(0, O)
    w1 = tl.load(base + f * H + h[None, :], mask=(f < F) & (h < H)[None, :], other=0.0)
    base += F * H
    w2 = tl.load(base + h[None, :] * O + o[:, None], mask=(h < H)[None, :] & (o >= 0)[:, None], other=0.0)
    base += H * O
    return w1, w2, tl.load(base + h, mask=h < H, other=0.0), tl.load(base + H + o)


@triton.jit
def _store(base, w1, w2, b1, b2, F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr):
    f, h, o = tl.arange(0, FP)[:, None], tl.arange(0, HP), tl.arange(0, O)
    tl.store(base + f * H + h[None, :], w1, mask=(f < F) & (h < H)[None, :])
    base += F * H
    tl.store(base + h[None, :] * O + o[:, None], w2, mask=(h < H)[None, :] & (o >= 0)[:, None])
    base += H * O
    tl.store(base + h, b1, mask=h < H)
    tl.store(base + H + o, b2)


@triton.jit
def _adam(p, m, v, g, rate, root):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - rate * m / (tl.sqrt(v) * root + 1e-8), m, v


@triton.jit
def _by_raw(by_square, deviation, raw, pull, tight):
    """Return the gradient by a raw deviation: of the fit, through σ² and the softplus, plus that of the divergence."""
    return (2 * deviation * by_square + pull * (tight * deviation - 1 / deviation)) * tl.sigmoid(raw)


@triton.jit
def _log1p(x):
    """Return ln(1 + x), exact for small x: the rounding of 1 + x cancels in log(1 + x)/((1 + x) − 1)."""
    u = 1 + x
    return tl.where(u == 1, x, tl.log(u) * x / tl.where(u == 1, 1.0, u - 1))


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + _log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _pick(values, o, k):
    return tl.sum(tl.where(o == k, values, 0.0), 0)


@triton.jit
def _evidential(out, o, y, lam):
    """Return loss, penalty, and the loss's gradient by the raw outputs (as formulas.nig.nll and penalties.error)."""
    # γ, ν, α−1, β as one vector of four, with the floors of nig.from_raw
    floors = tl.where(o == 3, 1e-9, tl.where(o == 0, 0.0, 1e-6))
    values = tl.where(o == 0, out, _softplus(out) + floors)
    gamma, nu, a, beta = _pick(values, o, 0), _pick(values, o, 1), _pick(values, o, 2), _pick(values, o, 3)
    r = y - gamma
    spread = 1 + 1 / nu
    q = r * (r / (2 * beta * spread))
    fit = _log1p(q)
    share = (1.5 + a) / (1 + q)
    evidence = 2 * nu + 1 + a
    size = tl.abs(r)
    sign = tl.where(r > 0, 1.0, tl.where(r < 0, -1.0, 0.0))
    rho, rho_prime = _half_step(1 + a)
    nll = 0.918938533204672742 + 0.5 * (tl.log(beta) + _log1p(1 / nu)) + (1.5 + a) * fit - rho
    d_gamma = -share * r / (beta * spread) - lam * sign * evidence
    d_nu = (share * q - 0.5) / (nu * (nu + 1)) + 2 * lam * size
    d_a = fit - rho_prime + lam * size
    d_beta = (0.5 - share * q) / beta
    d = tl.where(o == 0, d_gamma, tl.where(o == 1, d_nu, tl.where(o == 2, d_a, d_beta)))
    return nll + lam * size * evidence, size * evidence, tl.where(o == 0, d, d * tl.sigmoid(out))


@triton.jit
def _half_step(x):
    """Return ρ(x) = lnΓ(x+½) − lnΓ(x) and ρ′(x), by four steps of the recurrence and the series of formulas.special."""
    down, slope = 0.0, 0.0
    for k in tl.static_range(4):
        down += _log1p(0.5 / (x + k))
        slope += 0.5 / ((x + k) * (x + k + 0.5))
    z = x + 4
    r2 = 1 / (z * z)
    # −2(1 − 4⁻ᵏ)B₂ₖ/(2k(2k−1)) for k = 1 … 4, and −(2k−1) times these
    series = -0.125 + r2 * (0.005208333333333333 + r2 * (-0.0015625 + r2 * 0.0011858258928571428))
    series_prime = 0.125 + r2 * (-0.015625 + r2 * (0.0078125 - r2 * 0.00830078125))
    return 0.5 * tl.log(z) + series / z - down, 0.5 / z + series_prime * r2 + slope


@triton.jit
def _gaussian(out, o, y):
    """Return the loss and its gradient by mean and raw deviation (as evidentia.formulas.gaussian)."""
    sigma = _softplus(_pick(out, o, 1)) + 1e-6
    z = (y - _pick(out, o, 0)) / sigma
    d = tl.where(o == 0, -z / sigma, (1 - z * z) / sigma * tl.sigmoid(out))
    return 0.918938533204672742 + tl.log(sigma) + 0.5 * z * z, d
