"""The evidential method and its baselines, as peers behind one small interface."""

from evidentia.methods.base import Member, Method, Network, Recipe, hold_out
from evidentia.methods.bayes import BayesByBackprop
from evidentia.methods.dropout import MCDropout
from evidentia.methods.evidential import Evidential
from evidentia.methods.fitting import Fitted, fit
from evidentia.methods.gaussian import GaussianLikelihood
from evidentia.methods.images import ImageRecipe, Pairs, fit_images
from evidentia.methods.plain import LeastSquares
from evidentia.methods.search import Search, search

__all__ = [
    "BayesByBackprop",
    "Evidential",
    "Fitted",
    "GaussianLikelihood",
    "ImageRecipe",
    "LeastSquares",
    "MCDropout",
    "Member",
    "Method",
    "Network",
    "Pairs",
    "Recipe",
    "Search",
    "fit",
    "fit_images",
    "hold_out",
    "search",
]
