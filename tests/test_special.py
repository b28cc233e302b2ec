import mpmath as mp
import pytest
import torch

import oracles
from howsure.formulas import special
from oracles import exact

ALPHAS = [1e-30, 1e-10, 1e-3, 0.3, 1.0, 1 + 1e-6, 1.5, 3.0, 3.99, 4.0, 4.01, 7.99, 8.0, 15.0, 1e2, 1e4, 1e6, 1e8, 1e15]
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}

FUNCTIONS = {
    "rho": (special.rho, oracles.rho),
    "rho_prime": (special.rho_prime, oracles.rho_prime),
    "rho by autograd": (torch.func.vmap(torch.func.grad(special.rho)), oracles.rho_prime),
    "rho_excess": (special.rho_excess, lambda a: oracles.rho(a) - mp.log(a) / 2),
    "rho_excess_prime": (special.rho_excess_prime, lambda a: oracles.rho_prime(a) - 1 / (2 * a)),
    "binet": (special.binet, oracles.binet),
    "binet_prime": (special.binet_prime, lambda x: mp.psi(0, x) - mp.log(x) + 1 / (2 * x)),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions_against_mpmath(name, dtype):
    f, oracle = FUNCTIONS[name]
    alphas = torch.tensor(ALPHAS, dtype=dtype)
    for alpha, value in zip(alphas, f(alphas), strict=True):
        truth = oracle(exact(alpha))
        assert abs(exact(value) - truth) <= TOLERANCE[dtype] * max(1, abs(truth)), f"{name}({alpha.item()})"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("f", [special.rho, special.rho_prime, special.rho_excess, special.rho_excess_prime])
def test_decaying_parts_keep_relative_accuracy_for_large_arguments(f, dtype):
    # the mutual information at α = 1e8 is 2.5e-9: absolute accuracy would not do
    oracle = dict(FUNCTIONS.values())[f]
    alphas = torch.tensor([1e2, 1e4, 1e6, 1e8], dtype=dtype)
    for alpha, value in zip(alphas, f(alphas), strict=True):
        assert exact(value) == pytest.approx(oracle(exact(alpha)), rel=TOLERANCE[dtype])


def test_naive_difference_fails_where_rho_does_not():
    alpha = torch.tensor(1e6)
    truth = float(oracles.rho(exact(alpha)))
    assert abs(torch.lgamma(alpha + 0.5) - torch.lgamma(alpha) - truth) > 0.5
    assert abs(special.rho(alpha) - truth) < 1e-6


def test_rho_has_second_derivatives():
    alpha = torch.tensor([0.2, 1.0, 5.0, 9.0, 300.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(special.rho, alpha)
    assert torch.autograd.gradgradcheck(special.rho, alpha)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gap_is_relatively_exact_on_both_sides_of_one(dtype):
    x = torch.tensor(
        [1e-30, 1e-3, 0.5, 0.74, 0.76, 0.999, 1 - 1e-5, 1 + 1e-5, 1.1, 1.24, 1.26, 2, 1e5, 1e30], dtype=dtype
    )
    slopes = torch.func.vmap(torch.func.grad(special.gap))(x)
    for xi, value, slope in zip(x, special.gap(x), slopes, strict=True):
        truth = exact(xi) - 1 - mp.log(exact(xi))
        assert exact(value) == pytest.approx(truth, rel=TOLERANCE[dtype])
        assert exact(slope) == pytest.approx(1 - 1 / exact(xi), rel=TOLERANCE[dtype])
    assert special.gap(torch.tensor(1.0, dtype=dtype)) == 0
