"""Calibrated aleatoric and epistemic uncertainty for any regression model, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evidentia.distributions import Faded, Gaussian, Mixture, NormalInverseGamma, StudentT
from evidentia.errors import EvidentiaError, InputError, InputTypeError
from evidentia.losses import ConstantWeight, DualAscent, LinearWarmup, evidential_loss, gaussian_loss
from evidentia.nn import GaussianHead, NIGConv2d, NIGHead
from evidentia.prediction import Prediction

if TYPE_CHECKING:
    from evidentia import metrics, scorers
    from evidentia.calibration import Calibration, RecalibratedPrediction, calibrate
    from evidentia.estimators import (
        BayesRegressor,
        DropoutRegressor,
        EnsembleRegressor,
        EvidentialRegressor,
        GaussianRegressor,
        Regressor,
        load,
    )
    from evidentia.fitting import FittedImages, ImageRecipe, fit_images
    from evidentia.report.html import write_report

__version__ = "0.1.0"

__all__ = [
    "BayesRegressor",
    "Calibration",
    "ConstantWeight",
    "DropoutRegressor",
    "DualAscent",
    "EnsembleRegressor",
    "EvidentiaError",
    "EvidentialRegressor",
    "Faded",
    "FittedImages",
    "Gaussian",
    "GaussianHead",
    "GaussianRegressor",
    "ImageRecipe",
    "InputError",
    "InputTypeError",
    "LinearWarmup",
    "Mixture",
    "NIGConv2d",
    "NIGHead",
    "NormalInverseGamma",
    "Prediction",
    "RecalibratedPrediction",
    "Regressor",
    "StudentT",
    "calibrate",
    "evidential_loss",
    "fit_images",
    "gaussian_loss",
    "load",
    "metrics",
    "scorers",
    "write_report",
]


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet, so that an editor can complete them."""
    return __all__


_CALIBRATION = ("Calibration", "RecalibratedPrediction", "calibrate")
_IMAGES = ("FittedImages", "ImageRecipe", "fit_images")
_MODULES = ("metrics", "scorers")
_HOMES = dict.fromkeys(_CALIBRATION, "evidentia.calibration") | dict.fromkeys(_IMAGES, "evidentia.fitting")
_HOMES["write_report"] = "evidentia.report.html"


def __getattr__(name: str) -> Any:
    """Import what is first used now: scikit-learn takes a second, and only who uses a regressor waits for it."""
    if name not in __all__:
        raise AttributeError(f"module 'evidentia' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"evidentia.{name}")
    return getattr(import_module(_HOMES.get(name, "evidentia.estimators")), name)
