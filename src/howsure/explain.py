"""Which columns matter: for the accuracy of predictions, and for the familiarity of rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from howsure.errors import InputError, InputTypeError
from howsure.estimators import Regressor
from howsure.metrics import crps
from howsure.prediction import Prediction
from howsure.tables.table import open_table

__all__ = ["explain_familiarity", "importance"]


def importance(
    model: Regressor,
    X: Any,  # noqa: N803
    y: ArrayLike,
    *,
    metric: Callable[[Prediction, Any], float] = crps,
    repeats: int = 5,
    random_state: int = 0,
) -> pd.DataFrame:
    """Return how much worse the predictive distribution becomes when a column is permuted (Breiman 2001).

    All networks predict a permuted table in one pass. ``result["importance"].plot.barh()`` draws the result.

    Args:
        model: a fitted regressor.
        X: test rows, as ``predict`` takes them.
        y: their targets.
        metric: function of a prediction and y, smaller is better. The default is the CRPS.
        repeats: number of permutations of each column.
        random_state: seed of the permutations.

    Returns:
        A table with a row for each column, the most important last: ``importance``, the mean increase of the metric,
        and ``std``, its standard deviation over permutations.

    Raises:
        InputTypeError: for another model.
        InputError: if X has fewer than two rows, or ``repeats`` is less than 1.

    >>> import howsure as hs
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> model = hs.EvidentialRegressor(members=2, steps=100, random_state=0).fit(X, X[:, 1])
    >>> importance(model, X, X[:, 1]).index[-1]
    'x1'
    """
    table, named = _checked(model, X)
    if repeats < 1 or len(table) < 2:
        raise InputError("importance needs at least two rows and one permutation")
    random, before = np.random.default_rng(random_state), metric(model.predict_distribution(X), y)
    found = []
    for k in range(table.shape[1]):
        changes = []
        for _ in range(repeats):
            other = table.copy()
            other.isetitem(k, other.iloc[random.permutation(len(other)), k].array)
            changes.append(metric(model.predict_distribution(other if named else other.to_numpy()), y) - before)
        found.append((np.mean(changes), np.std(changes)))
    names = pd.Index(model.encoding_.names, name="column")
    return pd.DataFrame(found, names, ["importance", "std"]).sort_values("importance")


def explain_familiarity(model: Regressor, X: Any) -> pd.DataFrame:  # noqa: N803
    """Return how much more familiar each row would be if one column had a typical value.

    The typical value of numbers and dates is the median of the training rows, and of categories the most frequent
    value in X. A column with a large number makes its row unfamiliar. Rows that are unfamiliar by a combination of
    several columns may have small numbers everywhere. The model keeps no training rows, so none are returned.

    Args:
        model: a fitted regressor whose evidence was computed, as by default.
        X: rows, as ``predict`` takes them.

    Returns:
        A table of the shape of X with the increases of the familiarity, and first the column ``familiarity``.

    Raises:
        InputTypeError: for another model.
        InputError: if the predictions of the model have no familiarity.

    >>> import howsure as hs
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> model = hs.EvidentialRegressor(members=2, steps=100, random_state=0).fit(X, X[:, 1])
    >>> explain_familiarity(model, np.array([[0.5, 9.0]])).iloc[0, 1:].idxmax()
    'x1'
    """
    (table, _), codes = _checked(model, X), model.encoding_.codes(model.read(X))
    before = model.model_.predict(codes).familiarity
    if before is None:
        raise InputError(
            "the predictions of this model have no familiarity", hint='fit EvidentialRegressor(evidence="conjugate")'
        )
    found = {"familiarity": before}
    for k, encoder in enumerate(model.encoding_.encoders):
        values, counts = np.unique(codes[:, k], return_counts=True)
        other = codes.copy()
        other[:, k] = values[counts.argmax()] if encoder.kind == "category" else encoder.fill
        found[encoder.name] = model.model_.predict(other).familiarity - before
    return pd.DataFrame(found, table.index)


def _checked(model: Any, X: Any) -> tuple[pd.DataFrame, bool]:  # noqa: N803
    """Return the columns of the model as a pandas table, and whether X has their names, after checking the model."""
    if not isinstance(model, Regressor) or not hasattr(model, "encoding_"):
        raise InputTypeError(f"an explanation needs a fitted regressor of a table, not a {type(model).__name__}")
    table, named = open_table(X)
    return table.iloc[:, model.encoding_.order(list(table.columns), named)], named
