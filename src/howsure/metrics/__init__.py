"""Metrics: ``(prediction, y) → number``, for a `Prediction` or the distribution of one network, with ``mask=``.

`howsure.metrics.streaming`, imported when first used because it needs torchmetrics, has them batch by batch.
"""

from importlib import import_module
from typing import Any

from howsure.metrics.calibration import calibration_curve, calibration_error, coverage, coverage_curve, pit
from howsure.metrics.overview import summary, summary_of_targets
from howsure.metrics.ranking import aurg, auroc, ause, retention_curve
from howsure.metrics.scores import crps, interval_score, mae, nll, pinball, rmse

__all__ = [
    "aurg",
    "auroc",
    "ause",
    "calibration_curve",
    "calibration_error",
    "coverage",
    "coverage_curve",
    "crps",
    "interval_score",
    "mae",
    "nll",
    "pinball",
    "pit",
    "retention_curve",
    "rmse",
    "summary",
    "summary_of_targets",
]


def __getattr__(name: str) -> Any:
    """Import the streaming metrics when they are first used: they need torchmetrics, which may be missing."""
    if name == "streaming":
        return import_module("howsure.metrics.streaming")
    raise AttributeError(f"module 'howsure.metrics' has no attribute {name!r}")
