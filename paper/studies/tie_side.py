"""Compares rules that choose λ among those that tie in the search of ``evidence_weight="auto"``, and fixed λ.

Of the training rows of each standard split some are set aside, at random or as the middle third of a feature (a gap).
λ is searched on the rest, and mixtures with every λ are scored on the rows set aside. Test rows are not used.

    python paper/studies/tie_side.py --data DATA [--sets yacht,boston] [--splits 5] [--device cuda] [--out out/tie_side]
"""

import argparse

import numpy as np

from howsure import metrics
from howsure.likelihoods import Evidential
from howsure.tables import splits
from howsure.tables.members import hold_out
from howsure.training import resolve_device
from howsure_paper.datasets import uci
from howsure_paper.record import write_record
from howsure_paper.search import one_standard_error, search
from howsure_paper.splits import gap
from howsure_paper.tables import mean_and_error
from howsure_paper.training import fit
from shared import device_and_record, new_record, option_parser, recipe_for

WEIGHTS = (0.0, 0.001, 0.01, 0.1, 1.0)
RULES = ("best", "smallest tied", "largest tied", *(f"{w:g}" for w in WEIGHTS))


def set_rows_aside(table: uci.UCITable, kind: str, count: int) -> list[splits.Split]:
    """Return (kept, set aside) rows within the training rows of the first ``count`` splits."""
    pairs = []
    for k, (train, _) in enumerate(table.splits[:count]):
        if kind == "random":
            kept, aside = splits.random(len(train), 0.1, seed=k)
        else:
            varied = [j for j in range(table.x.shape[1]) if len(np.unique(table.x[train, j])) > 10]
            kept, aside = gap(table.x[train, varied[k % len(varied)]])
        pairs.append((train[kept], train[aside]))
    return pairs


def choices(scores: np.ndarray) -> dict[str, int]:
    """Return for each rule the index of the weight that it takes; scores are (weights, folds) by ascending weight."""
    last = len(WEIGHTS) - 1
    return {
        "best": int(scores.mean(1).argmin()),
        "smallest tied": one_standard_error(scores),
        "largest tied": last - one_standard_error(scores[::-1]),
        **{f"{w:g}": k for k, w in enumerate(WEIGHTS)},
    }


def scores_of(name: str, kind: str, options: argparse.Namespace) -> list[dict]:
    """Return for each split the scores of a mixture with every λ, and which λ each rule takes."""
    table = uci.load(name, options.data)
    pairs = set_rows_aside(table, kind, options.splits)
    recipe = recipe_for(len(pairs[0][0]), options.steps)
    found = search(
        Evidential(),
        table.x,
        table.y,
        [kept for kept, _ in pairs],
        candidates=WEIGHTS,
        folds=options.folds,
        recipe=recipe,
        device=options.device,
    )
    members, weights = [], []
    for k, (kept, _) in enumerate(pairs):
        for w in WEIGHTS:
            members += hold_out(kept, range(1000 * k, 1000 * k + options.members))
            weights += [w] * options.members
    fitted = fit(Evidential(weights), table.x, table.y, members, recipe=recipe, device=options.device)
    rows = []
    for k, (_, aside) in enumerate(pairs):
        x, y = table.x[aside], table.y[aside]
        scored = []
        for c in range(len(WEIGHTS)):
            first = (k * len(WEIGHTS) + c) * options.members
            p = fitted.predict(x, range(first, first + options.members))
            one = fitted.predict(x, [first])
            scored.append(
                {"nll": metrics.nll(p, y), "coverage_90": metrics.coverage(p, y), "nll_single": metrics.nll(one, y)}
            )
        picked = choices(found[k].scores)
        rows.append({"set": name, "kind": kind, "split": k, "search": found[k].scores.mean(1), "picked": picked})
        rows[-1]["scores"] = scored
    return rows


def main() -> None:
    parser = option_parser(__doc__, "tie_side")
    parser.add_argument("--sets", default="yacht,boston,energy,concrete,wine", help="names with commas")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    record = new_record("tie_side", resolve_device(options.device), rows=[])
    print("NLL of the mixture (of one network) and coverage of its 90 % intervals, by the rule that chose λ")
    for kind in ("random", "gap"):
        for name in options.sets.split(","):
            rows = scores_of(name, kind, options)
            record["rows"] += rows
            for rule in RULES:
                picked = [row["scores"][row["picked"][rule]] for row in rows]
                mean = {s: np.mean([p[s] for p in picked]) for s in picked[0]}
                print(
                    f"{kind:7s}{name:10s}{rule:>14s}{mean['nll']:9.3f} ({mean['nll_single']:7.3f})"
                    f"{mean['coverage_90']:7.3f}",
                    flush=True,
                )
            write_record(options.out, record)
    for kind in ("random", "gap"):
        print(f"{kind}: NLL above that of λ = 0.01, mean over sets and splits ± standard error")
        chosen = [row for row in record["rows"] if row["kind"] == kind]
        for rule in RULES:
            gaps = [row["scores"][row["picked"][rule]]["nll"] - row["scores"][2]["nll"] for row in chosen]
            print(f"{rule:>14s}  {mean_and_error(gaps, digits=4)}")
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
