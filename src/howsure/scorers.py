"""Scorers for scikit-learn's ``cross_val_score``, ``cross_validate`` and ``GridSearchCV``: greater is better.

Each is a metric of `howsure.metrics` with its sign changed, so that the best model has the greatest score:

>>> import numpy as np, howsure as hs
>>> from sklearn.model_selection import cross_val_score
>>> X, y = np.random.default_rng(0).random((60, 2)), np.arange(60.0)
>>> model = hs.EvidentialRegressor(members=2, steps=20, random_state=0)
>>> cross_val_score(model, X, y, scoring=hs.scorers.nll, cv=3).shape
(3,)
"""

from collections.abc import Callable
from typing import Any

from howsure import metrics
from howsure.errors import InputTypeError
from howsure.metrics.scores import Predictive, Targets
from howsure.prediction import Prediction

__all__ = ["Scorer", "calibration_error", "coverage", "crps", "interval_score", "mae", "nll", "rmse"]


class Scorer:
    """A metric of predictive distributions in the form in which scikit-learn calls it: ``(estimator, X, y) → float``.

    The estimator has a method ``predict_distribution``, as the regressors of this library do; or it is a pipeline that
    ends with such an estimator, or a search that chose one. Scorers can be pickled, copied and compared.

    Args:
        metric: a function (prediction, y, **options) → float, such as a function of `howsure.metrics`.
        greater_is_better: whether a greater value of the metric is better. If not, its sign is changed.
        **options: arguments of the metric.

    >>> from howsure import metrics
    >>> Scorer(metrics.interval_score, coverage=0.5)
    Scorer(interval_score, coverage=0.5)
    """

    def __init__(self, metric: Callable[..., float], *, greater_is_better: bool = False, **options: Any) -> None:
        self.metric = metric
        self.greater_is_better = greater_is_better
        self.options = options

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:  # noqa: N803
        """Return the score of a fitted estimator on rows X with targets y."""
        value = float(self.metric(distribution_of(estimator, X), y, **self.options))
        return value if self.greater_is_better else -value

    def __repr__(self) -> str:
        sign = ["greater_is_better=True"] if self.greater_is_better else []
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"Scorer({', '.join([getattr(self.metric, '__name__', repr(self.metric)), *sign, *options])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scorer) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.metric, self.greater_is_better, tuple(self.options)))


def distribution_of(estimator: Any, X: Any) -> Prediction:  # noqa: N803
    """Return the predictive distribution of an estimator, a pipeline or the best model of a search.

    Raises:
        InputTypeError: if there is none.
    """
    whole = type(estimator).__name__
    while not hasattr(estimator, "predict_distribution"):
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "named_steps"):
            X = estimator[:-1].transform(X) if len(estimator) > 1 else X  # noqa: N806
            estimator = estimator[-1]
        else:
            advice = "; for a target on another scale use target_transform=" if hasattr(estimator, "regressor_") else ""
            raise InputTypeError(
                "this scorer needs a predictive distribution: an estimator with predict_distribution, such as "
                f"EvidentialRegressor, alone, as the last step of a Pipeline or in a search; {whole} has none{advice}"
            )
    prediction: Prediction = estimator.predict_distribution(X)
    return prediction


def coverage_distance(prediction: Predictive, y: Targets, coverage: float = 0.9) -> float:
    """Return |observed − stated| coverage: too much coverage is as bad as too little."""
    return abs(metrics.coverage(prediction, y, coverage) - coverage)


rmse = Scorer(metrics.rmse)
mae = Scorer(metrics.mae)
nll = Scorer(metrics.nll)
crps = Scorer(metrics.crps)
interval_score = Scorer(metrics.interval_score, coverage=0.9)
coverage = Scorer(coverage_distance, coverage=0.9)
calibration_error = Scorer(metrics.calibration_error)
