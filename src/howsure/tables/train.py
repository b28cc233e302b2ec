"""Train the networks of a table, all at once."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from howsure.errors import InputError
from howsure.likelihoods.base import Method, Recipe
from howsure.nn import Population
from howsure.tables.constant import constant_cell_score, constant_score
from howsure.tables.encoder import Scaling
from howsure.tables.members import Member
from howsure.tables.model import TableModel, method_of_members
from howsure.tables.scaled_table import ScaledTable
from howsure.tables.target import Target
from howsure.tables.views import Views
from howsure.threads import one_thread
from howsure.training import Part, TableBatches, Training, resolve_device, train_parts

__all__ = ["groups_of_members", "part_of", "train", "untrained", "usable"]

WORTH_A_THREAD = 4e7  # multiplications of a training step; below, Python itself takes the time
MIN_SCORED_ROWS = 5  # with fewer rows a network is not judged
TOO_BAD = 5.0  # nats above the score of a constant


@torch.inference_mode(False)
@torch.enable_grad()
def train(
    method: Method,
    views: Views,
    target: Target,
    recipe: Recipe,
    *,
    device: str | torch.device = "auto",
    progress: bool | None = False,
) -> TableModel:
    """Train one network per member, all at once, and return them as one model on the CPU.

    Each network sees its own rows only, standardized by its training rows.

    Args:
        method: from raw outputs to distributions and their loss.
        views: the inputs of each network.
        target: the target in the units of the networks.
        recipe: network, settings and batch size.
        device: "auto", "cpu", "cuda" or "mps".
        progress: as in :func:`howsure.training.train`.
    """
    members, place = views.members, resolve_device(device)
    fitted, table = untrained(method, views, target, recipe, place)
    with one_thread() if place.type == "cpu" else nullcontext(1) as threads:
        groups, threads = groups_of_members(fitted.networks, members, recipe, threads)
        models = [_of_group(fitted, group, members[group[0]].bins, recipe) for group in groups]
        parts = [
            part_of(model, table.select(group), [members[i] for i in group], recipe)
            for model, group in zip(models, groups, strict=True)
        ]
        # the settings choose the precision, not the caller's context
        with torch.autocast(place.type, enabled=False):
            results = train_parts(parts, recipe.settings, progress=progress, threads=threads)
    fitted.result = _join(fitted, models, groups, results)
    return fitted.to("cpu").ready()


def untrained(
    method: Method,
    views: Views,
    target: Target,
    recipe: Recipe,
    device: torch.device,
    scales: tuple[Scaling, Scaling] | None = None,
) -> tuple[TableModel, ScaledTable]:
    """Return the model before its training, and the table that its networks train on.

    Args:
        method, views, target, recipe: as in :func:`train`.
        device: of the networks and the table.
        scales: of features and targets; None standardizes them for each network.
    """
    features, targets, rows = views.table, torch.from_numpy(target.table), [m.train for m in views.members]
    for name, values in (("x", features), ("y", targets)):
        bad = (~values.isfinite().all(1)).nonzero()
        if len(bad):
            raise InputError(f"{name} has {len(bad)} rows with NaN or infinite values", row=int(bad[0]))
    # scale in float64 on the CPU: a column with mean 1e6 and spread 1 has no digits left in float32
    scale_x, scale_y = scales or (Scaling.fit(features, rows, ignore_constant=True), Scaling.fit(targets, rows))
    scale_x = views.hide(scale_x)
    embedding, inputs = views.embedding(scale_x), views.x.shape[1]
    first = inputs if embedding is None else inputs + embedding.bins
    seeds = [m.seed for m in views.members]
    networks = method.build(seeds, first, method.outputs * targets.shape[1], recipe.network)
    if embedding is not None:
        networks.embed(embedding)
    model = TableModel(method, networks.to(device), scale_x, scale_y, target.values.ndim == 1, views.trees)
    return model, ScaledTable.build(views, target, scale_x, scale_y, device)


def groups_of_members(
    population: Population, members: Sequence[Member], recipe: Recipe, threads: int
) -> tuple[list[list[int]], int]:
    """Return which members train together, each group in a separate thread, and how many threads are worth having.

    Members that see bins have a larger first layer than others, and are a separate group. Where a step is much
    work, groups are divided among threads. But for rounding, a member does not depend on its group.
    """
    work = len(members) * recipe.batch_size * 3 * sum(w[0].numel() for w in population.weights)  # there and back
    count = min(threads, len(members), max(1, int(work / WORTH_A_THREAD)))
    kinds = [[k for k, m in enumerate(members) if m.bins is bins] for bins in (False, True)]
    groups = [kind[len(kind) * k // count : len(kind) * (k + 1) // count] for k in range(count) for kind in kinds]
    return [group for group in groups if group], count


def _of_group(fitted: TableModel, group: Sequence[int], bins: bool, recipe: Recipe) -> TableModel:
    """Return the untrained model of some of the members, all with bins or all without: itself, if these are all."""
    whole = fitted.networks
    first = whole.sizes[0] if bins else whole.in_features
    if len(group) == whole.members and first == whole.sizes[0]:
        return fitted
    method = method_of_members(fitted.method, group, whole.members)
    population = method.build([whole.seeds[i] for i in group], first, whole.sizes[-1], recipe.network)
    if whole.embedding is not None and first != whole.in_features:
        population.embed(whole.embedding.select(group))
    scale_x, scale_y = fitted.scale_x.select(group), fitted.scale_y.select(group)
    return TableModel(method, population.to(fitted.device), scale_x, scale_y, fitted.one_target)


def part_of(model: TableModel, table: ScaledTable, members: Sequence[Member], recipe: Recipe) -> Part:
    """Return the inputs of the training loop for the networks of a model.

    The weights that are kept have the smallest NLL of validation rows. Without such rows they are the last weights.
    """
    method = model.method
    batches = TableBatches(table.tensors, [m.train for m in members], [m.seed for m in members], recipe.batch_size)

    def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x, y, weights, cells = table.divide(batch)
        raw = module(table.own_x(x)).unflatten(-1, (-1, method.outputs))
        each = method.loss_of_raw(raw, table.own_y(y), module, cells)
        return each.mean((1, 2)) if weights is None else (each.mean(2) * weights).mean(1)

    def validation_nll(module: nn.Module) -> Tensor:
        x, y, cells = table.validation_rows()
        answer = method.answer(module(x).unflatten(-1, (-1, method.outputs)))
        return (method.nll(answer, y, cells).mean(-1) * table.validation_weights).sum(1)

    if not any(len(m.validation) for m in members):
        return Part(model.networks, batches, loss)
    if table.cells is None:
        constant: float | None = constant_score(table.own_y(table.y[table.validation]).flatten(0, 1))
    else:
        constant = constant_cell_score(table.cells[:, 0]) if table.cells.shape[1] == 1 else None
    return Part(model.networks, batches, loss, validation_nll, constant=constant)


@torch.no_grad()
def _join(
    fitted: TableModel, models: Sequence[TableModel], groups: Sequence[Sequence[int]], trainings: Sequence[Training]
) -> Training:
    """Give the model the trained networks of its groups, and return the results of all of them as one."""
    if models[0] is not fitted:
        states = [dict(model.networks.named_parameters()) for model in models]
        for name, whole in fitted.networks.named_parameters():
            whole.zero_()  # the weights of bins that a network does not see
            for group, state in zip(groups, states, strict=True):
                whole[list(group), : state[name].shape[1]] = state[name]
    first = trainings[0]
    order = np.argsort([k for group in groups for k in group])
    each = ("best_score", "best_step", "diverged", "stopped_early")
    columns = {name: torch.cat([getattr(t, name) for t in trainings])[order] for name in each}
    return Training(**columns, steps=first.steps, seconds=first.seconds, history=first.history)


def usable(model: TableModel, views: Views, target: Target) -> tuple[TableModel, Views]:
    """Return the model without the networks that learned nothing, and the views of those that are left.

    A warning has their number. Raise if none is left. Validation scores are compared with the score of a
    constant only where they are comparable: not if rows are weighted or targets censored.
    """
    result, count = model.result, model.members
    diverged = int(result.diverged.sum())
    advice = "lower learning_rate, and look for outliers in X and y"
    if diverged == count:
        raise InputError(f"training diverged: all {count} networks reached values that are not finite; {advice}")
    comparable = target.weights is None and target.cells is None
    poor = _worse_than_a_constant(model, views.members, torch.from_numpy(target.table)) if comparable else 0
    for number, problem in ((diverged, "diverged"), (poor, "do far worse on held-out rows than a constant would")):
        if number:
            text = f"{number} of {count} networks {problem}; {advice}"
            warnings.warn(text, ConvergenceWarning, stacklevel=5)
    kept = result.best_score.isfinite().nonzero().flatten().tolist()
    return (model, views) if len(kept) == count else (model.select(kept), views.select(kept))


def _worse_than_a_constant(model: TableModel, members: Sequence[Member], y: Tensor) -> int:
    """Count networks whose validation score is far worse than a standard normal for scaled targets."""
    if len(members[0].validation) < MIN_SCORED_ROWS:
        return 0
    rows = zip(model.scale_y(y), members, strict=True)
    constant = torch.stack([0.5 * (np.log(2 * np.pi) + each[m.validation].square().mean()) for each, m in rows])
    best = model.result.best_score.cpu()
    return int((best.isfinite() & (best > constant + TOO_BAD)).sum())
