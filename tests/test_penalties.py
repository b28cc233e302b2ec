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
    [("error", 1), ("standard_score", 0), ("kl", 0), ("kl_error", 1), ("nsu", 0)],
)
def test_units(name, power):
    """Each docstring states how the penalty scales with y, and this test measures it."""
    f = penalties.PENALTIES[name]
    assert f(*values(100.0)).item() == pytest.approx(100.0**power * f(*values()).item(), rel=1e-10)
    assert ("Not unit-free" in f.__doc__) == (power == 1)
    assert ("Unit-free." in f.__doc__) == (power == 0)


def test_nsu_averages_one_where_the_variance_is_right():
    p = nig.Parameters(*(torch.tensor(v, dtype=torch.float64) for v in (1.0, 2.0, 5.0, 3.0)))
    t = hs.NormalInverseGamma(p.gamma, p.nu, beta=p.beta, alpha_minus_one=p.alpha_minus_one).predictive()
    assert penalties.nsu(t.sample((400_000,)), *p).mean().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", penalties.PENALTIES)
def test_gradients(name):
    f = penalties.PENALTIES[name]
    p = [v.requires_grad_() for v in values()]
    assert torch.autograd.gradcheck(f, p)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(hs.InputError, match="'eror'"):
        penalties.lookup("eror")
    assert penalties.lookup(penalties.error) is penalties.error
