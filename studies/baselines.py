"""The baselines at the settings of their papers, on the standard splits, beside the numbers those papers report.

Deep ensembles (Lakshminarayanan et al. 2017): five networks of one layer of 50 ReLU units (100 for protein), 40 epochs,
batches of 100. The paper's learning rate is 0.1; here each set has the best of 0.1, 0.03 and 0.01 on a tenth of the
training rows. MC dropout (Gal and Ghahramani 2016): the same network, 400 epochs, batches of 128, the dropout rate
searched for each split on its training rows; a Gaussian likelihood with a noise that depends on x takes the place of
their searched constant one, and 100 draws that of their 10,000. No network stops early; test rows are used once.

    python studies/baselines.py --data DATA [--sets yacht,boston] [--methods ensemble] [--device cuda]
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evidentia import metrics
from evidentia.data import splits
from evidentia.datasets import uci
from evidentia.fitting import fit, hold_out, search
from evidentia.methods import GaussianLikelihood, MCDropout, Network, Recipe
from evidentia.record import environment, write_record
from evidentia.reproduce.paper import TABLE_1
from evidentia.training import Settings, resolve_device

LEARNING_RATES = (0.1, 0.03, 0.01)
RATES = (0.2, 0.1, 0.05, 0.01, 0.005)


def settings_for(name: str, rows: int, epochs: int, batch: int, learning_rate: float) -> Recipe:
    steps = epochs * rows // batch
    network = Network((100 if name == "protein" else 50,), "relu")
    return Recipe(
        network, Settings(steps=steps, learning_rate=learning_rate, evaluate_every=max(1, steps // 20)), batch
    )


def ensemble(table: uci.UCITable, device: str) -> tuple[list, dict]:
    groups = [range(5 * k, 5 * k + 5) for k in range(len(table.splits))]

    def train(rows: Sequence[np.ndarray], learning_rate: float):
        recipe = settings_for(table.name, len(rows[0]), 40, 100, learning_rate)
        members = [m for k, r in enumerate(rows) for m in hold_out(r, range(100 * k, 100 * k + 5), 0)]
        return fit(GaussianLikelihood(), table.x, table.y, members, recipe=recipe, device=device)

    inner = [[rows[part] for part in splits.random(len(rows), 0.1, k)] for k, (rows, _) in enumerate(table.splits)]
    scores = {}
    for rate in LEARNING_RATES:
        fitted = train([kept for kept, _ in inner], rate)
        answers = [fitted.predict(table.x[aside], g) for g, (_, aside) in zip(groups, inner, strict=True)]
        scores[rate] = np.mean([metrics.nll(p, table.y[a]) for p, (_, a) in zip(answers, inner, strict=True)])
    chosen = min(scores, key=scores.__getitem__)
    fitted = train([rows for rows, _ in table.splits], chosen)
    notes = {"learning_rates": {str(r): s for r, s in scores.items()}, "learning_rate": chosen}
    return predictions(fitted, table, groups), notes | {"diverged": fitted.training.diverged.nonzero().flatten()}


def dropout(table: uci.UCITable, device: str) -> tuple[list, dict]:
    recipe = settings_for(table.name, len(table.splits[0][0]), 400, 128, 1e-2)
    groups = [train for train, _ in table.splits]
    common = {"recipe": recipe, "device": device}
    method = MCDropout(samples=100)
    found = search(
        method, table.x, table.y, groups, parameter="rate", candidates=RATES, folds=3, validation_share=0, **common
    )
    rates = [s.chosen for s in found]
    members = [hold_out(train, [100 * k], 0)[0] for k, train in enumerate(groups)]
    fitted = fit(MCDropout(samples=100, rate=rates), table.x, table.y, members, **common)
    notes = {"rates": rates, "diverged": fitted.training.diverged.nonzero().flatten()}
    return predictions(fitted, table, [[k] for k in range(len(groups))]), notes


def predictions(fitted, table: uci.UCITable, groups: Sequence[Sequence[int]]) -> list:
    return [fitted.predict(table.x[test], group) for group, (_, test) in zip(groups, table.splits, strict=True)]


METHODS = {"ensemble": ensemble, "dropout": dropout}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=",".join(uci.SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/baselines"))
    options = parser.parse_args()
    record = {"run": "baselines", "environment": environment(resolve_device(options.device)), "results": {}}
    print(f"{'method':10s}{'set':10s}{'NLL':>16s}{'published':>11s}{'RMSE':>10s}{'published':>11s}")
    for name in options.sets.split(","):
        table = uci.load(name, options.data)
        for which in options.methods.split(","):
            started = time.perf_counter()
            answers, notes = METHODS[which](table, options.device)
            pairs = [(p, table.y[test]) for p, (_, test) in zip(answers, table.splits, strict=True)]
            nll, rmse = (np.array([f(p, y) for p, y in pairs]) for f in (metrics.nll, metrics.rmse))
            published = TABLE_1[name][which]
            print(
                f"{which:10s}{name:10s}{nll.mean():9.3f} ± {nll.std(ddof=1) / len(nll) ** 0.5:.3f}{published.nll:11.2f}"
                f"{rmse.mean():10.4f}{published.rmse:11.2f}{'' if nll.mean() <= published.nll else '  behind'}",
                flush=True,
            )
            entry = {"nll": nll, "rmse": rmse, "seconds": time.perf_counter() - started, **notes}
            record["results"].setdefault(which, {})[name] = entry
            write_record(options.out, record)
    print(f"device: {record['environment']['device']['name']}; record: {options.out / 'record.json'}")


if __name__ == "__main__":
    main()
