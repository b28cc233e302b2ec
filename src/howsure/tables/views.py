"""Inputs of networks: features of a row, predictions of trees, and places of numbers in bins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.nn.embedding import PiecewiseLinear, quantile_edges
from howsure.tables.encoder import Scaling
from howsure.tables.experts.trees import TreeFeatures, fit_trees
from howsure.tables.members import Member
from howsure.tables.target import Target

__all__ = ["Views"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Views:
    """Inputs of the networks of a fit for all rows.

    Args:
        x: features of all rows, followed by out-of-fold predictions of trees, (N, V).
        members: rows and kind of each network.
        edges: of the bins of each column of x; columns of trees have none. Empty if no network sees bins.
        trees: from features to these predictions, for new rows; None if there are none.
    """

    x: Array
    members: Sequence[Member]
    edges: tuple[Tensor, ...] = ()
    trees: TreeFeatures | None = None

    @classmethod
    def fit(cls, x: Array, target: Target, members: Sequence[Member], seed: int) -> "Views":
        """Return the inputs of these members.

        Args:
            x: features (N, F).
            target: as networks learn it.
            members: networks. Some may see neither bins nor trees.
            seed: of the folds of the trees.
        """
        trees, columns = None, np.zeros((len(x), 0))
        if any(m.trees for m in members):
            trees, columns = fit_trees(x, target.table, seed, weights=target.weights)
        edges: tuple[Tensor, ...] = ()
        if any(m.bins for m in members):
            none = torch.empty(0, dtype=torch.float64, device="cpu")
            edges = (*quantile_edges(torch.from_numpy(x)), *[none] * columns.shape[1])
        return cls(np.concatenate([x, columns], 1), members, edges, trees)

    @property
    def table(self) -> Tensor:
        """Inputs of the networks, as a tensor."""
        return torch.from_numpy(self.x)

    @property
    def features(self) -> Array:
        """The columns of x that are not predictions of trees."""
        return self.x[:, : self.x.shape[1] - self.columns_of_trees]

    @property
    def columns_of_trees(self) -> int:
        """Number of columns that trees predict."""
        return 0 if self.trees is None else self.trees.outputs

    def select(self, members: Sequence[int]) -> "Views":
        """Return the inputs of some of the networks."""
        return replace(self, members=[self.members[k] for k in members])

    def hide(self, scale_x: Scaling) -> Scaling:
        """Return the scaling by which members see nothing of trees that are not to see them."""
        if self.trees is None:
            return scale_x
        blind = torch.zeros_like(scale_x.scale, dtype=torch.bool)
        for k, member in enumerate(self.members):
            blind[k, :, -self.columns_of_trees :] = not member.trees
        return Scaling(scale_x.loc, torch.where(blind, torch.inf, scale_x.scale))

    def embedding(self, scale_x: Scaling) -> PiecewiseLinear | None:
        """Return the bins as members see them; None if there are none."""
        if not any(len(edges) for edges in self.edges):
            return None
        return PiecewiseLinear.from_edges(self.edges, scale_x.loc, scale_x.scale, [m.bins for m in self.members])
