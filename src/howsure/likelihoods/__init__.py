"""Methods: the evidential loss and the normal likelihood behind one small interface."""

from howsure.likelihoods.base import Cells, Method, Network, Recipe
from howsure.likelihoods.evidential import Evidential
from howsure.likelihoods.normal import NormalLikelihood

__all__ = [
    "Cells",
    "Evidential",
    "Method",
    "Network",
    "NormalLikelihood",
    "Recipe",
]
