"""Shared values, targets that cannot be negative, and targets that are not numbers, on made tables."""

import datetime as dt
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor

import howsure as hs
from howsure import metrics
from howsure.distributions import Support
from howsure.errors import InputError, InputTypeError
from howsure.tables.target import Atom, prepare_target, transform_from_dict
from howsure.tables.target_values import find_atom, find_shared_values, positive_numbers

QUICK = {"members": 2, "hidden": (32,), "steps": 60, "random_state": 0}


def log_normal(rows, seed):
    """Return a table with a log-normal target whose location and scale depend on x, and the target's true NLL."""
    g = np.random.default_rng(seed)
    x = g.uniform(-1, 1, (rows, 2))
    loc, scale = 1 + 1.5 * x[:, 0], 0.6 + 0.2 * x[:, 1]
    noise = g.standard_normal(rows)
    nll = loc + scale * noise + np.log(scale) + 0.5 * np.log(2 * np.pi) + 0.5 * noise**2
    return x, np.exp(loc + scale * noise), nll.mean()


def mostly_zeros(rows, seed):
    """Return a table in which 80 % of the targets are 0; x says how probable that is, and how large the others are."""
    g = np.random.default_rng(seed)
    x = g.uniform(-1, 1, (rows, 4))
    other = g.random(rows) < 1 / (1 + np.exp(1.7 - 1.5 * x[:, 0]))
    return x, np.where(other, g.gamma(2, np.exp(0.7 * x[:, 1])), 0.0)


# Targets that cannot be negative --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_transform():
    model = hs.EvidentialRegressor(members=3, steps=500, random_state=0, evidence="plain")
    return model.fit(*log_normal(1500, 1)[:2])


@pytest.mark.parametrize("transform", ["positive", "log"])
def test_log_normal_target_is_learned_as_it_is(transform, without_transform):
    x, y, _ = log_normal(1500, 1)
    new, target, truth = log_normal(4000, 2)
    model = clone(without_transform).set_params(target_transform=transform).fit(x, y)
    p = model.predict_distribution(new)
    assert (p.cdf(np.zeros(len(new))) == 0).all()
    assert (p.interval(0.999)[:, 0] > 0).all()
    assert metrics.nll(p, target) < truth + 0.05
    assert model.target_transform == transform
    plain = without_transform.predict_distribution(new)
    assert (plain.interval(0.9)[:, 0] < 0).any()
    assert metrics.nll(plain, target) > truth + 0.1


def test_log_predicts_the_median_and_raises_for_moments():
    x, y, _ = log_normal(200, 1)
    model = hs.EvidentialRegressor(target_transform="log", **QUICK).fit(x, y)
    assert np.array_equal(model.predict(x), model.predict_distribution(x).median)
    assert model.score(x, y) < 1
    with pytest.raises(InputError, match='"log"'):
        model.predict(x, return_std=True)


@pytest.mark.parametrize(
    ("transform", "y", "row", "value"),
    [
        ("log", [1.0, 2.0, 0.0, 3.0], 2, 0.0),
        ("log", [1.0, -2.0, 0.0, 3.0], 1, -2.0),
        ("positive", [1.0, 2.0, -0.5, 3.0], 2, -0.5),
        ("root", [1.0, 2.0, 3.0, 4.0], None, None),
        (["log"], [1.0, 2.0, 3.0, 4.0], None, None),
    ],
)
def test_targets_that_a_transform_cannot_have_raise(transform, y, row, value):
    with pytest.raises(InputError, match="target_transform") as caught:
        hs.EvidentialRegressor(target_transform=transform, **QUICK).fit(np.arange(4.0).reshape(-1, 1), y)
    assert (caught.value.row, caught.value.value) == (row, value)


def test_rows_without_weight_may_have_any_target():
    x, y, _ = log_normal(60, 1)
    weight = np.ones(60)
    weight[7] = 0
    model = hs.EnsembleRegressor(members=1, hidden=(8,), steps=20, random_state=0, target_transform="log")
    wrong = y.copy()
    wrong[7] = -1.0
    with_it = model.fit(x, wrong, sample_weight=weight).predict(x)
    assert np.allclose(with_it, model.fit(np.delete(x, 7, 0), np.delete(y, 7)).predict(x), rtol=1e-4)


@pytest.mark.parametrize("members", [1, 5])
def test_ensembles_have_the_transform(members):
    x, y, _ = log_normal(80, 1)
    model = hs.EnsembleRegressor(members=members, hidden=(8,), steps=30, random_state=0, target_transform="positive")
    model.fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert (mean > 0).all()
    assert (std > 0).all()
    assert np.isfinite(model.predict_distribution(x).crps(y)).all()


def test_several_targets_have_their_own_numbers_and_are_saved(tmp_path):
    x, y, _ = log_normal(150, 1)
    zeros = np.where(np.arange(150) % 40 == 0, 0.0, 1000 * y)
    targets = pd.DataFrame({"small": y, "large": zeros})
    model = hs.EvidentialRegressor(target_transform="positive", **QUICK).fit(x, targets)
    small, large = model.transform_.scale.tolist()
    assert large == pytest.approx(1000 * small, rel=0.1)
    assert model.transform_.shift[0] == 0 < model.transform_.shift[1]
    p = model.predict_distribution(x)
    assert p.transform == model.transform_
    assert (p.interval() >= 0).all()
    again = hs.load(model.save(tmp_path / "model"))
    assert again.target_transform == "positive"
    assert np.array_equal(again.predict(x), model.predict(x))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    with pytest.raises(InputError, match="'large'"):
        model.set_params(target_transform="log").fit(x, targets)
    assert np.array_equal(again.predict(x), model.predict(x))


def test_forged_transform_raises(tmp_path):
    x, y, _ = log_normal(60, 1)
    model = hs.EvidentialRegressor(target_transform="positive", **QUICK).fit(x, y)
    for forged in ({"kind": "positive"}, {"kind": "positive", "scale": [1.0, 2.0], "shift": [0.0, 0.0]}, "positive"):
        folder = tmp_path / str(len(str(forged)))
        model.transform_ = type("Forged", (), {"to_dict": lambda _, forged=forged: forged})()
        model.save(folder)
        with pytest.raises(InputError) as caught:
            hs.load(folder)
        assert str(folder) in caught.value.message


def test_transformed_target_regressor_predicts():
    x, y, _ = log_normal(60, 1)
    wrapped = TransformedTargetRegressor(hs.EvidentialRegressor(**QUICK), func=np.log, inverse_func=np.exp).fit(x, y)
    assert wrapped.predict(x).shape == (60,)


def test_counts_with_zeros_have_a_shift():
    y = np.array([0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 7.0])
    scale, shift = positive_numbers(y)
    assert scale == 7
    assert positive_numbers(np.r_[np.arange(1.0, 101), 1e9])[0] < 300
    assert shift == 0.5 * np.quantile(y[y > 0], 0.05)
    assert positive_numbers(np.zeros(4)) == (1.0, 1.0)
    assert positive_numbers(y[y > 0])[1] == 0
    model = hs.EvidentialRegressor(target_transform="positive", **QUICK).fit(np.arange(70.0)[:, None], [*y] * 10)
    p = model.predict_distribution(np.arange(70.0)[:, None])
    assert (p.cdf(np.zeros(70)) > 0).all()
    assert np.isfinite(p.log_prob([*y] * 10)).all()
    assert np.isfinite(p.crps([*y] * 10)).all()


def test_constant_target_keeps_working_under_a_transform():
    x = np.random.default_rng(0).random((50, 2))
    for value, transform in ((3.0, "positive"), (3.0, "log"), (0.0, "positive")):
        model = hs.EvidentialRegressor(target_transform=transform, **QUICK).fit(x, np.full(50, value))
        assert np.allclose(model.predict_distribution(x).median, value, atol=0.5)


# Shared values --------------------------------------------------------------------------------------------------------


def test_shared_values_are_those_of_five_rows_each_or_of_a_coarse_grid():
    g = np.random.default_rng(0)
    distinct = g.standard_normal(500)
    assert find_shared_values(distinct) is None
    assert find_shared_values(np.full(100, 3.0)) is None
    assert find_shared_values(np.r_[distinct[:30], distinct[:1]]) is None
    grades = find_shared_values(g.choice([3.0, 4.0, 7.0], 500))
    assert grades.possible
    assert grades.values.tolist() == [3, 4, 5, 6, 7]
    assert find_shared_values(g.choice([0.0, 0.1, 0.7], 500)).values.tolist()[-1] == pytest.approx(0.7)
    assert find_shared_values(g.choice([0.0, 1.0], 500, p=[0.9, 0.1])).values.tolist() == [0, 1]
    tailing = find_shared_values(g.choice([1.0, 2.0, 3.0, 4.0], 500, p=[0.5, 0.3, 0.19, 0.01]))
    assert tailing.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert find_shared_values(g.choice([0.0, 1.0, np.pi], 500)).values.tolist() == [0, 1, np.pi]
    irregular = find_shared_values(np.repeat(distinct[:60], g.integers(2, 20, 60)))
    assert not irregular.possible
    counts = np.round(g.normal(40, 15, 500)) + 0.0
    found = find_shared_values(counts.astype(float))
    assert found.possible
    assert np.allclose(np.diff(found.values), 1)
    assert found.values[0] < counts.min()
    assert found.values[-1] > counts.max()
    assert find_shared_values(g.integers(0, 100_000, 500).astype(float)) is None
    assert find_shared_values(np.round(g.normal(0, 9, 500), 1)) is None
    tenths = find_shared_values(np.round(g.normal(0, 1, 1000), 1))
    assert tenths.possible
    assert np.abs(tenths.values * 10 - np.round(tenths.values * 10)).max() < 1e-6


def test_value_that_stands_out_of_a_continuum_is_an_atom():
    g = np.random.default_rng(0)
    distinct = g.standard_normal(500)
    assert find_atom(np.r_[np.zeros(400), distinct[:100]]) == 0
    assert find_atom(np.r_[np.full(30, 9.0), distinct]) == 9
    assert find_atom(distinct) is None
    assert find_atom(np.r_[distinct, distinct[:9]]) is None
    assert find_atom(g.choice([0.0, 1.0, 2.0], 500, p=[0.9, 0.05, 0.05])) is None
    assert find_atom(np.zeros(50)) is None


def test_cells_lie_between_the_midpoints_of_neighbours():
    y = np.tile([1.0, 2.0, 4.0], 20)
    made = prepare_target(y)
    assert np.array_equal(made.values, y)
    assert made.cells[:3, 0].tolist() == [[-np.inf, 1.5], [1.5, 2.5], [3.5, np.inf]]
    assert made.transform == Support([1.0, 2.0, 3.0, 4.0])
    again = transform_from_dict(made.transform.to_dict())
    assert again == made.transform


def test_cells_of_a_transform_are_those_of_its_variable():
    y = np.tile([0.0, 1.0, 4.0], 20)
    made = prepare_target(y, "positive")
    assert made.cells[0, 0, 0] == -np.inf
    assert made.cells[0, 0, 1] == made.cells[1, 0, 0] == made.transform.edges[0]
    assert np.array_equal(made.transform.forward(torch.from_numpy(made.values)).numpy(), y)


def test_zeros_among_positive_numbers_are_known_to_lie_below():
    y = np.r_[np.zeros(3), np.random.default_rng(0).gamma(2, size=60)]
    made = prepare_target(y, "positive")
    assert np.isinf(made.cells[:3, 0, 0]).all()
    assert np.array_equal(made.cells[:3, 0, 1], made.values[:3])
    assert np.array_equal(made.cells[3:, 0, 0], made.cells[3:, 0, 1])


def test_atom_is_a_second_target():
    y = np.r_[np.zeros(40), np.linspace(1, 2, 60)]
    known = np.zeros(100, dtype=np.int8)
    known[-1] = 1
    made = prepare_target(y, censored=known)
    assert made.transform == Atom(0.0)
    assert transform_from_dict(made.transform.to_dict()) == Atom(0.0)
    assert made.table[:, 1].tolist() == [1.0] * 40 + [0.0] * 60
    assert made.cells[0].tolist() == [[-np.inf, np.inf], [0.5, np.inf]]
    assert made.cells[50].tolist() == [[y[50], y[50]], [-np.inf, 0.5]]
    assert made.cells[-1].tolist() == [[2.0, np.inf], [-np.inf, np.inf]]


def test_distinct_targets_have_no_cells():
    x, y, _ = log_normal(100, 1)
    made = prepare_target(y)
    assert np.array_equal(made.values, y)
    assert made.cells is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.EvidentialRegressor(**QUICK).fit(x, y)


@pytest.mark.parametrize("transform", [None, "positive"])
def test_mostly_zeros_are_covered(transform):
    x, y = mostly_zeros(800, 1)
    new, target = mostly_zeros(2000, 2)
    model = hs.EvidentialRegressor(target_transform=transform, members=3, steps=400, random_state=0)
    p = model.fit(x, y).predict_distribution(new)
    assert metrics.coverage(p, target, 0.9) >= 0.88
    assert p.cdf(np.zeros(2000)).mean() >= 0.72
    constant = np.abs(np.subtract.outer(target[:500], target[:500])).mean() / 2
    assert metrics.crps(p, target) < constant
    if transform is None:
        assert p.atom == 0


def test_grades_are_predicted_as_possible_values_and_saved(tmp_path):
    g = np.random.default_rng(0)
    x = g.random((150, 2))
    y = np.round(3 * x[:, 0] + 0.3 * g.standard_normal(150)).clip(0, 3)
    model = hs.EvidentialRegressor(members=3, steps=60, random_state=0).fit(x, y)
    p = model.predict_distribution(x)
    assert set(np.unique(p.interval())) <= {-1.0, 0.0, 1.0, 2.0, 3.0, 4.0}  # a grid continues beyond the data
    assert np.exp(p.log_prob(y)).max() <= 1
    again = hs.load(model.save(tmp_path / "grades.safetensors")).predict_distribution(x)
    assert np.array_equal(again.mean, p.mean)
    assert again.transform == p.transform


def test_atom_is_saved(tmp_path):
    x, y = mostly_zeros(300, 1)
    model = hs.EvidentialRegressor(**QUICK).fit(x, pd.DataFrame({"rain": y}))
    p = model.predict_distribution(x)
    assert p.shape == (300,)
    again = hs.load(model.save(tmp_path / "zeros.safetensors"))
    assert np.array_equal(again.predict_distribution(x).crps(y), p.crps(y))
    assert again.target_names_ == ["rain"]


def test_shared_values_of_several_targets_are_cells_of_a_continuum():
    g = np.random.default_rng(0)
    x = g.random((60, 2))
    targets = pd.DataFrame(
        {"price": g.random(60), "stars": g.integers(1, 4, 60), "fee": np.r_[np.zeros(30), g.random(30)]}
    )
    made = prepare_target(targets.to_numpy(float))
    assert np.array_equal(made.cells[:, 0, 0], made.cells[:, 0, 1])
    assert bool((made.cells[:, 1, 0] < made.cells[:, 1, 1]).all())
    assert np.isinf(made.cells[:30, 2, 0]).all()
    p = hs.EvidentialRegressor(**QUICK).fit(x, targets).predict_distribution(x)
    assert p.shape == (60, 3)
    assert p.continuous


def test_rows_without_weight_do_not_change_the_possible_values():
    g = np.random.default_rng(0)
    x, y = g.random((80, 2)), g.integers(0, 3, 80).astype(float)
    weight = np.ones(80)
    weight[::9] = 0
    y[::9] = 17.5
    model = hs.EnsembleRegressor(members=1, hidden=(8,), steps=20, random_state=0)
    with_them = model.fit(x, y, sample_weight=weight).predict(x)
    assert np.allclose(with_them, model.fit(x[weight > 0], y[weight > 0]).predict(x), rtol=1e-4)


# No numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "row", "value"),
    [
        (["cat", "dog"] * 5, 0, "cat"),
        (pd.Series([1.0, 2.0, "n/a"] + [3.0] * 7, dtype=object), 2, "n/a"),
        (pd.Categorical(["a", "b"] * 5), 0, "a"),
        (pd.date_range("2020-01-01", periods=10), 0, np.datetime64("2020-01-01")),
        ([dt.date(2020, 1, k) for k in range(1, 11)], 0, dt.date(2020, 1, 1)),
        (pd.to_timedelta(np.arange(10), unit="h"), 0, np.timedelta64(0, "h")),
        ([True, False] * 5, 0, True),
        (torch.tensor([True, False] * 5), 0, True),
        (np.array([True, 1.0] * 5, dtype=object), 0, True),
    ],
)
def test_targets_that_are_no_numbers_raise_by_a_sentence(y, row, value):
    with pytest.raises((InputError, InputTypeError), match=r"\by\b") as caught:
        hs.EvidentialRegressor(**QUICK).fit(np.arange(20.0).reshape(10, 2), y)
    assert (caught.value.row, caught.value.value) == (row, value)
    assert caught.value.hint is not None


def test_text_that_spells_numbers_is_taken_for_them():
    x = np.arange(20.0).reshape(10, 2)
    y = [f"{0.5 * k}" for k in range(10)]
    model = hs.EvidentialRegressor(**QUICK)
    assert np.array_equal(model.fit(x, y).predict(x), model.fit(x, [0.5 * k for k in range(10)]).predict(x))


@pytest.mark.parametrize("form", ["{:,}", "${:,}", "{} €", "{:.1f} %"])
def test_separators_and_signs_of_targets_are_read_as_in_features(form):
    x, y = np.arange(20.0).reshape(10, 2), [1000 + 250 * k for k in range(10)]
    texts = [form.format(value) for value in y]
    model = hs.EvidentialRegressor(**QUICK)
    expected = model.fit(x, y).predict(x)
    assert np.array_equal(model.fit(x, texts).predict(x), expected)
    assert np.array_equal(model.fit(x, pd.DataFrame({"price": texts})).predict(x), expected)


def test_units_and_codes_in_targets_raise_with_the_remedy():
    for y in (["1 kg", "2 kg"] * 5, ["0012", "0013"] * 5, ["1,5", "x"] * 5):
        with pytest.raises(InputError, match="without units") as caught:
            hs.EvidentialRegressor(**QUICK).fit(np.arange(20.0).reshape(10, 2), pd.Series(y, name="weight"))
        assert caught.value.column == "weight"


@pytest.mark.parametrize("unit", [0.1, 0.01, 1.0, 0.0387850941357889])
def test_possible_values_contain_the_values_of_rows_exactly(unit):
    y = np.round(3 * np.random.default_rng(0).normal(size=400)) * unit
    assert np.isin(y, find_shared_values(y).values).all()


def test_unseen_value_of_a_decimal_grid_is_a_decimal_number():
    y = np.array([0.1, 0.2, 0.4, 0.5] * 20)
    assert np.isin([0.3], find_shared_values(y).values).all()
