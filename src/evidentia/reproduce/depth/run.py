"""Monocular depth: Table S1, Figures 4 to 6 and S4 to S7, on NYU Depth v2, or on rendered rooms where there is no data.

Networks are trained group by group and trial by trial; what a group says is in the record before the next begins, so
that a run that was killed goes on from there. Test images, and images from elsewhere, are only ever asked about.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evidentia.datasets import depth as images
from evidentia.datasets import rooms
from evidentia.distributions import Mixture
from evidentia.errors import InputError
from evidentia.files import write_whole
from evidentia.fitting import ImageRecipe, Pairs, fit_images
from evidentia.methods import Evidential, GaussianLikelihood, LeastSquares, Method
from evidentia.metrics import auroc
from evidentia.nn import UNet
from evidentia.persistence import is_model, load_model, save_model
from evidentia.record import environment, read_record, refusing_damage, run_folder, write_record
from evidentia.reproduce.depth.figures import DRAWN_EPSILONS, maps_file
from evidentia.reproduce.depth.figures import file_name as _file
from evidentia.reproduce.depth.scores import (
    DepthModel,
    Look,
    alive_channels,
    attack,
    choose_noise,
    curves,
    density_scores,
    fast_gradient_sign,
    look,
    score,
)
from evidentia.reproduce.depth.tables import rows_of, write_results
from evidentia.reproduce.timing import captured, median_seconds
from evidentia.training import Augmentation, Settings, resolve_device
from evidentia.training.images import to_network

__all__ = ["FRAME", "GROUPS", "RECIPE", "DepthData", "Group", "Plan", "load", "run"]

SHOWN = 3  # test images whose maps are drawn
# The labelled images of NYU have a white frame, two pixels wide at 160×128, which JPEG smears over its blocks of eight.
# Whatever has no such frame looks unfamiliar (studies/depth_unfamiliar.py): so it is cut off, and as much elsewhere.
FRAME = 8


@dataclass(frozen=True)
class Group:
    """Networks that are trained alike, and the models made of them: each a number of networks, or of dropout draws."""

    method: Method
    models: Mapping[str, int]  # name → networks, or draws
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the recipe
    settings: Mapping[str, Any] = field(default_factory=dict)  # to its settings
    trials: int | None = None  # fewer than the plan has

    @property
    def draws(self) -> bool:
        return bool(self.changes.get("dropout"))

    @property
    def members(self) -> int:
        """How many networks a trial needs."""
        return 1 if self.draws else max(self.models.values())


# chosen on validation pairs by studies/depth_recipe.py: what a crop enlarges is nearer, and its disparities grow;
# the rate was chosen for each loss, and only for evidential networks a lower one did better
RECIPE = ImageRecipe(augmentation=Augmentation(rescale=True))
SLOWER = {"learning_rate": 3e-4}
# the paper's own settings (Sec. S3.1): Adam at 5e-5, λ = 0.1, 60,000 iterations, weights by validation RMSE
PAPER = {"head": "paper", "augmentation": None, "select": "rmse"}
PAPER_SETTINGS = {
    "steps": 60_000,
    "learning_rate": 5e-5,
    "warmup": 0.0,
    "schedule": "constant",
    "clip": None,
    "evaluate_every": 500,
}
TOLD = ("steps", "learning_rate", "schedule")  # of the settings of each group, in the record
DRAWS = (2, 5, 10, 25, 50)
GROUPS: Mapping[str, Group] = {
    "evidential": Group(Evidential(0.01), {"evidential": 1}, settings=SLOWER),
    "evidential, paper's head": Group(Evidential(0.01), {"evidential, paper's head": 1}, {"head": "paper"}, SLOWER),
    "gaussian": Group(
        GaussianLikelihood(), {"gaussian": 1, "ensemble of likelihoods, 2": 2, "ensemble of likelihoods, 5": 5}
    ),
    "dropout of likelihoods": Group(
        GaussianLikelihood(), {f"dropout of likelihoods, {n}": n for n in DRAWS}, {"dropout": 0.1}
    ),
    "ensemble": Group(LeastSquares(), {"plain": 1, "ensemble, 2": 2, "ensemble, 5": 5}, {"select": "rmse"}),
    "dropout": Group(LeastSquares(), {f"dropout, {n}": n for n in DRAWS}, {"dropout": 0.1, "select": "rmse"}),
    "evidential, paper's settings": Group(
        Evidential(0.1), {"evidential, paper's settings": 1}, PAPER, PAPER_SETTINGS, trials=1
    ),
}
# those that are looked at from every side; of the others Table S1 has the errors
STUDIED = (
    "evidential",
    "evidential, paper's head",
    "evidential, paper's settings",
    "gaussian",
    "ensemble, 5",
    "ensemble of likelihoods, 5",
    "dropout, 10",
    "dropout of likelihoods, 10",
)


@dataclass(frozen=True)
class Plan:
    """What to run."""

    groups: tuple[str, ...] = tuple(GROUPS)
    trials: int = 3
    recipe: ImageRecipe = RECIPE
    split_seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        for name in self.groups:
            if name not in GROUPS:
                raise InputError(f"unknown group {name!r}; known are {'; '.join(GROUPS)}")
        if self.trials < 1:
            raise InputError(f"trials must be at least 1, got {self.trials}")

    def group(self, name: str) -> Group:
        """With a quick plan two networks and five draws stand for more, and all but the paper have one rate."""
        group = GROUPS[name]
        if not self.quick:
            return group
        settings = ("learning_rate", "schedule") if group.settings is PAPER_SETTINGS else ()
        most = 5 if group.draws else 2
        kept = {m: min(n, most) for m, n in group.models.items() if n <= most or m in STUDIED}
        return replace(group, models=kept, settings={key: group.settings[key] for key in settings})

    def recipe_of(self, group: Group) -> ImageRecipe:
        return replace(self.recipe, settings=replace(self.recipe.settings, **group.settings), **group.changes)

    def about(self) -> dict[str, Any]:
        """What two runs must have in common to be one."""
        recipes = {name: self.recipe_of(self.group(name)) for name in GROUPS}
        groups = {name: {key: getattr(r.settings, key) for key in TOLD} for name, r in recipes.items()}
        return {"recipe": asdict(self.recipe), "groups": groups, "split_seed": self.split_seed, "quick": self.quick}


def quick_plan() -> Plan:
    """Small networks and few steps, to see that it works: just enough to do better than the mean of the maps."""
    settings = Settings(steps=500, learning_rate=3e-3, evaluate_every=50)
    flips = Augmentation(zoom=1, colour=0.0)  # rooms are many, and steps too few to learn what never changes
    recipe = replace(RECIPE, width=8, blocks=4, batch_size=8, augmentation=flips, settings=settings)
    return Plan(trials=1, recipe=recipe, quick=True)


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthData:
    """Pairs to learn from, to choose by and to test on, and images from elsewhere."""

    name: str
    train: Pairs
    validation: Pairs
    test: Pairs
    outside_name: str
    outside: Tensor
    synthetic: bool = False
    note: str = ""
    cut: int = 0  # pixels that were cut from each side of all images

    def to(self, device: torch.device) -> "DepthData":
        parts = {name: getattr(self, name).to(device) for name in ("train", "validation", "test", "outside")}
        return replace(self, **parts)


def load(
    data: Path | None = None,
    pairs: Path | None = None,
    outside: Path | None = None,
    seed: int = 0,
    quick: bool = False,
    cut: int | None = None,
) -> DepthData:
    """NYU and CamVid of a data folder, pairs and images of one's own, or synthetic rooms and streets without either.

    From each side of all images, here and elsewhere, ``cut`` pixels are cut: the frame of NYU, and nothing from rooms.
    """
    if pairs is not None or (data is not None and not quick):
        inside = images.load_nyu(pairs) if pairs is not None else images.nyu(data)
    else:
        size, count = ((48, 64), 1200) if quick else ((128, 160), 1600)
        inside = rooms.rooms(count, seed, size)
    if outside is not None:
        elsewhere, name = images.load_images(outside, inside.image.shape[1:3]), outside.stem
    elif inside.synthetic:
        elsewhere, name = rooms.outdoors(max(32, len(inside) // 8), seed, inside.image.shape[1:3]), "synthetic streets"
    else:
        elsewhere, name = images.camvid(data), "CamVid"
    cut = (0 if inside.synthetic else FRAME) if cut is None else cut
    size = inside.image.shape[1:3]
    if not 0 <= 2 * cut < min(size):
        raise InputError(f"cut must be at least 0 and leave something of images of {size[1]}×{size[0]}, got {cut}")
    kept = slice(None), *(slice(cut, length - cut) for length in size)
    train, validation, test = (
        Pairs(torch.from_numpy(inside.image[rows][kept]), torch.from_numpy(inside.disparity[rows][kept]))
        for rows in images.split_scenes(inside.scene, seed=seed)
    )
    outside_images = torch.from_numpy(elsewhere[kept])
    return DepthData(inside.name, train, validation, test, name, outside_images, inside.synthetic, inside.note, cut)


def mean_of_training(data: DepthData) -> dict[str, float]:
    """The per-pixel mean and deviation of the training maps: what a model must beat to have any skill."""
    mean = data.train.maps.nanmean(0)
    variance = (data.train.maps - mean).square().nanmean(0)
    y = data.test.maps
    known = ~y.isnan()
    nll = 0.5 * ((2 * torch.pi * variance).log() + (y - mean).square() / variance)
    error = (y - mean)[known]
    values = {"rmse": error.square().mean().sqrt(), "mae": error.abs().mean(), "nll": nll[known].mean()}
    return {name: float(value) for name, value in values.items()}


# Runs -----------------------------------------------------------------------------------------------------------------


def run(plan: Plan, out: Path, data: DepthData, device: str = "auto", progress: bool = True) -> list[Path]:
    """Run what the record in ``out`` does not have yet, trial by trial and group by group; return what was written."""
    place = resolve_device(device)
    with run_folder(out, "depth") as before:
        record = _begin(plan, out, data, place, before)
        data = data.to(place)
        if place.type == "cpu" and not plan.quick:
            print("without a GPU this takes days; --quick shows all of it, --groups and --steps run a part", flush=True)
        for trial in range(plan.trials):
            for name in plan.groups:
                group = plan.group(name)
                done = all(len(record["results"].get(model, ())) > trial for model in group.models)
                if done or trial >= (group.trials or plan.trials):
                    continue
                print(f"trial {trial + 1}: {name}", flush=True)
                _run_group(plan, name, trial, data, out, record, progress)
                write_record(out, record)
        if set(record["results"]) - set(record["seconds"]):
            record["seconds"] = _all_seconds(plan, list(record["results"]), data)
            write_record(out, record)
        with contextlib.suppress(OSError):  # someone keeps other files in it
            (out / "unfinished").rmdir()
        with refusing_damage(out):
            return [out / "record.json", *write_results(read_record(out), out)]


def _run_group(
    plan: Plan, name: str, trial: int, data: DepthData, out: Path, record: dict[str, Any], progress: bool
) -> None:
    """Train the networks of one group and trial, and add to the record what each model made of them says."""
    group, place = plan.group(name), data.test.images.device
    networks, training = _train(plan, name, trial, data, out, place, progress)
    record["networks"].setdefault(name, []).append(training)
    for model, count in group.models.items():
        result, maps = _study(_model(group, networks, count, place), model, trial, data)
        record["results"].setdefault(model, []).append(result)
        if maps:
            _save_maps(out / "maps" / maps_file(model), maps)


def _begin(
    plan: Plan, out: Path, data: DepthData, place: torch.device, before: dict[str, Any] | None
) -> dict[str, Any]:
    """A new record, with the results of the earlier run in this folder if its plan and data were the same."""
    counts = {part: len(getattr(data, part).maps) for part in ("train", "validation", "test")}
    about = {"name": data.name, "synthetic": data.synthetic, "note": data.note, "cut": data.cut, **counts}
    about |= {"outside": data.outside_name, "outside images": len(data.outside)}
    record: dict[str, Any] = {
        "run": "depth",
        "plan": plan.about(),
        "data": about,
        "environment": environment(place),
        "mean of training": mean_of_training(data),
        "networks": {},
        "results": {},
        "seconds": {},
    }
    if before is None:
        return record
    with refusing_damage(out):
        for key in ("plan", "data"):
            if before[key] != _as_json(record[key]):
                raise InputError(
                    f"{out} holds a run with another {key}; choose another folder with --out, or delete it"
                )
        _check_results(before)
        record |= {key: before[key] for key in ("networks", "results", "seconds")}
        write_record(out, record)
        if record["results"]:
            rows_of(record)  # tables can be made of what is there
    return record


def _check_results(record: dict[str, Any]) -> None:
    """Raise unless a record has networks, results and times by name, and every trial its errors."""
    for key in ("networks", "results", "seconds"):
        if not isinstance(record[key], dict):
            raise TypeError(f"{key} is no table")
    for name, trials in record["results"].items():
        if not isinstance(trials, list) or not all({"rmse", "nll"} <= trial.keys() for trial in trials):
            raise TypeError(f"the trials of {name!r} are not whole")


def _as_json(value: Any) -> Any:
    """As it comes back from a file: lists for tuples."""
    if isinstance(value, dict):
        return {k: _as_json(v) for k, v in value.items()}
    return [_as_json(v) for v in value] if isinstance(value, list | tuple) else value


def _train(
    plan: Plan, name: str, trial: int, data: DepthData, out: Path, place: torch.device, progress: bool
) -> tuple[list[UNet], list[dict[str, Any]]]:
    """The networks of one trial; those that are there already are read."""
    group, networks, training = plan.group(name), [], []
    recipe = plan.recipe_of(group)
    for member in range(group.members):
        folder = out / "networks" / f"{_file(name)}_{trial}_{member}"
        seed = 1000 * trial + member
        if is_model(folder):
            tensors, told = load_model(folder)
            network = recipe.network(group.method.outputs, seed)
            try:
                network.load_state_dict(tensors)
            except RuntimeError as error:
                raise InputError(f"{folder} does not hold the network of this run; delete it to train it") from error
        else:
            checkpoint = out / "unfinished" / f"{folder.name}.ckpt"
            network, result = fit_images(
                group.method, data.train, data.validation, recipe,
                seed=seed, device=place, checkpoint=checkpoint, progress=progress,
            )  # fmt: skip
            told = {"seed": seed} | result.summary(0)
            save_model(folder, dict(network.state_dict()), told)
            checkpoint.unlink(missing_ok=True)
        networks.append(_ready(network, place))
        training.append(told)
    return networks, training


def _ready(network: UNet, place: torch.device) -> UNet:
    return network.to(place, memory_format=torch.channels_last).eval()  # type: ignore[call-overload, no-any-return]


def _model(group: Group, networks: list[UNet], count: int, place: torch.device) -> DepthModel:
    precision = "bfloat16" if place.type == "cuda" else "float32"
    if group.draws:
        return DepthModel(group.method, (networks[0],), count, precision)
    return DepthModel(group.method, tuple(networks[:count]), 0, precision)


def _study(model: DepthModel, name: str, trial: int, data: DepthData) -> tuple[dict[str, Any], dict[str, Any]]:
    """All numbers of one model, and for the first trial the maps to draw."""
    result: dict[str, Any] = {"trial": trial, "count": model.draws or len(model.networks)}
    result["parameters"] = model.parameters
    torch.manual_seed(trial)  # of dropout's draws
    model = choose_noise(model, data.validation)
    seen = look(model, data.test.images, data.test.maps)
    result |= score(seen, data.test.maps)
    if isinstance(model.method, LeastSquares):
        result["noise"] = model.method.noise
    if name not in STUDIED:
        return result, {}
    outside = look(model, data.outside)
    scores = {key: {"inside": seen.scores[key], "outside": outside.scores[key]} for key in seen.scores}
    if len(model.networks) == 1 and not model.draws:
        groups = {"inside": data.test.images, "outside": data.outside}
        pixels = data.train.images, data.validation.images
        scores["feature distance"], blocks = density_scores(model.networks[0], *pixels, groups)
        result["auroc of every block"] = [auroc(block["inside"], block["outside"]) for block in blocks]
        if len(model.networks[0].head) > 1:
            result["alive channels"] = alive_channels(model.networks[0], data.test.images)
    result |= curves(seen, data.test.maps) | {"unfamiliar": {key: _both(value) for key, value in scores.items()}}
    result["attack"] = _rounded(attack(model, data.test))
    return result, _maps(model, seen, outside, data) if trial == 0 else {}


def _both(groups: dict[str, Tensor]) -> dict[str, Any]:
    inside, outside = (groups[side].double().numpy() for side in ("inside", "outside"))
    return {"auroc": auroc(inside, outside), "inside": _rounded(inside), "outside": _rounded(outside)}


def _rounded(value: Any) -> Any:
    """Five digits of what is there for pictures: a record is read by people too."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | np.ndarray):
        return [_rounded(v) for v in value]
    return float(f"{value:.5g}")


def _maps(model: DepthModel, seen: Look, outside: Look, data: DepthData) -> dict[str, Any]:
    """Some test images, evenly spaced, with what the model says about them; the first also under attack."""
    rows = np.linspace(0, len(seen.mean) - 1, SHOWN).round().astype(int)
    there = np.linspace(0, len(outside.mean) - 1, SHOWN).round().astype(int)
    found = {
        "image": data.test.images[rows],
        "truth": data.test.maps[rows],
        "mean": seen.mean[rows],
        "outside_image": data.outside[there],
        "outside_mean": outside.mean[there],
    }
    for name in ("aleatoric", "epistemic"):
        for prefix, which, at in (("", seen, rows), ("outside_", outside, there)):
            variance = getattr(which, name)
            if variance is not None:
                found[f"{prefix}{name}"] = variance[at].sqrt()
    first = Pairs(data.test.images[rows[:1]], data.test.maps[rows[:1]])
    x = to_network(first.images)
    sign = fast_gradient_sign(model, x, first.maps)
    moved = torch.cat([(x + e * sign).clamp(0, 1) for e in DRAWN_EPSILONS])
    attacked = look(model, moved)
    found |= {"attacked_image": (255 * moved.permute(0, 2, 3, 1)).byte(), "attacked_mean": attacked.mean}
    if attacked.epistemic is not None:
        found["attacked_epistemic"] = attacked.epistemic.sqrt()
    return found


def _save_maps(path: Path, maps: dict[str, Any]) -> None:
    arrays = {name: np.asarray(value.cpu()) for name, value in maps.items()}
    # for pictures: three digits will do
    small: dict[str, Any] = {n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in arrays.items()}
    write_whole(path, lambda file: np.savez_compressed(file, **small))


def _all_seconds(plan: Plan, models: list[str], data: DepthData) -> dict[str, dict[str, float]]:
    """How long each model takes to answer, all in one go so that they can be compared; weights do not matter."""
    print("how long each model takes to answer", flush=True)
    found, place = {}, data.test.images.device
    for group in map(plan.group, GROUPS):
        wanted, recipe = {n: c for n, c in group.models.items() if n in models}, plan.recipe_of(group)
        networks = [
            _ready(recipe.network(group.method.outputs, i), place) for i in range(group.members if wanted else 0)
        ]
        for name, count in wanted.items():
            found[name] = _seconds(_model(group, networks, count, place), data.test.images)
    return found


def _seconds(model: DepthModel, test: Tensor) -> dict[str, float]:
    """Of answering one image, and 32 (or all there are); on CUDA captured, or launches would be all there is to see."""
    found = {}
    for count in (1, min(32, len(test))):
        with torch.no_grad():
            found[str(count)] = median_seconds(captured(partial(_ask, model, test[:count]), test.device), test.device)
    return found


def _ask(model: DepthModel, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Prediction and variance of every pixel."""
    predictive = Mixture(model(asked).predictive(), validate_args=False)
    return predictive.mean, predictive.variance
