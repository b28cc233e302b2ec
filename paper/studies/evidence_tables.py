"""Scores predictions of rows whose kind was left out of training, with and without evidence by conjugacy.

    python paper/studies/evidence_tables.py --data DATA [--sets yacht,energy] [--out out/evidence_tables]

For each UCI set: tails (the lowest and highest sixth of a feature are test rows; of Naval and Protein, five features
drawn at random), gaps (the middle third of four features) and standard splits. Mixtures of eight networks by the
default recipe that see the numbers as they are. The networks of all splits of a kind are trained as one population.
Test rows, at most 2,000 of a split, are predicted once, and nothing is chosen by them.

- mixture: evidential networks, the evidence that they output.
- conjugate: the same networks with evidence by conjugacy, λ learned from left-out ends of the training rows.
- edge: the same networks with evidence relative to the edge of the training rows, without a learned λ.
- ensemble: networks with a normal likelihood.

Of 90% intervals the record has the coverage, and the widest in deviations of the training targets.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np

from howsure import metrics
from howsure.likelihoods import Evidential, Method, NormalLikelihood, Recipe
from howsure.prediction import Prediction
from howsure.tables.evidence import (
    add_evidence,
    best_ridge,
    extrapolation_folds,
    rows_of_a_fold,
    short_recipe,
)
from howsure.tables.members import Member, hold_out
from howsure.tables.model import TableModel
from howsure.tables.target import Target, prepare_target
from howsure.tables.views import Views
from howsure.training import resolve_device
from howsure_paper import splits
from howsure_paper.datasets import uci
from howsure_paper.record import find_record, write_record
from howsure_paper.training import fit
from shared import device_and_record, new_record, option_parser

MEMBERS = 8
MAX_TEST_ROWS = 2000
LARGE_TABLE = 10_000  # rows from which the ends of only some features are left out
TAILS, GAPS = 5, 4  # features whose ends are left out of large tables, and whose middle is left out of any table
PER_NETWORK = ("best_score", "best_step", "diverged", "stopped_early")


@dataclass(frozen=True)
class Split:
    """Training and test rows of a table."""

    kind: str
    name: str
    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Table:
    """A table with its targets as they are and as networks learn them, and how to train."""

    x: np.ndarray
    y: np.ndarray
    learned: np.ndarray
    splits: list[Split]
    device: str
    steps: int | None

    def recipe(self, rows: int) -> Recipe:
        recipe = Recipe.for_rows(rows)
        if self.steps is None:
            return recipe
        settings = replace(recipe.settings, steps=self.steps, evaluate_every=max(1, self.steps // 5))
        return replace(recipe, settings=settings)


def splits_of(table: uci.UCITable, standard: int) -> list[Split]:
    """Return the tails, the gaps and some standard splits of a set."""
    random = np.random.default_rng(0)
    features = random.permutation(np.flatnonzero(table.x.std(0) > 0))
    tails = features[:TAILS] if len(table.y) > LARGE_TABLE else features
    found = [Split("tail", f"feature {k}", *splits.tail(table.x[:, k])) for k in np.sort(tails)]
    found += [Split("gap", f"feature {k}", *splits.gap(table.x[:, k])) for k in np.sort(features[:GAPS])]
    found += [Split("standard", f"split {k}", *table.splits[k]) for k in range(min(standard, len(table.splits)))]
    return [replace(s, test=np.sort(random.permutation(s.test)[:MAX_TEST_ROWS])) for s in found]


def part_of(fitted: TableModel, first: int, count: int) -> TableModel:
    """Return the model of ``count`` networks from the first on, with the results of their training."""
    some = fitted.select(range(first, first + count))
    own = {name: getattr(fitted.result, name)[first : first + count].cpu() for name in PER_NETWORK}
    some.result = replace(fitted.result, **own)
    return some


def fit_all(table: Table, method: Method, chosen: Sequence[Split]) -> list[tuple[TableModel, list[Member]]]:
    """Return a model for each split, all trained as one population."""
    each = [hold_out(s.train, range(1000 * k, 1000 * k + MEMBERS)) for k, s in enumerate(chosen)]
    recipe = table.recipe(max(len(s.train) for s in chosen))
    everyone = [member for members in each for member in members]
    fitted = fit(method, table.x, table.learned, everyone, recipe=recipe, device=table.device)
    return [(part_of(fitted, MEMBERS * k, MEMBERS), members) for k, members in enumerate(each)]


def ridges_of(table: Table, method: Method, chosen: Sequence[Split]) -> list[float | None]:
    """Return λ for each split, learned from the ends of its training rows; all folds are trained as one population."""
    folds = [extrapolation_folds(table.x, s.train, k) for k, s in enumerate(chosen)]
    each = [[m for inner, _ in own for m in hold_out(inner, [7 + k])] for k, own in enumerate(folds)]
    recipe = short_recipe(table.recipe(rows_of_a_fold(max(len(s.train) for s in chosen))))
    everyone = [member for members in each for member in members]
    fitted = fit(method, table.x, table.learned, everyone, recipe=recipe, device=table.device)
    firsts = np.cumsum([0, *(len(members) for members in each)])
    return [
        best_ridge(
            part_of(fitted, int(first), len(members)),
            Views(table.x, members),
            Target(table.learned),
            own,
        )
        for first, own, members in zip(firsts, folds, each, strict=False)
    ]


def scores(table: Table, p: Prediction, split: Split) -> dict[str, float]:
    """Return the scores of a prediction of the test rows."""
    y = table.y[split.test]
    ends = p.interval(0.9)
    return {
        "nll": metrics.nll(p, y),
        "crps": metrics.crps(p, y),
        "rmse": metrics.rmse(p, y),
        "coverage_90": float(((ends[:, 0] <= y) & (y <= ends[:, 1])).mean()),
        "widest": float(np.diff(ends).max() / table.y[split.train].std()),
    }


def results_of(table: Table) -> list[dict]:
    """Return the scores of every split by every method."""
    rows: list[dict] = [{"kind": s.kind, "split": s.name, "scores": {}} for s in table.splits]
    standard = [s.kind == "standard" for s in table.splits]
    for group in (np.flatnonzero(np.invert(standard)), np.flatnonzero(standard)):
        chosen = [table.splits[k] for k in group]
        if not chosen:
            continue
        evidential, normal = fit_all(table, Evidential(0.01), chosen), fit_all(table, NormalLikelihood(), chosen)
        ridges = ridges_of(table, Evidential(0.01), chosen)
        for k, (mixture, members), (ensemble, _), ridge in zip(group, evidential, normal, ridges, strict=True):
            models = {
                "mixture": mixture,
                "conjugate": add_evidence(deepcopy(mixture), Views(table.x, members), ridge),
                "edge": add_evidence(deepcopy(mixture), Views(table.x, members), None),
                "ensemble": ensemble,
            }
            split, row = table.splits[k], rows[k]
            row["ridge"] = ridge
            row["scores"] = {n: scores(table, m.predict(table.x[split.test]), split) for n, m in models.items()}
    return rows


def show(name: str, rows: list[dict]) -> None:
    """Print the means over the splits of each kind."""
    for kind in ("tail", "gap", "standard"):
        some = [row["scores"] for row in rows if row["kind"] == kind]
        for method in some[0] if some else ():
            mean = {score: np.mean([s[method][score] for s in some]) for score in some[0][method]}
            widest = max(s[method]["widest"] for s in some)
            print(
                f"{name:10s}{kind:9s}{len(some):3d}  {method:10s} NLL {mean['nll']:9.3f}  CRPS {mean['crps']:8.4g}  "
                f"in 90% {mean['coverage_90']:.3f}  widest {widest:9.1f}",
                flush=True,
            )


def main() -> None:
    parser = option_parser(__doc__, "evidence_tables")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="names with commas (default: all nine)")
    parser.add_argument("--splits", type=int, default=5, help="standard splits of each set")
    parser.add_argument("--features", type=int, help="features whose ends are left out, without gaps (default: all)")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    device = resolve_device(options.device)
    record = new_record("evidence_tables", device, members=MEMBERS, sets={})
    if before := find_record(options.out):
        record["sets"] = before["sets"]
    for name in options.sets.split(","):
        if name in record["sets"]:
            continue
        started = time.perf_counter()
        data = uci.load(name, options.data)
        found = splits_of(data, 2 if len(data.y) > 2 * LARGE_TABLE else options.splits)
        if options.features is not None:
            tails = [s for s in found if s.kind == "tail"][: options.features]
            found = tails + [s for s in found if s.kind == "standard"]
        learned = prepare_target(data.y).values
        record["sets"][name] = results_of(Table(data.x, data.y, learned, found, str(device), options.steps))
        write_record(options.out, record)
        show(name, record["sets"][name])
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
