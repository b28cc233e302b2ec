"""Compares what networks see of a table, what they share and when they stop, on rows set aside from the training rows.

    python paper/studies/table_inputs.py --data DATA [--sets yacht] [--splits 2] [--pools inputs,silu] [--device cuda]
        [--out FOLDER]

For each standard split a tenth of its training rows is set aside; mixtures of eight networks learn from the others, and
are scored on the tenth. Test rows are not used.

- numbers, bins, trees, bins and trees: networks as the library trains them, each of which holds out rows of its own.
  Mixtures of several of these kinds follow, with equal weights and with weights by the likelihood of held out rows.
- silu in the place of gelu.
- periodic: numbers, and beside them 16 learned waves of each, through a layer of 8 units (Gorishniy et al. 2022).
- same rows: all networks of a mixture hold out the same rows, and stop each by itself or all by their mixture's score.
- TabM (Gorishniy et al. 2024): 8 or 32 networks that share all weight matrices but the last.

The networks of all splits of a set, and of a few kinds, train as one population. They stop together, once their
validation scores improve no more, and each has the weights that were best for it. ``seconds`` is the time of the whole
population, divided by its mixtures: comparable between pools of two kinds, which all are but the first.
Pools that the record in the folder has already are not run again.
"""

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from howsure import metrics
from howsure.distributions import NormalInverseGamma
from howsure.likelihoods import Evidential, Recipe
from howsure.nn import PiecewiseLinear, Population
from howsure.nn.population import ACTIVATIONS, draw_layers
from howsure.prediction import Prediction
from howsure.tables import splits
from howsure.tables.encoder import Scaling
from howsure.tables.members import Member, hold_in_turn
from howsure.tables.scaled_table import ScaledTable
from howsure.tables.stacking import stacking_weights
from howsure.tables.target import Target, prepare_target
from howsure.tables.views import Views
from howsure.training import TableBatches, Training, resolve_device, train
from howsure.training.batches import pad_rows
from howsure_paper.datasets import uci
from howsure_paper.record import find_record, write_record
from shared import device_and_record, new_record, option_parser

SPLITS = dict.fromkeys(("boston", "concrete", "energy", "wine", "yacht"), 8)
SPLITS |= {"kin8nm": 3, "naval": 3, "power": 3, "protein": 2}
NETWORKS = 8  # of a mixture
METHOD = Evidential()
COUNTS = (3, 4, 8)  # networks of each kind in a mixture of several kinds
SCORES = {"nll": metrics.nll, "rmse": metrics.rmse, "crps": metrics.crps}


@dataclass(frozen=True)
class Kind:
    """One kind of mixture: what its networks see, and how they are made."""

    name: str
    bins: bool = False
    trees: bool = False
    sigma: float = 0.0  # standard deviation of the frequencies of a periodic embedding


@dataclass(frozen=True)
class Pool:
    """Kinds of mixtures that train as one population.

    Args:
        kinds: of which there is one mixture for each split.
        activation: of hidden units; None: that of the recipe.
        same_rows: whether all networks of a mixture hold out the same rows.
        shared: so many networks of a mixture share their weights; 0: all are independent.
    """

    kinds: tuple[Kind, ...]
    activation: str | None = None
    same_rows: bool = False
    shared: int = 0


POOLS = {
    "inputs": Pool(
        (
            Kind("numbers"),
            Kind("bins", bins=True),
            Kind("trees", trees=True),
            Kind("bins and trees", bins=True, trees=True),
        )
    ),
    "silu": Pool((Kind("numbers, silu"), Kind("bins, silu", bins=True)), activation="silu"),
    "periodic": Pool((Kind("periodic, σ = 0.1", sigma=0.1), Kind("periodic, σ = 1", sigma=1.0))),
    "same-rows": Pool((Kind("numbers, same rows"), Kind("bins, same rows", bins=True)), same_rows=True),
    "TabM-8": Pool((Kind("numbers, TabM of 8"), Kind("bins, TabM of 8", bins=True)), same_rows=True, shared=8),
    "TabM-32": Pool((Kind("numbers, TabM of 32"), Kind("bins, TabM of 32", bins=True)), same_rows=True, shared=32),
}
TOGETHER = (("numbers", "bins"), ("numbers", "trees"), ("numbers", "bins", "trees"))


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The training rows of one split: first those to learn from, then those that are set aside.

    Args:
        inputs: what networks see of all of them, learned from the first.
        targets: as networks learn them.
        y: as they are.
        learned: number of rows to learn from.
    """

    inputs: Views
    targets: NDArray[np.float64]
    y: NDArray[np.float64]
    learned: int


def learn_part(table: uci.UCITable, k: int) -> Part:
    """Return the training rows of split k, with bins and trees that were learned from those not set aside."""
    train_rows = table.splits[k][0]
    inner, aside = splits.random(len(train_rows), 0.1, k)
    order = train_rows[np.concatenate([inner, aside])]
    x, y, rows = table.x[order], table.y[order], np.arange(len(inner))
    both = Member(torch.from_numpy(rows), torch.empty(0), 0, bins=True, trees=True)
    learned, rest = Views.fit(x[rows], prepare_target(y[rows]), [both], k), x[len(inner) :]
    trees = learned.trees(torch.from_numpy(rest)).numpy()
    inputs = replace(learned, x=np.concatenate([learned.x, np.column_stack([rest, trees])]))
    return Part(inputs, y, y, len(inner))


def all_parts(tables: dict[str, uci.UCITable], wanted: dict[str, int]) -> Iterator[Part]:
    """Yield the parts of all sets one after the other; processes work on the next while networks train on the first."""
    jobs = [joblib.delayed(learn_part)(table, k) for name, table in tables.items() for k in range(wanted[name])]
    parts: Iterator[Part] = joblib.Parallel(max(1, min(joblib.cpu_count() - 1, len(jobs))), return_as="generator")(jobs)
    return parts


def members_of(parts: Sequence[Part], pool: Pool) -> list[Member]:
    """Return the networks of a pool, split by split and kind by kind, for the rows of all parts below each other.

    Networks that share weights count as one.
    """
    members, first, each = [], 0, 1 if pool.shared else NETWORKS
    for k, part in enumerate(parts):
        rows = first + np.arange(part.learned)
        held = hold_in_turn(rows, 1, k) * each if pool.same_rows else hold_in_turn(rows, each, k)
        for place, kind in enumerate(pool.kinds):
            # no two kinds have the same seeds: a mixture of both would have the same batches twice
            seeds = [10_000 * k + 100 * place + i for i in range(each)]
            members += [Member(*held[i], seed, kind.bins, kind.trees) for i, seed in enumerate(seeds)]
        first += len(part.y)
    return members


# Networks -------------------------------------------------------------------------------------------------------------


def joined_bins(each: Sequence[PiecewiseLinear]) -> tuple[PiecewiseLinear, list[Tensor]]:
    """Return one embedding for the members of several, and which of its bins are those of each.

    Features may have different numbers of bins. Those that a member does not have are 0 for it. First bins are joined
    with first, and last with last ones, because these have bounds of their own.
    """
    features = each[0].in_features
    counts = torch.stack([torch.bincount(e.column, minlength=features) for e in each])
    most = counts.amax(0)
    start = most.cumsum(0) - most
    column = torch.arange(features).repeat_interleave(most)
    slope, offset = torch.zeros(2, sum(len(e.slope) for e in each), 1, len(column))
    places, first = [], 0
    for own, count in zip(each, counts, strict=True):
        rank = torch.arange(own.bins) - (count.cumsum(0) - count)[own.column]
        last = rank == count[own.column] - 1
        places.append(start[own.column] + torch.where(last, most[own.column] - 1, rank))
        slope[first : first + len(own.slope), :, places[-1]] = own.slope
        offset[first : first + len(own.slope), :, places[-1]] = own.offset
        first += len(own.slope)
    low, high = torch.full((len(column),), -0.5), torch.full((len(column),), 0.5)
    low[start[most > 0]], high[(start + most - 1)[most > 0]] = -1.5, 1.5
    return PiecewiseLinear(column, slope, offset, low, high, features), places


class Periodic(nn.Module):
    """Numbers followed by learned waves of them, for each member: (M, N, F) → (M, N, F + 8 F).

    Of a number x, sin 2πcx and cos 2πcx with 16 learned c go through a linear layer and ReLU. Frequencies and layers
    are those of the number and the member alone.

    Args:
        seeds: one for each member.
        sigmas: standard deviation of the initial frequencies of each member.
        in_features: F.
    """

    def __init__(self, seeds: Sequence[int], sigmas: Sequence[float], in_features: int) -> None:
        super().__init__()
        waves, units = 16, 8
        self.in_features, self.bins = in_features, units * in_features
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def uniform(g: torch.Generator, *shape: int) -> Tensor:
            return (torch.rand(*shape, generator=g) * 2 - 1) / math.sqrt(2 * waves)

        drawn = [torch.randn(in_features, 1, waves, generator=g) * s for g, s in zip(generators, sigmas, strict=True)]
        self.frequency = nn.Parameter(torch.stack(drawn))
        self.weight = nn.Parameter(torch.stack([uniform(g, in_features, 2 * waves, units) for g in generators]))
        self.bias = nn.Parameter(torch.stack([uniform(g, in_features, 1, units) for g in generators]))

    def forward(self, x: Tensor) -> Tensor:
        angle = 2 * math.pi * self.frequency * x.mT.unsqueeze(-1)  # (M, F, N, waves)
        waves = torch.cat([angle.sin(), angle.cos()], -1)
        units = torch.baddbmm(self.bias.flatten(0, 1), waves.flatten(0, 1), self.weight.flatten(0, 1)).relu()
        return torch.cat([x, units.unflatten(0, angle.shape[:2]).transpose(1, 2).flatten(2)], -1)


class SharedWeights(nn.Module):
    """TabM for each of M members: (M, N, F) → (M, networks, N, outputs).

    All networks of a member have the same matrices in hidden layers. Each multiplies what goes into such a layer and
    what comes out by vectors of its own, and has its own biases and its own last layer. In the beginning they differ
    by the signs of their inputs, and by the last layer.

    Args:
        seeds: one for each member.
        networks: of each.
        sizes: number of inputs, of units in each hidden layer, and of outputs.
        activation: of hidden units.
        embedding: of features, if any.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        networks: int,
        sizes: Sequence[int],
        activation: str,
        embedding: PiecewiseLinear | None,
    ) -> None:
        super().__init__()
        self.members, self.activation, self.embedding = len(seeds), activation, embedding
        drawn = [draw_layers(sizes[:-1], seed) for seed in seeds]
        hidden = range(len(sizes) - 2)

        def blank(size: int, value: float) -> Tensor:
            return torch.full((len(seeds), networks, 1, size), value)

        self.weights = nn.ParameterList(torch.stack([d[k][0] for d in drawn]) for k in hidden)
        self.biases = nn.ParameterList(
            torch.stack([d[k][1] for d in drawn]).view(-1, 1, 1, sizes[k + 1]).repeat(1, networks, 1, 1) for k in hidden
        )
        self.before = nn.ParameterList(blank(sizes[k], 1.0) for k in hidden)
        self.after = nn.ParameterList(blank(sizes[k + 1], 1.0) for k in hidden)
        last = [[draw_layers(sizes[-2:], 1_000_000 * (k + 1) + seed)[0] for k in range(networks)] for seed in seeds]
        self.last_weight = nn.Parameter(torch.stack([torch.stack([w for w, _ in own]) for own in last]))
        self.last_bias = nn.Parameter(torch.stack([torch.stack([b for _, b in own]) for own in last]).unsqueeze(2))
        with torch.no_grad():
            for seed, own in zip(seeds, self.before[0], strict=True):
                generator = torch.Generator().manual_seed(seed)
                own.copy_(torch.randint(0, 2, own.shape, generator=generator) * 2.0 - 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x if self.embedding is None else self.embedding(x)).unsqueeze(1)
        for weight, bias, before, after in zip(self.weights, self.biases, self.before, self.after, strict=True):
            x = x * before
            product = torch.bmm(x.flatten(1, 2), weight).unflatten(1, x.shape[1:3])
            x = ACTIVATIONS[self.activation](product * after + bias)
        raw = torch.baddbmm(self.last_bias.flatten(0, 1), x.flatten(0, 1), self.last_weight.flatten(0, 1))
        return raw.unflatten(0, x.shape[:2])


def build_networks(
    pool: Pool, members: Sequence[Member], parts: Sequence[Part], scale_x: Scaling, recipe: Recipe
) -> tuple[nn.Module, list[int]]:
    """Return the untrained networks of a pool, and the number of parameters of each kind's mixture."""
    network = replace(recipe.network, activation=pool.activation or recipe.network.activation)
    seeds, features = [m.seed for m in members], scale_x.loc.shape[-1]
    kind_of = np.arange(len(members)) // (1 if pool.shared else NETWORKS) % len(pool.kinds)
    groups = np.split(np.arange(len(members)), len(parts))  # of the networks of each split
    embedding: Any = None
    places: list[Tensor] = []
    if any(m.bins for m in members):
        own = [
            PiecewiseLinear.from_edges(
                part.inputs.edges[:features], scale_x.loc[group], scale_x.scale[group], [members[i].bins for i in group]
            )
            for part, group in zip(parts, groups, strict=True)
        ]
        embedding, places = joined_bins(own)
    elif any(kind.sigma for kind in pool.kinds):
        embedding = Periodic(seeds, [pool.kinds[kind].sigma for kind in kind_of], features)
    inputs = features + (0 if embedding is None else embedding.bins)
    if pool.shared:
        sizes = (inputs, *network.hidden, METHOD.outputs)
        module: nn.Module = SharedWeights(seeds, pool.shared, sizes, network.activation, embedding)
    else:
        population = METHOD.build(seeds, inputs, METHOD.outputs, network)
        for group, place in zip(groups, places, strict=False):
            for bins in (False, True):
                some = [i for i in group if members[i].bins is bins]
                columns = torch.cat([torch.arange(features), features + place[: len(place) if bins else 0]])
                smaller = METHOD.build([seeds[i] for i in some], len(columns), METHOD.outputs, network)
                start_as(population, some, smaller, columns)
        module = population if embedding is None else population.embed(embedding)
    each = sum(p[0].numel() for p in module.parameters()) * (1 if pool.shared else NETWORKS)
    # what bins that a network does not see have: rows of a matrix, and entries of the vectors before it
    unseen = (inputs - features) * (network.hidden[0] + pool.shared if pool.shared else NETWORKS * network.hidden[0])
    return module, [each - (unseen if places and not kind.bins else 0) for kind in pool.kinds]


@torch.no_grad()
def start_as(population: Population, members: Sequence[int], smaller: Population, columns: Tensor) -> None:
    """Give members the initial weights of networks that have some of the inputs, and 0 for those of the others."""
    for layer, (whole, part) in enumerate(zip(population.weights, smaller.weights, strict=True)):
        rows = columns if layer == 0 else torch.arange(part.shape[1])
        whole[members] = 0
        whole[torch.tensor(members).unsqueeze(1), rows] = part
    for whole, part in zip(population.biases, smaller.biases, strict=True):
        whole[members] = part


# Training -------------------------------------------------------------------------------------------------------------


@dataclass
class Trained:
    """What the mixtures of a pool say.

    Args:
        aside: by kind, for each split the answers to the rows set aside, (networks, rows), in the units of y.
        validation: by kind, for each split the log densities (networks, rows) of the rows that each held out.
        parameters: by kind, of a mixture.
        training: of all of them.
    """

    aside: dict[str, list[NormalInverseGamma]]
    validation: dict[str, list[Tensor]]
    parameters: dict[str, int]
    training: Training


class Task:
    """The training of a pool: networks, batches, loss and scores. All raw outputs are (M, networks, N, 4)."""

    def __init__(self, parts: Sequence[Part], pool: Pool, recipe: Recipe, device: torch.device) -> None:
        self.parts, self.pool = parts, pool
        trees = any(kind.trees for kind in pool.kinds)
        columns = slice(None) if trees else slice(-parts[0].inputs.columns_of_trees)
        members = members_of(parts, pool)
        x = np.concatenate([part.inputs.x[:, columns] for part in parts])
        views = Views(x, members, trees=parts[0].inputs.trees if trees else None)
        y = np.concatenate([part.targets for part in parts])
        target = Target(y)
        rows = [m.train for m in members]
        self.scale_y = Scaling.fit(torch.from_numpy(target.table), rows)
        scale_x = views.hide(Scaling.fit(views.table, rows, ignore_constant=True))
        self.table = ScaledTable.build(views, target, scale_x, self.scale_y, device)
        module, parameters = build_networks(pool, members, parts, scale_x, recipe)
        self.module, self.parameters = module.to(device), parameters
        self.batches = TableBatches(self.table.tensors, rows, [m.seed for m in members], recipe.batch_size)
        ends = np.cumsum([len(part.y) for part in parts])
        aside = [torch.arange(end - len(p.y) + p.learned, end) for end, p in zip(ends.tolist(), parts, strict=True)]
        per_part = len(members) // len(parts)
        self.aside = pad_rows([rows for rows in aside for _ in range(per_part)])[0].to(device)
        self.validation_counts = [len(m.validation) for m in members]
        self.best = torch.full((len(parts) * len(pool.kinds),), math.inf, device=device)  # of mixtures
        self.at_best: Tensor | None = None  # what networks said of rows set aside when their mixture was best

    def raw(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the raw outputs for features (M, N, F)."""
        raw: Tensor = module(self.table.own_x(x))
        return raw if raw.ndim == 4 else raw.unsqueeze(1)

    def loss(self, module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the mean loss of the networks of each member."""
        raw = self.raw(module, batch[0])
        y = self.table.own_y(batch[1]).mT.expand(raw.shape[:-1])
        return METHOD.loss_of_raw(raw, y, module).mean((1, 2))

    def validation_log_prob(self, module: nn.Module) -> Tensor:
        """Return the log densities of the validation rows, scaled, (M, networks, V)."""
        raw = self.raw(module, self.table.x[self.table.validation])
        y = self.table.own_y(self.table.y[self.table.validation]).mT
        log_prob: Tensor = METHOD.answer(raw).predictive().log_prob(y)
        return log_prob

    def validate(self, module: nn.Module) -> Tensor:
        """Return the validation score of each member: of its network, or of the mixture of its networks."""
        log_prob = self.validation_log_prob(module)
        weights = self.table.validation_weights
        if self.pool.same_rows and not self.pool.shared:
            self._note_mixtures(module, log_prob, weights)
        return -((log_prob.logsumexp(1) - math.log(log_prob.shape[1])) * weights).sum(1)

    def _note_mixtures(self, module: nn.Module, log_prob: Tensor, weights: Tensor) -> None:
        """Keep what the networks of a mixture say of the rows set aside, if the mixture has never been better."""
        mixture = log_prob.unflatten(0, (-1, NETWORKS)).logsumexp((1, 2)) - math.log(NETWORKS)
        score = -(mixture * weights[::NETWORKS]).sum(1)
        raw = self._aside(module)
        better = score < self.best
        self.best = torch.where(better, score, self.best)
        choice = better.repeat_interleave(NETWORKS).view(-1, 1, 1, 1)
        self.at_best = raw if self.at_best is None else torch.where(choice, raw, self.at_best)

    @torch.no_grad()
    def results(self, training: Training) -> Trained:
        """Return what the trained networks say."""
        self.module.eval()
        aside = {kind.name: kind_answers for kind, kind_answers in self._by_kind(self._aside(self.module))}
        parameters = {kind.name: count for kind, count in zip(self.pool.kinds, self.parameters, strict=True)}
        if self.at_best is not None:
            for kind, answers in self._by_kind(self.at_best):
                aside[f"{kind.name}, stopped as one"] = answers
                parameters[f"{kind.name}, stopped as one"] = parameters[kind.name]
        density = self.validation_log_prob(self.module).double() - self.scale_y.scale.to(self.best.device).log()
        density = density.flatten(0, 1).unflatten(0, (len(self.parts), len(self.pool.kinds), -1))
        return Trained(aside, dict(self._densities(density)), parameters, training)

    def _aside(self, module: nn.Module) -> Tensor:
        return self.raw(module, self.table.x[self.aside])

    def _by_kind(self, raw: Tensor) -> Iterator[tuple[Kind, list[NormalInverseGamma]]]:
        """Yield for each kind the answers (networks, rows) of each split, from raw outputs to the rows set aside."""
        loc, scale = (t.to(raw.device) for t in (self.scale_y.loc, self.scale_y.scale))
        answer = METHOD.answer(raw.double()).affine(loc, scale)
        shape = len(self.parts), len(self.pool.kinds), -1
        answer = tree_map(lambda p: p.flatten(0, 1).unflatten(0, shape), answer)
        for place, kind in enumerate(self.pool.kinds):
            yield kind, [self._of(answer, k, place, len(p.y) - p.learned) for k, p in enumerate(self.parts)]

    @staticmethod
    def _of(answer: NormalInverseGamma, k: int, place: int, rows: int) -> NormalInverseGamma:
        own: NormalInverseGamma = tree_map(lambda p: p[k, place, :, :rows], answer)
        return own

    def _densities(self, density: Tensor) -> Iterator[tuple[str, list[Tensor]]]:
        """Yield for each kind the log densities (networks, rows) of each split, in the units of y."""
        counts = np.reshape(self.validation_counts, (len(self.parts), -1))[:, 0]
        for place, kind in enumerate(self.pool.kinds):
            yield kind.name, [density[k, place, :, :count].cpu() for k, count in enumerate(counts)]


def train_pool(parts: Sequence[Part], pool: Pool, steps: int | None, device: torch.device) -> Trained:
    """Train all networks of a pool and return what they say."""
    recipe = Recipe.for_rows(parts[0].learned)
    if steps:
        settings = replace(recipe.settings, steps=steps, evaluate_every=max(1, steps // 4))
        recipe = replace(recipe, settings=settings)
    task = Task(parts, pool, recipe, device)
    training = train(task.module, task.batches, task.loss, validate=task.validate, settings=recipe.settings)
    return task.results(training)


# Scores ---------------------------------------------------------------------------------------------------------------


def scores(answers: NormalInverseGamma, y: NDArray[np.float64], weights: Iterable[float] | None = None) -> dict:
    """Return the scores of the mixture of answers (networks, rows)."""
    prediction = Prediction(answers, members=0, weights=None if weights is None else list(weights))
    return {name: score(prediction, y) for name, score in SCORES.items()}


def rows_of(name: str, parts: Sequence[Part], trained: Trained) -> list[dict[str, Any]]:
    """Return the rows of the record for every kind of a pool."""
    seconds = trained.training.seconds / (len(parts) * len(trained.validation))
    rows = []
    for kind, answers in trained.aside.items():
        cost = {"steps": trained.training.steps, "seconds": seconds, "parameters": trained.parameters[kind]}
        for k, (part, answer) in enumerate(zip(parts, answers, strict=True)):
            rows.append({"set": name, "split": k, "kind": kind, **scores(answer, part.y[part.learned :]), **cost})
    return rows


def rows_of_several(name: str, parts: Sequence[Part], trained: Trained) -> list[dict[str, Any]]:
    """Return the rows of the record for mixtures of several kinds, with equal and with stacked weights.

    The first networks of every kind have held out the same rows, whose likelihood tells how much a kind counts.
    """
    rows, seconds = [], trained.training.seconds / (len(parts) * len(trained.validation))
    for kinds, count in ((kinds, count) for kinds in TOGETHER for count in COUNTS):
        share = count / NETWORKS
        cost = {
            "steps": trained.training.steps,
            "seconds": seconds * share * len(kinds),
            "parameters": round(share * sum(trained.parameters[kind] for kind in kinds)),
        }
        for k, part in enumerate(parts):
            chosen = [tree_map(lambda p: p[:count], trained.aside[kind][k]) for kind in kinds]  # noqa: B023
            answers = tree_map(lambda *p: torch.cat(p), *chosen)
            held_out = torch.stack([trained.validation[kind][k][:count].flatten() for kind in kinds], 1)
            stacked = stacking_weights(held_out.numpy()) / count
            for how, weights in (("equal", None), ("stacked", np.repeat(stacked, count))):
                found = scores(answers, part.y[part.learned :], weights)
                label = f"{count} each: {' + '.join(kinds)}, {how}"
                rows.append({"set": name, "split": k, "kind": label, **found, **cost})
    return rows


def print_scores(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print the means over splits of a set."""
    print(
        f"\n{name:42s}{'splits':>7s}{'NLL':>9s}{'RMSE':>10s}{'CRPS':>10s}{'steps':>8s}{'seconds':>9s}{'parameters':>12s}"
    )
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        nll, rmse, crps, steps, seconds, size = (
            np.mean([row[key] for row in own]) for key in (*SCORES, "steps", "seconds", "parameters")
        )
        scored = f"{kind:42s}{len(own):7d}{nll:9.3f}{rmse:10.4g}{crps:10.4g}"
        print(f"{scored}{steps:8.0f}{seconds:9.2f}{size:12.0f}", flush=True)


def missing_pools(name: str, count: int, pools: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the pools that the record does not have for so many splits of a set."""
    known = {(row["kind"], row["split"]) for row in rows if row["set"] == name}
    return [p for p in pools if not all((kind.name, k) in known for kind in POOLS[p].kinds for k in range(count))]


def run_set(
    name: str, parts: Sequence[Part], pools: Sequence[str], record: dict[str, Any], options: argparse.Namespace
) -> None:
    """Train the pools of a set, and write their rows to the record, one pool after the other."""
    for pool in pools:
        trained = train_pool(parts, POOLS[pool], options.steps, resolve_device(options.device))
        new = rows_of(name, parts, trained)
        if pool == "inputs":
            new += rows_of_several(name, parts, trained)
        replaced = {row["kind"] for row in new}
        kept = [row for row in record["rows"] if row["set"] != name or row["kind"] not in replaced]
        record["rows"] = kept + new
        write_record(options.out, record)


def main() -> None:
    parser = option_parser(__doc__, "table_inputs")
    parser.add_argument("--sets", default=",".join(SPLITS), help="names with commas (default: all nine)")
    parser.add_argument(
        "--splits", type=int, help="splits of each set, from the first on (default: 2 to 8 by its size)"
    )
    parser.add_argument("--pools", default=",".join(POOLS), help=f"of {', '.join(POOLS)} (default: all)")
    parser.add_argument("--steps", type=int, help="training steps, to try things out")
    options = parser.parse_args()
    names, pools = options.sets.split(","), options.pools.split(",")
    if unknown := [*(set(names) - set(SPLITS)), *(set(pools) - set(POOLS))]:
        parser.error(f"unknown: {', '.join(unknown)}; sets are {', '.join(SPLITS)}, pools are {', '.join(POOLS)}")
    settings = {"steps": options.steps, "networks": NETWORKS}
    record = new_record("table_inputs", resolve_device(options.device), parameters=settings, rows=[])
    if before := find_record(options.out):
        if before.get("parameters") != settings:
            parser.error(
                f"{options.out} holds a run with other options, {before.get('parameters')}; choose another folder"
            )
        record["rows"] = before["rows"]
    tables = {name: uci.load(name, options.data) for name in names}
    wanted = {name: min(options.splits or SPLITS[name], len(table.splits)) for name, table in tables.items()}
    missing = {name: missing_pools(name, wanted[name], pools, record["rows"]) for name in names}
    parts = all_parts({name: tables[name] for name in names if missing[name]}, wanted)
    for name in names:
        if missing[name]:
            run_set(name, [next(parts) for _ in range(wanted[name])], missing[name], record, options)
        print_scores(name, [row for row in record["rows"] if row["set"] == name])
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
