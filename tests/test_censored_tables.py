"""Regressors and fits that learn from bounds."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import howsure as hs
from fits import fit
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.tables.censoring import cells_of_bounds, log_likelihood, read_censored
from howsure.tables.members import hold_out
from howsure.tables.stacking import validation_log_densities
from howsure.tables.target import Target, prepare_target
from howsure.tables.views import Views
from howsure.training import Settings

RECIPE = Recipe(Network((16,)), Settings(steps=40, evaluate_every=10), 32)


def cut_off(rows=600):
    """A table whose targets are cut off at random bounds, two fifths of them: x, truth, what is seen, what is cut."""
    random = np.random.default_rng(1)
    x = random.uniform(-2, 2, (rows, 1))
    truth = np.sin(2 * x[:, 0]) + x[:, 0]
    y = truth + 0.3 * stats.t(5).rvs(rows, random_state=2)
    bounds = truth + 0.15 + 0.6 * random.standard_normal(rows)
    return x, truth, np.minimum(y, bounds), y > bounds


def test_regressor_recovers_censored_targets():
    """Bounds that count as values pull predictions down by half a standard deviation of the noise."""
    x, truth, seen, censored = cut_off()
    assert 0.3 < censored.mean() < 0.5
    bias = {}
    for name, known in (("ignored", None), ("censored", censored)):
        model = hs.EvidentialRegressor(
            members=1, hidden=(32,), steps=200, random_state=0, device="cpu", evidence="plain"
        )
        bias[name] = float(np.mean(model.fit(x, seen, censored=known).predict(x) - truth))
    assert bias["ignored"] < -0.12
    assert abs(bias["censored"]) < 0.05


def test_upper_bounds_are_the_mirror_image():
    x, truth, seen, censored = cut_off()
    model = hs.EnsembleRegressor(members=1, steps=300, random_state=0, device="cpu")
    bias = np.mean(model.fit(x, -seen, censored=-censored.astype(int)).predict(x) + truth)
    assert abs(bias) < 0.06


@pytest.mark.parametrize(
    "regressor",
    [
        hs.EvidentialRegressor(members=2),
        hs.EvidentialRegressor(members=1, evidence="plain"),
        hs.EvidentialRegressor(members=1, evidence="plain", target_transform="positive"),
        hs.EnsembleRegressor(members=2),
        hs.EnsembleRegressor(members=1),
    ],
)
def test_every_regressor_takes_bounds(regressor):
    x, _, seen, censored = cut_off(120)
    regressor.set_params(steps=5, hidden=(16,), random_state=0, device="cpu")
    frame = pd.DataFrame({"x": x[:, 0], "kind": np.where(x[:, 0] > 0, "a", "b")})
    y = np.exp(seen)
    bounded = regressor.fit(frame, y, np.ones(120), pd.Series(censored)).predict(frame)
    assert np.isfinite(bounded).all()
    plain = regressor.fit(frame, y).predict(frame)
    zeros = regressor.fit(frame, y, censored=np.zeros(120)).predict(frame)
    assert np.array_equal(plain, zeros)
    assert not np.allclose(plain, bounded)


def test_several_targets_are_censored_apart():
    x, _, seen, censored = cut_off(200)
    y = np.stack([seen, seen], 1)
    known = np.stack([censored, np.zeros(200, dtype=bool)], 1)
    model = hs.EvidentialRegressor(members=1, hidden=(16,), steps=100, random_state=0, device="cpu", evidence="plain")
    mean = model.fit(x, y, censored=known).predict(x)
    assert (mean[:, 0] - mean[:, 1]).mean() > 0.05
    both = model.fit(x, y, censored=censored).predict(x)
    assert (both[:, 1] - mean[:, 1]).mean() > 0.05


def test_validation_score_is_the_censored_likelihood():
    x, _, seen, censored = cut_off(200)
    members = hold_out(np.arange(200), [0], 0.2)
    fitted = fit(Evidential(0.0), x, seen, members, recipe=RECIPE, device="cpu", censored=censored)
    rows = members[0].validation.numpy()
    law = fitted.predict(x[rows])
    tails = np.where(censored[rows], np.log(1 - law.cdf(seen[rows])), law.log_prob(seen[rows]))
    scale = float(fitted.scale_y.scale)  # networks see scaled targets, whose densities are as many times larger
    expected = -tails.mean() - np.log(scale) * (~censored[rows]).mean()
    assert fitted.result.best_score.item() == pytest.approx(expected, rel=1e-4)


def test_likelihood_of_values_and_bounds():
    law = hs.Mixture(hs.Normal(torch.zeros(1, 3, dtype=torch.float64), 2.0))
    y = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    known = torch.from_numpy(cells_of_bounds(y.numpy(), np.array([0, 1, -1], dtype=np.int8)))
    normal = stats.norm(0, 2)
    expected = [normal.logpdf(1), normal.logsf(2), normal.logcdf(-3)]
    assert log_likelihood(law, y, known).numpy() == pytest.approx(np.array(expected))
    far = torch.stack([1e5 * y.abs(), torch.full_like(y, torch.inf)], -1)
    assert log_likelihood(law, 1e5 * y.abs(), far).isfinite().all()


def test_bounds_are_cells_with_an_infinite_end():
    y = np.concatenate([np.full(40, 5.0), np.linspace(0, 4, 60), np.full(20, 3.0)])
    known = np.concatenate([np.ones(40), np.zeros(80)]).astype(np.int8)
    prepared = prepare_target(y[:100], censored=known[:100])
    assert np.array_equal(prepared.cells[:40, 0, 0], y[:40])
    assert np.isinf(prepared.cells[:40, 0, 1]).all()
    assert np.array_equal(prepared.cells[40:, 0, 0], prepared.cells[40:, 0, 1])
    positive = prepare_target(y, "positive", censored=known)
    assert len(np.unique(positive.values[:40])) == 1


@pytest.mark.parametrize(
    ("censored", "error", "message"),
    [
        (np.ones(9), hs.InputError, "censored"),
        (np.ones((10, 2)), hs.InputError, r"\(10, 2\)"),
        (np.full(10, 2), hs.InputError, r"\b2\b"),
        (np.full(10, np.nan), hs.InputError, "nan"),
        (["no"] * 10, hs.InputTypeError, "censored"),
        (True, hs.InputError, r"\(\)"),
        (np.ones(10), hs.InputError, r"all 10\b"),
        (torch.ones(10, dtype=torch.bool), hs.InputError, r"all 10\b"),
    ],
)
def test_one_clear_error_each(censored, error, message):
    x, y = np.linspace(0, 1, 10)[:, None], np.linspace(0, 1, 10)
    model = hs.EvidentialRegressor(steps=5, device="cpu")
    with pytest.raises(error, match=message):
        model.fit(x, y, censored=censored)
    with pytest.raises(error, match=message):
        fit(Evidential(), x, y, hold_out(np.arange(10), [0]), recipe=RECIPE, device="cpu", censored=censored)


def test_kinds_of_networks_are_weighed_by_values_and_bounds():
    """The log likelihood in the units of y that weights are learned by, against the model's own tails."""
    x, _, seen, censored = cut_off(200)
    members = hold_out(np.arange(200), [0, 1], 0.2)
    fitted = fit(Evidential(0.0), x, seen, members, recipe=RECIPE, device="cpu", censored=censored)
    bounds = cells_of_bounds(seen, censored.astype(np.int8))
    target = Target(seen, cells=bounds[:, None])
    for k, got in enumerate(validation_log_densities(fitted, Views(x, members), target)):
        rows = members[k].validation.numpy()
        law = fitted.predict(x[rows], [k])
        expected = np.where(censored[rows], np.log(1 - law.cdf(seen[rows])), law.log_prob(seen[rows]))
        assert got.numpy() == pytest.approx(expected, abs=1e-4)
    model = hs.EvidentialRegressor(members=3, hidden=(16,), steps=20, random_state=0, device="cpu", evidence="plain")
    assert sum(model.fit(x, seen, censored=censored).inputs_.values()) == pytest.approx(1)


def test_unmasked_targets_must_have_values():
    y = np.zeros((4, 2))
    known = np.array([[0, 1], [0, 1], [1, 1], [0, 0]])
    assert np.array_equal(read_censored(known, y), known)
    with pytest.raises(hs.InputError, match=r"y\[:, 1\]"):
        read_censored(known, y, np.array([0, 1, 2]))
    with pytest.raises(hs.InputError) as caught:
        read_censored(known + 4 * (np.arange(4) == 2)[:, None], y)
    assert (caught.value.row, caught.value.value) == (2, 5)
    assert read_censored(known[:, :1] * 0, y) is None
    assert read_censored(None, y) is None
