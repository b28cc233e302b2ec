"""Distributions of targets that cannot be negative, held against mpmath, scipy's quadrature and simulation."""

import itertools

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.utils import _pytree

import howsure as hs
from howsure.distributions import Mixture, Normal, StudentT, Transform, Transformed
from howsure.errors import InputError
from howsure.formulas import transforms
from howsure.prediction import Prediction

DOUBLE = {"dtype": torch.float64}


def t64(*values):
    return torch.tensor(values, **DOUBLE)


def moments_by_mpmath(n, loc, scale, shift):
    """Return mean and variance of max(0, softplus(Z) − shift), integrated in z = loc + scale·sinh(u)."""
    with mp.workdps(25):
        if n is None:
            constant, density, end = 1, lambda z: mp.npdf(z, loc, scale), mp.asinh(16)
        else:
            n = mp.mpf(n)
            constant = mp.gamma((n + 1) / 2) / mp.gamma(n / 2) / mp.sqrt(n * mp.pi) / scale
            end = mp.mpf(60)

            def density(z):
                return constant * (1 + ((z - loc) / scale) ** 2 / n) ** (-(n + 1) / 2)

        def y(z):
            return max(mp.mpf(0), mp.log1p(mp.exp(z)) - shift)

        kinks = [*(-60, -20, -6, -2, 0, 2, 6, 20, 60), *([mp.log(mp.expm1(shift))] if shift else [])]
        edges = [mp.asinh((z - loc) / scale) for z in kinks] + [mp.mpf(k) for k in (-6, -3, -1.5, 0, 1.5, 3, 6)]
        edges = [-end, *sorted(u for u in edges if -end < u < end), end]
        centre = y(mp.mpf(loc))

        def mean_power(k):
            def integrand(u):
                z = loc + scale * mp.sinh(u)
                return (y(z) - centre) ** k * density(z) * scale * mp.cosh(u)

            return mp.quad(integrand, edges, maxdegree=7)

        first, second = mean_power(1), mean_power(2)
        if n is not None and n < 3:  # beyond the last edge y is z, and the density a power of it
            second += constant * scale**3 * n ** ((n + 1) / 2) * mp.sinh(end) ** (2 - n) / (n - 2)
        return float(centre + first), float(second - first**2)


@pytest.mark.parametrize("n", [None, 2.01, 5.0, 1e8])
@pytest.mark.parametrize(
    ("loc", "scale", "shift"),
    [(-3.0, 1e-2, 0.0), (0.0, 1.0, 0.3), (5.0, 1e-4, 0.3), (-3e2, 1e2, 0.0), (0.5e4, 1e4, 0.3)],
)
def test_moments_are_those_of_mpmath(n, loc, scale, shift):
    mean, variance = moments_by_mpmath(n, loc, scale, shift)
    df = None if n is None else t64(n)
    found = transforms.moments(df, None if df is None else df - 2, t64(loc), t64(scale), t64(1.0), t64(shift))
    assert abs(found[0].item() - mean) <= 1e-7 * min(np.sqrt(variance), scale)
    assert abs(found[1].item() - variance) <= 1e-7 * variance


def test_variance_just_above_two_degrees_of_freedom_and_below():
    excess = t64(1e-6, 1e-3, 0.0, -0.5)
    _, variance, _ = transforms.moments(2 + excess, excess, *(t64(*[v] * 4) for v in (3.0, 0.5, 1.0, 0.0)))
    # the tail decides: almost the variance of Z itself, whose lower half is cut off
    assert torch.allclose(variance[:2], 0.5 * 0.25 * (2 + excess[:2]) / excess[:2], rtol=1e-2)
    assert variance[2:].isinf().all()


def crps_by_quadrature(y, df, loc, scale, shift):
    """Return ∫(F − 1)² over y ≥ 0 with scipy's cdf."""

    def cdf(v):
        z = v + shift + np.log(-np.expm1(-(v + shift))) if v + shift > 0 else -np.inf
        each = stats.norm.cdf(z, loc, scale) if df is None else stats.t.cdf(z, df, loc, scale)
        return each.mean()

    steps = np.array([-30, -8, -4, -2, -1, 0, 1, 2, 4, 8, 30, 300, 3000])
    edges = np.logaddexp(0, np.add.outer(loc, np.multiply.outer(scale, steps))).diagonal() - shift
    edges = np.unique(np.clip([*edges.ravel(), y], 0, None))
    total = max(-y, 0.0)
    for a, b in itertools.pairwise(edges):
        total += integrate.quad(lambda v: (cdf(v) - (v >= y)) ** 2, a, b, epsabs=1e-12, epsrel=1e-10, limit=200)[0]
    return total


@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.parametrize("y", [-1.0, 0.0, 0.5, 20.0])
@pytest.mark.parametrize("df", [None, np.array([2.05, 40.0])])
@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
def test_crps_is_that_of_quadrature(df, y, shift):
    loc, scale = np.array([-1.0, 4.0]), np.array([2.0, 0.05])
    n = None if df is None else torch.from_numpy(df).unsqueeze(1)
    members = torch.from_numpy(loc).unsqueeze(1), torch.from_numpy(scale).unsqueeze(1)
    found = transforms.crps(t64(y), n, *members, t64(1.0), t64(shift)).item()
    assert found == pytest.approx(crps_by_quadrature(y, df, loc, scale, shift), rel=2e-7)


@pytest.fixture
def members():
    g = torch.Generator().manual_seed(0)
    loc = 2 * torch.randn(3, 40, generator=g, **DOUBLE)
    return StudentT(2.5 + 10 * torch.rand(3, 40, generator=g, **DOUBLE), loc, 0.2 + torch.rand(3, 40, generator=g))


@pytest.mark.parametrize("transform", [Transform("positive", 2.0, 0.5), Transform("positive", 3.0), Transform("log")])
def test_density_tails_and_quantiles_belong_together(members, transform):
    d = Transformed(Mixture(members), transform)
    q = torch.linspace(0.05, 0.95, 40, **DOUBLE)
    y = d.icdf(q)
    inside = y > 0
    assert (y >= 0).all()
    assert torch.allclose(d.cdf(y)[inside], q[inside], rtol=1e-9)
    assert torch.allclose(d.isf(1 - q), y, rtol=1e-9)
    assert torch.allclose(d.cdf(y) + d.sf(y), torch.ones_like(q))
    step = 1e-5 * y[inside]
    part = Transformed(Mixture(StudentT(*(p[:, inside] for p in (members.df, members.loc, members.scale)))), transform)
    slope = (part.cdf(y[inside] + step) - part.cdf(y[inside] - step)) / (2 * step)
    assert torch.allclose(part.log_prob(y[inside]).exp(), slope, rtol=1e-6)
    assert (d.log_prob(-1.0) == -torch.inf).all()
    assert (d.cdf(-1.0) == 0).all()
    assert (d.sf(-1.0) == 1).all()


def test_probability_of_zero_is_that_of_the_shift():
    base = Normal(t64(0.0, 1.0), 1.0)
    d = Transformed(base, Transform("positive", 2.0, 0.5))
    z = 2 * np.log(np.expm1(0.25))
    assert torch.allclose(d.cdf(0.0), torch.from_numpy(stats.norm.cdf(z, [0.0, 1.0])))
    assert (d.icdf(0.9 * d.cdf(0.0)) == 0).all()
    assert Transformed(base, Transform("positive", 2.0)).cdf(0.0).eq(0).all()


def test_moments_crps_and_entropy_agree_with_simulation(members):
    torch.manual_seed(0)
    d = Transformed(Mixture(members), Transform("positive", 2.0, 0.5))
    draws = d.sample((40_000,))
    error = draws.std(0) / 200
    assert ((draws.mean(0) - d.mean).abs() < 5 * error).all()
    assert torch.allclose(d.variance, d.within_variance + d.between_variance)
    y = d.icdf(torch.full((40,), 0.7, **DOUBLE))
    other = d.sample((40_000,))
    simulated = (draws - y).abs() - 0.5 * (draws - other).abs()
    assert ((simulated.mean(0) - d.crps(y)).abs() < 5 * simulated.std(0) / 200).all()
    smooth = Transformed(Mixture(members), Transform("positive", 2.0))
    surprise = -smooth.log_prob(smooth.sample((40_000,)))
    assert ((surprise.mean(0) - smooth.entropy()).abs() < 5 * surprise.std(0) / 200).all()


def test_moments_under_log_raise_with_hint(members):
    p = Prediction(members, members=0, transform=Transform("log"))
    for ask in ("mean", "std", "variance", "aleatoric_std"):
        with pytest.raises(InputError, match='"log"'):
            getattr(p, ask)
    with pytest.raises(InputError, match="CRPS"):
        p.crps(p.median)
    assert np.allclose(p.median, np.exp(Prediction(members, members=0).median))
    assert list(p.to_frame().columns) == ["median", "lower_0.9", "upper_0.9"]
    assert np.isfinite(p.entropy()).all()


def test_inverse_is_exact_at_both_ends():
    for v, s in ((1e-12, 1.0), (1e-3, 1e3), (1.0, 1e-2), (0.7, 1.0), (1e6, 1.0)):
        with mp.workdps(30):
            exact = mp.mpf(s) * mp.log(mp.expm1(mp.mpf(v) / s))
        assert transforms.inverse_softplus(t64(v), s).item() == pytest.approx(float(exact), rel=1e-14)
    back = transforms.softplus(transforms.inverse_softplus(t64(1e-9, 1.0, 1e9), 7.0), 7.0)
    assert torch.allclose(back, t64(1e-9, 1.0, 1e9), rtol=1e-12)


@pytest.mark.parametrize("df", [None, 4.0])
def test_nan_parameters_give_nan_and_spare_other_rows(df):
    loc = t64([np.nan, 0.5, 2.0, 1.0], [0.0, 1.0, 1.0, 1.0])
    scale = t64([1.0, 1.0, 0.3, np.nan], [1.0, 2.0, 1.0, 1.0])

    def made(rows):
        leaves = loc[:, rows], scale[:, rows]
        each = hs.Normal(*leaves, validate_args=False) if df is None else hs.StudentT(df, *leaves, validate_args=False)
        return Transformed(hs.Mixture(each), Transform("positive", 2.0, 0.1))

    whole, good = made(slice(None)), made(slice(1, 3))
    for one, other in zip(
        (whole.mean, whole.variance, whole.crps(0.3)), (good.mean, good.variance, good.crps(0.3)), strict=True
    ):
        assert one[[0, 3]].isnan().all()
        assert torch.equal(one[1:3], other)


def test_prediction_keeps_its_transform(members):
    two = _pytree.tree_map(lambda p: p.unflatten(1, (20, 2)), members)
    transform = Transform("positive", [2.0, 5.0], [0.0, 0.5])
    p = Prediction(two, members=0, transform=transform)
    assert repr(p) == "Prediction(shape=(20, 2), members=3, transform='positive')"
    ends = p.interval(0.8)
    assert (ends >= 0).all()
    for some, expected in (
        (p[3:7], ends[3:7]),
        (p[:, 1], ends[:, 1]),
        (p[[0, 1, 2], [1, 0, 1]], ends[[0, 1, 2], [1, 0, 1]]),
        (p[::-1], ends[::-1]),
        (p[4, 0], ends[4, 0]),
        (Prediction.cat([p[:5], p[5:]]), ends),
        (p.cpu().detach().to(torch.float64), ends),
        (Prediction(p.distribution), ends),
    ):
        assert np.allclose(some.interval(0.8), expected)
    assert p[:, 1].transform == Transform("positive", 5.0, 0.5)
    assert p[2:5].transform == transform
    assert p.to(torch.float32).mean.dtype == np.float32
    assert p.sample(3, seed=0).min() >= 0
    with pytest.raises(InputError, match="transform='positive'"):
        Prediction.cat([p, Prediction(two, members=0)])
    with pytest.raises(InputError, match="same transform"):
        Prediction.cat([p[:, 0], p[:, 1]])


def test_parts_of_the_variance_are_those_of_the_members(members):
    transform = Transform("positive", 2.0)
    p = Prediction(members, members=0, transform=transform)
    each = [Transformed(StudentT(members.df[k], members.loc[k], members.scale[k]), transform) for k in range(3)]
    means, variances = torch.stack([d.mean for d in each]), torch.stack([d.variance for d in each])
    parts = p.decompose()
    assert np.allclose(parts.aleatoric, variances.mean(0))
    assert np.allclose(parts.epistemic, means.var(0, unbiased=False))
    with pytest.raises(InputError, match='"positive"'):
        p.decompose("paper")
    answer = hs.NormalInverseGamma(t64(0.0), t64(1.0), t64(3.0), t64(1.0))
    alone = Prediction(answer, transform=transform)
    assert alone.decompose() == (None, None)
    assert alone.std > 0
    assert Prediction(Normal(t64(0.0), 1.0), transform=transform).aleatoric_std > 0


def test_invalid_transforms_raise():
    for wrong in (("root",), ("positive", 0.0), ("positive", 1.0, -1.0), ("positive", float("nan"))):
        with pytest.raises(InputError, match="transform"):
            Transform(*wrong)
    with pytest.raises(TypeError, match=r"torch\.distributions\.Normal"):
        Transformed(torch.distributions.Normal(0.0, 1.0), Transform("log"))
    with pytest.raises(InputError, match="transform="):
        Prediction(Transformed(Normal(t64(0.0), 1.0), Transform("log")), transform=Transform("log"))
