r"""Bayesian linear regression: the expert whose posterior predictive distribution is a Normal Inverse-Gamma one.

With standardized features, centred targets, a flat prior of the intercept,
:math:`w \sim \mathcal N(0, \sigma^2/\lambda)` and :math:`p(\sigma^2) \propto 1/\sigma^2`, n rows leave

.. math:: A = X^\top X + \lambda I, \quad m = A^{-1}X^\top y, \quad \alpha = \tfrac{n-1}2, \quad
          2\beta = y^\top y - m^\top X^\top y,

and a row x has :math:`\gamma = \bar y + x^\top m` and :math:`\nu = (1/n + x^\top A^{-1}x)^{-1}`. The ridge λ has the
largest marginal likelihood,

.. math:: \ln p(y \mid \lambda) = \tfrac12\sum_i\ln\frac\lambda{\lambda + d_i} - \alpha\ln\beta + \text{const},

with the eigenvalues :math:`d_i` of :math:`X^\top X`. A row that is left out has the residual :math:`e/(1-h)` with the
leverage h, and takes :math:`\tfrac12e^2/(1-h)` from β and ½ from α: no fit is repeated.

Features far from their medians are clipped (:mod:`howsure.tables.robust`). With :math:`\Delta` the difference that the
clip makes to the mean of a row, the variance of the mean grows by :math:`b(\Delta^2) = (1/\Delta^2 + 1/V_0)^{-1}`, with
the prior variance :math:`V_0` of 50 variances of the target, and the mean is
:math:`\bar y + (\gamma - \bar y)V_0/(V_0 + \Delta^2)`; networks have the same (:mod:`howsure.nn.evidence`).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from howsure.distributions import NormalInverseGamma
from howsure.formulas import nig
from howsure.nn.evidence import PRIOR_VARIANCE
from howsure.tables.robust import unclipped

__all__ = ["LinearExpert"]

Array = NDArray[np.float64]
MIN_ROWS = 5  # so that a left-out row has a predictive distribution with a variance
MAX_FEATURES = 1000  # the solution takes the cube of this number of operations
LOG_RIDGES = (-46.0, 12.0)  # bounds of ln(λ/n): beyond them a prior is flat, or leaves nothing but the mean
MIN_LOG_RIDGE = -23.0  # with as many directions as rows: smaller ridges leave no digit of 1 − h
MIN_ROOM = 1e-14  # smallest 1 − h
MIN_VARIANCE = 1e-20  # of residuals, in variances of the target: rounding leaves no less


class LinearExpert(nn.Module):
    """Linear regression of several targets on the same features.

    Its buffers have the names of its parts: ``centre`` (F,), the means of the features; ``rate`` (F,), one over their
    standard deviations, 0 for features that do not vary; ``directions`` (F, K), eigenvectors of their covariance;
    ``inverse`` (K, T), one over eigenvalue plus ridge; ``outside`` (T,), the same where the training rows do not vary;
    ``coefficients`` (K, T) of the directions; ``intercept``, ``alpha`` and ``beta`` (T,); ``mean_variance`` (T,), one
    over the number of rows; ``prior`` (T,), V₀; and ``share`` (), its weight in a mixture.
    """

    centre: Tensor
    rate: Tensor
    directions: Tensor
    inverse: Tensor
    outside: Tensor
    coefficients: Tensor
    intercept: Tensor
    mean_variance: Tensor
    alpha: Tensor
    beta: Tensor
    prior: Tensor
    share: Tensor

    def __init__(self, **parts: Tensor) -> None:
        super().__init__()
        for name in LinearExpert.__annotations__:
            self.register_buffer(name, parts[name])

    @classmethod
    def fit(
        cls, x: Array, y: Array, row_weights: Array | None = None
    ) -> "tuple[LinearExpert, NormalInverseGamma] | None":
        """Return the regression and the distribution of each row as left out, (N, T); None if a fit is impossible.

        Args:
            x: features (N, F), finite.
            y: targets (N, T).
            row_weights: (N,), non-negative; a weight of 2 counts as two rows with the same noise.
        """
        n, count = x.shape
        if n < MIN_ROWS or not 0 < count <= MAX_FEATURES:
            return None
        w = np.ones(n) if row_weights is None else row_weights * (n / row_weights.sum())
        centre = w @ x / n
        spread = np.sqrt(w @ (x - centre) ** 2 / n)
        spread[~(spread > 1e-12 * (1 + np.abs(centre)))] = np.inf
        z = (x - centre) / spread
        root = np.sqrt(w)[:, None]
        values, vectors = np.linalg.eigh((root * z).T @ (root * z))
        kept = values > 1e-12 * max(values[-1], 1e-300)
        if not kept.any():
            return None
        values, vectors = values[kept], vectors[:, kept]
        intercept = w @ y / n
        target = y - intercept
        projected = z @ vectors
        moment = projected.T @ (w[:, None] * target)  # (K, T)
        total = w @ target**2
        floor = 0.5 * MIN_VARIANCE * np.maximum(total, 1e-300)
        alpha = 0.5 * (n - 1)
        ridge = np.array([_best_ridge(values, own, whole, n) for own, whole in zip(moment.T, total, strict=True)])
        inverse = 1 / (values[:, None] + ridge)
        weights = inverse * moment
        residual = target - projected @ weights
        beta = np.maximum(0.5 * (w @ residual**2 + (ridge * weights**2).sum(0)), floor)
        leverage = w[:, None] * (1 / n + projected**2 @ inverse)
        room = np.maximum(1 - leverage, MIN_ROOM)
        own_beta = beta - 0.5 * w[:, None] * residual**2 / room
        nu = np.maximum(room / np.maximum(leverage, 1e-12) * w[:, None], 1e-9)  # 1/h of the fit without the row
        excess = np.full(y.shape, alpha - 1.5)  # α − 1 of the fit without the row
        own_beta = np.maximum(own_beta, floor)
        prior = PRIOR_VARIANCE * np.maximum(total, 1e-300) / n
        far = _variance_of_clip(*(torch.from_numpy(part) for part in (x, 1 / spread, vectors @ weights, prior))).numpy()
        leaves = (y - residual / room, 1 / (1 / nu + far * excess / own_beta), excess, own_beta)
        left_out = NormalInverseGamma._from_leaves(torch.from_numpy(np.ascontiguousarray(p)) for p in leaves)
        each = np.ones(len(ridge))
        outside = 1 / ridge if vectors.shape[1] < count else 0 * each
        parts = (
            centre,
            1 / spread,
            vectors,
            inverse,
            outside,
            weights,
            intercept,
            each / n,
            each * alpha,
            beta,
            prior,
            np.array(0.0),
        )
        tensors = (torch.from_numpy(np.ascontiguousarray(p, dtype=np.float64).reshape(np.shape(p))) for p in parts)
        return cls(**dict(zip(cls.__annotations__, tensors, strict=True))), left_out

    def forward(self, x: Tensor) -> NormalInverseGamma:
        """Return the posterior predictive distribution of rows (N, F) as (N, T)."""
        z = (x.double() - self.centre) * self.rate
        projected = z @ self.directions
        # along directions in which training rows do not vary
        rest = (z.square().sum(1, keepdim=True) - projected.square().sum(1, keepdim=True)).clamp(min=0)
        variance = self.mean_variance + projected.square() @ self.inverse + rest * self.outside
        far = _variance_of_clip(x.double(), self.rate, self.directions @ self.coefficients, self.prior)
        gamma = self.intercept + projected @ self.coefficients * (1 - far / self.prior)
        variance = variance + far * (self.alpha - 1) / self.beta
        alpha, beta = ((self.alpha - 1).expand(gamma.shape), self.beta.expand(gamma.shape))
        return NormalInverseGamma._from_leaves((gamma, 1 / variance, alpha, beta))


def _variance_of_clip(x: Tensor, rate: Tensor, coefficients: Tensor, prior: Tensor) -> Tensor:
    """Return b(Δ²) for rows of clipped features, (N, T)."""
    square = ((((unclipped(x) - x) * rate) @ coefficients) ** 2).clamp(max=1e250)
    return nig.bounded_variance(square, prior)


def _best_ridge(values: Array, moment: Array, total: float, rows: int) -> float:
    """Return the λ with the largest marginal likelihood of a target with this sum of squares."""
    alpha = 0.5 * (rows - 1)
    least = MIN_VARIANCE * max(total, 1e-300)

    def cost(log_ridge: float) -> float:
        ridge = rows * np.exp(log_ridge)
        twice_beta = max(total - float((moment**2 / (values + ridge)).sum()), least)
        return float(0.5 * np.log1p(values / ridge).sum() + alpha * np.log(twice_beta))

    low, high = LOG_RIDGES
    grid = np.linspace(low if len(values) < rows - 1 else MIN_LOG_RIDGE, high, 30)
    best = int(np.argmin([cost(g) for g in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, 29)]
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-3})
    return float(rows * np.exp(found.x))
