"""Compares the epistemic uncertainty that methods state with the spread of networks fitted to fresh data.

y = x³ + ε with x in ±4, ε of deviation 3, and 100, 500 or 1,000 points. The reference is that of Jürgens et al. (2024,
arXiv:2402.09056): a hundred networks, each fitted to a data set of its own, and the deviation of their means at every
x. It is what a single network's mean would do if the data were drawn again. Beside it stands the error of these
networks, which is larger where all of them are wrong in the same way: beyond the data.

    python paper/studies/fading_truth.py [--rows 100,500,1000] [--device cuda] [--out out/fading_truth]
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from howsure.fitting import Fitted, fit, hold_out
from howsure.fitting.fading import choose_power, rows_of_a_fold, with_fading
from howsure.methods import Evidential, Method, NormalLikelihood, Recipe
from howsure.training import resolve_device
from howsure_paper.baselines import BayesByBackprop, MCDropout
from howsure_paper.datasets.cubic import cubic
from howsure_paper.record import find_record, write_record
from shared import device_and_record, new_record, option_parser

NOISE = 3.0
GRID = np.linspace(-3.8, 3.8, 77)
PLACES = {"|x| < 3.8": GRID, "x = ±5": np.array([-5.0, 5.0]), "x = ±6": np.array([-6.0, 6.0])}
DRAWS = 100  # of dropout and of the weights' distribution: more than by default, so that chance matters little
REFERENCE, ERROR = "networks refitted to fresh data", "  their error"

Deviations = dict[str, list[float]]  # by place, for every model


def deviations(variance: Callable[[np.ndarray], np.ndarray]) -> Deviations:
    """Return the root of the mean variance at every place: x (N,) → variances (models, N) → one number per model."""
    return {place: np.sqrt(variance(x).mean(-1)).tolist() for place, x in PLACES.items()}


def fitted_to(
    method: Method, rows: int, seeds: range, each: int, options: argparse.Namespace
) -> tuple[Fitted, np.ndarray, np.ndarray, list]:
    """Return networks fitted to data sets of these seeds, so many for each, with the data and the rows of each."""
    tables = [cubic(rows, NOISE, seed=seed) for seed in seeds]
    x, y = np.concatenate([t[0] for t in tables]), np.concatenate([t[1] for t in tables])
    members = []
    for k, seed in enumerate(seeds):
        own = np.arange(k * rows, (k + 1) * rows)
        members += hold_out(own, range(1000 * seed, 1000 * seed + each), method.validation_fraction)
    return fit(method, x, y, members, recipe=recipe_for(method, rows, options), device=options.device), x, y, members


def recipe_for(method: Method, rows: int, options: argparse.Namespace) -> Recipe:
    """Return the default recipe of a method for so many rows, with other steps if they are given."""
    recipe = method.recipe(rows)
    if options.steps is None:
        return recipe
    every = min(recipe.settings.evaluate_every, options.steps)
    return replace(recipe, settings=replace(recipe.settings, steps=options.steps, evaluate_every=every))


def reference(rows: int, options: argparse.Namespace) -> dict[str, Deviations]:
    """Return the deviation of the means of networks that were each fitted to a fresh data set, and their error."""
    seeds = range(options.seeds, options.seeds + options.refits)
    fitted = fitted_to(Evidential(0.01), rows, seeds, 1, options)[0]

    def means(x: np.ndarray) -> np.ndarray:
        return fitted.answers(x[:, None]).predictive().mean.numpy()

    return {
        REFERENCE: deviations(lambda x: means(x).var(0, ddof=1, keepdims=True)),
        ERROR: deviations(lambda x: ((means(x) - x**3) ** 2).mean(0, keepdims=True)),
    }


def stated_by(fitted: Fitted, each: int, count: int, way: str = "identified") -> Deviations:
    """Return the epistemic deviation that several models state, with so many networks each."""

    def variance(x: np.ndarray) -> np.ndarray:
        models = [fitted.predict(x[:, None], range(k * each, (k + 1) * each)) for k in range(count)]
        return np.stack([model.decompose(way).epistemic for model in models])

    return deviations(variance)


def half_intervals(fitted: Fitted, each: int, count: int) -> Deviations:
    """Return half of the width of 68 % intervals, which contain the noise: a deviation that heavy tails do not move."""

    def squared(x: np.ndarray) -> np.ndarray:
        models = [fitted.predict(x[:, None], range(k * each, (k + 1) * each)) for k in range(count)]
        return np.stack([np.diff(model.interval(0.68))[:, 0] / 2 for model in models]) ** 2

    return deviations(squared)


def evidential(rows: int, options: argparse.Namespace) -> dict[str, Deviations]:
    """Return what evidential mixtures and single networks state."""
    method, members = Evidential(0.01), options.members
    fitted, x, y, own = fitted_to(method, rows, range(options.seeds), members, options)
    folds = recipe_for(method, rows_of_a_fold(rows), options)
    powers = [
        choose_power(method, x, y, np.arange(k * rows, (k + 1) * rows), k, recipe=folds, device=options.device)
        for k in range(options.seeds)
    ]
    faded = with_fading(fitted, x, own, 0.0)
    assert faded.fading is not None
    faded.fading.set_power([power for power in powers for _ in range(members)])
    first = range(0, options.seeds * members, members)
    print(f"{rows} rows: powers {', '.join(f'{power:g}' for power in powers)}", flush=True)
    return {
        "evidential mixture, fading": stated_by(faded, members, options.seeds),
        "  half of its 68 % interval": half_intervals(faded, members, options.seeds),
        "evidential mixture, plain": stated_by(fitted, members, options.seeds),
        "  half of its 68 % interval, plain": half_intervals(fitted, members, options.seeds),
        "one network, fading": stated_by(faded.select(first), 1, options.seeds),
        "one network, the paper's β/(ν(α−1))": stated_by(fitted.select(first), 1, options.seeds, "paper"),
    }


def baselines(rows: int, options: argparse.Namespace) -> dict[str, Deviations]:
    """Return what the other methods state."""
    draws = options.draws
    methods = {
        "deep ensemble": (NormalLikelihood(), options.members),
        "MC dropout": (MCDropout(draws), 1),
        "Bayes by backprop": (BayesByBackprop(draws), 1),
    }
    found = {}
    for name, (method, each) in methods.items():
        fitted = fitted_to(method, rows, range(options.seeds), each, options)[0]
        found[name] = stated_by(fitted, each, options.seeds)
    return found


def main() -> None:
    parser = option_parser(__doc__, "fading_truth")
    parser.add_argument("--rows", default="100,500,1000", help="points of a data set, numbers with commas")
    parser.add_argument("--refits", type=int, default=100, help="networks of the reference")
    parser.add_argument("--seeds", type=int, default=5, help="data sets that each method is fitted to")
    parser.add_argument("--members", type=int, default=8, help="networks of a mixture and of an ensemble")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of dropout and of the weights' distribution")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipes')")
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("refits", "seeds", "members", "draws", "steps")}
    new = new_record("fading_truth", resolve_device(options.device), parameters=settings, stated={})
    record = find_record(options.out) or new
    if record["parameters"] != settings:
        parser.error(f"{options.out} holds a run with other options, {record['parameters']}; choose another folder")
    sizes = [int(rows) for rows in options.rows.split(",")]
    for rows in sizes:
        stated = record["stated"].setdefault(str(rows), {})
        for part in (reference, evidential, baselines):
            if part.__name__ not in stated:  # a run that was stopped continues
                stated[part.__name__] = part(rows, options)
                write_record(options.out, record)
    print_table(record, sizes)
    print(device_and_record(record, options.out))


def print_table(record: dict[str, Any], sizes: list[int]) -> None:
    """Print the median over the data sets of what each method states, by place and number of rows."""
    by_rows = {rows: {k: v for part in record["stated"][str(rows)].values() for k, v in part.items()} for rows in sizes}
    for place in PLACES:
        print(f"\nmedian epistemic std, {place:15s}" + "".join(f"{rows:>9d}" for rows in sizes))
        for name in by_rows[sizes[0]]:
            values = [np.median(by_rows[rows][name][place]) for rows in sizes]
            print(f"{name:37s}" + "".join(f"{value:9.2f}" for value in values))


if __name__ == "__main__":
    main()
