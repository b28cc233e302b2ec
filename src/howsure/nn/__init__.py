"""Modules from which networks are built."""

from howsure.nn.appearance import ImageFading
from howsure.nn.density import FeatureDensity
from howsure.nn.embedding import PiecewiseLinear
from howsure.nn.evidence import ConjugateEvidence
from howsure.nn.heads import (
    MixtureHead,
    NIGConv1d,
    NIGConv2d,
    NIGConv3d,
    NIGHead,
    NormalConv1d,
    NormalConv2d,
    NormalConv3d,
    NormalHead,
)
from howsure.nn.population import Population
from howsure.nn.unet import UNet

__all__ = [
    "ConjugateEvidence",
    "FeatureDensity",
    "ImageFading",
    "MixtureHead",
    "NIGConv1d",
    "NIGConv2d",
    "NIGConv3d",
    "NIGHead",
    "NormalConv1d",
    "NormalConv2d",
    "NormalConv3d",
    "NormalHead",
    "PiecewiseLinear",
    "Population",
    "UNet",
]
