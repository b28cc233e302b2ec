"""Trees as features: the same bits as scikit-learn's, no row sees its own target, files are not trusted."""

import pickle
import tracemalloc
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_info

from howsure.errors import HowsureError, InputError, InputTypeError
from howsure.tables.experts import forest as forest_module
from howsure.tables.experts import trees as module
from howsure.tables.experts.trees import Trees
from howsure.threads import in_threads


def table(rows, columns=4, targets=1, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + noise * rng.normal(size=(rows, targets))
    return x, y


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    """Twenty boosted trees a model in place of a hundred, and six in a forest, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TREES", 20)
        patch.setattr(forest_module, "MOST_TREES", 6)
        patch.setattr(forest_module, "FEWEST_TREES", 4)
        yield


@pytest.fixture
def models(monkeypatch):
    """A list that scikit-learn's models are appended to as they are fitted."""
    kept = []
    fit = module._fit_model

    def keep(x, y, weights, seed):
        kept.append(fit(x, y, weights, seed))
        kept[-1].seen = x
        return kept[-1]

    monkeypatch.setattr(module, "_fit_model", keep)
    return kept


@pytest.fixture(scope="module")
def fitted():
    x, y = table(300, targets=2)
    x[::7, 1] = np.nan
    return Trees.fit(x, y, 0, folds=3)[0]


# The same bits as scikit-learn's --------------------------------------------------------------------------------------


def odd_values(x, rng):
    """Return x with each kind of value that could be compared wrongly, in rows of their own and mixed."""
    x = x.copy()
    odd = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-310, -0.0, 0.1, np.nextafter(0.1, 1), 16777217.0])
    at = rng.random(x.shape) < 0.3
    x[at] = rng.choice(odd, at.sum())
    return x


def training_tables():
    rng = np.random.default_rng(3)
    plain, y = table(400)
    constant = np.column_stack([np.full(400, 7.0), plain])
    missing = np.where(rng.random(plain.shape) < 0.3, np.nan, plain)
    missing[:, 0] = np.where(y[:, 0] > 0, np.nan, 1.0)  # a split that only asks whether a value is missing
    all_missing = np.column_stack([np.full(400, np.nan), plain])
    steps = 16777216.0 + np.round(plain * 3)  # neighbours that float32 does not tell apart
    ties = np.round(plain)
    return {
        "plain": (plain, y),
        "constant": (constant, y),
        "missing": (missing, y),
        "all missing": (all_missing, y),
        "steps": (steps, y),
        "ties": (ties, y),
        "odd": (odd_values(plain, rng), y),
        "huge x": (plain * 1e300, y),
        "tiny x": (plain * 1e-310, y),
        "constant y": (plain, np.full((400, 1), 3.7)),
        "many targets": table(400, targets=3),
        "one column": (plain[:, :1], y),
    }


@pytest.mark.parametrize("name", list(training_tables()))
def test_boosted_trees_predict_the_same_bits_as_scikit_learn(name, models):
    x, y = training_tables()[name]
    trees, _ = Trees.fit(x, y, 0, folds=2)
    exponent = np.frexp(np.abs(y).max(axis=0))[1]
    rng = np.random.default_rng(1)
    around = x[rng.integers(len(x), size=600)]
    tables = [around, odd_values(around, rng)]
    if trees.threshold.size:
        at = trees.threshold.ravel()[rng.integers(trees.threshold.size, size=around.shape)]
        tables += [at, np.nextafter(at, np.inf)]
    for new in tables:
        for target, model in enumerate(models[: y.shape[1]]):  # those of all rows are fitted first
            expected = np.ldexp(model.predict(new), exponent[target])
            for rows in (1, 2, 600):  # all splits are compared, or tables are made of them
                assert (trees.predict_boosted(new[:rows])[:, target] == expected[:rows]).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e299])
def test_targets_of_any_size_are_learned_alike(scale):
    x, y = table(120)
    y /= np.abs(y).max()
    factor = 2.0 ** np.round(np.log2(scale))
    small, near = Trees.fit(x, y * factor, 0, folds=2)
    plain, expected = Trees.fit(x, y, 0, folds=2)
    assert np.isfinite(near).all()
    assert (near == expected * factor).all()
    assert (small.predict(x) == plain.predict(x) * factor).all()


@pytest.mark.parametrize("rows", [2, 3, 5, 19, 40])
def test_few_rows_have_fewer_folds(rows, models):
    x, y = table(rows, targets=2)
    trees, out_of_fold = Trees.fit(x, y, 0)
    folds = len(models) // 2 - 1
    assert folds == max(2, min(8, rows // 2))
    assert out_of_fold.shape == (rows, 4)
    if rows <= 19:  # scikit-learn wants 20 rows in a leaf
        assert trees.value.shape[2] == 1
        assert len(np.unique(out_of_fold[:, 0])) <= folds


def test_one_row_is_predicted_as_among_many(fitted):
    x, _ = table(700, seed=5)
    x[::5, 0] = np.nan
    many = fitted.predict(x)
    assert (many[:3] == [fitted.predict(x[k : k + 1])[0] for k in range(3)]).all()
    assert (many[300:450] == fitted.predict(x[300:450])).all()
    assert (many[:, :2] == fitted.predict_boosted(x)).all()
    assert (many[:, 2:] == fitted.forest.predict(x)).all()
    assert fitted.predict(x[:0]).shape == (0, 4)


def test_outputs_are_counted(fitted):
    x, y = table(40, targets=3)
    trees, out = Trees.fit(x, y, 0, folds=2)
    assert trees.per_target == 2
    assert trees.outputs == out.shape[1] == trees.predict(x).shape[1] == 6
    boosted = replace(trees, forest=None)
    assert boosted.per_target == 1
    assert boosted.outputs == boosted.predict(x).shape[1] == 3
    assert (boosted.predict(x) == trees.predict(x)[:, :3]).all()


def test_each_column_predicts_its_target():
    x, _ = table(400, seed=3)
    y = np.column_stack([x[:, 0], 100 + 10 * x[:, 1]])
    trees, out = Trees.fit(x, y, 0, folds=4)
    new, _ = table(400, seed=4)
    for features, expected in ((out, y), (trees.predict(new), np.column_stack([new[:, 0], 100 + 10 * new[:, 1]]))):
        for column in range(4):
            assert np.std(features[:, column] - expected[:, column % 2]) < 0.5 * np.std(expected[:, column % 2])
            assert abs(np.mean(features[:, column] - expected[:, column % 2])) < 0.2 * np.std(expected[:, column % 2])


def test_columns_in_another_order_of_memory_give_the_same(fitted):
    x, _ = table(300, seed=6)
    assert (fitted.predict(np.asfortranarray(x)) == fitted.predict(x)).all()
    assert (fitted.predict(np.repeat(x, 2, axis=1)[:, ::2]) == fitted.predict(x)).all()
    assert (fitted.predict(x.astype(np.float32)) == fitted.predict(x.astype(np.float32).astype(np.float64))).all()


def test_memory_does_not_grow_with_the_rows():
    x, y = table(60)
    trees, _ = Trees.fit(x, y, 0, folds=2)
    x = np.tile(x, (1000, 1))
    tracemalloc.start()
    trees.predict(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6e6  # the leaves of all rows in one model's trees would be 24 MB


# No leakage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_columns", [6, 3])  # all of them, or chosen by their promise
def test_targets_of_a_fold_do_not_touch_its_predictions(most_columns, monkeypatch):
    monkeypatch.setattr(module, "MOST_COLUMNS", most_columns)
    x, y = table(150, 6)
    fold_of_row = module._folds(np.random.default_rng(0), np.ones(150, dtype=bool), 3, None)
    _, before = Trees.fit(x, y, 0, folds=3)
    for fold in range(3):
        changed = y.copy()
        # another column decides, within the range of the targets, which sets the scale
        changed[fold_of_row == fold] = np.clip(3 * x[fold_of_row == fold, -1:], y.min(), y.max())
        changed[np.abs(y).argmax()] = y[np.abs(y).argmax()]
        _, after = Trees.fit(x, changed, 0, folds=3)
        assert (after[fold_of_row == fold] == before[fold_of_row == fold]).all()
        assert (after != before).any()


def test_residuals_of_pure_noise_have_one_scale_on_rows_old_and_new(monkeypatch):
    monkeypatch.setattr(module, "MOST_TREES", 100)
    residuals = {name: [] for name in ("seen", "new", "in_sample")}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 500, 3)), rng.normal(size=(2, 500, 1))
        trees, out_of_fold = Trees.fit(x[0], y[0], seed, folds=4)
        residuals["seen"].append(y[0] - out_of_fold)
        residuals["new"].append(y[1] - trees.predict(x[1]))
        residuals["in_sample"].append(y[0] - trees.predict(x[0]))
    scale = {name: np.sqrt(np.mean(np.square(r), axis=(0, 1))) for name, r in residuals.items()}
    # a scale of n residuals has the standard error 1/√(2n), a ratio of two √2 times that; five of them
    tolerance = 5 / np.sqrt(4 * 500)
    assert (abs(scale["seen"] / scale["new"] - 1) < tolerance).all()  # of boosted trees, and of the forest
    # which is what the test would see if rows leaked
    assert (scale["in_sample"] / scale["new"] < 1 - 2 * tolerance).all()


def test_a_fold_learns_only_from_rows_of_other_folds_and_from_at_most_so_many(models, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 50)
    x, y = table(200)
    _, out_of_fold = Trees.fit(x, y, 0, folds=4)
    learned = [set(model.seen[:, 0]) for model in models]
    assert [len(rows) for rows in learned] == [50] * 5
    predicted = np.ldexp([model.predict(x) for model in models], np.frexp(np.abs(y).max())[1])
    for row in range(200):
        matching = np.flatnonzero(predicted[:, row] == out_of_fold[row, 0])
        assert any(x[row, 0] not in learned[k] for k in matching)


def test_groups_stay_together():
    x, y = table(60, noise=1)
    copies = np.repeat(x, 4, axis=0), np.repeat(y, 4, axis=0)
    _, leaking = Trees.fit(*copies, 0)
    _, grouped = Trees.fit(*copies, 0, groups=np.repeat([f"row {k}" for k in range(60)], 4))
    assert np.std(copies[1] - leaking) < 0.8 * np.std(copies[1] - grouped)
    assert (grouped[::4] == grouped[3::4]).all()  # one fold, so one model
    with pytest.raises(InputError, match="groups"):
        Trees.fit(x, y, 0, groups=np.zeros(60))
    with pytest.raises(InputError, match="label"):
        Trees.fit(x, y, 0, groups=np.zeros(6))
    with pytest.raises(InputTypeError, match="labels"):
        Trees.fit(x, y, 0, groups=np.array(["a", None, 3] * 20, dtype=object))


def test_folds_are_balanced_and_drawn_from_the_seed():
    rng = np.random.default_rng
    used = np.ones(43, dtype=bool)
    folds = module._folds(rng(0), used, 8, None)
    assert sorted(np.bincount(folds)) == [5] * 5 + [6] * 3
    assert (folds == module._folds(rng(0), used, 8, None)).all()
    assert (folds != module._folds(rng(1), used, 8, None)).any()
    used[:3] = False
    assert (module._folds(rng(0), used, 8, None)[:3] == -1).all()


# Weights, columns, seeds, threads -------------------------------------------------------------------------------------


def test_rows_of_weight_zero_are_as_if_absent():
    x, y = table(150)
    extra = np.random.default_rng(9).normal(size=(30, 4))
    weights = np.concatenate([np.ones(150), np.zeros(30)])
    alone, expected = Trees.fit(x, y, 0, folds=3)
    both, out = Trees.fit(
        np.concatenate([x, extra]), np.concatenate([y, np.zeros((30, 1))]), 0, folds=3, weights=weights
    )
    for name, tensor in alone.tensors().items():
        assert torch.equal(tensor, both.tensors()[name])
    assert (out[:150] == expected).all()
    assert (out[150:] == alone.predict(extra)).all()


def test_weights_weigh():
    x = np.random.default_rng(0).normal(size=(400, 2))
    y = np.arange(400)[:, None] % 2.0
    weights = np.where(y[:, 0] == 1, 9e307, 1e307)  # only their ratio counts
    out = Trees.fit(x, y, 0, folds=2, weights=weights)[0]
    new = np.random.default_rng(1).normal(size=(400, 2))
    assert out.value.shape[2] > 1
    assert abs(out.baseline - 0.9).max() < 0.02
    assert abs(out.predict(new)[:, 0].mean() - 0.9) < 0.1  # 0.5 without weights
    equal, plain = Trees.fit(x, y, 0, folds=2, weights=np.full(400, 3.0)), Trees.fit(x, y, 0, folds=2)
    assert (equal[1] == plain[1]).all()


def test_of_many_columns_the_promising_are_kept():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 400))
    x[:, 11] = rng.integers(0, 2, 600)
    x[:, 12] = 1  # constant
    x[rng.random(x.shape) < 0.05] = np.nan
    filled = np.nan_to_num(x)
    y = np.column_stack([filled[:, 10] + filled[:, 11], filled[:, 20] ** 2]) + 0.3 * rng.normal(size=(600, 2))
    first, second = module._columns(x, y, np.arange(600))
    assert len(first) == len(second) == module.MOST_COLUMNS
    assert {10, 11} <= set(first)
    assert 20 in second
    trees, out = Trees.fit(x, y, 0, folds=2)
    assert trees.feature.max() > module.MOST_COLUMNS  # numbers of columns of x, not of those kept
    assert trees.forest.columns.max() > module.MOST_COLUMNS
    assert (np.var(y - out[:, :2], axis=0) < 0.5 * np.var(y, axis=0)).all()
    assert (np.var(y - out[:, 2:], axis=0) < 0.9 * np.var(y, axis=0)).all()
    assert (trees.predict(x)[:3] == trees.predict(x[:3])).all()


def test_results_depend_on_the_seed_alone(fitted):
    x, y = table(300, targets=2)
    x[::7, 1] = np.nan
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    again = Trees.fit(x, y, 0, folds=3)[0]
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
    other = Trees.fit(x, y, 1, folds=3)
    assert all(torch.equal(a, b) for a, b in zip(fitted.tensors().values(), again.tensors().values(), strict=True))
    assert not np.array_equal(Trees.fit(x, y, 0, folds=3)[1], other[1])


def test_threads_predict_and_fit_the_same_and_leave_pools_as_they_were(fitted):
    def pools():
        return [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]

    x, y = table(300, seed=8)
    before = pools()
    expected = fitted.predict(x)
    assert all((out == expected).all() for out in in_threads(lambda _: fitted.predict(x), range(4), 4))
    alone = Trees.fit(x, y, 0, folds=2)[1]
    assert all((out[1] == alone).all() for out in in_threads(lambda _: Trees.fit(x, y, 0, folds=2), range(2), 2))
    assert pools() == before


def test_one_thread_of_scikit_learn_fits(monkeypatch):
    seen = []
    fit = HistGradientBoostingRegressor.fit

    def spy(self, *args, **kwargs):
        seen.append((self.early_stopping, [p["num_threads"] for p in threadpool_info() if p["user_api"] == "openmp"]))
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", spy)
    Trees.fit(*table(30), 0, folds=2)
    assert [early for early, _ in seen] == [False] * 3
    assert all(pools and set(pools) == {1} for _, pools in seen)


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((30, 0))}, "column"),
        ({"x": np.zeros(30)}, "shape"),
        ({"x": np.zeros((29, 4))}, "rows"),
        ({"y": np.full((30, 1), np.nan)}, "NaN"),
        ({"y": np.full((30, 1), np.inf)}, "NaN"),
        ({"y": np.full((30, 1), 1e301)}, "beyond"),
        ({"y": np.zeros(30)}, r"\by\b"),
        ({"y": np.zeros((30, 0))}, "column"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"folds": 1}, "folds"),
        ({"folds": True}, "folds"),
        ({"weights": np.ones(29)}, "30"),
        ({"weights": -np.ones(30)}, "negative"),
        ({"weights": np.full(30, np.nan)}, "finite"),
        ({"weights": np.zeros(30)}, "rows"),
        ({"weights": np.eye(30)[0]}, "1"),
        ({"x": np.zeros((1, 4)), "y": np.zeros((1, 1))}, "rows"),
        ({"x": np.zeros((0, 4)), "y": np.zeros((0, 1))}, "rows"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    x, y = table(30)
    arguments = {"x": x, "y": y, "seed": 0, **change}
    with pytest.raises(InputError, match=message):
        Trees.fit(arguments.pop("x"), arguments.pop("y"), arguments.pop("seed"), **arguments)


def test_numbers_of_another_kind_are_refused(fitted):
    x, y = table(30)
    for wrong in (x.astype(str), x.astype(object), x.astype(complex), x.astype("datetime64[s]")):
        with pytest.raises(InputTypeError):
            Trees.fit(wrong, y, 0)
        with pytest.raises(InputTypeError):
            fitted.predict(wrong)
    with pytest.raises(InputTypeError):
        Trees.fit(x, y, 0, weights=np.full(30, "1"))
    with pytest.raises(InputError, match="columns"):
        fitted.predict(x[:, :3])
    with pytest.raises(FrozenInstanceError):
        fitted.features = 5


def test_an_unknown_layout_of_scikit_learns_trees_is_refused(models, monkeypatch):
    x, y = table(400)
    Trees.fit(x, y, 0, folds=2)
    real = models[0]

    def in_breadth(model):
        """The same trees with their nodes in another order, which only scikit-learn's own evaluation follows."""
        for (tree,) in model._predictors:
            order = np.argsort(tree.nodes["depth"], kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            nodes = tree.nodes[order].copy()
            inner = nodes["is_leaf"] == 0
            nodes["left"][inner], nodes["right"][inner] = place[nodes["left"][inner]], place[nodes["right"][inner]]
            tree.nodes = nodes
        return model

    expected = real.predict(x)
    other = in_breadth(real)
    assert (other.predict(x) == expected).all()
    monkeypatch.setattr(module, "_fit_model", lambda *_: other)
    with pytest.raises(HowsureError):
        Trees.fit(x, y, 0, folds=2)
    monkeypatch.setattr(module, "_fit_model", lambda *_: object())
    with pytest.raises(HowsureError):
        Trees.fit(x, y, 0, folds=2)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [10, 300])  # without any split, and with
def test_a_file_brings_the_same_trees_back(rows):
    x, y = table(rows, targets=2)
    x[::3, 0] = np.nan
    trees, _ = Trees.fit(x, y, 0, folds=2)
    tensors = load(save(trees.tensors()))
    assert all(not t.is_floating_point() or bool(torch.isfinite(t).all()) for t in tensors.values())
    loaded = Trees.from_tensors(tensors, 4, 2)
    assert loaded.outputs == 4
    assert (loaded.predict(x) == trees.predict(x)).all()
    alone = Trees.from_tensors(replace(trees, forest=None).tensors(), 4, 2)
    assert (alone.predict(x) == trees.predict(x)[:, :2]).all()
    assert (pickle.loads(pickle.dumps(trees)).predict(x) == trees.predict(x)).all()


def test_tensors_are_copies(fitted):
    x, _ = table(5)
    expected = fitted.predict(x)
    tensors = fitted.tensors()
    loaded = Trees.from_tensors(tensors, 4, 2)
    for tensor in tensors.values():
        tensor.zero_()
    assert (fitted.predict(x) == expected).all()
    assert (loaded.predict(x) == expected).all()


def replaced(name, value):
    def change(tensors):
        tensors[name] = value(tensors[name]) if callable(value) else value

    return change


def at_one_place(name, value):
    def change(tensors):
        tensors[name].view(-1)[-1] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("value"), "tensors"),
        (lambda tensors: tensors.clear(), "tensors"),
        (replaced("more", torch.zeros(1)), "tensors"),
        (replaced("value", None), "value"),
        (replaced("value", torch.Tensor.float), "torch.float64"),
        (replaced("feature", torch.Tensor.double), "torch.int32"),
        (replaced("missing_left", torch.Tensor.byte), "torch.bool"),
        (replaced("baseline", lambda t: t[0]), r"\(2,\)"),
        (replaced("baseline", lambda t: t[:1]), r"\(2,\)"),
        (replaced("baseline", lambda t: t[:0]), r"\(2,\)"),
        (replaced("value", lambda t: t[:1]), "value"),
        (replaced("value", lambda t: t[..., :0]), "value"),
        (replaced("value", lambda t: torch.cat([t] * 9, dim=-1)), "value"),
        (replaced("value", lambda t: t[:, :0]), "value"),
        (replaced("value", lambda t: torch.cat([t] * 2, dim=1)), "value"),
        (replaced("value", lambda t: t[..., :-1]), "threshold"),
        (replaced("threshold", lambda t: t[:, :5]), "threshold"),
        (replaced("left_leaves", torch.Tensor.flatten), "left_leaves"),
        (at_one_place("feature", 4), "columns"),
        (at_one_place("feature", -1), "columns"),
        (at_one_place("left_leaves", -1), "leaves"),
        (at_one_place("left_leaves", 2**31 - 1), "leaves"),
        (at_one_place("threshold", float("nan")), "thresholds"),
        (at_one_place("threshold", float("inf")), "thresholds"),
        (at_one_place("value", float("nan")), "baselines"),
        (at_one_place("value", float("-inf")), "baselines"),
        (at_one_place("baseline", float("inf")), "baselines"),
        (replaced("value", lambda t: torch.full_like(t, 1e308)), "baselines"),
    ],
)
def test_a_forged_file_is_refused(fitted, change, message):
    tensors = fitted.tensors()
    change(tensors)
    with pytest.raises(InputError, match=message):
        Trees.from_tensors(tensors, 4, 2)


def test_a_file_for_other_columns_or_targets_is_refused(fitted):
    with pytest.raises(InputError):
        Trees.from_tensors(fitted.tensors(), 2, 2)
    with pytest.raises(InputError):
        Trees.from_tensors(fitted.tensors(), 4, 1)


def test_a_damaged_file_is_refused_or_answers_with_finite_numbers(fitted):
    rng = np.random.default_rng(0)
    x = odd_values(table(300, seed=2)[0], rng)
    answered = 0
    for _ in range(60):
        tensors = fitted.tensors()
        name = rng.choice(sorted(tensors))
        raw = tensors[name].numpy().reshape(-1).view(np.uint8)
        if name == "missing_left":  # whose bytes are 0 or 1
            raw[rng.integers(len(raw))] ^= 1
        else:
            raw[rng.integers(len(raw), size=20)] = rng.integers(256, size=20)
        try:
            loaded = Trees.from_tensors(tensors, 4, 2)
        except InputError:
            continue
        answered += 1
        assert np.isfinite(loaded.predict(x)).all()
        assert np.isfinite(loaded.predict(x[:3])).all()
    assert 0 < answered < 60
