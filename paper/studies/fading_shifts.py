"""Measures predictions for rows of another kind: white wines by red ones, 2012's bikes by 2011's, the coast by inland.

    python paper/studies/fading_shifts.py --data DATA [--out paper/docs/results/fading_shifts]

Of the rows that a regressor may learn from, a fifth is kept to compare with. Default regressors with eight networks;
plain and fading have the same networks. AUROC: how well a number tells the rows of the other kind from those that were
kept (0.5: not at all).
"""

from dataclasses import replace

import numpy as np

from howsure import EnsembleRegressor, EvidentialRegressor, metrics
from howsure.data.splits import random
from howsure.estimators import Regressor
from howsure.prediction import Prediction
from howsure.training import resolve_device
from howsure_paper.datasets.folder import find_data
from howsure_paper.record import write_record
from shared import Tables, device_and_record, new_record, option_parser, shifts


def scores(p: Prediction, y: np.ndarray) -> dict[str, float]:
    """Return the scores of a prediction."""
    return {
        "nll": metrics.nll(p, y),
        "crps": metrics.crps(p, y),
        "rmse": metrics.rmse(p, y),
        "coverage_90": metrics.coverage(p, y),
        "epistemic_std": float(np.median(p.epistemic_std)),
        "std": float(np.median(p.std)),
    }


def without_fading(model: Regressor) -> Regressor:
    """Return the regressor with all evidence of its networks."""
    plain = type(model)(**model.get_params())
    plain.__dict__.update(model.__dict__)
    plain.fitted_ = replace(model.fitted_, fading=None)
    plain.fitted_.training = model.fitted_.training
    return plain


def compare(tables: Tables, device: str, steps: int | None) -> dict[str, dict]:
    """Return the scores of plain and fading regressors on rows like those they learned from, and on the others."""
    x, y, other_x, other_y = tables
    train, kept = random(len(y), 0.2, 0)
    found: dict[str, dict] = {}
    for name, cls in (("mixture", EvidentialRegressor), ("ensemble", EnsembleRegressor)):
        model = cls(members=8, evidence="fading", steps=steps, device=device, random_state=0)
        model.fit(x.iloc[train], y[train])
        for words, asked in ((name, without_fading(model)), (f"{name}, fading", model)):
            inside, outside = (asked.predict_distribution(t) for t in (x.iloc[kept], other_x))
            row = {"inside": scores(inside, y[kept]), "outside": scores(outside, other_y)}
            row["auroc of epistemic std"] = metrics.auroc(inside.epistemic_std, outside.epistemic_std)
            if outside.familiarity is not None:
                row["power"] = model.fading_power_
                row["familiarity"] = {
                    "inside": float(inside.familiarity.mean()),
                    "outside": float(outside.familiarity.mean()),
                }
                row["auroc of familiarity"] = metrics.auroc(-inside.familiarity, -outside.familiarity)
            found[words] = row
    return found


def main() -> None:
    parser = option_parser(__doc__, "fading_shifts")
    parser.add_argument("--steps", type=int, help="training steps (default: the regressor's)")
    parser.add_argument("--rows", type=int, help="rows of each table, for a trial (default: all)")
    options = parser.parse_args()
    folder = find_data(options.data)
    if folder is None:
        parser.error("the tables are in the folder shift/ of the data: pass --data")
    record = new_record("fading_shifts", resolve_device(options.device), shifts={})
    print(f"{'shift':21s}{'method':18s}{'NLL in':>9s}{'out':>9s}{'in 90 % in':>12s}{'out':>7s}{'AUROC':>8s}")
    for name, tables in shifts(f"{folder}/shift").items():
        cut = tuple(t[: options.rows] for t in tables)
        record["shifts"][name] = compare(cut, options.device, options.steps)
        write_record(options.out, record)
        for words, row in record["shifts"][name].items():
            inside, outside = row["inside"], row["outside"]
            print(
                f"{name:21s}{words:18s}{inside['nll']:9.3f}{outside['nll']:9.3f}{inside['coverage_90']:12.3f}"
                f"{outside['coverage_90']:7.3f}{row['auroc of epistemic std']:8.3f}",
                flush=True,
            )
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
