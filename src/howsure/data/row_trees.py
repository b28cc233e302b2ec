"""Trees that predict one row at a time, for servers: the same numbers as `Trees.predict`, with little overhead.

For many rows, arrays are the quick way. For a single row nearly all of the time would go into starting operations on
arrays, so here boosted trees take three of them, and the forest is walked by plain Python.

**Boosted trees** as in `howsure.data.trees`: the thresholds of a model at a column divide its values into ranges, and
a table holds for every range which leaves of each tree remain. The ranges of a row are found by bisection, and the
leaves that remain are in all of their tables.
"""

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.data.forest import Forest, in_units, right_children, roots_of
from howsure.data.trees import Trees, lowest_bit

__all__ = ["RowTrees"]

Array = NDArray[np.float64]
MOST_LISTED = 300_000  # nodes of a forest that are kept as Python's numbers: 30 MB


class RowTrees:
    """Function from the features of one row, (F,) without missing values, to the predictions of trees, (outputs,).

    It is only read after it is made, so that several threads may use it.
    """

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        folds, targets, count, leaves = trees.value.shape
        models = folds * targets
        self.value = trees.value.reshape(-1)
        self.start = np.arange(0, self.value.size, leaves, dtype=np.int64).reshape(models, count)
        self._set_tables(models)
        self.forests = [] if trees.forest is None else [_Walk(trees.forest, t) for t in range(targets)]

    def _set_tables(self, models: int) -> None:
        """Make for every column that a split looks at its thresholds, and the rows of the table for each range."""
        trees = self.trees
        feature, threshold, left = (
            array.reshape(models, *array.shape[2:]) for array in (trees.feature, trees.threshold, trees.left_leaves)
        )
        used = left > 0
        self.columns: list[tuple[int, list[float], NDArray[np.int64]]] = []
        parts: list[NDArray[np.int32]] = []
        rows = 0
        for column in np.unique(feature[used]):
            here = used & (feature == column)
            ends = np.unique(threshold[here])
            place = np.empty((len(ends) + 1, models), dtype=np.int64)
            for model in range(models):
                table, own = _table_of(feature.shape[1], here[model], threshold[model], left[model])
                place[:, model] = rows + np.searchsorted(own, np.append(ends, np.inf), side="left")
                parts.append(table)
                rows += len(table)
            self.columns.append((int(column), ends.tolist(), place))
        self.table = np.concatenate(parts) if parts else np.empty((0, feature.shape[1]), dtype=np.int32)

    def __call__(self, features: Array) -> Array:
        trees = self.trees
        folds, targets = trees.baseline.shape
        row = features.tolist()
        if self.columns:
            places = [place[bisect_left(ends, row[column])] for column, ends, place in self.columns]
            remaining = np.bitwise_and.reduce(self.table.take(np.array(places), axis=0), axis=0)
            leaf = lowest_bit(remaining) + self.start
        else:  # trees of a single leaf
            leaf = self.start
        sums = self.value.take(leaf).sum(1).reshape(folds, targets) + trees.baseline
        boosted: Array = sums.mean(0)
        if not self.forests:
            return boosted
        return np.append(boosted, [walk(features) for walk in self.forests])


def _table_of(
    trees: int, here: NDArray[np.bool_], threshold: Array, left: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Array]:
    """Return which leaves of a model's trees remain in each range of a column, (ranges, trees), and its thresholds."""
    tree, split = np.nonzero(here)
    own, range_before = np.unique(threshold[tree, split], return_inverse=True)
    table = np.zeros((len(own) + 1, trees), dtype=np.int32)
    np.bitwise_or.at(table, (range_before + 1, tree), left[tree, split])
    np.bitwise_or.accumulate(table, axis=0, out=table)
    return ~table & np.int32(2**31 - 1), own


class _Walk:
    """Function from the features of a row to the mean of a forest's trees for one target."""

    def __init__(self, forest: Forest, target: int) -> None:
        self.columns, self.centre, self.shift = (each[target] for each in (forest.columns, forest.centre, forest.shift))
        self.exponent, self.baseline = int(forest.exponent[target]), float(forest.baseline[target])
        roots = roots_of(forest.leaves)
        self.roots = roots[target].tolist()
        self.feature, self.number, self.right = _readable(forest)

    def __call__(self, features: Array) -> float:
        z = in_units(features[None, self.columns], self.centre, self.shift)[0].tolist()
        feature, number, right, total = self.feature, self.number, self.right, 0.0
        for node in self.roots:
            column = feature[node]
            while column >= 0:
                node = node + 1 if z[column] <= number[node] else right[node]
                column = feature[node]
            total += number[node]
        return float(np.ldexp(total / len(self.roots), self.exponent)) + self.baseline


def _readable(forest: Forest) -> tuple[Any, ...]:
    """Return columns, numbers and right branches of all nodes, as what Python reads quickest."""
    arrays = (forest.feature, forest.number, right_children(forest.leaves, forest.feature))
    if len(forest.feature) <= MOST_LISTED:
        return tuple(array.tolist() for array in arrays)
    return tuple(np.ascontiguousarray(array).data for array in arrays)
