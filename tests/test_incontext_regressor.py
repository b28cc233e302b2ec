"""The pretrained regressor: predictions, limits, and what scikit-learn expects."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import howsure as hs
from howsure.incontext import expert
from howsure.incontext.regressor import ContextHeader, InContextRegressor


def table(rows=200, columns=3, noise=0.3, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, columns))
    return x, np.sin(2 * x[:, 0]) + x[:, -1] + noise * random.normal(size=rows)


@pytest.fixture(scope="module")
def fitted():
    x, y = table()
    return InContextRegressor().fit(x[:150], y[:150])


@parametrize_with_checks([InContextRegressor()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


def test_predictions_are_much_better_than_the_mean(fitted):
    x, y = table()
    assert fitted.score(x[150:], y[150:]) > 0.8


def test_aleatoric_and_epistemic_parts_are_separated():
    found = []
    for rows in (60, 400):
        x, y = table(rows + 100, noise=0.5)
        found.append(InContextRegressor().fit(x[:rows], y[:rows]).predict_distribution(x[rows:]))
    few, many = found
    assert np.median(many.aleatoric_std) == pytest.approx(0.5, rel=0.2)
    assert np.median(many.epistemic_std) < 0.6 * np.median(few.epistemic_std)
    assert np.allclose(many.std**2, many.aleatoric_std**2 + many.epistemic_std**2)


def test_rows_do_not_depend_on_the_rows_they_come_with(fitted, monkeypatch):
    x, _ = table()
    whole = fitted.predict_distribution(x[150:])
    assert np.allclose(fitted.predict(x[160:162]), whole.mean[10:12], atol=1e-4)
    monkeypatch.setattr(expert, "ROWS_AT_ONCE", 7)
    assert np.allclose(fitted.predict_distribution(x[150:]).std, whole.std, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (2, 60), (30, 1), (40, 60)])
def test_extreme_sizes_give_finite_distributions(rows, columns):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, columns)), random.normal(size=rows)
    p = InContextRegressor().fit(x, y).predict_distribution(x)
    assert np.isfinite(p.mean).all()
    assert (p.std > 0).all()


def test_constant_target_is_predicted_almost_surely():
    x, _ = table(50)
    p = InContextRegressor().fit(x, np.full(50, 7.0)).predict_distribution(x)
    assert np.allclose(p.mean, 7)
    assert (p.std < 1e-3).all()


@pytest.mark.parametrize("shape", [(2001, 2), (50, 61)])
def test_tables_beyond_the_limits_raise(shape):
    random = np.random.default_rng(0)
    with pytest.raises(hs.InputError) as raised:
        InContextRegressor().fit(random.normal(size=shape), random.normal(size=shape[0]))
    assert "EvidentialRegressor" in raised.value.hint


def test_one_row_raises():
    with pytest.raises(ValueError, match=r"\(1, 1\)"):
        InContextRegressor().fit([[1.0]], [2.0])


def test_failed_fit_leaves_the_regressor_as_it_was(fitted):
    x, _ = table()
    before = fitted.predict(x)
    with pytest.raises(hs.InputError):
        fitted.fit(np.zeros((3, 61)) + np.arange(61), np.arange(3.0))
    assert np.array_equal(fitted.predict(x), before)


def test_targets_are_predicted_one_by_one(fitted):
    x, y = table()
    both = InContextRegressor().fit(x[:150], np.c_[y[:150], -1e6 * y[:150]]).predict_distribution(x[150:])
    alone = fitted.predict_distribution(x[150:])
    assert both.shape == (50, 2)
    assert np.allclose(both.mean[:, 0], alone.mean, atol=1e-3)
    assert np.allclose(both.mean[:, 1] / -1e6, alone.mean, atol=1e-3)
    assert np.allclose(both.std[:, 1] / 1e6, alone.std, rtol=1e-3)


def test_frames_with_text_and_missing_values_are_read():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"size": random.normal(size=120), "colour": random.choice(["red", "blue", None], 120)})
    frame.loc[::7, "size"] = np.nan
    y = frame["size"].fillna(0) + 3 * (frame.colour == "red") + 0.1 * random.normal(size=120)
    p = InContextRegressor().fit(frame[:90], y[:90].rename("price")).predict_distribution(frame[90:])
    assert np.corrcoef(p.mean, y[90:])[0, 1] > 0.8
    assert list(p.index) == list(range(90, 120))


@pytest.mark.parametrize("method", [None, "scale", "conformal"])
def test_saved_model_predicts_the_same(tmp_path, fitted, method):
    x, y = table(100, seed=1)
    model = fitted if method is None else hs.calibrate(fitted, x, y, method=method)
    again = hs.load(model.save(tmp_path / "model.safetensors"))
    assert isinstance(again, InContextRegressor)
    assert np.array_equal(again.predict_interval(x), model.predict_interval(x))
    assert again.n_features_in_ == 3


def test_saved_model_keeps_names(tmp_path):
    x, y = table(40)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = InContextRegressor().fit(frame, pd.DataFrame({"first": y, "second": -y}))
    again = hs.load(model.save(tmp_path / "model.safetensors"))
    assert list(again.feature_names_in_) == ["a", "b", "c"]
    assert again.target_names_ == ["first", "second"]
    assert again.predict(frame).shape == (40, 2)


def test_model_file_with_rows_that_do_not_fit_raises(tmp_path, fitted):
    from howsure.storage import load_model, save_model

    path = fitted.save(tmp_path / "model.safetensors")
    tensors, values = load_model(path)
    header = ContextHeader(**{k: v for k, v in values.items() if k != "format"})
    save_model(path, tensors | {"x": tensors["x"][:, :2]}, header)
    with pytest.raises(hs.InputError):
        hs.load(path)


def test_other_pretrained_weights_are_reported(tmp_path, fitted, monkeypatch):
    path = fitted.save(tmp_path / "model.safetensors")
    monkeypatch.setattr("howsure.incontext.regressor._digest_of_weights", lambda: "other")
    with pytest.warns(UserWarning, match="weights"):
        hs.load(path)


def test_unfitted_regressor_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        InContextRegressor().save(tmp_path / "model.safetensors")


@pytest.mark.parametrize("use", [lambda m, x: hs.export(m, "model.onnx"), lambda m, x: m.inputs_])
def test_uses_of_trained_networks_raise(fitted, use):
    x, _ = table()
    with pytest.raises(hs.InputError) as raised:
        use(fitted, x)
    assert "EvidentialRegressor" in raised.value.hint
