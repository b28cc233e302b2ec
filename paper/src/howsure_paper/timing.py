"""How long a call takes, on whatever device."""

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["captured", "median_seconds", "synchronized_time"]


def synchronized_time(device: torch.device) -> float:
    """Return the time in seconds, as soon as the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return the call as a CUDA graph to replay, which leaves only the GPU's own work; elsewhere the call itself."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def median_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the median time of 3 to 19 calls after a first one: more than 3 while all take less than a second."""
    times: list[float] = []
    while len(times) < 4 or (sum(times) < 1 and len(times) < 20):
        started = synchronized_time(device)
        call()
        times.append(synchronized_time(device) - started)
    return statistics.median(times[1:])
