"""Compares the evidential networks of Table 1 trained as a population with the same networks trained one at a time.

All splits of a set are one population of networks of 50 ReLU units, with the authors' batch size and learning rate. The
same code trains both sides on the same data for the same number of steps. The population saves overhead: a step of one
network with a batch of one row is a few hundred operations on almost no data. On CUDA the population is trained twice:
step by step as a captured graph, and by the kernel that takes many steps at once.

    python benchmarks/bench_uci.py [--data DATA] [--sets boston,concrete] [--steps 500] [--device cuda]

Without --data the set is diabetes, which comes with scikit-learn.

With --grid it says how long a search of λ over the whole benchmark takes: every split of the nine sets times five
evidence weights, networks of 50 ReLU units, batches of 64, 4,000 to 12,000 steps, one population for each set. A tenth
of the training rows is held out and scored every 1,000 steps. On CUDA the kernel that takes many steps at once trains
them, or the captured graph with --no-kernel.

    python benchmarks/bench_uci.py --grid --data DATA [--sets yacht] [--steps 1000] [--no-kernel] [--device cuda]
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from devices import device_label
from howsure.likelihoods import Evidential, Network, Recipe
from howsure.tables.members import hold_out
from howsure.tables.model import TableModel
from howsure.training import Settings, resolve_device
from howsure_paper.datasets.uci import SETS, UCITable
from howsure_paper.fused import required_fused_steps
from howsure_paper.timing import synchronized_time
from howsure_paper.training import fit
from howsure_paper.uci import run as uci

WEIGHTS = (0.0, 0.003, 0.01, 0.03, 0.1)  # λ, of the grid
WARM_UP = 20  # steps before a measurement, in which kernels are compiled


def fast_steps(fused: bool) -> Callable[..., Any] | None:
    """Return the ``fast_steps`` of a fit: the kernel that takes many steps at once, or None for step by step."""
    return required_fused_steps if fused else None


def seconds_for(
    table: UCITable, plan: uci.Plan, groups: list[list[int]], device: torch.device, fused: bool = False
) -> float:
    """Return the seconds of training one network for each split, where each group of splits is one population."""
    started = synchronized_time(device)
    for group in groups:
        method, _ = uci.method_of("evidential", plan)
        members = [hold_out(table.splits[k][0], [k], 0)[0] for k in group]
        recipe = uci.recipe_of(method, table.name, len(table.splits[0][0]), plan)
        fit(method, table.x, table.y, members, recipe=recipe, device=device, fast_steps=fast_steps(fused))
    return synchronized_time(device) - started


def compare(options: argparse.Namespace, device: torch.device) -> None:
    """Print how much faster networks train as a population, and in one kernel, than one at a time."""
    names = options.sets or ("boston,concrete,yacht" if options.data else "diabetes")
    plan = uci.Plan(network="paper", steps=options.steps or 500)
    total: dict[str, float] = {}
    for name in names.split(","):
        table = uci.table_of(name, plan, options.data)
        splits = list(range(len(table.splits)))
        sides = {"one at a time": ([[k] for k in splits], False), "population": ([splits], False)}
        if device.type == "cuda":
            sides["population in one kernel"] = ([splits], True)
        for groups, fused in sides.values():
            seconds_for(table, replace(plan, steps=WARM_UP), groups[:1], device, fused)
        for side, (groups, fused) in sides.items():
            total[side] = total.get(side, 0.0) + seconds_for(table, plan, groups, device, fused)
        print(f"{name}: {len(splits)} splits, {plan.steps} steps each")
    print(f"device: {device_label(device)}")
    if device.type == "cuda":
        print(", ".join(f"{side} {seconds:.2f} s" for side, seconds in total.items()))
    for side in list(total)[1:]:
        print(f"one at a time / {side}: {total['one at a time'] / total[side]:.1f}")


def grid_steps(rows: int) -> int:
    """Return how many steps the networks of the grid take on so many training rows."""
    return 4000 if rows < 800 else 8000 if rows < 5000 else 12_000


def train_grid(table: UCITable, steps: int, device: torch.device, fused: bool) -> TableModel:
    """Return one network for each split and each evidence weight, trained as one population."""
    pairs = [(split, weight) for split in range(len(table.splits)) for weight in WEIGHTS]
    members = [hold_out(table.splits[split][0], [split])[0] for split, _ in pairs]
    settings = Settings(steps=steps, learning_rate=5e-3, clip=None, evaluate_every=1000)
    recipe = Recipe(Network((50,), "relu"), settings, 64)
    method = Evidential([weight for _, weight in pairs])
    return fit(method, table.x, table.y, members, recipe=recipe, device=device, fast_steps=fast_steps(fused))


def run_grid(options: argparse.Namespace, device: torch.device) -> None:
    """Train the grid, set by set, and print the seconds of each set and their sum, on CUDA."""
    timed = device.type == "cuda"
    fused, total = timed and not options.no_kernel, 0.0
    for name in options.sets.split(",") if options.sets else SETS:
        table = uci.table_of(name, uci.Plan(), options.data)
        steps = options.steps or grid_steps(len(table.splits[0][0]))
        if timed:
            train_grid(table, WARM_UP, device, fused)
        started = synchronized_time(device)
        training = train_grid(table, steps, device, fused).training
        seconds = synchronized_time(device) - started
        total += seconds
        networks, diverged = len(training.diverged), int(training.diverged.sum())
        spent = f": {seconds:.2f} s" if timed else ""
        print(f"{name}, {networks} networks, {steps} steps each, {diverged} diverged{spent}", flush=True)
    print(f"device: {device_label(device)}, {'one kernel for many steps' if fused else 'step by step'}")
    print(f"total: {total:.2f} s" if timed else "times are not shown: this is no CUDA device")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, help="data folder (default: the set is diabetes)")
    parser.add_argument("--sets", help="names with commas (default: boston,concrete,yacht; with --grid all nine)")
    parser.add_argument("--steps", type=int, help="default: 500; with --grid 4,000 to 12,000, by the number of rows")
    parser.add_argument("--grid", action="store_true", help="time all splits with five evidence weights instead")
    parser.add_argument("--no-kernel", action="store_true", help="with --grid: train by the captured graph")
    options = parser.parse_args()
    (run_grid if options.grid else compare)(options, resolve_device(options.device))


if __name__ == "__main__":
    main()
