"""Copies of rows, which are training and validation rows of a network at once."""

import warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.tables.table import Table

__all__ = ["row_hashes", "warn_of_copies"]

Array = NDArray[np.float64]
MAX_COPIES = 0.5  # share of the rows that may be copies without a warning
MIN_DISTINCT = 20  # different rows; with fewer, nobody expects exact intervals


def row_hashes(table: Table, y: Array | None = None) -> NDArray[np.uint64]:
    """Return a hash of each row of a table, with its targets, (N,) or (N, T)."""
    columns = [column.values for column in table.columns] + ([] if y is None else [*y.reshape(table.rows, -1).T])
    whole = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False)
    return np.asarray(whole, dtype=np.uint64)


def warn_of_copies(table: Table, y: Array) -> None:
    """Warn if most rows are copies of others, unless rows with equal columns have different targets.

    A fit takes the share of copies among new rows to be the same. That is right for a random part of a table, and
    wrong for rows that were repeated to balance a table.
    """
    distinct = len(np.unique(row_hashes(table, y)))
    copies = table.rows - distinct
    if copies > MAX_COPIES * table.rows and len(np.unique(row_hashes(table))) == distinct >= MIN_DISTINCT:
        warnings.warn(
            f"{copies} of {table.rows} rows are copies of other rows; intervals of rows that are not in the table will "
            "be too narrow. Drop the copies, and pass sample_weight if some rows count more",
            UserWarning,
            stacklevel=4,
        )
