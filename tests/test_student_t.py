"""Student's t against mpmath (tails), scipy (densities) and quadrature (CRPS)."""

import math

import mpmath
import mpmath as mp
import pytest
import torch
from scipy import integrate, stats

import howsure as hs
import oracles
from howsure.formulas import student_t, student_tail
from oracles import exact

DF = [2 + 1e-6, 2.1, 3.0, 7.7, 8.0, 15.9, 30.0, 1e2, 1e3, 1e5, 1e8]
TAILS = [1e-30, 1e-20, 1e-10, 1e-4, 0.01, 0.2, 0.49, 0.5]
DTYPES = [torch.float32, torch.float64]


def standard(dtype):
    return torch.tensor(0.0, dtype=dtype), torch.tensor(1.0, dtype=dtype)


@pytest.mark.parametrize(("t", "n"), [(1.0, 3.0), (5.0, 2.5), (30.0, 10.0), (0.01, 100.0)])
def test_oracle_is_the_incomplete_beta_function(t, n):
    t, n = mp.mpf(t), mp.mpf(n)
    beta = mp.betainc(n / 2, mp.mpf(1) / 2, 0, n / (n + t * t), regularized=True) / 2
    assert abs(oracles.t_tail(t, n) / beta - 1) < mp.mpf(10) ** -30


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("df", DF)
def test_both_tails_to_1e_minus_30(df, dtype):
    bound = 1e-5 if dtype == torch.float32 else 1e-10
    df = torch.tensor(df, dtype=dtype)
    loc, scale = standard(dtype)
    # the argument only has to land near the tail: the test uses the tail of the rounded number
    t = student_t.isf(torch.tensor(TAILS, dtype=torch.float64), df.double(), loc.double(), scale.double()).to(dtype)
    for ti, upper, lower in zip(t, student_t.sf(t, df, loc, scale), student_t.cdf(-t, df, loc, scale), strict=True):
        truth = oracles.t_tail(exact(ti), exact(df))
        assert exact(upper) == pytest.approx(truth, rel=bound)
        assert exact(lower) == pytest.approx(truth, rel=bound)
    assert torch.allclose(student_t.sf(-t, df, loc, scale), 1 - student_t.cdf(-t, df, loc, scale))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("df", DF)
def test_quantiles_invert_the_tails(df, dtype):
    """icdf(cdf(y)) = y in the lower half and isf(sf(y)) = y in the upper, up to rounding of the tail."""
    df = torch.tensor(df, dtype=dtype)
    loc, scale = torch.tensor(0.25, dtype=dtype), torch.tensor(2.0, dtype=dtype)
    q = torch.tensor(TAILS, dtype=dtype)
    upper = student_t.isf(q, df, loc, scale)
    lower = student_t.icdf(q, df, loc, scale)
    eps = torch.finfo(dtype).eps
    for y, back in [
        (upper, student_t.isf(student_t.sf(upper, df, loc, scale), df, loc, scale)),
        (lower, student_t.icdf(student_t.cdf(lower, df, loc, scale), df, loc, scale)),
    ]:
        # a relative change ε of the tail q moves y by q ε / f(y)
        slack = 4 * eps * (y.abs() + q / student_t.log_prob(y, df, loc, scale).exp()) + 1e-11 * y.abs()
        assert ((y - back).abs() <= slack).all()


def test_quantiles_against_scipy():
    p = torch.tensor([1e-12, 0.001, 0.3, 0.5, 0.8, 0.9999], dtype=torch.float64)
    for df in [2.5, 4.0, 33.0, 1e4]:
        got = student_t.icdf(p, torch.tensor(df, dtype=torch.float64), *standard(torch.float64))
        assert torch.allclose(got, torch.as_tensor(stats.t.ppf(p, df)), rtol=1e-9, atol=1e-12)


def test_quantiles_at_and_beyond_the_ends():
    p = torch.tensor([0.0, 1.0, -0.1, 1.1, math.nan])
    q = student_t.icdf(p, torch.tensor(3.0), *standard(torch.float32))
    assert q[0] == -math.inf
    assert q[1] == math.inf
    assert q[2:].isnan().all()
    y = torch.tensor([math.inf, -math.inf])
    assert student_t.cdf(y, torch.tensor(2.5), *standard(torch.float32)).tolist() == [1, 0]
    assert student_t.sf(y, torch.tensor(2.5), *standard(torch.float32)).tolist() == [0, 1]


def test_small_degrees_of_freedom_also_work():
    t = torch.tensor([-1e6, -3.0, 0.0, 0.7, 50.0], dtype=torch.float64)
    for df in [0.3, 1.0, 1.7]:
        got = student_t.cdf(t, torch.tensor(df, dtype=torch.float64), *standard(torch.float64))
        assert torch.allclose(got, torch.as_tensor(stats.t.cdf(t, df)), rtol=1e-9)


@pytest.mark.parametrize("f", [student_t.cdf, student_t.sf, student_t.crps, student_t.log_prob])
def test_gradients_by_every_argument(f):
    y, df, loc, scale = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in (
            [-2.0, 0.3, 0.0, 1.5, 9.0],
            [2.5, 5.0, 9.0, 40.0, 3.0],
            [0.1, 0.0, 0.0, 0.2, 0.0],
            [1.0, 2.0, 3.0, 0.5, 1.0],
        )
    )
    assert torch.autograd.gradcheck(f, (y, df, loc, scale))
    assert torch.autograd.gradgradcheck(f, (y, df, loc, scale))


@pytest.mark.parametrize("f", [student_t.icdf, student_t.isf])
def test_gradients_of_quantiles(f):
    arguments = [
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in ([0.01, 0.5, 0.3, 0.97], [2.5, 5.0, 9.0, 40.0], [0.1, 0.0, 0.0, 0.2], [1.0, 2.0, 3.0, 0.5])
    ]
    assert torch.autograd.gradcheck(f, arguments)


def test_gradient_by_df_is_exact_for_large_df():
    df = torch.tensor(1e6, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        student_t.cdf(torch.tensor(-2.0, dtype=torch.float64), df, *standard(torch.float64)), df
    )
    h = mp.mpf(1)
    truth = (oracles.t_tail(2, mp.mpf(10) ** 6 + h) - oracles.t_tail(2, mp.mpf(10) ** 6 - h)) / (2 * h)
    assert slope.item() == pytest.approx(float(truth), rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("df", DF)
def test_density_and_entropy(df, dtype):
    df = torch.tensor(df, dtype=dtype)
    n = exact(df)
    y = torch.tensor([0.0, 1e-3, 0.8, -12.0, 1e6], dtype=dtype)
    scale = torch.tensor(1.75, dtype=dtype)
    for yi, got in zip(y, student_t.log_prob(y, df, torch.zeros((), dtype=dtype), scale), strict=True):
        terms = [oracles.rho(n / 2) - mp.log(n * mp.pi) / 2, -mp.log(exact(scale))]
        terms.append(-(n + 1) / 2 * mp.log1p((exact(yi) / exact(scale)) ** 2 / n))
        assert abs(exact(got) - sum(terms)) <= 4 * torch.finfo(dtype).eps * max(1, sum(map(abs, terms)))
    truth = (n + 1) / 2 * oracles.rho_prime(n / 2) + mp.log(n * mp.pi) / 2 - oracles.rho(n / 2) + mp.log(exact(scale))
    assert student_t.entropy(df, scale).item() == pytest.approx(float(truth), rel=8 * torch.finfo(dtype).eps)


def test_entropy_against_scipy():
    for df in [2.5, 7.0, 100.0]:
        got = student_t.entropy(torch.tensor(df, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64))
        assert got.item() == pytest.approx(stats.t.entropy(df, 0, 3.0), rel=1e-10)


@pytest.mark.parametrize("df", [2 + 1e-6, 2.5, 5.0, 60.0, 1e4])
@pytest.mark.parametrize("y", [-3.0, 0.1, 0.5, 8.0])
def test_crps_against_quadrature(df, y):
    """∫ F² below y plus ∫ (1−F)² above, with scipy's F."""
    loc, scale = 0.1, 1.5
    # in w = asinh((x − loc)/scale) the tails fall exponentially
    w0 = math.asinh((y - loc) / scale)
    below = integrate.quad(
        lambda w: stats.t.cdf(math.sinh(w), df) ** 2 * math.cosh(w), -30, w0, epsabs=1e-12, limit=300
    )
    above = integrate.quad(lambda w: stats.t.sf(math.sinh(w), df) ** 2 * math.cosh(w), w0, 30, epsabs=1e-12, limit=300)
    got = student_t.crps(*(torch.tensor(v, dtype=torch.float64) for v in (y, df, loc, scale)))
    assert got.item() == pytest.approx(scale * (below[0] + above[0]), rel=1e-8)


def test_crps_tends_to_the_normal_one():
    z = torch.tensor([0.0, 0.5, -3.0, 20.0], dtype=torch.float64)
    normal = z * (2 * torch.as_tensor(stats.norm.cdf(z)) - 1) + 2 * torch.as_tensor(stats.norm.pdf(z)) - math.pi**-0.5
    got = student_t.crps(z, torch.tensor(1e8, dtype=torch.float64), *standard(torch.float64))
    assert torch.allclose(got, normal, rtol=1e-6)


def test_variance_by_the_excess_over_two():
    d = torch.tensor([-1.5, -0.5, 0.0, 1e-6, 4.0])
    variance = student_t.variance(d, torch.tensor(2.0))
    assert variance[0].isnan()
    assert variance[1:3].isinf().all()
    assert torch.allclose(variance[3:], torch.tensor([8e6 + 4, 6.0]))


def test_bfloat16_arguments_give_float32():
    y = torch.tensor([0.5], dtype=torch.bfloat16)
    assert student_t.cdf(y, y + 3, y, y).dtype == torch.float32


@pytest.mark.parametrize("df", [1.0, 2 + 1e-6, 2.5, 8.0, 1e4])
@pytest.mark.parametrize("p", [1e-100, 1e-250, 1e-300])
def test_far_quantiles_against_mpmath(df, p):
    t = hs.StudentT(torch.tensor(df, dtype=torch.float64))
    upper, lower = t.isf(p).item(), t.icdf(p).item()
    assert lower == -upper
    with mpmath.workdps(50):
        n = mpmath.mpf(df)
        tail = mpmath.betainc(n / 2, 0.5, 0, n / (n + mpmath.mpf(upper) ** 2), regularized=True) / 2
        assert abs(tail / mpmath.mpf(p) - 1) < 1e-11


def test_values_whose_square_overflows():
    single = hs.StudentT(3.0)
    assert single.log_prob(1e20).item() == pytest.approx(-183.0105, abs=1e-3)
    assert single.log_prob(1e20).dtype == torch.float32
    assert single.crps(1e20).item() == pytest.approx(1e20)
    assert single.crps(float("inf")).item() == math.inf
    wide = hs.StudentT(torch.tensor(3.0, dtype=torch.float64))
    with mpmath.workdps(50):
        exact = mpmath.log(mpmath.gamma(2) / (mpmath.sqrt(3 * mpmath.pi) * mpmath.gamma(1.5)))
        exact -= 2 * mpmath.log(1 + mpmath.mpf(10) ** 400 / 3)
    assert wide.log_prob(1e200).item() == pytest.approx(float(exact), rel=1e-14)


# Tails without an integral ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("df", [0.05, 0.3, 1.0, 2 + 1e-6, 5.5, 40.0, 1e3, 1e6])
def test_tails_to_rounding(df):
    """Also for many arguments at once, which are computed another way than few, and in chunks."""
    t = torch.cat([torch.zeros(1), torch.logspace(-4, 3, 6)]).double()
    n = torch.full_like(t, df)
    few = student_tail.upper_tail(t, n)
    many = student_tail.upper_tail(t.repeat(3000), n.repeat(3000))
    assert torch.allclose(many, few.repeat(3000), rtol=1e-13, atol=0)
    for ti, got in zip(t, few, strict=True):
        truth = oracles.t_tail(exact(ti), exact(n[0]))
        if truth > 1e-250:
            assert exact(got) == pytest.approx(truth, rel=1e-12)


def test_tail_and_its_density_have_one_exponent():
    n, t = torch.tensor([2.5, 30.0]).double(), torch.tensor([0.6, 5.5]).double()
    shape = student_tail.shape_of(n)
    found = student_tail.tail(t, shape)
    peak = shape.height * found.exponent.exp()
    assert (peak * shape.root * found.integral).numpy() == pytest.approx(stats.t.sf(t, n), rel=1e-12)
    assert (peak * found.cosine).numpy() == pytest.approx(stats.t.pdf(t, n), rel=1e-12)


def test_tails_under_vmap():
    y, df = torch.tensor([[-2.0, 0.3], [4.0, 1e9]]).double(), torch.tensor([3.0, 50.0]).double()
    zero, one = standard(torch.float64)
    mapped = torch.func.vmap(lambda y: student_t.cdf(y, df, zero, one))(y)
    assert torch.equal(mapped, student_t.cdf(y, df, zero, one))


@pytest.mark.parametrize("y", [-3.0, 0.1, 8.0])
def test_mean_distance_against_quadrature(y):
    each = hs.StudentT(*(torch.tensor(v, dtype=torch.float64) for v in (3.5, 0.1, 1.5)))
    density = stats.t(3.5, 0.1, 1.5).pdf
    parts = [
        integrate.quad(lambda x: abs(x - y) * density(x), *ends, epsabs=1e-12)
        for ends in ((-math.inf, y), (y, math.inf))
    ]
    assert each.mean_distance(y).item() == pytest.approx(parts[0][0] + parts[1][0], rel=1e-8)
