r"""Special functions that stay exact where the textbook form cancels.

All of them rest on two facts about the Gamma function. The first is Stirling's formula with Binet's remainder
:math:`\mu`,

.. math:: \ln\Gamma(x) = (x - \tfrac12)\ln x - x + \tfrac12\ln 2\pi + \mu(x), \qquad
          \mu(x) \sim \sum_{k\ge1} \frac{B_{2k}}{2k(2k-1)\,x^{2k-1}},

and the second is a series for the half step :math:`\rho(\alpha) = \ln\Gamma(\alpha+\tfrac12) - \ln\Gamma(\alpha)`. By
the duplication formula :math:`\rho(\alpha) = \tfrac12\ln\alpha + \mu(2\alpha) - 2\mu(\alpha)`, so that its coefficients
are the coefficients of :math:`\mu` times :math:`-2(1-4^{-k})`. The difference of two ``lgamma`` values is wrong
by 1.6 nat at :math:`\alpha = 10^6` in float32.

All functions work in the dtype of their argument (float32 or float64), and autograd differentiates them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "LOG_2PI",
    "RHO_SERIES",
    "binet",
    "binet_prime",
    "gap",
    "half_line_rule",
    "in_float64",
    "rho",
    "rho_excess",
    "rho_excess_prime",
    "rho_prime",
]

LOG_2PI = math.log(2 * math.pi)

# B_{2k} / (2k(2k-1)), k = 1 … 8
_BINET = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
RHO_SERIES = tuple(-2 * (1 - 4.0**-k) * c for k, c in enumerate(_BINET, start=1))
_BINET_PRIME = tuple(-(2 * k - 1) * c for k, c in enumerate(_BINET, start=1))
_RHO_PRIME = tuple(-(2 * k - 1) * c for k, c in enumerate(RHO_SERIES, start=1))


def _series_threshold(dtype: torch.dtype) -> int:
    """Return the argument from which on the series are exact up to rounding."""
    return 8 if dtype == torch.float64 else 4


def _terms(coefficients: tuple[float, ...], dtype: torch.dtype) -> tuple[float, ...]:
    """Return the coefficients that a series needs: eight in float64, and five, which suffice, in float32."""
    return coefficients if dtype == torch.float64 else coefficients[:5]


def _odd_series(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Return Σ c_k / x^(2k-1) by Horner's rule in 1/x²."""
    coefficients = _terms(coefficients, x.dtype)
    r = 1 / x
    r2 = r * r
    total = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * r2 + c
    return total * r


def _shift_to_series(alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shift small α by the recurrence Γ(x+1) = xΓ(x) to where the series hold.

    Returns:
        Whether α is below the threshold of the series; α, raised by the threshold where it is below; and the arguments
        α, α+1, … of the recurrence, in a last dimension. For a large α these start at the threshold: ``torch.where``
        discards their results, but their gradients must be finite.
    """
    threshold = _series_threshold(alpha.dtype)
    small = alpha < threshold
    shifted = torch.where(small, alpha + threshold, alpha)
    steps = torch.arange(threshold, dtype=alpha.dtype, device=alpha.device)
    return small, shifted, alpha.clamp(max=threshold).unsqueeze(-1) + steps


def _rho_recurrence(arguments: Tensor) -> Tensor:
    """Return Σ ln((α+k+½)/(α+k)). The first argument may be so small that ½/α and its gradient would overflow."""
    first = arguments[..., 0]
    return (first + 0.5).log() - first.log() + torch.log1p(0.5 / arguments[..., 1:]).sum(-1)


def rho(alpha: Tensor) -> Tensor:
    r"""Return :math:`\rho(\alpha) = \ln\Gamma(\alpha+\tfrac12) - \ln\Gamma(\alpha)` for every :math:`\alpha > 0`."""
    small, shifted, arguments = _shift_to_series(alpha)
    back = torch.where(small, _rho_recurrence(arguments), 0.0)
    return 0.5 * shifted.log() + _odd_series(RHO_SERIES, shifted) - back


def rho_prime(alpha: Tensor) -> Tensor:
    r"""Return :math:`\rho'(\alpha) = \psi(\alpha+\tfrac12) - \psi(\alpha)` without the cancellation of two digammas."""
    return 0.5 / alpha + rho_excess_prime(alpha)


def rho_excess(alpha: Tensor) -> Tensor:
    r"""Return :math:`\rho(\alpha) - \tfrac12\ln\alpha`, which tends to :math:`-1/(8\alpha)`."""
    small, shifted, arguments = _shift_to_series(alpha)
    first = arguments[..., 0]
    back = 0.5 * (shifted.log() - first.log()) - _rho_recurrence(arguments)
    return _odd_series(RHO_SERIES, shifted) + torch.where(small, back, 0.0)


def rho_excess_prime(alpha: Tensor) -> Tensor:
    r"""Return :math:`\rho'(\alpha) - 1/(2\alpha)`, which tends to :math:`1/(8\alpha^2)`."""
    small, shifted, arguments = _shift_to_series(alpha)
    first = arguments[..., 0]
    back = (0.5 / (arguments * (arguments + 0.5))).sum(-1) + 0.5 / shifted - 0.5 / first
    return _odd_series(_RHO_PRIME, shifted) / shifted + torch.where(small, back, 0.0)


def binet(x: Tensor) -> Tensor:
    r"""Return Binet's function :math:`\mu(x) = \ln\Gamma(x) - (x-\tfrac12)\ln x + x - \tfrac12\ln 2\pi`."""
    threshold = _series_threshold(x.dtype)
    low = x.clamp(max=threshold)
    direct = torch.lgamma(low) - (low - 0.5) * low.log() + low - 0.5 * LOG_2PI
    return torch.where(x < threshold, direct, _odd_series(_BINET, x.clamp(min=threshold)))


def binet_prime(x: Tensor) -> Tensor:
    r"""Return :math:`\mu'(x) = \psi(x) - \ln x + 1/(2x)`, the derivative of :func:`binet`."""
    threshold = _series_threshold(x.dtype)
    low, high = x.clamp(max=threshold), x.clamp(min=threshold)
    direct = torch.digamma(low) - low.log() + 0.5 / low
    return torch.where(x < threshold, direct, _odd_series(_BINET_PRIME, high) / high)


def gap(x: Tensor) -> Tensor:
    r"""Return :math:`x - 1 - \ln x \ge 0`, the distance of the logarithm from its tangent at 1.

    Near 1 the three terms cancel to second order, and callers multiply the result by numbers up to 1e8. There it is
    computed as :math:`(x-1)s - 2s^3(\tfrac13 + \tfrac{s^2}5 + \dots)` with :math:`s = (x-1)/(x+1)`.
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
    """Return nodes and weights for ∫_0^∞ f(u) du, for smooth f that fall as exp(−u) or slower.

    This is the trapezoidal rule in x = first·step … last·step after u = exp(x − exp(−x)), which converges
    double-exponentially at 0 and exponentially far out (Takahasi and Mori 1974).
    """
    rule = []
    for k in range(first, last + 1):
        x = step * k
        u = math.exp(x - math.exp(-x))
        rule.append((u, step * u * (1 + math.exp(-x))))
    return rule


def in_float64(f: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Return f of the arguments, broadcast and computed in float64, in the promoted dtype of the arguments.

    The result is at least float32 and on the device of the first argument.
    """
    dtype = torch.float32
    for x in arguments:
        dtype = torch.promote_types(dtype, x.dtype)
    device = arguments[0].device
    float64_device = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
    return f(*torch.broadcast_tensors(*(x.to(float64_device, torch.float64) for x in arguments))).to(device, dtype)
