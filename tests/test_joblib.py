"""Folds and searches of scikit-learn over our regressors, in processes and threads of joblib."""

import pickle

import joblib
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multioutput import MultiOutputRegressor

import howsure as hs

pytestmark = pytest.mark.extras  # half a minute of processes that start


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    return x, x[:, 0] + 0.1 * rng.normal(size=60)


def small(**options):
    return hs.EvidentialRegressor(members=2, steps=20, random_state=0, device="cpu", **options)


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_folds_give_the_same_scores_wherever_they_run(rows, backend):
    alone = cross_val_score(small(), *rows, cv=3, scoring=hs.scorers.nll)
    with joblib.parallel_config(backend, n_jobs=2):
        together = cross_val_score(small(), *rows, cv=3, scoring=hs.scorers.nll)
    assert np.array_equal(alone, together)
    assert len(set(alone)) == 3


def test_search_in_processes_equals_search_in_one(rows):
    grid = {"learning_rate": [1e-6, 1e-2]}
    alone = GridSearchCV(small(), grid, cv=2, scoring=hs.scorers.crps).fit(*rows)
    with joblib.parallel_config("loky", n_jobs=2):
        together = GridSearchCV(small(), grid, cv=2, scoring=hs.scorers.crps).fit(*rows)
    assert np.array_equal(alone.cv_results_["mean_test_score"], together.cv_results_["mean_test_score"])
    assert together.best_params_ == {"learning_rate": 1e-2}  # the other one has learned nothing
    assert np.array_equal(alone.predict(rows[0]), together.predict(rows[0]))


def test_predictions_out_of_fold_and_several_targets(rows):
    x, y = rows
    alone = cross_val_predict(small(), x, y, cv=3)
    both = np.column_stack([y, -y])
    separate = MultiOutputRegressor(small()).fit(x, both).predict(x)
    with joblib.parallel_config("loky", n_jobs=2):
        assert np.array_equal(cross_val_predict(small(), x, y, cv=3), alone)
        assert np.array_equal(MultiOutputRegressor(small()).fit(x, both).predict(x), separate)


def test_error_in_a_process_names_the_problem(rows):
    x, y = rows
    with (
        joblib.parallel_config("loky", n_jobs=2),
        pytest.raises(hs.InputError, match="members"),
    ):
        cross_val_score(hs.EvidentialRegressor(members=-1), x, y, cv=2, error_score="raise")


def test_fitted_model_travels_between_processes(rows):
    model = small().fit(*rows)
    copy = pickle.loads(pickle.dumps(model))
    work = joblib.delayed(copy.predict)
    found = joblib.Parallel(n_jobs=2, backend="loky")(work(part) for part in (rows[0][:30], rows[0][30:]))
    assert np.allclose(np.concatenate(found), model.predict(rows[0]), rtol=1e-12, atol=1e-12)
