"""Which side of a tie ``evidence_weight="auto"`` should prefer, and what the search is worth.

On the training rows of the standard splits alone; test rows are not touched. Of each split's training rows some are set
aside, at random or as the middle third of a feature (a gap); λ is searched on the rest, and mixtures with every λ are
scored on what was set aside.

    python studies/tie_side.py --data DATA [--sets yacht,boston] [--splits 5] [--device cuda] [--out out/tie_side]
"""

import argparse
from pathlib import Path

import numpy as np

from evidentia import metrics
from evidentia.data import splits
from evidentia.datasets import uci
from evidentia.fitting import fit, hold_out, search
from evidentia.fitting.search import one_standard_error
from evidentia.methods import Evidential, Recipe
from evidentia.record import environment, write_record
from evidentia.training import resolve_device

WEIGHTS = (0.0, 0.001, 0.01, 0.1, 1.0)
RULES = ("best", "smallest tied", "largest tied", *(f"{w:g}" for w in WEIGHTS))


def divide(table: uci.UCITable, kind: str, count: int) -> list[splits.Split]:
    """(kept, set aside) rows within the training rows of the first splits."""
    pairs = []
    for k, (train, _) in enumerate(table.splits[:count]):
        if kind == "random":
            kept, aside = splits.random(len(train), 0.1, seed=k)
        else:
            varied = [j for j in range(table.x.shape[1]) if len(np.unique(table.x[train, j])) > 10]
            kept, aside = splits.gap(table.x[train, varied[k % len(varied)]])
        pairs.append((train[kept], train[aside]))
    return pairs


def choices(scores: np.ndarray) -> dict[str, int]:
    """Rule → the index of the weight it takes; scores are (weights, folds) in ascending order of the weights."""
    last = len(WEIGHTS) - 1
    return {
        "best": int(scores.mean(1).argmin()),
        "smallest tied": one_standard_error(scores),
        "largest tied": last - one_standard_error(scores[::-1]),
        **{f"{w:g}": k for k, w in enumerate(WEIGHTS)},
    }


def run(name: str, kind: str, options: argparse.Namespace) -> list[dict]:
    table = uci.load(name, options.data)
    pairs = divide(table, kind, options.splits)
    recipe = Recipe.for_rows(len(pairs[0][0]))
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default="yacht,boston,energy,concrete,wine")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/tie_side"))
    options = parser.parse_args()
    record = {"run": "tie_side", "environment": environment(resolve_device(options.device)), "rows": []}
    print("NLL of the mixture (of one network), and how much 90 % intervals hold, by the rule that chose λ")
    for kind in ("random", "gap"):
        for name in options.sets.split(","):
            rows = run(name, kind, options)
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
            print(f"{rule:>14s}{np.mean(gaps):+9.4f} ± {np.std(gaps, ddof=1) / len(gaps) ** 0.5:.4f}")
    print(f"device: {record['environment']['device']['name']}; record: {options.out / 'record.json'}")


if __name__ == "__main__":
    main()
