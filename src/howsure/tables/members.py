"""Members of a population: the rows that each network learns from and stops by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from howsure.tables.splits import random

__all__ = ["Member", "hold_in_turn", "hold_out", "kinds_of"]


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
