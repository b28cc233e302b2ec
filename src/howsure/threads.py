"""Threads that do not wait for each other.

torch divides each long operation among its threads, which wait for each other in a loop that never sleeps. Operations
on small networks, or on a few rows, are too short to be worth that, and where other programs keep the cores busy, the
waiting alone can take twenty times as long as the work. So here one thread does one piece of work from its start to
its end, and several pieces go to several threads of Python.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["in_threads", "one_thread", "stream_in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_inside = threading.local()  # its attribute "usual": the number of threads before, while this thread is in the context
_users = 0
_usual = 1


@contextmanager
def one_thread() -> Iterator[int]:
    """Limit torch to one thread for the caller inside the context, and yield how many there were before.

    The number belongs to the calling thread, and starts later threads with it. So that the process is
    left as it was, the first of several callers at once decides the restored number. Contexts may be nested.
    """
    global _users, _usual
    if getattr(_inside, "usual", 0):
        yield _inside.usual
        return
    with _lock:
        if _users == 0:
            _usual = torch.get_num_threads()
        _users += 1
        usual = _usual
    _inside.usual = usual
    try:
        torch.set_num_threads(1)
        yield usual
    finally:
        _inside.usual = 0
        with _lock:
            _users -= 1
            torch.set_num_threads(usual)


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Apply ``function`` to each item in a pool of ``threads`` threads; several threads record no gradients."""
    if threads == 1 or len(items) == 1:
        return [function(item) for item in items]

    return list(stream_in_threads(function, items, threads))


def stream_in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the function of every item, in order, computed without gradients by ``threads`` threads.

    Items are taken as results are: at most one item for each thread is being worked on, and one more waits, so that any
    number of items needs little memory. If the function, the items or the consumer raise, work that has begun is
    finished, and no more begins.
    """

    def alone(item: Item) -> Result:
        with one_thread(), torch.no_grad():  # both belong to a thread
            return function(item)

    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(max(1, threads))
    try:
        for item in items:
            pending.append(pool.submit(alone, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
