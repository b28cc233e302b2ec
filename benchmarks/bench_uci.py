"""Compares the evidential networks of Table 1 trained as a population with the same networks trained one at a time.

All splits of a set are one population of networks of 50 ReLU units, with the authors' batch size and learning rate. The
same code trains both sides on the same data for the same number of steps. The population saves overhead: a step of one
network with a batch of one row is a few hundred operations on almost no data. On CUDA the population is trained twice:
step by step as a captured graph, and by the kernel that takes many steps at once.

    python benchmarks/bench_uci.py [--data DATA] [--sets boston,concrete] [--steps 500] [--device cuda]

Without --data the set is diabetes, which comes with scikit-learn.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from devices import device_label
from evidentia.fitting import fit, hold_out
from evidentia.reproduce.timing import synchronized_time
from evidentia.reproduce.uci import run as uci
from evidentia.training import resolve_device


def seconds_for(table, plan: uci.Plan, groups: list[list[int]], device: torch.device, fused: bool = False) -> float:
    """Return the seconds of training one network for each split, where each group of splits is one population."""
    started = synchronized_time(device)
    for group in groups:
        method, _ = uci.method_of("evidential", plan)
        members = [hold_out(table.splits[k][0], [k], 0)[0] for k in group]
        recipe = uci.recipe_of(method, table.name, len(table.splits[0][0]), plan)
        fit(method, table.x, table.y, members, recipe=recipe, device=device, fused=fused)
    return synchronized_time(device) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, help="data folder (default: the set is diabetes)")
    parser.add_argument("--sets", help="names with commas (default: boston,concrete,yacht)")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    device = resolve_device(options.device)
    names = options.sets or ("boston,concrete,yacht" if options.data else "diabetes")
    plan = uci.Plan(network="paper", steps=options.steps)
    total: dict[str, float] = {}
    for name in names.split(","):
        table = uci.table_of(name, plan, options.data)
        splits = list(range(len(table.splits)))
        sides = {"one at a time": ([[k] for k in splits], False), "population": ([splits], False)}
        if device.type == "cuda":
            sides["population in one kernel"] = ([splits], True)
        for groups, fused in sides.values():
            seconds_for(table, replace(plan, steps=20), groups[:1], device, fused)  # warm up
        for side, (groups, fused) in sides.items():
            total[side] = total.get(side, 0.0) + seconds_for(table, plan, groups, device, fused)
        print(f"{name}: {len(splits)} splits, {options.steps} steps each")
    print(f"device: {device_label(device)}")
    if device.type == "cuda":
        print(", ".join(f"{side} {seconds:.2f} s" for side, seconds in total.items()))
    for side in list(total)[1:]:
        print(f"one at a time / {side}: {total['one at a time'] / total[side]:.1f}")


if __name__ == "__main__":
    main()
