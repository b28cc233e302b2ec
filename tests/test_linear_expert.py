"""The linear expert in a mixture with networks, and evidence relative to the edge."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import howsure as hs
from howsure import metrics

QUICK = {"members": 3, "steps": 150, "hidden": (32,), "random_state": 0, "evidence": "edge"}


def linear_table(rows, seed, noise=0.05):
    g = np.random.default_rng(seed)
    x = g.standard_normal((rows, 6))
    return x, x @ np.arange(1.0, 7.0) + noise * g.standard_normal(rows)


@pytest.fixture(scope="module")
def model():
    return hs.EvidentialRegressor(**QUICK).fit(*linear_table(300, 0))


def test_linear_table_is_left_to_the_linear_expert(model):
    x, y = linear_table(2000, 1)
    assert model.inputs_["linear"] > 0.8
    assert sum(model.inputs_.values()) == pytest.approx(1)
    p = model.predict_distribution(x)
    ridge = Ridge(1e-6).fit(*linear_table(300, 0)).predict(x)
    assert metrics.rmse(p, y) < 1.2 * np.sqrt(np.mean((ridge - y) ** 2))
    assert p.members == 4
    assert p.familiarity.shape == (2000,)


def test_saved_model_has_the_linear_expert(model, tmp_path):
    x, _ = linear_table(50, 1)
    again = hs.load(model.save(tmp_path / "linear.safetensors"))
    assert again.inputs_ == model.inputs_
    assert np.array_equal(again.predict(x), model.predict(x))


def test_forward_returns_the_linear_expert_last(model):
    x, _ = linear_table(5, 2)
    answer, familiarity = model.model_(torch.from_numpy(x))
    assert answer.batch_shape == (4, 5, 1)
    assert familiarity.shape == (3, 5)
    assert torch.isclose(model.model_.mixture_weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_table_of_steps_has_little_weight_for_the_linear_expert():
    g = np.random.default_rng(0)
    x = g.random((400, 3))
    made = hs.EvidentialRegressor(**QUICK).fit(x, np.sign(np.sin(12 * x[:, 0])) * (x[:, 1] > 0.5) + 0.1 * g.random(400))
    assert made.inputs_.get("linear", 0.0) < 0.3


def test_single_network_and_explicit_inputs_have_no_linear_expert():
    x, y = linear_table(100, 0)
    for options in ({"members": 1}, {"inputs": "numbers"}):
        made = hs.EvidentialRegressor(**(QUICK | {"steps": 20} | options)).fit(x, y)
        assert "linear" not in made.inputs_


def test_intervals_relative_to_the_edge_widen_away_from_the_rows(model):
    x, _ = linear_table(300, 0)
    near, far = (np.diff(model.predict_interval(z)).mean() for z in (x, 20 * x))
    assert far > near
    assert (model.predict_distribution(20 * x).familiarity < 0.5).mean() > 0.9


def test_several_targets_have_one_linear_expert():
    x, y = linear_table(200, 0)
    made = hs.EvidentialRegressor(**QUICK).fit(x, np.column_stack([y, x[:, 0] - y]))
    assert made.predict(x).shape == (200, 2)
    assert made.inputs_["linear"] > 0.5


def test_unknown_evidence_raises():
    x, y = linear_table(20, 0)
    with pytest.raises(hs.InputError):
        hs.EvidentialRegressor(evidence="edges").fit(x, y)
