"""Members of a population: the rows that each network learns from and stops by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from evidentia.data.splits import random

__all__ = ["Member", "hold_out"]


@dataclass(frozen=True)
class Member:
    """One network of a population: the rows it learns from, the rows that tell it when to stop, and its seed.

    Without validation rows (in none of the members) the last weights are kept.
    """

    train: Tensor
    validation: Tensor
    seed: int


def hold_out(rows: ArrayLike, seeds: Sequence[int], share: float = 0.1) -> list[Member]:
    """Return one member per seed, each of which keeps its own share of these rows for validation.

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
