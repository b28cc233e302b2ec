"""Predictions: one distribution per row, of any shape."""

from howsure.prediction.checks import checked_coverages, checked_levels, draw_some, real_numbers
from howsure.prediction.prediction import Decomposition, Prediction, as_prediction
from howsure.prediction.state import Answer, device_of

__all__ = [
    "Answer",
    "Decomposition",
    "Prediction",
    "as_prediction",
    "checked_coverages",
    "checked_levels",
    "device_of",
    "draw_some",
    "real_numbers",
]
