"""One thread for arithmetic in small steps.

torch divides long operations among its threads, which wait for each other in a loop that never sleeps. Where other
programs keep the cores busy, that waiting can take twenty times as long as the work.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]

_lock = threading.Lock()
_inside = threading.local()  # its attribute "limited": whether this thread is in the context already
_users = 0
_usual = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread for the caller inside the context.

    The number belongs to the calling thread, and is what threads that start later begin with. So that the process is
    left as it was, the first of several callers at once decides what is restored.
    """
    global _users, _usual
    if getattr(_inside, "limited", False):
        yield
        return
    with _lock:
        if _users == 0:
            _usual = torch.get_num_threads()
        _users += 1
        usual = _usual
    _inside.limited = True
    try:
        torch.set_num_threads(1)
        yield
    finally:
        _inside.limited = False
        with _lock:
            _users -= 1
            torch.set_num_threads(usual)
