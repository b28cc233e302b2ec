"""The factor of the scales of a mixture's networks."""

import numpy as np
import pytest
import torch

import howsure as hs
from howsure import EvidentialRegressor, InputError
from howsure.distributions import NormalInverseGamma
from howsure.tables import width
from howsure.tables.encoder import Scaling
from howsure.tables.members import Member
from howsure.tables.target import Target
from howsure.tables.views import Views
from howsure.tables.width import with_width

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
        self.weights = self.width = self.evidence = None
        self.network_weights = torch.full((members,), 1 / members, dtype=torch.float64)
        self.targets = 1
        self.scale_y = Scaling(torch.zeros(members, 1, 1), torch.ones(members, 1, 1))

    def before_evidence(self, table):
        return self.answer, None


def factor_of(own, common, stated, members):
    model = FakeModel(own, common, stated, members)
    rows = torch.arange(ROWS)
    parts = rows.reshape(members, -1)
    views = Views(np.zeros((ROWS, 1)), [Member(rows, parts[k], k) for k in range(members)])
    return float(with_width(model, views, Target(model.y)).width[0])


@pytest.mark.parametrize(("own", "common", "members"), [(0.5, 1.0, 4), (1.0, 1.0, 8), (0.2, 1.0, 2)])
def test_mixture_has_the_variance_that_each_network_states(own, common, members):
    stated = np.hypot(own, common)  # each network states the error that it makes alone
    found = factor_of(own, common, stated, members)
    between = own**2 * (1 - 1 / members)  # variance between networks
    assert found**2 * stated**2 + between == pytest.approx(stated**2, rel=0.1)


def test_networks_that_are_too_sure_are_widened():
    assert factor_of(0.1, 1.0, 0.7, 4) == pytest.approx(1.42, rel=0.1)


def test_factor_is_bounded():
    assert factor_of(0.1, 1.0, 0.01, 4) == 2.0
    assert factor_of(0.001, 0.01, 1.0, 4) == 0.5


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    return x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=600)


def test_factor_multiplies_the_scales_of_the_networks(table):
    x, y = table
    options = {"members": 3, "steps": 100, "inputs": "numbers", "evidence": "plain", "random_state": 0}
    as_it_is = EvidentialRegressor(calibrated=False, **options).fit(x, y)
    widened = EvidentialRegressor(**options).fit(x, y)
    assert as_it_is.width_ is None
    p, q = as_it_is.predict_distribution(x), widened.predict_distribution(x)
    assert np.allclose(p.mean, q.mean)
    assert np.allclose(q.answers.beta, p.answers.beta * widened.width_[0] ** 2)


def test_evidence_leaves_the_mean_near_the_rows_and_uses_the_factor(table):
    x, y = table
    options = {"members": 3, "steps": 100, "inputs": "numbers", "random_state": 0}
    plain, widened = (EvidentialRegressor(calibrated=c, **options).fit(x, y) for c in (False, True))
    p, q = plain.predict_distribution(x), widened.predict_distribution(x)
    assert np.allclose(p.mean, q.mean)
    assert np.array_equal(p.familiarity, q.familiarity)
    inside = q.familiarity == 1
    assert inside.any()
    scales = [each.answers.predictive().scale.mean(0).numpy()[inside] for each in (p, q)]
    ratio = scales[1] / scales[0]
    assert np.median(ratio) == pytest.approx(widened.width_[0], rel=0.1)


def test_it_is_saved(table, tmp_path):
    x, y = table
    both = np.column_stack([y, 5 * y])
    model = EvidentialRegressor(members=3, steps=60, inputs="numbers", random_state=0).fit(x, both)
    again = hs.load(model.save(tmp_path / "model"))
    assert model.width_.shape == (2,)
    assert np.array_equal(again.width_, model.width_)
    assert np.array_equal(again.predict_distribution(x).std, model.predict_distribution(x).std)


def test_single_network_or_few_rows_stay_as_they_are(table):
    x, y = table
    assert EvidentialRegressor(members=1, steps=20).fit(x, y).width_ is None
    assert EvidentialRegressor(members=3, steps=20).fit(x[:60], y[:60]).width_ is None
    assert EvidentialRegressor(members=3, steps=20, validation_fraction=0).fit(x, y).width_ is None
    with pytest.raises(InputError, match="calibrated"):
        EvidentialRegressor(calibrated="yes").fit(x, y)


def test_tails_of_normal_noise_become_lighter(table):
    x, y = table
    model = EvidentialRegressor(members=3, steps=200, inputs="numbers", random_state=0).fit(x, y)
    assert float(model.model_.evidence.tails.min()) > 1


def test_tails_of_heavy_noise_stay_heavy(table):
    x, _ = table
    y = np.random.default_rng(1).standard_t(2, len(x))
    model = EvidentialRegressor(members=3, steps=200, inputs="numbers", random_state=0).fit(x, y)
    assert float(model.model_.evidence.tails.max()) == 1


def test_means_beyond_all_targets_do_not_count_as_disagreement():
    rng = np.random.default_rng(0)
    loc = torch.from_numpy(rng.normal(size=(4, 50, 1)))
    loc[:, :, 0] = torch.where(loc[:, :, 0] < 0, 100 * loc[:, :, 0], loc[:, :, 0])
    weights, kind_of = torch.full((4,), 0.25, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    low, high = torch.zeros(1, dtype=torch.float64), torch.full((1,), 5.0, dtype=torch.float64)

    def ratio(means, lowest):
        answer = NormalInverseGamma(means, nu=1e6, alpha=1e6, beta=1e6)
        return width._ratio(answer, weights, kind_of, 1, lowest, high)

    assert torch.equal(ratio(loc, low), ratio(loc.clamp(min=0), low))
    assert float(ratio(loc, -torch.inf * torch.ones(1))) > 10 * float(ratio(loc, low))
