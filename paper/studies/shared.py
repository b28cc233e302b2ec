"""Options, recipes, fits and records that the studies share."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from howsure.images import ImageRecipe, Pairs, fit_images
from howsure.likelihoods import Evidential, Method, Recipe
from howsure_paper.baselines import LeastSquares
from howsure_paper.depth.models import DepthModel
from howsure_paper.record import environment
from howsure_paper.uci.methods import best_recipe

__all__ = [
    "Tables",
    "device_and_record",
    "fit_depth",
    "new_record",
    "option_parser",
    "recipe_for",
    "shifts",
]

Tables = tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]


def option_parser(description: str | None, study: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all studies share.

    Args:
        description: Docstring of the script, whose first line --help shows.
        study: Name of the study, and of its folder below ``out/``.
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="data folder (default: the environment variable HOWSURE_DATA)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--out", type=Path, default=Path("out") / study, help="folder for the record")
    return parser


def new_record(study: str, device: torch.device, **entries: Any) -> dict[str, Any]:
    """Return the start of a record: the study, versions and device, and what else is given."""
    return {"run": study, "environment": environment(device), **entries}


def device_and_record(record: dict[str, Any], out: Path) -> str:
    """Return the last line that a study prints."""
    return f"device: {record['environment']['device']['name']}; record: {out / 'record.json'}"


def recipe_for(rows: int, steps: int | None = None) -> Recipe:
    """Return the recipe of the committed records for so many rows, with another number of steps if one is given."""
    recipe = best_recipe(Evidential(), rows)
    if steps is None:
        return recipe
    settings = replace(recipe.settings, steps=steps, evaluate_every=min(recipe.settings.evaluate_every, steps))
    return replace(recipe, settings=settings)


def fit_depth(
    train: Pairs, validation: Pairs, method: Method, recipe: ImageRecipe, seed: int, device: torch.device
) -> DepthModel:
    """Train one network on disparities in 1/m, which are not standardized, and choose the noise of least squares."""
    chosen = {"method": method, "recipe": recipe, "seed": seed, "device": device}
    evidence = "plain" if isinstance(method, LeastSquares) else "fading"
    fitted = fit_images(train, validation=validation, standardize=False, evidence=evidence, **chosen)
    return DepthModel.of(fitted, seed).choose_noise(validation)


def shifts(folder: str) -> dict[str, Tables]:
    """Return, by the name of the shift, the table that is learned from and that of the other kind."""
    red, white = (pd.read_csv(f"{folder}/winequality-{color}.csv", sep=";") for color in ("red", "white"))
    bikes = pd.read_csv(f"{folder}/bike_hour.csv")
    bikes["dteday"] = pd.to_datetime(bikes["dteday"], format="%m/%d/%y")
    early, late = bikes[bikes.yr == 0], bikes[bikes.yr == 1]
    houses = pd.read_csv(f"{folder}/california_housing.csv")
    inland, coast = houses[houses.ocean_proximity == "INLAND"], houses[houses.ocean_proximity != "INLAND"]
    apart = {"yr", "instant", "casual", "registered", "ocean_proximity"}  # what tells the kinds apart, or the target

    def table(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, np.ndarray]:
        return frame.drop(columns=[c for c in frame if c in apart | {target}]), frame[target].to_numpy(float)

    return {
        "red to white wine": (*table(red, "quality"), *table(white, "quality")),
        "bikes, 2011 to 2012": (*table(early, "cnt"), *table(late, "cnt")),
        "inland to coast": (*table(inland, "median_house_value"), *table(coast, "median_house_value")),
    }
