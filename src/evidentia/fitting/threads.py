"""How many threads work on the networks of a table, and on which of them.

torch divides each operation among its threads, which wait for each other in a loop that never sleeps. The operations of
a small network are too short to be worth that, and where other programs keep the cores busy, the waiting alone can take
twenty times as long as the work. So each network is trained, and each row predicted, by one thread alone; several
networks or blocks of rows go to several threads of Python, which wait for each other once in many steps.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from evidentia.methods.base import Recipe
from evidentia.nn import BayesPopulation, Population

__all__ = ["groups_of_members", "in_threads", "one_thread_each"]

WORTH_A_THREAD = 4e7  # multiplications of a training step; below, Python itself is what takes the time

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_users = 0
_usual = 1


@contextmanager
def one_thread_each() -> Iterator[int]:
    """Limit torch to one thread for the caller inside the context, and yield how many there were before.

    The number of threads belongs to the calling thread, and is what threads that start later begin with. So that the
    process is left as it was, the first of several callers at once decides what is restored.
    """
    global _users, _usual
    with _lock:
        if _users == 0:
            _usual = torch.get_num_threads()
        _users += 1
        usual = _usual
    try:
        torch.set_num_threads(1)
        yield usual
    finally:
        with _lock:
            _users -= 1
            torch.set_num_threads(usual)


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Return the function of every item, computed without gradients, by so many threads if there are several items."""
    if threads == 1 or len(items) == 1:
        return [function(item) for item in items]

    def alone(item: Item) -> Result:
        torch.set_num_threads(1)
        with torch.no_grad():  # which belongs to a thread, too
            return function(item)

    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(alone, items))


def groups_of_members(population: Population, recipe: Recipe, threads: int) -> list[range]:
    """Return which members train together, each group in a thread of its own: one group where that is quicker.

    But for rounding, a member does not depend on its group. Members that draw noise share a generator: one group.
    """
    members = population.members
    work = members * recipe.batch_size * 3 * sum(w[0].numel() for w in population.weights)  # there and back
    count = min(threads, members, max(1, int(work / WORTH_A_THREAD)))
    if isinstance(population, BayesPopulation) or any(population.dropout):
        count = 1
    bounds = [members * k // count for k in range(count + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]
