"""Compares what predictions say where training rows left out the ends or the middle of a feature, method by method.

    python paper/studies/fading_tables.py --data DATA [--sets yacht,energy] [--out paper/docs/results/fading_tables]

For each of the nine UCI sets: tails (the lowest and highest sixth of a feature are test rows; of Naval and Protein,
five features drawn at random), gaps (the middle third of four features) and standard splits. Mixtures of eight networks
by the default recipe; those of all splits of a set are trained as one population, which stops when its validation
scores no longer improve. Test rows, at most 2,000 of a split, are predicted once; nothing is chosen by them.

- mixture: evidential networks, all evidence counts.
- fading: the same networks; how fast evidence fades is learned from training rows.
- fading, neighbours: likewise with the mean distance of the ten nearest training rows in the place of Mahalanobis's.
- ensemble, ensemble fading: networks with a Gaussian likelihood.
- Laplace: the ensemble, with a Gaussian posterior of each last layer; its prior is chosen by validation rows.
- dropout (tails only): eight draws of one network with a Gaussian likelihood.
- coupled (tails only): evidential networks with ν = 2α and no penalty (Meinert and Lavin 2021).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from howsure.data import splits
from howsure.distributions import Normal, NormalInverseGamma
from howsure.fitting import Fitted, Member, fit, hold_out
from howsure.fitting.fading import (
    NETWORKS,
    best_power,
    extrapolation_folds,
    fold_members,
    learned_power,
    rows_of_a_fold,
    scores_by_power,
    short_recipe,
    with_fading,
)
from howsure.fitting.tables import faded_answer
from howsure.fitting.targets import prepare_target
from howsure.methods import Evidential, Method, NormalLikelihood, Recipe
from howsure.nn.mlp import ACTIVATIONS
from howsure.prediction import Prediction
from howsure.training import resolve_device
from howsure_paper.baselines import MCDropout
from howsure_paper.datasets import uci
from howsure_paper.record import find_record, write_record
from shared import device_and_record, new_record, option_parser

MEMBERS = 8
MOST_TESTED = 2000
NEIGHBOURS = 10
LARGE = 10_000  # rows of a table of which not all features are taken, but some at random:
TAILS, GAPS = 5, 4  # features whose ends are left out of large tables, and whose middle of any


@dataclass(frozen=True)
class Coupled(Evidential):
    """Evidential regression with three outputs, ν = 2α, and no penalty."""

    outputs = 3

    def answer(self, raw: Tensor) -> NormalInverseGamma:
        four = NormalInverseGamma.from_raw(torch.cat([raw[..., :1], raw], -1))  # whose ν is not used
        return NormalInverseGamma(
            raw[..., 0], 2 * four.alpha, alpha_minus_one=four.alpha_minus_one, beta=four.beta, validate_args=False
        )

    def loss(self, answer: NormalInverseGamma, y: Tensor, networks: torch.nn.Module | None = None) -> Tensor:  # noqa: ARG002
        return -answer.predictive().log_prob(y)

    def loss_of_raw(self, raw: Tensor, y: Tensor, networks: torch.nn.Module | None = None) -> Tensor:
        return self.loss(self.answer(raw), y, networks)

    def fused(self, population: torch.nn.Module) -> None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class Split:
    """Rows of a table: what kind of split, which one, training rows and test rows."""

    kind: str
    name: str
    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Table:
    """A table, its splits, and where to train."""

    x: np.ndarray
    y: np.ndarray
    learned: np.ndarray  # targets as networks learn them
    splits: list[Split]
    device: str
    steps: int | None
    only_fading: bool = False

    def recipe(self, rows: int) -> Recipe:
        recipe = Recipe.for_rows(rows)
        if self.steps is None:
            return recipe
        settings = replace(recipe.settings, steps=self.steps, evaluate_every=max(1, self.steps // 5))
        return replace(recipe, settings=settings)


def splits_of(table: uci.UCITable, standard: int) -> list[Split]:
    """Return the splits of a set: tails and gaps of its features, and standard ones."""
    random = np.random.default_rng(0)
    features = random.permutation(np.flatnonzero(table.x.std(0) > 0))
    tails = features[:TAILS] if len(table.y) > LARGE else features
    found = [Split("tail", f"feature {k}", *splits.tail(table.x[:, k])) for k in np.sort(tails)]
    found += [Split("gap", f"feature {k}", *splits.gap(table.x[:, k])) for k in np.sort(features[:GAPS])]
    found += [Split("standard", f"split {k}", *table.splits[k]) for k in range(min(standard, len(table.splits)))]
    return [replace(s, test=np.sort(random.permutation(s.test)[:MOST_TESTED])) for s in found]


def fit_all(table: Table, method: Method, chosen: Sequence[Split], members: int) -> list[tuple[Fitted, list[Member]]]:
    """Return a model for each split, all trained as one population."""
    each = [hold_out(s.train, range(1000 * k, 1000 * k + members)) for k, s in enumerate(chosen)]
    recipe = table.recipe(max(len(s.train) for s in chosen))
    everyone = [m for ms in each for m in ms]
    fitted = fit(method, table.x, table.learned, everyone, recipe=recipe, device=table.device)
    return [(fitted.select(range(members * k, members * (k + 1))), ms) for k, ms in enumerate(each)]


def powers_of(table: Table, method: Method, chosen: Sequence[Split]) -> list[dict[str, float]]:
    """Return, for each split, the powers that its training rows prefer: by Mahalanobis's distance, and by neighbours'.

    The latter for evidential networks only.
    """
    folds = [extrapolation_folds(table.x, s.train, k) for k, s in enumerate(chosen)]
    each = [fold_members(f, 7 + k) for k, f in enumerate(folds)]
    everyone = [m for ms in each for m in ms]
    rows = rows_of_a_fold(max(len(s.train) for s in chosen))
    recipe = short_recipe(table.recipe(rows))
    fitted = fit(method, table.x, table.learned, everyone, recipe=recipe, device=table.device)
    found, first = [], 0
    for own, members in zip(folds, each, strict=True):
        model = fitted.select(range(first, first + len(members)))
        model.training = replace(
            fitted.training,
            **{
                name: getattr(fitted.training, name)[first : first + len(members)].cpu()
                for name in ("best_score", "best_step", "diverged", "stopped_early")
            },
        )
        first += len(members)
        found.append({"mahalanobis": learned_power(model, table.x, table.learned, own, members)})
        if table.only_fading or not isinstance(method, Evidential):
            continue
        distances, scores = [], []
        for k, (_, ends) in enumerate(own):
            some = list(range(NETWORKS * k, NETWORKS * (k + 1)))
            keep = neighbour_share(table, model.select(some), [members[i] for i in some], ends)
            distances.append(-keep.log().mean(0))
            y = torch.from_numpy(table.learned[ends])
            scores.append(scores_by_power(model.answers(table.x[ends], some), keep, y))
        found[-1]["neighbours"] = best_power(torch.cat(distances), torch.cat(scores, 1))
    return found


def neighbour_share(table: Table, model: Fitted, members: Sequence[Member], rows: np.ndarray) -> Tensor:
    """Return the share of evidence that a power of 1 keeps for rows, by the distance of their nearest neighbours."""
    x = torch.from_numpy(table.x)

    def distance(asked: Tensor, learned: Tensor) -> Tensor:
        near = torch.cdist(asked.to(table.device), learned.to(table.device)).topk(NEIGHBOURS, largest=False).values
        return near.mean(-1).double().cpu()

    count = min(4000, *(len(m.train) for m in members))
    learned = model.features(x[torch.stack([m.train[:count] for m in members])])
    usual = model.features(x[torch.stack([m.validation for m in members])])
    reach = distance(usual, learned).quantile(0.9, -1, keepdim=True)
    asked = model.features(x[torch.from_numpy(rows)].expand(len(members), -1, -1))
    return (reach / distance(asked, learned)).clamp(1e-12, 1)


@torch.no_grad()
def laplace(table: Table, model: Fitted, members: Sequence[Member], rows: np.ndarray) -> Prediction:
    """Return the predictions of Gaussian networks with a Gaussian posterior of the weights of their mean.

    Each network's prior is the one, of thirteen, by which its validation rows are most likely.
    """
    answers = []
    for i, member in enumerate(members):
        one = model.select([i])
        unit = float(one.scale_y.scale.squeeze())
        noise = one.answers(table.x[member.train]).scale[0] / unit
        phi = last_features(table, one, member.train)
        values, directions = torch.linalg.eigh((phi / noise.square().unsqueeze(1)).mT @ phi)
        asked = {}
        for name, some in (("validation", member.validation), ("test", torch.from_numpy(rows))):
            squares = (last_features(table, one, some) @ directions).square() * unit**2
            asked[name] = one.answers(table.x[some]), squares

        def with_prior(name: str, prior: float, asked: dict = asked, values: Tensor = values) -> Normal:
            said, squares = asked[name]
            added = (squares / (values.clamp(min=0) + prior)).sum(1)
            return Normal(said.loc[0], (said.scale[0].square() + added).sqrt(), validate_args=False)

        y = torch.from_numpy(table.learned)[member.validation]
        priors = [float(prior) for prior in np.geomspace(1e-3, 1e3, 13)]
        nll = [-float(with_prior("validation", prior).log_prob(y).mean()) for prior in priors]
        answers.append(with_prior("test", priors[int(np.argmin(nll))]))
    loc, scale = (torch.stack([getattr(a, name) for a in answers]) for name in ("loc", "scale"))
    return Prediction(Normal(loc, scale, validate_args=False), members=0)


def last_features(table: Table, one: Fitted, rows: Tensor) -> Tensor:
    """Return the outputs of the last hidden layer of a network and a column of ones, in float64."""
    h = one.scale_x(torch.from_numpy(table.x)[rows]).to(one.population.weights[0])
    for w, b in list(zip(one.population.weights, one.population.biases, strict=True))[:-1]:
        h = ACTIVATIONS[one.population.activation](torch.baddbmm(b, h, w))
    return torch.nn.functional.pad(h[0], (0, 1), value=1.0).double().cpu()


def scores(table: Table, p: Prediction, rows: np.ndarray, with_crps: bool) -> dict[str, float]:
    """Return the scores of a prediction of some rows."""
    y = table.y[rows]
    below = p.cdf(y)
    found = {
        "nll": float(-p.log_prob(y).mean()),
        "rmse": float(np.sqrt(np.mean((p.mean - y) ** 2))),
        "coverage_90": float(((below >= 0.05) & (below <= 0.95)).mean()),
    }
    return found | ({"crps": float(p.crps(y).mean())} if with_crps else {})


def results_of(table: Table, with_crps: bool) -> list[dict]:
    """Return the scores of every split by every method."""
    rows: list[dict] = [{"kind": s.kind, "split": s.name, "scores": {}} for s in table.splits]

    def add(k: int, method: str, p: Prediction) -> None:
        rows[k]["scores"][method] = scores(table, p, table.splits[k].test, with_crps)

    outer = [k for k, s in enumerate(table.splits) if s.kind != "standard"]
    inner = [k for k, s in enumerate(table.splits) if s.kind == "standard"]
    methods = [(Evidential(0.01), "mixture", "fading"), (NormalLikelihood(), "ensemble", "ensemble fading")]
    for method, plain, faded in methods[:1] if table.only_fading else methods:
        for group in (outer, inner):
            chosen = [table.splits[k] for k in group]
            if not chosen:
                continue
            models = fit_all(table, method, chosen, MEMBERS)
            for k, (model, members), powers in zip(group, models, powers_of(table, method, chosen), strict=True):
                test = table.splits[k].test
                rows[k].setdefault("powers", {})[faded] = powers
                add(k, plain, model.predict(table.x[test]))
                add(k, faded, with_fading(model, table.x, members, powers["mahalanobis"]).predict(table.x[test]))
                if table.only_fading:
                    continue
                if plain == "mixture":
                    keep = neighbour_share(table, model, members, test).pow(powers["neighbours"])
                    answer = faded_answer(model.answers(table.x[test]), keep)
                    add(k, "fading, neighbours", Prediction(answer, members=0))
                else:
                    add(k, "Laplace", laplace(table, model, members, test))
    if table.only_fading:
        return rows
    tails = [k for k, s in enumerate(table.splits) if s.kind == "tail"]
    for method, name, members in ((MCDropout(8, 0.05), "dropout", 1), (Coupled(0.0), "coupled", MEMBERS)):
        chosen = [table.splits[k] for k in tails]
        for k, (model, _) in zip(tails, fit_all(table, method, chosen, members), strict=True):
            add(k, name, model.predict(table.x[table.splits[k].test]))
    return rows


def show(name: str, rows: list[dict]) -> None:
    """Print the means over the splits of each kind."""
    for kind in ("tail", "gap", "standard"):
        some = [row["scores"] for row in rows if row["kind"] == kind]
        if not some:
            continue
        each = (f"{m} {np.mean([s[m]['nll'] for s in some]):.2f}" for m in some[0])
        inside = (f"{np.mean([s[m]['coverage_90'] for s in some]):.2f}" for m in some[0])
        print(f"{name:10s}{kind:9s}{len(some):3d}  NLL {', '.join(each)}; in 90 % {' '.join(inside)}", flush=True)


def main() -> None:
    parser = option_parser(__doc__, "fading_tables")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="names with commas (default: all nine)")
    parser.add_argument("--splits", type=int, default=5, help="standard splits of each set")
    parser.add_argument("--features", type=int, help="features whose ends are left out (default: all)")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--only-fading", action="store_true", help="the mixture with fading and without, nothing else")
    options = parser.parse_args()
    device = str(resolve_device(options.device))
    record = new_record("fading_tables", resolve_device(options.device), members=MEMBERS, sets={})
    if before := find_record(options.out):
        record["sets"] = before["sets"]
    for name in options.sets.split(","):
        if name in record["sets"]:
            continue
        started = time.perf_counter()
        data = uci.load(name, options.data)
        found = splits_of(data, 2 if len(data.y) > 20_000 else options.splits)
        if options.features is not None:
            kept = {s.name for s in found if s.kind == "tail"}
            kept = set(sorted(kept)[: options.features])
            found = [s for s in found if s.kind == "standard" or s.name in kept]
        learned = prepare_target(data.y, np.arange(len(data.y)), None, 0).values
        rows = results_of(
            Table(data.x, data.y, learned, found, device, options.steps, options.only_fading), name == "wine"
        )
        record["sets"][name] = rows
        write_record(options.out, record)
        show(name, rows)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
