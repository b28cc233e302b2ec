"""Piecewise-linear encoding of numeric features (Gorishniy et al. 2022): numbers and their places in bins.

A network with smooth activations learns a jump, a kink or a narrow peak of one feature slowly. With the
places of a number in sixteen bins, every piecewise linear function of it is a weighted sum.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from howsure.errors import InputError

__all__ = ["PiecewiseLinear", "quantile_edges"]

BINS = 16  # of a feature
MAX_BINS = 1024  # of all features together, which have fewer each where there are many
MIN_WIDTH = 1e-4  # of a bin in standard deviations: differences in float32 still have three digits then
MAX_ROWS = 100_000  # from which quantiles are computed


def quantile_edges(x: Tensor, bins: int = BINS) -> list[Tensor]:
    """Return the edges of the bins of each column of (N, F): quantiles of its values, from the smallest to the largest.

    Equal edges count once. A column of two values or fewer has no bins. With many columns
    each has fewer bins, and with more than 512 no column has bins.
    """
    bins = min(bins, MAX_BINS // max(1, x.shape[1]))
    if bins < 2:
        return [x.new_empty(0, dtype=torch.float64)] * x.shape[1]
    step = -(-len(x) // MAX_ROWS)
    ordered = x[::step].double().sort(0).values
    places = torch.linspace(0, len(ordered) - 1, bins + 1, dtype=torch.float64, device=x.device)
    below = places.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    values = torch.lerp(ordered[below], ordered[above], (places - below).unsqueeze(1))
    return [_apart(values[:, k], ordered[:, k]) for k in range(x.shape[1])]


def _apart(edges: Tensor, ordered: Tensor) -> Tensor:
    """Return the edges that are clearly apart, and none if they leave a single bin."""
    distinct = torch.unique_consecutive(ordered[:: max(1, len(ordered) // 1000)])
    least = MIN_WIDTH * float(ordered.std(correction=0))
    if len(distinct) < 3 or not least > 0 or least == float("inf"):
        return edges[:0]
    kept = [edges[0]]
    kept += [edge for edge in edges[1:] if edge - kept[-1] >= least]
    return torch.stack(kept) if len(kept) > 2 else edges[:0]


class PiecewiseLinear(nn.Module):
    """Features followed by their places in bins, for each member of a population: (M, N, F) → (M, N, F + bins).

    A place is −½ below the bin, ½ above it and linear between; the first and the last bin of a feature extend by
    another width. Farther out the feature itself carries the distance.

    Args:
        column: the feature of each bin, (bins,).
        slope, offset: place = offset + slope · feature, as each member sees the feature, (M, 1, bins). Both are 0 for a
            member that sees no bins.
        low, high: bounds of each place, (bins,).
        in_features: F.
    """

    column: Tensor
    slope: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor
    spread: Tensor

    def __init__(
        self, column: Tensor, slope: Tensor, offset: Tensor, low: Tensor, high: Tensor, in_features: int
    ) -> None:
        super().__init__()
        self.in_features = in_features
        for name, value in (("column", column), ("slope", slope), ("offset", offset), ("low", low), ("high", high)):
            self.register_buffer(name, value)
        self.prepare()

    def prepare(self) -> None:
        """Compute the matrix from features to bins: on a CPU the product is quicker than a copy of the features.

        Raises:
            InputError: if a bin belongs to a feature that does not exist.
        """
        slope, column = self.slope, self.column
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < self.in_features:
            raise InputError(f"bins of features that do not exist: there are {self.in_features}")
        spread = slope.new_zeros(len(slope), self.in_features, len(column))
        spread.scatter_(1, column.expand(len(slope), 1, -1), slope)
        self.register_buffer("spread", spread, persistent=False)

    @classmethod
    def blank(cls, members: int, bins: int, in_features: int) -> Self:
        """Return an embedding of this size, with zeros in all buffers."""
        column, zero = torch.zeros(bins, dtype=torch.int64, device="cpu"), torch.zeros(bins, device="cpu")
        each = torch.zeros(members, 1, bins, device="cpu")
        return cls(column, each, each.clone(), zero, zero.clone(), in_features)

    @classmethod
    def from_edges(cls, edges: Sequence[Tensor], loc: Tensor, scale: Tensor, sees: Sequence[bool]) -> Self:
        """Return the embedding of features that members see as (x − loc)/scale.

        Args:
            edges: of the bins of each feature, as :func:`quantile_edges` returns them, for x.
            loc, scale: (M, 1, F), in float64. A member sees no bins of a feature whose scale is infinite.
            sees: whether a member sees any bins.
        """
        ordinal = [torch.arange(max(0, len(e) - 1), device=loc.device) for e in edges]  # of each bin of a feature
        column = torch.cat([torch.full_like(each, k) for k, each in enumerate(ordinal)])
        left = torch.cat([e[:-1] for e in edges])
        width = torch.cat([e[1:] - e[:-1] for e in edges])
        slope = scale[..., column] / width
        offset = (loc[..., column] - left) / width - 0.5
        seen = torch.tensor(list(sees), device=loc.device).view(-1, 1, 1) & slope.isfinite()
        first = torch.cat([each == 0 for each in ordinal])
        last = torch.cat([each == len(each) - 1 for each in ordinal])
        low, high = torch.where(first, -1.5, -0.5), torch.where(last, 1.5, 0.5)
        slope, offset = (torch.where(seen, t, 0.0).float() for t in (slope, offset))
        return cls(column, slope, offset, low, high, loc.shape[-1])

    @property
    def bins(self) -> int:
        """Number of bins of all features together."""
        return len(self.column)

    @property
    def seen(self) -> list[bool]:
        """Whether each member sees any bins."""
        return [bool(each) for each in (self.slope != 0).flatten(1).any(1)]

    def forward(self, x: Tensor) -> Tensor:
        places = torch.baddbmm(self.offset, x, self.spread)
        return torch.cat([x, places.clamp(self.low, self.high)], -1)

    def select(self, members: Sequence[int]) -> "PiecewiseLinear":
        """Return the embedding of some members."""
        chosen = list(members)
        return PiecewiseLinear(
            self.column, self.slope[chosen], self.offset[chosen], self.low, self.high, self.in_features
        )
