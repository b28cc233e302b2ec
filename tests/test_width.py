"""The factor that mixtures are stretched by."""

import numpy as np
import pytest
import torch

import howsure as hs
from howsure import EvidentialRegressor, InputError
from howsure.distributions import NormalInverseGamma
from howsure.fitting import Member, width
from howsure.fitting.width import with_scale

ROWS = 400


class FakeModel:
    """Networks that state one noise, and whose predictions are wrong by an own and by a common error."""

    def __init__(self, own, common, stated, members, scale=None):
        rng = np.random.default_rng(0)
        self.y = rng.normal(size=ROWS)
        self.members_of_kind = members
        error = common * rng.normal(size=ROWS) + own * rng.normal(size=(members, ROWS))
        loc = torch.from_numpy(self.y + error).unsqueeze(-1)
        # many observations: a Student t that is nearly normal, of this deviation
        self.answer = NormalInverseGamma(loc, nu=1e6, alpha=1e6, beta=1e6 * stated**2)
        self.weights = self.scale = None

    def faded_own(self, x):
        return self.answer


def factor_of(monkeypatch, own, common, stated, members):
    model = FakeModel(own, common, stated, members)
    rows = torch.arange(ROWS)
    parts = rows.reshape(members, -1)
    each = [Member(rows, parts[k], k) for k in range(members)]
    kept = {}
    monkeypatch.setattr(width, "replace", lambda _, scale: kept.update(scale=scale) or model)
    model.training = None
    with_scale(model, np.zeros((ROWS, 1)), model.y, each)
    return float(kept["scale"][0])


@pytest.mark.parametrize(("own", "common", "members"), [(0.5, 1.0, 4), (1.0, 1.0, 8), (0.2, 1.0, 2)])
def test_the_factor_counts_half_of_what_the_mean_of_all_gains(monkeypatch, own, common, members):
    stated = np.hypot(own, common)  # each network states the error that it makes alone
    found = factor_of(monkeypatch, own, common, stated, members)
    share = 1 - 1 / members
    wide = stated**2 + own**2 * share  # variance of the mixture
    assert found**2 * wide == pytest.approx(stated**2 - own**2 * share / 2, rel=0.1)
    assert found**2 * wide > common**2 + own**2 / members  # and no less than the error of the mean of all


def test_networks_that_are_too_sure_are_widened(monkeypatch):
    assert factor_of(monkeypatch, 0.1, 1.0, 0.7, 4) == pytest.approx(1.42, rel=0.1)


def test_the_factor_is_bounded(monkeypatch):
    assert factor_of(monkeypatch, 0.1, 1.0, 0.01, 4) == 2.0
    assert factor_of(monkeypatch, 0.001, 0.01, 1.0, 4) == 0.5


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=600)


def test_predictions_are_stretched_about_their_means(table):
    x, y = table
    options = {"members": 3, "steps": 100, "inputs": "numbers", "random_state": 0}
    as_it_is = EvidentialRegressor(calibrated=False, **options).fit(x, y)
    stretched = EvidentialRegressor(**options).fit(x, y)
    assert as_it_is.scale_ is None
    p, q = as_it_is.predict_distribution(x), stretched.predict_distribution(x)
    assert np.allclose(p.mean, q.mean)
    assert np.allclose(q.std, p.std * stretched.scale_[0] ** q.familiarity)
    assert q.familiarity.min() < 0.9 < q.familiarity.max()
    far = np.full((1, 2), 1e4)  # where nothing was learned, the factor says nothing
    assert np.allclose(stretched.predict_distribution(far).std, as_it_is.predict_distribution(far).std, rtol=1e-3)


def test_it_is_saved(table, tmp_path):
    x, y = table
    both = np.column_stack([y, 5 * y])
    model = EvidentialRegressor(members=3, steps=60, inputs="numbers", random_state=0).fit(x, both)
    again = hs.load(model.save(tmp_path / "model"))
    assert model.scale_.shape == (2,)
    assert np.array_equal(again.scale_, model.scale_)
    assert np.array_equal(again.predict_distribution(x).std, model.predict_distribution(x).std)


def test_a_single_network_or_few_rows_stay_as_they_are(table):
    x, y = table
    assert EvidentialRegressor(members=1, steps=20).fit(x, y).scale_ is None
    assert EvidentialRegressor(members=3, steps=20).fit(x[:60], y[:60]).scale_ is None
    assert EvidentialRegressor(members=3, steps=20, validation_fraction=0).fit(x, y).scale_ is None
    with pytest.raises(InputError, match="calibrated must be True or False"):
        EvidentialRegressor(calibrated="yes").fit(x, y)
