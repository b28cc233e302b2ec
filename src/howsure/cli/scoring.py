"""Scores of predictions, row by row first, so that large tables are scored in parts and groups each by themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.cli.console import number, printable, share

if TYPE_CHECKING:
    import pandas as pd

    from howsure.prediction import Prediction

__all__ = [
    "COVERAGES",
    "KEPT",
    "Scored",
    "baselines",
    "compare_models",
    "heading",
    "join_scored",
    "score",
    "score_rows",
]

Array = NDArray[np.float64]
COVERAGES = (0.5, 0.8, 0.9, 0.95)
KEPT = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)  # shares of the rows, the most certain ones, whose error is shown
MOST_FOR_LINEAR = 20_000_000  # numbers that a linear model is learned from


@dataclass(frozen=True)
class Scored:
    """Scores of one target: a value for each row, and the calibration curve of all rows.

    Args:
        rows: a frame with ``error`` (mean − y), ``std``, ``nll``, ``crps``, ``inside_0.5`` … ``inside_0.95`` and
            ``width`` (of the interval of coverage 0.9); NaN where a prediction has no such value.
        curve: the share of targets at or below each predicted quantile, as `howsure.metrics.calibration_curve`.
    """

    rows: "pd.DataFrame"
    curve: Array


def score_rows(prediction: "Prediction", y: Array) -> list[Scored]:
    """Return the scores of each target of a prediction, (N,) or (N, T), for targets (N, T)."""
    if len(prediction.shape) < 2:
        return [_score_target(prediction, y[:, 0])]
    return [_score_target(prediction[:, t], y[:, t]) for t in range(y.shape[1])]


def _score_target(p: "Prediction", y: Array) -> Scored:
    import pandas as pd

    from howsure.metrics import calibration_curve

    frame = p.to_frame(list(COVERAGES))
    moments = "mean" in frame
    unknown = np.full(len(y), np.nan)
    values: dict[str, Any] = {
        "error": frame["mean"].to_numpy() - y if moments else unknown,
        "std": frame["std"].to_numpy() if moments else unknown,
        "nll": -p.log_prob(y),
        "crps": p.crps(y) if moments else unknown,
    }
    for coverage in COVERAGES:
        low, high = (frame[f"{end}_{coverage:g}"].to_numpy() for end in ("lower", "upper"))
        values[f"inside_{coverage:g}"] = ((low <= y) & (y <= high)).astype(float)
        if coverage == 0.9:
            values["width"] = high - low
    return Scored(pd.DataFrame(values), calibration_curve(p, y))


def join_scored(parts: Sequence[Scored]) -> Scored:
    """Return the scores of all rows from those of parts of them."""
    import pandas as pd

    counts = [len(part.rows) for part in parts]
    curve = np.average([part.curve for part in parts], axis=0, weights=counts)
    return Scored(pd.concat([part.rows for part in parts], ignore_index=True), curve)


def score(scored: Scored) -> dict[str, Any]:
    """Return the scores of one target by name, as plain numbers; None where there is no such score."""
    from howsure.metrics.calibration import PROBABILITIES

    rows = scored.rows
    found: dict[str, Any] = {
        "rows": len(rows),
        "rmse": float(np.sqrt(np.mean(rows["error"] ** 2))),
        "mae": float(rows["error"].abs().mean()),
        "nll": float(rows["nll"].mean()),
        "crps": float(rows["crps"].mean()),
        "coverage": {f"{c:g}": float(rows[f"inside_{c:g}"].mean()) for c in COVERAGES},
        "interval_width": float(rows["width"].mean()),
        "calibration_error": float(np.sqrt(np.mean((scored.curve - PROBABILITIES) ** 2))),
        "retention": _retention(rows),
    }
    return {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in found.items()}


def _retention(rows: "pd.DataFrame") -> dict[str, float] | None:
    """Return the RMSE of the most certain rows by the share that is kept."""
    import torch

    from howsure.distributions import Normal
    from howsure.metrics import retention_curve

    if not np.isfinite(rows[["error", "std"]].to_numpy()).all():
        return None
    p = Normal(torch.from_numpy(rows["error"].to_numpy(copy=True)), torch.ones((), dtype=torch.float64))
    kept, error = retention_curve(p, np.zeros(len(rows)), rows["std"].to_numpy())
    return {f"{share:g}": float(error[np.abs(kept - share).argmin()]) for share in KEPT}


# Beside other models --------------------------------------------------------------------------------------------------


def baselines(x: Array, y: Array, x_new: Array, seed: int) -> dict[str, "Prediction"]:
    """Return what two simple models predict for new rows: a linear model, if one can be learned, and a constant.

    Args:
        x: features of the training rows, (N, F), as networks get them.
        y: their targets, (N, T).
        x_new: features of the new rows.
        seed: of the rows that the linear model is learned from, if all are too many.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = y.mean(0), y.std(0)
    if not np.isfinite(mean).all():  # too large a target is the regressor's to refuse
        return {}
    constant = _gaussian(np.repeat(mean[None], len(x_new), 0), std)
    linear = _linear(x, y, x_new, seed)
    return ({} if linear is None else {"linear": linear}) | {"constant": constant}


def _linear(x: Array, y: Array, x_new: Array, seed: int) -> "Prediction | None":
    """Return the prediction of a ridge regression whose penalty and noise come from left-out rows."""
    from sklearn.linear_model import RidgeCV

    most = max(50, MOST_FOR_LINEAR // max(1, x.shape[1]))
    if len(x) > most:
        chosen = np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))
        x, y = x[chosen], y[chosen]
    if len(x) < 3:
        return None
    try:
        with np.errstate(all="ignore"):
            loc, scale = x.mean(0), x.std(0)
            good = np.isfinite(scale) & (scale > 1e-12 * np.abs(loc)) & (scale > 0)
            if not good.any():
                return None
            size = y.std(0) + (y.std(0) == 0)
            model = RidgeCV(np.logspace(-3, 4, 15), alpha_per_target=y.shape[1] > 1)
            model.fit((x[:, good] - loc[good]) / scale[good], (y - y.mean(0)) / size)
            left_out = np.sqrt(np.maximum(-np.atleast_1d(model.best_score_), 0))
            found = model.predict((x_new[:, good] - loc[good]) / scale[good]).reshape(len(x_new), -1)
    except (ValueError, np.linalg.LinAlgError):  # features beyond what a linear model can scale
        return None
    found, left_out = found * size + y.mean(0), left_out * size
    return _gaussian(found, left_out) if np.isfinite(found).all() else None


def _gaussian(mean: Array, std: Array) -> "Prediction":
    import torch

    from howsure.distributions import Normal
    from howsure.prediction import Prediction

    floor = np.maximum(1e-12 * np.abs(mean).max(0, initial=0), 1e-300)  # of a target that does not vary
    scale = np.broadcast_to(np.clip(std, floor, 1e300), mean.shape)  # too large a target is the regressor's to refuse
    return Prediction(Normal(torch.from_numpy(mean), torch.from_numpy(scale.copy())))


def compare_models(scores: dict[str, dict[str, Any]]) -> Iterable[dict[str, str]]:
    """Return the rows of a small table: scores of models by name, one row each."""
    for name, found in scores.items():
        yield {
            "model": name,
            "RMSE": number(found["rmse"]),
            "NLL": number(found["nll"]),
            "CRPS": number(found["crps"]),
            "90 % coverage": share(found["coverage"]["0.9"]),
            "calibration error": number(found["calibration_error"]),
        }


def heading(target: str, rows: int, how: str) -> str:
    """Return what stands above the scores of a fit."""
    return printable(f"{target}: scores on {rows:,} held-out row{'' if rows == 1 else 's'} ({how})")
