"""Regressors as estimators of skpro, and predictions as its distributions."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from howsure.errors import install_hint
from howsure.estimators import EvidentialRegressor, Regressor
from howsure.prediction import Prediction

try:
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError as error:
    raise ImportError(f"howsure.contrib.skpro needs skpro; install it with {install_hint('skpro')}") from error

__all__ = ["PredictedDistribution", "ProbaRegressor"]

Array = NDArray[np.float64]


class PredictedDistribution(BaseDistribution):
    """A :class:`~howsure.Prediction` of rows and targets as a distribution of skpro.

    Args:
        prediction: of shape (rows,) or (rows, targets), or of one number.
        index: labels of the rows; None for one number.
        columns: names of the targets; None for one number.
    """

    _tags = {
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "capabilities:approx": ["energy", "pdfnorm"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "nonparametric",
    }

    def __init__(self, prediction: Prediction, index: Any = None, columns: Any = None) -> None:
        self.prediction = prediction
        super().__init__(index=index, columns=columns)

    def _grid(self, values: Any) -> Array:
        return np.asarray(values, dtype=float).reshape(self.shape)

    def _mean(self) -> Array:
        return self._grid(self.prediction.mean)

    def _var(self) -> Array:
        return self._grid(self.prediction.variance)

    def _log_pdf(self, x: Any) -> Array:
        return self._grid(self.prediction.log_prob(np.reshape(x, self.prediction.shape)))

    def _pdf(self, x: Any) -> Array:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Any) -> Array:
        return self._grid(self.prediction.cdf(np.reshape(x, self.prediction.shape)))

    def _ppf(self, p: Any) -> Array:
        levels = torch.from_numpy(np.array(p, dtype=float).reshape(self.prediction.shape))
        return self._grid(self.prediction.distribution.icdf(levels).cpu())

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> "PredictedDistribution":
        rows, columns = (slice(None) if k is None else k for k in (rowidx, colidx))
        chosen = self.prediction[rows]
        if len(chosen.shape) > 1:
            chosen = chosen[:, columns]
        return PredictedDistribution(chosen, self.index[rows], self.columns[columns])

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "PredictedDistribution":
        keys: Sequence[Any] = (rowidx, colidx)
        return PredictedDistribution(self.prediction[tuple(keys[: len(self.prediction.shape)])])


class ProbaRegressor(BaseProbaRegressor):
    """A regressor of howsure as a probabilistic regressor of skpro.

    Args:
        regressor: an unfitted regressor. Each fit trains a copy. None: ``EvidentialRegressor()``.

    ``predict_proba`` returns a :class:`PredictedDistribution`, and all other predictions are computed from it.

    >>> import pandas as pd
    >>> X, y = pd.DataFrame({"a": np.arange(30.0)}), pd.DataFrame({"y": np.arange(30.0)})
    >>> model = ProbaRegressor(EvidentialRegressor(members=2, steps=20, random_state=0)).fit(X, y)
    >>> model.predict_var(X).shape
    (30, 1)
    """

    _tags = {"capability:multioutput": True, "capability:missing": True}

    def __init__(self, regressor: Regressor | None = None) -> None:
        self.regressor = regressor
        super().__init__()

    def _fit(self, X: Any, y: Any, C: Any = None) -> Self:  # noqa: ARG002, N803
        model: Regressor = EvidentialRegressor() if self.regressor is None else clone(self.regressor)
        self.regressor_ = model.fit(_named(X), y.iloc[:, 0] if y.shape[1] == 1 else y)
        self._columns = y.columns
        return self

    def _predict_proba(self, X: Any) -> PredictedDistribution:  # noqa: N803
        prediction = self.regressor_.predict_distribution(_named(X))
        return PredictedDistribution(prediction, X.index, self._columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:  # noqa: ARG003
        """Return parameters with which the checks of skpro make an instance."""
        small: dict[str, Any] = {"steps": 20, "hidden": (8,), "random_state": 0, "device": "cpu"}
        return [{"regressor": EvidentialRegressor(members=members, **small)} for members in (1, 2)]


def _named(table: Any) -> Any:
    """Return the table with names of columns that are text, as scikit-learn requires."""
    return table.set_axis([str(name) for name in table.columns], axis=1)
