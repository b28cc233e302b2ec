"""Fits of networks to arrays, without the other stages of a regressor."""

import numpy as np

from howsure.tables.censoring import cells_of_bounds, read_censored
from howsure.tables.target import Target
from howsure.tables.train import train
from howsure.tables.views import Views


def fit(method, x, y, members, *, recipe, sample_weight=None, censored=None, device="auto"):
    """Train one network per member on features (N, F) and targets (N,) or (N, T)."""
    y = np.array(y, dtype=float)
    cells = cells_of_bounds(y, read_censored(censored, y))
    cells = None if cells is None else cells.reshape(len(y), -1, 2)
    target = Target(y, sample_weight, cells)
    return train(method, Views(np.array(x, dtype=float), members), target, recipe, device=device)
