"""Measures how long ``EvidentialRegressor().fit`` takes, and compares its predictions with those of other packages.

    python benchmarks/bench_tables.py --cost [--rows 500,5000,41157,100000] [--data DATA]
    python benchmarks/bench_tables.py --peers --data DATA [--sets yacht,boston] [--splits 5] [--methods ngboost,gp]

Each table is fitted as a newcomer would, with the defaults, in a process of its own: once with the machine to itself,
and once beside as many busy loops as there are cores. With --data the table of 41,157 rows is Protein's first split.
The others are made: y is a smooth function of a few columns plus noise that depends on another. A second table of 500
rows has no noise, so that training never stops before its last step. Without --cost only the plan is printed, that is,
network, batch and largest number of steps for each size, and the largest jump of their product.

With --peers the methods of ``peers.py``, each with its defaults, are fitted to the standard splits of the nine UCI
sets; test rows are predicted once. The record in the folder --out says all of it, and what it has is not run again.
--time fits each method once to the first split of each set, for the column of seconds; --show prints the tables of a
record and runs nothing; --again drops the rows of a method first. The packages are those of the extra ``peers``.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from howsure.errors import InputError
from howsure.likelihoods import Recipe
from howsure_paper.datasets import uci

BARS = {500: 10, 5000: 90, 41_157: 300, 100_000: 480}  # seconds on two cores with nothing else to do
LARGEST_SLOWDOWN = 2.5


def make_table(rows: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return features and target of a made table: 8 columns, 9 or 20 from 40,000 and 100,000 rows on."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 8 if rows < 40_000 else 9 if rows < 100_000 else 20))
    smooth = np.sin(2 * x[:, 0]) * x[:, 1] + np.abs(x[:, 2]) * x[:, 3] + 0.5 * x[:, 4] ** 2
    return x, smooth + noise * (0.3 + np.abs(x[:, 5])) * rng.standard_normal(rows)


def fit_here(rows: int, noise: float, data: str | None, steps: int | None) -> None:
    """Fit one table and print the seconds of the fit, the steps it took and the most it would have taken."""
    from howsure import EvidentialRegressor

    if data and rows == 41_157:
        table = uci.load("protein", data)
        x, y = table.x[table.splits[0][0]], table.y[table.splits[0][0]]
    else:
        x, y = make_table(rows, noise)
    # imports and first calls are not part of it
    EvidentialRegressor(steps=5, members=3, evidence="plain").fit(x[:50], y[:50])
    started = time.perf_counter()
    # evidence is learned from a bounded number of rows, and costs the same for every table
    model = EvidentialRegressor(random_state=0, evidence="plain", steps=steps, verbose=False).fit(x, y)
    seconds = time.perf_counter() - started
    print(seconds, model.training_["steps"], steps or Recipe.for_rows(rows).settings.steps)


def timed_fit(rows: int, noise: float, chosen: list[str], loops: int) -> tuple[float, int, int]:
    """Return seconds, steps and largest number of steps of a fit beside so many busy loops."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        command = [sys.executable, __file__, "--fit", str(rows), "--noise", str(noise), *chosen]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    seconds, steps, planned = done.stdout.split()[-3:]
    return float(seconds), int(steps), int(planned)


def cost_of(rows: int) -> float:
    """Return the multiplications of all planned steps for one network on a table with 10 features."""
    recipe = Recipe.for_rows(rows)
    sizes = [10, *recipe.network.hidden, 4]
    return recipe.settings.steps * recipe.batch_size * sum(a * b for a, b in itertools.pairwise(sizes))


def print_plan(sizes: list[int]) -> float:
    """Print what is planned for each size, and return the largest jump of the cost between sizes 5 % apart."""
    print(f"{'rows':>9s}  {'network':>10s} {'batch':>6s} {'steps':>7s}")
    for rows in sizes:
        recipe = Recipe.for_rows(rows)
        network = f"{len(recipe.network.hidden)} x {recipe.network.hidden[0]}"
        print(f"{rows:9,d}  {network:>10s} {recipe.batch_size:6d} {recipe.settings.steps:7,d}")
    rows = [int(100 * 1.05**k) for k in range(220)]
    return max(cost_of(large) / cost_of(small) for small, large in itertools.pairwise(rows))


def measure(sizes: list[int], chosen: list[str], cores: int) -> float:
    """Print a line for each fit, and return by how much busy cores slowed down the slowest."""
    print(f"\n{cores} cores; busy: beside {cores} busy loops")
    print("     rows  noise   steps      of   idle s   busy s  busy/idle  bar s")
    worst = 0.0
    cases = [(size, noise) for size in sizes for noise in ((1.0, 0.0) if size == 500 else (1.0,))]
    for rows, noise in cases:
        idle, steps, planned = timed_fit(rows, noise, chosen, loops=0)
        busy, _, _ = timed_fit(rows, noise, chosen, loops=cores)
        worst = max(worst, busy / idle)
        times = f"{idle:8.1f} {busy:8.1f} {busy / idle:10.2f}"
        print(f"{rows:9,d} {noise:6g} {steps:7,d} {planned:7,d} {times} {BARS.get(rows, '')!s:>6s}", flush=True)
    return worst


def names_in(text: str | None, known: Iterable[str], what: str) -> list[str]:
    """Return the names in a text with commas, each once, or all that are known if there is no text."""
    chosen = list(known) if text is None else [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise InputError(f"unknown {what} {name!r}; known are {', '.join(known)}")
    return list(dict.fromkeys(chosen))


def compare_with_peers(options: argparse.Namespace) -> None:
    """Run, time or only show the comparison with other packages, as the options say."""
    import peers

    sets = names_in(options.sets, uci.SETS, "UCI set")
    methods = names_in(options.methods, peers.METHODS, "method")
    if options.splits is not None and options.splits < 1:
        raise InputError(f"--splits is how many of each set are run, at least 1, got {options.splits}")
    if options.show:
        peers.show(options.out, sets, methods)
    elif options.time:
        peers.time_fits(options.out, options.data, sets, methods)
    else:
        again = names_in(options.again, peers.METHODS, "method") if options.again else []
        record = peers.compare(options.out, options.data, sets, methods, options.splits, again)
        peers.print_tables(record, sets, list(peers.METHODS))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cost", action="store_true", help="measure fits, and not only print the plan")
    parser.add_argument("--rows", default=",".join(map(str, BARS)), help="sizes, with commas (default: four)")
    parser.add_argument("--data", help="data folder, for Protein's rows and for --peers")
    parser.add_argument("--peers", action="store_true", help="compare with other packages on the UCI sets")
    parser.add_argument("--sets", help="UCI sets, with commas (default: all nine)")
    parser.add_argument("--splits", type=int, help="splits of each set, from the first on (default: all)")
    parser.add_argument("--methods", help="with commas (default: all of peers.py)")
    parser.add_argument("--again", help="methods whose rows in the record are dropped first, with commas")
    parser.add_argument(
        "--time", action="store_true", help="only measure a fit of each method to each set's first split"
    )
    parser.add_argument("--show", action="store_true", help="only print the tables of the record")
    parser.add_argument("--out", type=Path, default=Path("out") / "bench_tables", help="folder of the record")
    parser.add_argument("--steps", type=int, help="training steps of each fit of --cost (default: the regressor's)")
    parser.add_argument("--fit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--noise", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("sets", "splits", "methods", "again", "time", "show"):
        if getattr(options, name) and not options.peers:
            parser.error(f"--{name} belongs to --peers")
    return options


def main() -> None:
    options = parse_options()
    if options.fit:
        fit_here(options.fit, options.noise, options.data, options.steps)
        return
    if options.peers:
        try:
            compare_with_peers(options)
        except InputError as error:
            sys.exit(f"error: {error}")
        return
    sizes = [int(part) for part in options.rows.split(",")]
    jump = print_plan(sizes)
    if options.cost:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        chosen = [f"--{name}={value}" for name in ("data", "steps") if (value := getattr(options, name))]
        worst = measure(sizes, chosen, cores)
        print(f"largest slowdown beside busy loops (at most {LARGEST_SLOWDOWN} is asked for): {worst:.2f}")
    print(f"largest jump of the planned cost between sizes 5 % apart (at most 1.5 is asked for): {jump:.2f}")


if __name__ == "__main__":
    main()
