"""Fit a method to data: populations of networks to tables, U-Nets to images."""

from evidentia.fitting.image_networks import ImageRecipe
from evidentia.fitting.image_training import CompiledLosses
from evidentia.fitting.images import FittedImages, fit_images
from evidentia.fitting.members import Member, hold_out
from evidentia.fitting.pairs import Pairs, read_pairs
from evidentia.fitting.search import Search, search
from evidentia.fitting.tables import Fitted, fit

__all__ = [
    "CompiledLosses",
    "Fitted",
    "FittedImages",
    "ImageRecipe",
    "Member",
    "Pairs",
    "Search",
    "fit",
    "fit_images",
    "hold_out",
    "read_pairs",
    "search",
]
