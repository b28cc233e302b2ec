"""Trees as further features of a table: learned out of fold, and evaluated by one module.

Trees of `sklearn.ensemble.HistGradientBoostingRegressor` predict targets that jump or depend on few columns better than
a network does, and a network that sees their prediction as a feature takes it from there. The forest of
`sklearn.ensemble.ExtraTreesRegressor` is a second such feature. Its leaves hold one row each, so its mean is an average
over near neighbours. A file with a forest therefore reveals as much about the targets as a table of neighbours would.

A network must not see predictions of trees for rows that these trees have learned from, because these are too good. So
the rows are divided into folds, and each fold is predicted by trees that learned from the others. New rows are
predicted by trees that learned from all rows, and only those are kept. A mean of the trees of all folds would be
another kind of feature: if a row has a near twin, all trees of a fold know the twin, or none does.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from howsure.errors import HowsureError, InputError

__all__ = ["PLACES", "PLACE_BITS", "TreeEnsemble", "TreeFeatures", "fit_trees", "trees_for"]

Array = NDArray[np.float64]

MAX_VALUE = 1e300  # values of x beyond it, infinite ones too, count as ±it: so all differences are finite
MAX_ROWS = 50_000  # that trees learn from: more rows cost more and change 100 trees of 31 leaves little
MAX_COLUMNS = 100  # that trees look at: each costs as much as 10,000 rows, and useless ones do harm
MAX_RANKED_VALUES = 5_000_000  # that are ranked to choose columns: half a second

BOOSTED_TREES = 100  # scikit-learn's own default
BOOSTED_LEAVES = 31  # of a tree, scikit-learn's own default

FOREST_FOLDS = 4  # eight cost twice as much, and the time is better spent on more trees
MAX_FOREST_TREES = 32  # for a target: more are a little better still, but all cost in step
MIN_FOREST_TREES = 12  # for a target of a large table, where each tree takes long
TREES_TIMES_ROWS = 600_000  # between the two: a product that takes about two seconds
MAX_DEPTH = 64  # of a tree: 50 is usual for 50,000 rows
ALL_COLUMNS = 16  # up to this number, all are tried at each split of a forest. Of more, a third
FOREST_RANGE = 8.0  # in units of a column's spread: outliers are clipped, or random thresholds separate only them
MAX_EXPONENT = 1000  # of the powers of two of a forest's units

PLACE_BITS = 32  # of a step that are the column. The others are the distance
PLACES = (1 << PLACE_BITS) - 1
STEPS = 4  # after which pairs that have arrived at a leaf are put aside
BLOCK = 1 << 18  # pairs of a tree and a row that take their steps together: they stay in a core's cache

DTYPES = {  # of the buffers of an ensemble; the numbers of nodes keep theirs
    **dict.fromkeys(("centre", "unit", "limit", "start", "divisor", "offset", "factor"), torch.float64),
    **dict.fromkeys(("columns", "leaves"), torch.int32),
    "feature": torch.int8,
    "number": None,
}


class TreeEnsemble(nn.Module):
    r"""Sums of regression trees for several targets: features (N, F) → predictions (N, T).

    .. math:: \hat y_t = o_t + 2^{e_t}\,\frac{b_t + \sum_k f_{tk}(z)}{d}, \qquad z = (x - c) \cdot u

    The nodes of a tree follow each other as in a walk that goes left first: a split, all of its left branch, all of its
    right branch. So the left child of node i is node i + 1, and the right child follows from the order. A row goes
    right if its value exceeds the number of the split, compared in the dtype of ``number``.

    Args:
        **values: the buffers, which are described below; without scales, centres and offsets, x is compared as it is.

    Raises:
        InputError: if the nodes are not trees of a bounded depth, or look at columns that do not exist.
    """

    columns: Tensor  # of x that the trees of a target know, (T, C)
    centre: Tensor  # c, (T, C)
    unit: Tensor  # u, a power of two, (T, C)
    limit: Tensor  # largest |z|, ()
    start: Tensor  # b, (T,)
    divisor: Tensor  # d, (T,)
    offset: Tensor  # o, (T,)
    factor: Tensor  # 2^e, (T,)
    leaves: Tensor  # of each tree, (T, trees)
    feature: Tensor  # column among those known that a split looks at, −1 for a leaf, (nodes,)
    number: Tensor  # threshold of a split, value of a leaf, (nodes,)
    roots: Tensor  # first node of each tree, (T · trees,)
    threshold: Tensor  # of each node; −∞ for a leaf, where all rows go right, (nodes,)
    step: Tensor  # distance from the left to the right child, and the column among all of z, in one number, (nodes,)

    def __init__(self, **values: Any) -> None:
        super().__init__()
        each = np.shape(values["columns"])
        one, zero = torch.ones(each[0]), torch.zeros(each[0])
        known = {
            "centre": torch.zeros(each),
            "unit": torch.ones(each),
            "limit": MAX_VALUE,
            "start": zero,
            "offset": zero,
        }
        known |= {"divisor": one, "factor": one} | values
        for name, dtype in DTYPES.items():
            self.register_buffer(name, torch.as_tensor(known[name], dtype=dtype, device="cpu"))
        self._prepare()

    @property
    def trees(self) -> int:
        """Number of trees of each target."""
        return self.leaves.shape[1]

    def _prepare(self) -> None:
        """Compute the children of all nodes from their order, after checking that the nodes are trees."""
        leaves, feature = self.leaves.flatten().cpu().numpy().astype(np.int64), self.feature.cpu().numpy()
        known = self.columns.shape[1]
        if (leaves < 1).any() or (2 * leaves - 1).sum() != len(feature) or not -1 <= feature.min() <= feature.max():
            raise InputError("inconsistent model file: the nodes of the trees do not fit their leaves")
        if feature.max() >= known or int(self.columns.min()) < 0:
            raise InputError("inconsistent model file: the trees look at columns that do not exist")
        sizes = 2 * leaves - 1
        roots = np.cumsum(sizes) - sizes
        right = _right_children(sizes, feature)
        self.depth = _depth(roots, right, feature)
        target = np.repeat(np.arange(len(roots)) // self.trees, sizes)
        leaf = torch.from_numpy(feature < 0)
        place = np.where(feature < 0, 0, target * known + feature)
        # the right child of a leaf is the leaf itself, so that rows that have arrived may take further steps
        jump = np.where(feature < 0, -1, right - np.arange(1, len(feature) + 1))
        threshold = self.number.masked_fill(leaf.to(self.number.device), -torch.inf)
        for name, value in (("roots", roots), ("step", (jump << PLACE_BITS) + place)):
            self.register_buffer(name, torch.from_numpy(value).to(self.number.device), persistent=False)
        self.register_buffer("threshold", threshold, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            total = self.sums(x)
        else:
            size = max(1, BLOCK // max(1, self.roots.numel()))
            total = (
                torch.cat([self.sums(part) for part in x.split(size)]) if len(x) else x.new_zeros(0, len(self.start))
            )
        return total / self.divisor * self.factor + self.offset

    def units(self, x: Tensor) -> Tensor:
        """Return the values that nodes compare, (N, T · C)."""
        known = x.clamp(-MAX_VALUE, MAX_VALUE).index_select(1, self.columns.flatten())
        z = (known - self.centre.flatten()) * self.unit.flatten()
        return z.clamp(-self.limit, self.limit).to(self.number.dtype)

    def sums(self, x: Tensor) -> Tensor:
        """Return the start of each target plus the values of its trees, (N, T)."""
        z = self.units(x)
        # tree by tree, so that the nodes of one tree stay in a core's cache
        node, row = torch.broadcast_tensors(
            self.roots.unsqueeze(1), torch.arange(x.shape[0], device=x.device) * z.shape[1]
        )
        node = self._walk(z.flatten(), node.flatten(), row.flatten())
        values = self.number[node].double().view(*self.leaves.shape, x.shape[0])
        total = self.start.expand(x.shape[0], -1)
        for k in range(self.trees):  # one after the other, as scikit-learn adds them: another order rounds otherwise
            total = total + values[:, k].mT
        return total

    def _walk(self, z: Tensor, node: Tensor, row: Tensor) -> Tensor:
        """Return the leaf in which each pair of a tree and a row ends."""
        if torch.compiler.is_compiling():
            for _ in range(self.depth):
                node = self._step(z, node, row)
            return node
        arrived, pair = node.clone(), torch.arange(len(node), device=node.device)
        while len(node):
            for _ in range(STEPS):
                before, node = node, self._step(z, node, row)
            arrived[pair] = node
            on = (node != before).nonzero().squeeze(1)
            node, row, pair = node[on], row[on], pair[on]
        return arrived

    def _step(self, z: Tensor, node: Tensor, row: Tensor) -> Tensor:
        """Return the child of each node to which the row goes, or the node itself if it is a leaf."""
        step = self.step.index_select(0, node)
        right = z.index_select(0, row + (step & PLACES)) > self.threshold.index_select(0, node)
        return node + 1 + right * (step >> PLACE_BITS)


def _right_children(sizes: NDArray[np.int64], feature: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return the node at which the right branch of each split begins; for leaves, any node.

    Raises:
        InputError: if the nodes are not trees of these sizes.
    """
    more = np.where(feature < 0, -1, 1)
    tree = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    # branches of its tree that have not begun before a node, the one that begins with it included
    places = np.cumsum(more) - more + tree
    ends = np.cumsum(sizes) - 1
    if (places < 1).any() or (places[ends] != 1).any() or (feature[ends] >= 0).any():
        raise InputError("inconsistent model file: the nodes of the trees do not fit their leaves")
    # the left branch is complete when next as many places are open as before the split
    order = np.lexsort((np.arange(len(places)), places, tree))
    right = np.zeros(len(order), dtype=np.int64)
    right[order[:-1]] = order[1:]
    return right


def _depth(roots: NDArray[np.int64], right: NDArray[np.int64], feature: NDArray[np.int8]) -> int:
    """Return the largest number of splits between a root and a leaf; raise if it is above ``MAX_DEPTH``."""
    at = roots
    for depth in range(MAX_DEPTH + 1):
        at = at[feature[at] >= 0]
        if not len(at):
            return depth
        at = np.concatenate([at + 1, right[at]])
    raise InputError(f"inconsistent model file: a tree is deeper than {MAX_DEPTH}")


class TreeFeatures(nn.Module):
    """Predictions of boosted trees and of a forest for several targets: (N, F) → (N, 2 T)."""

    def __init__(self, boosted: TreeEnsemble, forest: TreeEnsemble) -> None:
        super().__init__()
        self.boosted, self.forest = boosted, forest

    @property
    def outputs(self) -> int:
        """Number of columns: 2 T."""
        return 2 * len(self.boosted.start)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.boosted(x), self.forest(x)], 1)


def trees_for(rows: int) -> int:
    """Return the number of trees of a forest for each target of a table with this number of rows."""
    return int(np.clip(TREES_TIMES_ROWS // max(1, rows), MIN_FOREST_TREES, MAX_FOREST_TREES))


# Fitting --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def fit_trees(
    x: Array,
    y: Array,
    seed: int,
    *,
    folds: int = 8,
    weights: Array | None = None,
) -> tuple[TreeFeatures, Array]:
    """Return trees learned from all rows, and predictions (N, 2 T) of each row by trees that have not seen it.

    A row and its copy usually land in different folds. Then the trees that predict the one have seen the other, and its
    out-of-fold prediction is as flattering as an in-fold one.

    Args:
        x: finite values (N, F). Values beyond ±1e300 count as ±1e300.
        y: targets (N, T), finite, at most 1e300 in size.
        seed: decides the folds, and which rows of a large table the trees learn from.
        folds: number of folds; fewer if there are not two rows for each, and at least two.
        weights: of the rows (N,), positive; only their ratios matter.
    """
    rng = np.random.default_rng(seed)
    weights = np.ones(len(x)) if weights is None else weights
    fold_of_row = _folds(rng, len(x), folds)
    # a power of two loses no digit; without it, squares and scikit-learn's float32 gradients overflow or vanish
    exponent = np.frexp(np.abs(y).max(axis=0))[1]
    x, y = np.clip(x, -MAX_VALUE, MAX_VALUE), np.ldexp(y, -exponent)
    forest_of = partial(_grow_forest, trees=trees_for(min(len(x), MAX_ROWS)))
    boosted, own = _out_of_fold(_grow_boosted, x, y, fold_of_row, weights, exponent, rng)
    forest, near = _out_of_fold(forest_of, x, y, fold_of_row % FOREST_FOLDS, weights, exponent, rng, limit=FOREST_RANGE)
    return TreeFeatures(boosted, forest), np.concatenate([own, near], axis=1)


def _out_of_fold(
    grow: Callable[..., dict[str, Any]],
    x: Array,
    y: Array,
    fold_of_row: NDArray[np.int64],
    weights: Array,
    exponent: NDArray[Any],
    rng: np.random.Generator,
    **shared: Any,
) -> tuple[TreeEnsemble, Array]:
    """Return trees that learned from all rows, and predictions of each row by trees that have not seen its fold."""
    out = np.empty(y.shape)
    for fold in range(-1, fold_of_row.max() + 1):  # fold −1 leaves out no rows
        rows = _sample(rng, np.flatnonzero(fold_of_row != fold))
        columns, weight = enumerate(_promising_columns(x, y, rows)), _around_one(weights[rows])
        grown = [
            {"columns": known} | grow(x[np.ix_(rows, known)], y[rows, t], weight, exponent[t], rng)
            for t, known in columns
        ]
        trees = _joined(grown, **shared)
        out[fold_of_row == fold] = trees(torch.from_numpy(x[fold_of_row == fold])).numpy()
        if fold < 0:
            whole = trees
    return whole, out


def _folds(rng: np.random.Generator, rows: int, folds: int) -> NDArray[np.int64]:
    """Return the fold of each row."""
    return rng.permutation(rows) % max(2, min(folds, rows // 2))


def _sample(rng: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at most ``MAX_ROWS`` of the rows, sorted."""
    return np.sort(rng.choice(rows, min(len(rows), MAX_ROWS), replace=False))


def _around_one(weights: Array) -> Array | None:
    """Return the weights divided by their mean, as scikit-learn's limits on a split expect them; None if all alike."""
    if bool((weights == weights[0]).all()):
        return None
    weights = weights / weights.max()  # whose sum cannot overflow
    weights /= weights.mean()
    return weights


def _promising_columns(x: Array, y: Array, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the columns that the trees of each target may look at: all, or the most promising of many.

    A column is promising by the rank correlation of the target with its value, or with the distance of its value from
    the middle, whichever is larger. Only rows that the trees learn from count.
    """
    if x.shape[1] <= MAX_COLUMNS:
        return [np.arange(x.shape[1])] * y.shape[1]
    from scipy.stats import rankdata

    few = rows[:: max(1, -(-len(rows) * x.shape[1] // MAX_RANKED_VALUES))]
    middle = (len(few) + 1) / 2
    rank, target = rankdata(x[few], axis=0), rankdata(y[few], axis=0) - middle
    score = np.zeros((y.shape[1], x.shape[1]))
    for values in (rank - middle, np.abs(rank - middle)):
        values -= values.mean(axis=0)
        size = np.sqrt((values**2).sum(axis=0))
        np.maximum(score, np.abs(target.T @ values) / np.where(size > 0, size, np.inf), out=score)
    order = np.argsort(-score, axis=1, kind="stable")[:, :MAX_COLUMNS]
    return list(np.sort(order, axis=1))


# From scikit-learn ----------------------------------------------------------------------------------------------------


def _joined(parts: Sequence[dict[str, Any]], **shared: Any) -> TreeEnsemble:
    """Return the ensemble of the trees of each target."""
    values = {name: [part[name] for part in parts] for name in parts[0]}
    flat = ("feature", "number")
    return TreeEnsemble(
        **{name: np.concatenate(own) if name in flat else np.stack(own) for name, own in values.items()}, **shared
    )


def _read_trees(read: Callable[..., tuple[dict[str, Any], Array]], model: Any, x: NDArray[Any]) -> dict[str, Any]:
    """Return the trees of a model of scikit-learn for one target, after comparing predictions of some rows.

    scikit-learn has no public access to its boosted trees. ``_baseline_prediction`` and ``_predictors[i][k].nodes``,
    whose order is the order of a walk that goes left first, are private, and the same from version 1.6 to 1.9 at least.

    Args:
        read: returns the trees, and predictions of rows by scikit-learn.
        model: as fitted.
        x: rows, as the model sees them.
    """
    few, cause = x[:: max(1, len(x) // 50)], None
    try:
        trees, expected = read(model, few)
        own = _joined([trees | {"columns": np.arange(x.shape[1])}])
        if np.array_equal(own(torch.from_numpy(few.astype(np.float64)))[:, 0].numpy(), expected):
            return trees
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        cause = error
    import sklearn

    raise HowsureError(
        f"scikit-learn {sklearn.__version__} keeps its trees in an unknown layout",
        hint="install a version from 1.6 to 1.9, or fit without trees",
    ) from cause


# Boosted trees --------------------------------------------------------------------------------------------------------


def _grow_boosted(x: Array, y: Array, weights: Array | None, exponent: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return boosted trees learned from rows x (N, C) and one target y (N,), which is divided by 2^exponent."""
    model = _fit_boosted_target(x, y, weights, rng)
    trees = _read_trees(_boosted_nodes, model, x)
    split = trees["feature"] >= 0
    trees["number"][split] = _between_rows(trees["number"][split], trees["feature"][split], x)
    return {"factor": np.exp2(float(exponent))} | trees


def _fit_boosted_target(x: Array, y: Array, weights: Array | None, rng: np.random.Generator) -> Any:
    """Return a fitted regressor of scikit-learn, with its defaults, but without early stopping."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    model = HistGradientBoostingRegressor(
        max_iter=BOOSTED_TREES,
        max_leaf_nodes=BOOSTED_LEAVES,
        early_stopping=False,
        random_state=int(rng.integers(2**31)),
    )
    # one thread of this process, as in `howsure.threads`: on a busy machine several wait for each other
    with threadpool_limits(limits=1, user_api="openmp"):
        return model.fit(x, y, sample_weight=weights)


def _boosted_nodes(model: Any, x: Array) -> tuple[dict[str, Any], Array]:
    """Return the trees of a boosted model, and its predictions of x."""
    trees = [tree.nodes for (tree,) in model._predictors]
    nodes = np.concatenate(trees)
    leaf = nodes["is_leaf"] == 1
    # a threshold is infinite where only missing values would go right
    return {
        "leaves": np.array([(tree["is_leaf"] == 1).sum() for tree in trees]),
        "feature": np.where(leaf, -1, nodes["feature_idx"]),
        "number": np.where(leaf, nodes["value"], np.minimum(nodes["num_threshold"], MAX_VALUE)),
        "start": np.asarray(model._baseline_prediction).reshape(()),
    }, model.predict(x)


def _between_rows(threshold: Array, column: NDArray[np.integer], x: Array) -> Array:
    """Return thresholds halfway between the values of rows on both sides, which divide the rows x as before.

    A threshold of scikit-learn may be the value of a row, and rounding would decide where an equal row goes.
    """
    moved = threshold.copy()
    for k in np.unique(column):
        here, values = column == k, np.sort(x[:, k])
        above = np.searchsorted(values, threshold[here], side="right")
        low, high = values[(above - 1).clip(0)], values[above.clip(max=len(values) - 1)]
        middle = low + (high - low) / 2
        apart = (above > 0) & (above < len(values)) & (middle < high)
        moved[here] = np.where(apart, middle, threshold[here])
    return moved


# A forest -------------------------------------------------------------------------------------------------------------


def _grow_forest(
    x: Array, y: Array, weights: Array | None, exponent: int, rng: np.random.Generator, trees: int
) -> dict[str, Any]:
    """Return a forest learned from rows x (N, C) and one target y (N,), which is divided by 2^exponent.

    scikit-learn compares float32, calls columns constant that vary by less than 1e-7, and leaves pure whose variance is
    below 2e-16. So each column is moved by its median and divided by a power of two near its spread before it becomes
    float32, and the target, too.
    """
    centre, shift = _units_of(x)
    with np.errstate(over="ignore"):
        z = np.clip(np.ldexp(x - centre, -shift), -FOREST_RANGE, FOREST_RANGE).astype(np.float32, order="C")
    baseline, size = np.average(y, weights=weights), np.frexp(np.std(y))[1]
    model = _fit_forest_target(z, np.ldexp(y - baseline, -size), weights, trees, rng)
    power = np.exp2(float(exponent))
    own = {"centre": centre, "unit": np.exp2(-shift.astype(np.float64)), "divisor": trees}
    own |= {"offset": baseline * power, "factor": 2.0**size * power}
    return own | _read_trees(_forest_nodes, model, z)


def _units_of(x: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the centre of each column, and the exponent of the power of two near its spread."""
    bottom, low, centre, high, top = np.quantile(x, [0.01, 0.1, 0.5, 0.9, 0.99], axis=0, method="nearest")
    spread = np.maximum(high - low, top / FOREST_RANGE - bottom / FOREST_RANGE)
    # most values may be equal: then only the others count
    spread = np.where(spread > 0, spread, np.max(np.abs(x - centre), axis=0))
    return centre, np.clip(np.frexp(spread)[1], -MAX_EXPONENT, MAX_EXPONENT).astype(np.int64)


def _fit_forest_target(
    x: NDArray[np.float32], y: Array, weights: Array | None, trees: int, rng: np.random.Generator
) -> Any:
    """Return a fitted forest of scikit-learn."""
    from sklearn.ensemble import ExtraTreesRegressor

    tried, seed = max(min(x.shape[1], ALL_COLUMNS), x.shape[1] // 3), int(rng.integers(2**31))
    model = ExtraTreesRegressor(trees, max_depth=MAX_DEPTH, max_features=tried, n_jobs=1, random_state=seed)
    # a leaf's mean is divided by its weight, which must not vanish
    return model.fit(x, y, sample_weight=None if weights is None else np.maximum(weights, 1e-12))


def _forest_nodes(model: Any, x: NDArray[np.float32]) -> tuple[dict[str, Any], Array]:
    """Return the trees of a forest, and the sums of their predictions of x."""
    trees = [tree.tree_ for tree in model.estimators_]
    leaf = np.concatenate([tree.children_left < 0 for tree in trees])
    threshold = np.concatenate([tree.threshold for tree in trees])
    value = np.concatenate([tree.value.reshape(-1) for tree in trees]).astype(np.float32)
    # a float32 exceeds a float64 if it exceeds the largest float32 that does not
    below = threshold.astype(np.float32)
    below = np.where(below > threshold, np.nextafter(below, np.float32(-np.inf)), below)
    return {
        "leaves": np.array([tree.n_leaves for tree in trees]),
        "feature": np.where(leaf, -1, np.concatenate([tree.feature for tree in trees])).astype(np.int8),
        "number": np.where(leaf, value, below),
    }, sum(tree.predict(x).reshape(-1).astype(np.float32).astype(np.float64) for tree in trees)
