"""How the recipe of the depth networks was chosen: candidates compared on the validation pairs of NYU Depth v2 alone.

    python benchmarks/depth_recipe.py --data DATA --out docs/results/depth_recipe [--steps 6000] [--only "no crops"]

Each candidate changes one thing in the recipe. The split is that of `evidentia reproduce depth`; its test pairs are not
looked at. A run that was stopped goes on with the next candidate.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from evidentia.methods import Evidential, ImageRecipe, fit_images
from evidentia.record import environment, read_record, write_record
from evidentia.reproduce import depth
from evidentia.reproduce.depth_scores import DepthModel, look, score
from evidentia.training import Augmentation, resolve_device

# what is changed: the recipe, its settings, or λ
CANDIDATES = {
    "as it is": {},
    "no crops": {"augmentation": Augmentation(zoom=1)},
    "crops to a half": {"augmentation": Augmentation(zoom=2)},
    "what is enlarged comes nearer": {"augmentation": Augmentation(rescale=True)},
    "to a half, and nearer": {"augmentation": Augmentation(zoom=2, rescale=True)},
    "stronger colours": {"augmentation": Augmentation(colour=0.5)},
    "no augmentation": {"augmentation": None},
    "averaged weights": {"average": 0.999},
    "weight decay 0.05": {"weight_decay": 0.05},
    "dropout 0.1": {"dropout": 0.1},
    "learning rate 3e-4": {"learning_rate": 3e-4},
    "learning rate 2e-3": {"learning_rate": 2e-3},
    "half of the steps": {"steps": 0.5},
    "λ = 0": {"weight": 0.0},
    "λ = 0.1": {"weight": 0.1},
}


def recipe_with(changes: dict, steps: int) -> tuple[Evidential, ImageRecipe]:
    recipe, changes = ImageRecipe(), dict(changes)
    method = Evidential(changes.pop("weight", 0.01))
    changed = {"steps": int(steps * changes.pop("steps", 1))}
    changed |= {name: changes.pop(name) for name in list(changes) if hasattr(recipe.settings, name)}
    return method, replace(recipe, settings=replace(recipe.settings, **changed), **changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/depth_recipe"))
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--only", help="names of candidates, with semicolons")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    data = depth.load(options.data)
    train, validation = data.train.to(device), data.validation.to(device)
    record = {"run": "depth_recipe", "environment": environment(device), "steps": options.steps, "rows": []}
    if (options.out / "record.json").exists():
        record["rows"] = read_record(options.out)["rows"]
    names = options.only.split(";") if options.only else list(CANDIDATES)
    for name in (n for n in names if n not in [row["candidate"] for row in record["rows"]]):
        method, recipe = recipe_with(CANDIDATES[name], options.steps)
        network, training = fit_images(method, train, validation, recipe, seed=100, device=device)
        numbers = score(look(DepthModel(method, (network,)), validation.images, validation.maps), validation.maps)
        row = {"candidate": name, "seed": 100, "steps": recipe.settings.steps}
        row |= {"nll": numbers["nll"], "rmse": numbers["rmse"], "best_step": int(training.best_step[0])}
        record["rows"].append(row | {"seconds": training.seconds, "diverged": bool(training.diverged[0])})
        write_record(options.out, record)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in record["rows"][-1].items()}, flush=True)


if __name__ == "__main__":
    main()
