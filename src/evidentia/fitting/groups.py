"""Which networks of a population train together, each group in a thread of its own."""

import itertools

from evidentia.methods.base import Recipe
from evidentia.nn import BayesPopulation, Population

__all__ = ["groups_of_members"]

WORTH_A_THREAD = 4e7  # multiplications of a training step; below, Python itself is what takes the time


def groups_of_members(population: Population, recipe: Recipe, threads: int) -> list[range]:
    """Return which members train together: all of them, where that is quicker than to divide them among threads.

    But for rounding, a member does not depend on its group. Members that draw noise share a generator: one group.
    """
    members = population.members
    work = members * recipe.batch_size * 3 * sum(w[0].numel() for w in population.weights)  # there and back
    count = min(threads, members, max(1, int(work / WORTH_A_THREAD)))
    if isinstance(population, BayesPopulation) or any(population.dropout):
        count = 1
    bounds = [members * k // count for k in range(count + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]
