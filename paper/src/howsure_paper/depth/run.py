"""Monocular depth: Table S1, Figures 4 to 6 and S4 to S7, on NYU Depth v2, or on rendered rooms where there is no data.

Networks are trained trial by trial and group by group; a unit is one group in one trial. Test images, and images from
elsewhere, are only ever asked about.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.errors import InputError
from howsure.images import fit_images, to_network
from howsure.metrics import auroc
from howsure.nn.appearance import MIN_IMAGES
from howsure.prediction import Prediction
from howsure.storage import is_model
from howsure.training import resolve_device
from howsure_paper.arrays import Arrays, write_arrays
from howsure_paper.baselines import LeastSquares
from howsure_paper.datasets.folder import find_data
from howsure_paper.depth.data import DepthData, load, mean_of_training
from howsure_paper.depth.figures import MAPS, write_figures
from howsure_paper.depth.models import DepthModel
from howsure_paper.depth.page import page
from howsure_paper.depth.plan import FADED, GROUPS, SHOWN_EPSILONS, STUDIED, NetworkGroup, Plan
from howsure_paper.depth.recipes import METHODS, group_recipe, plan_record
from howsure_paper.depth.scores import (
    Summary,
    alive_channels,
    attack,
    curves,
    density_scores,
    error_scores,
    gradient_sign,
    histogram_scores,
    summarize,
)
from howsure_paper.depth.tables import table_rows, write_tables
from howsure_paper.figures import import_matplotlib
from howsure_paper.protocol import Context, Record, file_name, open_run, write_from_record
from howsure_paper.record import environment, write_record
from howsure_paper.timing import captured, median_seconds

__all__ = ["page", "run", "run_on", "write_results"]

RESULTS = ("networks", "results", "seconds")  # the entries of a record that a run adds to
SHOWN = 3  # test images whose maps are drawn


def run(plan: Plan, context: Context) -> list[Path]:
    """Load the images, and run what the record in ``context.out`` does not have yet; return what was written."""
    data = load(find_data(context.data), plan.pairs, plan.outside, plan.seed, plan.quick, plan.cut)
    if data.synthetic:
        why = "a quick run" if plan.quick else "no data folder"
        print(f"{why}: synthetic rooms, and synthetic streets as the images from elsewhere")
    return run_on(data, plan, context)


def run_on(data: DepthData, plan: Plan, context: Context) -> list[Path]:
    """Run what the record in ``context.out`` does not have yet on these images; return what was written."""
    import_matplotlib()  # without it there is no figure, which is said before any training
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
                model, training = _trained_networks(plan, name, trial, data, context)
                record["networks"].setdefault(name, []).append(training)
                for each, result in _study_models(plan.group(name), model, trial, data, out).items():
                    record["results"].setdefault(each, []).append(result)
                write_record(out, record)
        if set(record["results"]) - set(record["seconds"]):
            record["seconds"] = _answer_seconds(plan, list(record["results"]), data)
            write_record(out, record)
        return write_from_record(out, write_results)


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


def _trained_networks(
    plan: Plan, name: str, trial: int, data: DepthData, context: Context
) -> tuple[DepthModel, list[dict[str, Any]]]:
    """Return the networks of one group and trial as one model, and how their training went."""
    units = [(f"{name}_{trial}_{member}", 1000 * trial + member) for member in range(plan.group(name).network_count)]
    models = [_trained_network(plan, name, unit, seed, data, context) for unit, seed in units]
    return DepthModel.join(models), [{"seed": m.seed} | m.training[0].summary(0) for m in models]


def _trained_network(plan: Plan, name: str, unit: str, seed: int, data: DepthData, context: Context) -> DepthModel:
    """Return one trained network: the one that was stored, or else a new one, which is then stored."""
    method, recipe, device = METHODS[plan.group(name).method], group_recipe(plan, name), data.test.images.device
    folder, checkpoint = context.out / "networks" / file_name(unit), context.checkpoint(unit)
    if is_model(folder):
        try:
            stored = DepthModel.load(folder).to(device)
        except InputError as error:
            raise InputError(
                f"{folder} does not hold the network of this run ({error}); delete it to train it"
            ) from error
        if (stored.method, stored.recipe, stored.seed) != (method, recipe, seed) or len(stored.networks) != 1:
            raise InputError(f"{folder} does not hold the network of this run; delete it to train it")
        return stored
    fitted = fit_images(
        data.train,
        method=method,
        validation=data.validation,
        recipe=recipe,
        standardize=False,  # as in the paper: λ has the unit 1/y
        keep_diverged=True,  # a result like any other
        evidence="plain",  # as in the paper: a model with fading is studied beside it
        seed=seed,
        device=device,
        checkpoint=checkpoint,
        progress=context.progress,
    )
    model = DepthModel.of(fitted, seed)
    model.save(folder)
    checkpoint.unlink(missing_ok=True)
    return model


def _model(group: NetworkGroup, networks: DepthModel, count: int) -> DepthModel:
    """Return the model of so many networks, or of so many draws of one."""
    return replace(networks, draws=count) if group.has_draws else replace(networks, networks=networks.networks[:count])


# Results --------------------------------------------------------------------------------------------------------------


def _study_models(
    group: NetworkGroup, networks: DepthModel, trial: int, data: DepthData, out: Path
) -> dict[str, dict[str, Any]]:
    """Return the results of every model of a group; for the first trial write the maps of the studied ones."""
    results = {}
    for name, count in group.models.items():
        results[name], maps = _study(_model(group, networks, count), name, trial, data)
        if maps:
            write_arrays(out / MAPS, name, maps)
    return results


def _study(model: DepthModel, name: str, trial: int, data: DepthData) -> tuple[dict[str, Any], Arrays]:
    """Return all numbers of one model, and for the first trial the maps to draw."""
    draws = torch.Generator(model.device).manual_seed(trial)  # of dropout
    model = model.choose_noise(data.validation, draws)
    inside = summarize(model.predict_batches(data.test.images, draws), data.test.maps)
    result: dict[str, Any] = {"trial": trial, "count": model.members, "parameters": model.parameters}
    result |= error_scores(inside, data.test.maps)
    if isinstance(model.method, LeastSquares):
        result["noise"] = model.method.noise
    if name not in STUDIED:
        return result, {}
    outside = summarize(model.predict_batches(data.outside, draws))
    unfamiliar = {score: _sides(inside.images[score], outside.images[score]) for score in inside.images}
    if model.members == 1:
        (network,) = model.networks
        images = {"inside": data.test.images, "outside": data.outside}
        distance, blocks = density_scores(network, data.train.images, data.validation.images, images)
        unfamiliar["feature distance"] = _sides(distance["inside"], distance["outside"])
        result["auroc of every block"] = [auroc(block["inside"], block["outside"]) for block in blocks]
        if name == FADED and len(data.train) >= MIN_IMAGES:
            result |= _study_fading(model, data)
        if len(network.head) > 1:
            result["alive channels"] = alive_channels(network, data.test.images)
    result |= curves(inside, data.test.maps) | {"unfamiliar": unfamiliar}
    result["attack"] = _rounded(attack(model, data.test, generator=draws))
    return result, _maps(model, inside, outside, data, draws) if trial == 0 else {}


def _study_fading(model: DepthModel, data: DepthData) -> dict[str, Any]:
    """Return what fading makes of an evidential network, and what colours alone tell: the same images, no new training.

    Attacked images are not among them: their distance from clean ones is small, and the attack is on the mean.
    """
    faded = model.fit_fading(data.train.images, data.validation.images, data.validation.maps)
    inside = summarize(faded.predict_batches(data.test.images), data.test.maps)
    outside = summarize(faded.predict_batches(data.outside))
    unfamiliar = {score: _sides(inside.images[score], outside.images[score]) for score in inside.images}
    images = {"inside": data.test.images, "outside": data.outside}
    calibration = curves(inside, data.test.maps)["calibration"]["predictive"]["error"]
    return {
        "fading": error_scores(inside, data.test.maps) | {"calibration": calibration, "unfamiliar": unfamiliar},
        "colour histograms": _sides(**histogram_scores(data.train.images, images)),
    }


def _sides(inside: Tensor, outside: Tensor) -> dict[str, Any]:
    """Return the scores of test images and of images from elsewhere, with the AUROC of telling them apart."""
    scores = {"inside": inside.double().numpy(), "outside": outside.double().numpy()}
    return {"auroc": auroc(**scores)} | {side: _rounded(values) for side, values in scores.items()}


def _rounded(value: Any) -> Any:
    """Return numbers that are only drawn with five digits, so that a record stays small enough to be read."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | np.ndarray):
        return [_rounded(v) for v in value]
    return float(f"{value:.5g}")


def _maps(model: DepthModel, inside: Summary, outside: Summary, data: DepthData, draws: torch.Generator) -> Arrays:
    """Return a few test images, evenly spaced, with the model's maps of them; the first also under attack.

    Maps are float16, which is enough for pictures.
    """
    rows, there = (np.linspace(0, len(each.mean) - 1, SHOWN).round().astype(int) for each in (inside, outside))
    first = data.test.select(rows[:1])
    x = to_network(first.images)
    sign = gradient_sign(model, x, first.maps, draws)
    moved = torch.cat([(x + epsilon * sign).clamp(0, 1) for epsilon in SHOWN_EPSILONS])
    attacked = summarize(model.predict_batches(moved, draws))
    maps: dict[str, NDArray[Any]] = {
        "image": data.test.images[rows].cpu().numpy(),
        "truth": data.test.maps[rows].cpu().numpy(),
        "outside_image": data.outside[there].cpu().numpy(),
        "attacked_image": (255 * moved.permute(0, 2, 3, 1)).byte().cpu().numpy(),
    }
    shown: tuple[tuple[str, Summary, Any], ...] = (
        ("", inside, rows),
        ("outside_", outside, there),
        ("attacked_", attacked, slice(None)),
    )
    for prefix, summary, chosen in shown:
        maps[f"{prefix}mean"] = summary.mean[chosen]
        for part, variance in (("aleatoric", summary.aleatoric), ("epistemic", summary.epistemic)):
            if variance is not None:
                maps[f"{prefix}{part}"] = np.sqrt(variance[chosen])
    return {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in maps.items()}


# Times ----------------------------------------------------------------------------------------------------------------


def _answer_seconds(plan: Plan, models: list[str], data: DepthData) -> dict[str, dict[str, float]]:
    """Return how long each model takes to answer, measured in one go to be comparable; weights do not matter."""
    print("how long each model takes to answer", flush=True)
    found: dict[str, dict[str, float]] = {}
    for name in GROUPS:
        group, recipe = plan.group(name), group_recipe(plan, name)
        wanted = {model: count for model, count in group.models.items() if model in models}
        if wanted:
            method = METHODS[group.method]
            networks = tuple(recipe.network(method.outputs, seed).eval() for seed in range(group.network_count))
            joined = DepthModel(method, networks, recipe).to(data.test.images.device)
            found |= {m: _seconds(_model(group, joined, count), data.test.images) for m, count in wanted.items()}
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
    predictive = Prediction(model.answers(images), members=0).distribution
    return predictive.mean, predictive.variance
