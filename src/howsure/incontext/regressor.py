"""The pretrained network as a scikit-learn regressor."""

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from howsure.calibration import Calibration
from howsure.conformal import ConformalCalibration
from howsure.errors import InputError
from howsure.estimators import Regressor
from howsure.incontext.expert import WEIGHTS, Array, predict, read_context
from howsure.prediction import Prediction
from howsure.storage import checked_header, save_model
from howsure.tables.encoder import Encoding
from howsure.tables.robust import RobustScale
from howsure.tables.table import Table

__all__ = ["InContextRegressor", "restore"]


class InContextRegressor(Regressor):
    """Pretrained regressor that reads the training rows as context. Nothing is trained.

    A transformer that was trained once on simulated tables returns a mixture of Normal Inverse-Gamma distributions for
    each row. It was trained on the true means and variances of the simulation, which separate epistemic from aleatoric
    uncertainty, where the likelihood of observed targets cannot.

    It reads at most 2,000 training rows with 60 features. It has no parameters, and takes neither sample weights nor
    censored targets.

    >>> import numpy as np
    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> model = InContextRegressor().fit(x, np.sin(x[:, 0]))
    >>> bool(abs(model.predict([[1.5]])[0] - np.sin(1.5)) < 0.05)
    True
    """

    def __init__(self) -> None:
        """Create the regressor."""

    def fit(self, X: Any, y: ArrayLike) -> Self:  # type: ignore[override]  # noqa: N803
        """Read a table X (array, pandas, polars or Arrow) and targets y, (N,) or (N, T), as context.

        Columns may be numbers, booleans, text, categories or dates, with missing values. A fit that fails leaves the
        estimator as it was.
        """
        return super().fit(X, y)

    def _check_parameters(self) -> None:
        pass

    def _fit_rows(self, table: Table, target: Array, *_: Any) -> None:
        self.encoding_, features = Encoding.fit_transform(table, target)
        if self.encoding_.notice:
            warnings.warn(self.encoding_.notice, UserWarning, stacklevel=5)  # at the call of fit
        self._read_context(features, target)

    def _read_context(self, features: Array, y: Array) -> None:
        self.x_, self.y_ = features, y.copy()
        self.robust_scale_ = RobustScale.fit(features)
        self.context_ = read_context(self._scaled(features), y)

    def _scaled(self, features: Array) -> Array:
        return self.robust_scale_(torch.from_numpy(features)).numpy()  # type: ignore[no-any-return]

    @property
    def model_(self) -> Any:  # type: ignore[override]
        """Trained networks, which this regressor does not have."""
        hint = "reports, exports and details of the training need EvidentialRegressor"
        raise InputError("InContextRegressor has no trained networks", hint=hint)

    def _predict_uncalibrated(self, X: Any) -> tuple[Prediction, Table]:  # noqa: N803
        check_is_fitted(self, "context_")
        table = self._read(X, self.encoding_)
        p = predict(self.context_, self._scaled(self.encoding_.transform(table)))
        p.index, p.names = table.index, self.target_names_
        return p, table

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a model file, which contains the training rows, to be read by :func:`howsure.load`.

        Args:
            path: of the file. An older model there is replaced.
            overwrite: whether to replace a file that is not a model.
        """
        check_is_fitted(self, "context_")
        header = ContextHeader(self.encoding_, self.target_names_, self.calibration_, _digest_of_weights())
        return save_model(path, {"x": torch.from_numpy(self.x_), "y": torch.from_numpy(self.y_)}, header, overwrite)


@dataclass(frozen=True)
class ContextHeader:
    """Contents of a model file, without the training rows."""

    columns: Encoding
    target_names: list[str] | None
    calibration: Calibration | ConformalCalibration | None
    weights: str  # SHA-256 of the file of the pretrained weights
    model: str = "incontext"


def restore(tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> InContextRegressor:
    """Return the regressor of a model file, after checking that its parts fit together."""
    header, model = checked_header(ContextHeader, values), InContextRegressor()
    model.encoding_ = header.columns
    x, y = (tensors[name].double().numpy() for name in ("x", "y"))
    if x.ndim != 2 or y.ndim not in (1, 2) or len(x) != len(y) or x.shape[1] != len(model.encoding_.features):
        raise InputError("inconsistent model file: rows, targets and columns do not fit together")
    if header.weights != _digest_of_weights():
        warnings.warn("saved with other pretrained weights: predictions may differ", UserWarning, stacklevel=3)
    model._restore_names(header.target_names, y.reshape(len(y), -1).shape[1], header.calibration)
    model._read_context(x, y)
    return model


def _digest_of_weights() -> str:
    return hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
