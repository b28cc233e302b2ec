import sys

import numpy as np
import pytest

import howsure as hs
from howsure.likelihoods import Evidential, Network, NormalLikelihood, Recipe
from howsure.tables.members import hold_out
from howsure.training import Settings
from howsure_paper.search import folds_of, one_standard_error, search
from howsure_paper.training import fit

QUICK = Recipe(Network((16,)), Settings(steps=200, learning_rate=1e-2, evaluate_every=50), 32)


def data(n=120, seed=0):
    g = np.random.default_rng(seed)
    x = g.standard_normal((n, 3))
    return x, 2 * x[:, 0] - x[:, 1] ** 2 + 0.3 * g.standard_normal(n)


def test_rule_takes_the_first_that_ties():
    best = np.array([0.0, 0.2, 0.1, 0.3])
    near = best + np.array([0.1, -0.1, 0.05, 0.01])  # mean 0.015, standard error 0.04
    far = best + np.array([0.2, 0.25, 0.2, 0.22])
    assert one_standard_error(np.stack([far, near, best])) == 1
    assert one_standard_error(np.stack([near, best, far])) == 0
    assert one_standard_error(np.stack([far, best, near])) == 1
    # what makes a fold hard for all does not widen a tie
    assert one_standard_error(np.stack([far, near, best]) + np.array([0, 5, 10, 20])) == 1


def test_diverged_candidate_is_never_chosen():
    scores = np.array([[np.inf, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert one_standard_error(scores) == 1
    with pytest.raises(hs.InputError):
        one_standard_error(np.full((2, 3), np.inf))


def test_folds_part_the_rows():
    rows = np.arange(10, 33)
    parts = folds_of(rows, 5, seed=1)
    assert sorted(np.concatenate(parts)) == list(rows)
    assert {len(p) for p in parts} == {4, 5}
    with pytest.raises(hs.InputError, match=r"\b4\b.*\b5\b"):
        folds_of(np.arange(4), 5, seed=0)


def test_scores_are_those_of_networks_fitted_one_by_one():
    x, y = data()
    rows = np.arange(100)
    found = search(Evidential(), x, y, [rows], candidates=(0.0, 1.0), folds=3, seed=7, recipe=QUICK)[0]
    assert found.scores.shape == (2, 3)
    assert found.chosen in (0.0, 1.0)
    parts = folds_of(rows, 3, 7)
    rest = np.concatenate([parts[0], parts[2]])
    alone = fit(Evidential(1.0), x, y, hold_out(rest, [8]), recipe=QUICK).predict(x[parts[1]])
    assert found.scores[1, 1] == pytest.approx(hs.metrics.nll(alone, y[parts[1]]), abs=0.02)


def test_groups_are_searched_as_if_alone_and_other_rows_leave_no_trace():
    x, y = data()
    groups = [np.arange(60), np.arange(40, 100)]
    both = search(Evidential(), x, y, groups, candidates=(0.0, 0.1), folds=2, recipe=QUICK)
    changed = y.copy()
    changed[100:] = 1e9
    again = search(Evidential(), x, changed, groups, candidates=(0.0, 0.1), folds=2, recipe=QUICK)
    for a, b in zip(both, again, strict=True):
        assert np.array_equal(a.scores, b.scores)
    alone = search(Evidential(), x, y, groups[1:], candidates=(0.0, 0.1), folds=2, recipe=QUICK)[0]
    assert np.allclose(alone.scores, both[1].scores, atol=0.02)


def test_search_finds_the_clearly_better_value():
    g = np.random.default_rng(0)
    x = g.uniform(-1, 1, (200, 3))  # no row lies far from the others: its surprise would decide alone
    y = 2 * x[:, 0] - x[:, 1] ** 2 + 0.3 * g.standard_normal(200)
    found = search(Evidential(), x, y, [np.arange(200)], candidates=(100.0, 0.01), folds=4, recipe=QUICK)[0]
    assert found.chosen == 0.01


def test_rows_of_weight_zero_do_not_score():
    x, y = data()
    y[:30] = 1e3  # nonsense that no one should count
    weight = np.r_[np.zeros(30), np.ones(90)]
    found = search(
        Evidential(), x, y, [np.arange(30, 120)], candidates=(0.0, 0.1), folds=2, recipe=QUICK, sample_weight=weight
    )[0]
    assert (found.scores < 3).all()


def test_population_without_validation_rows_keeps_its_last_weights():
    x, y = data()
    fitted = fit(NormalLikelihood(), x, y, hold_out(np.arange(100), [0], share=0), recipe=QUICK)
    assert fitted.result.best_step.tolist() == [200]
    assert hs.metrics.rmse(fitted.predict(x[100:]), y[100:]) < y.std()


def test_method_without_a_number_has_nothing_to_search():
    x, y = data()
    with pytest.raises(hs.InputError, match="NormalLikelihood"):
        search(NormalLikelihood(), x, y, [np.arange(100)])


def test_search_may_take_fewer_steps(monkeypatch):
    steps = []

    def watched(*args, recipe, **kwargs):
        steps.append(recipe.settings.steps)
        return fit(*args, recipe=recipe, **kwargs)

    monkeypatch.setattr(sys.modules["howsure_paper.search"], "fit", watched)
    x, y = data()
    for effort in (1.0, 0.1):
        search(Evidential(), x, y, [np.arange(60)], folds=2, recipe=QUICK, effort=effort, device="cpu")
    assert steps == [200, 20]
