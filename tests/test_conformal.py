"""Conformal calibration of predictions and regressors."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import howsure as hs
from howsure.conformal import ConformalCalibration, min_rows, quantile_of_scores
from howsure.distributions import Transform
from howsure.storage import checked_header
from howsure.tables.table import read_table


def normal_prediction(mean, std):
    loc = torch.as_tensor(np.asarray(mean, dtype=float))
    scale = torch.as_tensor(np.broadcast_to(std, loc.shape).copy())
    return hs.Prediction(hs.Normal(loc, scale, validate_args=False))


def test_rank_uses_the_decimal_value_of_the_coverage():
    scores = np.arange(1.0, 10.0)
    assert quantile_of_scores(scores, 0.9) == 9  # (9 + 1)·0.9 is above 9 in floating point
    assert quantile_of_scores(np.arange(1.0, 20.0), 0.95) == 19
    assert [min_rows(c) for c in (0.5, 0.9, 0.95, 0.99)] == [1, 9, 19, 99]


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 1.5, float("nan")])
def test_coverage_outside_the_unit_interval_raises(coverage):
    with pytest.raises(hs.InputError):
        min_rows(coverage)


@pytest.mark.parametrize("coverage", [None, "0.9", True])
def test_coverage_that_is_not_a_number_raises(coverage):
    with pytest.raises(hs.InputError):
        min_rows(coverage)


def test_too_few_rows_raise_with_the_number_needed():
    with pytest.raises(hs.InputError, match=r"\b9\b"):
        quantile_of_scores(np.ones(8), 0.9)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_factor_is_the_smallest_that_holds_the_rank(coverage):
    """The interval holds at least rank calibration targets, and fewer with a factor smaller by a millionth."""
    random = np.random.default_rng(0)
    mean, std = random.normal(size=40), random.uniform(0.5, 2, 40)
    y = mean + 3 * std * random.normal(size=40)
    p = normal_prediction(mean, std)
    calibration = hs.calibrate(p, y, method="conformal")
    half = std * stats.norm.ppf(0.95)
    rank = int(np.ceil(41 * coverage - 1e-9))
    factor = calibration.factors(coverage)[0, 0]
    assert (np.abs(y - mean) <= factor * half * (1 + 1e-9)).sum() == rank
    assert (np.abs(y - mean) <= factor * half * (1 - 1e-6)).sum() == rank - 1
    ends = calibration.apply(p).interval(coverage)
    assert np.allclose(ends, np.stack([mean - factor * half, mean + factor * half], 1))


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_coverage_follows_the_beta_law(coverage):
    """The coverage given n exchangeable calibration rows is Beta(k, n + 1 − k) with k = ⌈(n + 1)c⌉."""
    random, n, found = np.random.default_rng(1), 50, []
    for _ in range(1500):
        y = random.standard_t(3, n)
        q = hs.calibrate(normal_prediction(np.zeros(n), 0.2), y, method="conformal")
        half = q.factors(coverage)[0, 0] * 0.2 * stats.norm.ppf(0.95)
        found.append(2 * stats.t(3).cdf(half) - 1)
    k = int(np.ceil((n + 1) * coverage - 1e-9))
    assert stats.kstest(found, stats.beta(k, n + 1 - k).cdf).pvalue > 1e-3


def test_skewed_mixture_is_covered():
    """The mean of this mixture lies outside the inner half of its interval."""
    random, hits = np.random.default_rng(2), []
    components = hs.Normal(torch.tensor([[0.0], [30.0]]).double(), torch.tensor([[1.0], [1.0]]).double())
    for _ in range(300):
        both = hs.Mixture(
            hs.Normal(components.loc.expand(2, 60), components.scale.expand(2, 60)),
            dim=0,
            weights=torch.tensor([0.96, 0.04]),
        )
        p = hs.Prediction(both)
        y = np.where(random.random(60) < 0.8, random.normal(size=60), 40 * random.random(60))
        calibration = hs.calibrate(p[:40], y[:40], method="conformal")
        ends = calibration.apply(p[40:]).interval(0.9)
        hits.append(((ends[:, 0] <= y[40:]) & (y[40:] <= ends[:, 1])).mean())
    assert np.mean(hits) > 0.9 - 5 * np.std(hits) / np.sqrt(len(hits))


@pytest.mark.parametrize("kind", ["positive", "log"])
def test_transformed_target_is_covered_and_positive(kind):
    random = np.random.default_rng(3)
    z = random.normal(size=400)
    transform = Transform(kind, 1.0)
    y = transform.forward(torch.from_numpy(1.5 * z)).numpy()
    p = hs.Prediction(hs.Normal(torch.zeros(400).double(), torch.ones(400).double()), transform=transform)
    calibrated = hs.calibrate(p[:200], y[:200], method="conformal").apply(p[200:])
    for coverage in (0.5, 0.9):
        ends = calibrated.interval(coverage)
        assert (ends >= 0).all()
        share = ((ends[:, 0] <= y[200:]) & (y[200:] <= ends[:, 1])).mean()
        assert abs(share - coverage) < 5 * np.sqrt(coverage * (1 - coverage) * 2 / 200)


def test_distribution_and_interval_agree_at_90_percent():
    random = np.random.default_rng(4)
    p = normal_prediction(random.normal(size=60), random.uniform(1, 2, 60))
    calibrated = hs.calibrate(p[:30], p.mean[:30] + 5 * random.normal(size=30), method="conformal").apply(p[30:])
    assert np.allclose(calibrated.interval(0.9), calibrated.quantile([0.05, 0.95]))
    assert not np.allclose(calibrated.interval(0.5), calibrated.quantile([0.25, 0.75]))
    assert np.array_equal(calibrated.mean, p[30:].mean)
    widths = [np.diff(calibrated.interval(c))[:, 0] for c in (0.3, 0.6, 0.9)]
    assert (widths[0] <= widths[1]).all()
    assert (widths[1] <= widths[2]).all()


def test_parts_and_joined_predictions_keep_their_intervals():
    random = np.random.default_rng(5)
    p = normal_prediction(random.normal(size=(40, 2)), [1.0, 2.0])
    calibrated = hs.calibrate(p[:20], p.mean[:20] + random.normal(size=(20, 2)), method="conformal").apply(p[20:])
    whole = calibrated.interval(0.7)
    assert np.array_equal(calibrated[3:9].interval(0.7), whole[3:9])
    assert np.array_equal(calibrated[:, 1].interval(0.7), whole[:, 1])
    assert np.array_equal(hs.Prediction.cat([calibrated[:5], calibrated[5:]]).interval(0.7), whole)
    with pytest.raises(hs.InputError):
        hs.Prediction.cat([calibrated, p[:20]])
    assert hs.metrics.coverage(calibrated, p.mean[20:], 0.9) == 1


def test_perfect_model_has_a_small_positive_factor():
    p = normal_prediction(np.arange(20.0), 1.0)
    calibrated = hs.calibrate(p, p.mean, method="conformal").apply(p)
    assert 0 < calibrated.std.max() < 1e-5


def test_predictions_that_are_not_finite_count_as_missed():
    p = normal_prediction(np.where(np.arange(20) < 1, np.nan, 0.0), 1.0)
    calibration = hs.calibrate(p, np.zeros(20), method="conformal")
    assert np.isinf(calibration.scores).sum() == 1
    p = normal_prediction(np.where(np.arange(20) < 5, np.nan, 0.0), 1.0)
    with pytest.raises(hs.InputError):
        hs.calibrate(p, np.zeros(20), method="conformal")


def test_each_large_group_has_its_own_factor():
    random = np.random.default_rng(6)
    group = np.repeat(["a", "b", "c"], [100, 100, 5])
    y = random.normal(size=205) * np.where(group == "a", 1.0, 10.0)
    table = read_table(pd.DataFrame({"group": group, "x": np.arange(205.0)}))
    p = normal_prediction(np.zeros(205), 1.0)
    made = ConformalCalibration.learn(p, y, table, "group")
    assert made.groups.keys == (("a",), ("b",))
    half = np.diff(made.apply(p, table).interval(0.9))[:, 0] / 2
    scale = {g: half[group == g][0] for g in "abc"}
    assert 1.2 < scale["a"] < 2.5
    assert 12 < scale["b"] < 25
    assert np.isclose(scale["c"], made.factors(0.9)[-1, 0] * stats.norm.ppf(0.95))  # the factor of all rows


@pytest.mark.parametrize("columns", ["height", 7, True, [], ["x", "x"], None])
def test_groups_that_are_not_columns_raise(columns):
    table = read_table(pd.DataFrame({"x": np.arange(20.0)}))
    p = normal_prediction(np.zeros(20), 1.0)
    if columns is None:
        with pytest.raises(hs.InputError):
            hs.calibrate(p, np.zeros(20), method="conformal", groups="x")  # a prediction has no columns
    else:
        with pytest.raises(hs.InputError):
            ConformalCalibration.learn(p, np.arange(20.0), table, columns)


def through_json(made):
    values = json.loads(json.dumps(asdict(made), default=np.ndarray.tolist))
    return checked_header(ConformalCalibration, values)


def test_calibration_survives_its_plain_values():
    random = np.random.default_rng(7)
    table = read_table(pd.DataFrame({"g": np.repeat(["a", "b"], 30), "x": np.arange(60.0)}))
    made = ConformalCalibration.learn(
        normal_prediction(np.zeros((60, 2)), 1.0), random.normal(size=(60, 2)), table, "g"
    )
    again = through_json(made)
    assert again.groups == made.groups
    assert np.array_equal(again.factors(0.9), made.factors(0.9))


@pytest.mark.parametrize(
    "change",
    [
        {"scores": None},
        {"scores": [[-1.0]] * 60},
        {"scores": [["a"]] * 60},
        {"codes": [0]},
        {"codes": [9] * 60},
        {"groups": {"columns": ["g"], "keys": [["a", "b"]]}},
        {"groups": 3},
    ],
)
def test_forged_calibration_raises(change):
    made = asdict(ConformalCalibration(np.ones((60, 1)), np.full(60, -1), None))
    with pytest.raises(hs.InputError):
        checked_header(ConformalCalibration, made | change)


# Regressors -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    random = np.random.default_rng(8)
    x = pd.DataFrame({"size": random.normal(size=300), "town": random.choice(["Ulm", "Bonn"], 300)})
    y = x["size"].to_numpy() + random.normal(size=300) * np.where(x.town == "Ulm", 0.2, 2.0)
    model = hs.EvidentialRegressor(members=2, steps=60, random_state=0).fit(x[:100], y[:100])
    return model, x[100:200], y[100:200], x[200:], y[200:]


@pytest.mark.parametrize(("method", "groups"), [("scale", None), ("conformal", None), ("conformal", "town")])
def test_calibrated_regressor_saves_loads_and_predicts(fitted, method, groups, tmp_path):
    model, x, y, new, target = fitted
    calibrated = hs.calibrate(model, x, y, method=method, groups=groups)
    p = calibrated.predict_distribution(new)
    assert 0.75 < hs.metrics.coverage(p, target, 0.9) <= 1
    assert np.array_equal(calibrated.predict(new), model.predict(new))
    assert model.calibration_ is None  # the model that was given stays as it was
    calibrated.save(tmp_path / "model")
    again = hs.load(tmp_path / "model")
    assert np.array_equal(again.predict_interval(new, coverage=0.8), p.interval(0.8))
    if groups:
        width = np.diff(p.interval(0.9))[:, 0]
        assert np.median(width[new.town == "Bonn"]) > 3 * np.median(width[new.town == "Ulm"])


def test_refitting_forgets_the_calibration(fitted):
    model, x, y, *_ = fitted
    calibrated = hs.calibrate(model, x, y)
    assert calibrated.calibration_ is not None
    assert calibrated.fit(x, y).calibration_ is None


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("x", "y"), {"method": "cv+"}),
        (("x", "y"), {"method": "isotonic"}),
        (("x", "y"), {"method": "scale", "groups": "town"}),
        (("x", "y"), {"method": "conformal", "groups": "village"}),
        (("x", "y"), {"mask": True}),
        (("y",), {}),
        (("x", "y", "y"), {}),
        (("few x", "few y"), {"method": "conformal"}),
    ],
)
def test_calibrate_rejects_unsupported_input(fitted, arguments, options):
    model, x, y, *_ = fitted
    data = {"x": x, "y": y, "few x": x[:5], "few y": y[:5]}
    with pytest.raises((hs.InputError, hs.InputTypeError)):
        hs.calibrate(model, *(data[name] for name in arguments), **options)


def test_conformal_with_a_mask_calibrates_each_target_by_its_own_labels():
    g = np.random.default_rng(3)
    y = g.normal(size=(60, 2)) * [1.0, 5.0]
    p = normal_prediction(np.zeros((60, 2)), 1.0)
    mask = g.random((60, 2)) < 0.7
    found = hs.calibrate(p, np.where(mask, y, np.nan), method="conformal", mask=mask)
    for t in range(2):
        own = hs.calibrate(p[mask[:, t], t], y[mask[:, t], t], method="conformal")
        assert found.factors(0.8)[0, t] == pytest.approx(own.factors(0.8)[0, 0], rel=1e-12)
    again = through_json(found)
    np.testing.assert_array_equal(again.factors(0.9), found.factors(0.9))
    np.testing.assert_array_equal(again.apply(p).interval(0.9), found.apply(p).interval(0.9))


def test_conformal_target_with_too_few_labels_raises():
    mask = np.ones((30, 2), dtype=bool)
    mask[8:, 1] = False
    with pytest.raises(hs.InputError):
        hs.calibrate(normal_prediction(np.zeros((30, 2)), 1.0), np.ones((30, 2)), method="conformal", mask=mask)
