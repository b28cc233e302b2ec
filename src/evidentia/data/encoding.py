"""From the columns of a table to what a network sees, learned from training rows only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

__all__ = ["Scaling"]


@dataclass(frozen=True)
class Scaling:
    """Zero mean and unit deviation for each column, one pair per member of a population: both (M, 1, F).

    A column that does not vary is only centred.
    """

    loc: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, table: Tensor, rows: Sequence[Tensor]) -> Self:
        """From each member's rows of a table (N, F), in float64, answered in the dtype of the table."""
        loc, scale = [], []
        for r in rows:
            part = table[r.to(table.device)].double()
            mean, std = part.mean(0), part.std(0, correction=0)
            loc.append(mean)
            # the deviation of a constant column is rounding, not spread
            scale.append(torch.where(std > 1e-12 * part.abs().amax(0), std, 1.0))
        return cls(torch.stack(loc).unsqueeze(1).to(table.dtype), torch.stack(scale).unsqueeze(1).to(table.dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """(M, N, F) or (N, F) → (M, N, F)."""
        return (x - self.loc) / self.scale

    def select(self, members: Sequence[int]) -> "Scaling":
        """The scaling of some members."""
        chosen = list(members)
        return Scaling(self.loc[chosen], self.scale[chosen])
