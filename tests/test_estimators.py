import datetime

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import howsure as hs
from howsure.errors import UnreadableCellsWarning

QUICK = {"hidden": (32,), "steps": 150, "random_state": 0}
REGRESSORS = [
    hs.EvidentialRegressor(members=2, **QUICK),
    hs.EvidentialRegressor(members=1, evidence="plain", **QUICK),
    hs.EnsembleRegressor(members=2, **QUICK),
    hs.EnsembleRegressor(members=1, **QUICK),
]
# Networks draw random batches and hold rows out, so that a weight of 2 is not a row that stands twice.
# scikit-learn's own MLPRegressor fails this check for the same reason when it stops early.
EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": "random batches and validation rows, as in MLPRegressor",
}


@parametrize_with_checks(REGRESSORS, expected_failed_checks=lambda _: EXPECTED_TO_FAIL)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:.* of the values of y:UserWarning")  # their targets are small whole numbers
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)  # asserts inside


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def fitted(diabetes):
    x, y = diabetes
    return hs.EvidentialRegressor(members=3, hidden=(32,), steps=400, random_state=0).fit(x[:300], y[:300])


def houses(n=80, seed=0):
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": g.normal(100, 20, n),
            "town": g.choice(["Ulm", "Bonn", "Rome"], n),
            "new": g.random(n) < 0.5,
            "sold": [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=int(k)) for k in g.integers(0, 900, n)],
        },
        index=[f"h{k}" for k in range(n)],
    )
    price = 3 * frame["size"] + 50 * (frame["town"] == "Rome") + 20 * frame["new"] + g.normal(0, 5, n)
    frame.loc[frame.index[::9], "size"] = np.nan
    frame.loc[frame.index[::11], "town"] = None
    return frame, price


def test_predictions_of_a_fitted_model(fitted, diabetes):
    x, y = diabetes[0][300:], diabetes[1][300:]
    mean, std = fitted.predict(x, return_std=True)
    p = fitted.predict_distribution(x)
    assert np.array_equal(mean, p.mean)
    assert np.array_equal(std, p.std)
    assert np.array_equal(fitted.predict(x), mean)
    assert fitted.predict_interval(x, coverage=0.8).shape == (142, 2)
    assert fitted.score(x, y) > 0.3
    inside = (y >= fitted.predict_interval(x)[:, 0]) & (y <= fitted.predict_interval(x)[:, 1])
    assert 0.75 < inside.mean() <= 1
    assert (p.aleatoric_std > 0).all()
    assert (p.epistemic_std > 0).all()


def test_mixed_columns_missing_values_and_unseen_categories():
    frame, price = houses()
    model = hs.EvidentialRegressor(members=2, hidden=(32,), steps=600, random_state=0).fit(frame[:60], price[:60])
    assert model.score(frame[60:], price[60:]) > 0.5
    new = frame[60:].copy()
    new["town"] = "Atlantis"
    out = model.predict_distribution(new).to_frame()
    assert list(out.index) == list(new.index)
    assert np.isfinite(out.to_numpy()).all()
    other = pl.from_pandas(frame[60:].reset_index(drop=True))
    assert np.allclose(model.predict(other), model.predict(frame[60:]))


def test_many_targets_keep_their_names():
    frame, price = houses()
    targets = pd.DataFrame({"euro": price, "cent": 100 * price})
    model = hs.EvidentialRegressor(members=2, **QUICK).fit(frame, targets)
    assert model.predict(frame).shape == (80, 2)
    assert model.predict_interval(frame).shape == (80, 2, 2)
    assert "cent_mean" in model.predict_distribution(frame).to_frame().columns


def test_pipelines_searches_and_clones(diabetes):
    x, y = diabetes[0][:120], diabetes[1][:120]
    model = hs.EvidentialRegressor(members=1, evidence="plain", **QUICK)
    pipeline = make_pipeline(StandardScaler(), model).fit(x, y)
    mean, std = pipeline.predict(x, return_std=True)
    assert mean.shape == std.shape == (120,)
    search = GridSearchCV(model, {"evidence_weight": [0.0, 0.1]}, cv=2).fit(x, y)
    assert search.best_params_["evidence_weight"] in (0.0, 0.1)
    assert len(cross_val_score(model, x, y, cv=2)) == 2
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert np.array_equal(copy.fit(x, y).predict(x), clone(model).fit(x, y).predict(x))
    results = joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(clone(model).fit)(x, y) for _ in range(2))
    assert np.allclose(results[0].predict(x), results[1].predict(x))


@pytest.mark.parametrize("regressor", REGRESSORS, ids=lambda r: f"{type(r).__name__}-{r.members}")
def test_saved_model_predicts_the_same(regressor, tmp_path):
    frame, price = houses()
    model = clone(regressor).fit(frame, price)
    model.save(tmp_path / "model")
    again = hs.load(tmp_path / "model")
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.predict(frame), model.predict(frame))
    assert np.array_equal(again.predict_interval(frame), model.predict_interval(frame))
    assert again.n_features_in_ == 4
    assert list(again.feature_names_in_) == list(frame.columns)
    again.save(tmp_path / "again")
    assert np.array_equal(hs.load(tmp_path / "again").predict(frame), model.predict(frame))


@pytest.mark.parametrize(("factor", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 1e6)])
def test_predictions_scale_with_the_target(factor, shift):
    frame, price = houses()
    base = hs.EvidentialRegressor(members=2, **QUICK).fit(frame, price).predict_distribution(frame)
    moved = hs.EvidentialRegressor(members=2, **QUICK).fit(frame, shift + factor * price).predict_distribution(frame)
    assert np.allclose((moved.mean - shift) / factor, base.mean, rtol=1e-3, atol=1e-2)
    assert np.allclose(moved.aleatoric_std / factor, base.aleatoric_std, rtol=1e-3)
    assert np.allclose(moved.epistemic_std / factor, base.epistemic_std, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.empty((0, 2)), "y": []}, r"\(0, 2\)"),
        ({"X": [[1.0, 2.0]], "y": [1.0]}, r"\(1, 2\)"),
        ({"y": [np.nan] * 20}, "NaN"),
        ({"y": [np.inf] * 20}, r"\by\b"),
        ({"y": ["a"] * 20}, "'a'"),
        ({"y": [1.0] * 19}, r"\[19, 20\]"),
        ({"y": None}, r"\by\b"),
        ({"X": np.full((20, 2), np.inf)}, r"\bX\b"),
        ({"sample_weight": [-1.0] * 20}, "sample_weight"),
        ({"sample_weight": [0.0] * 19 + [1.0]}, r"\b1\b.*\b2\b"),
    ],
)
def test_bad_input_is_named_and_a_failed_fit_changes_nothing(change, message):
    good = {"X": np.random.default_rng(0).random((20, 2)), "y": np.arange(20.0)}
    model = hs.EvidentialRegressor(members=1, hidden=(4,), steps=5, random_state=0).fit(**good)
    before = model.predict(good["X"])
    with pytest.raises(ValueError, match=message):
        model.fit(**{**good, **change})
    assert np.array_equal(model.predict(good["X"]), before)


def test_columns_of_very_different_scale_and_duplicated_names():
    g = np.random.default_rng(0)
    x = g.standard_normal((120, 3))
    y = x[:, 0] + x[:, 1] - x[:, 2] + 0.1 * g.standard_normal(120)
    model = hs.EvidentialRegressor(members=1, hidden=(32,), steps=400, random_state=0)
    plain = clone(model).fit(x, y).predict(x)
    assert np.allclose(clone(model).fit(x * [1e-6, 1.0, 1e6], y).predict(x * [1e-6, 1.0, 1e6]), plain, atol=1e-2)
    with pytest.raises(hs.InputError):
        clone(model).fit(pd.DataFrame(x, columns=["a", "b", "a"]), y)


def test_bad_parameters_are_named():
    x, y = np.random.default_rng(0).random((20, 2)), np.arange(20.0)
    for parameters, message in (
        ({"members": 0}, "members"),
        ({"evidence_weight": -1.0}, "evidence_weight"),
        ({"evidence_weight": "auto"}, "evidence_weight"),
        ({"validation_fraction": 1.5}, "validation_fraction"),
        ({"steps": -3}, "steps"),
        ({"steps": 10.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"learning_rate": np.nan}, "learning_rate"),
        ({"device": "gpu"}, "'gpu'"),
        ({"device": 7.5}, "device"),
        ({"hidden": "64"}, "hidden"),
        ({"hidden": (64, 0)}, "hidden"),
        ({"hidden": 6.5}, "hidden"),
        ({"evidence": "fading"}, "evidence"),
        ({"target_transform": "auto"}, "target_transform"),
        ({"members": 2.0}, "members"),
    ):
        with pytest.raises(hs.InputError, match=message):
            hs.EvidentialRegressor(**{**QUICK, **parameters}).fit(x, y)
    with pytest.raises(NotFittedError):
        hs.EvidentialRegressor().predict(x)


def test_edges_of_prediction(fitted, diabetes):
    x = diabetes[0]
    assert fitted.predict(x[:0]).shape == (0,)
    assert fitted.predict(x[:1]).shape == (1,)
    with pytest.raises(ValueError, match="EvidentialRegressor"):
        fitted.predict(x[:, :9])
    frame, price = houses()
    model = hs.EvidentialRegressor(members=1, **QUICK).fit(frame, price)
    for broken, message in (
        (frame.drop(columns="town"), "town"),
        (frame.assign(more=1), "more"),
        (frame.assign(size=frame["sold"]), "'size'"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(broken)
    with pytest.warns(UnreadableCellsWarning) as caught:
        model.predict(frame.assign(size="big"))
    assert (caught[0].message.column, caught[0].message.count) == ("size", 80)


def test_constant_target_and_a_constant_column():
    x = np.random.default_rng(0).random((40, 2))
    x[:, 1] = 3.0
    model = hs.EvidentialRegressor(members=2, **QUICK).fit(x, np.full(40, 5.0))
    assert np.abs(model.predict(x) - 5).max() < 0.5


def test_package_offers_them_without_loading_scikit_learn():
    assert "EvidentialRegressor" in hs.__all__
    with pytest.raises(AttributeError, match="'Classifier'"):
        hs.Classifier  # noqa: B018


def test_numpy_parameters_are_as_good_as_others(tmp_path):
    """As every random search makes them."""
    x, y = np.random.default_rng(0).random((40, 2)), np.arange(40.0)
    numpy = {
        "members": np.int64(2),
        "hidden": np.array([8, 4]),
        "steps": np.int32(30),
        "batch_size": np.int64(16),
        "learning_rate": np.float32(0.005),
        "evidence_weight": np.float64(0.01),
        "validation_fraction": np.float64(0.2),
        "random_state": np.int64(3),
        "verbose": np.bool_(False),
    }
    plain = {"members": 2, "hidden": (8, 4), "steps": 30, "batch_size": 16, "learning_rate": float(np.float32(0.005))}
    plain |= {"evidence_weight": 0.01, "validation_fraction": 0.2, "random_state": 3, "verbose": False}
    model = hs.EvidentialRegressor(**numpy).fit(x, y)
    model.save(tmp_path / "m")
    again = hs.load(tmp_path / "m")
    assert again.get_params() == {**hs.EvidentialRegressor(**plain).get_params()}
    assert np.array_equal(again.predict(x), hs.EvidentialRegressor(**plain).fit(x, y).predict(x))


def test_one_number_is_one_hidden_layer_and_none_is_a_linear_network():
    x, y = np.random.default_rng(0).random((60, 2)), np.arange(60.0)
    options = {"members": 2, "steps": 40, "random_state": 0, "evidence": "plain"}
    one, same = (hs.EvidentialRegressor(hidden=h, **options).fit(x, y) for h in (16, (16,)))
    assert np.array_equal(one.predict(x), same.predict(x))
    line = hs.EvidentialRegressor(hidden=(), **options).fit(x, y).predict(x)
    fitted = np.linalg.lstsq(np.column_stack([x, np.ones(60)]), line, rcond=None)[1]
    assert fitted[0] < 1e-9 * (line**2).sum()  # what it says is linear in x


def test_diverged_networks_warn():
    g = np.random.default_rng(0)
    x = g.random((200, 3))
    y = x[:, 0] + 0.1 * g.standard_normal(200)
    model = hs.EvidentialRegressor(members=4, hidden=(16,), steps=100, random_state=0)
    before = clone(model).fit(x, y)
    kept = before.predict(x)
    with pytest.raises(hs.InputError, match="learning_rate"):
        before.set_params(learning_rate=1e30).fit(x, y)
    assert np.array_equal(before.predict(x), kept)
    with pytest.warns(ConvergenceWarning):
        clone(model).set_params(learning_rate=1e3).fit(x, y)


def test_diverged_network_is_left_out(monkeypatch):
    import howsure.estimators.base as room

    real = room.train

    def unlucky(*arguments, **more):
        fitted = real(*arguments, **more)
        fitted.result.diverged[1] = True
        fitted.result.best_score[1] = np.inf
        with torch.no_grad():
            fitted.networks.weights[0][1] = np.nan
        return fitted

    x, y = np.random.default_rng(0).random((60, 2)), np.arange(60.0)
    monkeypatch.setattr(room, "train", unlucky)
    model = hs.EvidentialRegressor(members=3, hidden=(8,), steps=40, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"\b1\b.*\b3\b"):
        model.fit(x, y)
    assert np.isfinite(model.predict(x, return_std=True)).all()
    assert model.model_.networks.members == 2
    assert model.training_["diverged"] == [False, True, False]


@pytest.mark.parametrize("factor", [1e155, 1e300, 1e-160, 1e-200])
def test_targets_whose_variance_is_no_number_raise(factor):
    x, y = np.random.default_rng(0).random((20, 2)), np.arange(20.0)
    with pytest.raises(hs.InputError, match=r"e[+-]\d{3}"):
        hs.EvidentialRegressor(**QUICK).fit(x, y * factor)


@pytest.mark.parametrize("factor", [1e120, 1e-120])
def test_large_and_small_targets_are_just_other_units(factor):
    x, y = np.random.default_rng(0).random((40, 2)), np.arange(40.0)
    base = hs.EvidentialRegressor(members=2, **QUICK).fit(x, y).predict_distribution(x)
    other = hs.EvidentialRegressor(members=2, **QUICK).fit(x, y * factor).predict_distribution(x)
    assert other.mean / factor == pytest.approx(base.mean, rel=1e-4)
    assert other.std / factor == pytest.approx(base.std, rel=1e-4)
    assert other.interval() / factor == pytest.approx(base.interval(), rel=1e-4)


@pytest.mark.parametrize("regressor", REGRESSORS, ids=lambda r: f"{type(r).__name__}-{r.members}")
def test_default_dtype_changes_nothing(regressor):
    x, y = np.random.default_rng(0).random((40, 2)), np.arange(40.0)
    model = clone(regressor).set_params(steps=30).fit(x, y)
    expected = model.predict_interval(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert np.array_equal(model.predict_interval(x), expected)
        assert np.array_equal(clone(model).fit(x, y).predict_interval(x), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("regressor", REGRESSORS, ids=lambda r: f"{type(r).__name__}-{r.members}")
def test_fits_in_threads_are_those_alone(regressor):
    x, y = np.random.default_rng(0).random((60, 2)), np.arange(60.0)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    alone = clone(regressor).fit(x, y).predict(x)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is not touched
    with joblib.parallel_backend("threading", n_jobs=4):
        fits = joblib.Parallel()(joblib.delayed(clone(regressor).fit)(x, y) for _ in range(4))
    for fitted in fits:
        assert np.array_equal(fitted.predict(x), alone)


def test_masked_dates_and_tensors_as_targets():
    x = np.random.default_rng(0).random((40, 2))
    y = x[:, 0] * 2
    model = hs.EvidentialRegressor(members=1, hidden=(8,), steps=20, random_state=0)
    masked = np.ma.array(np.where(np.arange(40) < 20, 9999.0, y), mask=np.arange(40) < 20)
    with pytest.raises(ValueError, match="NaN"):
        clone(model).fit(x, masked)
    with pytest.raises(ValueError, match="sample_weight"):
        clone(model).fit(x, y, sample_weight=np.ma.array(np.ones(40), mask=np.arange(40) < 3))
    for dates in (pd.Series(pd.date_range("2020", periods=40)), np.arange(40).astype("m8[s]")):
        with pytest.raises(hs.InputTypeError, match=r"\by\b"):
            clone(model).fit(x, dates)
    expected = clone(model).fit(x, y).predict(x)
    assert np.array_equal(clone(model).fit(x, torch.tensor(y, requires_grad=True)).predict(x), expected)


def test_callers_context_changes_nothing(tmp_path):
    x = np.random.default_rng(0).random((40, 2))
    y = x[:, 0] * 2
    model = hs.EvidentialRegressor(members=2, hidden=(8,), steps=20, random_state=0, device=torch.device("cpu"))
    expected = clone(model).fit(x, y).predict_interval(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(clone(model).fit(x, y).predict_interval(x), expected)
    torch.set_default_device("meta")
    try:
        fitted = clone(model).fit(x, y)
        assert np.array_equal(fitted.predict_interval(x), expected)
        assert np.allclose(fitted.predict_distribution(x).quantile(0.05), expected[:, 0], rtol=1e-12)
        fitted.save(tmp_path / "m")
        assert np.array_equal(hs.load(tmp_path / "m").predict_interval(x), expected)
    finally:
        torch.set_default_device("cpu")
    assert hs.load(tmp_path / "m").device == "cpu"  # a torch.device is saved by its name


def test_column_that_taught_nothing_is_ignored():
    x = np.random.default_rng(0).random((60, 2))
    model = hs.EvidentialRegressor(members=2, hidden=(8,), steps=40, random_state=0)
    for nothing in (np.nan, 7.0):
        fitted = clone(model).fit(np.c_[x, np.full(60, nothing)], x[:, 0])
        expected = fitted.predict(np.c_[x, np.full(60, nothing)])
        for later in (0.0, 1000.0, -1e9, 1e200):
            assert np.allclose(fitted.predict(np.c_[x, np.full(60, later)]), expected)


def test_targets_of_an_arrow_table_have_its_names():
    import pyarrow as pa

    x = np.random.default_rng(0).random((40, 2))
    y = pa.table({"a": x[:, 0], "b": x[:, 1]})
    fitted = hs.EvidentialRegressor(members=1, hidden=(8,), steps=20, random_state=0).fit(x, y)
    assert fitted.target_names_ == ["a", "b"]


def test_codes_are_read_as_text_or_whole_numbers():
    codes = ["1234567890123456789", "1234567890123456700", "A", "B", "C"]
    frame = pd.DataFrame({"id": np.random.default_rng(0).choice(codes, 60)})
    fitted = hs.EvidentialRegressor(members=1, hidden=(8,), steps=20, random_state=0).fit(frame, np.arange(60.0))
    whole = fitted.predict(pd.DataFrame({"id": [1234567890123456789]}))
    assert np.array_equal(whole, fitted.predict(pd.DataFrame({"id": codes[:1]})))


@pytest.mark.parametrize("cls", [hs.EvidentialRegressor, hs.EnsembleRegressor])
def test_every_parameter_and_fitted_attribute_is_documented(cls):
    model = cls(steps=2).fit(np.eye(6), np.arange(6.0))
    documented = cls.__doc__ + hs.Regressor.__doc__
    for parameter in cls().get_params():
        assert f"    {parameter} : " in documented
    for attribute in (a for a in vars(model) if a.endswith("_")):
        assert f"{attribute}" in documented


def test_loaded_model_equals_the_saved_one(tmp_path):
    X, y = np.random.default_rng(0).random((40, 2)), np.arange(40.0)  # noqa: N806
    model = hs.EvidentialRegressor(members=2, steps=40, random_state=0).fit(X, y)
    again = hs.load(model.save(tmp_path / "model"))
    ours, theirs = again.model_.result, model.model_.result
    assert ours.history == theirs.history
    assert torch.equal(ours.best_score, theirs.best_score)
    assert again.training_ == model.training_
    assert again.model_.method == model.model_.method
    assert np.array_equal(hs.load(again.save(tmp_path / "again")).predict(X), model.predict(X))
