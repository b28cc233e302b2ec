"""Independent answers: mpmath with 50 digits, from definitions rather than from the forms the library uses."""

import mpmath as mp
import torch
from torch import Tensor

mp.mp.dps = 50

HALF = mp.mpf(1) / 2


def exact(x: float | Tensor) -> mp.mpf:
    """The number a float stands for, exactly."""
    return mp.mpf(x.item() if isinstance(x, Tensor) else float(x))


def rho(a):
    return mp.loggamma(a + HALF) - mp.loggamma(a)


def rho_prime(a):
    return mp.psi(0, a + HALF) - mp.psi(0, a)


def binet(x):
    return mp.loggamma(x) - (x - HALF) * mp.log(x) + x - mp.log(2 * mp.pi) / 2


def nll_terms(y, gamma, nu, a, beta):
    """The terms of the stable form of the NLL; their sum is checked against the paper's form in test_nig.py."""
    z = nu * (y - gamma) ** 2 / (2 * beta * (1 + nu))
    return [
        HALF * mp.log(2 * beta * (1 + nu) / nu),
        HALF * mp.log(mp.pi),
        (1 + a + HALF) * mp.log1p(z),
        -rho(1 + a),
    ]


def nll_gradient_terms(y, gamma, nu, a, beta):
    """Terms of the derivatives by (γ, ν, α, β)."""
    r = y - gamma
    z = nu * r**2 / (2 * beta * (1 + nu))
    pull = (1 + a + HALF) * z / (1 + z)
    return [
        [-(1 + a + HALF) * nu * r / (beta * (1 + nu)) / (1 + z)],
        [-HALF / (nu * (1 + nu)), pull / (nu * (1 + nu))],
        [mp.log1p(z), -rho_prime(1 + a)],
        [HALF / beta, -pull / beta],
    ]


def nll_as_published(y, gamma, nu, a, beta):
    """Eq. 8 of the paper, letter for letter."""
    alpha, omega = 1 + a, 2 * beta * (1 + nu)
    return (
        HALF * mp.log(mp.pi / nu)
        - alpha * mp.log(omega)
        + (alpha + HALF) * mp.log((y - gamma) ** 2 * nu + omega)
        + mp.loggamma(alpha)
        - mp.loggamma(alpha + HALF)
    )


def t_tail(t, n):
    """P(T > |t|) by adaptive quadrature of the density over asinh(t/√n); test_student_t.py checks it by betainc."""
    t, n = abs(mp.mpf(t)), mp.mpf(n)
    tau = t / mp.sqrt(n + t * t)
    unit = (2 / n) / (tau + mp.sqrt(tau * tau + 2 / n))
    cuts = [0, HALF, 1, 2, 4, 8, 16, 32, 64, 128]
    g = unit * mp.quad(lambda u: mp.exp(-n * mp.log(mp.cosh(unit * u) + tau * mp.sinh(unit * u))), cuts)
    return mp.exp(rho(n / 2) - n / 2 * mp.log1p(t * t / n)) / mp.sqrt(mp.pi) * g


def log_uniform(low: float, high: float, n: int, generator: torch.Generator) -> Tensor:
    """Draws between low and high, uniform in the logarithm, in float64, both ends included."""
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    u[0], u[-1] = 0.0, 1.0
    return low * (high / low) ** u[torch.randperm(n, generator=generator)]
