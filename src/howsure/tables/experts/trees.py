"""Trees as further features of a table: learned out of fold, evaluated here, and saved as plain arrays.

Trees of `sklearn.ensemble.HistGradientBoostingRegressor` predict targets that jump or depend on few columns better than
a network does, and a network that sees their prediction as a feature takes it from there. A forest (`forest.py`) is a
second such feature: it knows the nearest rows. A network must not see predictions of trees for rows that these trees
have learned from: those are too good, and the network would trust them too much. So the rows are divided into folds,
and each fold is predicted by trees that learned from the others.

**Rows that come later** are predicted by boosted trees and a forest that learned from all rows, which are all that is
kept. A mean of the trees of all folds would be another kind of feature: if a row has a near twin, all trees of a fold
know the twin, or none does, whereas of all folds some do and some do not.

**How a boosted tree is evaluated.** Not by walking from its root to a leaf, which takes a Python step for each level,
but as in QuickScorer (Lucchese et al., SIGIR 2015). The leaves are numbered from left to right, and every split holds
the set of leaves of its left branch, as the bits of an integer. A row that goes right at a split cannot end in that
set, whether it passes the split or not. After all splits of a tree, in any order, the lowest leaf that remains is the
row's leaf. So there is no pointer to follow, and nothing in a damaged file can lead the evaluation in a circle.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.errors import HowsureError, InputError, InputTypeError
from howsure.tables.experts.forest import LARGEST, Forest, arrays_of, trees_for

__all__ = ["Trees", "lowest_bit"]

Array = NDArray[np.float64]

MOST_ROWS = 50_000  # that trees learn from: more rows change 100 trees of 31 leaves little, and cost in step
MOST_COLUMNS = 100  # that trees look at: each costs as much as 10,000 rows, and useless ones do harm
MOST_TREES = 100  # of a model, scikit-learn's own default; a limit for files, whose trees may be anything
FOREST_FOLDS = 4  # of a forest: eight cost twice as much, and the time is better spent on more trees
MOST_LEAVES = 31  # of a tree, scikit-learn's own default; a set of leaves must fit into the bits of an int32

_RANKED = 5_000_000  # values that are ranked to choose columns: half a second
_BLOCK = 2**15  # elements of an intermediate array: a few of them stay in a core's cache
_TABLE_ROWS = 32  # from so many rows for each column on, the tables of `_Table` are worth making
_TABLE_COLUMNS = 64  # and up to so many columns, looking into one table a column is faster than comparing all splits


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees of several targets, as arrays that start with (targets, trees), and a forest.

    Trees with fewer leaves than the largest are filled up with splits that exclude nothing and leaves that are never
    reached. An object holds no other state, and may be used by several threads.

    Attributes:
        features: how many columns x has.
        baseline: what the sum of the trees starts from, (targets,).
        value: what a leaf adds, (…, leaves).
        threshold: a row goes left if its value is at most this, (…, leaves − 1), as all that follow.
        feature: the column that a split looks at.
        missing_left: whether a row without a value goes left.
        left_leaves: the leaves of the left branch, leaf k as bit k.
        forest: of trees that learned from all rows; None for boosted trees alone.
    """

    features: int
    baseline: Array
    value: Array
    threshold: Array
    feature: NDArray[np.int32]
    missing_left: NDArray[np.bool_]
    left_leaves: NDArray[np.int32]
    forest: Forest | None = None

    @classmethod
    def fit(
        cls,
        x: Array,
        y: Array,
        seed: int,
        *,
        folds: int = 8,
        weights: Array | None = None,
        groups: NDArray[Any] | None = None,
    ) -> tuple[Self, Array]:
        """Return trees learned from all rows, and predictions (N, 2 T) of each row by trees that have not seen it.

        The first T columns are what boosted trees predict of each target, the others what a forest does.

        A row and its copy usually land in different folds. Then the trees that predict the one have seen the other,
        and its out-of-fold prediction is as flattering as an in-fold one. Copies that are independent measurements at
        the same x do no harm; for rows that belong together (copies, one patient, one day), pass ``groups``.

        Args:
            x: values (N, F); NaN is missing, which trees treat as a value of its own. Values beyond ±1e300 count as
                ±1e300.
            y: targets (N, T), finite, at most 1e300 in size.
            seed: decides the folds, and which rows of a large table the trees learn from. Results are the same for
                the same seed, on any number of cores.
            folds: how many; fewer if there are not two rows (or groups) for each, and at least two.
            weights: how much each row counts (N,), not negative; only their ratios matter. A row of weight 0 is never
                learned from, so it is predicted as a later row is. The leaves of a forest are so small that weights
                decide little there.
            groups: a label for each row (N,), of any type that can be sorted; rows of one group are in one fold.

        Raises:
            InputError: if shapes do not match, values are not finite, or there are fewer than two rows or groups.
        """
        x, y = _matrix(x, "x", None), _matrix(y, "y", None)
        weights = _check_rows(x, y, seed, folds, weights)
        rng = np.random.default_rng(seed)
        fold_of_row = _folds(rng, weights > 0, folds, groups)
        # a power of two loses no digit; without it, squares and scikit-learn's float32 gradients overflow or vanish
        exponent = np.frexp(np.abs(y).max(axis=0))[1]
        y = np.ldexp(y, -exponent)
        out = np.empty(y.shape)
        for fold in range(-1, fold_of_row.max() + 1):  # fold −1 has no rows of its own to leave out
            rows = np.flatnonzero((fold_of_row != fold) & (fold_of_row >= 0))
            rows = np.sort(rng.choice(rows, min(len(rows), MOST_ROWS), replace=False))
            models, columns = _fit_boosted(x, y, rows, weights[rows], rng)
            left_out = x[fold_of_row == fold]
            if len(left_out):
                predicted = [m.predict(_seen(left_out[:, c])) for m, c in zip(models, columns, strict=True)]
                out[fold_of_row == fold] = np.ldexp(np.stack(predicted, axis=1), exponent)
            if fold < 0:
                boosted = cls(x.shape[1], **_read_models(models, columns, x[rows], exponent))
        forest, near = _fit_forest(x, y, fold_of_row, weights, exponent, rng)
        return replace(boosted, forest=forest), np.concatenate([out, near], axis=1)

    @property
    def per_target(self) -> int:
        """Number of predictions of each target: by boosted trees, and by a forest if there is one."""
        return 1 if self.forest is None else 2

    @property
    def outputs(self) -> int:
        """Number of columns that :meth:`predict` returns."""
        return self.per_target * len(self.baseline)

    def predict(self, x: Array) -> Array:
        """Return predictions for rows x (N, F) that the trees have not learned from, (N, 2 T).

        The first T columns are those of the boosted trees, the others the means of the forest's trees, if there is one.
        """
        x = _matrix(x, "x", self.features)
        boosted = self.predict_boosted(x)
        return boosted if self.forest is None else np.concatenate([boosted, self.forest.predict(x)], axis=1)

    def predict_boosted(self, x: Array) -> Array:
        """Return the predictions of the boosted trees, (N, T): to the last bit, what scikit-learn predicts."""
        x = _matrix(x, "x", self.features)
        targets = len(self.baseline)
        out = np.empty((len(x), targets))
        size = max(1, _BLOCK // max(1, self.value.shape[1] * len(x)))  # of few rows, many models at once
        for first in range(0, targets, size):
            out[:, first : first + size] = self._sums(x, slice(first, first + size)).T
        return out

    def _sums(self, x: Array, models: slice) -> Array:
        """Return the predictions of some targets, (models, N)."""
        _, trees, leaves = self.value.shape
        baseline, value, threshold, feature, missing_left, left_leaves = (array[models] for array in self._arrays())
        count, columns = len(baseline), np.arange(self.features)
        if self.features > MOST_COLUMNS:  # copy no column that none of these trees looks at
            columns = np.flatnonzero(np.bincount(feature.ravel(), minlength=1))
            place = np.zeros(self.features, dtype=np.int32)
            place[columns] = np.arange(len(columns))
            feature = place[feature]
        remaining = _remaining_leaves(len(x), len(columns), threshold, feature, missing_left, left_leaves)
        out = np.empty((count, len(x)))
        start = np.arange(0, value.size, leaves, dtype=np.int32)[:, None]
        for rows in _blocks(len(x), count * trees):
            part = x[rows] if len(columns) == self.features else x[rows, columns]
            leaf = lowest_bit(remaining(np.clip(part.T, -LARGEST, LARGEST, order="C")))
            leaf += start
            added = value.reshape(-1).take(leaf).reshape(count, trees, -1)
            # one tree after the other, as scikit-learn does: another order would round otherwise
            total = np.repeat(baseline[:, None], added.shape[2], axis=1)
            for tree in range(trees):
                total += added[:, tree]
            out[:, rows] = total
        return out

    def _arrays(self) -> Iterator[NDArray[Any]]:
        return (getattr(self, name) for name in _DTYPES)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all arrays as tensors, by name: what a file holds of the trees."""
        tensors = {name: torch.from_numpy(getattr(self, name).copy()) for name in _DTYPES}
        if self.forest is not None:
            tensors |= {_FOREST + name: tensor for name, tensor in self.forest.tensors().items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], features: int, targets: int) -> Self:
        """Return the trees that `tensors` described, after checking that any x leads to finite predictions.

        Raises:
            InputError: if a tensor is missing, or of another dtype or shape, or has values that no tree has.
        """
        own = {name: tensor for name, tensor in tensors.items() if not str(name).startswith(_FOREST)}
        arrays = arrays_of(own, _DTYPES, "trees", "trees need")
        _check_shapes(arrays, targets)
        _check_values(arrays, features)
        others = {str(name).removeprefix(_FOREST): tensor for name, tensor in tensors.items() if name not in own}
        forest = Forest.from_tensors(others, features, targets) if others else None
        return cls(features, **arrays, forest=forest)


_FOREST = "forest."  # what the names of a forest's tensors begin with
_DTYPES = {
    "baseline": torch.float64,
    "value": torch.float64,
    "threshold": torch.float64,
    "feature": torch.int32,
    "missing_left": torch.bool,
    "left_leaves": torch.int32,
}


# Checks ---------------------------------------------------------------------------------------------------------------


def _matrix(values: Any, name: str, columns: int | None) -> Array:
    """Return values as float64, after checking that they are a table with so many columns, or at least one."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputTypeError(f"{name} of trees has the dtype {array.dtype}; pass real numbers")
    if array.ndim != 2 or (array.shape[1] < 1 if columns is None else array.shape[1] != columns):
        expected = "at least one column" if columns is None else f"{columns} columns"
        raise InputError(f"{name} of trees has the shape {array.shape}; pass a table (rows, columns) with {expected}")
    return array.astype(np.float64, copy=False)


def _check_rows(x: Array, y: Array, seed: int, folds: int, weights: Array | None) -> Array:
    """Return a weight for each row, one if none are given, after checking that all arguments of `Trees.fit` fit."""
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} rows and y has {len(y)}; pass one row of y for each of x")
    if not bool((np.abs(y) <= LARGEST).all()):
        raise InputError("y has values that are NaN, infinite or beyond ±1e300; remove these rows, or scale y")
    for name, number, least in (("seed", seed, 0), ("folds", folds, 2)):
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < least:
            raise InputError(f"{name} = {number!r}; pass a whole number of at least {least}")
    if weights is None:
        return np.ones(len(x))
    weights = np.asarray(weights)
    if weights.dtype.kind not in "fiub":
        raise InputTypeError(f"weights of trees have the dtype {weights.dtype}; pass real numbers")
    if weights.shape != (len(x),):
        raise InputError(f"weights have the shape {weights.shape}; pass one number for each of {len(x)} rows")
    if not bool(((weights >= 0) & (weights < np.inf)).all()):
        raise InputError("weights must be finite and not negative")
    return weights.astype(np.float64)


def _check_shapes(arrays: dict[str, NDArray[Any]], targets: int) -> None:
    """Raise unless the arrays of a file have shapes that belong together."""
    baseline, value = arrays["baseline"].shape, arrays["value"].shape
    if baseline != (targets,):
        raise InputError(f"the baseline of trees has the shape {baseline}, not ({targets},)")
    if len(value) != 3 or value[:1] != baseline or not (1 <= value[1] <= MOST_TREES and 1 <= value[2] <= MOST_LEAVES):
        most = f"{targets}, 1 to {MOST_TREES}, 1 to {MOST_LEAVES}"
        raise InputError(f"the value of trees has the shape {value}, not ({most})")
    for name in ("threshold", "feature", "missing_left", "left_leaves"):
        if arrays[name].shape != (*value[:2], value[2] - 1):
            raise InputError(
                f"the {name} of trees has the shape {arrays[name].shape}, not {(*value[:2], value[2] - 1)}"
            )


def _check_values(arrays: dict[str, NDArray[Any]], features: int) -> None:
    """Raise unless every split looks at a column that exists, leaves a leaf to end in, and all sums are finite."""
    feature, left_leaves, leaves = arrays["feature"], arrays["left_leaves"], arrays["value"].shape[2]
    if not bool(((feature >= 0) & (feature < features)).all()):
        raise InputError(f"trees look at columns that do not exist: there are {features}")
    # the rightmost leaf is in no left branch
    if not bool(((left_leaves >= 0) & (left_leaves < 1 << (leaves - 1))).all()):
        raise InputError(f"trees have splits with leaves that do not exist: there are {leaves}")
    if not bool((np.abs(arrays["threshold"]) <= LARGEST).all()):
        raise InputError("trees have thresholds that are NaN or beyond ±1e300")
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(arrays["baseline"]) + np.abs(arrays["value"]).max(axis=2).sum(axis=1)
    if not bool((largest < np.inf).all()):
        raise InputError("trees have leaves or baselines that are NaN or infinite, or whose sum is")


# Fitting --------------------------------------------------------------------------------------------------------------


def _folds(
    rng: np.random.Generator, used: NDArray[np.bool_], folds: int, groups: NDArray[Any] | None
) -> NDArray[np.int64]:
    """Return the fold of each row that is used, −1 for the others; rows of one group have one fold."""
    unit = np.arange(int(used.sum()))
    if groups is not None:
        groups = np.asarray(groups)
        if groups.shape != used.shape:
            raise InputError(f"groups have the shape {groups.shape}; pass one label for each of {len(used)} rows")
        try:
            unit = np.unique(groups[used], return_inverse=True)[1].reshape(-1)
        except TypeError as error:
            raise InputTypeError(f"groups cannot be sorted ({error}); pass labels of one type") from error
    count = int(unit.max(initial=-1)) + 1
    if count < 2:
        what = "rows with a positive weight" if groups is None else "groups with a positive weight"
        raise InputError(f"trees out of fold need at least two {what}, and there are {count}; fit without trees")
    result = np.full(len(used), -1)
    result[used] = rng.permutation(count)[unit] % max(2, min(folds, count // 2))
    return result


def _fit_boosted(
    x: Array, y: Array, rows: NDArray[np.int64], weights: Array, rng: np.random.Generator
) -> tuple[list[Any], list[NDArray[np.int64]]]:
    """Return a model of scikit-learn for each target that learned from these rows, and the columns it looks at."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    weight = _around_one(weights)
    columns = _columns(x, y, rows)
    models = []
    for target, own in enumerate(columns):
        part = _seen(x[np.ix_(rows, own)])
        part[:, np.isnan(part).all(axis=0)] = 0  # scikit-learn cannot bin a column without any value; a constant it can
        # one thread of this process, as in `howsure.threads`: on a busy machine several wait for each other
        with threadpool_limits(limits=1, user_api="openmp"):
            models.append(_fit_model(part, y[rows, target], weight, int(rng.integers(2**31))))
    return models, columns


def _seen(x: Array) -> Array:
    """Return values as trees see them."""
    return np.clip(x, -LARGEST, LARGEST)


def _fit_model(x: Array, y: Array, weights: Array | None, seed: int) -> Any:
    """Return a fitted regressor of scikit-learn, with its defaults, but without early stopping."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=MOST_TREES, max_leaf_nodes=MOST_LEAVES, early_stopping=False, random_state=seed
    )
    return model.fit(x, y, sample_weight=weights)


def _fit_forest(
    x: Array, y: Array, fold_of_row: NDArray[np.int64], weights: Array, exponent: NDArray[Any], rng: np.random.Generator
) -> tuple[Forest, Array]:
    """Return a forest that learned from all rows, and predictions of each row by one that has not seen its fold."""
    used = fold_of_row >= 0
    fold_of_row = np.where(used, fold_of_row % FOREST_FOLDS, -1)
    count = trees_for(min(int(used.sum()), MOST_ROWS))
    out = np.empty(y.shape)
    for fold in range(-1, fold_of_row.max() + 1):
        rows = np.flatnonzero(used & (fold_of_row != fold))
        rows = np.sort(rng.choice(rows, min(len(rows), MOST_ROWS), replace=False))
        forest = Forest.grow(x[rows], y[rows], _around_one(weights[rows]), _columns(x, y, rows), count, rng)
        forest = forest.scaled(exponent)
        out[fold_of_row == fold] = forest.predict(x[fold_of_row == fold])
        if fold < 0:
            of_all = forest
    return of_all, out


def _around_one(weights: Array) -> Array | None:
    """Return the weights divided by their mean, as scikit-learn's limits on a split expect them; None if all alike."""
    if bool((weights == weights[0]).all()):
        return None
    weights = weights / weights.max()  # whose sum cannot overflow
    weights /= weights.mean()
    return weights


def _columns(x: Array, y: Array, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return for each target the columns that its trees may look at: all of them, or the most promising of many.

    A column is promising by the rank correlation of the target with its value, or with the distance of its value from
    the middle, whichever is larger. Only rows that the trees learn from are looked at.
    """
    if x.shape[1] <= MOST_COLUMNS:
        return [np.arange(x.shape[1])] * y.shape[1]
    from scipy.stats import rankdata

    few = rows[:: max(1, -(-len(rows) * x.shape[1] // _RANKED))]
    part = x[few]
    rank = rankdata(np.where(np.isnan(part), np.inf, part), axis=0)  # missing values as the largest, all alike
    middle = (len(few) + 1) / 2
    target = rankdata(y[few], axis=0) - middle
    score = np.zeros((y.shape[1], x.shape[1]))
    for values in (rank - middle, np.abs(rank - middle)):
        values -= values.mean(axis=0)
        size = np.sqrt((values**2).sum(axis=0))
        np.maximum(score, np.abs(target.T @ values) / np.where(size > 0, size, np.inf), out=score)
    order = np.argsort(-score, axis=1, kind="stable")[:, :MOST_COLUMNS]
    return list(np.sort(order, axis=1))


def _read_model(model: Any) -> dict[str, NDArray[Any]]:
    """Return the trees of one model of scikit-learn as arrays with a row for each tree.

    scikit-learn has no public access to them. ``_baseline_prediction`` and ``_predictors[i][k].nodes``, whose order is
    that of a walk that goes left first, are private, and the same from version 1.6 to 1.9 at least.
    """
    try:
        trees = [tree.nodes for (tree,) in model._predictors]
        arrays: dict[str, NDArray[Any]] = {
            "baseline": np.asarray(model._baseline_prediction, dtype=np.float64).reshape(()),
            "value": np.zeros((len(trees), MOST_LEAVES)),
            "threshold": np.zeros((len(trees), MOST_LEAVES - 1)),
            "feature": np.zeros((len(trees), MOST_LEAVES - 1), dtype=np.int32),
            "missing_left": np.zeros((len(trees), MOST_LEAVES - 1), dtype=np.bool_),
            "left_leaves": np.zeros((len(trees), MOST_LEAVES - 1), dtype=np.int32),
        }
        for k, nodes in enumerate(trees):
            leaf = nodes["is_leaf"] == 1
            splits, leaves_before = nodes[~leaf], np.cumsum(leaf) - leaf
            first, end = leaves_before[~leaf], leaves_before[splits["right"]]  # of the leaves in the left branch
            arrays["value"][k, : leaf.sum()] = nodes["value"][leaf]
            # infinite where only missing values go right
            arrays["threshold"][k, : len(splits)] = np.minimum(splits["num_threshold"], LARGEST)
            arrays["feature"][k, : len(splits)] = splits["feature_idx"]
            arrays["missing_left"][k, : len(splits)] = splits["missing_go_to_left"] == 1
            arrays["left_leaves"][k, : len(splits)] = (1 << end) - (1 << first)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise HowsureError(f"{_unknown_layout()} ({type(error).__name__}: {error})") from error
    return arrays


def _check_reading(model: Any, arrays: dict[str, NDArray[Any]], x: Array) -> None:
    """Raise unless the arrays predict some rows, and one without any value, exactly as the model itself does."""
    x = np.concatenate([x, np.full((1, x.shape[1]), np.nan)])
    if not np.array_equal(Trees(x.shape[1], **_stack([arrays])).predict_boosted(x)[:, 0], model.predict(x)):
        raise HowsureError(f"{_unknown_layout()} (its predictions are others)")


def _unknown_layout() -> str:
    import sklearn

    return (
        f"scikit-learn {sklearn.__version__} keeps its trees in a way that is not known here; "
        "install a version from 1.6 to 1.9, or fit without trees"
    )


def _read_models(
    models: list[Any], columns: list[NDArray[np.int64]], x: Array, exponent: NDArray[Any]
) -> dict[str, Any]:
    """Return the trees of all targets as arrays, in the units that y had before it was scaled."""
    read = []
    for target, (model, own) in enumerate(zip(models, columns, strict=True)):
        arrays = _read_model(model)
        _check_reading(model, arrays, _seen(x[:: max(1, len(x) // 50), own]))
        arrays["feature"] = own.astype(np.int32)[arrays["feature"]]
        for name in ("baseline", "value"):
            arrays[name] = np.ldexp(arrays[name], exponent[target])
        read.append(arrays)
    return _stack(read)


def _stack(models: list[dict[str, NDArray[Any]]]) -> dict[str, Any]:
    """Return the arrays of all targets in one of each kind, without leaves that no tree has."""
    arrays = {name: np.array([model[name] for model in models]) for name in _DTYPES}
    highest = int(arrays["left_leaves"].max(initial=0)).bit_length()  # the leaf to the right of it is in no left branch
    for name in ("value", "threshold", "feature", "missing_left", "left_leaves"):
        arrays[name] = np.ascontiguousarray(arrays[name][..., : highest + (name == "value")])
    return arrays


# Evaluation -----------------------------------------------------------------------------------------------------------


def _blocks(rows: int, trees: int) -> Iterator[slice]:
    """Yield the rows in blocks, such that the trees' leaves of a block stay in a core's cache."""
    size = max(1, _BLOCK // max(1, trees))
    return (slice(first, first + size) for first in range(0, rows, size))


def _remaining_leaves(
    rows: int,
    features: int,
    threshold: Array,
    feature: NDArray[Any],
    missing_left: NDArray[np.bool_],
    left_leaves: NDArray[np.int32],
) -> "_Scan | _Table":
    """Return the quicker of two functions from columns (F, rows) to the leaves of each tree that remain, as bits."""
    if len(feature) == 1 and feature.size > 0 and rows >= _TABLE_ROWS:
        columns = np.flatnonzero(np.bincount(feature.ravel()))
        if len(columns) <= min(_TABLE_COLUMNS, rows // _TABLE_ROWS):
            return _Table(columns, threshold[0], feature[0], missing_left[0], left_leaves[0])
    return _Scan(features, threshold, feature, missing_left, left_leaves)


def lowest_bit(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the position of the lowest bit of positive numbers: the exponent of that bit as a float32."""
    lowest = numbers & -numbers
    return cast(NDArray[np.int32], (lowest.astype(np.float32).view(np.int32) >> 23) - 127)


class _Scan:
    """Leaves that remain, found by comparing with every split: the quicker way for few rows or many columns."""

    def __init__(
        self,
        features: int,
        threshold: Array,
        feature: NDArray[Any],
        missing_left: NDArray[np.bool_],
        left_leaves: NDArray[np.int32],
    ) -> None:
        # splits first, so that what is compared and excluded at once is contiguous: (splits, trees of all models, 1)
        def arranged(array: NDArray[Any]) -> NDArray[Any]:
            models, trees, splits = array.shape
            return np.ascontiguousarray(array.reshape(models * trees, splits).T)[:, :, None]

        self.threshold, self.left_leaves = arranged(threshold), arranged(left_leaves)
        self.feature = arranged(feature)[:, :, 0]
        self.feature_or_twin = arranged(feature + features * missing_left)[:, :, 0]

    def __call__(self, x: Array) -> NDArray[np.int32]:
        """Return the leaves that remain of each tree for columns x (F, rows), as bits: (trees of all models, rows)."""
        feature, missing = self.feature, np.isnan(x)
        if missing.any():
            # each column twice: for splits where missing values go right they are larger than any threshold
            x = np.concatenate([np.where(missing, np.inf, x), np.where(missing, -np.inf, x)])
            feature = self.feature_or_twin
        splits, trees = feature.shape
        excluded = np.zeros((trees, x.shape[1]), dtype=np.int32)
        size = max(1, _BLOCK // max(1, excluded.size))
        for first in range(0, splits, size):
            part = slice(first, first + size)
            right = x[feature[part]] > self.threshold[part]
            excluded |= np.bitwise_or.reduce(right * self.left_leaves[part], axis=0)
        return ~excluded & np.int32(2**31 - 1)


class _Table:
    """Leaves that remain, found by one look into a table for each column: the quicker way for many rows.

    The thresholds of all splits at a column divide its values into ranges. For every range, and for missing values, a
    table holds which leaves of each tree remain after all splits at that column. What remains after all columns is in
    the tables of all of them.
    """

    def __init__(
        self,
        columns: NDArray[np.int64],
        threshold: Array,
        feature: NDArray[Any],
        missing_left: NDArray[np.bool_],
        left_leaves: NDArray[np.int32],
    ) -> None:
        self.tables = []
        for column in columns:
            tree, split = np.nonzero((feature == column) & (left_leaves > 0))
            at = threshold[tree, split]
            # a missing value is sorted after infinity, so that its range is the last
            ends, range_before = np.unique(np.append(at, np.inf), return_inverse=True)
            table = np.zeros((len(ends) + 1, len(feature)), dtype=np.int32)
            excluded = left_leaves[tree, split]
            np.bitwise_or.at(table, (range_before[:-1] + 1, tree), excluded)
            np.bitwise_or.accumulate(table[:-1], axis=0, out=table[:-1])
            right = ~missing_left[tree, split]
            np.bitwise_or.at(table[-1], tree[right], excluded[right])
            self.tables.append((int(column), ends, ~table & np.int32(2**31 - 1)))

    def __call__(self, x: Array) -> NDArray[np.int32]:
        """Return the leaves that remain of each tree for columns x (F, rows), as bits: (trees, rows)."""
        remaining: NDArray[np.int32] | None = None
        for column, ends, table in self.tables:
            here = table.take(np.searchsorted(ends, x[column]), axis=0)
            remaining = here if remaining is None else np.bitwise_and(remaining, here, out=remaining)
        assert remaining is not None  # there is at least one column
        return np.ascontiguousarray(remaining.T)
