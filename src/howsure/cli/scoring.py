"""Scores of predictions, and the two simple models that scores are compared with."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.cli.console import number, printable, share, table

if TYPE_CHECKING:
    from howsure.prediction import Prediction

__all__ = ["COVERAGES", "baselines", "compare_models", "mean_of_folds", "of_targets", "score", "show"]

Array = NDArray[np.float64]
COVERAGES = (0.5, 0.8, 0.9, 0.95)
KEPT = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)  # shares of the rows, the most certain ones, whose error is shown
MAX_LINEAR_CELLS = 20_000_000  # numbers that the linear model is learned from


def of_targets(p: "Prediction", y: Array) -> "list[tuple[Prediction, Array]]":
    """Return the prediction and the true values of each target, for targets (N, T)."""
    return [(p if len(p.shape) < 2 else p[:, t], y[:, t]) for t in range(y.shape[1])]


def score(p: "Prediction", y: Array) -> dict[str, Any]:
    """Return the scores of one target by name, as plain numbers; None where there is no such score.

    Args:
        p: prediction, (N,).
        y: true values, (N,).
    """
    from howsure import metrics

    numbers = {name: None if np.isnan(value) else float(value) for name, value in metrics.summary(p, y).items()}
    shares = {f"{c:g}": float(metrics.coverage(p, y, c)) for c in COVERAGES}
    certain = numbers["rmse"] is not None and bool(np.isfinite(p.std).all())
    return {"rows": len(y)} | numbers | {"coverage": shares, "retention": _retention(p, y) if certain else None}


def mean_of_folds(folds: list[Any], rows: list[int] | None = None, name: str = "") -> Any:
    """Return the scores by target and model over all rows of several folds; RMSE is the root of the mean square.

    Args:
        folds: the scores of each fold: dicts of the same form. Scores that a fold lacks are left out.
        rows: number of rows of each fold, found in the scores.
        name: of the score.
    """
    first = folds[0]
    if isinstance(first, dict):
        rows = [each["rows"] for each in folds] if "rows" in first else rows
        shared = [key for key in first if all(key in each for each in folds)]
        return {key: mean_of_folds([each[key] for each in folds], rows, key) for key in shared}
    if len(folds) == 1 or None in folds:
        return None if None in folds else first
    power = 2 if name == "rmse" else 1
    return sum(folds) if name == "rows" else float(np.average(np.power(folds, power), weights=rows) ** (1 / power))


def _retention(p: "Prediction", y: Array) -> dict[str, float]:
    """Return the RMSE of the most certain rows by the share that is kept."""
    from howsure.metrics import retention_curve

    kept, error = retention_curve(p, y)
    return {f"{share:g}": float(error[np.abs(kept - share).argmin()]) for share in KEPT}


# Simple models --------------------------------------------------------------------------------------------------------


def baselines(x: Array, y: Array, x_new: Array, seed: int) -> "dict[str, Prediction]":
    """Return the predictions of two simple models for new rows: a linear model, if one can be learned, and a constant.

    Args:
        x: features of the training rows, (N, F).
        y: their targets, (N, T).
        x_new: features of the new rows.
        seed: of the rows that the linear model is learned from, if all are too many.
    """
    constant = _gaussian(np.repeat(y.mean(0)[None], len(x_new), 0), y.std(0))
    most = max(50, MAX_LINEAR_CELLS // max(1, x.shape[1]))
    if len(x) > most:
        chosen = np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))
        x, y = x[chosen], y[chosen]
    linear = None if len(x) < 3 else _linear(x, y, x_new)
    return ({} if linear is None else {"linear": linear}) | {"constant": constant}


def _linear(x: Array, y: Array, x_new: Array) -> "Prediction | None":
    """Return the prediction of a ridge regression whose penalty and standard deviation come from left-out rows."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ridge = RidgeCV(np.logspace(-3, 4, 15), alpha_per_target=y.shape[1] > 1)
    model = make_pipeline(StandardScaler(), ridge)
    try:
        with np.errstate(all="ignore"):
            mean = model.fit(x, y - y.mean(0)).predict(x_new).reshape(len(x_new), -1)
    except (ValueError, np.linalg.LinAlgError):  # features too large for a linear model
        return None
    left_out = np.sqrt(np.maximum(-np.atleast_1d(ridge.best_score_), 0))
    return _gaussian(mean + y.mean(0), left_out) if np.isfinite(mean).all() else None


def _gaussian(mean: Array, std: Array) -> "Prediction":
    import torch

    from howsure.distributions import Normal
    from howsure.prediction import Prediction

    floor = np.maximum(1e-12 * np.abs(mean).max(0, initial=0), 1e-300)  # of a target that does not vary
    scale = np.broadcast_to(np.maximum(std, floor), mean.shape).copy()
    return Prediction(Normal(torch.from_numpy(mean), torch.from_numpy(scale)))


# Texts ----------------------------------------------------------------------------------------------------------------


def compare_models(scores: dict[str, dict[str, Any]]) -> str:
    """Return a small table of the scores of models by name, a row for each."""
    rows = [
        {
            "model": name,
            "RMSE": number(found["rmse"]),
            "NLL": number(found["nll"]),
            "CRPS": number(found["crps"]),
            "90% coverage": share(found["coverage"]["0.9"]),
            "calibration error": number(found["calibration_error"]),
        }
        for name, found in scores.items()
    ]
    return table(rows)


def show(scores: dict[str, dict[str, Any]], rows: int, how: str) -> None:
    """Print the scores of models on held-out rows, a table for each target."""
    for target, found in scores.items():
        print("\n" + printable(f"{target}: scores on {rows:,} held-out row{'' if rows == 1 else 's'} ({how})"))
        print(compare_models(found))
    sys.stdout.flush()
