"""The quantile for programs that leave Python, against SciPy and against the exact search."""

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from howsure import Mixture, Normal, StudentT
from howsure.formulas import mixture, quick_quantile
from howsure.formulas.quick_quantile import NORMAL_DF, StudentQuantile, mixture_ends, normal_quantile

DF = torch.cat([2 + 2 * torch.logspace(-6, 3, 300), torch.logspace(3.3, np.log10(2e8), 100)])


@pytest.mark.parametrize("coverage", [0.01, 0.5, 0.68, 0.9, 0.95, 0.99, 0.999, 0.999999])
def test_quantile_of_one_student_t(coverage):
    q = 0.5 * (1 - coverage)
    quantile = StudentQuantile(q)
    exact = -special.stdtrit(DF.double().numpy(), q)
    assert np.abs(quantile(DF).double().numpy() / exact - 1).max() < 3e-6
    assert np.abs(quantile(DF.double()).numpy() / exact - 1).max() < 2e-6
    assert abs(normal_quantile(q) / stats.norm.isf(q) - 1) < 1e-9


def test_below_two_degrees_the_quantile_is_nan():
    assert StudentQuantile(0.05)(torch.tensor([1.0, 1.99, torch.nan])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails_and_densities(dtype):
    df = torch.cat([DF, torch.tensor([NORMAL_DF])]).to(dtype)
    z = torch.cat([torch.linspace(-8, 8, 161), torch.logspace(1, 6, 40)]).to(dtype)[:, None]
    tail, density = quick_quantile._tail_and_density(z, quick_quantile._shape_of(df))
    n, x = df.double().numpy(), z.double().numpy()
    exact = np.where(n < 1e10, special.stdtr(n, -x), stats.norm.sf(x))
    live = exact > 1e-6
    assert np.abs(tail.double().numpy() / np.where(live, exact, 1) - 1)[live].max() < 3e-6
    exact = np.where(n < 1e10, stats.t.pdf(x, n), stats.norm.pdf(x))
    live &= exact > 1e-9
    assert np.abs(density.double().numpy() / np.where(live, exact, 1) - 1)[live].max() < 5e-6


def members_of(kind: str, members: int, rows: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return df, loc and scale of random mixtures, (members, rows), in float32."""
    g = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return torch.rand(members, rows, generator=g)

    def normal() -> torch.Tensor:
        return torch.randn(members, rows, generator=g)

    if kind == "alike":
        return 2 + 2 * normal().exp(), 0.3 * normal(), (0.3 * normal()).exp()
    if kind == "degrees":
        return 2 + 2 * 10 ** (-6 + 14 * uniform()), normal(), 10 ** (-2 + 4 * uniform())
    if kind == "heavy":
        return 2 + 2 * 10 ** (-6 + 3 * uniform()), normal(), 10 ** (2 * uniform())
    assert kind == "far"
    return 2 + 2 * 10 ** (-6 + 14 * uniform()), normal() * 10 ** (6 * uniform()), 10 ** (-3 + 6 * uniform())


def relative_errors(df, loc, scale, coverage, weights=None, normal=False):
    """Return the errors of both ends against the exact search, relative to the end or the mixture's width."""
    q = 0.5 * (1 - coverage)
    quantile = torch.full_like(loc, normal_quantile(q)) if normal else StudentQuantile(q)(df)
    shares = None if weights is None else weights.to(loc.dtype).view(-1, *[1] * (loc.ndim - 1))
    found = mixture_ends(torch.full_like(df, NORMAL_DF) if normal else df, loc, scale, quantile, q, shares)
    each = Normal(loc.double(), scale.double()) if normal else StudentT(df.double(), loc.double(), scale.double())
    exact = Mixture(each, weights=weights)
    between = exact.between_variance
    width = ((scale.double() ** 2).mean(0) + between).sqrt()
    level = torch.tensor(q, dtype=torch.float64)
    for end, right in zip(found, (exact.icdf(level), exact.isf(level)), strict=True):
        yield ((end.double() - right).abs() / torch.maximum(right.abs(), width)).max().item()


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["alike", "degrees", "heavy", "far"])
def test_ends_of_mixtures(kind, coverage):
    # seven members of equal weight, so that no level lies on a flat part between members far apart
    df, loc, scale = members_of(kind, 7, 400)
    for error in relative_errors(df, loc, scale, coverage):
        assert error < 1e-5
    for error in relative_errors(df, loc, scale, coverage, normal=True):
        assert error < 1e-5


def test_ends_of_mixtures_with_weights_and_many_dimensions():
    df, loc, scale = members_of("degrees", 5, 120)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.07, 0.03], dtype=torch.float64)
    shaped = [p.reshape(5, 4, 5, 6) for p in (df, loc, scale)]
    for error in relative_errors(*shaped, 0.9, weights):
        assert error < 1e-5


def test_ends_match_an_independent_solver():
    df, loc, scale = members_of("degrees", 4, 20, seed=3)
    lower, upper = mixture_ends(df, loc, scale, StudentQuantile(0.05)(df), 0.05)
    for row in range(20):
        n, m, s = (p[:, row].double().numpy() for p in (df, loc, scale))
        for end, tail in ((lower[row], -1), (upper[row], 1)):

            def excess(x, tail=tail, n=n, m=m, s=s):
                return special.stdtr(n, -tail * (x - m) / s).mean() - 0.05

            exact = optimize.brentq(excess, -1e4, 1e4, xtol=1e-12, rtol=1e-14)
            assert abs(end.item() - exact) < 1e-5 * max(abs(exact), s.mean())


def test_equal_members_are_one_member():
    df, loc, scale = torch.full((6, 3), 5.0), torch.full((6, 3), 1e4), torch.full((6, 3), 2.0)
    lower, upper = mixture_ends(df, loc, scale, StudentQuantile(0.05)(df), 0.05)
    half = 2 * stats.t.isf(0.05, 5)
    assert lower.tolist() == pytest.approx([1e4 - half] * 3, rel=2e-7)
    assert upper.tolist() == pytest.approx([1e4 + half] * 3, rel=2e-7)


def test_one_row_of_nan_leaves_the_others():
    df, loc, scale = members_of("alike", 3, 4)
    good = mixture_ends(df, loc, scale, StudentQuantile(0.05)(df), 0.05)
    loc[1, 2] = torch.nan
    lower, upper = mixture_ends(df, loc, scale, StudentQuantile(0.05)(df), 0.05)
    assert lower.isnan().tolist() == upper.isnan().tolist() == [False, False, True, False]
    assert torch.allclose(lower[[0, 1, 3]], good[0][[0, 1, 3]], rtol=1e-6)


def test_no_rows():
    empty = torch.empty(3, 0)
    assert [end.shape for end in mixture_ends(empty, empty, empty, empty, 0.05)] == [(0,), (0,)]


def test_exact_search_does_not_jump_between_members_far_apart():
    # Halley's steps jumped between 45 and 59 without end, and the point returned had a tail of 0.1 instead of 0.0005
    df = torch.tensor([2.0096, 942.1355, 3.5208, 2.0021, 583.5518, 2.612, 2.0945, 2.0767])
    loc = torch.tensor([20.9576, -1.5114, -24.2529, 13.6256, 46.4619, 27.2225, -49.2304, 4.115])
    scale = torch.tensor([0.684, 0.4867, 0.6663, 2.0215, 1.3166, 1.4384, 0.8542, 1.5335])
    end = Mixture(StudentT(df.double(), loc.double(), scale.double())).isf(0.0005).item()
    tails = special.stdtr(df.double().numpy(), -(end - loc.double().numpy()) / scale.double().numpy())
    assert tails.mean() == pytest.approx(0.0005, rel=1e-9)


def test_exact_search_reaches_its_level_for_many_mixtures_far_apart():
    df, loc, scale = (p.double() for p in members_of("far", 7, 3000, seed=1))
    loc = loc.clamp(-100, 100)
    q = torch.full((3000,), 0.0005, dtype=torch.float64)
    found = mixture.quantile(df, loc, scale, q, torch.ones(3000, dtype=torch.bool))
    tails = special.stdtr(df.numpy(), -((found - loc) / scale).numpy()).mean(0)
    assert np.abs(tails / 0.0005 - 1).max() < 1e-8
