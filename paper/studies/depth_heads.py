"""Compares the paper's evidential head with the direct one: how many channels of the paper's head are alive.

    python paper/studies/depth_heads.py --data DATA --out paper/docs/results/depth_heads [--seeds 8] [--steps 3000]

The paper's head maps 32 channels to four, applies a ReLU, and makes the four output maps of these. A channel that is
positive at no pixel has no gradient; with one channel left, all four maps are functions of one number. For each seed a
network is trained with this head, with the direct head, and with this head at a lower learning rate, and measured on
validation pairs. Without data the images are synthetic rooms. A run that was stopped continues with what is missing.
"""

from dataclasses import replace

import torch

from howsure.images import ImageRecipe
from howsure.likelihoods import Evidential
from howsure.training import resolve_device
from howsure_paper.datasets.folder import find_data
from howsure_paper.depth.data import DepthData, load
from howsure_paper.depth.recipes import RECIPE
from howsure_paper.depth.scores import alive_channels
from howsure_paper.record import find_record, write_record
from shared import device_and_record, fit_depth, new_record, option_parser

METHOD = Evidential(0.01)
KINDS = {"paper's head": ("paper", 1e-3), "direct": ("direct", 1e-3), "paper's head, slower": ("paper", 3e-4)}


def recipe_of(kind: str, steps: int, width: int) -> ImageRecipe:
    """Return the experiment's recipe with the head and the learning rate of a kind of network."""
    head, rate = KINDS[kind]
    settings = replace(RECIPE.settings, steps=steps, learning_rate=rate)
    return replace(RECIPE, head=head, width=width, settings=settings)


def train_and_measure(data: DepthData, recipe: ImageRecipe, seed: int, device: torch.device) -> dict:
    """Return the best validation NLL and, for the paper's head, the share of pixels where each channel is positive."""
    model = fit_depth(data.train, data.validation, METHOD, recipe, seed, device)
    row = model.training[0].summary(0)
    row["nll"] = row.pop("best_score")
    if recipe.head == "paper":
        row["alive"] = alive_channels(model.networks[0], data.validation.images)
    return row


def main() -> None:
    parser = option_parser(__doc__, "depth_heads")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=RECIPE.width)
    options = parser.parse_args()
    device = resolve_device(options.device)
    data = load(find_data(options.data)).to(device)
    record = new_record("depth_heads", device, data=data.name, cut=data.cut)
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
            row[kind] = train_and_measure(data, recipe, row["seed"], device)
            write_record(options.out, record)
            print(f"seed {row['seed']}, {kind}: {row[kind]}", flush=True)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
