"""The tables on evidence that was attached to networks: of docs/trained.md, and of docs/recipes/botorch.md."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from howsure_paper.quoted.blocks import Block, table
from howsure_paper.record import read_record

__all__ = ["ATTACH"]

ACTIVATIONS = ("SiLU", "ReLU", "Tanh")
CHOSEN = {  # what was asked of each toy, and its features
    "cubic": ("x³, rows in [−4, 4], new rows at 4.5 to 6", "layers"),
    "friedman": ("Friedman's function, new rows in a box 1.5 times as wide", "layers"),
    "gap": ("cos(1.5 x), new rows in a gap, gradient features", "gradients"),
}
FRESH = {
    "damped sine": "damped sine",
    "growing noise": "product, noise that grows",
    "ball in six dimensions": "six columns, new rows on a sphere 1.4 to 2 times as large",
    "product of eight": "eight columns, new rows beyond the corners",
    "heavy tails": "three columns, noise of 3 degrees of freedom",
}
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def short(value: float) -> str:
    """Return a share with two digits, as ".92"."""
    return f"{value:.2f}".removeprefix("0")


def coverage_table(runs: Mapping[str, Any], toys: Mapping[str, str], features: Mapping[str, str]) -> str:
    """Return the coverage of 90% intervals off the data for each activation.

    Args:
        runs: of a part of the record.
        toys: the words for each toy.
        features: of the toys with these words; "layers" for others.
    """
    rows = []
    for name, words in toys.items():
        kind = features.get(words, "layers")
        own = [runs[f"{name}, Linear, {activation}, {kind}"] for activation in ACTIVATIONS]
        inside = [short(value) for value in sorted(run["inside"] for run in own)]
        ends = list(dict.fromkeys((inside[0], inside[-1])))
        rows.append([words, *(short(run["off"]) for run in own), " to ".join(ends)])
    return table("| SiLU | ReLU | tanh | inside", rows)


def toy_table(record: Mapping[str, Any]) -> str:
    """Return the coverage of 90% intervals off the data, after training by squared errors."""
    return coverage_table(record["toys"], {name: words for name, (words, _) in CHOSEN.items()}, dict(CHOSEN.values()))


def fresh_table(record: Mapping[str, Any]) -> str:
    """Return the same for toys that were used to choose nothing."""
    return coverage_table(record["fresh"], FRESH, {})


def sets_below_laplace(record: Mapping[str, Any]) -> list[str]:
    """Return the tables on whose tails the NLL is at most that of the better of two Laplace approximations."""
    tails = record["tails"]
    names = [key.removesuffix(", tail, attach") for key in tails if key.endswith(", tail, attach")]
    peers = ("laplace", "laplace, calibrated")
    return [
        name
        for name in names
        if tails[f"{name}, tail, attach"]["nll"] <= min(tails[f"{name}, tail, {peer}"]["nll"] for peer in peers)
    ]


def regret_table(record: Mapping[str, Any]) -> str:
    """Return median final regrets of Bayesian optimisation, and the ratio of the networks to the Gaussian process."""
    rows, names = [], {"branin": "Branin", "hartmann6": "Hartmann-6", "noisy": "Hartmann-3 with noise"}
    for problem, runs in record["regrets"].items():
        each = [median(run[-1] for run in runs[method]) for method in ("howsure", "gp", "gp_power", "random")]
        rows.append([names[problem], *(f"{m:.3f}" for m in each), f"{each[0] / each[1]:.1f}"])
    return table("| networks | GP | GP, power transform | random | networks : GP", rows)


ATTACH: dict[str, Block] = {
    "attach toys": lambda results: toy_table(read_record(results / "bench_attach")),
    "attach fresh": lambda results: fresh_table(read_record(results / "bench_attach")),
    "attach tails": lambda results: COUNTS[len(sets_below_laplace(read_record(results / "bench_attach")))],
    "botorch": lambda results: regret_table(read_record(results / "bench_botorch")),
}
