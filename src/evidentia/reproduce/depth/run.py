"""Monocular depth: Table S1, Figures 4 to 6 and S4 to S7, on NYU Depth v2, or on rendered rooms where there is no data.

Networks are trained trial by trial and group by group; a unit is one group in one trial. Test images, and images from
elsewhere, are only ever asked about.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evidentia.datasets.folder import find_data
from evidentia.distributions import Mixture
from evidentia.errors import InputError
from evidentia.fitting import Pairs, fit_images
from evidentia.methods import LeastSquares
from evidentia.metrics import auroc
from evidentia.nn import UNet
from evidentia.persistence import is_model, load_model, save_model
from evidentia.record import FILE, environment, read_record, refusing_damage, write_record
from evidentia.reproduce.depth.data import DepthData, load, mean_of_training
from evidentia.reproduce.depth.figures import write_figures
from evidentia.reproduce.depth.maps import MAPS, write_maps
from evidentia.reproduce.depth.page import page
from evidentia.reproduce.depth.plan import GROUPS, SHOWN_EPSILONS, STUDIED, NetworkGroup, Plan
from evidentia.reproduce.depth.recipes import METHODS, group_recipe, plan_record
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
from evidentia.reproduce.depth.tables import table_rows, write_tables
from evidentia.reproduce.protocol import Context, clear_checkpoints, file_name, open_run
from evidentia.reproduce.timing import captured, median_seconds
from evidentia.training import resolve_device
from evidentia.training.images import to_network

__all__ = ["page", "run", "run_on", "write_results"]

Record = dict[str, Any]
RESULTS = ("networks", "results", "seconds")  # the entries of a record that a run adds to
SHOWN = 3  # test images whose maps are drawn


def run(plan: Plan, context: Context) -> list[Path]:
    """Load the images, and run what the record in ``context.out`` does not have yet; return what was written."""
    data = load(find_data(context.data), plan.pairs, plan.outside, plan.split_seed, plan.quick, plan.cut)
    if data.synthetic:
        why = "a quick run" if plan.quick else "no data folder"
        print(f"{why}: synthetic rooms, and synthetic streets as the images from elsewhere")
    return run_on(data, plan, context)


def run_on(data: DepthData, plan: Plan, context: Context) -> list[Path]:
    """Run what the record in ``context.out`` does not have yet on these images; return what was written."""
    device, out = resolve_device(context.device), context.out
    new: Record = {
        "run": "depth",
        "plan": plan_record(plan),
        "data": data.record(),
        "environment": environment(device),
        "mean of training": mean_of_training(data),
        **{key: {} for key in RESULTS},
    }
    with open_run(out, new, same=("plan", "data"), kept=RESULTS, check=_check_results) as record:
        data = data.to(device)
        if device.type == "cpu" and not plan.quick:
            print("without a GPU this takes days; --quick shows all of it, --groups and --steps run a part", flush=True)
        for trial in range(plan.trials):
            for name in plan.group_names:
                done = all(len(record["results"].get(model, ())) > trial for model in plan.group(name).models)
                if done or trial >= plan.trials_of(name):
                    continue
                print(f"trial {trial + 1}: {name}", flush=True)
                _run_group(plan, name, trial, data, context, record)
                write_record(out, record)
        if set(record["results"]) - set(record["seconds"]):
            record["seconds"] = _answer_seconds(plan, list(record["results"]), data)
            write_record(out, record)
        clear_checkpoints(out)
        with refusing_damage(out):
            return [out / FILE, *write_results(read_record(out), out)]


def write_results(record: Record, folder: Path) -> list[Path]:
    """Write the tables of a record and, where its maps lie in the folder, the figures; return the paths."""
    return write_tables(record, folder) + (write_figures(record, folder) if (folder / MAPS).is_dir() else [])


def _check_results(record: Record) -> None:
    """Raise unless a record has networks, results and times by name, and tables can be made of its trials."""
    for key in RESULTS:
        if not isinstance(record[key], dict):
            raise TypeError(f"{key} is no table")
    for name, trials in record["results"].items():
        if not isinstance(trials, list) or not all({"rmse", "nll"} <= trial.keys() for trial in trials):
            raise TypeError(f"the trials of {name!r} are not whole")
    if record["results"]:
        table_rows(record)


# Networks and models --------------------------------------------------------------------------------------------------


def _run_group(plan: Plan, name: str, trial: int, data: DepthData, context: Context, record: Record) -> None:
    """Train the networks of one group and trial, and add the results of each model made of them to the record."""
    group = plan.group(name)
    networks, training = _trained_networks(plan, name, trial, data, context)
    record["networks"].setdefault(name, []).append(training)
    for model, count in group.models.items():
        result, maps = _study(_model(group, networks, count), model, trial, data)
        record["results"].setdefault(model, []).append(result)
        if maps:
            write_maps(context.out, model, maps)


def _trained_networks(
    plan: Plan, name: str, trial: int, data: DepthData, context: Context
) -> tuple[list[UNet], list[dict[str, Any]]]:
    """Return the networks of one trial and how their training went; those that were stored are read."""
    method, recipe, device = METHODS[plan.group(name).method], group_recipe(plan, name), data.test.images.device
    networks, training = [], []
    for member in range(plan.group(name).network_count):
        unit, seed = f"{name}_{trial}_{member}", 1000 * trial + member
        folder, checkpoint = context.out / "networks" / file_name(unit), context.checkpoint(unit)
        if is_model(folder):
            tensors, summary = load_model(folder)
            network = recipe.network(method.outputs, seed)
            try:
                network.load_state_dict(tensors)
            except RuntimeError as error:
                raise InputError(f"{folder} does not hold the network of this run; delete it to train it") from error
        else:
            network, result = fit_images(
                method, data.train, data.validation, recipe,
                seed=seed, device=device, checkpoint=checkpoint, progress=context.progress,
            )  # fmt: skip
            summary = {"seed": seed} | result.summary(0)
            save_model(folder, dict(network.state_dict()), summary)
            checkpoint.unlink(missing_ok=True)
        networks.append(_ready(network, device))
        training.append(summary)
    return networks, training


def _ready(network: UNet, device: torch.device) -> UNet:
    return network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload, no-any-return]


def _model(group: NetworkGroup, networks: list[UNet], count: int) -> DepthModel:
    device = next(networks[0].parameters()).device
    precision = "bfloat16" if device.type == "cuda" else "float32"
    if group.has_draws:
        return DepthModel(METHODS[group.method], (networks[0],), count, precision)
    return DepthModel(METHODS[group.method], tuple(networks[:count]), 0, precision)


# Results --------------------------------------------------------------------------------------------------------------


def _study(model: DepthModel, name: str, trial: int, data: DepthData) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all numbers of one model, and for the first trial the maps to draw."""
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
        asked = {"inside": data.test.images, "outside": data.outside}
        pixels = data.train.images, data.validation.images
        scores["feature distance"], blocks = density_scores(model.networks[0], *pixels, asked)
        result["auroc of every block"] = [auroc(block["inside"], block["outside"]) for block in blocks]
        if len(model.networks[0].head) > 1:
            result["alive channels"] = alive_channels(model.networks[0], data.test.images)
    result |= curves(seen, data.test.maps) | {"unfamiliar": {key: _sides(value) for key, value in scores.items()}}
    result["attack"] = _rounded(attack(model, data.test))
    return result, _maps(model, seen, outside, data) if trial == 0 else {}


def _sides(scores: dict[str, Tensor]) -> dict[str, Any]:
    """Return the scores of test images and of images from elsewhere, with the AUROC of telling them apart."""
    inside, outside = (scores[side].double().numpy() for side in ("inside", "outside"))
    return {"auroc": auroc(inside, outside), "inside": _rounded(inside), "outside": _rounded(outside)}


def _rounded(value: Any) -> Any:
    """Return numbers that are only drawn with five digits, so that a record stays small enough to be read."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | np.ndarray):
        return [_rounded(v) for v in value]
    return float(f"{value:.5g}")


def _maps(model: DepthModel, seen: Look, outside: Look, data: DepthData) -> dict[str, Any]:
    """Return a few test images, evenly spaced, with the model's maps of them; the first also under attack."""
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
    moved = torch.cat([(x + e * sign).clamp(0, 1) for e in SHOWN_EPSILONS])
    attacked = look(model, moved)
    found |= {"attacked_image": (255 * moved.permute(0, 2, 3, 1)).byte(), "attacked_mean": attacked.mean}
    if attacked.epistemic is not None:
        found["attacked_epistemic"] = attacked.epistemic.sqrt()
    return found


# Times ----------------------------------------------------------------------------------------------------------------


def _answer_seconds(plan: Plan, models: list[str], data: DepthData) -> dict[str, dict[str, float]]:
    """Return how long each model takes to answer, measured in one go to be comparable; weights do not matter."""
    print("how long each model takes to answer", flush=True)
    found, device = {}, data.test.images.device
    for name in GROUPS:
        group, recipe = plan.group(name), group_recipe(plan, name)
        wanted = {model: count for model, count in group.models.items() if model in models}
        outputs = METHODS[group.method].outputs
        networks = [_ready(recipe.network(outputs, i), device) for i in range(group.network_count if wanted else 0)]
        for model, count in wanted.items():
            found[model] = _seconds(_model(group, networks, count), data.test.images)
    return found


def _seconds(model: DepthModel, images: Tensor) -> dict[str, float]:
    """Return the seconds of answering one image, and 32 or all there are.

    On CUDA the call is captured: otherwise kernel-launch overhead dominates the timing.
    """
    found = {}
    for count in (1, min(32, len(images))):
        with torch.no_grad():
            call = captured(partial(_moments, model, images[:count]), images.device)
            found[str(count)] = median_seconds(call, images.device)
    return found


def _moments(model: DepthModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return prediction and variance of every pixel."""
    predictive = Mixture(model(images).predictive(), validate_args=False)
    return predictive.mean, predictive.variance
