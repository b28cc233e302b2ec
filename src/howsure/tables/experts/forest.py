"""A forest as a feature of a table: trees grown to single rows, evaluated here, and saved as plain arrays.

Trees of `sklearn.ensemble.ExtraTreesRegressor` divide the rows at random thresholds until every leaf holds one row, or
rows with one target. Their mean is an average over near neighbours, in a distance that the targets have chosen: it
knows what boosted trees, which stop early, do not, above all what rows much like this one had as targets. So the
leaves hold targets of training rows, and a file with a forest tells as much about them as a table of neighbours would.

**Units.** scikit-learn compares float32, calls columns constant that vary by less than 1e-7, and leaves pure whose
variance is below 2e-16, whatever the units. So each column is moved by its median and divided by a power of two near
its spread before it becomes float32, and each target likewise. Missing values count as the median. In these units a
forest is, to the last bit, what scikit-learn predicts, with leaves rounded to float32.

**Form.** The nodes of a tree follow each other as in a walk that goes left first: a split, all of its left branch, all
of its right branch. Then nothing else says where branches begin, and what a file can say about that is easy to check.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.errors import HowsureError, InputError

__all__ = ["FAR", "LARGEST", "Forest", "arrays_of", "in_units", "right_children", "roots_of", "trees_for"]

Array = NDArray[np.float64]

LARGEST = 1e300  # values of x beyond it, infinite ones too, count as ±it: so all differences are finite
MOST_TREES = 32  # for a target: more are a little better still, but all cost in step
FEWEST_TREES = 12  # for a target of a large table, where each tree takes long
TREES_TIMES_ROWS = 600_000  # between the two: a product that takes about two seconds
MOST_DEPTH = 64  # of a tree: 50 is usual for 50,000 rows, so only tables of a strange kind notice
MOST_LEAVES = 2**20  # of a tree in a file
MOST_COLUMNS = 128  # that a target's trees may look at: their numbers are 7 bits of a node
ALL_COLUMNS = 16  # up to so many are tried at each split; of more a third, as each costs the same

FAR = 8  # in units of a column's spread: outliers are no further away, or random thresholds would find only them
_MOST_SHIFT = 3000  # of powers of two: float64 reaches from 2^−1074 to 2^1024
_BLOCK = 2**13  # pairs of a tree and a row that take their steps together: they stay in a core's cache
_STEPS = 4  # after which pairs that have arrived at a leaf are put aside


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees of several targets, the same number for each. An object may be used by several threads.

    Attributes:
        columns: the columns of x that a target's trees know, (targets, C).
        centre: what they are moved by, (targets, C).
        shift: the power of two that they are divided by then, (targets, C).
        baseline: what the mean of the trees is added to, (targets,).
        exponent: the power of two that it is multiplied by before, (targets,).
        leaves: how many each tree has, (targets, trees).
        feature: the number of the column that a node looks at among those known; −1 for a leaf, (nodes of all trees,).
        number: for a split, what a value must exceed to go right; what a leaf predicts; (nodes of all trees,).
    """

    columns: NDArray[np.int32]
    centre: Array
    shift: NDArray[np.int32]
    baseline: Array
    exponent: NDArray[np.int32]
    leaves: NDArray[np.int32]
    feature: NDArray[np.int8]
    number: NDArray[np.float32]
    _steps: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Prepare what steps from node to node look up."""
        object.__setattr__(self, "_steps", _steps(self.leaves, self.feature, self.number))

    @classmethod
    def grow(
        cls,
        x: Array,
        y: Array,
        weights: Array | None,
        columns: Sequence[NDArray[np.int64]],
        trees: int,
        rng: np.random.Generator,
    ) -> Self:
        """Return a forest learned from rows x (N, F) and y (N, T) of moderate size, at most 1.

        Args:
            x: values; NaN is missing.
            y: targets.
            weights: how much each row counts (N,), positive, around 1; None for all alike.
            columns: for each target, those of x that its trees may look at, at most MOST_COLUMNS.
            trees: how many a target has.
            rng: decides what the trees try.
        """
        models = []
        for target, known in enumerate(columns):
            arrays = _units(x[:, known], y[:, target], weights) | {"columns": known.astype(np.int32)}
            z = in_units(x[:, known], arrays["centre"], arrays["shift"])
            learned = np.ldexp(y[:, target] - arrays["baseline"], -arrays["exponent"])
            model = _fit_model(z, learned, weights, trees, int(rng.integers(2**31)))
            models.append(arrays | _read_model(model, z[:: max(1, len(z) // 50)]))
        joined = {
            name: (np.concatenate if name in ("feature", "number") else np.stack)([m[name] for m in models])
            for name in _DTYPES
        }
        return cls(**joined)

    def predict(self, x: Array) -> Array:
        """Return the means of the trees for rows x (N, F) of float64, (N, T)."""
        targets, trees = self.leaves.shape
        roots = roots_of(self.leaves)
        out = np.empty((len(x), targets))
        for first in range(0, len(x), _BLOCK):
            rows = slice(first, first + _BLOCK)
            for target in range(targets):
                z = in_units(x[rows, self.columns[target]], self.centre[target], self.shift[target])
                total = np.zeros(len(z))
                size = max(1, _BLOCK // len(z))  # of few rows, many trees at once
                for tree in range(0, trees, size):
                    # one tree after the other, as scikit-learn does: another order would round otherwise
                    for added in _values(self._steps, self.number, z, roots[target, tree : tree + size]):
                        total += added
                out[rows, target] = np.ldexp(total / trees, self.exponent[target]) + self.baseline[target]
        return out

    def scaled(self, exponent: NDArray[Any]) -> Self:
        """Return the same forest for targets that are 2^exponent (T,) times as large."""
        baseline = np.ldexp(self.baseline, exponent)
        return replace(self, baseline=baseline, exponent=(self.exponent + exponent).astype(np.int32))

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all arrays as tensors, by name."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in _DTYPES}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], features: int, targets: int) -> Self:
        """Return the forest that `tensors` described, after checking that any x leads to finite predictions.

        Raises:
            InputError: if a tensor is missing, or of another dtype or shape, or has values that no forest has.
        """
        arrays = arrays_of(tensors, _DTYPES, "a forest", "a forest needs")
        _check_shapes(arrays, targets)
        _check_values(arrays, features)
        return cls(**arrays)


def arrays_of(
    tensors: dict[str, Tensor], dtypes: dict[str, torch.dtype], what: str, needs: str
) -> dict[str, NDArray[Any]]:
    """Return copies of the tensors of a file as arrays, after checking that there are these, and of these dtypes."""
    if set(tensors) != set(dtypes):
        raise InputError(f"{needs} the tensors {', '.join(dtypes)}, not {', '.join(map(str, tensors))}")
    for name, dtype in dtypes.items():
        if not isinstance(tensors[name], Tensor) or tensors[name].dtype != dtype:
            raise InputError(f"the {name} of {what} is not a tensor of {dtype}")
    return {name: tensors[name].detach().cpu().contiguous().numpy().copy() for name in dtypes}


_DTYPES = {
    "columns": torch.int32,
    "centre": torch.float64,
    "shift": torch.int32,
    "baseline": torch.float64,
    "exponent": torch.int32,
    "leaves": torch.int32,
    "feature": torch.int8,
    "number": torch.float32,
}


def trees_for(rows: int) -> int:
    """Return how many trees a target of a table with so many rows has."""
    return int(np.clip(TREES_TIMES_ROWS // max(1, rows), FEWEST_TREES, MOST_TREES))


# Checks ---------------------------------------------------------------------------------------------------------------


def _check_shapes(arrays: dict[str, NDArray[Any]], targets: int) -> None:
    """Raise unless the arrays of a file have shapes that belong together."""
    columns, leaves = arrays["columns"].shape, arrays["leaves"].shape
    if len(columns) != 2 or columns[0] != targets or not 1 <= columns[1] <= MOST_COLUMNS:
        raise InputError(f"the columns of a forest have the shape {columns}, not ({targets}, 1 to {MOST_COLUMNS})")
    if len(leaves) != 2 or leaves[0] != targets or not 1 <= leaves[1] <= MOST_TREES:
        raise InputError(f"the leaves of a forest have the shape {leaves}, not ({targets}, 1 to {MOST_TREES})")
    if not bool(((arrays["leaves"] >= 1) & (arrays["leaves"] <= MOST_LEAVES)).all()):
        raise InputError(f"a forest has trees without leaves, or with more than {MOST_LEAVES}")
    count = (int((2 * arrays["leaves"].astype(np.int64) - 1).sum()),)
    expected = {"centre": columns, "shift": columns, "baseline": (targets,), "exponent": (targets,)}
    for name, shape in (expected | {"feature": count, "number": count}).items():
        if arrays[name].shape != shape:
            raise InputError(f"the {name} of a forest has the shape {arrays[name].shape}, not {shape}")


def _check_values(arrays: dict[str, NDArray[Any]], features: int) -> None:
    """Raise unless all nodes form trees of bounded depth, look at columns that exist, and predict finite numbers."""
    columns, feature, number, leaves = (arrays[name] for name in ("columns", "feature", "number", "leaves"))
    if not bool(
        ((columns >= 0) & (columns < features)).all() and ((feature >= -1) & (feature < columns.shape[1])).all()
    ):
        raise InputError(f"a forest looks at columns that do not exist: there are {features}")
    _check_trees(leaves, feature)
    if not bool((np.abs(arrays["centre"]) <= LARGEST).all()):
        raise InputError("a forest has centres that are NaN or beyond ±1e300")
    if not all(bool((np.abs(arrays[name].astype(np.int64)) <= _MOST_SHIFT).all()) for name in ("shift", "exponent")):
        raise InputError(f"a forest has powers of two beyond ±{_MOST_SHIFT}")
    nodes = np.add.reduceat(2 * leaves.astype(np.int64) - 1, [0], axis=1)[:, 0]
    largest = np.maximum.reduceat(np.where(np.isnan(number), np.inf, np.abs(number)), np.cumsum(nodes) - nodes)
    with np.errstate(over="ignore"):
        largest = np.abs(arrays["baseline"]) + np.ldexp(largest.astype(np.float64), arrays["exponent"])
    if not bool((largest < np.inf).all()):
        raise InputError("a forest has thresholds, leaves or baselines that are NaN or too large")


def _check_trees(leaves: NDArray[np.int32], feature: NDArray[np.int8]) -> None:
    """Raise unless the nodes are trees with so many leaves each, of a depth that evaluation can be asked to take."""
    ends = np.cumsum(2 * leaves.reshape(-1).astype(np.int64) - 1)
    places = _open_places(leaves, feature)
    # a tree is at its end when no place is open: not before, and then
    if bool((places < 1).any()) or bool(((feature >= 0)[ends - 1] | (places[ends - 1] != 1)).any()):
        raise InputError("the nodes of a forest do not form trees with so many leaves")
    right = right_children(leaves, feature)
    at = roots_of(leaves).reshape(-1)
    for _ in range(MOST_DEPTH + 1):
        at = at[feature[at] >= 0]
        at = np.concatenate([at + 1, right[at]])
    if len(at):
        raise InputError(f"a forest has trees deeper than {MOST_DEPTH}")


# Units ----------------------------------------------------------------------------------------------------------------


def _units(x: Array, y: Array, weights: Array | None) -> dict[str, NDArray[Any]]:
    """Return what moves and divides columns x and a target y such that they are about 0, and spread over about 1."""
    x = np.clip(x, -LARGEST, LARGEST)
    x[:, np.isnan(x).all(axis=0)] = 0
    bottom, low, centre, high, top = np.nanquantile(x, [0.01, 0.1, 0.5, 0.9, 0.99], axis=0, method="nearest")
    spread = np.maximum(high - low, top / FAR - bottom / FAR)
    # most values may be one and the same; then what differs from it counts
    spread = np.where(spread > 0, spread, np.nanmax(np.abs(x - centre), axis=0))
    return {
        "centre": centre,
        "shift": np.frexp(spread)[1].astype(np.int32),
        "baseline": np.asarray(np.average(y, weights=weights)),
        "exponent": np.asarray(np.frexp(np.std(y))[1], dtype=np.int32),
    }


def in_units(x: Array, centre: Array, shift: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return columns (N, C) as a forest's trees see them, contiguous and finite."""
    with np.errstate(over="ignore"):
        z = np.clip(np.ldexp(np.clip(x, -LARGEST, LARGEST) - centre, -shift), -FAR, FAR)
    return np.where(np.isnan(z), 0.0, z).astype(np.float32, order="C")


# Fitting --------------------------------------------------------------------------------------------------------------


def _fit_model(x: NDArray[np.float32], y: Array, weights: Array | None, trees: int, seed: int) -> Any:
    """Return a fitted forest of scikit-learn."""
    from sklearn.ensemble import ExtraTreesRegressor

    tried = max(min(x.shape[1], ALL_COLUMNS), x.shape[1] // 3)
    model = ExtraTreesRegressor(trees, max_depth=MOST_DEPTH, max_features=tried, n_jobs=1, random_state=seed)
    # a leaf's mean is divided by its weight, which must not vanish
    return model.fit(x, y, sample_weight=None if weights is None else np.maximum(weights, 1e-12))


def _read_model(model: Any, x: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Return the trees of a forest of scikit-learn, after checking that they predict some rows x as its own do."""
    trees = [tree.tree_ for tree in model.estimators_]
    leaf = np.concatenate([tree.children_left < 0 for tree in trees])
    threshold = np.concatenate([tree.threshold for tree in trees])
    value = np.concatenate([tree.value.reshape(-1) for tree in trees]).astype(np.float32)
    # a float32 exceeds a float64 if it exceeds the largest float32 that does not
    below = threshold.astype(np.float32)
    below = np.where(below > threshold, np.nextafter(below, np.float32(-np.inf)), below)
    arrays: dict[str, NDArray[Any]] = {
        "leaves": np.array([tree.n_leaves for tree in trees], dtype=np.int32),
        "feature": np.where(leaf, -1, np.concatenate([tree.feature for tree in trees])).astype(np.int8),
        "number": np.where(leaf, value, below),
    }
    try:
        _check_trees(arrays["leaves"][None], arrays["feature"])
        read = _values(_steps(**arrays), arrays["number"], x, roots_of(arrays["leaves"]))
        same = all((r == t.predict(x).reshape(-1).astype(np.float32)).all() for r, t in zip(read, trees, strict=True))
    except InputError:
        same = False
    if not same:
        import sklearn

        raise HowsureError(
            f"scikit-learn {sklearn.__version__} keeps the trees of a forest in an order that is not known here; "
            "install a version from 1.6 to 1.9, or fit without trees"
        )
    return arrays


# Evaluation -----------------------------------------------------------------------------------------------------------


def roots_of(leaves: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the place of each tree's first node, in the shape of leaves."""
    nodes = 2 * leaves.reshape(-1).astype(np.int64) - 1
    return (np.cumsum(nodes) - nodes).reshape(leaves.shape)


def _open_places(leaves: NDArray[np.int32], feature: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return how many branches of its tree have not begun before each node, the one that begins with it included."""
    more = np.where(feature < 0, -1, 1)
    nodes = 2 * leaves.reshape(-1).astype(np.int64) - 1
    return np.cumsum(more) - more + np.repeat(np.arange(1, len(nodes) + 1), nodes)


def right_children(leaves: NDArray[np.int32], feature: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return where the right branch of each split begins; for leaves, anything."""
    # once the left branch is complete: when next as many places are open as before the split
    order = np.argsort(_open_places(leaves, feature).astype(np.int16), kind="stable")
    right = np.zeros(len(order), dtype=np.int64)
    right[order[:-1]] = order[1:]
    return right


def _steps(leaves: NDArray[np.int32], feature: NDArray[np.int8], number: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return for each node what a step from it needs, as the two halves of one integer, to be looked up at once."""
    halves = np.empty((len(feature), 2), dtype=np.int32)
    # how many nodes further the right branch begins than the left, and the column: 7 bits
    further = right_children(leaves, feature) - np.arange(1, len(feature) + 1)
    halves[:, 0] = np.where(feature < 0, -1 << 7, (further << 7) + feature)
    # from a leaf all go right, which leads to itself: so rows that have arrived may take further steps
    halves[:, 1] = np.where(feature < 0, np.float32(-np.inf), number).view(np.int32)
    return halves.view(np.int64)[:, 0]


def _values(
    steps: NDArray[np.int64], number: NDArray[np.float32], z: NDArray[np.float32], roots: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return what trees that begin at these roots predict for rows z in a forest's units, (trees, rows)."""
    rows, columns = z.shape
    flat = z.reshape(-1)
    arrived = np.repeat(roots, rows)
    node, row, pair = arrived.copy(), np.tile(np.arange(rows) * columns, len(roots)), np.arange(len(arrived))
    while len(node):
        for _ in range(_STEPS):
            before, halves = node, steps.take(node).view(np.int32)
            right = flat.take(row + (halves[::2] & 127)) > halves[1::2].view(np.float32)
            node = before + 1 + right * (halves[::2] >> 7)
        arrived[pair] = node
        on = np.flatnonzero(node != before)
        node, row, pair = node[on], row[on], pair[on]
    return number.take(arrived).reshape(len(roots), rows)
