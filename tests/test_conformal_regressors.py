import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import howsure as hs
from howsure.fitting import conformal
from howsure.persistence import load_model, save_model

QUICK = {"hidden": (16,), "steps": 5, "random_state": 0}  # a guarantee holds for networks that learned little, too
REGRESSORS = [
    hs.EvidentialRegressor(members=2, evidence="plain", inputs=("numbers", "bins"), **QUICK),
    hs.EnsembleRegressor(members=2, **QUICK),
    hs.EnsembleRegressor(members=1, **QUICK),
]


def noisy(rows, seed=0, targets=None):
    g = np.random.default_rng(seed)
    x = g.normal(size=(rows, 2))
    y = x[:, 0] + 0.3 * np.exp(0.5 * x[:, 1]) * g.standard_t(4, rows)
    return x, y if targets is None else np.stack([y, -3 * y + g.normal(size=rows)], axis=1)


@pytest.mark.parametrize("way", ["split", "cv+"])
@pytest.mark.parametrize("model", REGRESSORS, ids=lambda m: f"{type(m).__name__}-{m.members}")
def test_every_regressor_has_intervals_with_a_guarantee(model, way, tmp_path):
    x, y = noisy(160)
    new_x, new_y = noisy(500, seed=1)
    model = clone(model).set_params(conformal=way).fit(x, y)
    p = model.predict_distribution(new_x)
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(new_x, coverage).T
        np.testing.assert_array_equal(p.interval(coverage), np.stack([low, high], axis=1))
        share = ((low <= new_y) & (new_y <= high)).mean()
        # the coverage of 32 calibration rows varies by its Beta law, that of 160 rows of CV+ less
        assert share > coverage - 5 * math.sqrt(coverage * (1 - coverage) / (32 if way == "split" else 160))
    assert p.guarantee is not None
    np.testing.assert_array_equal(model.predict(new_x), model._predict_as_learned(new_x)[0].mean)
    np.testing.assert_allclose(model.predict(new_x), p.mean, rtol=1e-9, atol=1e-12)
    back = hs.load(model.save(tmp_path / "model"))
    again = pickle.loads(pickle.dumps(model))
    for other in (back, again):
        np.testing.assert_allclose(other.predict_interval(new_x[:50], 0.77), p[:50].interval(0.77), rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_fading_bins_and_trees_go_with_split(weighted, tmp_path):
    x, y = noisy(120)
    new_x, new_y = noisy(500, seed=1)
    weights = np.random.default_rng(0).integers(0, 3, 120) if weighted else None
    model = hs.EvidentialRegressor(members=3, inputs=("numbers", "bins", "trees"), conformal="split", **QUICK)
    model.fit(x, y, sample_weight=weights)
    rows = 120 if weights is None else int((weights > 0).sum())
    assert len(model.conformal_.rows.y) == math.ceil(0.2 * rows)
    p = model.predict_distribution(new_x)
    assert p.familiarity is not None
    assert hs.metrics.coverage(p, new_y, 0.9) > 0.9 - 5 * math.sqrt(0.09 / (0.2 * rows))
    back = hs.load(model.save(tmp_path / "model"))
    np.testing.assert_allclose(back.predict_interval(new_x[:50], 0.6), p[:50].interval(0.6), rtol=1e-9)


def test_rows_that_are_set_apart_leave_no_trace_in_the_model():
    """Other targets and features of the rows that are set apart change scales alone."""
    x, y = noisy(100)
    model = hs.EvidentialRegressor(members=2, inputs=("bins", "trees"), conformal="split", **QUICK).fit(x, y)
    base = int(np.random.RandomState(0).randint(2**31 - 1))
    _, apart = conformal.set_apart(np.arange(100), base)
    x2, y2 = x.copy(), y.copy()
    x2[apart], y2[apart] = x2[apart] + 0.1, 1e3 * y2[apart]
    other = clone(model).fit(x2, y2)
    np.testing.assert_array_equal(other.predict(x), model.predict(x))
    assert other.predict_distribution(x).std.min() > 20 * model.predict_distribution(x).std.min()
    assert other.fading_power_ == model.fading_power_
    alone = clone(model).set_params(conformal=None, evidence="plain", inputs="numbers", members=1)
    weights = np.ones(100)
    weights[apart] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone.fit(x, y, sample_weight=weights)
    assert alone.encoding_ == model.encoding_


def test_a_fold_model_knows_nothing_of_its_fold():
    x, y = noisy(64)
    model = hs.EnsembleRegressor(members=1, conformal="cv+", **QUICK).fit(x, y)
    base = int(np.random.RandomState(0).randint(2**31 - 1))
    fold = conformal.deal_folds(np.full(64, -1), base)[3]
    x2, y2 = x.copy(), y.copy()
    x2[fold], y2[fold] = x2[fold] + 9.0, 100 * y2[fold]
    other = clone(model).fit(x2, y2)
    np.testing.assert_array_equal(other.fold_models_[3].predict(x), model.fold_models_[3].predict(x))
    assert not np.array_equal(other.fold_models_[2].predict(x), model.fold_models_[2].predict(x))


@pytest.mark.parametrize("way", ["split", "cv+"])
def test_groups_of_text_numbers_dates_and_several_targets(way, tmp_path):
    x, y = noisy(240, targets=2)
    g = np.random.default_rng(2)
    site = g.choice(["quiet", "loud"], 240)
    y = y + np.where(site == "loud", 8.0, 0.1)[:, None] * g.normal(size=(240, 2))
    table = pd.DataFrame(
        {
            "a": x[:, 0],
            "site": site,
            "code": pd.Categorical(g.choice([1, 2], 240)),
            "flag": g.random(240) < 0.5,
            "day": pd.to_datetime("2024-01-01") + pd.to_timedelta(g.integers(0, 2, 240), unit="D"),
        }
    )
    for groups in (["flag", "day"], 3, ["code", "site"], "site") if way == "split" else (["code", "day"], "site"):
        model = hs.EnsembleRegressor(members=1, conformal=way, conformal_groups=groups, **QUICK).fit(table, y)
        p = model.predict_distribution(table)
        codes = p.guarantee.groups
        assert codes.min() >= 0, groups
        np.testing.assert_array_equal(
            codes[:, 0], model.predict_distribution(table.iloc[::-1]).guarantee.groups[::-1, 0]
        )
        back = hs.load(model.save(tmp_path / "model"))
        np.testing.assert_allclose(back.predict_interval(table[:20], 0.8), p.interval(0.8)[:20], rtol=1e-9)
    width = np.diff(p.interval(0.9))[:, 0, 0]
    assert width[site == "loud"].mean() > 3 * width[site == "quiet"].mean()
    row = table[:1].assign(site="elsewhere")
    assert model.predict_distribution(row).guarantee.groups.tolist() == [[-1, -1]]


@pytest.mark.parametrize("kind", ["positive", "log"])
@pytest.mark.parametrize("way", ["split", "cv+"])
def test_intervals_under_a_transform(kind, way, tmp_path):
    x, y = noisy(160)
    new_x, new_y = noisy(500, seed=1)
    y, new_y = np.exp(y), np.exp(new_y)
    model = hs.EnsembleRegressor(members=1, conformal=way, target_transform=kind, **QUICK).fit(x, y)
    low, high = model.predict_interval(new_x).T
    assert (low >= 0).all()
    assert ((low <= new_y) & (new_y <= high)).mean() > 0.9 - 5 * math.sqrt(0.09 / (32 if way == "split" else 160))
    back = hs.load(model.save(tmp_path / "model"))
    np.testing.assert_allclose(back.predict_interval(new_x[:9]), model.predict_interval(new_x[:9]), rtol=1e-9)
    assert np.isfinite(model.predict(new_x)).all()


def test_parameters_that_cannot_be_are_refused():
    x, y = noisy(40)
    for options, words in (
        ({"conformal": "jackknife"}, "conformal must be"),
        ({"conformal": True}, "conformal must be"),
        ({"conformal_groups": 0}, "say with conformal="),
        ({"conformal": "split", "conformal_groups": 7}, "no column 7"),
        ({"conformal": "split", "conformal_groups": "x"}, "no column 'x'"),
    ):
        with pytest.raises(hs.InputError, match=words):
            hs.EnsembleRegressor(members=1, **QUICK, **options).fit(x, y)
    for way, least in (("split", 18), ("cv+", 16)):
        with pytest.raises(hs.InputError, match=f"at least {least} rows"):
            hs.EnsembleRegressor(members=1, conformal=way, **QUICK).fit(x[: least - 1], y[: least - 1])
    names = pd.DataFrame({"a": x[:, 0], "who": [f"person {k}" for k in range(40)]})
    with pytest.warns(UserWarning, match="left out"), pytest.raises(hs.InputError, match="which the model leaves out"):
        hs.EnsembleRegressor(members=1, conformal="split", conformal_groups="who", **QUICK).fit(names, y)


@pytest.mark.parametrize("way", ["split", "cv+"])
def test_a_forged_model_is_refused(way, tmp_path):
    x, y = noisy(40)
    model = hs.EnsembleRegressor(members=1, conformal=way, **QUICK).fit(x, y)
    tensors, settings = load_model(model.save(tmp_path / "model"))

    def forged(tensors, settings):
        folder = save_model(tmp_path / "forged", tensors, settings)
        with pytest.raises(hs.InputError, match="save the model again"):
            hs.load(folder)

    forged({k: t for k, t in tensors.items() if not k.startswith("conformal.")}, settings)
    forged(tensors, {k: v for k, v in settings.items() if k != "conformal"})
    forged(tensors | {"conformal.0.scale": -tensors["conformal.0.scale"]}, settings)
    forged(tensors | {"conformal.0.y": torch.zeros(3, dtype=torch.float64)}, settings)
    forged(tensors, settings | {"parameters": settings["parameters"] | {"conformal": None}})
    forged(tensors, settings | {"parameters": settings["parameters"] | {"conformal": "other"}})
    forged(tensors, settings | {"folds": [{}]})
    groups = {"parts": settings["conformal"]["parts"], "groups": {"columns": ["nowhere"], "keys": []}}
    forged(tensors, settings | {"conformal": groups})
    forged(tensors, settings | {"conformal": groups, "parameters": settings["parameters"] | {"conformal_groups": 0}})
    if way == "cv+":
        forged(tensors, settings | {"folds": settings["folds"][:-1]})
        forged({k: t for k, t in tensors.items() if not k.startswith("folds.2.population")}, settings)


@pytest.mark.parametrize("way", ["split", "cv+"])
def test_predictions_do_not_depend_on_the_callers_device_context_or_threads(way):
    x, y = noisy(40)
    model = hs.EnsembleRegressor(members=1, conformal=way, target_transform="positive", **QUICK).fit(x, np.exp(y))
    fresh, expected = pickle.loads(pickle.dumps(model)), model.predict_interval(x, 0.8)
    with torch.device("meta"):
        found = fresh.predict_distribution(x)
        np.testing.assert_array_equal(found.interval(0.8), expected)
        np.testing.assert_allclose(found[3:9].interval(0.8), expected[3:9], rtol=1e-12)
    fresh = pickle.loads(pickle.dumps(model))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: fresh.predict_interval(x, 0.8), range(8)):
            np.testing.assert_array_equal(found, expected)
