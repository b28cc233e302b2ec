"""Training of many networks with one hidden layer, each by one program that keeps its weights in registers (Triton).

A step of a network with 50 units on a batch of one row is a few thousand multiplications, but as tensor operations it
is two hundred kernels that run one after the other. Here one kernel takes many steps: each program reads the rows of
its network and nothing else, and the latency of the chain row → forward → backward → Adam limits the speed.

A batch of fewer than 16 rows is taken row by row, a larger one in tiles of 16, 32 or 64 rows. Inside the kernel rows
are always a matrix: x (B, inputs), hidden units (B, H), outputs (B, O), with B = 1 or the rows of a tile. Sizes that
are no power of two are padded with zeros, which stay zero.

The steps are those of the training loop, up to rounding: the same rows, the same loss, the same Adam. Gradients are
written by hand; ``tests/test_small_networks.py`` compares them with autograd.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from howsure.kernels.evidential_loss_triton import INTERPRETED, inverse, log, loss_and_slopes, softplus

__all__ = ["Likelihood", "Rows", "run_steps"]

SHORTEST_DOT = 16  # the shortest sums of products that tl.dot takes
_SHORTEST_DOT = tl.constexpr(SHORTEST_DOT)


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
    warps: int | None = None,
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
        warps: warps per program (default: 8 for tiles of rows and for large Bayesian networks, otherwise 4).
    """
    inputs, hidden, outputs = sizes
    members, size = state.shape[1:]
    batch, bayes = rows.chosen.shape[2], prior_std is not None
    units = max(SHORTEST_DOT, triton.next_power_of_2(hidden))
    tile = _tile(batch, units, bayes)
    loss = torch.zeros(members, device=state.device)
    one = likelihood.weight  # placeholder for an absent tensor; the kernel never reads it
    _steps[(members,)](
        *(state[0], state[1], state[2]),
        *rows,
        *(one if t is None else t for t in (noise, keep, prior_std, complexity)),
        *(likelihood.weight, rates, roots, loss),
        *(len(rates), batch, size, likelihood.ascent, likelihood.aim),
        F=inputs,
        H=hidden,
        O=outputs,
        FP=max(2 if tile == 1 else SHORTEST_DOT, triton.next_power_of_2(inputs)),
        HP=units,
        B=tile,
        EVIDENTIAL=likelihood.evidential,
        DROPOUT=keep is not None,
        BAYES=bayes,
        FAST=not INTERPRETED,
        num_warps=warps or (8 if tile > 1 or (bayes and units > 64) else 4),
        num_stages=1,  # a batch is few tiles: a pipeline of loads would only take registers
    )
    return loss


def _tile(batch: int, units: int, bayes: bool) -> int:
    """Return how many rows of a batch the kernel takes at a time, so that a tile's hidden units fit into registers."""
    fitting = (2048 if bayes else 4096) // units
    return 1 if batch < SHORTEST_DOT else min(64, fitting, triton.next_power_of_2(batch))


@triton.jit(do_not_specialize=["steps", "size"])  # or some numbers of steps would be compiled anew
def _steps(
    p, m, v,
    x, y, chosen, loc_x, scale_x, loc_y, scale_y,
    noise, keep, prior_std, complexity,
    weight, rates, roots, loss,
    steps, batch, size, ascent, aim,
    F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr, B: tl.constexpr,
    EVIDENTIAL: tl.constexpr, DROPOUT: tl.constexpr, BAYES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Take all steps of one network. A digit in a name is that of the layer."""
    me = tl.program_id(0).to(tl.int64)
    p, m, v = p + me * size, m + me * size, v + me * size
    p1, p2 = _load(p, F, H, O, FP, HP, BAYES)
    m1, m2 = _load(m, F, H, O, FP, HP, BAYES)
    v1, v2 = _load(v, F, H, O, FP, HP, BAYES)
    scaling = _load_scaling(loc_x + me * F, scale_x + me * F, loc_y + me, scale_y + me, F, FP)
    lam = tl.load(weight + me)
    total = tl.zeros((B,), tl.float32)
    for step in range(steps):
        rate, root = tl.load(rates + step), tl.load(roots + step)
        q1, q2 = _means_and_variances(p1, BAYES, FAST), _means_and_variances(p2, BAYES, FAST)
        g1, g2 = _zeros(q1, BAYES), _zeros(q2, BAYES)
        total, penalty = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
        for start in range(0, batch, B):
            place = (me * steps + step) * batch + start + tl.arange(0, B)
            inside = start + tl.arange(0, B) < batch
            rows, targets = _load_rows(x, y, chosen + place, inside, scaling, F, FP)
            e1, e2 = _load_noise(noise, place, inside, H, O, HP, DROPOUT, BAYES)
            before, by_variance1 = _forward(rows, q1, e1, BAYES)
            on = _switch(before, e1, keep + me, DROPOUT)
            hidden = before * on
            out, by_variance2 = _forward(hidden, q2, e2, BAYES)
            each, over, slope2 = _loss(out, targets, lam, 1.0 / batch, EVIDENTIAL, FAST)
            total += tl.where(inside, each, 0.0)
            penalty += tl.where(inside, over, 0.0)
            slope2 = tl.where(inside[:, None], slope2, 0.0)
            slope1 = on * _by_inputs(hidden, q2, slope2, by_variance2, BAYES)
            g2 = _accumulate(g2, hidden, slope2, by_variance2, BAYES)
            g1 = _accumulate(g1, rows, slope1, by_variance1, BAYES)
        if BAYES:
            g1 = _by_raw(g1, p1, prior_std + me, complexity + me, F, FAST)
            g2 = _by_raw(g2, p2, prior_std + me, complexity + me, H, FAST)
        p1, m1, v1 = _update(p1, m1, v1, g1, rate, root, BAYES, FAST)
        p2, m2, v2 = _update(p2, m2, v2, g2, rate, root, BAYES, FAST)
        lam += ascent * (tl.sum(penalty, 0) / batch - aim)

    _store(p, p1, p2, F, H, O, FP, HP, BAYES)
    _store(m, m1, m2, F, H, O, FP, HP, BAYES)
    _store(v, v1, v2, F, H, O, FP, HP, BAYES)
    tl.store(weight + me, lam)
    tl.store(loss + me, tl.sum(total, 0))


# Layers ---------------------------------------------------------------------------------------------------------------
# A layer is a tuple of weights (inputs, outputs) and biases (1, outputs). With BAYES these are means, followed by the
# raw deviations of both in the parameters, and by the variances of both where rows are multiplied.


@triton.jit
def _product(a, b):
    """Return the matrix product of a (N, K) and b (K, M)."""
    if a.shape[1] == 1:
        product = a * b
    elif a.shape[0] == 1:
        product = tl.sum(tl.trans(a) * b, 0, keep_dims=True)
    elif a.shape[1] < _SHORTEST_DOT:
        product = _short_product(a, b)
    else:
        product = tl.dot(a, b, input_precision="ieee")
    return product


@triton.jit
def _short_product(a, b):
    """Return the matrix product as a sum of K outer products."""
    k = tl.arange(0, a.shape[1])
    product = tl.zeros((a.shape[0], b.shape[1]), tl.float32)
    for i in tl.static_range(a.shape[1]):
        column = tl.sum(tl.where(k[None, :] == i, a, 0.0), 1, keep_dims=True)
        row = tl.sum(tl.where(k[:, None] == i, b, 0.0), 0, keep_dims=True)
        product += column * row
    return product


@triton.jit
def _forward(x, layer, noise, BAYES: tl.constexpr):
    """Return the outputs of a layer for rows x and, with BAYES, their derivatives by their variances."""
    out = _product(x, layer[0]) + layer[1]
    by_variance = noise
    if BAYES:
        deviation = tl.sqrt(_product(x * x, layer[2]) + layer[3])
        out += deviation * noise
        by_variance = 0.5 * noise / deviation
    return out, by_variance


@triton.jit
def _accumulate(g, x, slope, by_variance, BAYES: tl.constexpr):
    """Return g plus the gradient by a layer, from rows x and the gradient by the layer's outputs."""
    total = _add_products(g[0], g[1], x, slope)
    if BAYES:
        by_variances = _add_products(g[2], g[3], x * x, slope * by_variance)
        total = total[0], total[1], by_variances[0], by_variances[1]
    return total


@triton.jit
def _add_products(by_weights, by_biases, x, slope):
    return by_weights + _product(tl.trans(x), slope), by_biases + tl.sum(slope, 0, keep_dims=True)


@triton.jit
def _by_inputs(x, layer, slope, by_variance, BAYES: tl.constexpr):
    """Return the gradient by the rows x of a layer from the gradient by its outputs."""
    by_x = _product(slope, tl.trans(layer[0]))
    if BAYES:
        by_x += 2 * x * _product(slope * by_variance, tl.trans(layer[2]))
    return by_x


@triton.jit
def _switch(before, uniform, keep, DROPOUT: tl.constexpr):
    """Return the derivatives of hidden units, which are also their factors: 0 where they are off or dropped."""
    on = (before > 0).to(tl.float32)
    if DROPOUT:
        kept = tl.load(keep)
        on *= tl.where(uniform < kept, 1 / kept, 0.0)
    return on


@triton.jit
def _update(p, m, v, g, rate, root, BAYES: tl.constexpr, FAST: tl.constexpr):
    """Return parameters and moments of a layer after a step of Adam."""
    w, mw, vw = _adam(p[0], m[0], v[0], g[0], rate, root, FAST)
    b, mb, vb = _adam(p[1], m[1], v[1], g[1], rate, root, FAST)
    if BAYES:
        s, ms, vs = _adam(p[2], m[2], v[2], g[2], rate, root, FAST)
        c, mc, vc = _adam(p[3], m[3], v[3], g[3], rate, root, FAST)
        updated = (w, b, s, c), (mw, mb, ms, mc), (vw, vb, vs, vc)
    else:
        updated = (w, b), (mw, mb), (vw, vb)  # type: ignore[assignment]
    return updated


@triton.jit
def _adam(p, m, v, g, rate, root, FAST: tl.constexpr):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - rate * m * inverse(tl.sqrt(v) * root + 1e-8, FAST), m, v


@triton.jit
def _zeros(layer, BAYES: tl.constexpr):
    """Return a layer of zeros."""
    w, b = tl.zeros_like(layer[0]), tl.zeros_like(layer[1])
    return (w, b, w, b) if BAYES else (w, b)


# Bayes by backprop ----------------------------------------------------------------------------------------------------


@triton.jit
def _means_and_variances(p, BAYES: tl.constexpr, FAST: tl.constexpr):
    """Return the means of a layer's parameters, followed by their variances with BAYES."""
    layer = p
    if BAYES:
        of_weights, _ = softplus(p[2], FAST)
        of_biases, _ = softplus(p[3], FAST)
        layer = p[0], p[1], of_weights * of_weights, of_biases * of_biases
    return layer


@triton.jit
def _by_raw(g, p, prior_std, complexity, INPUTS: tl.constexpr, FAST: tl.constexpr):
    """Return the gradient by means and raw deviations from that of the fit by means and variances.

    To it belongs the divergence from the prior, N(0, prior²/inputs) for weights and N(0, prior²) for biases.
    """
    prior, pull = tl.load(prior_std), tl.load(complexity)
    tight = 1 / (prior * prior)
    by_weights, by_biases = g[0] + pull * INPUTS * tight * p[0], g[1] + pull * tight * p[1]
    by_raw_weights = _by_raw_deviation(g[2], p[2], pull, INPUTS * tight, FAST)
    return by_weights, by_biases, by_raw_weights, _by_raw_deviation(g[3], p[3], pull, tight, FAST)


@triton.jit
def _by_raw_deviation(by_variance, raw, pull, tight, FAST: tl.constexpr):
    """Return the gradient by raw deviations: of the fit, through σ² and the softplus, plus that of the divergence."""
    deviation, slope = softplus(raw, FAST)
    return (2 * deviation * by_variance + pull * (tight * deviation - inverse(deviation, FAST))) * slope


# Losses ---------------------------------------------------------------------------------------------------------------


@triton.jit
def _loss(out, y, lam, factor, EVIDENTIAL: tl.constexpr, FAST: tl.constexpr):
    """Return loss and penalty of every row, and the gradient of the loss by the outputs (B, O).

    Loss and gradient are multiplied by ``factor``. The Gaussian loss has no penalty.
    """
    o = tl.arange(0, out.shape[1])[None, :]
    if EVIDENTIAL:
        loss, penalty, by_gamma, by_nu, by_alpha, by_beta = loss_and_slopes(
            _column(out, 0), _column(out, 1), _column(out, 2), _column(out, 3), y, lam, factor, 1, FAST
        )
        first = tl.where(o == 0, by_gamma[:, None], by_nu[:, None])
        slope = tl.where(o < 2, first, tl.where(o == 2, by_alpha[:, None], by_beta[:, None]))
    else:
        loss, by_mean, by_raw = _gaussian(_column(out, 0), _column(out, 1), y, factor, FAST)
        penalty = tl.zeros_like(loss)
        slope = tl.where(o == 0, by_mean[:, None], by_raw[:, None])
    return loss, penalty, slope


@triton.jit
def _column(values, K: tl.constexpr):
    k = tl.arange(0, values.shape[1])[None, :]
    return tl.sum(tl.where(k == K, values, 0.0), 1)


@triton.jit
def _gaussian(mean, raw, y, factor, FAST: tl.constexpr):
    """Return the loss and its derivatives by mean and raw deviation (as howsure.formulas.normal)."""
    sigma, slope = softplus(raw, FAST)
    sigma += 1e-6
    narrow = inverse(sigma, FAST)
    z = (y - mean) * narrow
    loss = 0.918938533204672742 + log(sigma, FAST) + 0.5 * z * z
    return loss * factor, -z * narrow * factor, (1 - z * z) * narrow * (slope * factor)


# Memory ---------------------------------------------------------------------------------------------------------------


@triton.jit
def _load_scaling(loc_x, scale_x, loc_y, scale_y, F: tl.constexpr, FP: tl.constexpr):
    """Return location and scale of the member's features, (1, FP), and of its targets."""
    f = tl.arange(0, FP)[None, :]
    loc, scale = tl.load(loc_x + f, mask=f < F, other=0.0), tl.load(scale_x + f, mask=f < F, other=1.0)
    return loc, scale, tl.load(loc_y), tl.load(scale_y)


@triton.jit
def _load_rows(x, y, chosen, inside, scaling, F: tl.constexpr, FP: tl.constexpr):
    """Return scaled features (B, FP) and targets (B,); before scaling, rows that are not inside the batch are zero."""
    loc_x, scale_x, loc_y, scale_y = scaling
    row, f = tl.load(chosen, mask=inside, other=0), tl.arange(0, FP)[None, :]
    features = tl.load(x + row[:, None] * F + f, mask=inside[:, None] & (f < F), other=0.0)
    targets = tl.load(y + row, mask=inside, other=0.0)
    return (features - loc_x) / scale_x, (targets - loc_y) / scale_y


@triton.jit
def _load_noise(
    noise, place, inside, H: tl.constexpr, O: tl.constexpr, HP: tl.constexpr,
    DROPOUT: tl.constexpr, BAYES: tl.constexpr,
):  # fmt: skip
    """Return random numbers for the hidden units, (B, HP), and with BAYES for the outputs, (B, O)."""
    h, o = tl.arange(0, HP)[None, :], tl.arange(0, O)[None, :]
    of_hidden, of_outputs = 0.0, 0.0
    if DROPOUT:  # padded units are dropped
        of_hidden = tl.load(noise + place[:, None] * H + h, mask=inside[:, None] & (h < H), other=1.0)
    if BAYES:
        row = noise + place[:, None] * (H + O)
        of_hidden = tl.load(row + h, mask=inside[:, None] & (h < H), other=0.0)
        of_outputs = tl.load(row + H + o, mask=inside[:, None] & (o < O), other=0.0)
    return of_hidden, of_outputs


@triton.jit
def _load(
    base, F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr, BAYES: tl.constexpr
):
    """Return both layers, padded with zeros."""
    one, two = _load_half(base, F, H, O, FP, HP)
    if BAYES:
        raw1, raw2 = _load_half(base + F * H + H * O + H + O, F, H, O, FP, HP)
        one, two = (one[0], one[1], raw1[0], raw1[1]), (two[0], two[1], raw2[0], raw2[1])
    return one, two


@triton.jit
def _load_half(base, F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr):
    """Return weights and biases of both layers, which are in the order W1, W2, b1, b2 in memory."""
    biases: tl.constexpr = F * H + H * O
    one = _load_matrix(base, F, H, FP, HP), _load_matrix(base + biases, 1, H, 1, HP)
    two = _load_matrix(base + F * H, H, O, HP, O), _load_matrix(base + biases + H, 1, O, 1, O)
    return one, two


@triton.jit
def _store(
    base, one, two,
    F: tl.constexpr, H: tl.constexpr, O: tl.constexpr, FP: tl.constexpr, HP: tl.constexpr, BAYES: tl.constexpr,
):  # fmt: skip
    """Write both layers as :func:`_load` reads them."""
    biases: tl.constexpr = F * H + H * O
    for k in tl.static_range(2 if BAYES else 1):
        _store_matrix(base, one[2 * k], F, H, FP, HP)
        _store_matrix(base + F * H, two[2 * k], H, O, HP, O)
        _store_matrix(base + biases, one[2 * k + 1], 1, H, 1, HP)
        _store_matrix(base + biases + H, two[2 * k + 1], 1, O, 1, O)
        base += biases + H + O


@triton.jit
def _load_matrix(base, N: tl.constexpr, M: tl.constexpr, NP: tl.constexpr, MP: tl.constexpr):
    """Return a matrix (N, M) from memory, padded with zeros to (NP, MP)."""
    n, m = tl.arange(0, NP)[:, None], tl.arange(0, MP)[None, :]
    return tl.load(base + n * M + m, mask=(n < N) & (m < M), other=0.0)


@triton.jit
def _store_matrix(base, values, N: tl.constexpr, M: tl.constexpr, NP: tl.constexpr, MP: tl.constexpr):
    n, m = tl.arange(0, NP)[:, None], tl.arange(0, MP)[None, :]
    tl.store(base + n * M + m, values, mask=(n < N) & (m < M))
