"""Metrics: ``(prediction, y) → number``, for a `Prediction` or the distribution of one network, with ``mask=``."""

from evidentia.metrics.calibration import calibration_curve, calibration_error, coverage, coverage_curve, pit
from evidentia.metrics.overview import summary
from evidentia.metrics.ranking import aurg, auroc, ause, retention_curve
from evidentia.metrics.scores import crps, interval_score, mae, nll, rmse

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
    "pit",
    "retention_curve",
    "rmse",
    "summary",
]
