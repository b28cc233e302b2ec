"""Table 1's evidential column as populations, against the same networks trained one at a time by the same code.

All splits of a set are one population of networks of 50 ReLU units, with the authors' batch size and learning rate.
All sides take the same number of steps; evaluation and data are the same. What the population saves is overhead: a
step of one network with a batch of 1 is a few hundred operations on almost nothing. On CUDA the population is trained
twice: step by step, as a captured graph, and by the kernel that takes many steps at once.

    python benchmarks/bench_uci.py [--data DATA] [--sets boston,concrete] [--steps 500] [--device cuda]

Without --data the set is diabetes, which comes with scikit-learn.
"""

import argparse
import platform
import time
from dataclasses import replace
from pathlib import Path

import torch

from evidentia.fitting import fit, hold_out
from evidentia.reproduce.uci import run as uci
from evidentia.training import resolve_device


def seconds_for(table, plan: uci.Plan, groups: list[list[int]], device: torch.device, fused: bool = False) -> float:
    """Of training one network for each split, a group of splits at a time."""
    started = time.perf_counter()
    for group in groups:
        method, _ = uci.method_of("evidential", plan)
        members = [hold_out(table.splits[k][0], [k], 0)[0] for k in group]
        recipe = uci.recipe_of(method, table.name, len(table.splits[0][0]), plan)
        fit(method, table.x, table.y, members, recipe=recipe, device=device, fused=fused)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=None)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    names = options.sets or ("boston,concrete,yacht" if options.data else "diabetes")
    plan = uci.Plan(network="paper", steps=options.steps)
    total: dict[str, float] = {}
    for name in names.split(","):
        table = uci.table_of(name, plan, options.data)
        everyone = list(range(len(table.splits)))
        one_by_one = [[k] for k in everyone]
        ways = {"one at a time": (one_by_one, False), "population": ([everyone], False)}
        if device.type == "cuda":
            ways["population in one kernel"] = ([everyone], True)
        for groups, fused in ways.values():
            seconds_for(table, replace(plan, steps=20), groups[:1], device, fused)  # warm up
        spent = {way: seconds_for(table, plan, *how[:1], device, how[1]) for way, how in ways.items()}
        total = {way: total.get(way, 0.0) + spent[way] for way in ways}
        print(f"{name}: {len(everyone)} splits, {options.steps} steps each")
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"device: {torch.cuda.get_device_name() if device.type == 'cuda' else cpu}")
    if device.type == "cuda":
        print(", ".join(f"{way} {value:.2f} s" for way, value in total.items()))
    for way in list(total)[1:]:
        print(f"one at a time / {way}: {total['one at a time'] / total[way]:.1f}")


if __name__ == "__main__":
    main()
