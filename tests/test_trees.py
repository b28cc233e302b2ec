"""Trees as features: the same bits as scikit-learn's, no row sees its own target."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from threadpoolctl import threadpool_info

from howsure.errors import HowsureError, InputError
from howsure.tables.experts import trees as module
from howsure.tables.experts.trees import TreeEnsemble, fit_trees, trees_for
from howsure.threads import in_threads


def table(rows, columns=4, targets=1, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + noise * rng.normal(size=(rows, targets))
    return x, y


def predict(trees, x):
    return trees(torch.from_numpy(np.asarray(x, dtype=float))).numpy()


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    """Twenty boosted trees a model instead of a hundred, and six in a forest, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BOOSTED_TREES", 20)
        patch.setattr(module, "MAX_FOREST_TREES", 6)
        patch.setattr(module, "MIN_FOREST_TREES", 4)
        yield


@pytest.fixture
def models(monkeypatch):
    """Lists that scikit-learn's models are appended to as they are fitted, by kind."""
    kept = {"boosted": [], "forest": []}
    for kind in kept:
        fit = getattr(module, f"_fit_{kind}_target")

        def keep(x, *arguments, fit=fit, kind=kind):
            kept[kind].append(fit(x, *arguments))
            kept[kind][-1].seen = x
            return kept[kind][-1]

        monkeypatch.setattr(module, f"_fit_{kind}_target", keep)
    return kept


@pytest.fixture(scope="module")
def fitted():
    return fit_trees(*table(300, targets=2), 0, folds=3)[0]


# The same bits as scikit-learn's --------------------------------------------------------------------------------------


def odd_values(x, rng):
    """Return x with each kind of value that could be compared wrongly, in rows of their own and mixed."""
    x = x.copy()
    odd = np.array([np.inf, -np.inf, 1e300, -1e300, 1e-310, -0.0, 0.1, np.nextafter(0.1, 1), 16777217.0])
    at = rng.random(x.shape) < 0.3
    x[at] = rng.choice(odd, at.sum())
    return x


def training_tables():
    rng = np.random.default_rng(3)
    plain, y = table(400)
    return {
        "plain": (plain, y),
        "constant column": (np.column_stack([np.full(400, 7.0), plain]), y),
        "steps": (16777216.0 + np.round(plain * 3), y),  # neighbours that float32 does not tell apart
        "ties": (np.round(plain), y),
        "copies": (np.repeat(plain[:100], 4, axis=0), y),
        "odd": (odd_values(plain, rng), y),
        "tiny x": (plain * 1e-290, y),
        "constant y": (plain, np.full((400, 1), 3.7)),
        "many targets": table(400, targets=3),
        "one column": (plain[:, :1], y),
    }


def use_thresholds(ensemble, models):
    """Give the thresholds of an ensemble to the models of scikit-learn that it was read from."""
    numbers, first = ensemble.number.numpy(), 0
    for model in models:
        for (tree,) in model._predictors:
            nodes = tree.nodes
            own = numbers[first : first + len(nodes)]
            nodes["num_threshold"] = np.where(nodes["is_leaf"] == 1, nodes["num_threshold"], own)
            first += len(nodes)


@pytest.mark.parametrize("name", ["plain", "ties", "copies", "many targets"])
def test_thresholds_lie_strictly_between_values_of_rows(name):
    x, y = training_tables()[name]
    trees = fit_trees(x, y, 0, folds=2)[0].boosted
    split = trees.feature.numpy() >= 0
    for column in range(x.shape[1]):
        here = split & (trees.feature.numpy() == column)
        assert not np.isin(trees.number.numpy()[here], x[:, column]).any()


@pytest.mark.parametrize("name", list(training_tables()))
def test_boosted_trees_predict_the_same_bits_as_scikit_learn(name, models):
    x, y = training_tables()[name]
    trees, _ = fit_trees(x, y, 0, folds=2)
    exponent = np.frexp(np.abs(y).max(axis=0))[1]
    rng = np.random.default_rng(1)
    around = x[rng.integers(len(x), size=300)]
    for target, model in enumerate(models["boosted"][: y.shape[1]]):  # rows of the training go where they went
        expected = np.ldexp(model.predict(np.clip(around, -1e300, 1e300)), exponent[target])
        assert (predict(trees.boosted, around)[:, target] == expected).all()
    use_thresholds(trees.boosted, models["boosted"][: y.shape[1]])
    at = trees.boosted.number.numpy()[rng.integers(len(trees.boosted.number), size=around.shape)]
    for new in (around, odd_values(around, rng), at, np.nextafter(at, np.inf)):
        for target, model in enumerate(models["boosted"][: y.shape[1]]):  # those of all rows are fitted first
            expected = np.ldexp(model.predict(np.clip(new, -1e300, 1e300)), exponent[target])
            for rows in (1, 2, 300):
                assert (predict(trees.boosted, new[:rows])[:, target] == expected[:rows]).all()


@pytest.mark.parametrize("name", list(training_tables()))
def test_forest_predictions_equal_scikit_learn(name, models):
    x, y = training_tables()[name]
    forest = fit_trees(x, y, 0, folds=2)[0].forest
    rng = np.random.default_rng(1)
    around = x[rng.integers(len(x), size=300)]
    for new in (around, around * (1 + 0.1 * rng.normal(size=around.shape)), odd_values(around, rng)):
        units = forest.units(torch.from_numpy(new)).numpy().reshape(len(new), y.shape[1], -1)
        for target, model in enumerate(models["forest"][: y.shape[1]]):
            leaves = [tree.predict(units[:, target]).astype(np.float32) for tree in model.estimators_]
            mean = sum(leaf.astype(np.float64) for leaf in leaves) / len(leaves)
            expected = mean * forest.factor[target].item() + forest.offset[target].item()
            for rows in (1, 300):
                assert (predict(forest, new[:rows])[:, target] == expected[:rows]).all()


def test_each_row_has_a_leaf_of_its_own():
    x, y = table(200)
    forest = fit_trees(x, y, 0, folds=2)[0].forest
    assert np.allclose(predict(forest, x), y, rtol=0, atol=1e-6 * np.std(y))


@pytest.mark.parametrize("factor", [2.0**900, 2.0**-900])
def test_units_of_columns_do_not_matter_to_a_forest(factor):
    x, y = table(200)
    new, _ = table(200, seed=1)
    plain, other = fit_trees(x, y, 0, folds=2)[0], fit_trees(x * factor, y, 0, folds=2)[0]
    assert (predict(other.forest, new * factor) == predict(plain.forest, new)).all()


def test_outliers_do_not_hide_the_other_values_from_a_forest():
    x, y = table(400)
    x[::40, 0] = [1e300, -1e300, 1e299, 1e200, -1e12, 1e9, 3e30, -1e100, -1e299, 1e299]
    new, target = table(400, seed=1)
    residual = target - predict(fit_trees(x, y, 0, folds=2)[0].forest, new)
    assert np.var(residual) < 0.7 * np.var(target)


def test_few_distinct_values_are_seen_by_a_forest():
    rng = np.random.default_rng(0)
    x = np.zeros((400, 1))
    x[::20] = 1e-9  # between quantiles there is nothing
    y = (x > 0) * 1.0 + 0.01 * rng.normal(size=(400, 1))
    forest = fit_trees(x, y, 0, folds=2)[0].forest
    assert np.allclose(predict(forest, np.array([[0.0], [1e-9]])), [[0.0], [1.0]], atol=0.02)


@pytest.mark.parametrize("rows", [1, 1000, 30_000, 50_000])
def test_large_tables_have_fewer_trees(rows, monkeypatch):
    monkeypatch.setattr(module, "MAX_FOREST_TREES", 32)
    monkeypatch.setattr(module, "MIN_FOREST_TREES", 12)
    assert trees_for(rows) == {1: 32, 1000: 32, 30_000: 20, 50_000: 12}[rows]


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e299])
def test_targets_of_any_size_are_learned_alike(scale):
    x, y = table(120)
    y /= np.abs(y).max()
    factor = 2.0 ** np.round(np.log2(scale))
    small, near = fit_trees(x, y * factor, 0, folds=2)
    plain, expected = fit_trees(x, y, 0, folds=2)
    assert np.isfinite(near).all()
    assert (near == expected * factor).all()
    assert (predict(small, x) == predict(plain, x) * factor).all()


@pytest.mark.parametrize("rows", [2, 3, 5, 19, 40])
def test_few_rows_have_fewer_folds(rows, models):
    x, y = table(rows, targets=2)
    trees, out_of_fold = fit_trees(x, y, 0)
    assert len(models["boosted"]) // 2 - 1 == max(2, min(8, rows // 2))
    assert out_of_fold.shape == (rows, 4)
    if rows <= 19:  # scikit-learn wants 20 rows in a leaf
        assert bool((trees.boosted.leaves == 1).all())


def test_one_row_is_predicted_as_among_many(fitted):
    x, _ = table(700, seed=5)
    many = predict(fitted, x)
    assert (many[:3] == [predict(fitted, x[k : k + 1])[0] for k in range(3)]).all()
    assert (many[300:450] == predict(fitted, x[300:450])).all()
    assert predict(fitted, x[:0]).shape == (0, 4)


def test_each_column_predicts_its_target():
    x, _ = table(400, seed=3)
    y = np.column_stack([x[:, 0], 100 + 10 * x[:, 1]])
    trees, out = fit_trees(x, y, 0, folds=4)
    assert trees.outputs == out.shape[1] == 4
    new, _ = table(400, seed=4)
    for features, expected in ((out, y), (predict(trees, new), np.column_stack([new[:, 0], 100 + 10 * new[:, 1]]))):
        for column in range(4):
            assert np.std(features[:, column] - expected[:, column % 2]) < 0.5 * np.std(expected[:, column % 2])
            assert abs(np.mean(features[:, column] - expected[:, column % 2])) < 0.2 * np.std(expected[:, column % 2])


def test_exported_and_copied_trees_predict_the_same(fitted):
    x = torch.from_numpy(table(50, seed=6)[0])
    expected = fitted(x)
    program = torch.export.export(fitted, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    assert torch.equal(program(x), expected)
    assert torch.equal(program(x[:7]), expected[:7])
    assert torch.equal(copy.deepcopy(fitted)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(fitted))(x), expected)


def test_memory_does_not_grow_with_the_rows(fitted):
    x = torch.from_numpy(np.tile(table(60)[0], (1000, 1)))
    fitted(x[:100])
    with torch.profiler.profile(profile_memory=True) as profile:
        fitted(x)
    largest = max(abs(event.cpu_memory_usage) for event in profile.events())
    assert largest < 8e7  # the leaves of all rows in all trees would be 27 MB an array, and steps need many such arrays


# No leakage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_columns", [6, 3])  # all of them, or chosen by their promise
def test_targets_of_a_fold_do_not_touch_its_predictions(most_columns, monkeypatch):
    monkeypatch.setattr(module, "MAX_COLUMNS", most_columns)
    x, y = table(150, 6)
    fold_of_row = module._folds(np.random.default_rng(0), 150, 3)
    _, before = fit_trees(x, y, 0, folds=3)
    for fold in range(3):
        changed = y.copy()
        # another column decides, within the range of the targets, which sets the scale
        changed[fold_of_row == fold] = np.clip(3 * x[fold_of_row == fold, -1:], y.min(), y.max())
        changed[np.abs(y).argmax()] = y[np.abs(y).argmax()]
        _, after = fit_trees(x, changed, 0, folds=3)
        assert (after[fold_of_row == fold] == before[fold_of_row == fold]).all()
        assert (after != before).any()


def test_residuals_of_pure_noise_have_one_scale_on_rows_old_and_new(monkeypatch):
    monkeypatch.setattr(module, "BOOSTED_TREES", 100)
    residuals = {name: [] for name in ("seen", "new", "in_sample")}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 500, 3)), rng.normal(size=(2, 500, 1))
        trees, out_of_fold = fit_trees(x[0], y[0], seed, folds=4)
        residuals["seen"].append(y[0] - out_of_fold)
        residuals["new"].append(y[1] - predict(trees, x[1]))
        residuals["in_sample"].append(y[0] - predict(trees, x[0]))
    scale = {name: np.sqrt(np.mean(np.square(r), axis=(0, 1))) for name, r in residuals.items()}
    # a scale of n residuals has the standard error 1/√(2n), a ratio of two √2 times that; five of them
    tolerance = 5 / np.sqrt(4 * 500)
    assert (abs(scale["seen"] / scale["new"] - 1) < tolerance).all()  # of boosted trees, and of the forest
    # which is what the test would see if rows leaked
    assert (scale["in_sample"] / scale["new"] < 1 - 2 * tolerance).all()


def test_fold_learns_from_a_limited_number_of_rows_of_other_folds(models, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 50)
    x, y = table(200)
    _, out_of_fold = fit_trees(x, y, 0, folds=4)
    learned = [set(model.seen[:, 0]) for model in models["boosted"]]
    assert [len(rows) for rows in learned] == [50] * 5
    predicted = np.ldexp([model.predict(x) for model in models["boosted"]], np.frexp(np.abs(y).max())[1])
    for row in range(200):
        matching = np.flatnonzero(predicted[:, row] == out_of_fold[row, 0])
        assert any(x[row, 0] not in learned[k] for k in matching)


def test_folds_are_balanced_and_drawn_from_the_seed():
    rng = np.random.default_rng
    folds = module._folds(rng(0), 43, 8)
    assert sorted(np.bincount(folds)) == [5] * 5 + [6] * 3
    assert (folds == module._folds(rng(0), 43, 8)).all()
    assert (folds != module._folds(rng(1), 43, 8)).any()


# Weights, columns, seeds, threads -------------------------------------------------------------------------------------


def test_weights_weigh():
    x = np.random.default_rng(0).normal(size=(400, 2))
    y = np.arange(400)[:, None] % 2.0
    weights = np.where(y[:, 0] == 1, 9e307, 1e307)  # only their ratio counts
    out = fit_trees(x, y, 0, folds=2, weights=weights)[0]
    new = np.random.default_rng(1).normal(size=(400, 2))
    assert bool((out.boosted.leaves > 1).any())
    assert abs(predict(out, new)[:, 0].mean() - 0.9) < 0.1  # 0.5 without weights
    equal, plain = fit_trees(x, y, 0, folds=2, weights=np.full(400, 3.0)), fit_trees(x, y, 0, folds=2)
    assert (equal[1] == plain[1]).all()


def test_of_many_columns_the_promising_are_kept():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 400))
    x[:, 11] = rng.integers(0, 2, 600)
    x[:, 12] = 1  # constant
    y = np.column_stack([x[:, 10] + x[:, 11], x[:, 20] ** 2]) + 0.3 * rng.normal(size=(600, 2))
    first, second = module._promising_columns(x, y, np.arange(600))
    assert len(first) == len(second) == module.MAX_COLUMNS
    assert {10, 11} <= set(first)
    assert 20 in second
    trees, out = fit_trees(x, y, 0, folds=2)
    for each in (trees.boosted, trees.forest):
        assert int(each.columns.max()) > module.MAX_COLUMNS  # numbers of columns of x, not of those kept
    assert (np.var(y - out[:, :2], axis=0) < 0.5 * np.var(y, axis=0)).all()
    assert (np.var(y - out[:, 2:], axis=0) < 0.9 * np.var(y, axis=0)).all()
    assert (predict(trees, x)[:3] == predict(trees, x[:3])).all()


def test_results_depend_on_the_seed_alone(fitted):
    x, y = table(300, targets=2)
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    again = fit_trees(x, y, 0, folds=3)[0]
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
    other = fit_trees(x, y, 1, folds=3)
    assert all(
        torch.equal(a, b) for a, b in zip(fitted.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert not np.array_equal(fit_trees(x, y, 0, folds=3)[1], other[1])


def test_threads_predict_and_fit_the_same_and_leave_pools_as_they_were(fitted):
    def pools():
        return [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]

    x, y = table(300, seed=8)
    before = pools()
    expected = predict(fitted, x)
    assert all((out == expected).all() for out in in_threads(lambda _: predict(fitted, x), range(4), 4))
    alone = fit_trees(x, y, 0, folds=2)[1]
    assert all((out[1] == alone).all() for out in in_threads(lambda _: fit_trees(x, y, 0, folds=2), range(2), 2))
    assert pools() == before


def test_one_thread_of_scikit_learn_fits(monkeypatch):
    seen = []
    fit = HistGradientBoostingRegressor.fit

    def spy(self, *args, **kwargs):
        seen.append((self.early_stopping, [p["num_threads"] for p in threadpool_info() if p["user_api"] == "openmp"]))
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", spy)
    fit_trees(*table(30), 0, folds=2)
    assert [early for early, _ in seen] == [False] * 3
    assert all(pools and set(pools) == {1} for _, pools in seen)


# Layouts of scikit-learn ----------------------------------------------------------------------------------------------


def in_breadth(model):
    """Give a model's trees their nodes in another order, which only scikit-learn's own evaluation follows."""
    for (tree,) in model._predictors:
        order = np.argsort(tree.nodes["depth"], kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        nodes = tree.nodes[order].copy()
        inner = nodes["is_leaf"] == 0
        nodes["left"][inner], nodes["right"][inner] = place[nodes["left"][inner]], place[nodes["right"][inner]]
        tree.nodes = nodes
    return model


def test_other_order_of_nodes_of_boosted_trees_raises(monkeypatch):
    fit = module._fit_boosted_target
    monkeypatch.setattr(module, "_fit_boosted_target", lambda *arguments: in_breadth(fit(*arguments)))
    with pytest.raises(HowsureError):
        fit_trees(*table(400), 0, folds=2)


def test_other_order_of_nodes_of_a_forest_raises(monkeypatch):
    def best_first(x, y, weights, trees, rng):
        return ExtraTreesRegressor(trees, max_leaf_nodes=50, random_state=0).fit(x, y)

    monkeypatch.setattr(module, "_fit_forest_target", best_first)
    with pytest.raises(HowsureError):
        fit_trees(*table(200), 0, folds=2)


def test_unknown_attributes_of_scikit_learn_raise(monkeypatch):
    monkeypatch.setattr(module, "_fit_boosted_target", lambda *_: type("Model", (), {"predict": None})())
    with pytest.raises(HowsureError):
        fit_trees(*table(100), 0, folds=2)


def test_forest_learns_from_other_folds_and_the_last_from_all(models):
    x, y = table(75)
    trees, out = fit_trees(x, y, 0, folds=8)
    assert len(models["forest"][0].seen) == 75
    assert sum(len(model.seen) for model in models["forest"][1:]) == 3 * 75
    assert (out[:, 1] != predict(trees, x)[:, 1]).all()


# Nodes ----------------------------------------------------------------------------------------------------------------


def ensemble(feature, leaves, number=None):
    number = np.arange(len(feature), dtype=float) if number is None else number
    return TreeEnsemble(columns=np.zeros((1, 1)), leaves=np.array([leaves]), feature=np.array(feature), number=number)


def test_hand_made_trees_predict_their_leaves():
    # x ≤ 2: (x ≤ 1: 10, else 20), else 30; and a tree of a single leaf
    trees = ensemble([0, 0, -1, -1, -1, -1], [3, 1], np.array([2.0, 1.0, 10.0, 20.0, 30.0, 5.0]))
    x = np.array([[0.0], [1.0], [1.5], [2.0], [3.0], [np.inf], [-np.inf]])
    assert predict(trees, x)[:, 0].tolist() == [15, 15, 25, 25, 35, 35, 15]
    assert trees.depth == 2


@pytest.mark.parametrize(
    ("feature", "leaves"),
    [
        ([0, -1, -1], [1]),
        ([0, -1, -1], [3]),
        ([0, -1, -1], [0]),
        ([0, -1, -1], [-5]),
        ([1, -1, -1], [2]),
        ([-2, -1, -1], [2]),
        ([-1, 0, -1], [2]),
        ([-1, -1, -1], [2]),
        ([0, 0, 0], [2]),
        ([-1, -1, 0], [2]),
        ([0, -1, -1, 0, -1, -1], [2, 1]),
        ([0, -1, 0, -1, -1, -1], [2, 2]),
        ([0, -1] * 100 + [-1], [101]),
    ],
)
def test_nodes_that_are_not_trees_raise(feature, leaves):
    with pytest.raises(InputError):
        ensemble(feature, leaves)
