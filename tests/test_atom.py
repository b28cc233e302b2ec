"""Distributions with an atom, and mixtures with weights per row, against scipy and Monte Carlo."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from howsure import InputError, Mixture, Normal, StudentT
from howsure.distributions import WithAtom

LOC = torch.tensor([[1.0, -2.0, 5.0], [4.0, 0.5, -1.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([[0.2, 0.9, 1.0], [0.8, 0.1, 0.0]], dtype=torch.float64)
G = torch.tensor([0.8, 0.3, 0.0], dtype=torch.float64)


def base():
    return Mixture(StudentT(torch.tensor(4.0, dtype=torch.float64), LOC, 1.5), weights=WEIGHTS)


def cdf(x):
    """P(Y ≤ x) by scipy, (3,)."""
    own = (WEIGHTS.numpy() * stats.t(4, LOC.numpy(), 1.5).cdf(x)).sum(0)
    return (1 - G.numpy()) * own + G.numpy() * (x >= 0)


def test_mixture_with_weights_per_row_matches_scipy():
    made = base()
    each = stats.t(4, LOC.numpy(), 1.5)
    w = WEIGHTS.numpy()
    assert np.allclose(made.mean, (w * LOC.numpy()).sum(0))
    assert np.allclose(made.log_prob(torch.tensor(0.7)), np.log((w * each.pdf(0.7)).sum(0)))
    assert np.allclose(made.cdf(torch.tensor(0.7)), (w * each.cdf(0.7)).sum(0))
    second = (w * (each.var() + LOC.numpy() ** 2)).sum(0)
    assert np.allclose(made.variance, second - (w * LOC.numpy()).sum(0) ** 2)
    assert np.allclose(made.cdf(made.icdf(0.3)), 0.3)
    rows = [Mixture(StudentT(torch.tensor(4.0).double(), LOC[:, k], 1.5), weights=WEIGHTS[:, k]) for k in range(3)]
    y = torch.tensor([0.3, 1.0, 6.0], dtype=torch.float64)
    assert torch.allclose(made.crps(y), torch.stack([row.crps(v) for row, v in zip(rows, y, strict=True)]))
    assert torch.allclose(made.entropy(), torch.stack([row.entropy() for row in rows]))
    again = Mixture.from_dict(made.to_dict())
    assert torch.allclose(again.cdf(y), made.cdf(y))


def test_weights_of_members_along_any_dimension_are_those_of_rows():
    first = Mixture(Normal(LOC, 1.0), weights=WEIGHTS)
    last = Mixture(Normal(LOC.T, 1.0), dim=-1, weights=WEIGHTS.T)
    assert torch.equal(first.mean, last.mean)
    with pytest.raises(InputError):
        Mixture(Normal(LOC, 1.0), weights=WEIGHTS[:, :2])
    with pytest.raises(InputError):
        Mixture(Normal(LOC, 1.0), weights=torch.zeros(2, 3))


def test_samples_follow_the_weights_of_their_row():
    torch.manual_seed(0)
    drawn = Mixture(Normal(100 * LOC, 1.0), weights=WEIGHTS).sample((20_000,))
    share = ((drawn - 100 * LOC[0]).abs() < 20).double().mean(0)
    assert torch.allclose(share, WEIGHTS[0], atol=5 * 0.5 / 20_000**0.5)


def test_tails_quantiles_and_moments_match_scipy():
    made = WithAtom(base(), G, 0.0)
    for x in (-1.0, 0.0, 2.0):
        assert np.allclose(made.cdf(torch.tensor(x)), cdf(x))
        assert np.allclose(made.sf(torch.tensor(x)), 1 - cdf(x))
    for q in (0.02, 0.5, 0.97):
        at = made.icdf(q)
        for k in range(3):
            value = at[k].item()
            assert cdf(value)[k] >= q - 1e-9
            assert cdf(value - 1e-6)[k] <= q + 1e-6
        assert torch.allclose(made.isf(1 - q), at)
    mean = (1 - G.numpy()) * (WEIGHTS * LOC).sum(0).numpy()
    assert np.allclose(made.mean, mean)
    assert float(made.log_prob(torch.tensor(0.0))[0]) == pytest.approx(np.log(0.8))


def square_integral(row, y, first, last):
    """The integral of (F − 1[x ≥ y])² between two points."""
    return integrate.quad(lambda x: (cdf(x)[row] - (x >= y)) ** 2, first, last, limit=200)[0]


def test_score_is_the_integral_of_its_definition():
    made = WithAtom(base(), G, 0.0)
    for y in (-0.5, 0.0, 3.0):
        found = made.crps(torch.full((3,), y, dtype=torch.float64))
        for k in range(3):
            points = sorted({-200.0, min(y, 0.0), max(y, 0.0), 200.0})
            truth = sum(square_integral(k, y, *ends) for ends in itertools.pairwise(points))
            assert float(found[k]) == pytest.approx(truth, abs=1e-4)


def test_samples_have_the_moments():
    torch.manual_seed(0)
    made = WithAtom(base(), G, 0.0)
    drawn = made.sample((100_000,))
    assert torch.allclose((drawn == 0).double().mean(0), G, atol=0.01)
    assert torch.allclose(drawn.mean(0), made.mean, atol=0.05)
    assert torch.allclose(drawn.var(0), made.variance, rtol=0.1)


def test_probability_of_another_shape_raises():
    with pytest.raises(InputError):
        WithAtom(base(), G[:2], 0.0)
