"""Table 1: nine UCI sets, five methods, by an honest protocol and by the published one.

``standard``: the benchmark's own splits; whatever is chosen is chosen on training rows; test rows are used once.
``published``: what the authors' code does: one split for all trials, other targets for energy and naval, and for each
trial the smallest RMSE and, separately, the smallest NLL over evaluations on random batches of 100 *test* rows. Not to
be mixed with the other: it is here to show that the paper's column comes out of it, and by how much it flatters.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure import metrics
from howsure.errors import InputError
from howsure.prediction import Prediction
from howsure.tables import splits
from howsure.tables.members import Member, hold_out
from howsure.tables.model import TableModel
from howsure.training import resolve_device
from howsure_paper.datasets import uci
from howsure_paper.datasets.folder import find_data
from howsure_paper.figures import import_matplotlib
from howsure_paper.fused import fused_steps
from howsure_paper.paper import UCI_SETTINGS
from howsure_paper.protocol import Context, Record, new_record, open_run, write_from_record
from howsure_paper.record import write_record
from howsure_paper.search import mixtures, search, searched_by
from howsure_paper.timing import median_seconds
from howsure_paper.training import fit
from howsure_paper.uci.methods import method_of, recipe_of
from howsure_paper.uci.page import page
from howsure_paper.uci.plan import KNOWN_SETS, Plan
from howsure_paper.uci.tables import tables_of, write_results

__all__ = ["Plan", "page", "run", "table_of", "write_results"]

SCORES: dict[str, Callable[..., float]] = {
    "rmse": metrics.rmse,
    "nll": metrics.nll,
    "coverage_90": metrics.coverage,
    "calibration_error": metrics.calibration_error,
}
TRIALS = 20
# of the recipe's steps, in a search on fewer than 5,000 rows and on more: it ranks candidates, and need not finish
EFFORT = 0.5, 0.15


def run(plan: Plan, context: Context) -> list[Path]:
    """Run what the record does not have yet, set by set and method by method; write tables and figures."""
    if plan.protocol == "standard":
        import_matplotlib()  # without it there is no figure, which is said before any training
    tables = {name: table_of(name, plan, context.data) for name in plan.sets}  # damaged files are found before training
    new = new_record("uci", plan, context.device)
    with open_run(context.out, new, free=("sets", "methods"), check=_check) as record:
        for name, table in tables.items():
            for method in plan.methods:
                if method in record["results"].get(name, {}):
                    continue
                print(f"{name}, {method}", flush=True)
                started = time.perf_counter()
                result = (standard if plan.protocol == "standard" else published)(table, method, plan, context)
                result |= {"seconds": time.perf_counter() - started, "device": record["environment"]["device"]["name"]}
                done = record["results"]
                done.setdefault(name, {})[method] = result
                record["results"] = {known: done[known] for known in KNOWN_SETS if known in done}
                write_record(context.out, record)
                for checkpoint in _checkpoints(context, name, method).values():
                    checkpoint.unlink(missing_ok=True)
        return write_from_record(context.out, write_results)


def _check(record: Record) -> None:
    """Raise if tables cannot be made of the results, or a set is not known."""
    unknown = sorted(set(record["results"]) - set(KNOWN_SETS))
    if unknown:
        raise InputError(f"record.json has results of unknown sets: {', '.join(unknown)}")
    tables_of(record)


def _checkpoints(context: Context, name: str, method: str) -> dict[str, Path]:
    """Return the files that the fits of a set and method are continued from."""
    return {step: context.checkpoint(f"{name} {method} {step}") for step in ("search", "fit")}


def table_of(name: str, plan: Plan, data: Path | None) -> uci.UCITable:
    """Return a set with the splits of the protocol.

    Raises:
        InputError: if there is no data folder, or the files of the set are missing or damaged.
    """
    if name != "diabetes" and find_data(data) is None:
        raise InputError(
            "no data folder: name one with --data, or set the environment variable HOWSURE_DATA to it; "
            "--sets diabetes needs none"
        )
    table = diabetes() if name == "diabetes" else uci.load(name, data, target=plan.targets or plan.protocol)
    if plan.protocol == "published":
        test = UCI_SETTINGS[name].test if name in UCI_SETTINGS else 0.1
        return uci.published_split(table, test)
    return replace(table, splits=table.splits[: plan.splits])


def diabetes() -> uci.UCITable:
    """Return scikit-learn's diabetes, 442 rows, which needs no download, with twenty random splits."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return uci.UCITable("diabetes", x, y, [splits.random(len(y), 0.1, seed) for seed in range(20)])


# The standard protocol ------------------------------------------------------------------------------------------------


def standard(table: uci.UCITable, name: str, plan: Plan, context: Context) -> dict[str, Any]:
    """Train all splits as one population, and return the scores of each split's model on its test rows."""
    method, size = method_of(name, plan)
    groups = [train for train, _ in table.splits]
    recipe = recipe_of(method, table.name, len(groups[0]), plan)
    share = method.validation_fraction if plan.network == "best" else 0.0
    checkpoints = _checkpoints(context, table.name, name)
    options: dict[str, Any] = {"recipe": recipe, "device": context.device, "progress": context.progress}
    chosen = None
    parameter = searched_by(method)
    if plan.search and plan.network == "best" and parameter is not None:
        effort = EFFORT[len(groups[0]) >= 5000]
        how: dict[str, Any] = {"validation_fraction": share, "effort": effort, "checkpoint": checkpoints["search"]}
        found = search(method, table.x, table.y, groups, **how, **options)
        chosen = [s.chosen for s in found]
        each = tuple(c for c in chosen for _ in range(size))
        method = replace(method, **{parameter[0]: each})  # type: ignore[type-var]
    members = [m for k, rows in enumerate(groups) for m in hold_out(rows, range(1000 * k, 1000 * k + size), share)]
    fitted = fit(method, table.x, table.y, members, checkpoint=checkpoints["fit"], fast_steps=fused_steps, **options)
    tests = [test for _, test in table.splits]
    predictions = [fitted.predict(table.x[test], range(k * size, (k + 1) * size)) for k, test in enumerate(tests)]
    return {
        "splits": scores_of(predictions, [table.y[test] for test in tests], resolve_device(context.device)),
        "seeds": [m.seed for m in members],
        "chosen": chosen,
        "recipe": asdict(recipe),
        "diverged": fitted.result.diverged.nonzero().flatten(),
        "milliseconds": _milliseconds(fitted, table.x[tests[0]], range(size)),
    }


def scores_of(predictions: list[Prediction], targets: list[np.ndarray], device: torch.device) -> list[dict[str, float]]:
    """Return the scores of every split.

    The CRPS of a mixture is an integral for each row: it is computed for all splits at once, on the device.
    """

    def together(*parts: Tensor) -> Tensor:
        return torch.cat(parts, 1).to(device)

    every = torch.utils._pytree.tree_map(together, *(p.distribution for p in predictions))
    crps = every.crps(torch.as_tensor(np.concatenate(targets), device=device)).cpu()
    means = [float(part.mean()) for part in crps.split([len(y) for y in targets])]
    return [
        {"split": k, **{name: score(p, y) for name, score in SCORES.items()}, "crps": means[k]}
        for k, (p, y) in enumerate(zip(predictions, targets, strict=True))
    ]


# The published protocol -----------------------------------------------------------------------------------------------


def published(table: uci.UCITable, name: str, plan: Plan, context: Context) -> dict[str, Any]:
    """Train all trials on the one split; return minima over test batches, and the last weights' scores on all of it."""
    method, size = method_of(name, plan)
    ((train, test),) = table.splits
    trials = TRIALS if plan.splits is None else plan.splits
    recipe = recipe_of(method, table.name, len(train), plan)
    members: list[Member] = hold_out(train, range(trials * size), share=0)
    minima = Minima(table.x[test], table.y[test], trials)
    # no checkpoint: the minima need every evaluation from the first step on
    options: dict[str, Any] = {"device": context.device, "progress": context.progress}
    fitted = fit(method, table.x, table.y, members, recipe=recipe, validate=minima, fast_steps=fused_steps, **options)
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
        "diverged": fitted.result.diverged.nonzero().flatten(),
        "milliseconds": _milliseconds(fitted, table.x[test], range(size)),
    }


class Minima:
    """The published rule: the smallest RMSE and the smallest NLL of each trial over random batches of 100 test rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray, trials: int, batch: int = 100) -> None:
        self.x, self.y, self.trials, self.batch = x, y, trials, min(batch, len(y))
        self.random = np.random.default_rng(0)
        self.best = {score: np.full(trials, np.inf) for score in ("rmse", "nll")}
        self.count = 0

    def scores(self, fitted: TableModel, rows: np.ndarray | None = None) -> Mapping[str, np.ndarray]:
        """Return RMSE and NLL of each trial on these test rows, or on all of them."""
        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        mixture = mixtures(fitted, x, self.trials)
        target = torch.as_tensor(y).expand(self.trials, -1)
        return {
            "rmse": (mixture.mean - target).square().mean(1).sqrt().numpy(),
            "nll": -mixture.log_prob(target).mean(1).numpy(),
        }

    def __call__(self, fitted: TableModel) -> Tensor:
        """Evaluate on a random batch; return a score that is smaller each time, so that the last weights are kept."""
        found = self.scores(fitted, self.random.choice(len(self.y), self.batch, replace=False))
        self.count += 1
        for score, values in found.items():
            self.best[score] = np.fmin(self.best[score], values)
        return torch.full((fitted.members,), -float(self.count), device=fitted.device)


def _milliseconds(fitted: TableModel, x: np.ndarray, members: Sequence[int]) -> float:
    """Return the median time in which one model answers the test rows of one split, with the answers on the CPU."""
    return 1e3 * median_seconds(functools.partial(fitted.select(members).evaluate, x), torch.device("cpu"))
