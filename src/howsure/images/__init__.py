"""Fit U-Nets from images to maps, and predict with them."""

from howsure.images.batches import Augmentation, ImageBatches, to_network
from howsure.images.fit import fit_images
from howsure.images.folders import load_images, load_pairs
from howsure.images.model import FittedImages
from howsure.images.networks import ImageRecipe
from howsure.images.pairs import Pairs, read_pairs

__all__ = [
    "Augmentation",
    "FittedImages",
    "ImageBatches",
    "ImageRecipe",
    "Pairs",
    "fit_images",
    "load_images",
    "load_pairs",
    "read_pairs",
    "to_network",
]
