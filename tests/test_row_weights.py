"""Predictions whose members have other weights in each row."""

import numpy as np
import pytest
import torch

import howsure as hs

ROWS, MEMBERS = 5, 3


def nig():
    torch.manual_seed(0)
    parts = [torch.rand(MEMBERS, ROWS, dtype=torch.float64) for _ in range(4)]
    return hs.NormalInverseGamma(3 * parts[0], parts[1] + 0.5, parts[2] + 2, parts[3] + 0.1)


def weights():
    torch.manual_seed(1)
    return torch.rand(MEMBERS, ROWS, dtype=torch.float64) + 0.05


def prediction():
    return hs.Prediction(nig(), members=0, weights=weights())


def row(p, given, k):
    """Return the prediction of one row, whose weights are those of all its rows."""
    each = hs.NormalInverseGamma(*(getattr(nig(), name)[:, [k]] for name in ("gamma", "nu", "alpha", "beta")))
    return hs.Prediction(each, members=0, weights=given[:, k])


@pytest.mark.parametrize("quantity", ["mean", "std", "median"])
def test_moments_are_those_of_each_row_alone(quantity):
    p = prediction()
    alone = [getattr(row(p, weights(), k), quantity)[0] for k in range(ROWS)]
    assert np.allclose(getattr(p, quantity), alone)


def test_scores_and_intervals_are_those_of_each_row_alone():
    p, y = prediction(), np.linspace(-1, 4, ROWS)
    for k in range(ROWS):
        one = row(p, weights(), k)
        assert np.allclose(p.interval(0.8)[k], one.interval(0.8)[0])
        for score in ("log_prob", "cdf", "crps"):
            assert getattr(p, score)(y)[k] == pytest.approx(getattr(one, score)(y[[k]])[0])


def test_variance_of_components_follows_the_law_of_total_variance():
    p = prediction()
    noise, doubt = p.decompose()
    assert np.allclose(noise + doubt, p.variance)
    each, w = nig(), weights() / weights().sum(0)
    assert np.allclose(noise, (w * each.beta / (each.alpha - 1)).sum(0))


def test_samples_follow_the_weights():
    p = prediction()
    drawn = p.sample(100_000, seed=0)
    assert np.allclose(drawn.mean(0), p.mean, atol=0.03)


@pytest.mark.parametrize("key", [slice(1, 3), 2, [4, 0], np.array([True, False, True, False, False])])
def test_indexing_takes_the_weights_of_the_rows(key):
    p = prediction()
    assert np.allclose(p[key].mean, p.mean[key])
    assert np.allclose(p[key].weights, p.weights[:, key])


def test_joining_keeps_the_weights_of_the_rows():
    p = prediction()
    assert np.allclose(hs.Prediction.cat([p[:2], p[2:]]).crps(np.ones(ROWS)), p.crps(np.ones(ROWS)))
    same = hs.Prediction(nig(), members=0, weights=[1, 2, 3])
    with pytest.raises(hs.InputError):
        hs.Prediction.cat([p, same])


def test_mixture_with_weights_of_rows_is_a_prediction():
    p = prediction()
    again = hs.Prediction(p.distribution)
    assert np.allclose(again.mean, p.mean)
    assert np.allclose(again.weights, p.weights)


@pytest.mark.parametrize(
    "given", [torch.ones(ROWS, MEMBERS), -torch.ones(MEMBERS, ROWS), torch.zeros(MEMBERS, ROWS), torch.ones(1, 1, 3)]
)
def test_weights_that_do_not_fit_the_rows_raise(given):
    with pytest.raises(hs.InputError):
        hs.Prediction(nig(), members=0, weights=given)
