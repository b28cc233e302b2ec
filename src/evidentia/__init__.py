"""Calibrated aleatoric and epistemic uncertainty for any regression model, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evidentia.distributions import Gaussian, Mixture, NormalInverseGamma, StudentT
from evidentia.errors import EvidentiaError, InputError, InputTypeError
from evidentia.losses import ConstantWeight, DualAscent, LinearWarmup, evidential_loss, gaussian_loss
from evidentia.nn import GaussianHead, NIGConv2d, NIGHead
from evidentia.prediction import Prediction

if TYPE_CHECKING:
    from evidentia.estimators import (
        BayesRegressor,
        DropoutRegressor,
        EnsembleRegressor,
        EvidentialRegressor,
        GaussianRegressor,
        Regressor,
        load,
    )

__version__ = "0.1.0"

__all__ = [
    "BayesRegressor",
    "ConstantWeight",
    "DropoutRegressor",
    "DualAscent",
    "EnsembleRegressor",
    "EvidentiaError",
    "EvidentialRegressor",
    "Gaussian",
    "GaussianHead",
    "GaussianRegressor",
    "InputError",
    "InputTypeError",
    "LinearWarmup",
    "Mixture",
    "NIGConv2d",
    "NIGHead",
    "NormalInverseGamma",
    "Prediction",
    "Regressor",
    "StudentT",
    "evidential_loss",
    "gaussian_loss",
    "load",
]

# scikit-learn takes a second to import: only who uses a regressor waits for it
_ESTIMATORS = (
    "BayesRegressor",
    "DropoutRegressor",
    "EnsembleRegressor",
    "EvidentialRegressor",
    "GaussianRegressor",
    "Regressor",
    "load",
)


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:
        return getattr(import_module("evidentia.estimators"), name)
    raise AttributeError(f"module 'evidentia' has no attribute {name!r}")
