"""The score of a constant, by which a training knows whether features have told it anything."""

import numpy as np
import pytest
import scipy.stats
import torch

import howsure as hs
from howsure.tables.constant import constant_cell_score, constant_score

RNG = np.random.default_rng(0)
SAMPLES = {
    "normal": RNG.normal(2.0, 3.0, 4000),
    "heavy": RNG.standard_t(3, 4000),
    "uniform": RNG.uniform(-1, 1, 4000),
    "skewed": np.exp(RNG.normal(size=4000)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_it_is_the_likelihood_of_the_best_student_t(name):
    y = SAMPLES[name]
    best = min(-scipy.stats.t.logpdf(y, *scipy.stats.t.fit(y, fix_df=df)).mean() for df in (2, 3, 5, 10, 100))
    assert constant_score(torch.from_numpy(y)[:, None]) == pytest.approx(best, abs=2e-4)


def test_several_targets_have_their_mean():
    both = torch.from_numpy(np.column_stack([SAMPLES["normal"], SAMPLES["heavy"]]))
    each = [constant_score(both[:, k : k + 1]) for k in range(2)]
    assert constant_score(both) == pytest.approx(np.mean(each))


def test_equal_targets_and_one_row_are_finite():
    assert np.isfinite(constant_score(torch.zeros(20, 1)))
    assert np.isfinite(constant_score(torch.ones(1, 2)))


def test_constant_cell_score_is_the_entropy_of_shared_cells():
    grades = torch.tensor([0.0] * 50 + [1.0] * 25 + [2.0] * 25)
    cells = torch.stack([grades - 0.5, grades + 0.5], -1)
    assert constant_cell_score(cells) == pytest.approx(1.5 * np.log(2))
    assert constant_cell_score(torch.arange(20.0).reshape(10, 2)) is None


@pytest.mark.parametrize("value", [1e9, -3.0, 0.0])
def test_width_of_a_constant_target_fits_its_standard_deviation(value):
    x = RNG.normal(size=(200, 2))
    model = hs.EvidentialRegressor(members=6, steps=200, random_state=0).fit(x, np.full(200, value))
    p = model.predict_distribution(x)
    width = np.ptp(p.interval(0.9), axis=1)
    assert ((width > p.std) & (width < 10 * p.std)).all()
    assert (np.abs(p.mean - value) < p.std).all()
    assert (p.std < 0.1 * max(1.0, abs(value))).all()
