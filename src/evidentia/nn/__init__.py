"""Modules from which networks are built."""

from evidentia.nn.appearance import ImageFading
from evidentia.nn.density import FeatureDensity
from evidentia.nn.embedding import PiecewiseLinear
from evidentia.nn.fading import FadingEvidence
from evidentia.nn.heads import GaussianHead, NIGConv2d, NIGHead
from evidentia.nn.mlp import MLP
from evidentia.nn.population import BayesPopulation, Population
from evidentia.nn.unet import UNet

__all__ = [
    "MLP",
    "BayesPopulation",
    "FadingEvidence",
    "FeatureDensity",
    "GaussianHead",
    "ImageFading",
    "NIGConv2d",
    "NIGHead",
    "PiecewiseLinear",
    "Population",
    "UNet",
]
