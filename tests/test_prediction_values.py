"""Predictions of targets with possible values and with an atom."""

import numpy as np
import pytest
import torch

import howsure as hs
from howsure import InputError, NormalInverseGamma, Prediction, metrics
from howsure.distributions import Discrete, Support, WithAtom
from howsure.prediction.quantities import strictly_below

ROWS, MEMBERS = 400, 3
GRADES = Support([3.0, 4.0, 5.0, 6.0])


def answer(rows=ROWS):
    random = torch.Generator().manual_seed(0)
    gamma = 3 + 3 * torch.rand(MEMBERS, rows, generator=random, dtype=torch.float64)
    return NormalInverseGamma(gamma, 4.0, 3.0, 0.8)


def discrete():
    weights = torch.tensor([0.2, 0.3, 0.5])
    return Prediction(answer(), members=0, weights=weights, transform=GRADES)


def with_atom():
    gate = torch.rand(MEMBERS, ROWS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Prediction(answer(), members=0, weights=torch.tensor([0.2, 0.3, 0.5]), atom=0.0, gate=gate)


@pytest.mark.parametrize("make", [discrete, with_atom])
def test_moments_are_those_of_the_distribution_and_of_samples(make):
    p = make()
    assert np.allclose(p.mean, p.distribution.mean)
    assert np.allclose(p.variance, p.distribution.variance)
    drawn = p.sample(20_000, seed=0)
    assert np.abs(drawn.mean(0) - p.mean).max() < 6 * p.std.max() / 20_000**0.5
    parts = p.decompose("identified")
    assert np.allclose(parts.aleatoric + parts.epistemic, p.variance)


def test_distribution_is_discrete_or_has_an_atom():
    assert isinstance(discrete().distribution, Discrete)
    assert isinstance(with_atom().distribution, WithAtom)
    assert not discrete().continuous
    assert not with_atom().continuous


def test_ends_of_intervals_are_possible_values():
    p = discrete()
    assert set(np.unique(p.interval(0.9))) <= set(GRADES.values.tolist())
    assert set(np.unique(p.quantile([0.1, 0.5]))) <= set(GRADES.values.tolist())
    assert set(np.unique(p.sample(10, seed=0))) <= set(GRADES.values.tolist())


@pytest.mark.parametrize("make", [discrete, with_atom])
def test_probability_below_is_that_of_smaller_values(make):
    p = make()
    y = p.sample(1, seed=3)[0]
    below = strictly_below(p, y, p.cdf(y))
    assert np.allclose(below, p.cdf(y - 1e-6 if make is with_atom else y - 1), atol=1e-5)


@pytest.mark.parametrize("make", [discrete, with_atom])
def test_samples_are_calibrated(make):
    p = make()
    y = p.sample(1, seed=5)[0]
    assert metrics.coverage(p, y, 0.8) >= 0.75
    assert metrics.crps(p, y) > 0
    mask = np.arange(ROWS) % 2 == 0
    assert metrics.calibration_error(p, y, mask=mask) < 0.1


@pytest.mark.parametrize("make", [discrete, with_atom])
def test_joined_parts_are_the_prediction(make):
    p = make()
    joined = Prediction.cat([p[:150], p[150:]])
    y = p.sample(1, seed=2)[0]
    for other in (joined, p.to(torch.float64)):
        assert np.allclose(other.crps(y), p.crps(y))
        assert np.allclose(other.interval(), p.interval())
    single = p[3]
    assert np.allclose(single.mean, p.mean[3])


def test_frame_and_text_of_both_kinds():
    assert {"mean", "std", "lower_0.9"} <= set(discrete().to_frame().columns)
    assert "atom=0" in repr(with_atom())
    assert "discrete" in repr(discrete())


def test_gate_without_an_atom_raises():
    with pytest.raises(InputError):
        Prediction(answer(), members=0, atom=0.0)
    with pytest.raises(InputError):
        Prediction(answer(), members=0, atom=0.0, gate=torch.zeros(MEMBERS, 2))
    with pytest.raises(InputError):
        Prediction(answer(), members=0, atom=0.0, gate=torch.full((MEMBERS, ROWS), 2.0))
    with pytest.raises(InputError):
        Prediction(answer(), members=0, atom=0.0, gate=torch.zeros(MEMBERS, ROWS), transform=GRADES)


def test_scale_of_values_besides_the_atom_is_found():
    p = with_atom()
    factor = hs.calibrate(p.scaled(3.0), p.sample(1, seed=4)[0]).factors[0]
    assert factor == pytest.approx(1 / 3, rel=0.25)


def test_scale_of_possible_values_is_found_by_their_probabilities():
    p = discrete()
    assert hs.calibrate(p.scaled(2.0), p.sample(1, seed=4)[0]).factors[0] == pytest.approx(0.5, rel=0.25)
