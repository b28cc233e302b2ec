"""Trees of a regressor as nodes of ONNX: the operator ``TreeEnsemble`` of ``ai.onnx.ml``, version 5, in float64.

Boosted trees compare float64 and the forest float32, in units of its own (`howsure.tables.experts.forest`). Those are
computed by plain nodes before, and given back to the operator as float64, whose comparisons are the same; it adds in
float64.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.errors import InputError
from howsure.tables.experts.forest import FAR, LARGEST, Forest, right_children, roots_of
from howsure.tables.experts.trees import Trees

__all__ = ["Ensemble", "ForestUnits", "baseline_of", "ensemble_of"]

MISPLACED = "the trees of the model do not divide their leaves as trees do; fit it again"


class Ensemble(NamedTuple):
    """Nodes and leaves of all trees, as attributes of ``TreeEnsemble`` name them. Output k is the sum of target k."""

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    missing_left: NDArray[np.int64]
    left: NDArray[np.int64]
    left_is_leaf: NDArray[np.int64]
    right: NDArray[np.int64]
    right_is_leaf: NDArray[np.int64]
    target: NDArray[np.int64]
    value: NDArray[np.float64]
    targets: int


class ForestUnits:
    """Features (N, F) as trees see them: held within ±1e300, and behind them those that a forest sees, in its units."""

    def __init__(self, forest: Forest | None) -> None:
        self.has_forest = forest is not None
        if forest is not None:
            # a power of two beyond those of float64 is divided by in two steps, as ldexp does in one
            exponent = torch.from_numpy(forest.shift.reshape(-1).astype(np.int64))
            first = exponent.clamp(-1000, 1000)
            self.columns = torch.from_numpy(forest.columns.reshape(-1).astype(np.int64))
            self.centre = torch.from_numpy(forest.centre.reshape(-1).copy())
            self.unit = torch.exp2(-first.double())
            self.rest = torch.exp2(-(exponent - first).clamp(-1000, 1000).double())

    def __call__(self, features: Tensor) -> Tensor:
        held = features.clamp(-LARGEST, LARGEST)
        if not self.has_forest:
            return held
        units = (held.index_select(1, self.columns) - self.centre) * self.unit * self.rest
        return torch.cat([held, units.clamp(-FAR, FAR).float().double()], 1)


def ensemble_of(trees: Trees) -> Ensemble:
    """Return the nodes of boosted trees and of the forest, with the features of `ForestUnits`.

    Raises:
        InputError: if the splits of a tree, which may come from a file, are not those of a tree.
    """
    targets, count, _ = trees.value.shape
    parts = [_of_boosted(trees, target, tree) for target in range(targets) for tree in range(count)]
    if trees.forest is not None:
        parts += _of_forest(trees.forest, trees.features, targets)
    return _joined(parts, trees.outputs)


def baseline_of(trees: Trees) -> NDArray[np.float64]:
    """Return what the sums of an ensemble start from, (outputs,)."""
    return trees.baseline if trees.forest is None else np.concatenate([trees.baseline, trees.forest.baseline])


def _of_boosted(trees: Trees, target: int, tree: int) -> Ensemble:
    """Return one boosted tree, from the leaves that each of its splits has on its left.

    The splits follow each other as in a walk that goes left first, so that the first one whose leaves are not all
    known divides the leaves that come next.
    """
    place = (target, tree)
    used = np.flatnonzero(trees.left_leaves[place])
    bits = [int(b) for b in trees.left_leaves[place][used]]
    left, right = np.zeros((2, len(used)), dtype=np.int64)
    left_leaf, right_leaf = np.zeros((2, len(used)), dtype=np.int64)
    waiting: list[tuple[int, int, int, bool]] = [
        (0, len(used) + 1, -1, False)
    ]  # leaves, and the branch that ends there
    order = iter(range(len(used)))
    while waiting:
        first, end, parent, is_left = waiting.pop()
        child, leaf = (first, 1) if end - first == 1 else (next(order, -1), 0)
        if parent >= 0:
            (left if is_left else right)[parent] = child
            (left_leaf if is_left else right_leaf)[parent] = leaf
        if leaf:
            continue
        middle = bits[child].bit_length() if child >= 0 else 0
        if not first < middle < end or bits[child] != (1 << middle) - (1 << first):
            raise InputError(MISPLACED)
        waiting += [(middle, end, child, False), (first, middle, child, True)]
    count = len(used) + 1
    return _alone(
        Ensemble(
            np.zeros(1, dtype=np.int64),
            trees.feature[place][used].astype(np.int64),
            trees.threshold[place][used],
            trees.missing_left[place][used].astype(np.int64),
            left,
            left_leaf,
            right,
            right_leaf,
            np.full(count, target),
            trees.value[place][:count],
            0,
        )
    )


def _alone(tree: Ensemble) -> Ensemble:
    """Return a tree that has a node: one of a single leaf gets one whose branches both end there."""
    if len(tree.feature):
        return tree
    zero, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    return tree._replace(
        feature=zero,
        threshold=np.zeros(1),
        missing_left=zero,
        left=zero,
        left_is_leaf=one,
        right=zero,
        right_is_leaf=one,
    )


def _of_forest(forest: Forest, features: int, targets: int) -> list[Ensemble]:
    """Return the trees of a forest, whose features lie behind the plain ones."""
    known, (_, trees) = forest.columns.shape[1], forest.leaves.shape
    right = right_children(forest.leaves, forest.feature)
    roots = roots_of(forest.leaves).reshape(-1)
    found = []
    for k, root in enumerate(roots):
        target, size = k // trees, 2 * int(forest.leaves.reshape(-1)[k]) - 1
        nodes = slice(root, root + size)
        is_leaf = forest.feature[nodes] < 0
        place = np.where(is_leaf, np.cumsum(is_leaf) - 1, np.cumsum(~is_leaf) - 1)  # among leaves, or among splits
        splits = np.flatnonzero(~is_leaf)
        below = (splits + 1, right[nodes][splits] - root)
        value = np.ldexp(forest.number[nodes][is_leaf].astype(np.float64) / trees, forest.exponent[target])
        tree = Ensemble(
            np.zeros(1, dtype=np.int64),
            features + target * known + forest.feature[nodes][splits].astype(np.int64),
            forest.number[nodes][splits].astype(np.float64),
            np.zeros(len(splits), dtype=np.int64),
            place[below[0]],
            is_leaf[below[0]].astype(np.int64),
            place[below[1]],
            is_leaf[below[1]].astype(np.int64),
            np.full(int(is_leaf.sum()), targets + target),
            value,
            0,
        )
        found.append(_alone(tree))
    return found


def _joined(parts: list[Ensemble], targets: int) -> Ensemble:
    """Return trees as one ensemble: places of nodes and leaves are counted on from tree to tree."""
    nodes = np.cumsum([0, *(len(p.feature) for p in parts)])
    leaves = np.cumsum([0, *(len(p.value) for p in parts)])
    moved = [
        p._replace(
            roots=p.roots + nodes[k],
            left=p.left + np.where(p.left_is_leaf, leaves[k], nodes[k]),
            right=p.right + np.where(p.right_is_leaf, leaves[k], nodes[k]),
        )
        for k, p in enumerate(parts)
    ]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in moved]) for name in Ensemble._fields[:-1]}
    return Ensemble(**arrays, targets=targets)
