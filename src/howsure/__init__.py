"""Calibrated aleatoric and epistemic uncertainty for any regression model, in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from howsure.errors import HowsureError, InputError, InputTypeError

if TYPE_CHECKING:
    from howsure import metrics, scorers
    from howsure.calibration import calibrate
    from howsure.conformal import OnlineConformal
    from howsure.displays import CalibrationDisplay, EvidenceDisplay, IntervalDisplay, RetentionDisplay
    from howsure.distributed import global_mean_factor
    from howsure.distributions import Mixture, Normal, NormalInverseGamma, StudentT
    from howsure.estimators import EnsembleRegressor, EvidentialRegressor, Regressor, load
    from howsure.explain import explain_familiarity, importance
    from howsure.exporting import export
    from howsure.images import FittedImages, ImageRecipe, fit_images
    from howsure.incontext.regressor import InContextRegressor
    from howsure.losses import evidential_loss, normal_loss
    from howsure.network import NetworkModel, attach
    from howsure.nn import MixtureHead, NIGHead, NormalHead
    from howsure.prediction import Prediction
    from howsure.report.html import write_report

__version__ = "0.1.0a1"

__all__ = [
    "CalibrationDisplay",
    "EnsembleRegressor",
    "EvidenceDisplay",
    "EvidentialRegressor",
    "FittedImages",
    "HowsureError",
    "ImageRecipe",
    "InContextRegressor",
    "InputError",
    "InputTypeError",
    "IntervalDisplay",
    "Mixture",
    "MixtureHead",
    "NIGHead",
    "NetworkModel",
    "Normal",
    "NormalHead",
    "NormalInverseGamma",
    "OnlineConformal",
    "Prediction",
    "Regressor",
    "RetentionDisplay",
    "StudentT",
    "attach",
    "calibrate",
    "evidential_loss",
    "explain_familiarity",
    "export",
    "fit_images",
    "global_mean_factor",
    "importance",
    "load",
    "metrics",
    "normal_loss",
    "scorers",
    "write_report",
]


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet, so that an editor can complete them."""
    return __all__


_NAMES = {  # the modules of the names above. The others are modules themselves
    "calibration": ("calibrate",),
    "conformal": ("OnlineConformal",),
    "displays": ("CalibrationDisplay", "EvidenceDisplay", "IntervalDisplay", "RetentionDisplay"),
    "distributed": ("global_mean_factor",),
    "distributions": ("Mixture", "Normal", "NormalInverseGamma", "StudentT"),
    "estimators": ("EnsembleRegressor", "EvidentialRegressor", "Regressor", "load"),
    "explain": ("explain_familiarity", "importance"),
    "exporting": ("export",),
    "images": ("FittedImages", "ImageRecipe", "fit_images"),
    "incontext.regressor": ("InContextRegressor",),
    "losses": ("evidential_loss", "normal_loss"),
    "network": ("NetworkModel", "attach"),
    "nn": ("MixtureHead", "NIGHead", "NormalHead"),
    "prediction": ("Prediction",),
    "report.html": ("write_report",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name or module at its first use.

    Torch and scikit-learn take a second each to import. A head needs torch alone, and the shell imports them where an
    interrupt is handled.
    """
    if name in _HOMES:
        value = getattr(import_module(f"howsure.{_HOMES[name]}"), name)
        globals()[name] = value  # the next time it is found without this function
        return value
    try:
        return import_module(f"howsure.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"howsure.{name}":
            raise
    raise AttributeError(f"module 'howsure' has no attribute {name!r}")
