"""Copies of rows: each counts as one row with a weight, because a copy adds no information."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.tables.table import Table

__all__ = ["merge_copies", "row_hashes"]

Array = NDArray[np.float64]
MAX_SHARED = 0.5  # share of copied rows whose target other rows have; with more, copies may be chance


def row_hashes(table: Table, y: Array | None = None) -> NDArray[np.uint64]:
    """Return a hash of each row of a table, with its targets, (N,) or (N, T)."""
    columns = [column.values for column in table.columns] + ([] if y is None else [*y.reshape(table.rows, -1).T])
    whole = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False)
    return np.asarray(whole, dtype=np.uint64)


def merge_copies(table: Table, y: Array, weights: Array | None) -> tuple[NDArray[np.int64], Array | None]:
    """Return the rows without copies, in their order, and their weights: sums over copies; None if all are equal.

    Copies are rows with equal columns and targets. They would be training and validation rows of a network at once.
    Rows are equal by chance, and all are returned, if most targets of copies occur in other rows too, as grades or
    zeros do, and rows with equal columns have different targets.

    Args:
        table: the training rows.
        y: their targets, (N,) or (N, T).
        weights: their weights, (N,); None: all count the same.
    """
    everything = np.arange(table.rows)
    _, first, group = np.unique(row_hashes(table, y), return_index=True, return_inverse=True)
    if len(first) == table.rows or len(first) < 2:
        return everything, weights
    _, value, counts = np.unique(y[first], axis=0, return_inverse=True, return_counts=True)
    shared = counts[value][np.bincount(group) > 1]  # rows with the target of each row that has copies
    if np.mean(shared > 1) > MAX_SHARED and len(np.unique(row_hashes(table))) < len(first):
        return everything, weights
    order = np.argsort(first)
    total = np.bincount(group, weights)[order].astype(float)
    return first[order], None if np.ptp(total) == 0 else total / total.max()
