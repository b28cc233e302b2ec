"""Several metrics of one prediction at once."""

import numpy as np

from evidentia.errors import InputError
from evidentia.metrics.calibration import PROBABILITIES, pit
from evidentia.metrics.scores import Mask, Predictive, Targets, crps, documented, known_targets, mae, nll, rmse
from evidentia.prediction import as_prediction

__all__ = ["summary"]


@documented
def summary(prediction: Predictive, y: Targets, *, coverage: float = 0.9, mask: Mask = None) -> dict[str, float]:
    """Return the usual metrics of a prediction, by name.

    Returns:
        ``rmse``, ``mae``, ``nll``, ``crps`` and ``calibration_error`` as the functions of these names return them;
        ``coverage``, the share of targets in the central intervals, ideally the argument ``coverage``; and
        ``interval_width``, the mean width of these intervals, in the units of y. NaN where a prediction has no such
        value: a target learned by its logarithm has no mean and so no ``rmse``.

    >>> import torch, evidentia as ev
    >>> found = summary(ev.Gaussian(torch.zeros(4), 1.0), [-3.0, -1.0, 0.0, 1.0])
    >>> {name: round(value, 3) for name, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'rmse': 1.658, 'mae': 1.25, 'nll': 2.294, 'crps': 0.969, 'coverage': 0.75, 'interval_width': 3.29,
    'calibration_error': 0.159}
    """
    p = as_prediction(prediction)
    found = {"rmse": np.nan, "mae": np.nan, "nll": nll(p, y, mask=mask), "crps": np.nan}  # nll raises for a wrong y
    for metric in (rmse, mae, crps):
        try:
            found[metric.__name__] = metric(p, y, mask=mask)
        except InputError:  # y is right, so that what is missing is the mean of the prediction
            continue
    ends = p.interval(coverage)[known_targets(p, mask)].astype(float)
    below = pit(p, y, mask=mask).ravel()
    observed = np.searchsorted(np.sort(below), PROBABILITIES, side="right") / below.size
    return found | {
        "coverage": float(np.mean(np.abs(2 * below - 1) <= coverage)),
        "interval_width": float(np.mean(ends[..., 1] - ends[..., 0])),
        "calibration_error": float(np.sqrt(np.mean((observed - PROBABILITIES) ** 2))),
    }
