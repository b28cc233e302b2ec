"""A model keeps the networks that it predicts with, and makes them anew when the weights change."""

import copy
import pickle

import numpy as np
import pytest
import torch

import howsure as hs
from howsure.likelihoods import Method

X = np.random.default_rng(0).standard_normal((60, 3))


@pytest.fixture
def model():
    return hs.EvidentialRegressor(members=2, hidden=(8,), steps=5, device="cpu", random_state=0).fit(X, X[:, 0])


@pytest.fixture
def made(monkeypatch):
    """The members for which networks were made."""
    calls, networks = [], Method.networks
    monkeypatch.setattr(
        Method, "networks", lambda self, p, chosen: calls.append(list(chosen)) or networks(self, p, chosen)
    )
    return calls


def test_networks_are_made_once(model, made):
    first = model.predict(X)
    made.clear()
    assert np.array_equal(model.predict(X), first)
    assert np.allclose(model.predict(X[:1]), first[:1], rtol=1e-12)
    assert made == []
    model.model_.predict(model.robust_scale_(X), members=[1])
    model.predict(X)
    assert made == [[1], [0, 1]]


def test_networks_follow_the_weights(model):
    before = model.predict(X)
    with torch.no_grad():
        for p in model.model_.networks.parameters():
            p.mul_(0.5)
    halved = model.predict(X)
    assert not np.allclose(before, halved)
    state = {name: 2 * value for name, value in model.model_.networks.state_dict().items()}
    model.model_.networks.load_state_dict(state)
    assert np.allclose(model.predict(X), before)
    model.fit(X, -X[:, 0])
    again = hs.EvidentialRegressor(members=2, hidden=(8,), steps=5, device="cpu", random_state=0).fit(X, -X[:, 0])
    assert np.array_equal(model.predict(X), again.predict(X))


def test_kept_networks_are_not_part_of_the_model(model):
    before = model.predict(X)
    assert "_kept" in vars(model.model_)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert "_kept" not in vars(other.model_)
        assert np.array_equal(other.predict(X), before)


def test_a_model_read_in_inference_mode_predicts(model, tmp_path):
    model.save(tmp_path / "model")
    with torch.inference_mode():
        read = hs.load(tmp_path / "model")
        assert np.array_equal(read.predict(X), model.predict(X))
    assert np.array_equal(read.predict(X), model.predict(X))
