"""The pretrained network as a scikit-learn regressor."""

import hashlib
import warnings
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from howsure.errors import InputError
from howsure.estimators import Regressor
from howsure.incontext.expert import WEIGHTS, predict, read_context
from howsure.prediction import Prediction
from howsure.tables.encoder import Encoding
from howsure.tables.robust import RobustScale
from howsure.tables.table import Table

__all__ = ["InContextRegressor"]

Array = NDArray[np.float64]


class InContextRegressor(Regressor):
    """Pretrained regressor that reads the training rows as context. Nothing is trained.

    A transformer that was trained once on simulated tables returns a mixture of Normal Inverse-Gamma distributions for
    each row. Their parameters were learned from the true means and variances of the simulation, so that the likelihood
    need not tell epistemic from aleatoric uncertainty.

    It reads at most 2,000 training rows with 60 features.

    >>> import numpy as np
    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> model = InContextRegressor().fit(x, np.sin(x[:, 0]))
    >>> bool(abs(model.predict([[1.5]])[0] - np.sin(1.5)) < 0.05)
    True
    """

    def __init__(self) -> None:
        """Create the regressor, which has no parameters."""

    def fit(self, X: Any, y: ArrayLike) -> Self:  # type: ignore[override]  # noqa: N803
        """Read a table X (array, pandas, polars or Arrow) and targets y, (N,) or (N, T), as context.

        Columns may be numbers, booleans, text, categories or dates, with missing values. A fit that fails leaves the
        estimator as it was.
        """
        return super().fit(X, y)

    def _check_parameters(self) -> None:
        pass

    def _fit_rows(self, table: Table, target: Array, *_: Any) -> None:
        self.encoding_, own = Encoding.fit_transform(table, target, 0)
        if self.encoding_.notice:
            warnings.warn(self.encoding_.notice, UserWarning, stacklevel=5)  # at the call of fit
        self.robust_scale_, self.transform_ = RobustScale.fit(own), None
        self._read_context(self.robust_scale_(own), target)

    def _read_context(self, x: Array, y: Array) -> None:
        self.x_, self.y_ = x, y
        self.context_ = read_context(x, y)

    def _predict_uncalibrated(self, X: Any) -> tuple[Prediction, Table]:  # noqa: N803
        check_is_fitted(self, "context_")
        table = self._read(X, self.encoding_)
        p = predict(self.context_, self.features_of(table))
        p.index, p.names = table.index, self.target_names_
        return p, table

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        check_is_fitted(self, "context_")
        tensors = {"x": torch.from_numpy(self.x_), "y": torch.from_numpy(self.y_)}
        return tensors, {
            "estimator": type(self).__name__,
            "parameters": {},
            "weights": _digest_of_weights(),
            "encoding": self.encoding_.to_dict(),
            "robust_scale": self.robust_scale_.to_dict(),
            "target_names": self.target_names_,
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": list(map(str, self.feature_names_in_)) if hasattr(self, "feature_names_in_") else None,
            "calibration": None if self.calibration_ is None else self.calibration_.to_dict(),
        }

    def _restore(self, tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> Self:
        if settings["weights"] != _digest_of_weights():
            warnings.warn("the model was saved with other pretrained weights; predictions may differ", stacklevel=4)
        self.encoding_ = Encoding.from_dict(settings["encoding"])
        self.robust_scale_ = RobustScale.from_dict(settings["robust_scale"], len(self.encoding_.features))
        self._restore_names(settings)
        x, y = tensors["x"].numpy(), tensors["y"].numpy()
        if x.ndim != 2 or x.shape[1] != len(self.encoding_.features) or len(x) != len(y) or y.ndim not in (1, 2):
            raise InputError("inconsistent model file: the context does not fit the columns")
        self._read_context(x, y)
        return self


def _digest_of_weights() -> str:
    return hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
