"""Modules: the parts networks are made of."""

from evidentia.nn.heads import GaussianHead, NIGConv2d, NIGHead

__all__ = ["GaussianHead", "NIGConv2d", "NIGHead"]
