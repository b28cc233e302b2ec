"""A table as a population trains on it: on the device, in float32, scaled for each member by its training rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsure.likelihoods.base import Cells
from howsure.tables.encoder import Scaling
from howsure.tables.target import Target
from howsure.tables.views import Views
from howsure.training.batches import pad_rows

__all__ = ["ScaledTable"]


@dataclass(frozen=True)
class ScaledTable:
    """A table on the device, in float32, scaled roughly for all members; ``own_x`` and ``own_y`` do the rest for each.

    Attributes:
        x: features (N, F).
        y: targets (N, T).
        row_weights: of mean 1, or None.
        cells: lower and upper ends of the targets' cells (N, T, 2), equal where y is the value; or None.
        own_x: from x to the inputs of each member.
        own_y: the same of y.
        validation: validation rows of each member (M, V), padded to one length.
        validation_weights: of these rows, with sum 1 for each member and 0 for padding.
    """

    x: Tensor
    y: Tensor
    row_weights: Tensor | None
    cells: Tensor | None
    own_x: Scaling
    own_y: Scaling
    validation: Tensor
    validation_weights: Tensor

    @classmethod
    def build(
        cls, views: Views, target: Target, scale_x: Scaling, scale_y: Scaling, device: torch.device
    ) -> "ScaledTable":
        """Return the table of a fit, scaled by these scalings, on a device."""
        members, x, y = views.members, views.table, torch.from_numpy(target.table)
        row_weights = None if target.weights is None else torch.from_numpy(target.weights)
        cells = None if target.cells is None else torch.from_numpy(target.cells)
        # the first member's scaling brings every column near unit scale; the others' differ from it by a little
        first_x, first_y = _common(scale_x), _common(scale_y)
        # where there are no validation rows, this table of them is not used
        validation, counts = pad_rows([m.validation if len(m.validation) else m.train[:1] for m in members])
        weights = (torch.arange(validation.shape[1], device=counts.device) < counts.unsqueeze(1)).double()
        if row_weights is not None:
            row_weights = row_weights / row_weights.mean()
            weights = weights * row_weights[validation]
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-12)

        def ready(t: Tensor) -> Tensor:
            return t.float().to(device)

        def inner(own: Scaling, shared: Scaling) -> Scaling:
            scale = torch.where(own.ignored, torch.inf, own.scale / shared.scale)
            return Scaling(ready((own.loc - shared.loc) / shared.scale), ready(scale))

        return cls(
            ready(first_x(x)[0]),
            ready(first_y(y)[0]),
            None if row_weights is None else ready(row_weights),
            None if cells is None else ready(torch.stack([first_y(end)[0] for end in cells.unbind(-1)], -1)),
            inner(scale_x, first_x),
            inner(scale_y, first_y),
            validation.to(device),
            ready(weights),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that batches are drawn from."""
        return tuple(t for t in (self.x, self.y, self.row_weights, self.cells) if t is not None)

    def divide(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor | None, Cells | None]:
        """Return the parts of a batch of :attr:`tensors`: features, targets, row weights and each member's cells."""
        x, y, *others = batch
        weights = None if self.row_weights is None else others.pop(0)
        return x, y, weights, self._own_cells(others.pop(0)) if others else None

    def _own_cells(self, cells: Tensor) -> Cells:
        """Return the lower and upper ends of cells, scaled as each member sees them."""
        lower, upper = (self.own_y(end) for end in cells.unbind(-1))
        return lower, upper

    def select(self, members: Sequence[int]) -> "ScaledTable":
        """Return the same table as some of the members see it."""
        chosen = list(members)
        return replace(
            self,
            own_x=self.own_x.select(chosen),
            own_y=self.own_y.select(chosen),
            validation=self.validation[chosen],
            validation_weights=self.validation_weights[chosen],
        )

    def validation_rows(self) -> tuple[Tensor, Tensor, Cells | None]:
        """Return features, targets and cells of each member's validation rows, scaled as it sees them."""
        cells = None if self.cells is None else self._own_cells(self.cells[self.validation])
        return self.own_x(self.x[self.validation]), self.own_y(self.y[self.validation]), cells


def _common(own: Scaling) -> Scaling:
    """Return the first member's scaling, or where it ignores a column, the scaling of a member that uses it."""
    varies = own.scale.argmin(0, keepdim=True)
    first, other = own.select([0]), Scaling(own.loc.gather(0, varies), own.scale.gather(0, varies))
    loc, scale = (torch.where(first.ignored, a, b) for a, b in ((other.loc, first.loc), (other.scale, first.scale)))
    return Scaling(loc, scale)
