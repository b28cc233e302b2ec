"""How long a call takes, on whatever device."""

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["captured", "median_seconds", "wait"]


def wait(device: torch.device) -> float:
    """The time, when the device has done all it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """On CUDA the call as a graph to replay, which leaves only the GPU's own work; elsewhere the call itself."""
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


def median_seconds(call: Callable[[], object], device: torch.device, patience: float = 1.0) -> float:
    """Of at least three calls after a first one, for about ``patience`` seconds and at most twenty."""
    times: list[float] = []
    while len(times) < 4 or (sum(times) < patience and len(times) < 20):
        started = wait(device)
        call()
        times.append(wait(device) - started)
    return statistics.median(times[1:])
