"""Compares mixtures of 1 to 16 evidential networks on rows set aside: how many networks a mixture should have.

A tenth of the training rows of each standard split is set aside. Test rows are not used.

    python paper/studies/members.py --data DATA [--sets yacht,boston] [--splits 10] [--device cuda] [--out out/members]
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
from howsure_paper.tables import mean_and_error
from howsure_paper.training import fit
from shared import device_and_record, new_record, option_parser, recipe_for

COUNTS = (1, 2, 3, 5, 8, 16)


def scores_of(name: str, options: argparse.Namespace) -> list[dict]:
    """Return one row per split and number of members, with the scores on the rows set aside."""
    table = uci.load(name, options.data)
    members, held_out, most = [], [], max(COUNTS)
    for k, (train, _) in enumerate(table.splits[: options.splits]):
        kept, aside = splits.random(len(train), 0.1, seed=k)
        members += hold_out(train[kept], range(1000 * k, 1000 * k + most))
        held_out.append(train[aside])
    recipe = recipe_for(len(members[0].train), options.steps)
    fitted = fit(Evidential(0.01), table.x, table.y, members, recipe=recipe, device=options.device)
    rows = []
    for k, aside in enumerate(held_out):
        for count in COUNTS:
            p = fitted.predict(table.x[aside], range(k * most, k * most + count))
            scores = {"nll": metrics.nll(p, table.y[aside]), "rmse": metrics.rmse(p, table.y[aside])}
            rows.append({"set": name, "split": k, "members": count, **scores})
    return rows


def main() -> None:
    parser = option_parser(__doc__, "members")
    parser.add_argument("--sets", default=",".join(uci.SETS), help="names with commas (default: all nine)")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    record = new_record("members", resolve_device(options.device), rows=[])
    print(f"NLL of mixtures less that of {max(COUNTS)} members, mean ± standard error over splits")
    print(f"{'set':10s}" + "".join(f"{count:>17d}" for count in COUNTS))
    for name in options.sets.split(","):
        rows = scores_of(name, options)
        record["rows"] += rows
        by_count = {c: np.array([r["nll"] for r in rows if r["members"] == c]) for c in COUNTS}
        gaps = (by_count[c] - by_count[max(COUNTS)] for c in COUNTS)
        print(f"{name:10s}" + "".join(f"{mean_and_error(gap):>17s}" for gap in gaps), flush=True)
        write_record(options.out, record)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
