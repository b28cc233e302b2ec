"""How long a fit may take, said before it begins."""

import sys
import time

import torch

from howsure.methods.base import Recipe
from howsure.nn import Population

__all__ = ["say_how_long", "training_seconds"]

TIMED = 3  # steps, of which the quickest counts
REST = 1.4  # the optimizer, the loss and the validation rows, for each second of the networks themselves
WORTH_SAYING = 60  # seconds


def training_seconds(recipe: Recipe, inputs: int, outputs: int, members: int, threads: int = 1) -> float:
    """Return about how long all planned steps take on this machine's processor, from a few timed ones of one network.

    Args:
        recipe: network, settings and batch size.
        inputs: of the first layer.
        outputs: of the last layer.
        members: networks.
        threads: that train at once.
    """
    network = Population([0], inputs, recipe.network.hidden, outputs, recipe.network.activation)
    x = torch.zeros(1, recipe.batch_size, inputs, dtype=torch.float32, device="cpu")
    taken = []
    for _ in range(1 + TIMED):  # the first is for the caches
        started = time.perf_counter()
        with torch.enable_grad():
            network(x).sum().backward()
        taken.append(time.perf_counter() - started)
    return REST * recipe.settings.steps * members * min(taken[1:]) / min(threads, members)


def say_how_long(seconds: float, rows: int) -> bool:
    """Write a line about a fit that may take more than a minute to standard error; return whether it did."""
    if seconds < WORTH_SAYING:
        return False
    words = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    sys.stderr.write(f"fitting {rows:,} rows may take up to {words}; verbose=True shows progress\n")
    return True
