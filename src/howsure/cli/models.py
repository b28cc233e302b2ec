"""Model files as the shell uses them: a regressor, and the record of the fit that made it."""

import math
import os
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsure.cli import scoring
from howsure.errors import InputError

if TYPE_CHECKING:
    from howsure.estimators import Regressor

__all__ = ["check_output", "check_outside", "finite", "load", "save"]

RECORD = "record"  # the name of the record of a fit in error messages


def load(folder: Path) -> "Regressor":
    """Return the regressor of a model file, with what `howsure fit` recorded about it.

    An attribute is added: ``record_``, a dict that is empty for a model that was saved from Python.
    """
    from howsure import estimators
    from howsure.storage import reading_model

    model: Any = estimators.load(folder)
    if not isinstance(model, estimators.Regressor):
        raise InputError(f"{folder} holds a model of images; the command line is for tables")
    with reading_model(folder):
        model.record_ = _checked(model.record_)
    return model


def _checked(record: Any) -> dict[str, Any]:
    """Return the record of a fit, after checking that it is what verbs read."""
    if record:
        held_out = record["held_out"]
        counts, words = [record["rows"], held_out["rows"]], [held_out["how"], *record["scores"]]
        if not all(type(count) is int for count in counts) or not all(isinstance(word, str) for word in words):
            raise InputError(f"its {RECORD} does not say what was held out")
        for found in record["scores"].values():
            list(scoring.compare_models(found))  # raises if a score is no number
    return dict(record)


def save(model: "Regressor", folder: Path, record: dict[str, Any]) -> None:
    """Write a model file with the record of its fit."""
    model = copy(model)
    model.record_ = finite(record)
    try:
        model.save(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error


def finite(value: Any) -> Any:
    """Return plain values with None in the place of numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_outside(output: Path, model: Path) -> None:
    """Raise if an output would replace the model."""
    if output.resolve() == model.resolve():
        raise InputError(f"{output} is the model; name another place with -o")


def check_output(folder: Path, force: bool) -> None:
    """Raise unless a model can be saved under this name, before anything takes time.

    A file is replaced only if it is a model of ours, and only with ``force``.
    """
    from howsure.storage import is_model

    if folder.exists():
        if not is_model(folder):
            raise InputError(f"{folder} exists and is not a model", hint="choose another name with -o")
        if not force:
            raise InputError(f"{folder} holds a model already; --force replaces it, -o names another file")
    parent = next(each for each in folder.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{folder} cannot be written: {parent} is no folder to write to; choose another name with -o")
