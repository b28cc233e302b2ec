"""Compares the time of the evidential loss with that of other packages, and with the time that memory allows.

Every way computes the mean loss and its gradient with respect to raw outputs (N, 4), through autograd, in float32. The
limit is to read the raw outputs and the targets once and to write the gradients once, 36 bytes an element, at the
speed of a copy, which is measured in the same run. Peers are called if they are installed (extra ``peers``); else what
they do is written out in ``loss_peers.py``, and the name says so.

    python benchmarks/bench_loss.py [--device cuda] [--rows 42000000] [--compile] [--maps] [--out FOLDER]

The ways take turns, so that other work on the machine slows down all of them; on a GPU, CUDA events around a call
measure its time. ``--maps`` adds 32 maps of 160 × 128, the size of a
training step for depth, also as twenty calls in one CUDA graph, where the GPU's own work is left.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import howsure as hs
from devices import device_label
from howsure.training import resolve_device
from howsure_paper.record import environment, write_record
from howsure_paper.timing import captured
from loss_peers import naive, peers

WEIGHT = 0.01
CALLS = 20  # in one CUDA graph, so that its start does not count
BYTES = 36  # of an element: 16 of raw outputs, 4 of its target, 16 of gradients


def ours(raw: Tensor, y: Tensor, weight: float, **options: Any) -> Tensor:
    """Return the loss as training code calls it, parameters of the distribution included."""
    return hs.evidential_loss(hs.NormalInverseGamma.from_raw(raw), y, weight=weight, **options)


def from_raw(raw: Tensor, y: Tensor, weight: float, **options: Any) -> Tensor:
    """Return the loss computed from raw outputs, without parameters."""
    return hs.kernels.evidential_loss_from_raw(raw, y, weight, **options)


def formulas(raw: Tensor, y: Tensor, weight: float) -> Tensor:
    """Return the mean loss by the library's formulas and autograd."""
    answer = hs.NormalInverseGamma.from_raw(raw)
    answer.raw = None
    return hs.evidential_loss(answer, y, weight=weight)


def gradient_of(f: Callable[..., Tensor], raw: Tensor, y: Tensor, upstream: Any = None) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(f(raw, y, WEIGHT), raw, upstream)


def once(call: Callable[[], Any], device: torch.device) -> float:
    """Return the milliseconds that a call takes."""
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)  # so that the host is ahead, and waits for nothing between kernels
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def in_rounds(ways: dict[str, Callable[[], Any]], device: torch.device, repeats: int) -> dict[str, list[float]]:
    """Return the milliseconds of each way in each round, after five rounds to warm up.

    A round calls every way once, so that other work on the machine slows down all of them.
    """
    rounds = [{name: once(call, device) for name, call in ways.items()} for _ in range(5 + repeats)][5:]
    return {name: [each[name] for each in rounds] for name in ways}


def ratio(times: dict[str, list[float]], name: str, other: str) -> float:
    """Return the median over the rounds of the time of one way over that of another."""
    return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


def describe(times: list[float]) -> dict[str, float]:
    """Return the median and the tenth and ninetieth percentile."""
    times = sorted(times)
    tenth = len(times) // 10
    return {"median": statistics.median(times), "low": times[tenth], "high": times[-1 - tenth]}


def worst_error(f: Callable[..., Tensor], device: torch.device) -> float:
    """Return the largest error of the likelihood for α from 1 to 1e6, in nats.

    The reference is the library's own float64, which the tests hold to mpmath.
    """
    worst = 0.0
    for raw_alpha in torch.logspace(-2, 6, 33).tolist():
        raw = torch.tensor([[0.0, 0.5, raw_alpha, raw_alpha]], device=device, requires_grad=True)
        y = torch.tensor([0.7], device=device)
        worst = max(worst, abs(f(raw, y, 0.0).item() - formulas(raw.double(), y.double(), 0.0).item()))
    return worst


def extra_memory(call: Callable[[], Any], raw: Tensor) -> int:
    """Return the bytes at the peak of a call beyond what was there and the gradient."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before - raw.numel() * raw.element_size()


def measure(rows: int, device: torch.device, repeats: int, compiled: bool) -> dict[str, Any]:
    """Return the times of every way for a table of so many rows, and the speed of a copy."""
    raw = torch.randn(rows, 4, device=device, requires_grad=True)
    y = torch.randn(rows, device=device)
    target = torch.empty_like(raw)
    ways: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(raw.detach())}
    ways["from raw outputs"] = gradient_of(from_raw, raw, y)
    ways["howsure"] = gradient_of(ours, raw, y)
    ways["howsure, formulas"] = gradient_of(formulas, raw, y)
    ways["naive"] = gradient_of(naive, raw, y)
    ways |= {name: gradient_of(f, raw, y) for name, f in peers().items()}
    if compiled:
        ways["naive, compiled"] = gradient_of(torch.compile(naive, fullgraph=True), raw, y)
        ways["howsure, formulas, compiled"] = gradient_of(torch.compile(formulas, fullgraph=True), raw, y)
    one_by_one = lambda raw, y, weight: from_raw(raw, y, weight, reduction="none")  # noqa: E731
    ways["from raw outputs, upstream gradient 2"] = gradient_of(lambda *a: 2 * from_raw(*a), raw, y)
    ways['from raw outputs, reduction="none"'] = gradient_of(one_by_one, raw, y, torch.rand_like(y))
    half = raw.detach().bfloat16().requires_grad_()
    ways["from raw outputs, bfloat16"] = gradient_of(from_raw, half, y)
    times = in_rounds(ways, device, repeats)
    result: dict[str, Any] = {"rows": rows, "ways": {name: describe(each) for name, each in times.items()}}
    result["ratios"] = {
        "copy / from raw outputs": ratio(times, "copy", "from raw outputs"),
        "from raw outputs / naive": ratio(times, "from raw outputs", "naive"),
        "howsure / naive": ratio(times, "howsure", "naive"),
    }
    if device.type == "cuda":
        result["extra bytes"] = extra_memory(ways["from raw outputs"], raw)
    return result


def measure_maps(device: torch.device, repeats: int) -> dict[str, Any]:
    """Return the times for 32 maps of 160 × 128, with the host's work and, on a GPU, of calls in one CUDA graph."""
    raw = torch.randn(32, 4, 160, 128, device=device, requires_grad=True)
    y = torch.randn(32, 160, 128, device=device)
    kernel = functools.partial(hs.kernels.evidential_loss_from_raw, dim=1)
    ways = {"from raw outputs": gradient_of(kernel, raw, y)}
    beside = raw.detach().to(memory_format=torch.channels_last).requires_grad_()
    ways["from raw outputs, channels last"] = gradient_of(kernel, beside, y)
    flat = raw.detach().movedim(1, -1).reshape(-1, 4).requires_grad_()
    ways |= {name: gradient_of(f, flat, y.flatten()) for name, f in {"naive": naive, **peers()}.items()}
    result: dict[str, Any] = {"graphs": {}, "with the host": {}}
    for name, call in ways.items():
        result["with the host"][name] = describe(host_times(call, device, repeats))
        if device.type == "cuda":
            several = captured(functools.partial(repeat, call, CALLS), device)
            times = in_rounds({name: several}, device, repeats)[name]
            result["graphs"][name] = describe([each / CALLS for each in times])
    return result


def repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def host_times(call: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Return the times of so many calls by the clock, in milliseconds, sorted, after five to warm up."""
    times = []
    for k in range(5 + repeats):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if k >= 5:
            times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)


def show(result: dict[str, Any], device: torch.device) -> None:
    """Print the table of `measure`: times on a GPU, elsewhere ratios alone."""
    mine = result["ways"]["from raw outputs"]["median"]
    for name, times in result["ways"].items():
        spread = (
            f"{times['median']:8.3f} ms ({times['low']:.3f} to {times['high']:.3f})" if device.type == "cuda" else ""
        )
        print(f"{name:34s} {spread} {times['median'] / mine:6.2f} times")


def show_maps(result: dict[str, Any]) -> None:
    for kind, ways in result.items():
        for name, times in ways.items():
            more = times["median"] / ways["from raw outputs"]["median"]
            print(f"32 maps of 160 × 128, {kind:14s} {name:34s} {1e3 * times['median']:8.1f} µs {more:6.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, help="by default 42,000,000 on a GPU and 1,000,000 elsewhere")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="also compile the formulas")
    parser.add_argument("--maps", action="store_true", help="also 32 maps of 160 × 128")
    parser.add_argument("--out", type=Path, help="folder for a record of the run")
    options = parser.parse_args()
    device = resolve_device(options.device)
    rows = options.rows or (42_000_000 if device.type == "cuda" else 1_000_000)
    torch.manual_seed(0)
    print(f"{rows} rows, float32, torch {torch.__version__}, {device_label(device)}")
    errors = {name: worst_error(f, device) for name, f in {"howsure": from_raw, "naive": naive}.items()}
    for name, error in errors.items():
        print(f"{name:10s} worst error for α up to 1e6: {error:.1e} nat")
    result = {"errors": errors, **measure(rows, device, options.repeats, options.compile)}
    show(result, device)
    if options.maps:
        result["maps"] = measure_maps(device, options.repeats)
        show_maps(result["maps"])
    copied, quick = (result["ways"][name]["median"] for name in ("copy", "from raw outputs"))
    if device.type == "cuda":
        print(f"copy: {32e-9 * rows / copied:.2f} TB/s; from raw outputs {36e-9 * rows / quick:.2f} TB/s")
        print(f"memory beyond the gradient: {result['extra bytes'] / 2**10:.0f} KiB")
    if options.out:
        write_record(options.out, {"run": "bench_loss", "environment": environment(device), **result})
    label, ratios = device_label(device), result["ratios"]
    share = BYTES / 32 * ratios["copy / from raw outputs"]
    print(f"bytes per second of evidential_loss_from_raw / copy on {label}: {share:.2f}")
    print(f"time of evidential_loss_from_raw / naive on {label}: {ratios['from raw outputs / naive']:.3f}")
    print(f"time of evidential_loss(from_raw(raw), y) / naive on {label}: {ratios['howsure / naive']:.3f}")


if __name__ == "__main__":
    main()
