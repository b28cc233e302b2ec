"""The evidential method and its baselines, as peers behind one small interface."""

from evidentia.methods.base import Method, Network, Recipe
from evidentia.methods.bayes import BayesByBackprop
from evidentia.methods.dropout import MCDropout
from evidentia.methods.evidential import Evidential
from evidentia.methods.gaussian import GaussianLikelihood
from evidentia.methods.plain import LeastSquares

__all__ = [
    "BayesByBackprop",
    "Evidential",
    "GaussianLikelihood",
    "LeastSquares",
    "MCDropout",
    "Method",
    "Network",
    "Recipe",
]
