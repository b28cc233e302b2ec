"""Members of a population: the rows that each network learns from and stops by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from howsure.errors import InputError
from howsure.tables.splits import random

__all__ = [
    "ALL_KINDS",
    "Member",
    "choose_members",
    "count_networks",
    "hold_in_turn",
    "hold_out",
    "kinds_of",
    "kinds_of_inputs",
]

KINDS = ("numbers", "bins", "trees", "bins+trees")  # inputs of a network
ALL_KINDS = KINDS[:3]  # inputs of "auto"
MIN_ROWS_FOR_BINS = 50
MIN_ROWS_FOR_TREES = 150  # with fewer, trees of a fold differ from the trees of all rows
MAX_ROWS_FOR_ALL = 10_000  # with more rows, fewer networks are trained
MAX_HELD_OUT = 10_000  # rows, which are predicted at every evaluation: more would take longer than the training


@dataclass(frozen=True)
class Member:
    """One network of a population: the rows it learns from, the rows of early stopping, and its seed.

    Without validation rows (in none of the members) the last weights are kept.

    Args:
        train: rows to learn from.
        validation: rows that decide which weights are kept.
        seed: of the initial weights and of the batches.
        bins: whether the network sees the places of numbers in bins, next to the numbers.
        trees: whether it sees the predictions of trees.
    """

    train: Tensor
    validation: Tensor
    seed: int
    bins: bool = False
    trees: bool = False


def count_networks(members: int | None, rows: int) -> int:
    """Return how many networks to train on a table with this number of rows."""
    return (12 if rows < MAX_ROWS_FOR_ALL else 9) if members is None else int(members)


def kinds_of_inputs(inputs: Any, members: int, rows: int) -> list[str]:
    """Return the names of the inputs of the networks, after checking them."""
    auto = isinstance(inputs, str) and inputs == "auto"
    kinds = list(ALL_KINDS) if auto else list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not kinds or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise InputError(f"inputs must be 'auto', or one or several of {', '.join(KINDS)}, got {inputs!r}")
    if auto and (members < len(ALL_KINDS) or rows < MIN_ROWS_FOR_BINS):
        return ["numbers"]
    if auto and rows < MIN_ROWS_FOR_TREES:
        return ["numbers", "bins"]
    return kinds[:members]


def choose_members(rows: int, kinds: Sequence[str], count: int, seed: int, share: float) -> list[Member]:
    """Return ``count`` networks to train on this number of rows, in equal numbers for each of the inputs.

    Args:
        rows: of the table.
        kinds: inputs of the networks.
        count: number of networks.
        seed: of the networks and of the rows that they hold out.
        share: of the rows that each network holds out.
    """
    seeds = np.random.SeedSequence(seed).generate_state(count, np.uint32)
    parts = hold_in_turn(np.arange(rows), -(-count // len(kinds)), seed, share)
    members = []
    for k, own_seed in enumerate(seeds):
        kind, (train, validation) = kinds[k % len(kinds)], parts[k // len(kinds)]
        members.append(Member(train, validation, int(own_seed), "bins" in kind, "trees" in kind))
    return members


def kinds_of(members: Sequence[Member]) -> list[int]:
    """Return the kind of each member, a number from 0 on: members that see the same of a row have the same."""
    seen = [(m.bins, m.trees) for m in members]
    kinds = list(dict.fromkeys(seen))
    return [kinds.index(each) for each in seen]


def hold_out(rows: ArrayLike, seeds: Sequence[int], share: float = 0.1) -> list[Member]:
    """Return one member per seed, each with a separate share of these rows for validation.

    With a share of 0 they learn from all rows, and train to the end.
    """
    table = torch.as_tensor(np.asarray(rows), dtype=torch.int64, device="cpu")
    if share == 0:
        return [Member(table, table[:0], seed) for seed in seeds]
    members = []
    for seed in seeds:
        inner, validation = random(len(table), share, seed)
        members.append(Member(table[torch.from_numpy(inner)], table[torch.from_numpy(validation)], seed))
    return members


def hold_in_turn(rows: ArrayLike, count: int, seed: int, share: float = 0.1) -> list[tuple[Tensor, Tensor]]:
    """Return training and validation rows of ``count`` networks. Each holds out another part of the rows.

    So all of them together have been tested on most rows. After 1/share networks, the rows are dealt anew.

    Args:
        rows: those that count.
        count: number of networks.
        seed: of the order in which rows are dealt.
        share: of the rows that a network holds out, at least one and at most 10,000; 0 holds out none.
    """
    table = torch.as_tensor(np.asarray(rows), dtype=torch.int64, device="cpu")
    if share == 0:
        return [(table, table[:0])] * count
    size = min(max(1, round(share * len(table))), len(table) - 1, MAX_HELD_OUT)
    rounds = max(1, len(table) // size)
    generator = np.random.default_rng([seed, 4])
    parts = []
    for k in range(count):
        if k % rounds == 0:
            order = generator.permutation(len(table))
        held = np.zeros(len(table), dtype=bool)
        held[order[k % rounds * size : (k % rounds + 1) * size]] = True
        inside = torch.from_numpy(held)
        parts.append((table[~inside], table[inside]))
    return parts
