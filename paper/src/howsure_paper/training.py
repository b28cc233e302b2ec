"""Train networks on arrays as the experiments need it: checkpoints, other scores, kernels, and noise in training."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from howsure.likelihoods.base import Method, Recipe
from howsure.nn import Population
from howsure.tables.censoring import cells_of_bounds, read_censored
from howsure.tables.encoder import Scaling
from howsure.tables.members import Member
from howsure.tables.model import TableModel
from howsure.tables.scaled_table import ScaledTable
from howsure.tables.target import Target
from howsure.tables.train import part_of, train, untrained
from howsure.tables.views import Views
from howsure.threads import one_thread
from howsure.training import Part, TableBatches, resolve_device, train_parts
from howsure.training.checkpoint import fingerprint

__all__ = ["fit"]


def fit(
    method: Method,
    x: ArrayLike,
    y: ArrayLike,
    members: Sequence[Member],
    *,
    recipe: Recipe | None = None,
    sample_weight: ArrayLike | None = None,
    censored: ArrayLike | None = None,
    device: str | torch.device = "auto",
    progress: bool | None = False,
    **special: Any,
) -> TableModel:
    """Train one network per member on features, and return them as one model.

    Args:
        method: from raw outputs to distributions and their loss.
        x: features (N, F), numbers.
        y: targets (N,) or (N, T), in any units.
        members: one entry per network; :func:`howsure.tables.members.hold_out` makes them.
        recipe: network, settings and batch size; None: from the number of rows.
        sample_weight: (N,), non-negative; weighs the rows in the loss and in the validation score.
        censored: as in :meth:`howsure.EvidentialRegressor.fit`.
        device: "auto", "cpu", "cuda" or "mps".
        progress: as in :func:`howsure.training.train`.
        **special: of :func:`_fit_together`.
    """
    values = np.array(y, dtype=float)
    weights = None if sample_weight is None else np.array(sample_weight, dtype=float)
    cells = cells_of_bounds(values, read_censored(censored, values))
    cells = None if cells is None else cells.reshape(len(values), -1, 2)
    target = Target(values, weights, cells)
    views = Views(np.array(x, dtype=float), members)
    recipe = recipe or method.recipe(max(len(m.train) for m in members))
    if special or hasattr(method, "draws_noise"):
        return _fit_together(method, views, target, recipe, resolve_device(device), progress, **special)
    return train(method, views, target, recipe, device=device, progress=progress)


@torch.inference_mode(False)
@torch.enable_grad()
def _fit_together(
    method: Any,
    views: Views,
    target: Target,
    recipe: Recipe,
    device: torch.device,
    progress: bool | None,
    standardize: bool = True,
    validate: Callable[[TableModel], Tensor] | None = None,
    fast_steps: Callable[[Method, Population, TableBatches, ScaledTable, Recipe], Any] | None = None,
    checkpoint: str | Path | None = None,
) -> TableModel:
    """Train all networks in one group.

    Args:
        method, views, target, recipe, device, progress: as in :func:`howsure.tables.train.train`. A method may have
            ``draws_noise``, whether training draws random numbers from ``population.generator``, and ``complexity``,
            a term of each member that is added to its loss once for all of its rows, in nats.
        standardize: if False, networks see features and targets as they are, and λ has the unit 1/y.
        validate: a score of each member that replaces the NLL of its validation rows. Smaller is better.
        fast_steps: returns a replacement for the loop's steps, as ``fast_steps`` of :func:`howsure.training.train`, or
            None. It is called with the method, networks, batches, scaled table and recipe.
        checkpoint: a file to continue from, as in :func:`howsure.training.train`; one of another fit raises.
    """
    blank = [torch.zeros(len(views.members), 1, t.shape[1], dtype=torch.float64) for t in (views.x, target.table)]
    scales = None if standardize else tuple(Scaling(each, torch.ones_like(each)) for each in blank)
    fitted, table = untrained(method, views, target, recipe, device, scales)  # type: ignore[arg-type]
    networks: Any = fitted.networks
    part = _part(method, fitted, table, views.members, recipe)
    if validate is not None:
        part = replace(part, validate=lambda _: validate(fitted), constant=None)
    if fast_steps is not None:
        part = replace(part, fast_steps=fast_steps(method, networks, part.batches, table, recipe))  # type: ignore[arg-type]
    noisy = getattr(method, "draws_noise", False)
    if noisy:  # a generator of this fit alone, so that fits in other threads draw nothing from it
        networks.generator = torch.Generator(device).manual_seed(networks.seeds[0])
    identity = "" if checkpoint is None else _identity(method, views, target, recipe)
    with one_thread() if device.type == "cpu" else nullcontext(), torch.autocast(device.type, enabled=False):
        (fitted.result,) = train_parts([part], recipe.settings, checkpoint, identity, progress)
    fitted.to("cpu")
    if not noisy:
        return fitted.ready()
    networks.generator = None
    return fitted.eval()  # each prediction draws networks from these


def _part(method: Any, fitted: TableModel, table: ScaledTable, members: Sequence[Member], recipe: Recipe) -> Part:
    """Return the inputs of the training loop, with the complexity of the networks in their loss."""
    part = part_of(fitted, table, members, recipe)
    if not hasattr(method, "complexity"):
        return part
    rows = torch.tensor([len(m.train) for m in members], device=table.x.device)
    return replace(part, loss=lambda module, batch: part.loss(module, batch) + method.complexity(module) / rows)


def _identity(method: Method, views: Views, target: Target, recipe: Recipe) -> str:
    """Return a hash of everything that a training depends on, except its settings."""
    rows = [part for m in views.members for part in (m.train, m.validation)]
    tables = [None if t is None else torch.from_numpy(t) for t in (views.x, target.table, target.weights)]
    cells = [] if target.cells is None else [torch.from_numpy(target.cells)]
    seeds = [m.seed for m in views.members]
    return fingerprint(method, recipe.network, recipe.batch_size, seeds, *rows, *tables, *cells)
