"""Fits 300 random tables with the defaults and looks for intervals that nothing in the training targets explains.

    python benchmarks/bench_bounds.py [--tables 300] [--jobs 2] [--steps N]

Tables are wide, collinear, discrete, heavy-tailed, spiky or have few rows. For each, test rows of the same kind and the
same rows with one cell multiplied by 1,000 are predicted. The bound is 40 standard deviations of the training targets
for the width of every 90% interval. Prints the widest intervals by kind, the coverage of test rows, how many tables
break the bound, for which share of familiar rows `std` is like the interval, and last the widest interval over the
bound. The exit code is 1 if a table breaks it.
"""

import argparse
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch

import howsure as hs

KINDS = ("wide", "collinear", "discrete", "heavy features", "heavy targets", "spiky", "few rows", "mixed")
MAX_WIDTH = 40.0  # of a 90% interval, in deviations of the training targets
TEST_ROWS = 200


class Result(NamedTuple):
    """What one table showed."""

    kind: str
    seed: int
    rows: int
    columns: int
    widest: float  # 90% interval of test rows, in deviations of the training targets
    widest_far: float  # of rows with one cell multiplied by 1,000
    coverage: float
    familiar: int  # test rows whose familiarity is above 0.5
    comparable: int  # of these, rows whose std is within a factor of two of half the 68% interval


def make_table(kind: str, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Return features and targets of training rows followed by test rows, and the number of training rows."""
    rows = int(random.integers(20, 60)) if kind == "few rows" else int(random.integers(80, 500))
    columns = int(random.integers(60, 160)) if kind == "wide" else int(random.integers(2, 12))
    x = random.normal(size=(rows + TEST_ROWS, columns))
    if kind == "collinear":
        x = x[:, :2] @ random.normal(size=(2, columns)) + 1e-3 * x
    if kind in ("discrete", "mixed"):
        x = np.round(2 * x) * random.choice([1, 10, 1000], columns)
    if kind in ("heavy features", "mixed"):
        x = x * np.exp(random.normal(size=x.shape) * random.uniform(0.5, 2))
    scaled = np.clip((x - np.median(x, 0)) / (x.std(0) + 1e-9), -3, 3)
    signal = np.sin(2 * scaled[:, 0]) + scaled[:, -1] ** 2 + scaled @ random.normal(size=columns) / columns**0.5
    y = signal + np.exp(random.uniform(-5, 1)) * random.normal(size=len(x))
    if kind == "heavy targets":
        y = y + random.standard_t(1.2, len(x))
    if kind == "spiky":
        y = np.where(random.random(len(x)) < random.uniform(0.02, 0.1), y + random.choice([-1, 1]) * 50, y)
    if kind == "discrete":
        y = np.round(y)
    return x * 10 ** random.uniform(-3, 3), y * 10 ** random.uniform(-4, 4), rows


def try_table(task: tuple[int, int | None]) -> Result:
    """Fit one table and measure the intervals of its test rows."""
    seed, steps = task
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    x, y, rows = make_table(kind, random)
    model = hs.EvidentialRegressor(random_state=seed, steps=steps, device="cpu", verbose=False).fit(x[:rows], y[:rows])
    deviation = y[:rows].std()
    far = x[rows:].copy()
    far[np.arange(TEST_ROWS), random.integers(0, x.shape[1], TEST_ROWS)] *= 1000
    p, beyond = (model.predict_distribution(part) for part in (x[rows:], far))
    inner, outer = p.interval(0.9), beyond.interval(0.9)
    inside = (inner[:, 0] <= y[rows:]) & (y[rows:] <= inner[:, 1])
    half = np.diff(p.interval(0.68))[:, 0] / 2
    familiar = p.familiarity > 0.5
    comparable = familiar & (np.maximum(p.std / half, half / p.std) <= 2)
    widths = [float(np.max(each[:, 1] - each[:, 0]) / deviation) for each in (inner, outer)]
    counts = int(familiar.sum()), int(comparable.sum())
    return Result(kind, seed, rows, x.shape[1], *widths, float(inside.mean()), *counts)


def share_of(results: list[Result]) -> float:
    """Return the share of familiar rows whose std is within a factor of two of half the 68% interval."""
    return sum(r.comparable for r in results) / max(1, sum(r.familiar for r in results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="most training steps; default: those of the regressor")
    arguments = parser.parse_args()
    tasks = [(seed, arguments.steps) for seed in range(arguments.tables)]
    if arguments.jobs == 1:
        found = [try_table(task) for task in tasks]
    else:
        with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(try_table, tasks))
    print(f"{'kind':<16}{'tables':>7}{'widest':>9}{'x 1,000':>9}{'coverage':>10}{'std like interval':>19}")
    for kind in KINDS:
        own = [r for r in found if r.kind == kind]
        if own:
            widest, far = max(r.widest for r in own), max(r.widest_far for r in own)
            coverage = np.mean([r.coverage for r in own])
            print(f"{kind:<16}{len(own):>7}{widest:>9.1f}{far:>9.1f}{coverage:>10.3f}{share_of(own):>19.4f}")
    broken = [r for r in found if not max(r.widest, r.widest_far) <= MAX_WIDTH]
    for r in broken[:10]:
        print(f"  {r}")
    continuous = [r for r in found if r.kind != "discrete"]
    print(f"std within a factor of 2 of half the 68% interval, continuous targets: {share_of(continuous):.4f} of rows")
    print(f"{len(broken)} of {len(found)} tables have an interval wider than {MAX_WIDTH:g} deviations of their targets")
    print(f"widest interval over the bound: {max(max(r.widest, r.widest_far) for r in found) / MAX_WIDTH:.3f}")
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
