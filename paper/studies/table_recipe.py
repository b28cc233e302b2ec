"""Compares recipes for the networks of a table by the likelihood of rows that are set aside from the training rows.

    python paper/studies/table_recipe.py --data DATA [--sets yacht] [--splits 2] [--device cuda] [--out FOLDER]

For each standard split a tenth of its training rows is set aside; mixtures of eight learn from the others by each
recipe, and are scored on the tenth. Test rows are not used.
"""

from dataclasses import replace

import numpy as np

from howsure import metrics
from howsure.likelihoods import Evidential, Recipe
from howsure.tables import splits
from howsure.tables.members import hold_out
from howsure.training import resolve_device
from howsure_paper.datasets import uci
from howsure_paper.record import find_record, write_record
from howsure_paper.training import fit
from shared import device_and_record, new_record, option_parser, recipe_for

SMALL = "boston,concrete,energy,wine,yacht"


def recipes(rows: int) -> dict[str, Recipe]:
    """Return the candidates for a table of so many rows."""
    earlier, now = recipe_for(rows), Recipe.for_rows(rows)
    return {
        "earlier": earlier,
        "earlier, averaged": replace(earlier, settings=replace(now.settings, learning_rate=5e-3)),
        "earlier, deeper": replace(earlier, network=now.network),
        "now": now,
        "now, all steps": replace(now, settings=replace(now.settings, plateau=0.0)),
    }


def main() -> None:
    parser = option_parser(__doc__, "table_recipe")
    parser.add_argument("--sets", default=SMALL, help="names with commas (default: the five small ones)")
    parser.add_argument("--splits", type=int, default=2, help="splits of each set, from the first on")
    parser.add_argument("--steps", type=int, help="training steps, to try things out")
    options = parser.parse_args()
    record = new_record("table_recipe", resolve_device(options.device), rows=[])
    if before := find_record(options.out):
        record["rows"] = before["rows"]
    for name in options.sets.split(","):
        table = uci.load(name, options.data)
        known = {(row["split"], row["recipe"]) for row in record["rows"] if row["set"] == name}
        for k, (train, _) in enumerate(table.splits[: options.splits]):
            inner, aside = (train[part] for part in splits.random(len(train), 0.1, k))
            for recipe_name, recipe in recipes(len(inner)).items():
                if (k, recipe_name) in known:
                    continue
                if options.steps:
                    settings = replace(recipe.settings, steps=options.steps, evaluate_every=max(1, options.steps // 4))
                    recipe = replace(recipe, settings=settings)
                members = hold_out(inner, range(8 * k, 8 * k + 8))
                fitted = fit(Evidential(), table.x, table.y, members, recipe=recipe, device=options.device)
                nll = metrics.nll(fitted.predict(table.x[aside]), table.y[aside])
                result = {"set": name, "split": k, "recipe": recipe_name, "nll": nll}
                record["rows"].append(result | {"steps": fitted.result.steps, "seconds": fitted.result.seconds})
                write_record(options.out, record)
        print(f"\n{name:20s}{'NLL':>8s}{'steps':>8s}{'seconds':>9s}")
        for recipe_name in recipes(100):
            rows = [row for row in record["rows"] if (row["set"], row["recipe"]) == (name, recipe_name)]
            means = [np.mean([row[key] for row in rows]) for key in ("nll", "steps", "seconds")]
            print(f"{recipe_name:20s}{means[0]:8.3f}{means[1]:8.0f}{means[2]:9.1f}", flush=True)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
