"""Modules: the parts networks are made of."""

from evidentia.nn.heads import GaussianHead, NIGConv2d, NIGHead
from evidentia.nn.mlp import MLP
from evidentia.nn.population import BayesPopulation, Population

__all__ = ["MLP", "BayesPopulation", "GaussianHead", "NIGConv2d", "NIGHead", "Population"]
