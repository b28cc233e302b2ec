"""A forest as a feature: the same bits as scikit-learn's, whatever the units, and files are not trusted."""

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from howsure.tables.experts.forest import Forest, trees_for
from safetensors.torch import load, save
from threadpoolctl import threadpool_info

from howsure.errors import HowsureError, InputError
from howsure.tables.experts import forest as module
from howsure.tables.experts.trees import Trees
from howsure.threads import in_threads


def table(rows, columns=4, targets=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * rng.normal(size=(rows, targets))
    return x, y / 8


def grow(x, y, weights=None, trees=5, seed=0):
    return Forest.grow(x, y, weights, [np.arange(x.shape[1])] * y.shape[1], trees, np.random.default_rng(seed))


@pytest.fixture
def models(monkeypatch):
    """A list that scikit-learn's models are appended to as they are fitted."""
    kept = []
    fit = module._fit_model

    def keep(*arguments):
        kept.append(fit(*arguments))
        return kept[-1]

    monkeypatch.setattr(module, "_fit_model", keep)
    return kept


@pytest.fixture(scope="module")
def fitted():
    return grow(*table(150, targets=2))


# The same bits as scikit-learn's --------------------------------------------------------------------------------------


def odd_values(x, rng):
    x = x.copy()
    odd = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-310, -0.0, 0.1, np.nextafter(0.1, 1), 16777217.0])
    at = rng.random(x.shape) < 0.3
    x[at] = rng.choice(odd, at.sum())
    return x


def training_tables():
    rng = np.random.default_rng(3)
    plain, y = table(300)
    return {
        "plain": (plain, y),
        "constant": (np.column_stack([np.full(300, 7.0), plain]), y),
        "missing": (np.where(rng.random(plain.shape) < 0.3, np.nan, plain), y),
        "all missing": (np.column_stack([np.full(300, np.nan), plain]), y),
        "ties": (np.round(plain), y),
        "copies": (np.repeat(plain[:100], 3, axis=0), y),
        "odd": (odd_values(plain, rng), y),
        "constant y": (plain, np.full((300, 1), 0.7)),
        "many targets": table(300, targets=3),
        "one column": (plain[:, :1], y),
        "two rows": (plain[:2], y[:2]),
        "one row": (plain[:1], y[:1]),
    }


@pytest.mark.parametrize("name", list(training_tables()))
def test_trees_predict_what_scikit_learn_does(name, models):
    x, y = training_tables()[name]
    forest = grow(x, y)
    rng = np.random.default_rng(1)
    around = x[rng.integers(len(x), size=600)]
    for new in (around, around + 0.1 * rng.normal(size=around.shape), odd_values(around, rng)):
        for target, model in enumerate(models):
            z = module.in_units(new, forest.centre[target], forest.shift[target])
            leaves = [tree.predict(z).astype(np.float32) for tree in model.estimators_]
            mean = sum(leaf.astype(np.float64) for leaf in leaves) / len(leaves)
            expected = np.ldexp(mean, forest.exponent[target]) + forest.baseline[target]
            for rows in (1, 2, 600):  # all trees at once, or one after the other
                assert (forest.predict(new[:rows])[:, target] == expected[:rows]).all()
            assert np.allclose(mean, model.predict(z), rtol=1e-6, atol=1e-6)


def test_values_at_and_next_to_thresholds_go_the_same_way(models):
    x, y = table(200)
    forest = grow(x[:, :1], y, trees=1)
    tree = models[0].estimators_[0]
    threshold = tree.tree_.threshold[tree.tree_.feature >= 0].astype(np.float32)
    for toward in (-np.inf, 0, np.inf):
        z = np.nextafter(threshold, np.float32(toward))[:, None] if toward else threshold[:, None]
        read = module._values(forest._steps, forest.number, z, np.zeros(1, dtype=np.int64))[0]
        assert (read == tree.predict(z).astype(np.float32)).all()


def test_each_row_has_a_leaf_of_its_own():
    x, y = table(200)
    assert np.allclose(grow(x, y).predict(x), y, rtol=0, atol=1e-6 * np.std(y))


@pytest.mark.parametrize(
    ("move", "factor"),
    [(0, 2.0**900), (0, 2.0**-1000), (0, 2.0**-1060), (2.0**30, 1), (-(2.0**40), 2.0**-10)],
)
def test_units_of_columns_do_not_matter(move, factor):
    x, y = table(200)
    x = np.round(x * 1024) / 1024  # so that moving and scaling lose no digit
    new = np.round(table(200, seed=1)[0] * 1024) / 1024
    plain, other = grow(x, y), grow((x + move) * factor, y)
    assert (other.predict((new + move) * factor) == plain.predict(new)).all()


@pytest.mark.parametrize(("move", "factor"), [(2.0**30, 1), (0, 2.0**-500), (0, 1e-9)])
def test_units_of_targets_do_not_matter(move, factor):
    x, y = table(200)
    y = np.round(y * 2**16) / 2**16
    new, _ = table(200, seed=1)
    expected, found = grow(x, y).predict(new), grow(x, (y + move) * factor).predict(new) / factor - move
    # y is rounded otherwise, which decides between splits that are equally good: some rows have another leaf
    assert np.std(found - expected) < 0.3 * np.std(expected)


def test_scaled_targets_scale_predictions(fitted):
    x, _ = table(50, seed=1)
    assert (fitted.scaled(np.array([3, -1000])).predict(x) == fitted.predict(x) * [8, 2.0**-1000]).all()


def test_outliers_do_not_hide_the_other_values():
    x, y = table(400)
    x[::40, 0] = [1e300, -1e300, np.inf, 1e200, -1e12, 1e9, 3e30, -1e100, -np.inf, 1e299]
    new, target = table(400, seed=1)
    residual = target - grow(x, y, trees=20).predict(new)
    assert np.var(residual) < 0.6 * np.var(target)
    x[np.random.default_rng(2).random(x.shape) < 0.05] = -999.0  # a code that people use for missing values
    residual = target - grow(x, y, trees=20).predict(new)
    assert np.var(residual) < 0.7 * np.var(target)


def test_missing_values_count_as_the_median():
    x, y = table(201)
    at = np.random.default_rng(2).random(x.shape) < 0.3
    forest = grow(np.where(at, np.nan, x), y)
    new = np.where(at, np.nan, x)
    assert (forest.predict(new) == forest.predict(np.where(at, forest.centre[0], x))).all()


def test_a_column_with_few_other_values_is_seen():
    rng = np.random.default_rng(0)
    x = np.zeros((400, 1))
    x[::20] = 1e-9  # between quantiles there is nothing
    y = (x > 0) * 1.0 + 0.01 * rng.normal(size=(400, 1))
    assert np.allclose(grow(x, y).predict(np.array([[0.0], [1e-9]])), [[0.0], [1.0]], atol=0.02)


def test_weights_decide_where_rows_share_a_leaf():
    x = np.repeat([[0.0], [1.0]], 200, axis=0)
    y = np.tile([[0.0], [1.0]], (200, 1))
    weights = np.where(y[:, 0] == 1, 1.8, 0.2)
    assert np.allclose(grow(x, y, weights).predict(x[::200]), 0.9, rtol=1e-6)
    assert np.isfinite(grow(*table(100), np.geomspace(1e-320, 10, 100)).predict(x[:5] @ np.ones((1, 4)))).all()


def test_of_many_columns_a_third_is_tried(models):
    grow(*table(30, 100))
    grow(*table(30, 12))
    assert [model.max_features for model in models] == [33, 12]


def test_large_tables_have_fewer_trees():
    assert [trees_for(rows) for rows in (1, 1000, 30_000, 50_000)] == [32, 32, 20, 12]


def test_memory_does_not_grow_with_the_rows(fitted):
    x = np.tile(table(60)[0], (1000, 1))
    tracemalloc.start()
    fitted.predict(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # the leaves of all rows and trees would be 5 MB, and steps need several such arrays


def test_threads_predict_the_same_and_fitting_leaves_pools_as_they_were(fitted):
    pools = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    x, y = table(200, targets=2, seed=8)
    expected = fitted.predict(x)
    assert all((out == expected).all() for out in in_threads(lambda _: fitted.predict(x), range(4), 4))
    alone = grow(x, y).predict(x)
    assert all((out.predict(x) == alone).all() for out in in_threads(lambda _: grow(x, y), range(2), 2))
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()] == pools


def test_another_order_of_scikit_learns_nodes_is_refused(monkeypatch):
    from sklearn.ensemble import ExtraTreesRegressor

    def best_first(x, y, weights, trees, seed):
        return ExtraTreesRegressor(trees, max_leaf_nodes=50, random_state=seed).fit(x, y)

    monkeypatch.setattr(module, "_fit_model", best_first)
    with pytest.raises(HowsureError):
        grow(*table(200))


# Out of fold ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [2, 3, 8])
def test_a_forest_learns_from_other_folds_and_the_last_from_all(folds, monkeypatch):
    learned = []
    original = Forest.grow.__func__

    def spy(cls, x, *arguments):
        learned.append(set(x[:, 0]))
        return original(cls, x, *arguments)

    monkeypatch.setattr(Forest, "grow", classmethod(spy))
    x, y = table(80)
    weights = np.where(np.arange(80) < 5, 0.0, 1.0)
    trees, out = Trees.fit(x, y, 0, folds=folds, weights=weights)
    assert learned[0] == set(x[5:, 0])
    assert len(learned) == 1 + min(folds, 4)
    assert all(sum(value in rows for rows in learned[1:]) == len(learned) - 2 for value in x[5:, 0])
    assert (out[:5] == trees.predict(x[:5])).all()
    assert (out[5:, 1] != trees.predict(x[5:])[:, 1]).all()


def test_a_forest_learns_from_at_most_so_many_rows(models, monkeypatch):
    monkeypatch.setattr("howsure.tables.experts.trees.MOST_ROWS", 30)
    Trees.fit(*table(100), 0, folds=2)
    assert all(tree.tree_.n_node_samples[0] == 30 for model in models for tree in model.estimators_)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 150])
def test_a_file_brings_the_same_forest_back(rows):
    x, y = table(rows, targets=2)
    forest = grow(x, y)
    loaded = Forest.from_tensors(load(save(forest.tensors())), 4, 2)
    new, _ = table(100, seed=1)
    assert (loaded.predict(new) == forest.predict(new)).all()
    assert (pickle.loads(pickle.dumps(forest)).predict(new) == forest.predict(new)).all()


def test_a_file_has_ten_bytes_a_leaf():
    forest = grow(*table(1000))
    assert sum(t.numel() * t.element_size() for t in forest.tensors().values()) < 10 * 5 * 1000 + 200


def test_tensors_are_copies(fitted):
    x, _ = table(5)
    expected = fitted.predict(x)
    tensors = fitted.tensors()
    loaded = Forest.from_tensors(tensors, 4, 2)
    for tensor in tensors.values():
        tensor.zero_()
    assert (fitted.predict(x) == expected).all()
    assert (loaded.predict(x) == expected).all()


def replaced(name, value):
    def change(tensors):
        tensors[name] = value(tensors[name]) if callable(value) else value

    return change


def at_one_place(name, value, place=-1):
    def change(tensors):
        tensors[name].view(-1)[place] = value

    return change


def chain(tensors):
    """Replace the trees by ones that are as deep as they have leaves."""
    trees, leaves = tensors["leaves"].numel(), 100
    nodes = torch.tensor([0, -1] * (leaves - 1) + [-1], dtype=torch.int8)
    tensors["leaves"].fill_(leaves)
    tensors["feature"] = nodes.repeat(trees)
    tensors["number"] = torch.zeros(len(tensors["feature"]))


def swap_trees(tensors):
    """Let the first tree end before its leaves are complete, and the second have the rest."""
    tensors["leaves"].view(-1)[0] -= 1
    tensors["leaves"].view(-1)[1] += 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("number"), "tensors"),
        (lambda tensors: tensors.clear(), "tensors"),
        (replaced("more", torch.zeros(1)), "tensors"),
        (replaced("number", None), "number"),
        (replaced("number", torch.Tensor.double), "torch.float32"),
        (replaced("feature", torch.Tensor.int), "torch.int8"),
        (replaced("columns", lambda t: t[:1]), "columns"),
        (replaced("columns", lambda t: t[:, :0]), "columns"),
        (replaced("columns", lambda t: torch.cat([t] * 40, dim=1)), "columns"),
        (replaced("centre", lambda t: t[:, :1]), "centre"),
        (replaced("shift", torch.Tensor.flatten), "shift"),
        (replaced("baseline", lambda t: t[:1]), "baseline"),
        (replaced("exponent", lambda t: t[:1]), "exponent"),
        (replaced("leaves", lambda t: t[:, :0]), "leaves"),
        (replaced("leaves", torch.Tensor.flatten), "leaves"),
        (replaced("leaves", lambda t: torch.cat([t] * 9, dim=1)), "leaves"),
        (replaced("leaves", torch.zeros_like), "leaves"),
        (at_one_place("leaves", -5), "leaves"),
        (at_one_place("leaves", 2**31 - 1), "than"),
        (at_one_place("leaves", 2**19), "feature"),
        (replaced("feature", lambda t: t[:-2]), "feature"),
        (replaced("number", lambda t: t[:-2]), "number"),
        (at_one_place("columns", 4), "columns"),
        (at_one_place("columns", -1), "columns"),
        (at_one_place("feature", 4, 0), "columns"),
        (at_one_place("feature", -2), "columns"),
        (at_one_place("feature", -1, 0), "trees"),
        (at_one_place("feature", 0), "trees"),
        (replaced("feature", torch.zeros_like), "trees"),
        (replaced("feature", lambda t: torch.full_like(t, -1)), "trees"),
        (swap_trees, "trees"),
        (chain, "64"),
        (at_one_place("centre", float("nan")), "centres"),
        (at_one_place("centre", float("inf")), "centres"),
        (at_one_place("shift", 2**31 - 1), "powers"),
        (at_one_place("exponent", -(2**31)), "powers"),
        (at_one_place("exponent", 1024), "large"),
        (at_one_place("number", float("nan")), "NaN"),
        (at_one_place("number", float("-inf"), 0), "NaN"),
        (at_one_place("baseline", float("nan")), "NaN"),
        (at_one_place("baseline", float("inf")), "NaN"),
    ],
)
def test_a_forged_file_is_refused(fitted, change, message):
    tensors = fitted.tensors()
    change(tensors)
    with pytest.raises(InputError, match=message):
        Forest.from_tensors(tensors, 4, 2)


def test_a_file_for_other_columns_or_targets_is_refused(fitted):
    with pytest.raises(InputError):
        Forest.from_tensors(fitted.tensors(), 2, 2)
    with pytest.raises(InputError):
        Forest.from_tensors(fitted.tensors(), 4, 1)


def test_a_damaged_file_is_refused_or_answers_with_finite_numbers(fitted):
    rng = np.random.default_rng(0)
    x = odd_values(table(300, seed=2)[0], rng)
    answered = 0
    for _ in range(100):
        tensors = fitted.tensors()
        raw = tensors[rng.choice(sorted(tensors))].numpy().reshape(-1).view(np.uint8)
        raw[rng.integers(len(raw), size=2)] = rng.integers(256, size=2)
        try:
            loaded = Forest.from_tensors(tensors, 4, 2)
        except InputError:
            continue
        answered += 1
        assert np.isfinite(loaded.predict(x)).all()
        assert np.isfinite(loaded.predict(x[:3])).all()
    assert 0 < answered < 100
