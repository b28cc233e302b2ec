"""What networks see of a row beside its features: predictions of trees, and places of numbers in bins."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.nn.embedding import PiecewiseLinear, quantile_edges
from howsure.tables.encoder import Scaling
from howsure.tables.experts.trees import Trees
from howsure.tables.members import Member

__all__ = ["Inputs"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Inputs:
    """What can be seen of training rows beside their features; which network sees what, its :class:`Member` says.

    Args:
        x: features of all rows, followed by what trees that have not learned from a row predict of it.
        edges: of the bins of each of these columns; columns of trees have none.
        trees: from features to these predictions, for rows to come; None if there are none.
    """

    x: Array
    edges: tuple[Tensor, ...]
    trees: Trees | None

    @classmethod
    def learn(
        cls, x: Array, y: Array, rows: NDArray[np.int64], seed: int, members: Sequence[Member], weights: Array | None
    ) -> "Inputs":
        """Return what these members are to see, learned from some of the rows.

        Args:
            x: features (N, F).
            y: targets (N,) or (N, T), as networks learn them.
            rows: those that count.
            seed: of the folds of the trees.
            members: networks, of which some may see neither bins nor trees.
            weights: of the rows, (N,).
        """
        trees, columns = None, np.zeros((len(x), 0))
        if any(m.trees for m in members):
            targets = y.reshape(len(y), -1)
            trees, own = Trees.fit(x[rows], targets[rows], seed, weights=None if weights is None else weights[rows])
            columns = np.zeros((len(x), own.shape[1]))
            columns[rows] = own
        none = torch.empty(0, dtype=torch.float64, device="cpu")
        edges = (none,) * x.shape[1]
        if any(m.bins for m in members):
            edges = tuple(quantile_edges(torch.from_numpy(x[rows])))
        both = x if trees is None else np.concatenate([x, columns], 1)
        return cls(both, edges + (none,) * columns.shape[1], trees)

    @property
    def columns_of_trees(self) -> int:
        """Number of columns that trees predict."""
        return 0 if self.trees is None else self.trees.outputs

    def hide(self, scale_x: Scaling, members: Sequence[Member]) -> Scaling:
        """Return the scaling by which members see nothing of trees that are not to see them."""
        if self.trees is None:
            return scale_x
        blind = torch.zeros_like(scale_x.scale, dtype=torch.bool)
        for k, member in enumerate(members):
            blind[k, :, -self.columns_of_trees :] = not member.trees
        return Scaling(scale_x.loc, torch.where(blind, torch.inf, scale_x.scale))

    def embedding(self, scale_x: Scaling, members: Sequence[Member]) -> PiecewiseLinear | None:
        """Return the bins as members see them; None if there are none."""
        if not any(len(edges) for edges in self.edges):
            return None
        return PiecewiseLinear.from_edges(self.edges, scale_x.loc, scale_x.scale, [m.bins for m in members])
