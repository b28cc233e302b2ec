"""Predicts y = x³ + noise beyond the training range, by mixtures of eight networks with evidence by conjugacy.

    python paper/studies/evidence_cubic.py [--sets 8] [--jobs 2] [--activations silu,relu,tanh]

For each activation and data set: 1,000 training rows with x in [−4, 4] and noise of deviation 3, the default recipe
with the activation, and evidence relative to the edge of the training rows, as the regressor has it for a single
feature. Prints how many truths at x = ±6 lie in the 90% interval, the median half-width there and the median error, how
many models widen from 4 to 6, 8 and 12 on both sides, and the coverage of 1,000 new rows inside the range.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from howsure.likelihoods import Evidential
from howsure.tables.evidence import add_evidence
from howsure.tables.members import Member, hold_in_turn
from howsure.tables.target import Target
from howsure.tables.views import Views
from howsure.tables.width import with_width
from howsure.training import resolve_device
from howsure_paper.record import write_record
from howsure_paper.training import fit
from shared import device_and_record, new_record, option_parser

MEMBERS, ROWS, NOISE = 8, 1000, 3.0
FAR = np.array([4.0, 6.0, 8.0, 12.0])  # widths do not fall from one to the next


def cubic(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x in [−4, 4] and x³ with noise."""
    random = np.random.default_rng(seed)
    x = random.uniform(-4, 4, (rows, 1))
    return x, x[:, 0] ** 3 + random.normal(0, NOISE, rows)


def row_of(task: tuple[str, int, int | None]) -> dict[str, Any]:
    """Fit one mixture and return its scores."""
    activation, seed, steps = task
    torch.set_num_threads(1)
    x, y = cubic(seed, ROWS)
    parts = hold_in_turn(np.arange(ROWS), MEMBERS, seed)
    members = [Member(*part, 100 * seed + k) for k, part in enumerate(parts)]
    method = Evidential(0.01)
    recipe = method.recipe(ROWS)
    recipe = replace(recipe, network=replace(recipe.network, activation=activation))
    if steps is not None:
        settings = replace(recipe.settings, steps=steps, evaluate_every=max(1, steps // 5))
        recipe = replace(recipe, settings=settings)
    views = Views(x, members)
    model = add_evidence(fit(method, x, y, members, recipe=recipe, device="cpu"), views, None)
    model = with_width(model, views, Target(y))
    ends = np.array([[-6.0], [6.0]])
    p, truth = model.predict(ends), ends[:, 0] ** 3
    interval = p.interval(0.9)
    widths = [np.diff(model.predict(side * FAR[:, None]).interval(0.9))[:, 0] for side in (-1, 1)]
    inside_x, inside_y = cubic(1000 + seed, ROWS)
    inside = model.predict(inside_x).interval(0.9)
    return {
        "activation": activation,
        "seed": seed,
        "held": int(((interval[:, 0] <= truth) & (truth <= interval[:, 1])).sum()),
        "half_width": float(np.diff(interval).mean() / 2),
        "error": float(np.abs(p.mean - truth).mean()),
        "widens": all(bool((np.diff(width) >= 0).all()) for width in widths),
        "coverage_inside": float(((inside[:, 0] <= inside_y) & (inside_y <= inside[:, 1])).mean()),
    }


def main() -> None:
    parser = option_parser(__doc__, "evidence_cubic")
    parser.add_argument("--sets", type=int, default=8, help="data sets of each activation")
    parser.add_argument("--activations", default="silu,relu,tanh")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    tasks = [(name, seed, options.steps) for name in options.activations.split(",") for seed in range(options.sets)]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(row_of, tasks))
    for name in options.activations.split(","):
        own = [row for row in rows if row["activation"] == name]
        width, error = (float(np.median([row[key] for row in own])) for key in ("half_width", "error"))
        print(
            f"{name:6s} truth at ±6 held {sum(r['held'] for r in own)} of {2 * len(own)}; half-width {width:.0f}, "
            f"error {error:.0f}; widens {sum(r['widens'] for r in own)} of {len(own)}; "
            f"coverage inside {np.mean([r['coverage_inside'] for r in own]):.3f}"
        )
    record = new_record("evidence_cubic", resolve_device("cpu"), rows=rows)
    write_record(options.out, record)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
