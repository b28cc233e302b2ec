"""The normal distribution: density, both tails, both quantiles, entropy and CRPS.

The twin of :mod:`evidentia.formulas.student_t`, function for function. Tails and quantiles are evaluated in float64 and
through the complementary error function: ``torch.special.ndtr`` answers 0 for every z below −8.3.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from evidentia.formulas.special import LOG_2PI, in_float64

__all__ = ["cdf", "crps", "entropy", "from_raw", "half_spread", "icdf", "isf", "log_prob", "sf"]


SCALE_FLOOR = 1e-6  # keeps the likelihood finite where a network shuts its deviation off


def from_raw(raw: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Two raw outputs of a network along ``dim`` → (mean, deviation), the second by a softplus plus 1e-6."""
    loc, scale = raw.to(torch.promote_types(raw.dtype, torch.float32)).unbind(dim)
    return loc, softplus(scale, threshold=40) + SCALE_FLOOR


def log_prob(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r""":math:`-\tfrac12\ln 2\pi - \ln\sigma - \tfrac12 z^2` with :math:`z = (y-\mu)/\sigma` (the paper's Eq. 2)."""
    z = (y - loc) / scale
    return -0.5 * LOG_2PI - scale.log() - 0.5 * z * z


def entropy(scale: Tensor) -> Tensor:
    r""":math:`\tfrac12\ln(2\pi e\sigma^2)`."""
    return 0.5 * (LOG_2PI + 1) + scale.log()


def cdf(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """P(Y ≤ y), with full relative accuracy in the lower tail; use :func:`sf` for the upper one."""
    return in_float64(lambda y, loc, scale: _lower((y - loc) / scale), y, loc, scale)


def sf(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """P(Y > y) = 1 − cdf(y), with full relative accuracy in the upper tail."""
    return in_float64(lambda y, loc, scale: _lower((loc - y) / scale), y, loc, scale)


def icdf(p: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The y with cdf(y) = p; exact for small p."""
    return in_float64(lambda p, loc, scale: loc + scale * torch.special.ndtri(p), p, loc, scale)


def isf(q: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The y with sf(y) = q; exact for small q."""
    return in_float64(lambda q, loc, scale: loc - scale * torch.special.ndtri(q), q, loc, scale)


def crps(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r""":math:`\sigma\{z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi\}` (Gneiting and Raftery 2007)."""

    def formula(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        z = (y - loc) / scale
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return scale * (z * torch.erf(z / math.sqrt(2)) + 2 * density) - half_spread(scale)

    return in_float64(formula, y, loc, scale)


def half_spread(scale: Tensor) -> Tensor:
    r""":math:`\tfrac12\mathbb E|X-X'| = \sigma/\sqrt\pi`."""
    return scale / math.sqrt(math.pi)


def _lower(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-z / math.sqrt(2))
