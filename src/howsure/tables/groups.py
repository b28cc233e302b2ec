"""Which networks of a population train together, each group in a separate thread."""

from collections.abc import Sequence

from howsure.likelihoods.base import Method, Recipe
from howsure.nn import Population
from howsure.tables.members import Member

__all__ = ["groups_of_members"]

WORTH_A_THREAD = 4e7  # multiplications of a training step; below, Python itself takes the time


def groups_of_members(
    method: Method, population: Population, members: Sequence[Member], recipe: Recipe, threads: int
) -> tuple[list[list[int]], int]:
    """Return which members train together, and how many threads are worth having.

    Members that see bins have a larger first layer than others, and are a separate group. Where a step is much
    work, groups are divided among threads. But for rounding, a member does not depend on its group. Members that draw
    noise share a generator: one group.
    """
    work = len(members) * recipe.batch_size * 3 * sum(w[0].numel() for w in population.weights)  # there and back
    count = min(threads, len(members), max(1, int(work / WORTH_A_THREAD)))
    if method.draws_noise:
        count = 1
    kinds = [[k for k, m in enumerate(members) if m.bins is bins] for bins in (False, True)]
    groups = [kind[len(kind) * k // count : len(kind) * (k + 1) // count] for k in range(count) for kind in kinds]
    return [group for group in groups if group], count
