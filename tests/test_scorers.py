"""Scorers are metrics as scikit-learn calls them: of an estimator, alone, in a pipeline or in a search."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import howsure as hs
from howsure import metrics, scorers

NAMES = [name for name in scorers.__all__ if name != "Scorer"]


class Line(RegressorMixin, BaseEstimator):
    """A quick estimator whose predictive distribution is known: a normal around a line."""

    def __init__(self, std=1.0):
        self.std = std

    def fit(self, x, y):
        self.line_ = LinearRegression().fit(x, y)
        return self

    def predict(self, x):
        return self.line_.predict(x)

    def predict_distribution(self, x):
        return hs.Prediction(hs.Normal(torch.as_tensor(self.predict(x)), float(self.std)))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.standard_normal((120, 2)), columns=["a", "b"])
    return x, pd.Series(3 * x["a"].to_numpy() - x["b"].to_numpy() + 0.5 * rng.standard_normal(120), name="y")


def test_each_is_its_metric_with_the_other_sign(rows):
    x, y = rows
    model = Line(0.5).fit(x, y)
    p = model.predict_distribution(x)
    for name in NAMES:
        scorer, metric = getattr(hs.scorers, name), getattr(metrics, name)
        expected = -abs(metrics.coverage(p, y) - 0.9) if name == "coverage" else -metric(p, y)
        assert scorer(model, x, y) == expected
        assert type(scorer(model, x, y)) is float
        assert scorer(model, x, y.to_frame()) == expected
        assert name.split("_")[0] in repr(scorer)


def test_metric_of_ones_own_with_options(rows):
    x, y = rows
    model = Line(0.5).fit(x, y)
    half = scorers.Scorer(metrics.interval_score, coverage=0.5)
    assert half(model, x, y) == -metrics.interval_score(model.predict_distribution(x), y, 0.5)
    assert half != scorers.interval_score
    gain = scorers.Scorer(metrics.aurg, greater_is_better=True, error="mae")
    assert gain(model, x, y) == metrics.aurg(model.predict_distribution(x), y, error="mae")
    assert repr(gain) == "Scorer(aurg, greater_is_better=True, error='mae')"


@pytest.mark.parametrize("name", NAMES)
def test_they_are_pickled_copied_and_cloned(name):
    scorer = getattr(scorers, name)
    for same in (pickle.loads(pickle.dumps(scorer)), copy.deepcopy(scorer), clone(scorer, safe=False)):
        assert same == scorer
        assert hash(same) == hash(scorer)
        assert repr(same) == repr(scorer)


def test_cross_validation_with_one_scorer_or_several(rows):
    x, y = rows
    folds = KFold(3)
    found = cross_validate(Line(0.5), x, y, cv=folds, scoring={name: getattr(hs.scorers, name) for name in NAMES})
    alone = cross_val_score(Line(0.5), x, y, cv=folds, scoring=hs.scorers.nll)
    by_hand = []
    for train, test in folds.split(x):
        p = Line(0.5).fit(x.iloc[train], y.iloc[train]).predict_distribution(x.iloc[test])
        by_hand.append(-metrics.nll(p, y.iloc[test]))
    assert np.array_equal(alone, by_hand)
    assert np.array_equal(found["test_nll"], by_hand)
    assert all(np.isfinite(found[f"test_{name}"]).all() and (found[f"test_{name}"] <= 0).all() for name in NAMES)


def test_search_finds_the_true_noise(rows):
    x, y = rows
    for scorer in (hs.scorers.nll, hs.scorers.crps, hs.scorers.interval_score, hs.scorers.coverage):
        pipeline = make_pipeline(StandardScaler(), Line())
        search = GridSearchCV(pipeline, {"line__std": [0.05, 0.5, 5.0]}, scoring=scorer, cv=3).fit(x, y)
        assert search.best_params_ == {"line__std": 0.5}
        assert search.score(x, y) == scorer(search, x, y) == scorer(search.best_estimator_, x, y)
        assert clone(search).scoring == scorer
    several = {"nll": hs.scorers.nll, "rmse": hs.scorers.rmse}
    search = GridSearchCV(Line(), {"std": [0.05, 0.5, 5.0]}, scoring=several, refit="nll", cv=3).fit(x, y)
    assert search.best_params_ == {"std": 0.5}
    nested = cross_val_score(search, x, y, scoring=hs.scorers.nll, cv=3)
    assert np.isfinite(nested).all()


def test_pipelines_are_followed_to_their_last_step(rows):
    x, y = rows
    inner = make_pipeline(StandardScaler(), Line(0.5))
    for model in (make_pipeline(Line(0.5)), inner, Pipeline([("none", "passthrough"), ("rest", inner)])):
        model.fit(x, y)
        scaled = x if len(model) == 1 else pd.DataFrame(StandardScaler().fit_transform(x), columns=x.columns)
        direct = Line(0.5).fit(scaled, y)
        assert hs.scorers.nll(model, x, y) == pytest.approx(hs.scorers.nll(direct, scaled, y), rel=1e-12)


def test_regressor_is_scored_in_a_pipeline_and_a_search(rows):
    x, y = rows
    regressor = hs.EvidentialRegressor(members=2, steps=20, hidden=(16,), device="cpu", random_state=0)
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), regressor)
    grid = {"evidentialregressor__evidence_weight": [0.01, 1.0]}
    search = GridSearchCV(pipeline, grid, scoring=hs.scorers.crps, cv=2).fit(x, y)
    best = search.best_estimator_
    p = best[-1].predict_distribution(best[:-1].transform(x))
    assert search.score(x, y) == -metrics.crps(p, y)
    scores = cross_val_score(regressor, x, y, scoring=hs.scorers.nll, cv=2)
    assert np.isfinite(scores).all()


def test_estimator_without_a_distribution_raises(rows):
    x, y = rows
    for model in (LinearRegression(), make_pipeline(StandardScaler(), LinearRegression())):
        with pytest.raises(hs.InputTypeError, match=type(model).__name__):
            hs.scorers.nll(model.fit(x, y), x, y)
    transformed = TransformedTargetRegressor(Line(), func=np.arcsinh, inverse_func=np.sinh).fit(x, y)
    with pytest.raises(hs.InputTypeError, match="target_transform="):
        hs.scorers.nll(transformed, x, y)


def test_metrics_and_scorers_come_with_the_package_and_cost_nothing_before():
    code = """
import sys
import howsure as hs
before = {"howsure.metrics", "howsure.scorers", "sklearn", "pandas"} & set(sys.modules)
hs.metrics.nll, hs.scorers.nll
from howsure.scorers import crps
print(sorted(before), "sklearn" in sys.modules, crps is hs.scorers.crps, {"metrics", "scorers"} <= set(dir(hs)))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[] False True True", "")
