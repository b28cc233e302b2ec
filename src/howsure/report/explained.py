"""Columns that predictions need, and columns that make rows unfamiliar, for a sample of the rows of a report."""

from typing import Any

import numpy as np

from howsure.estimators import Regressor
from howsure.explain import explain_familiarity, importance
from howsure.metrics import crps
from howsure.report.evaluation import TYPICAL_FAMILIARITY, TargetResult
from howsure.tables.table import open_table

__all__ = ["explain"]

MAX_ROWS = 300  # that are predicted again for each column
MAX_COLUMNS = 40  # with more, a page would take minutes
SHOWN_ROWS, SHOWN_CAUSES = 5, 3
MIN_CAUSE = 0.05  # smallest increase of the familiarity that is shown


def explain(model: Regressor, X: Any, result: TargetResult, labels: list[str]) -> dict[str, Any]:  # noqa: N803
    """Return the importance of columns and the causes of unfamiliar rows, from a sample of the rows.

    It is empty for many columns, for one row, and for a prediction without a mean.

    Args:
        model: a fitted regressor.
        X: the rows of the report.
        result: of the target.
        labels: of its rows.

    Returns:
        ``rows``: number of rows in the sample. ``columns``: name, relative growth of the CRPS and its standard
        deviation, the most important first. ``odd``: label and position of each
        of the most unfamiliar rows, and the largest increases of its familiarity by columns.
    """
    if not result.crps or len(result.y) < 2 or len(model.encoding_.names) > MAX_COLUMNS:
        return {}
    (table, named), w = open_table(X), result.familiarity
    order = result.widest if w is None else np.argsort(w, kind="stable")
    some = np.union1d(order[:SHOWN_ROWS], result.sample(MAX_ROWS, 0))
    rows, y = table.iloc[result.rows[some]] if named else table.to_numpy()[result.rows[some]], result.y[some]
    found = importance(model, rows, y, metric=lambda p, y: crps(p[(slice(None), *result.column)], y), repeats=3)
    columns = list((found[::-1] / crps(result.p[some], y)).itertuples(name=None))
    odd = []
    if w is not None:
        why = explain_familiarity(model, rows).iloc[:, 1:]
        for k in order[:SHOWN_ROWS][w[order[:SHOWN_ROWS]] < TYPICAL_FAMILIARITY]:
            causes = why.iloc[int(np.searchsorted(some, k))].nlargest(SHOWN_CAUSES)
            odd.append((labels[k], k, list(causes[causes >= MIN_CAUSE].items())))
    return {"rows": len(some), "columns": columns, "odd": odd}
