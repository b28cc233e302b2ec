"""Values out of the record of a depth run, whose results are, for each model, a list of trials."""

import functools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure_paper.protocol import Record

__all__ = [
    "Array",
    "Trials",
    "attack_values",
    "data_name",
    "shown_score",
    "studied_models",
    "trial_mean",
    "trial_values",
]

Array = NDArray[np.float64]
Trials = list[dict[str, Any]]


def data_name(record: Record) -> str:
    """Return the name of the data set; synthetic rooms are always called so."""
    return "synthetic rooms" if record["data"]["synthetic"] else str(record["data"]["name"])


def studied_models(record: Record) -> dict[str, Trials]:
    """Return the models that have curves, scores of unfamiliar images and attacks; the others have errors only."""
    return {name: trials for name, trials in record["results"].items() if trials and "cutoff" in trials[0]}


def shown_score(scores: Iterable[str]) -> str:
    """Return the score of an image that tables and figures show: the epistemic entropy, or else the total one."""
    return "epistemic entropy" if "epistemic entropy" in scores else "total entropy"


def trial_values(trials: Trials, *path: str | int) -> Array:
    """Return what is at the end of a path of keys in each trial that has it; NaN where it was not finite."""
    found = []
    for trial in trials:
        try:
            found.append(functools.reduce(operator.getitem, path, trial))  # type: ignore[arg-type]
        except (KeyError, IndexError):
            continue
    return np.array(found, dtype=float)


def trial_mean(trials: Trials, *path: str | int) -> float | None:
    """Return the mean over the trials that have the value; None if none has it."""
    values = trial_values(trials, *path)
    return float(values.mean()) if len(values) else None


def attack_values(trials: Trials, *path: str | int) -> Array:
    """Return a value of the attacked images, trials × ε."""
    return np.stack([trial_values(trial["attack"], *path) for trial in trials])
