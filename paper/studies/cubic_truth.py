"""Compares the uncertainty that mixtures of evidential networks state with the known noise of y = x³ + ε.

Twenty data sets of 1,000 points in ±4, with ε of deviation 3, and one mixture of eight networks for each; all networks
are trained at once. The epistemic deviation at ±6, where there are no data, is compared with that inside.

    python paper/studies/cubic_truth.py [--device cuda] [--members 8]
"""

import argparse

import numpy as np

from howsure import metrics
from howsure.likelihoods import Evidential
from howsure.tables.members import hold_out
from howsure.training import resolve_device
from howsure_paper.datasets.cubic import cubic
from howsure_paper.training import fit
from shared import recipe_for

ROWS = 1000
NOISE = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=20, help="number of data sets")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--weight", type=float, default=0.01, help="λ, for standardised targets")
    options = parser.parse_args()
    seeds = range(options.seeds)
    tables = [cubic(ROWS, NOISE, seed=seed) for seed in seeds]
    x, y = np.concatenate([t[0] for t in tables]), np.concatenate([t[1] for t in tables])
    m = options.members
    members = [
        member for k in seeds for member in hold_out(np.arange(k * ROWS, (k + 1) * ROWS), range(1000 * k, 1000 * k + m))
    ]
    recipe = recipe_for(len(members[0].train), options.steps)
    fitted = fit(Evidential(options.weight), x, y, members, recipe=recipe, device=options.device, progress=True)

    print(f"{'seed':>4s}{'in 90 %':>9s}{'aleatoric':>11s}{'(paper)':>9s}{'epistemic':>11s}{'at ±6':>8s}{'ratio':>7s}")
    rows = []
    for k in seeds:
        chosen = range(k * m, (k + 1) * m)
        new_x, new_y = cubic(4000, NOISE, seed=10_000 + k)
        inside = fitted.predict(new_x, chosen)
        outside = fitted.predict(np.array([[-6.0], [6.0]]), chosen)
        paper = np.sqrt(np.median(inside.decompose("paper").aleatoric))
        epistemic = np.median(inside.epistemic_std)
        far = outside.epistemic_std.mean()
        rows.append(
            (metrics.coverage(inside, new_y), np.median(inside.aleatoric_std), paper, epistemic, far, far / epistemic)
        )
        print(f"{k:4d}{rows[-1][0]:9.3f}{rows[-1][1]:11.2f}{paper:9.2f}{epistemic:11.2f}{far:8.2f}{rows[-1][5]:7.1f}")
    table = np.array(rows)
    print(f"coverage {table[:, 0].mean():.3f} on average, {table[:, 0].min():.3f} to {table[:, 0].max():.3f}")
    print(
        f"aleatoric std {table[:, 1].min():.2f} to {table[:, 1].max():.2f} (truth {NOISE:g}); by the paper's formula "
        f"{table[:, 2].min():.2f} to {table[:, 2].max():.2f}"
    )
    device = resolve_device(options.device)
    print(
        f"epistemic std at ±6 over its median inside, median over the seeds, on {device}: {np.median(table[:, 5]):.1f}"
    )


if __name__ == "__main__":
    main()
