"""Kernel regressions in closed form, which predict each row of a table from its other rows."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["EXPERTS", "ROWS_FOR_RIDGE", "Columns", "Experts", "compressed", "fit_experts"]

# --- columns -------------------------------------------------------------------------------------------------------

OUTLIER = 3.0  # standard deviations: values beyond do not enter the scale of a column and are compressed
MAX_DEVIATIONS = 10.0  # standard deviations beyond which the linear expert sees a value as constant


class Columns(NamedTuple):
    """Location, scale and sorted values of the columns of the context."""

    mean: Tensor  # (B, 1, C)
    scale: Tensor  # (B, 1, C)
    ordered: Tensor  # (B, C, c) sorted values; infinite where missing
    known: Tensor  # (B, C, 1) number of known values, at least 1

    @classmethod
    def fit(cls, x: Tensor) -> "Columns":
        """Learn from the context rows x (B, c, C)."""
        known = ~x.isnan()
        mean, scale = _moments(x.nan_to_num(0.0), known)
        clipped = x.nan_to_num(0.0).clamp(mean - OUTLIER * scale, mean + OUTLIER * scale)
        mean, scale = _moments(clipped, known)
        ordered = torch.where(known, x, torch.inf).transpose(1, 2).sort(2).values.contiguous()
        return cls(mean, torch.where(scale > 0, scale, 1.0), ordered, known.sum(1).clamp(min=1)[..., None])

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return standardised values in (−10, 10) and ranks in (−1, 1); 0 where missing.

        .. math:: \frac{x - m}{s}, \qquad \frac{\#\{x' < x\} + \#\{x' \le x\}}{n} - 1
        """
        known = ~x.isnan()
        z = torch.where(known, (x - self.mean) / self.scale, 0.0)
        values = torch.where(known, x, torch.inf).transpose(1, 2).contiguous()
        below, upto = (torch.searchsorted(self.ordered, values, right=right) for right in (False, True))
        place = ((below + upto) / self.known - 1).clamp(-1, 1).transpose(1, 2).to(x.dtype)
        return z.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS), torch.where(known, place, 0.0)


def compressed(z: Tensor) -> Tensor:
    r"""Return :math:`z / \sqrt{1 + (z/3)^2}`."""
    return z / (1 + (z / OUTLIER).square()).sqrt()


def _moments(x: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    count = known.sum(1, keepdim=True).clamp(min=1)
    mean = (x * known).sum(1, keepdim=True) / count
    return mean, (((x - mean) * known).square().sum(1, keepdim=True) / count).sqrt()


# --- experts -------------------------------------------------------------------------------------------------------

RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # noise variances of a kernel regression, relative to the signal's
ROWS_FOR_RIDGE = 512  # context rows on which the ridge is chosen. The relevance matrix uses 1,024
RELEVANCE_ROUNDS = 2
MIN_RELEVANCE = 1e-3  # added to the diagonal of the relevance matrix, whose largest diagonal element is 1
DIAGONAL_SHARE = 0.5  # of the relevance matrix
PRODUCT_SHARE = 0.3  # weight of one column in the product kernel
PRODUCT_LENGTH = 0.5
BLEND_POWER = 8.0  # experts are weighted by the inverse of this power of their mean absolute error
MIN_UNIT = 1e-6  # of the standard deviation of the target
PAIRS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}  # elements of a temporary array of pairs of rows
RANK_SCALE = math.sqrt(3)  # gives ranks unit variance
EXPERTS = 5


class Experts(NamedTuple):
    r"""Kernel regressions of the standardised target in closed form.

    .. math:: \hat y(x) = k(x)^\top\alpha, \quad \alpha = A^{-1} y, \quad A = K + \lambda I, \qquad
              y_i - \hat y_{-i} = \alpha_i / (A^{-1})_{ii}

    The ridge λ has the best leave-one-out likelihood on a part of the rows. The kernels are linear,
    Matérn 5/2, exponential in Euclidean distance, exponential in city-block distance, and a product over columns.
    Distances are weighted by the average outer product of gradients of the Matérn regression (Radhakrishnan et al.
    2024).
    """

    columns: Columns
    centre: Tensor  # (B, 1) mean of the target
    spread: Tensor  # (B, 1) standard deviation of the target
    factor: Tensor  # (B, C, C) Cholesky factor of the relevance matrix
    inputs: list[Tensor]  # (B, c, F) context rows as every kernel sees them
    lengths: list[Tensor]  # (B, 1, 1) mean distances of context rows
    weights: list[Tensor]  # (B, c) α
    roots: list[Tensor]  # (B, c, c) R with A⁻¹ = RᵀR
    ridges: list[Tensor]  # (B, 1) λ
    error: Tensor  # (B, 1, 5) mean absolute leave-one-out errors
    share: Tensor  # (B, 1, 5) weight of every expert in the base
    unit: Tensor  # (B, 1) mean absolute leave-one-out error of the base, as a standard deviation

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions and relative variances (B, q, 5) for query rows x (B, q, C)."""
        found = []
        for kind, a in enumerate(_inputs(*self.columns.scaled(x), self.factor)):
            k = _similarity(kind, a, self.inputs[kind], self.lengths[kind])[0]
            own = a.square().sum(2) if kind == 0 else 1.0
            variance = own + self.ridges[kind] - torch.bmm(k, self.roots[kind].mT).square().sum(2)
            found.append(torch.stack([torch.bmm(k, self.weights[kind][..., None])[..., 0], variance.clamp(min=1e-9)]))
        mean, variance = torch.stack(found, 3)
        return mean, variance


def fit_experts(x: Tensor, y: Tensor, rows_for_ridge: int) -> tuple[Experts, Tensor, Tensor]:
    """Return the experts of a context x (B, c, C), y (B, c) in float64, their leave-one-out predictions and variances.

    Predictions and relative variances have the shape (B, c, 5).
    """
    columns = Columns.fit(x)
    z, place = columns.scaled(x)
    centre, spread = y.mean(1, keepdim=True), y.std(1, correction=0, keepdim=True)
    spread = torch.where(spread > 1e-12 * centre.abs(), spread, 1.0)
    t = (y - centre) / spread
    rows = _spread_rows(t, 2 * rows_for_ridge)
    part = compressed(z).gather(1, rows[..., None].expand(-1, -1, z.shape[2]))
    factor = _relevance(part, t.gather(1, rows), rows_for_ridge)
    rows = _spread_rows(t, rows_for_ridge)
    inputs = _inputs(z, place, factor)
    parts = []
    for kind, a in enumerate(inputs):
        k, length = _similarity(kind, a, a, None)
        alpha, root, ridge = _solve(k, t, rows)
        variance = 1 / root.square().sum(1)
        parts.append((length, alpha, root, ridge, alpha * variance, variance))
    lengths, weights, roots, ridges, errors, variances = (list(part) for part in zip(*parts, strict=True))
    error = torch.stack(errors, 2)
    size = error.abs().mean(1, keepdim=True)
    share = (-BLEND_POWER * (size + MIN_UNIT).log()).softmax(2)
    unit = (math.sqrt(math.pi / 2) * (error * share).sum(2).abs().mean(1, keepdim=True)).clamp(min=MIN_UNIT)
    found = Experts(columns, centre, spread, factor, inputs, lengths, weights, roots, ridges, size, share, unit)
    return found, t[..., None] - error, torch.stack(variances, 2)


def _spread_rows(t: Tensor, most: int) -> Tensor:
    """Return at most ``most`` rows (B, S) whose targets are evenly spaced among the sorted targets."""
    picked = torch.linspace(0, t.shape[1] - 1, min(t.shape[1], most), device=t.device).round().long()
    return t.argsort(dim=1, stable=True)[:, picked]


def _inputs(z: Tensor, place: Tensor, factor: Tensor) -> list[Tensor]:
    """Return the rows as the five kernels see them."""
    weight = factor.square().sum(2).sqrt()[:, None]  # root of the diagonal of the relevance matrix
    affine = functional.pad(z, (1, 0), value=1.0) / math.sqrt(1 + z.shape[2])
    z, ranks, root = compressed(z), RANK_SCALE * place, weight.sqrt()
    turned = torch.bmm(z, factor)
    return [affine, turned, torch.cat([turned, ranks * weight], 2), torch.cat([z * root, ranks * root], 2), z * root]


def _similarity(kind: int, a: Tensor, b: Tensor, length: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the kernel matrix (B, n, m) and the length of its distances, the mean if absent."""
    if kind in (0, 4):
        return torch.bmm(a, b.mT) if kind == 0 else _pairwise(_product, a, b), a.new_ones(len(a), 1, 1)
    d = _pairwise(lambda a, b: (a - b).abs_().sum(3), a, b) if kind == 3 else _euclidean(a, b)
    length = d.mean((1, 2), keepdim=True).clamp(min=1e-9) if length is None else length
    return (_matern(d / length) if kind == 1 else (-d / length).exp()), length


def _euclidean(a: Tensor, b: Tensor) -> Tensor:
    squares = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None]
    return torch.baddbmm(squares, a, b.mT, alpha=-2).clamp_(min=0).sqrt_()


def _matern(d: Tensor) -> Tensor:
    r"""Matérn kernel of smoothness 5/2: :math:`(1 + r + r^2/3)e^{-r}` with :math:`r = \sqrt5 d`."""
    r = math.sqrt(5) * d
    return (1 + r + r.square() / 3) * (-r).exp()


def _pairwise(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Return function(a_i, b_j) (B, n, m) for all pairs of rows, computed in blocks of rows."""
    rows = max(1, PAIRS_AT_ONCE[a.device.type] // (len(a) * b.shape[1] * b.shape[2]))
    return torch.cat([function(part[:, :, None], b[:, None]) for part in a.split(rows, 1)], 1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    r"""Product over columns of Matérn kernels of smoothness 3/2.

    .. math:: \prod_c \frac{1 + s\,(1 + r_c)e^{-r_c}}{1 + s}, \qquad r_c = \sqrt3\,|a_c - b_c|/\ell
    """
    r = (a - b).abs_().mul_(math.sqrt(3) / PRODUCT_LENGTH)
    factors: Tensor = (1 + r).mul_(r.neg_().exp_()).mul_(PRODUCT_SHARE).log1p_()
    return factors.sub_(math.log1p(PRODUCT_SHARE)).sum(3).exp_()


def _relevance(z: Tensor, t: Tensor, rows_for_ridge: int) -> Tensor:
    r"""Return the Cholesky factor of the relevance matrix.

    The matrix is the average outer product of gradients :math:`\frac1n\sum_i \nabla f(x_i)\nabla f(x_i)^\top` of the
    Matérn regression f, shrunk toward its diagonal. Distances of f use the matrix of the round before.
    """
    rows = _spread_rows(t, rows_for_ridge)
    eye = torch.eye(z.shape[2], dtype=z.dtype, device=z.device)
    factor = eye.expand(len(z), -1, -1)
    for _ in range(RELEVANCE_ROUNDS):
        turned = torch.bmm(z, factor)
        d = _euclidean(turned, turned)
        d = d / d.mean((1, 2), keepdim=True).clamp(min=1e-9)
        alpha = _solve(_matern(d), t, rows)[0]
        r = math.sqrt(5) * d
        w = (1 + r) * (-r).exp() * alpha[:, None]
        slope = torch.bmm(torch.bmm(w, turned) - w.sum(2, keepdim=True) * turned, factor.mT)
        outer = torch.bmm(slope.mT, slope)
        size = outer.diagonal(dim1=1, dim2=2).amax(1)[:, None, None]
        outer = torch.where(size > 0, outer / size.clamp(min=1e-300), eye)
        outer = torch.where(eye > 0, outer, (1 - DIAGONAL_SHARE) * outer) + MIN_RELEVANCE * eye
        factor = torch.linalg.cholesky_ex(outer)[0]
    return factor


def _solve(k: Tensor, t: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return α (B, c), R (B, c, c) and λ (B, 1) of a kernel regression; λ is chosen on some rows (B, S)."""
    size = rows.shape[1]
    part = k.gather(1, rows[..., None].expand(-1, -1, k.shape[2])).gather(2, rows[:, None].expand(-1, size, -1))
    ridges = torch.tensor(RIDGES, dtype=k.dtype, device=k.device)
    eye = torch.eye(size, dtype=k.dtype, device=k.device)
    root = _inverse_root((part[None] + ridges[:, None, None, None] * eye).flatten(0, 1))
    target = t.gather(1, rows).repeat(len(ridges), 1)
    alpha = torch.bmm(root.mT, torch.bmm(root, target[..., None]))[..., 0]
    precision = root.square().sum(1)
    surprise = (alpha.square() / precision).mean(1).clamp(min=1e-12).log() - precision.log().mean(1)
    best = surprise.unflatten(0, (len(ridges), -1)).nan_to_num(torch.inf).argmin(0)
    ridge = ridges[best][:, None]
    root = _inverse_root(k + torch.diag_embed(ridge.expand(-1, k.shape[2])))
    return torch.bmm(root.mT, torch.bmm(root, t[..., None]))[..., 0], root, ridge


def _inverse_root(a: Tensor) -> Tensor:
    """Return the lower triangular R (…, n, n) with RᵀR = a⁻¹, by blocks: matrix products do most of the work."""
    n = a.shape[-1]
    if n <= 64:
        factor = torch.linalg.cholesky_ex(a)[0]
        eye = torch.eye(n, dtype=a.dtype, device=a.device).expand_as(a)
        inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
        return inverse
    half = 64 * max(1, n // 128)
    first = _inverse_root(a[..., :half, :half])
    lower = a[..., half:, :half] @ first.mT
    second = _inverse_root(a[..., half:, half:] - lower @ lower.mT)
    result = torch.zeros_like(a)
    result[..., :half, :half], result[..., half:, half:] = first, second
    result[..., half:, :half] = -second @ (lower @ first)
    return result
