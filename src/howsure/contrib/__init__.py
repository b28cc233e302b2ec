"""Adapters for other packages. Each module needs its package: ``skpro`` or ``botorch``."""
