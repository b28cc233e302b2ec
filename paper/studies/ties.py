"""Measures what spreading the values that many rows share does to CRPS and coverage, and how wide it should be.

    python paper/studies/ties.py [--data DATA] [--seeds 3] [--steps 600] [--device cpu] [--out out/ties]

Three made tables: four fifths zeros at random, zeros where a feature is low, and small counts. With --data also the
grades of red wines, where only training rows of the first standard splits are used: a fifth of them is predicted. Each
is learned as it is, with its values spread over the widths that are asked for, and with
``target_transform="positive"``.
"""

import warnings
from unittest import mock

import numpy as np

from howsure import EnsembleRegressor, EvidentialRegressor, metrics
from howsure.tables import splits
from howsure.tables import target as targets
from howsure.tables import target_values as target
from howsure.training import resolve_device
from howsure_paper.datasets import uci
from howsure_paper.record import write_record
from shared import device_and_record, new_record, option_parser

WIDTHS = (0.5, 1.0, 2.0)  # times the library's


def made_table(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 800 rows of a made table."""
    rng = np.random.default_rng([seed, len(kind)])
    x = rng.uniform(-1, 1, (800, 4))
    amount = rng.gamma(2.0, np.exp(0.5 * x[:, 1]))
    if kind == "zeros at random":
        return x, np.where(rng.random(800) < 0.8, 0.0, amount)
    if kind == "zeros where a feature is low":
        return x, np.where(x[:, 0] + 0.3 * rng.standard_normal(800) < 0.55, 0.0, amount)
    return x, rng.poisson(np.exp(0.8 * x[:, 0])).astype(float)


def scores_of(model, x, y, split) -> dict[str, float]:
    """Return CRPS, coverage and RMSE of a regressor on the test rows of a split."""
    train, test = split
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        p = model.fit(x[train], y[train]).predict_distribution(x[test])
    return {
        "crps": metrics.crps(p, y[test]),
        "coverage_90": metrics.coverage(p, y[test]),
        "rmse": metrics.rmse(p, y[test]),
    }


def ways(options: dict):
    """Yield what is tried: its name, the regressor, and by how much widths are multiplied; None leaves ties alone."""
    yield "as it is", EvidentialRegressor(**options), None
    for factor in WIDTHS:
        yield f"spread, {factor:g} of the width", EvidentialRegressor(**options), factor
    yield "positive", EvidentialRegressor(target_transform="positive", **options), 1.0
    yield "ensemble, as it is", EnsembleRegressor(**options), None
    yield "ensemble, spread", EnsembleRegressor(**options), 1.0


def main() -> None:
    parser = option_parser(__doc__, "ties")
    parser.add_argument("--seeds", type=int, default=3, help="made tables, or splits of the wines")
    parser.add_argument("--members", type=int, default=4, help="networks of a model")
    parser.add_argument("--steps", type=int, default=600, help="training steps")
    options = parser.parse_args()
    record = new_record("ties", resolve_device(options.device), cases={})
    cases = {kind: kind for kind in ("zeros at random", "zeros where a feature is low", "small counts")}
    if options.data:
        cases["grades of wines"] = ""
    for case, kind in cases.items():
        found: dict[str, list] = {}
        for seed in range(options.seeds):
            if kind:
                x, y = made_table(kind, seed)
            else:
                table = uci.load("wine", options.data)
                x, y = (t[table.splits[seed][0]] for t in (table.x, table.y))
            split = splits.random(len(x), 0.2, seed)
            chosen = {
                "members": options.members,
                "steps": options.steps,
                "random_state": seed,
                "device": options.device,
            }
            for name, model, factor in ways(chosen):
                widths = {n: getattr(target, n) * (factor or 1) for n in ("WIDTH", "LEAST_WIDTH", "GRID_WIDTH")}
                leave = mock.patch.object(targets, "find_ties", return_value=None)
                with mock.patch.multiple(target, **widths) if factor else leave:
                    found.setdefault(name, []).append(scores_of(model, x, y, split))
        record["cases"][case] = found
        write_record(options.out, record)
        print(f"\n{case:28s}{'CRPS':>9s}{'in 90 %':>9s}{'RMSE':>9s}")
        for name, rows in found.items():
            means = [np.mean([row[score] for row in rows]) for score in ("crps", "coverage_90", "rmse")]
            print(f"{name:28s}{means[0]:9.4f}{means[1]:9.3f}{means[2]:9.4f}", flush=True)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
