import functools

import pytest
import torch

import howsure as hs
from howsure.formulas import nig, penalties

POINT = {"gamma": 0.3, "nu": 0.7, "alpha_minus_one": 1.5, "beta": 1.3}
Y = 1.1


def values(scale=1.0, dtype=torch.float64):
    p = {**POINT, "gamma": POINT["gamma"] * scale, "beta": POINT["beta"] * scale**2}
    return [torch.tensor(v, dtype=dtype) for v in (Y * scale, *p.values())]


def test_formulas_by_hand():
    y, gamma, nu, a, beta = (v.item() for v in values())
    r, alpha = abs(y - gamma), 1 + a
    width = (beta * (1 + nu) / (nu * alpha)) ** 0.5
    by_hand = {
        "error": r * (2 * nu + alpha),
        "standard_score": r / width * (2 * nu + alpha),
        "nsu": r**2 * nu * a / (beta * (nu + 1)),
    }
    for name, expected in by_hand.items():
        assert penalties.PENALTIES[name](*values()).item() == pytest.approx(expected, rel=1e-14), name


def test_kl_towards_little_evidence():
    """Erratum E8: 3.6345 at ν = 4, α = 3, ε = 0.01 (Monte Carlo 3.6340 ± 0.0007); the paper's form gives 0.7638."""
    p = [torch.tensor(v, dtype=torch.float64) for v in (9.0, 0.0, 4.0, 2.0, 1.0)]
    assert penalties.kl(*p, epsilon=0.01).item() == pytest.approx(3.6345, abs=5e-5)
    assert penalties.kl_error(*p, epsilon=0.01).item() == pytest.approx(9 * 3.63446, abs=1e-3)


def test_kl_is_never_negative_and_diverges_with_epsilon():
    p = [torch.tensor(v, dtype=torch.float64) for v in (0.0, 0.0, 100.0, 0.01, 1.0)]
    sizes = [penalties.kl(*p, epsilon=10.0**-k).item() for k in (2, 4, 8)]
    assert sizes[0] > 0
    assert sizes[1] - sizes[0] == pytest.approx(2.3026, rel=0.05)
    assert sizes[2] - sizes[1] == pytest.approx(4.6052, rel=0.05)


@pytest.mark.parametrize(
    ("name", "power"),
    [("error", 1), ("standard_score", 0), ("kl", 0), ("kl_error", 1), ("nsu", 0), ("lipschitz_mse", 2), ("ur", 1)],
)
def test_units(name, power):
    """Each docstring states how the penalty scales with y, and this test measures it."""
    f = {**penalties.PENALTIES, **penalties.EXTRA_TERMS}[name]
    assert f(*values(100.0)).item() == pytest.approx(100.0**power * f(*values()).item(), rel=1e-10)
    assert ("Not unit-free" in f.__doc__) == (power == 1)
    assert ("Unit-free." in f.__doc__) == (power == 0)


def test_nsu_averages_one_where_the_variance_is_right():
    p = nig.Parameters(*(torch.tensor(v, dtype=torch.float64) for v in (1.0, 2.0, 5.0, 3.0)))
    t = hs.NormalInverseGamma(p.gamma, p.nu, beta=p.beta, alpha_minus_one=p.alpha_minus_one).predictive()
    assert penalties.nsu(t.sample((400_000,)), *p).mean().item() == pytest.approx(1, abs=0.01)


def test_lipschitz_mse_is_a_square_with_a_bounded_slope():
    _, gamma, nu, a, beta = values()
    y = torch.tensor([0.31, 0.5, 5.0, 1e4], dtype=torch.float64, requires_grad=True)
    p = [v.expand(4).clone().requires_grad_() for v in (gamma, nu, a, beta)]
    loss = penalties.lipschitz_mse(y, *p)
    by_y, by_gamma, *others = torch.autograd.grad(loss.sum(), (y, *p), allow_unused=True)
    assert loss[0].item() == pytest.approx(0.01**2, rel=1e-9)
    assert by_y[2] == by_y[3]
    assert torch.equal(by_gamma, -by_y)
    assert others == [None, None, None]
    # continuous where the two pieces meet
    alpha = 1 + a
    u_nu = beta * (1 + nu) / (alpha * nu)
    u_alpha = 2 * beta * (1 + nu) / nu * (torch.exp(torch.digamma(alpha + 0.5) - torch.digamma(alpha)) - 1)
    root = torch.minimum(u_nu, u_alpha).sqrt()
    for side in (1 - 1e-9, 1 + 1e-9):
        assert penalties.lipschitz_mse(gamma + root * side, gamma, nu, a, beta).item() == pytest.approx(
            (root**2).item()
        )


def test_ur_has_a_constant_gradient_on_the_raw_output():
    raw = torch.tensor([[0.0, 0.0, x, 0.0] for x in (-8.0, -2.0, 0.0, 5.0)], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([2.0, -2.0, 2.0, 2.0], dtype=torch.float64)
    (slope,) = torch.autograd.grad(penalties.ur(y, *nig.from_raw(raw)).sum(), raw)
    assert torch.allclose(slope[:, 2], torch.full((4,), -2.0, dtype=torch.float64), rtol=4e-3)


@pytest.mark.parametrize("name", [*penalties.PENALTIES, *penalties.EXTRA_TERMS])
def test_gradients(name):
    f = {**penalties.PENALTIES, **penalties.EXTRA_TERMS}[name]
    p = [v.requires_grad_() for v in values()]
    if name == "lipschitz_mse":  # its bound is a constant to the gradient
        f, p = functools.partial(f, nu=p[2].detach(), alpha_minus_one=p[3].detach(), beta=p[4].detach()), p[:2]
    assert torch.autograd.gradcheck(f, p)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(hs.InputError, match="'eror'"):
        penalties.lookup("eror")
    assert penalties.lookup(penalties.error) is penalties.error
