r"""Special functions that stay exact where the textbook form cancels.

Everything here rests on two facts about the Gamma function. Stirling's formula with Binet's remainder
:math:`\mu`,

.. math:: \ln\Gamma(x) = (x - \tfrac12)\ln x - x + \tfrac12\ln 2\pi + \mu(x), \qquad
          \mu(x) \sim \sum_{k\ge1} \frac{B_{2k}}{2k(2k-1)\,x^{2k-1}},

and the half step :math:`\rho(\alpha) = \ln\Gamma(\alpha+\tfrac12) - \ln\Gamma(\alpha)`, whose own series has the
coefficients of :math:`\mu` times :math:`-2(1-4^{-k})` (by the duplication formula :math:`\rho(\alpha) =
\tfrac12\ln\alpha + \mu(2\alpha) - 2\mu(\alpha)`). Subtracting two ``lgamma`` values instead is wrong by 1.6 nat
at :math:`\alpha = 10^6` in float32.

All functions work in the dtype they are given (float32 or float64) and differentiate through autograd.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "LOG_2PI",
    "binet",
    "binet_prime",
    "gap",
    "half_line_rule",
    "in_float64",
    "lgamma_step",
    "rho",
    "rho_excess",
    "rho_excess_prime",
    "rho_prime",
]

LOG_2PI = math.log(2 * math.pi)

# B_{2k} / (2k(2k-1)), k = 1 … 8
_BINET = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
_RHO = tuple(-2 * (1 - 4.0**-k) * c for k, c in enumerate(_BINET, start=1))
_BINET_PRIME = tuple(-(2 * k - 1) * c for k, c in enumerate(_BINET, start=1))
_RHO_PRIME = tuple(-(2 * k - 1) * c for k, c in enumerate(_RHO, start=1))


def _series_from(x: Tensor) -> int:
    """From which argument on the series is exact to rounding."""
    return 8 if x.dtype == torch.float64 else 4


def _odd_series(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Σ c_k / x^(2k-1), by Horner's rule in 1/x²: all eight terms for float64, five are enough for float32."""
    if x.dtype != torch.float64:
        coefficients = coefficients[:5]
    r = 1 / x
    r2 = r * r
    total = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * r2 + c
    return total * r


def _climb(alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How the recurrence Γ(x+1) = xΓ(x) leads to where the series holds: (is α small?, α lifted, the rungs α, α+1, …).

    The rungs of a large α are those of the threshold: ``where`` discards them, but needs their gradient finite.
    """
    top = _series_from(alpha)
    small = alpha < top
    lifted = torch.where(small, alpha + top, alpha)
    steps = torch.arange(top, dtype=alpha.dtype, device=alpha.device)
    return small, lifted, alpha.clamp(max=top).unsqueeze(-1) + steps


def _rungs_of_rho(rungs: Tensor) -> Tensor:
    """Σ ln((α+k+½)/(α+k)). The first rung may be tiny, where ½/α and its gradient would overflow."""
    first = rungs[..., 0]
    return (first + 0.5).log() - first.log() + torch.log1p(0.5 / rungs[..., 1:]).sum(-1)


def rho(alpha: Tensor) -> Tensor:
    r""":math:`\rho(\alpha) = \ln\Gamma(\alpha+\tfrac12) - \ln\Gamma(\alpha)` for every :math:`\alpha > 0`."""
    small, lifted, rungs = _climb(alpha)
    down = torch.where(small, _rungs_of_rho(rungs), 0.0)
    return 0.5 * lifted.log() + _odd_series(_RHO, lifted) - down


def rho_prime(alpha: Tensor) -> Tensor:
    r""":math:`\rho'(\alpha) = \psi(\alpha+\tfrac12) - \psi(\alpha)`, free of the cancellation of two digammas."""
    return 0.5 / alpha + rho_excess_prime(alpha)


def rho_excess(alpha: Tensor) -> Tensor:
    r""":math:`\rho(\alpha) - \tfrac12\ln\alpha`, which tends to :math:`-1/(8\alpha)`."""
    small, lifted, rungs = _climb(alpha)
    first = rungs[..., 0]
    down = 0.5 * (lifted.log() - first.log()) - _rungs_of_rho(rungs)
    return _odd_series(_RHO, lifted) + torch.where(small, down, 0.0)


def rho_excess_prime(alpha: Tensor) -> Tensor:
    r""":math:`\rho'(\alpha) - 1/(2\alpha)`, which tends to :math:`1/(8\alpha^2)`."""
    small, lifted, rungs = _climb(alpha)
    first = rungs[..., 0]
    down = (0.5 / (rungs * (rungs + 0.5))).sum(-1) + 0.5 / lifted - 0.5 / first
    return _odd_series(_RHO_PRIME, lifted) / lifted + torch.where(small, down, 0.0)


def binet(x: Tensor) -> Tensor:
    r"""Binet's function :math:`\mu(x) = \ln\Gamma(x) - (x-\tfrac12)\ln x + x - \tfrac12\ln 2\pi`."""
    top = _series_from(x)
    low = x.clamp(max=top)
    direct = torch.lgamma(low) - (low - 0.5) * low.log() + low - 0.5 * LOG_2PI
    return torch.where(x < top, direct, _odd_series(_BINET, x.clamp(min=top)))


def binet_prime(x: Tensor) -> Tensor:
    r""":math:`\mu'(x) = \psi(x) - \ln x + 1/(2x)`."""
    top = _series_from(x)
    low, high = x.clamp(max=top), x.clamp(min=top)
    direct = torch.digamma(low) - low.log() + 0.5 / low
    return torch.where(x < top, direct, _odd_series(_BINET_PRIME, high) / high)


def lgamma_step(x: Tensor, step: Tensor | float) -> Tensor:
    r""":math:`\ln\Gamma(x+s) - \ln\Gamma(x)` for :math:`s \ge 0`, for any size of step."""
    up = x + step
    return (x - 0.5) * torch.log1p(step / x) + step * (up.log() - 1) + binet(up) - binet(x)


def gap(x: Tensor) -> Tensor:
    r""":math:`x - 1 - \ln x \ge 0`: how far the logarithm falls below its tangent at 1.

    Near 1 with :math:`s = (x-1)/(x+1)` as :math:`(x-1)s - 2s^3(\tfrac13 + \tfrac{s^2}5 + \dots)`, since there the
    three terms cancel to second order and every caller multiplies the result by a number that may be 1e8.
    """
    near = (x - 1).abs() < 0.25
    d = torch.where(near, x, 1.0) - 1
    s = d / (d + 2)
    s2 = s * s
    tail = torch.zeros_like(s)
    for k in range(21, 1, -2):  # |s| < 1/7, so that s2**10 is below float64's rounding
        tail = tail * s2 + 1 / k
    far = torch.where(near, 2.0, x)
    return torch.where(near, d * s - 2 * s * s2 * tail, far - 1 - far.log())


def half_line_rule(step: float, first: int, last: int) -> list[tuple[float, float]]:
    """Nodes and weights of ∫_0^∞ f(u) du: the trapezoidal rule in x, u = exp(x − exp(−x)), x = first·step … last·step.

    Double-exponential at 0, exponential far out (Takahasi and Mori 1974), for smooth f that fall as exp(−u) or slower.
    """
    rule = []
    for k in range(first, last + 1):
        x = step * k
        u = math.exp(x - math.exp(-x))
        rule.append((u, step * u * (1 + math.exp(-x))))
    return rule


def in_float64(f: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Evaluate f in float64 and answer in the promoted dtype of the arguments."""
    dtype = torch.float32
    for x in arguments:
        dtype = torch.promote_types(dtype, x.dtype)
    device = arguments[0].device
    home = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
    return f(*torch.broadcast_tensors(*(x.to(home, torch.float64) for x in arguments))).to(device, dtype)
