"""Compares quantiles, intervals and CRPS of mixtures of eight Student t with the mean, in time, memory and error.

A regressor of eight networks, 2 × 128, predicts rows of a made table; a map of 160 × 128 pixels is made of eight random
answers a pixel, asked about on one thread, with a graph for gradients as a network's own answer has. Times are the
fastest of a few calls: wall-clock seconds, and CPU seconds of the process, which other work on the machine moves less.
Errors are those of random mixtures, from needles far apart to members that coincide, df from 2 + 1e-6 to 1e8, against
bisection and a fine quadrature with scipy's tails, over the mixture's width √(mean scale² + variance of loc).

    python benchmarks/bench_intervals.py [--rows 10000] [--small]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import special

from devices import device_label
from howsure import EvidentialRegressor, Mixture, Prediction, StudentT

MEMBERS = 8
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_STEPS = np.concatenate([np.arange(17) * 0.5, 8 * 1.5 ** np.arange(1, 31)])  # up to 1.5e6 scales away
_CUTS = np.concatenate([-_STEPS[:0:-1], _STEPS])


def seconds(function: Callable[[], object], repeats: int, calls: int = 1) -> tuple[float, float]:
    """Return the wall-clock and the CPU seconds of a call, each of the fastest of the repeats, after one call."""
    function()
    found = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            function()
        found.append(((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls))
    walls, cpus = zip(*found, strict=True)
    return min(walls), min(cpus)


def report(name: str, spent: tuple[float, float], bar: float, mean: tuple[float, float]) -> float:
    """Print a time beside its bar, and return its CPU seconds over those of the mean."""
    wall, cpu = spent
    word = "reached" if wall <= bar else "**missed**"
    print(f"{name:40s}{wall:10.4f} s {cpu:10.4f} s CPU   at most {bar:g} s: {word}   {cpu / mean[1]:8.2f}", flush=True)
    return cpu / mean[1]


def fitted(steps: int) -> tuple[EvidentialRegressor, Callable[[int], tuple[np.ndarray, np.ndarray]]]:
    """Return a regressor, and a function that makes so many new rows and targets."""
    random = np.random.default_rng(0)

    def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.standard_normal((rows, 8))
        return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.2 * (1 + np.abs(x[:, 2])) * random.standard_normal(rows)

    model = EvidentialRegressor(members=MEMBERS, hidden=(128, 128), steps=steps, device="cpu", random_state=0)
    return model.fit(*table(2000)), table


def random_mixture(rows: int, seed: int = 0, gradients: bool = False) -> tuple[Mixture, torch.Tensor]:
    """Return answers as a trained network gives them, and targets: members half a unit apart, df from 2.05 to 150."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    centre = noise(rows)
    leaves = [2 + torch.exp(1 + noise(MEMBERS, rows)), centre + 0.5 * noise(MEMBERS, rows)]
    leaves.append(torch.exp(0.5 * noise(MEMBERS, rows) - 1))
    return Mixture(StudentT(*(t.requires_grad_(gradients) for t in leaves))), centre + noise(rows)


def extra_memory(pixels: int) -> float:
    """Return by how many MB a process of its own grew to compute the CRPS of a map on one thread; needs Linux."""
    command = [sys.executable, __file__, "--crps-of-map", str(pixels)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_own_growth(pixels: int) -> None:
    """Print by how many MB the peak memory of this process lies above what it held before the CRPS of a map."""
    torch.set_num_threads(1)
    mixture, y = random_mixture(pixels, gradients=True)
    random_mixture(16, gradients=True)[0].crps(0.0)  # modules that torch loads on first use are not counted
    held = _memory("VmRSS")
    mixture.crps(y)
    print(_memory("VmHWM") - held)


def _memory(name: str) -> float:
    """Return a size from Linux's status of this process, in MB."""
    # and not ru_maxrss, which a process inherits from its parent
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{name}:"))


# Errors -------------------------------------------------------------------------------------------------------------


def largest_errors(count: int) -> tuple[float, float]:
    """Return the largest errors of an interval's ends and of the CRPS over the width, of so many random mixtures."""
    random = np.random.default_rng(1)
    ends, scores = 0.0, 0.0
    for _ in range(count):
        scale = 10 ** (random.random(MEMBERS) * random.uniform(0, 3))
        loc = 10 ** random.uniform(-3, 3) * random.choice(
            [random.standard_normal(MEMBERS), random.integers(0, 4, MEMBERS)]
        )
        df = 2 + 10 ** random.uniform(-6, 8, MEMBERS)
        y = random.choice(loc) + scale.max() * random.standard_normal()
        width = np.sqrt(np.mean(scale**2) + np.var(loc))
        p = Prediction(StudentT(*(torch.as_tensor(v) for v in (df, loc, scale))), members=0)
        for end, side in zip(p.interval(0.9), (1, -1), strict=True):
            ends = max(ends, abs(float(end) - _by_bisection(df, loc, scale, 0.05, side)) / width)
        scores = max(scores, abs(float(p.crps(y)) - _crps_by_quadrature(df, loc, scale, y)) / width)
    return ends, scores


def _tail(df: np.ndarray, loc: np.ndarray, scale: np.ndarray, x: np.ndarray, side: np.ndarray | int) -> np.ndarray:
    """Return the mixture's mass below x where side is 1, above x where it is −1."""
    z = (np.asarray(x)[..., None] - loc) / scale * np.asarray(side)[..., None]
    return special.stdtr(df, z).mean(-1)


def _by_bisection(df: np.ndarray, loc: np.ndarray, scale: np.ndarray, tail: float, side: int) -> float:
    reach = 1e3 * scale.max()
    low, high = loc.min() - reach, loc.max() + reach
    for _ in range(120):
        middle = 0.5 * (low + high)
        inside = _tail(df, loc, scale, middle, side) < tail
        low, high = (middle, high) if inside == (side == 1) else (low, middle)
    return 0.5 * (low + high)


def _crps_by_quadrature(df: np.ndarray, loc: np.ndarray, scale: np.ndarray, y: float) -> float:
    """Return ∫(F − 1[x ≥ y])² dx in panels that are cut at fixed multiples of every member's scale."""
    edges = np.unique(np.append((loc[:, None] + scale[:, None] * _CUTS).ravel(), y))
    x = (edges[:-1, None] + np.diff(edges)[:, None] * (_NODES + 1) / 2).ravel()
    weights = (np.diff(edges)[:, None] * _WEIGHTS / 2).ravel()
    return float(weights @ _tail(df, loc, scale, x, np.where(x < y, 1, -1)) ** 2)


def time_table(rows: int, small: bool) -> float:
    """Print the times of a table and of one row; return the ratio of intervals to means."""
    repeats = 1 if small else 5
    model, table = fitted(steps=5 if small else 300)
    x, y = table(rows)
    mean = seconds(lambda: model.predict(x), repeats)
    report(f"mean, {rows:,} rows", mean, 1.0, mean)
    ratio = report(f"interval, {rows:,} rows", seconds(lambda: model.predict_interval(x), repeats), 1.0, mean)
    p = model.predict_distribution(x)
    report(f"CRPS, {rows:,} rows", seconds(lambda: p.crps(y), repeats), 2.0, mean)
    report(f"entropy, {rows:,} rows", seconds(p.entropy, repeats), 2.0, mean)
    if not small:
        many = table(10 * rows)[0]
        long_mean = seconds(lambda: model.predict(many), 1)
        report(f"interval, {10 * rows:,} rows", seconds(lambda: model.predict_interval(many), 1), 10.0, long_mean)
    one = x[:1]
    of_one = seconds(lambda: model.predict(one), repeats, calls=3 if small else 50)
    report("mean, one row", of_one, 2e-3, of_one)
    spent = seconds(lambda: model.predict_interval(one), repeats, calls=3 if small else 50)
    report("interval, one row", spent, 6e-3, of_one)
    return ratio


def time_map(pixels: int, small: bool) -> None:
    """Print the times and the memory of a map on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    mixture, y = random_mixture(pixels, gradients=True)
    repeats = 1 if small else 3
    mean = seconds(lambda: mixture.mean, repeats)
    report(f"quantile, map of {pixels:,}, one thread", seconds(lambda: mixture.icdf(0.05), repeats), 2.0, mean)
    report(f"CRPS, map of {pixels:,}, one thread", seconds(lambda: mixture.crps(y), repeats), 4.0, mean)
    torch.set_num_threads(threads)
    extra = extra_memory(pixels)
    print(f"memory of that CRPS: {extra:.0f} MB   at most 300 MB: {'reached' if extra <= 300 else '**missed**'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--small", action="store_true", help="few rows and pixels, to see that it runs")
    parser.add_argument("--crps-of-map", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crps_of_map:
        measure_own_growth(options.crps_of_map)
        return
    print(
        f"{MEMBERS} members, {device_label(torch.device('cpu'))}; the last column is the CPU time over that of the mean"
    )
    ratio = time_table(min(options.rows, 200) if options.small else options.rows, options.small)
    time_map(256 if options.small else 160 * 128, options.small)
    count = 5 if options.small else 300
    for name, error in zip(("an interval's ends", "the CRPS"), largest_errors(count), strict=True):
        word = "reached" if error <= 1e-6 else "**missed**"
        print(f"largest error of {name}, {count} random mixtures: {error:.1e} of the width   at most 1e-6: {word}")
    print(f"interval / mean, CPU time: {ratio:.2f}")


if __name__ == "__main__":
    main()
