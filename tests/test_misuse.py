"""Arguments that nobody should pass: one clear error each, never a result that differs in silence."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import howsure as hs
from howsure.errors import InputError
from howsure.likelihoods import Recipe
from howsure.tables.evidence import short_recipe

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((80, 3))
Y = X[:, 0] + 0.1 * RANDOM.standard_normal(80)


def regressor(**given):
    return hs.EvidentialRegressor(**({"members": 1, "steps": 10, "random_state": 0, "device": "cpu"} | given))


ODD = (np.array([1, 2]), np.array([0.1, 0.2]), object(), -1, 10**30, b"3", {})


@pytest.mark.parametrize("name", list(hs.EvidentialRegressor().get_params()))
@pytest.mark.parametrize("value", ODD, ids=[f"{type(v).__name__}{k}" for k, v in enumerate(ODD)])
def test_odd_parameter_fits_or_raises_with_its_name(name, value):
    error = None
    try:
        regressor(**{name: value}).fit(X, Y)
    except InputError as raised:
        error = raised
    assert error is None or name in str(error)
    assert error is not None or name in ("hidden", "verbose", "device", "evidence_weight")


@pytest.mark.parametrize("hidden", [b"3", "33", np.array(3.0), [[3]], {3}, (3.5,), (3, "a"), -1])
def test_odd_hidden_layers_raise(hidden):
    with pytest.raises(InputError):
        regressor(hidden=hidden).fit(X, Y)


@pytest.mark.parametrize("device", [10**30, -1, 1.5, None, "tpu", "cuda:99999999999999"])
def test_odd_device_raises(device):
    with pytest.raises(InputError):
        regressor(device=device).fit(X, Y)


@pytest.mark.parametrize("dim", ["x", 1.0, None, True, 5])
def test_odd_dimension_of_a_mixture_raises(dim):
    with pytest.raises(InputError):
        hs.Mixture(hs.Normal(torch.zeros(3, 2), torch.ones(3, 2)), dim=dim)


@pytest.mark.parametrize("factor", [1e-300, 1e100, 3e306])
def test_only_ratios_of_sample_weights_count(factor):
    weights = np.where(np.arange(80) < 40, 1.0, 0.25)
    expected = regressor().fit(X, Y, sample_weight=weights).predict(X)
    found = regressor().fit(X, Y, sample_weight=factor * weights).predict(X)
    assert np.allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1e60, 1e154, 1e160, 1.7e308])
def test_huge_features_give_finite_predictions_far_from_training(size):
    model = regressor(members=2).fit(X, Y)
    p = model.predict_distribution([[size, 0, 0], [0, 0, 0]])
    for values in (p.mean, p.std, p.interval(0.9)):
        assert np.isfinite(values).all()
    assert p.familiarity[0] < 0.5 * p.familiarity[1]
    table = X.copy()
    table[5, 1] = size
    found = regressor().fit(table, Y).predict_distribution(X)
    assert np.isfinite(found.std).all()
    assert np.corrcoef(found.mean, Y)[0, 1] > 0.5


@pytest.mark.parametrize("names", [["a", "a", "b"], [1, "1", "b"]])
def test_two_columns_of_one_name_raise(names):
    with pytest.raises(InputError):
        regressor().fit(pd.DataFrame(X, columns=names), Y)


def test_columns_in_another_order_are_taken_by_name():
    frame = pd.DataFrame(X, columns=list("abc"))
    model = regressor().fit(frame, Y)
    expected = model.predict(frame)
    for table in (frame[list("cab")], pl.DataFrame(frame[list("bca")])):
        assert np.array_equal(model.predict(table), expected)
    for wrong in (frame[["a", "b"]], frame.assign(d=1.0)):
        with pytest.raises(ValueError, match="eature names"):
            model.predict(wrong)


def test_two_targets_of_one_name_raise():
    with pytest.raises(InputError) as caught:
        regressor().fit(X, pd.DataFrame(np.c_[Y, Y], columns=["u", "u"]))
    assert caught.value.column == "u"


@pytest.mark.parametrize("y", [{"a": 1}, 3.0, {1, 2}, iter([1.0])])
def test_target_that_is_no_list_raises(y):
    with pytest.raises(hs.InputTypeError) as caught:
        regressor().fit(X, y)
    assert type(y).__name__ in str(caught.value)


@pytest.mark.parametrize("weights", [["a"] * 80, "balanced", np.ones(80) + 1j, [None] * 40 + ["1 kg"] * 40])
def test_weights_that_are_not_numbers_raise_with_their_name(weights):
    with pytest.raises(hs.InputTypeError, match="sample_weight"):
        regressor().fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("key", ["a", b"a", 1.5, {}])
def test_predictions_are_indexed_by_positions(key):
    p = regressor().fit(X, Y).predict_distribution(X)
    with pytest.raises(hs.InputTypeError):
        p[key]


def test_whole_numbers_beyond_float64_warn():
    whole = 2**60 + np.arange(80)
    frame = pd.DataFrame({"id7": whole, "x": X[:, 0]})
    with pytest.warns(UserWarning, match="'id7'"):
        regressor().fit(frame, Y)
    with pytest.warns(UserWarning, match="'x0'"):
        regressor().fit(whole[:, None], Y)
    with pytest.warns(UserWarning, match=r"y: .* 2\*\*53"):
        regressor().fit(X, whole)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r".* 2\*\*53")
        regressor().fit(frame.assign(id7=2**60 + 1024 * np.arange(80)), Y)


def test_targets_at_the_resolution_of_float64_are_a_continuum():
    y = 1e15 + Y  # numbers of this size have steps of 1/8
    p = regressor().fit(X, y).predict_distribution(X)
    assert np.abs(p.mean - y).max() < 5
    assert (p.std < 5).all()


@pytest.mark.parametrize("loader", [None, 3, object()])
def test_loader_without_batches_raises(loader):
    with pytest.raises(hs.InputTypeError) as caught:
        hs.attach(torch.nn.Linear(3, 1), loader)
    assert type(loader).__name__ in str(caught.value)


def test_optimised_python_scores_a_model(tmp_path):
    """``python -OO`` has neither docstrings nor assertions."""
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=Y)
    frame.to_csv(tmp_path / "t.csv", index=False)
    regressor().fit(frame[list("abc")], frame[["y"]]).save(tmp_path / "m")
    for verb in (["evaluate"], ["report", "-o", str(tmp_path / "r.html")]):
        command = [sys.executable, "-OO", "-m", "howsure.cli", *verb, str(tmp_path / "m"), str(tmp_path / "t.csv")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("steps", [1, 30, 6000, 30_000, 10**8])
def test_short_recipe_of_any_number_of_steps_has_a_warmup(steps):
    short = short_recipe(Recipe.for_rows(108).with_steps(steps)).settings
    assert short.steps <= steps
    assert 0 <= short.warmup < 1


def test_gaps_that_no_training_row_had_warn_with_the_columns():
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"a": g.normal(size=60), "b": g.normal(size=60), "c": g.choice(["x", "y"], 60)})
    frame.loc[5, "b"] = np.nan
    model = hs.EvidentialRegressor(members=1, steps=20, random_state=0).fit(frame, g.normal(size=60))
    new = frame.copy()
    model.predict(new)  # a gap in b is nothing new
    new.loc[3, "a"], new.loc[4, "c"] = np.nan, None
    with pytest.warns(UserWarning, match="'a', 'c'") as caught:
        model.predict_distribution(new)
    assert caught[0].filename == __file__
