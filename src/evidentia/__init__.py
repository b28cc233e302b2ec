"""Calibrated aleatoric and epistemic uncertainty for any regression model, in one forward pass."""

from evidentia.distributions import Gaussian, Mixture, NormalInverseGamma, StudentT
from evidentia.errors import EvidentiaError, InputError, InputTypeError
from evidentia.losses import ConstantWeight, DualAscent, LinearWarmup, evidential_loss, gaussian_loss
from evidentia.nn import GaussianHead, NIGConv2d, NIGHead
from evidentia.prediction import Prediction

__version__ = "0.1.0"

__all__ = [
    "ConstantWeight",
    "DualAscent",
    "EvidentiaError",
    "Gaussian",
    "GaussianHead",
    "InputError",
    "InputTypeError",
    "LinearWarmup",
    "Mixture",
    "NIGConv2d",
    "NIGHead",
    "NormalInverseGamma",
    "Prediction",
    "StudentT",
    "evidential_loss",
    "gaussian_loss",
]
