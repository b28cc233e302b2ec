"""The normal distribution: density, both tails, both quantiles, entropy and CRPS.

The functions have the names of those in :mod:`howsure.formulas.student_t`. They work elementwise; ``loc`` is the mean
μ and ``scale`` the standard deviation σ. Tails and quantiles are computed in float64 through the complementary error
function, because ``torch.special.ndtr`` is 0 for every z below −8.3.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from howsure.formulas.cells import normal_log_prob
from howsure.formulas.special import LOG_2PI, in_float64

__all__ = [
    "cdf",
    "cell_nll",
    "crps",
    "entropy",
    "from_raw",
    "half_spread",
    "icdf",
    "isf",
    "log_prob",
    "mean_absolute",
    "mean_distance",
    "sf",
]

SCALE_FLOOR = 1e-6  # keeps the likelihood finite where a network drives its deviation to zero


def from_raw(raw: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Return (loc, scale) from two raw outputs of a network along ``dim``.

    The scale is the softplus of the second output plus 1e-6. The arithmetic is at least float32.
    """
    loc, scale = raw.to(torch.promote_types(raw.dtype, torch.float32)).unbind(dim)
    return loc.clone(), softplus(scale, threshold=40) + SCALE_FLOOR  # a copy, because FSDP warns of views


def log_prob(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return the log density (the paper's Eq. 2).

    .. math:: -\tfrac12\ln 2\pi - \ln\sigma - \tfrac12 z^2, \qquad z = (y-\mu)/\sigma
    """
    z = (y - loc) / scale
    return -0.5 * LOG_2PI - scale.log() - 0.5 * z * z


def entropy(scale: Tensor) -> Tensor:
    r"""Return the differential entropy :math:`\tfrac12\ln(2\pi e\sigma^2)`."""
    return 0.5 * (LOG_2PI + 1) + scale.log()


def cdf(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return P(Y ≤ y), with full relative accuracy in the lower tail; use :func:`sf` for the upper one."""
    return in_float64(lambda y, loc, scale: _lower((y - loc) / scale), y, loc, scale)


def sf(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return P(Y > y) = 1 − cdf(y), with full relative accuracy in the upper tail."""
    return in_float64(lambda y, loc, scale: _lower((loc - y) / scale), y, loc, scale)


def cell_nll(y: Tensor, lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`-\ln P(a < Y \le b)` for cells, and the negative log density of y where a = b."""
    known = lower == upper
    value = -log_prob(torch.where(known, y, loc), loc, scale)
    ends = torch.where(known, -math.inf, lower), torch.where(known, math.inf, upper)
    return torch.where(known, value, -normal_log_prob(*ends, loc, scale).to(value.dtype))


def icdf(p: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the y with cdf(y) = p, accurate for small p; use :func:`isf` for quantiles of the upper tail."""
    return in_float64(lambda p, loc, scale: loc + scale * torch.special.ndtri(p), p, loc, scale)


def isf(q: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the y with sf(y) = q, accurate for small q."""
    return in_float64(lambda q, loc, scale: loc - scale * torch.special.ndtri(q), q, loc, scale)


def crps(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return the continuous ranked probability score (Gneiting and Raftery 2007).

    .. math:: \sigma\{z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi\} = \mathbb E|X-y| - \tfrac12\mathbb E|X-X'|
    """
    return in_float64(lambda y, loc, scale: mean_absolute(y - loc, scale) - half_spread(scale), y, loc, scale)


def mean_distance(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`\mathbb E|X-y|`, the first term of the CRPS."""
    return in_float64(lambda y, loc, scale: mean_absolute(y - loc, scale), y, loc, scale)


def mean_absolute(loc: Tensor, scale: Tensor) -> Tensor:
    r"""Return :math:`\mathbb E|X| = \sigma\{z\,\mathrm{erf}(z/\sqrt2) + 2\varphi(z)\}` with :math:`z = \mu/\sigma`."""
    z = loc / scale
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return scale * (z * torch.erf(z / math.sqrt(2)) + 2 * density)


def half_spread(scale: Tensor) -> Tensor:
    r"""Return half the mean distance of two independent draws, :math:`\tfrac12\mathbb E|X-X'| = \sigma/\sqrt\pi`."""
    return scale / math.sqrt(math.pi)


def _lower(z: Tensor) -> Tensor:
    """Return P(Z ≤ z) for a standard normal Z."""
    return 0.5 * torch.erfc(-z / math.sqrt(2))
