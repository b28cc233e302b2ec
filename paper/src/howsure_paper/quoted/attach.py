"""The table and sentence of docs/trained.md on evidence that was attached to trained networks."""

from collections.abc import Mapping
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
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def short(value: float) -> str:
    """Return a share with two digits, as ".92"."""
    return f"{value:.2f}".removeprefix("0")


def toy_table(record: Mapping[str, Any]) -> str:
    """Return the coverage of 90% intervals off the data, after training by squared errors."""
    rows = []
    for name, (words, features) in CHOSEN.items():
        runs = [record["toys"][f"{name}, Linear, {activation}, {features}"] for activation in ACTIVATIONS]
        inside = [short(value) for value in sorted(run["inside"] for run in runs)]
        rows.append([words, *(short(run["off"]) for run in runs), f"{inside[0]} to {inside[-1]}"])
    return table("| SiLU | ReLU | tanh | inside", rows)


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


ATTACH: dict[str, Block] = {
    "attach toys": lambda results: toy_table(read_record(results / "bench_attach")),
    "attach tails": lambda results: COUNTS[len(sets_below_laplace(read_record(results / "bench_attach")))],
}
