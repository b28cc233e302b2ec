"""Compares recipes for the depth networks on the validation pairs of NYU Depth v2.

    python paper/studies/depth_recipe.py --data DATA --out paper/docs/results/depth_recipe [--only nearer] [--seeds 0]

Each candidate changes a few things in `ImageRecipe()`. «Nearer» means that a crop, which enlarges what it shows, also
enlarges its disparities. The choice is `RECIPE` in `howsure_paper.depth.recipes`. The split is that of `howsure
reproduce depth`, whose test pairs are not used. Without data the images are synthetic rooms. A run that was stopped
continues with the next candidate.
"""

import itertools
from dataclasses import replace

import torch

from howsure.images import Augmentation, ImageRecipe, Pairs
from howsure.likelihoods import Evidential, Method, NormalLikelihood
from howsure.training import resolve_device
from howsure_paper.baselines import LeastSquares
from howsure_paper.datasets.folder import find_data
from howsure_paper.depth.data import load
from howsure_paper.depth.scores import error_scores, summarize
from howsure_paper.record import find_record, write_record
from shared import device_and_record, fit_depth, new_record, option_parser

NEARER = Augmentation(rescale=True)
BOLD = Augmentation(color=0.5, rescale=True)
# changes to ImageRecipe(), to its settings (steps as a share of --steps), or to λ
CANDIDATES = {
    "flips, crops, colours": {},
    "no crops": {"augmentation": Augmentation(zoom=1)},
    "crops to a half": {"augmentation": Augmentation(zoom=2)},
    "stronger colours": {"augmentation": Augmentation(color=0.5)},
    "no augmentation": {"augmentation": None},
    "weight decay 0.05": {"weight_decay": 0.05},
    "dropout 0.1": {"dropout": 0.1},
    "learning rate 3e-4": {"learning_rate": 3e-4},
    "learning rate 2e-3": {"learning_rate": 2e-3},
    "λ = 0": {"weight": 0.0},
    "λ = 0.1": {"weight": 0.1},
    "nearer": {"augmentation": NEARER},
    "nearer, to a half": {"augmentation": Augmentation(zoom=2, rescale=True)},
    "nearer, stronger colours": {"augmentation": BOLD},
    "nearer, stronger colours, decay": {"augmentation": BOLD, "weight_decay": 0.05},
    "nearer, stronger colours, dropout 0.1": {"augmentation": BOLD, "dropout": 0.1},
    "nearer, learning rate 3e-4": {"augmentation": NEARER, "learning_rate": 3e-4},
    "nearer, learning rate 2e-3": {"augmentation": NEARER, "learning_rate": 2e-3},
    "nearer, 3e-4, two thirds of the steps": {"augmentation": NEARER, "learning_rate": 3e-4, "steps": 2 / 3},
    "nearer, half of the steps": {"augmentation": NEARER, "steps": 0.5},
    "nearer, twice the steps": {"augmentation": NEARER, "steps": 2},
    "nearer, stronger colours, twice the steps": {"augmentation": BOLD, "steps": 2},
}
METHODS = {"evidential": Evidential(0.01), "gaussian": NormalLikelihood(), "least squares": LeastSquares()}


def recipe_with(changes: dict, method: Method, steps: int, width: int) -> tuple[Method, ImageRecipe]:
    """Return the method and the recipe of a candidate.

    As in the experiment, the weights with the best validation NLL are kept, for least squares those with the best RMSE.
    """
    select = "rmse" if isinstance(method, LeastSquares) else "nll"
    recipe, changes = ImageRecipe(width=width, select=select), dict(changes)
    if "weight" in changes:
        method = Evidential(changes.pop("weight"))
    changed = {"steps": round(steps * changes.pop("steps", 1))}
    changed |= {name: changes.pop(name) for name in list(changes) if hasattr(recipe.settings, name)}
    return method, replace(recipe, settings=replace(recipe.settings, **changed), **changes)


def train_and_score(
    method: Method, recipe: ImageRecipe, train: Pairs, validation: Pairs, seed: int, device: torch.device
) -> dict:
    """Return the scores of one network on the validation pairs, and how it was trained."""
    model = fit_depth(train, validation, method, recipe, seed, device)
    summary = summarize(model.predict_batches(validation.images), validation.maps)
    scores = error_scores(summary, validation.maps)
    row = {"seed": seed, "steps": recipe.settings.steps, "nll": scores["nll"], "rmse": scores["rmse"]}
    return row | model.training[0].summary(0)


def main() -> None:
    parser = option_parser(__doc__, "depth_recipe")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--width", type=int, default=ImageRecipe().width)
    parser.add_argument("--only", help="names of candidates with semicolons (default: all)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["evidential"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    options = parser.parse_args()
    device = resolve_device(options.device)
    data = load(find_data(options.data))
    train, validation = data.train.to(device), data.validation.to(device)
    record = new_record("depth_recipe", device, steps=options.steps, rows=[])
    if before := find_record(options.out):
        record["rows"] = before["rows"]
    keys = ("candidate", "method", "seed", "cut")
    done = {tuple(row[key] for key in keys) for row in record["rows"]}
    names = options.only.split(";") if options.only else list(CANDIDATES)
    for key in itertools.product(names, options.methods, options.seeds, [data.cut]):
        if key in done:
            continue
        method, recipe = recipe_with(CANDIDATES[key[0]], METHODS[key[1]], options.steps, options.width)
        row = dict(zip(keys, key, strict=True)) | train_and_score(method, recipe, train, validation, key[2], device)
        record["rows"].append(row)
        write_record(options.out, record)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
