"""Modules from which networks are built."""

from evidentia.nn.appearance import ImageFading
from evidentia.nn.density import FeatureDensity
from evidentia.nn.embedding import PiecewiseLinear
from evidentia.nn.fading import FadingEvidence
from evidentia.nn.heads import (
    GaussianConv1d,
    GaussianConv2d,
    GaussianConv3d,
    GaussianHead,
    NIGConv1d,
    NIGConv2d,
    NIGConv3d,
    NIGHead,
)
from evidentia.nn.mlp import MLP
from evidentia.nn.population import BayesPopulation, Population
from evidentia.nn.unet import UNet

__all__ = [
    "MLP",
    "BayesPopulation",
    "FadingEvidence",
    "FeatureDensity",
    "GaussianConv1d",
    "GaussianConv2d",
    "GaussianConv3d",
    "GaussianHead",
    "ImageFading",
    "NIGConv1d",
    "NIGConv2d",
    "NIGConv3d",
    "NIGHead",
    "PiecewiseLinear",
    "Population",
    "UNet",
]
