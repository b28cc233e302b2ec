"""Methods: the evidential loss and the normal likelihood behind one small interface."""

from howsure.methods.base import Method, Network, Recipe
from howsure.methods.evidential import Evidential
from howsure.methods.normal import NormalLikelihood

__all__ = [
    "Evidential",
    "Method",
    "Network",
    "NormalLikelihood",
    "Recipe",
]
