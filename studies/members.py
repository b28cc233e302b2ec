"""How many networks a mixture should have: the score on rows set aside against the number of members.

On the training rows of the standard splits alone, a tenth of which is set aside. Test rows are not touched.

    python studies/members.py --data DATA [--sets yacht,boston] [--splits 10] [--device cuda] [--out out/members]
"""

import argparse
from pathlib import Path

import numpy as np

from evidentia import metrics
from evidentia.data import splits
from evidentia.datasets import uci
from evidentia.fitting import fit, hold_out
from evidentia.methods import Evidential, Recipe
from evidentia.record import environment, write_record
from evidentia.training import resolve_device

COUNTS = (1, 2, 3, 5, 8, 16)


def run(name: str, options: argparse.Namespace) -> list[dict]:
    table = uci.load(name, options.data)
    members, aside, most = [], [], max(COUNTS)
    for k, (train, _) in enumerate(table.splits[: options.splits]):
        kept, rest = splits.random(len(train), 0.1, seed=k)
        members += hold_out(train[kept], range(1000 * k, 1000 * k + most))
        aside.append(train[rest])
    recipe = Recipe.for_rows(len(members[0].train))
    fitted = fit(Evidential(0.01), table.x, table.y, members, recipe=recipe, device=options.device)
    rows = []
    for k, test in enumerate(aside):
        for count in COUNTS:
            p = fitted.predict(table.x[test], range(k * most, k * most + count))
            scores = {"nll": metrics.nll(p, table.y[test]), "rmse": metrics.rmse(p, table.y[test])}
            rows.append({"set": name, "split": k, "members": count, **scores})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=",".join(uci.SETS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/members"))
    options = parser.parse_args()
    record = {"run": "members", "environment": environment(resolve_device(options.device)), "rows": []}
    print(f"NLL of mixtures less that of {max(COUNTS)} members, mean ± standard error over splits")
    print(f"{'set':10s}" + "".join(f"{count:>17d}" for count in COUNTS))
    for name in options.sets.split(","):
        rows = run(name, options)
        record["rows"] += rows
        by_count = {c: np.array([r["nll"] for r in rows if r["members"] == c]) for c in COUNTS}
        gaps = [by_count[c] - by_count[max(COUNTS)] for c in COUNTS]
        print(
            f"{name:10s}" + "".join(f"{g.mean():+9.3f} ± {g.std(ddof=1) / len(g) ** 0.5:.3f}" for g in gaps), flush=True
        )
        write_record(options.out, record)
    print(f"device: {record['environment']['device']['name']}; record: {options.out / 'record.json'}")


if __name__ == "__main__":
    main()
