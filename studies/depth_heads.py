"""Why the paper's evidential head can fail: how many of its four channels live, before training and after it.

    python studies/depth_heads.py --data DATA --out docs/results/depth_heads [--seeds 8] [--steps 3000]

The head squeezes 32 channels through four and a ReLU before the four maps. A channel that is positive at no pixel has
no gradient; with one channel left all four maps are functions of one number. For each seed networks are trained with
this head, with the direct head, and with this head at a lower learning rate; all is measured on validation pairs. A run
that was stopped goes on with what is missing.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from evidentia.fitting import ImageRecipe, fit_images
from evidentia.methods import Evidential
from evidentia.record import environment, find_record, write_record
from evidentia.reproduce.depth import run as depth
from evidentia.reproduce.depth.scores import alive_channels
from evidentia.training import resolve_device

METHOD = Evidential(0.01)
KINDS = {"paper's head": ("paper", 1e-3), "direct": ("direct", 1e-3), "paper's head, slower": ("paper", 3e-4)}


def recipe_of(kind: str, steps: int, width: int) -> ImageRecipe:
    head, rate = KINDS[kind]
    settings = replace(depth.RECIPE.settings, steps=steps, learning_rate=rate)
    return replace(depth.RECIPE, head=head, width=width, settings=settings)


def one_fit(data: depth.DepthData, recipe: ImageRecipe, seed: int, device) -> dict:
    """The best validation NLL, and of the paper's head the share of pixels at which each channel is positive."""
    network, training = fit_images(METHOD, data.train, data.validation, recipe, seed=seed, device=device)
    row = training.summary(0)
    row["nll"] = row.pop("best_score")
    return row if recipe.head == "direct" else row | {"alive": alive_channels(network, data.validation.images)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="without it, synthetic rooms")
    parser.add_argument("--out", type=Path, default=Path("out/depth_heads"))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=depth.RECIPE.width)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    data = depth.load(options.data).to(device)
    record = {"run": "depth_heads", "environment": environment(device), "data": data.name, "cut": data.cut}
    record |= {"steps": options.steps, "width": options.width, "rates": {k: rate for k, (_, rate) in KINDS.items()}}
    before = find_record(options.out)
    rows = {row["seed"]: row for row in before["rows"]} if before else {}
    for seed in range(100, 100 + options.seeds):
        rows.setdefault(seed, {"seed": seed})
    record["rows"] = list(rows.values())
    for kind in KINDS:
        recipe = recipe_of(kind, options.steps, options.width)
        for row in (row for row in record["rows"] if kind not in row):
            if recipe.head == "paper":
                untrained = recipe.network(METHOD.outputs, row["seed"]).to(device)
                row["before"] = alive_channels(untrained, data.validation.images)
            row[kind] = one_fit(data, recipe, row["seed"], device)
            write_record(options.out, record)
            print(f"seed {row['seed']}, {kind}: {row[kind]}", flush=True)


if __name__ == "__main__":
    main()
