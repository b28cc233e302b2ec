"""Modules: the parts networks are made of."""

from evidentia.nn.heads import GaussianHead, NIGConv2d, NIGHead
from evidentia.nn.mlp import MLP
from evidentia.nn.population import Population

__all__ = ["MLP", "GaussianHead", "NIGConv2d", "NIGHead", "Population"]
