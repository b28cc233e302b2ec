import math

import mpmath as mp
import pytest
import torch
from scipy import integrate, stats

from howsure.formulas import normal
from oracles import exact

LOC, SCALE = 0.5, 2.0


def arguments(dtype):
    return torch.tensor(LOC, dtype=dtype), torch.tensor(SCALE, dtype=dtype)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_both_tails(dtype, bound):
    # beyond 12 deviations a tail is below 1e-30, and no longer a normal float32 below 1e-38
    z = torch.tensor([0.0, 0.1, 1.0, 4.0, 8.5, 12.0], dtype=dtype)
    loc, scale = arguments(dtype)
    for zi, upper, lower in zip(
        z, normal.sf(loc + scale * z, loc, scale), normal.cdf(loc - scale * z, loc, scale), strict=True
    ):
        y = loc + scale * zi
        truth = mp.erfc((exact(y) - exact(loc)) / exact(scale) / mp.sqrt(2)) / 2
        assert exact(upper) == pytest.approx(truth, rel=bound)
        y = loc - scale * zi
        truth = mp.erfc((exact(loc) - exact(y)) / exact(scale) / mp.sqrt(2)) / 2
        assert exact(lower) == pytest.approx(truth, rel=bound)


def test_torch_has_no_lower_tail_and_we_do():
    z = torch.full((16,), -9.0, dtype=torch.float64)
    assert (torch.special.ndtr(z) == 0).all()
    assert torch.allclose(normal.cdf(z, torch.zeros_like(z), torch.ones_like(z)), torch.as_tensor(stats.norm.cdf(z)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_invert_the_tails(dtype):
    q = torch.tensor([1e-30, 1e-10, 0.01, 0.3, 0.5], dtype=dtype)
    loc, scale = arguments(dtype)
    rtol = 1e-4 if dtype == torch.float32 else 1e-12
    assert torch.allclose(normal.cdf(normal.icdf(q, loc, scale), loc, scale), q, rtol=rtol, atol=0)
    assert torch.allclose(normal.sf(normal.isf(q, loc, scale), loc, scale), q, rtol=rtol, atol=0)


def test_density_entropy_and_crps():
    y = torch.tensor([-7.0, 0.5, 0.6, 30.0], dtype=torch.float64)
    loc, scale = arguments(torch.float64)
    assert torch.allclose(normal.log_prob(y, loc, scale), torch.as_tensor(stats.norm.logpdf(y, LOC, SCALE)))
    assert normal.entropy(scale).item() == pytest.approx(stats.norm.entropy(LOC, SCALE))
    for yi, got in zip(y.tolist(), normal.crps(y, loc, scale).tolist(), strict=True):
        low, high = min(yi, LOC) - 12 * SCALE, max(yi, LOC) + 12 * SCALE
        below = integrate.quad(lambda x: stats.norm.cdf(x, LOC, SCALE) ** 2, low, yi, epsabs=1e-12, limit=200)
        above = integrate.quad(lambda x: stats.norm.sf(x, LOC, SCALE) ** 2, yi, high, epsabs=1e-12, limit=200)
        assert got == pytest.approx(below[0] + above[0], rel=1e-9)


@pytest.mark.parametrize("f", [normal.cdf, normal.sf, normal.crps, normal.log_prob])
def test_gradients(f):
    values = ([-2.0, 0.3, 0.0], [0.1, 0.0, 0.0], [1.0, 2.0, 3.0])
    assert torch.autograd.gradcheck(f, [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values])


def test_gradients_of_quantiles():
    values = ([0.01, 0.5, 0.97], [0.1, 0.0, 0.0], [1.0, 2.0, 3.0])
    x = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
    assert torch.autograd.gradcheck(normal.icdf, x)
    assert torch.autograd.gradcheck(normal.isf, x)


def test_infinite_and_missing_values():
    y = torch.tensor([math.inf, -math.inf, math.nan])
    p = normal.cdf(y, *arguments(torch.float32))
    assert p[:2].tolist() == [1, 0]
    assert p[2].isnan()
