"""Measures what fading evidence says beyond the training data of y = x³ + ε, for three activations.

Ten data sets of 1,000 points in ±4, with ε of deviation 3, and one mixture of eight networks for each: plain, with the
power of fading learned from its rows, and with a power of 2. The networks of an activation are trained at once.

    python paper/studies/fading_cubic.py [--activations silu,relu,tanh] [--seeds 10] [--out out/fading_cubic]
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from howsure import Prediction, metrics
from howsure.fitting import Fitted, fit, hold_out
from howsure.fitting.fading import choose_power, rows_of_a_fold, with_fading
from howsure.methods import Evidential, Recipe
from howsure.training import resolve_device
from howsure_paper.datasets.cubic import cubic
from howsure_paper.record import write_record
from shared import device_and_record, new_record, option_parser

ROWS = 1000
NOISE = 3.0
TRAINED_ON, INSIDE, END, FAR = 4.0, 3.8, 6.0, 12.0
KINDS = ("plain", "fading", "power 2")
SLACK = 0.95  # a width that is at least so much of the largest one nearer to the data has not fallen
FACTOR = 10  # a width of more than so many errors knows nothing either


def measure(predict: Callable[[np.ndarray], Prediction], seed: int) -> dict[str, Any]:
    """Return what a model states inside the training range of the cubic and beyond it, compared with the truth."""
    ends = np.array([-END, END])
    lower, upper = predict(ends[:, None]).interval(0.9).T
    mean = predict(ends[:, None]).mean
    near = np.linspace(TRAINED_ON, END, 202)[1:-1]
    near = np.concatenate([-near, near])
    low, high = predict(near[:, None]).interval(0.9).T
    beyond = np.linspace(TRAINED_ON, FAR, 161)
    widths = np.stack([np.diff(predict(side * beyond[:, None]).interval(0.9), axis=-1)[:, 0] for side in (-1, 1)])
    x, y = cubic(4000, NOISE, seed=10_000 + seed)
    inside = np.abs(x[:, 0]) < INSIDE
    p = predict(x[inside])
    return {
        "holds": ((lower <= ends**3) & (ends**3 <= upper)).tolist(),
        "share": float(np.mean((low <= near**3) & (near**3 <= high))),
        "width over error": ((upper - lower) / np.abs(mean - ends**3)).tolist(),
        "smallest width over largest before": float((widths / np.maximum.accumulate(widths, 1)).min()),
        "aleatoric": float(p.aleatoric_std.mean()),
        "coverage": metrics.coverage(p, y[inside]),
    }


def mixtures(activation: str, options: argparse.Namespace) -> tuple[Fitted, Fitted, list[float]]:
    """Return plain and fading networks, a mixture for every data set after the other, and the powers of the data sets.

    What is learned of a data set is learned as `EvidentialRegressor` does.
    """
    tables = [cubic(ROWS, NOISE, seed=seed) for seed in range(options.seeds)]
    x, y = np.concatenate([t[0] for t in tables]), np.concatenate([t[1] for t in tables])
    rows = [np.arange(k * ROWS, (k + 1) * ROWS) for k in range(options.seeds)]
    members = [m for k, own in enumerate(rows) for m in hold_out(own, range(1000 * k, 1000 * k + options.members))]
    method = Evidential(0.01)
    train = {"device": options.device}
    fitted = fit(method, x, y, members, recipe=recipe_for(ROWS, activation, options.steps), **train)
    folds = recipe_for(rows_of_a_fold(ROWS), activation, options.steps)
    powers = [choose_power(method, x, y, own, k, recipe=folds, **train) for k, own in enumerate(rows)]
    return fitted, with_fading(fitted, x, members, 2.0), powers


def recipe_for(rows: int, activation: str, steps: int | None) -> Recipe:
    """Return the default recipe for so many rows with another activation, and other steps if they are given."""
    recipe = Recipe.for_rows(rows)
    settings = recipe.settings
    if steps is not None:
        settings = replace(settings, steps=steps, evaluate_every=min(settings.evaluate_every, steps))
    return replace(recipe, network=replace(recipe.network, activation=activation), settings=settings)


def rows_of(activation: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per data set and kind of evidence."""
    plain, fading, powers = mixtures(activation, options)
    rows = []
    for k, learned in enumerate(powers):
        chosen = range(k * options.members, (k + 1) * options.members)
        for kind in KINDS:
            power = {"plain": 0.0, "fading": learned, "power 2": 2.0}[kind]
            model = (plain if kind == "plain" else fading).select(chosen)
            if model.fading is not None:
                model.fading.set_power(power)
            found = measure(model.predict, k)
            rows.append({"activation": activation, "seed": k, "kind": kind, "power": power, **found})
    return rows


def spread(values: list[float]) -> str:
    """Return mean, smallest and largest value as text."""
    return f"{np.mean(values):.2f} ({np.min(values):.2f} to {np.max(values):.2f})"


def summary(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return what the rows of a kind say together, by the name of the measure."""
    width, falls = (
        [w for r in rows for w in r["width over error"]],
        [r["smallest width over largest before"] for r in rows],
    )
    return {
        "truth at ±6 in the 90 % interval": f"{sum(sum(r['holds']) for r in rows)} of {len(width)}",
        "truth in it for 4 < |x| < 6": f"{np.mean([r['share'] for r in rows]):.1%}",
        "width at ±6 over the error": f"{np.median(width):.1f}, at most {np.max(width):.1f}",
        f"  at most {FACTOR}": f"{sum(w <= FACTOR for w in width)} of {len(width)}",
        "width over the largest before": f"{min(falls):.3f} or more",
        f"  at least {SLACK}": f"{sum(f >= SLACK for f in falls)} of {len(rows)}",
        "aleatoric std inside": spread([r["aleatoric"] for r in rows]),
        "coverage inside": spread([r["coverage"] for r in rows]),
        "power": spread([r["power"] for r in rows]),
    }


def main() -> None:
    parser = option_parser(__doc__, "fading_cubic")
    parser.add_argument("--activations", default="silu,relu,tanh", help="names with commas")
    parser.add_argument("--seeds", type=int, default=10, help="number of data sets")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    record = new_record("fading_cubic", resolve_device(options.device), rows=[])
    for activation in options.activations.split(","):
        rows = rows_of(activation, options)
        record["rows"] += rows
        columns = {kind: summary([r for r in rows if r["kind"] == kind]) for kind in KINDS}
        print(f"\n{activation:34s}" + "".join(f"{kind:>22s}" for kind in KINDS))
        for name in columns["plain"]:
            print(f"{name:34s}" + "".join(f"{columns[kind][name]:>22s}" for kind in KINDS), flush=True)
        write_record(options.out, record)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
