"""Fits of the baselines: censored targets, and fits in several threads."""

import joblib
import numpy as np
import pytest
import torch

import howsure as hs
from howsure.likelihoods import Network, Recipe
from howsure.losses import normal_loss
from howsure.tables.members import hold_out
from howsure.training import Settings
from howsure_paper.baselines import BayesByBackprop, LeastSquares, MCDropout
from howsure_paper.training import fit

RECIPE = Recipe(Network((16,)), Settings(steps=40, evaluate_every=10), 32)
BASELINES = [MCDropout(), BayesByBackprop()]


def names(method):
    return type(method).__name__


@pytest.mark.parametrize("method", BASELINES, ids=names)
def test_methods_learn_from_bounds(method):
    networks = method.build([0, 1], 2, method.outputs, Network((4,)))
    raw, y = torch.randn(2, 5, 1, method.outputs), torch.randn(2, 5, 1)
    bound = torch.randint(-1, 2, (2, 5, 1))
    answer = method.answer(raw)
    cells = torch.where(bound < 0, -torch.inf, y), torch.where(bound > 0, torch.inf, y)
    assert torch.equal(method.loss_of_raw(raw, y, networks, cells), method.loss(answer, y, networks, cells))
    assert torch.allclose(method.loss_of_raw(raw, y, networks, (y, y)), method.loss_of_raw(raw, y, networks), rtol=1e-5)
    normal = torch.distributions.Normal(answer.loc.double(), answer.scale.double())
    tails = torch.where(bound > 0, 1 - normal.cdf(y.double()), normal.cdf(y.double()))
    expected = torch.where(bound == 0, -normal.log_prob(y.double()), -tails.log())
    assert torch.allclose(normal_loss(answer, y, cells=cells, reduction="none").double(), expected, rtol=1e-4)


@pytest.mark.parametrize("method", BASELINES, ids=names)
def test_fits_learn_from_bounds(method):
    x = np.random.default_rng(0).uniform(-2, 2, (120, 1))
    censored = np.arange(120) % 3 == 0
    members = hold_out(np.arange(120), [0], method.validation_fraction)
    options = {"recipe": RECIPE, "device": "cpu"}
    bounded = fit(method, x, x[:, 0], members, censored=censored, **options).predict(x).mean
    assert np.isfinite(bounded).all()
    plain = fit(method, x, x[:, 0], members, **options).predict(x).mean
    zeros = fit(method, x, x[:, 0], members, censored=np.zeros(120), **options).predict(x).mean
    assert np.array_equal(plain, zeros)
    assert not np.allclose(plain, bounded)


def test_least_squares_with_censored_targets_raises():
    with pytest.raises(hs.InputError, match="censored"):
        LeastSquares().loss_of_raw(torch.zeros(2, 1), torch.zeros(2), None, torch.ones(2, dtype=torch.bool))
    x = np.linspace(0, 1, 50)[:, None]
    members, censored = hold_out(np.arange(50), [0]), np.arange(50) % 2 == 0
    with pytest.raises(hs.InputError, match="censored"):
        fit(LeastSquares(), x, x[:, 0], members, recipe=RECIPE, device="cpu", censored=censored)


@pytest.mark.parametrize("method", BASELINES, ids=names)
def test_fits_in_threads_are_those_alone(method):
    x, y = np.random.default_rng(0).random((60, 2)), np.arange(60.0)
    recipe = Recipe(Network((32,)), Settings(steps=300, evaluate_every=30), 16)

    def mean():
        members = hold_out(np.arange(60), [0], method.validation_fraction)
        return fit(method, x, y, members, recipe=recipe, device="cpu").predict(x).mean

    torch.manual_seed(1)
    state = torch.get_rng_state()
    alone = mean()
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is not touched
    with joblib.parallel_backend("threading", n_jobs=4):
        for found in joblib.Parallel()(joblib.delayed(mean)() for _ in range(4)):
            assert np.array_equal(found, alone)
