"""Table 1: nine UCI sets, five methods, by an honest protocol and by the published one.

``standard``: the benchmark's own splits; whatever is chosen is chosen on training rows; test rows are used once.
``published``: what the authors' code does: one split for all trials, other targets for energy and naval, and for each
trial the smallest RMSE and, separately, the smallest NLL over evaluations on random batches of 100 *test* rows. Not to
be mixed with the other: it is here to show that the paper's column comes out of it, and by how much it flatters.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from evidentia import metrics
from evidentia.data import splits
from evidentia.datasets import uci
from evidentia.distributions import NormalInverseGamma
from evidentia.errors import InputError
from evidentia.fitting import Fitted, Member, fit, hold_out, search
from evidentia.formulas import penalties
from evidentia.formulas.nig import nll
from evidentia.methods import BayesByBackprop, Evidential, GaussianLikelihood, MCDropout, Method, Network, Recipe
from evidentia.nn import Population
from evidentia.prediction import Prediction
from evidentia.record import environment, read_record, refusing_damage, run_folder, write_record
from evidentia.reproduce.paper import UCI_SETTINGS
from evidentia.reproduce.timing import median_seconds
from evidentia.reproduce.uci.tables import rows_of, write_results
from evidentia.training import Settings, resolve_device

__all__ = ["METHODS", "NETWORKS", "PROTOCOLS", "Plan", "released_recipe", "run"]

METHODS = ("evidential", "gaussian", "ensemble", "dropout", "bayes")
PROTOCOLS = ("standard", "published")
NETWORKS = ("best", "paper")
SCORES = {
    "rmse": metrics.rmse,
    "nll": metrics.nll,
    "coverage_90": metrics.coverage,
    "calibration_error": metrics.calibration_error,
}
TRIALS = 20
ORDER = (*uci.SETS, "diabetes")  # of the sets in a record, whenever each was run
# of the recipe's steps, in a search on fewer than 5,000 rows and on more: it ranks candidates, and need not finish
EFFORT = 0.5, 0.15


@dataclass(frozen=True)
class Plan:
    """What to run. The number of networks, or draws, is the same for every method that has several."""

    sets: tuple[str, ...] = tuple(uci.SETS)
    methods: tuple[str, ...] = METHODS
    protocol: str = "standard"
    targets: str | None = None  # of energy and naval: standard or published; None is those of the protocol
    network: str = "best"
    members: int = 5
    search: bool = True  # λ and the dropout rate, on training rows; else 0.01 and 0.05
    splits: int | None = None  # only the first so many
    steps: int | None = None  # fewer than the recipe has, to try things out

    def __post_init__(self) -> None:
        known = {"sets": ORDER, "methods": METHODS}
        for name, allowed in known.items():
            for value in getattr(self, name):
                if value not in allowed:
                    raise InputError(f"unknown {name[:-1]} {value!r}; known are {', '.join(allowed)}")
        for name, allowed in (("protocol", PROTOCOLS), ("network", NETWORKS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; known are {', '.join(allowed)}")


# Tables and networks --------------------------------------------------------------------------------------------------


def table_of(name: str, plan: Plan, data: Path | None) -> uci.UCITable:
    """The set with the splits of the protocol."""
    table = diabetes() if name == "diabetes" else uci.load(name, data, target=plan.targets or plan.protocol)
    if plan.protocol == "published":
        test = UCI_SETTINGS[name].test if name in UCI_SETTINGS else 0.1
        return uci.published_split(table, test)
    return replace(table, splits=table.splits[: plan.splits])


def diabetes() -> uci.UCITable:
    """scikit-learn's diabetes, 442 rows, which needs no download, with twenty random splits."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return uci.UCITable("diabetes", x, y, [splits.random(len(y), 0.1, seed) for seed in range(20)])


def released_recipe(name: str, rows: int, evaluate_every: int = 100) -> Recipe:
    """The authors' network and settings: 50 ReLU units, Adam at a constant rate, 40 epochs, the last weights."""
    released = UCI_SETTINGS.get(name, UCI_SETTINGS["boston"])
    settings = Settings(
        steps=40 * rows // released.batch_size,
        learning_rate=released.learning_rate,
        warmup=0.0,
        schedule="constant",
        clip=None,
        evaluate_every=evaluate_every,
    )
    return Recipe(Network((50,), "relu"), settings, released.batch_size)


@dataclass(frozen=True)
class ReleasedEvidential(Evidential):
    """λ by the dual ascent of the authors' code: from 0, each step by 1e-4 times what the penalty has above 0.01.

    λ changes during training and is therefore a buffer of the networks, which a checkpoint keeps.
    """

    weight: float | Sequence[float] = 0.0

    def loss(self, answer: NormalInverseGamma, y: Tensor, networks: nn.Module | None = None) -> Tensor:
        parameters = answer.parameters
        excess = penalties.error(y, *parameters) - 0.01
        assert networks is not None
        weight = cast(Tensor, networks.evidence_weight)
        each = nll(y, *parameters) + weight.clone() * excess
        weight.add_(1e-4 * excess.detach().mean((1, 2), keepdim=True))
        return each

    def fused(self, population: Population) -> dict[str, Any]:
        weight = cast(Tensor, population.evidence_weight).view(-1)  # the kernel moves λ in the buffer itself
        return {"evidential": True, "weight": weight, "ascent": 1e-4, "aim": 0.01}


def method_of(name: str, plan: Plan) -> tuple[Method, int]:
    """The method, and how many of its networks stand for one model."""
    several = plan.members
    return {
        "evidential": (Evidential(0.01) if plan.network == "best" else ReleasedEvidential(), _evidential_size(plan)),
        "gaussian": (GaussianLikelihood(), 1),
        "ensemble": (GaussianLikelihood(), several),
        "dropout": (MCDropout(several, 0.05), 1),
        "bayes": (BayesByBackprop(several), 1),
    }[name]


def _evidential_size(plan: Plan) -> int:
    """The paper's method is one network; the library's default is a mixture, of as many as the others have."""
    return plan.members if plan.network == "best" else 1


def recipe_of(method: Method, name: str, rows: int, plan: Plan) -> Recipe:
    # by the standard protocol nothing is chosen on the way, and an evaluation only says who diverged
    every = 100 if plan.protocol == "published" else 1000
    recipe = method.recipe(rows) if plan.network == "best" else released_recipe(name, rows, every)
    if plan.steps is not None:
        every = max(1, min(recipe.settings.evaluate_every, plan.steps // 10))
        recipe = replace(recipe, settings=replace(recipe.settings, steps=plan.steps, evaluate_every=every))
    return recipe


# Runs -----------------------------------------------------------------------------------------------------------------


def run(
    plan: Plan, out: Path, data: Path | None = None, device: str = "auto", quick: bool = False, progress: bool = True
) -> list[Path]:
    """Run what the record in ``out`` does not have yet, set by set and method by method; return what was written."""
    if quick:
        plan = replace(plan, splits=3, steps=600, search=False)
    record: dict[str, Any] = {
        "run": "uci",
        "plan": asdict(plan),
        "quick": quick,
        "environment": environment(resolve_device(device)),
        "results": {},
    }
    with run_folder(out, "uci") as before:
        if before is not None:
            with refusing_damage(out):
                record = _continued(out, before, record)
                rows_of(record)  # tables can be made of what is there
        for name in plan.sets:
            table = table_of(name, plan, data)
            for method in plan.methods:
                if method in record["results"].get(name, {}):
                    continue
                print(f"{name}, {method}", flush=True)
                started = time.perf_counter()
                work = standard if plan.protocol == "standard" else published
                result = work(table, method, plan, {"device": device, "progress": progress})
                result |= {"seconds": time.perf_counter() - started, "device": record["environment"]["device"]["name"]}
                record["results"].setdefault(name, {})[method] = result
                record["results"] = {known: record["results"][known] for known in ORDER if known in record["results"]}
                write_record(out, record)
        with refusing_damage(out):
            return [out / "record.json", *write_results(read_record(out), out)]


def _continued(out: Path, before: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The record of this run with the results of an earlier one, whose settings must be the same."""
    same = ("protocol", "targets", "network", "members", "search", "splits", "steps")
    for key in same:
        if before["plan"][key] != record["plan"][key]:
            raise InputError(
                f"{out} holds a run with {key} = {before['plan'][key]}, not {record['plan'][key]}; "
                "choose another folder with --out, or delete that one"
            )
    unknown = sorted(set(before["results"]) - set(ORDER))
    if unknown:
        raise InputError(f"{out / 'record.json'} has results of unknown sets: {', '.join(unknown)}")
    return record | {"results": before["results"]}


def standard(table: uci.UCITable, name: str, plan: Plan, options: dict[str, Any]) -> dict[str, Any]:
    """All splits as one population; the scores of each split's model on its test rows."""
    method, size = method_of(name, plan)
    groups = [train for train, _ in table.splits]
    recipe = recipe_of(method, table.name, len(groups[0]), plan)
    share = method.validation_share if plan.network == "best" else 0.0
    chosen = None
    if plan.search and plan.network == "best" and method.searched is not None:
        how: dict[str, Any] = {"validation_share": share, "recipe": recipe, "effort": EFFORT[len(groups[0]) >= 5000]}
        found = search(method, table.x, table.y, groups, **how, **options)
        chosen = [s.chosen for s in found]
        each = tuple(c for c in chosen for _ in range(size))
        method = replace(method, **{method.searched[0]: each})  # type: ignore[type-var]
    members = [m for k, rows in enumerate(groups) for m in hold_out(rows, range(1000 * k, 1000 * k + size), share)]
    fitted = fit(method, table.x, table.y, members, recipe=recipe, **options)
    asked = [test for _, test in table.splits]
    answers = [fitted.predict(table.x[test], range(k * size, (k + 1) * size)) for k, test in enumerate(asked)]
    scores = scores_of(answers, [table.y[test] for test in asked], resolve_device(options["device"]))
    return {
        "splits": scores,
        "seeds": [m.seed for m in members],
        "chosen": chosen,
        "recipe": asdict(recipe),
        "diverged": fitted.training.diverged.nonzero().flatten(),
        "milliseconds": _milliseconds(fitted, table.x[table.splits[0][1]], range(size)),
    }


def scores_of(answers: list[Prediction], targets: list[np.ndarray], device: torch.device) -> list[dict[str, float]]:
    """Of every split. The CRPS of a mixture is an integral for each row: all splits at once, on the device."""

    def together(*parts: Tensor) -> Tensor:
        return torch.cat(parts, 1).to(device)

    every = torch.utils._pytree.tree_map(together, *(p.distribution for p in answers))
    crps = every.crps(torch.as_tensor(np.concatenate(targets), device=device)).cpu()
    means = [float(part.mean()) for part in crps.split([len(y) for y in targets])]
    return [
        {"split": k, **{name: score(p, y) for name, score in SCORES.items()}, "crps": means[k]}
        for k, (p, y) in enumerate(zip(answers, targets, strict=True))
    ]


def published(table: uci.UCITable, name: str, plan: Plan, options: dict[str, Any]) -> dict[str, Any]:
    """Trials on the one split; of each the minima over test batches, and its last weights' scores on all test rows."""
    method, size = method_of(name, plan)
    ((train, test),) = table.splits
    trials = TRIALS if plan.splits is None else plan.splits
    recipe = recipe_of(method, table.name, len(train), plan)
    members: list[Member] = hold_out(train, range(trials * size), share=0)
    minima = Minima(table.x[test], table.y[test], trials)
    fitted = fit(method, table.x, table.y, members, recipe=recipe, validate=minima, **options)
    last = minima.scores(fitted)
    return {
        "trials": [
            {
                "trial": t,
                "rmse_min": minima.best["rmse"][t],
                "nll_min": minima.best["nll"][t],
                "rmse": last["rmse"][t],
                "nll": last["nll"][t],
            }
            for t in range(trials)
        ],
        "seeds": [m.seed for m in members],
        "evaluations": minima.count,
        "recipe": asdict(recipe),
        "diverged": fitted.training.diverged.nonzero().flatten(),
        "milliseconds": _milliseconds(fitted, table.x[test], range(size)),
    }


class Minima:
    """The published rule: the smallest RMSE and the smallest NLL of each trial over random batches of 100 test rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray, trials: int, batch: int = 100) -> None:
        self.x, self.y, self.trials, self.batch = x, y, trials, min(batch, len(y))
        self.random = np.random.default_rng(0)
        self.best = {score: np.full(trials, np.inf) for score in ("rmse", "nll")}
        self.count = 0

    def scores(self, fitted: Fitted, rows: np.ndarray | None = None) -> Mapping[str, np.ndarray]:
        """RMSE and NLL of each trial on these test rows, or on all of them."""
        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        mixture = fitted.mixtures(x, self.trials)
        target = torch.as_tensor(y).expand(self.trials, -1)
        return {
            "rmse": (mixture.mean - target).square().mean(1).sqrt().numpy(),
            "nll": -mixture.log_prob(target).mean(1).numpy(),
        }

    def __call__(self, fitted: Fitted) -> Tensor:
        """An evaluation. The score it gives is smaller each time, so that the last weights are kept."""
        found = self.scores(fitted, self.random.choice(len(self.y), self.batch, replace=False))
        self.count += 1
        for score, values in found.items():
            self.best[score] = np.fmin(self.best[score], values)
        return torch.full((fitted.population.members,), -float(self.count), device=fitted.population.weights[0].device)


def _milliseconds(fitted: Fitted, x: np.ndarray, members: Sequence[int]) -> float:
    """Of answering the test rows of one split with one model: the median. Answers come to the CPU, wherever made."""
    return 1e3 * median_seconds(functools.partial(fitted.answers, x, members), torch.device("cpu"))
