"""Compares our baselines at the settings of their papers with the numbers that those papers report.

Deep ensembles (Lakshminarayanan et al. 2017): five networks of one layer of 50 ReLU units (100 for protein), 40 epochs,
batches of 100. The paper's learning rate is 0.1; here it is, for each set, the best of 0.1, 0.03 and 0.01 on a tenth of
the training rows. MC dropout (Gal and Ghahramani 2016): the same network, 400 epochs, batches of 128, and a dropout
rate that is searched for each split on its training rows. Two things differ: the noise of our Gaussian likelihood
depends on x, where theirs is constant and searched, and we take 100 draws instead of 10,000. No network stops early.
All run on the standard splits, whose test rows are used once.

    python paper/studies/baselines.py --data DATA [--sets yacht,boston] [--methods ensemble] [--device cuda]
"""

import time
from collections.abc import Sequence

import numpy as np

from howsure import metrics
from howsure.likelihoods import Network, NormalLikelihood, Recipe
from howsure.prediction import Prediction
from howsure.tables import splits
from howsure.tables.members import hold_out
from howsure.training import Settings, resolve_device
from howsure_paper.baselines import MCDropout
from howsure_paper.datasets import uci
from howsure_paper.paper import TABLE_1
from howsure_paper.record import write_record
from howsure_paper.search import search
from howsure_paper.tables import mean_and_error
from howsure_paper.training import fit
from shared import device_and_record, new_record, option_parser

LEARNING_RATES = (0.1, 0.03, 0.01)
RATES = (0.2, 0.1, 0.05, 0.01, 0.005)


def published_recipe(name: str, rows: int, epochs: int, batch: int, learning_rate: float) -> Recipe:
    """Return the network of both papers with these settings."""
    steps = epochs * rows // batch
    network = Network((100 if name == "protein" else 50,), "relu")
    return Recipe(
        network, Settings(steps=steps, learning_rate=learning_rate, evaluate_every=max(1, steps // 20)), batch
    )


def ensemble(table: uci.UCITable, device: str) -> tuple[list[Prediction], dict]:
    """Return a deep ensemble's predictions of the test rows of each split, and the learning rate with its search."""
    groups = [range(5 * k, 5 * k + 5) for k in range(len(table.splits))]

    def train(rows: Sequence[np.ndarray], learning_rate: float):
        recipe = published_recipe(table.name, len(rows[0]), 40, 100, learning_rate)
        members = [m for k, r in enumerate(rows) for m in hold_out(r, range(100 * k, 100 * k + 5), 0)]
        return fit(NormalLikelihood(), table.x, table.y, members, recipe=recipe, device=device)

    inner = [[rows[part] for part in splits.random(len(rows), 0.1, k)] for k, (rows, _) in enumerate(table.splits)]
    scores = {}
    for rate in LEARNING_RATES:
        fitted = train([kept for kept, _ in inner], rate)
        answers = [fitted.predict(table.x[aside], g) for g, (_, aside) in zip(groups, inner, strict=True)]
        scores[rate] = np.mean([metrics.nll(p, table.y[a]) for p, (_, a) in zip(answers, inner, strict=True)])
    chosen = min(scores, key=scores.__getitem__)
    fitted = train([rows for rows, _ in table.splits], chosen)
    notes = {"learning_rates": {str(r): s for r, s in scores.items()}, "learning_rate": chosen}
    return predictions(fitted, table, groups), notes | {"diverged": fitted.result.diverged.nonzero().flatten()}


def dropout(table: uci.UCITable, device: str) -> tuple[list[Prediction], dict]:
    """Return the predictions of MC dropout of the test rows of each split, and the dropout rates."""
    recipe = published_recipe(table.name, len(table.splits[0][0]), 400, 128, 1e-2)
    groups = [train for train, _ in table.splits]
    common = {"recipe": recipe, "device": device}
    method = MCDropout(samples=100)
    found = search(
        method, table.x, table.y, groups, parameter="rate", candidates=RATES, folds=3, validation_fraction=0, **common
    )
    rates = [s.chosen for s in found]
    members = [hold_out(train, [100 * k], 0)[0] for k, train in enumerate(groups)]
    fitted = fit(MCDropout(samples=100, rate=rates), table.x, table.y, members, **common)
    notes = {"rates": rates, "diverged": fitted.result.diverged.nonzero().flatten()}
    return predictions(fitted, table, [[k] for k in range(len(groups))]), notes


def predictions(fitted, table: uci.UCITable, groups: Sequence[Sequence[int]]) -> list[Prediction]:
    """Return the prediction of each split's test rows by its group of members."""
    return [fitted.predict(table.x[test], group) for group, (_, test) in zip(groups, table.splits, strict=True)]


METHODS = {"ensemble": ensemble, "dropout": dropout}


def main() -> None:
    parser = option_parser(__doc__, "baselines")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="names with commas (default: all nine)")
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas (default: both)")
    options = parser.parse_args()
    record = new_record("baselines", resolve_device(options.device), results={})
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
                f"{which:10s}{name:10s}{mean_and_error(nll):>16s}{published.nll:11.2f}"
                f"{rmse.mean():10.4f}{published.rmse:11.2f}{'' if nll.mean() <= published.nll else '  behind'}",
                flush=True,
            )
            entry = {"nll": nll, "rmse": rmse, "seconds": time.perf_counter() - started, **notes}
            record["results"].setdefault(which, {})[name] = entry
            write_record(options.out, record)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
