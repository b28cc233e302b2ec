"""Fit a population of networks to the rows of a table, all at once."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from howsure.likelihoods.base import Method, Recipe
from howsure.nn import Population
from howsure.tables.censoring import cells_of_bounds, read_censored
from howsure.tables.constant import constant_score
from howsure.tables.encoder import Scaling
from howsure.tables.groups import groups_of_members
from howsure.tables.members import Member
from howsure.tables.model import TableModel, method_of_members
from howsure.tables.scaled_table import ScaledTable, check_table
from howsure.tables.target import Target
from howsure.tables.views import Views
from howsure.threads import one_thread
from howsure.training import Part, TableBatches, Training, resolve_device, train_parts
from howsure.training.checkpoint import fingerprint
from howsure.training.loop import FastSteps

__all__ = ["fit", "train"]

FastStepsFor = Callable[[Method, Population, TableBatches, ScaledTable, Recipe], FastSteps | None]


def fit(
    method: Method,
    x: ArrayLike,
    y: ArrayLike,
    members: Sequence[Member],
    *,
    recipe: Recipe | None = None,
    sample_weight: ArrayLike | None = None,
    censored: ArrayLike | None = None,
    **options: Any,
) -> TableModel:
    """Train one network per member on features, and return them as one model.

    Args:
        method: from raw outputs to distributions and their loss.
        x: features (N, F), numbers.
        y: targets (N,) or (N, T), in any units.
        members: one entry per network; :func:`hold_out` makes them.
        recipe: network, settings and batch size; None: from the number of rows.
        sample_weight: (N,), non-negative; weighs the rows in the loss and in the validation score.
        censored: (N,) or of the shape of y, for targets that are bounds: 0 or False where y is the
            value, 1 or True where the value is at least y, −1 where it is at most y. Bounds count by their
            probability, in the loss and in the validation score.
        **options: of :func:`train`.
    """
    values = np.array(y, dtype=float)
    weights = None if sample_weight is None else np.array(sample_weight, dtype=float)
    cells = cells_of_bounds(values, read_censored(censored, values))
    cells = None if cells is None else cells.reshape(len(values), -1, 2)
    target = Target(values, np.arange(len(values)), weights, cells)
    return train(method, Views(np.array(x, dtype=float), members), target, recipe, **options)


@torch.inference_mode(False)
@torch.enable_grad()
def train(
    method: Method,
    views: Views,
    target: Target,
    recipe: Recipe | None = None,
    *,
    device: str | torch.device = "auto",
    standardize: bool = True,
    validate: Callable[[TableModel], Tensor] | None = None,
    fast_steps: FastStepsFor | None = None,
    checkpoint: str | Path | None = None,
    progress: bool | None = False,
) -> TableModel:
    """Train one network per member, all at once, and return them as one model on the CPU.

    Each network sees its own rows only, standardized by its training rows.

    Args:
        method, recipe: see :func:`fit`.
        views: the inputs of each network.
        target: the target in the units of the networks.
        device: "auto", "cpu", "cuda" or "mps".
        standardize: if False, networks see features and targets as they are, and λ has the unit 1/y.
        validate: a score of each member that replaces the NLL of its validation rows. Smaller is better.
        fast_steps: returns a replacement for the loop's steps, as ``fast_steps`` of :func:`howsure.training.train`, or
            None. It is called with the method, networks, batches, scaled table and recipe.
        checkpoint: a file to continue from, as in :func:`howsure.training.train`; one of another fit raises.
        progress: as in :func:`howsure.training.train`.
    """
    members, target_device = views.members, resolve_device(device)
    check_table(views, target)
    recipe = recipe or method.recipe(max(len(m.train) for m in members))
    features, targets, rows = views.table, torch.from_numpy(target.table), [m.train for m in members]
    # scale in float64 on the CPU: a column with mean 1e6 and spread 1 has no digits left in float32
    if standardize:
        scale_x, scale_y = Scaling.fit(features, rows, ignore_constant=True), Scaling.fit(targets, rows)
    else:
        scale_x, scale_y = Scaling.none(features, rows), Scaling.none(targets, rows)
    scale_x = views.hide(scale_x)
    table = ScaledTable.build(views, target, scale_x, scale_y, target_device)
    networks = _build(method, views, recipe, scale_x, targets.shape[1]).to(target_device)
    fitted = TableModel(method, networks, scale_x, scale_y, target.values.ndim == 1, views.trees)
    with one_thread() if target_device.type == "cpu" else nullcontext(1) as threads:
        groups, threads = groups_of_members(method, networks, members, recipe, threads)
        if checkpoint is not None or validate is not None:  # which know all members together
            groups = [list(range(len(members)))]
        models = [_of_group(fitted, group, members[group[0]].bins, recipe) for group in groups]
        parts = [
            _part(model, table.select(group), [members[i] for i in group], recipe, validate, fast_steps)
            for model, group in zip(models, groups, strict=True)
        ]
        identity = "" if checkpoint is None else _identity(method, views, target, recipe)
        # the settings choose the precision, not the caller's context
        with torch.autocast(target_device.type, enabled=False):
            results = train_parts(parts, recipe.settings, checkpoint, identity, progress, threads)
    return _join(fitted, models, groups, results)


def _build(method: Method, views: Views, recipe: Recipe, scale_x: Scaling, targets: int) -> Population:
    """Return the networks to train."""
    embedding = views.embedding(scale_x)
    first = views.x.shape[1] + (0 if embedding is None else embedding.bins)
    networks = method.build([m.seed for m in views.members], first, method.outputs * targets, recipe.network)
    return networks if embedding is None else networks.embed(embedding)


def _of_group(fitted: TableModel, group: Sequence[int], bins: bool, recipe: Recipe) -> TableModel:
    """Return the untrained model of some of the members, all with bins or all without: itself, if these are all."""
    whole, seeds = fitted.networks, [fitted.networks.seeds[i] for i in group]
    first = whole.sizes[0] if bins else whole.in_features
    if len(group) == whole.members and first == whole.sizes[0]:
        model = fitted
    else:
        method = method_of_members(fitted.method, group, whole.members)
        population = method.build(seeds, first, whole.sizes[-1], recipe.network)
        if whole.embedding is not None and first != whole.in_features:
            population.embed(whole.embedding.select(group))
        model = TableModel(
            method,
            population.to(whole.weights[0].device),
            fitted.scale_x.select(group),
            fitted.scale_y.select(group),
            fitted.one_target,
        )
    if fitted.method.draws_noise:  # a generator of this fit alone, so that fits in other threads draw nothing from it
        device = whole.weights[0].device
        model.networks.generator = torch.Generator(device).manual_seed(seeds[0])  # type: ignore[assignment]
    return model


def _part(
    model: TableModel,
    table: ScaledTable,
    members: Sequence[Member],
    recipe: Recipe,
    validate: Callable[[TableModel], Tensor] | None,
    fast_steps: FastStepsFor | None,
) -> Part:
    """Return the inputs of the training loop for the networks of a model."""
    method, population, rows = model.method, model.networks, [m.train for m in members]
    batches = TableBatches(table.tensors, rows, [m.seed for m in members], recipe.batch_size)
    counts = torch.tensor([len(r) for r in rows], device=table.x.device)
    fast = None if fast_steps is None else fast_steps(method, population, batches, table, recipe)
    score = _score(table, model, members, validate)
    constant = None
    if score is not None and validate is None and table.cells is None:
        constant = constant_score(table.own_y(table.y[table.validation]).flatten(0, 1))
    return Part(population, batches, _loss(table, model, counts), score, fast, constant)


@torch.no_grad()
def _join(
    fitted: TableModel, models: Sequence[TableModel], groups: Sequence[Sequence[int]], trainings: Sequence[Training]
) -> TableModel:
    """Return the model with the trained networks of its groups."""
    if models[0] is not fitted:
        states = [dict(model.networks.named_parameters()) for model in models]
        for name, whole in fitted.networks.named_parameters():
            whole.zero_()  # the weights of bins that a network does not see
            for group, state in zip(groups, states, strict=True):
                whole[list(group), : state[name].shape[1]] = state[name]
    if fitted.method.draws_noise:
        for model in models:
            model.networks.generator = None  # type: ignore[assignment]
    first = trainings[0]
    order = torch.tensor([k for group in groups for k in group], device="cpu").argsort().to(first.best_score.device)
    each = ("best_score", "best_step", "diverged", "stopped_early")
    columns = {name: torch.cat([getattr(t, name) for t in trainings])[order] for name in each}
    fitted.result = Training(**columns, steps=first.steps, seconds=first.seconds, history=first.history)
    fitted.to("cpu")
    return fitted.eval() if fitted.method.draws_noise else fitted.ready()


def _identity(method: Method, views: Views, target: Target, recipe: Recipe) -> str:
    """Return a hash of everything that a training depends on, except its settings."""
    rows = [part for m in views.members for part in (m.train, m.validation)]
    tables = [None if t is None else torch.from_numpy(t) for t in (views.x, target.table, target.weights)]
    cells = [] if target.cells is None else [torch.from_numpy(target.cells)]
    seeds = [m.seed for m in views.members]
    return fingerprint(method, recipe.network, recipe.batch_size, seeds, *rows, *tables, *cells)


def _loss(table: ScaledTable, fitted: TableModel, rows: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], Tensor]:
    """Return (module, batch) → loss of each member. A complexity counts once for all of its training rows."""
    method = fitted.method

    def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x, y, weights, cells = table.divide(batch)
        raw = module(table.own_x(x)).unflatten(-1, (-1, method.outputs))
        each = method.loss_of_raw(raw, table.own_y(y), module, cells)
        fit_term = each.mean((1, 2)) if weights is None else (each.mean(2) * weights).mean(1)
        complexity = method.complexity(module)
        return fit_term if complexity is None else fit_term + complexity / rows

    return loss


def _score(
    table: ScaledTable, fitted: TableModel, members: Sequence[Member], validate: Callable[[TableModel], Tensor] | None
) -> Callable[[nn.Module], Tensor] | None:
    """Return the score that chooses the weights: the given one, the validation rows' NLL, or None."""
    if validate is not None:
        return lambda _: validate(fitted)
    if not any(len(m.validation) for m in members):
        return None

    def validation_nll(module: nn.Module) -> Tensor:
        x, y, cells = table.validation_rows()
        answer = fitted.method.answer(module(x).unflatten(-1, (-1, fitted.method.outputs)))
        nll = fitted.method.nll(answer, y, cells).mean(-1)
        return (nll * table.validation_weights).sum(1)

    return validation_nll
