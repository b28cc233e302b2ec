"""Calibrated aleatoric and epistemic uncertainty for any regression model, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evidentia.errors import EvidentiaError, InputError, InputTypeError

if TYPE_CHECKING:
    from evidentia import deploy, metrics, scorers
    from evidentia.calibration import Calibration, RecalibratedPrediction, calibrate
    from evidentia.deploy import Deploy
    from evidentia.distributions import Faded, Gaussian, Mixture, NormalInverseGamma, StudentT
    from evidentia.estimators import (
        BayesRegressor,
        DropoutRegressor,
        EnsembleRegressor,
        EvidentialRegressor,
        GaussianRegressor,
        Regressor,
        load,
    )
    from evidentia.export import export_onnx
    from evidentia.fitting import FittedImages, ImageRecipe, fit_images
    from evidentia.losses import (
        ConstantWeight,
        DualAscent,
        LinearWarmup,
        evidential_loss,
        gaussian_loss,
        global_mean_factor,
    )
    from evidentia.nn import (
        GaussianConv1d,
        GaussianConv2d,
        GaussianConv3d,
        GaussianHead,
        NIGConv1d,
        NIGConv2d,
        NIGConv3d,
        NIGHead,
    )
    from evidentia.prediction import Prediction
    from evidentia.report.html import write_report

__version__ = "0.1.0"

__all__ = [
    "BayesRegressor",
    "Calibration",
    "ConstantWeight",
    "Deploy",
    "DropoutRegressor",
    "DualAscent",
    "EnsembleRegressor",
    "EvidentiaError",
    "EvidentialRegressor",
    "Faded",
    "FittedImages",
    "Gaussian",
    "GaussianConv1d",
    "GaussianConv2d",
    "GaussianConv3d",
    "GaussianHead",
    "GaussianRegressor",
    "ImageRecipe",
    "InputError",
    "InputTypeError",
    "LinearWarmup",
    "Mixture",
    "NIGConv1d",
    "NIGConv2d",
    "NIGConv3d",
    "NIGHead",
    "NormalInverseGamma",
    "Prediction",
    "RecalibratedPrediction",
    "Regressor",
    "StudentT",
    "calibrate",
    "deploy",
    "evidential_loss",
    "export_onnx",
    "fit_images",
    "gaussian_loss",
    "global_mean_factor",
    "load",
    "metrics",
    "scorers",
    "write_report",
]


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet, so that an editor can complete them."""
    return __all__


_NAMES = {  # where the names above live, by module; the rest are regressors
    "calibration": ("Calibration", "RecalibratedPrediction", "calibrate"),
    "deploy": ("Deploy",),
    "distributions": ("Faded", "Gaussian", "Mixture", "NormalInverseGamma", "StudentT"),
    "export": ("export_onnx",),
    "fitting": ("FittedImages", "ImageRecipe", "fit_images"),
    "losses": (
        "ConstantWeight",
        "DualAscent",
        "LinearWarmup",
        "evidential_loss",
        "gaussian_loss",
        "global_mean_factor",
    ),
    "nn": (
        "GaussianConv1d",
        "GaussianConv2d",
        "GaussianConv3d",
        "GaussianHead",
        "NIGConv1d",
        "NIGConv2d",
        "NIGConv3d",
        "NIGHead",
    ),
    "prediction": ("Prediction",),
    "report.html": ("write_report",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = (
    "deploy",
    "distributions",
    "fitting",
    "formulas",
    "losses",
    "metrics",
    "nn",
    "prediction",
    "scorers",
    "training",
)


def __getattr__(name: str) -> Any:
    """Import what is first used now.

    Torch and scikit-learn take a second each: who wants a head waits for torch alone, and the command line waits where
    it can answer an interrupt.
    """
    if name in _MODULES:
        return import_module(f"evidentia.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'evidentia' has no attribute {name!r}")
    value = getattr(import_module(f"evidentia.{_HOMES.get(name, 'estimators')}"), name)
    globals()[name] = value  # the next time it is found without this function
    return value
