"""The table of docs/recipes/botorch.md on Bayesian optimisation."""

from pathlib import Path

import numpy as np

from howsure_paper.quoted.blocks import Block, table
from howsure_paper.record import read_record

__all__ = ["BOTORCH"]

PROBLEMS = {"branin": "Branin", "hartmann6": "Hartmann-6", "noisy": "Hartmann-3 with noise"}
METHODS = ("howsure", "gp", "gp_power", "random")


def regret_table(results: Path) -> str:
    """Return the median final regrets of each problem, and the ratio of ours to the Gaussian process."""
    rows = []
    for problem, runs in read_record(results / "bench_botorch")["regrets"].items():
        medians = [float(np.median([run[-1] for run in runs[method]])) for method in METHODS]
        rows.append([PROBLEMS[problem], *(f"{m:.3f}" for m in medians), f"{medians[0] / medians[1]:.1f}"])
    return table("| networks | GP | GP, power transform | random | networks : GP", rows)


BOTORCH: dict[str, Block] = {"botorch": regret_table}
