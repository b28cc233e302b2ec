"""Model files as the commands use them: a regressor, the record of the fit that made it, and its training rows."""

import base64
import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.cli import scoring
from howsure.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = ["check_output", "check_outside", "finite", "load", "recorded", "row_hashes", "save", "training_rows_among"]

RECORD = "record"  # the name among the settings of a model
MAX_HASHES = 10_000  # training rows that are recognised; of more, those with the smallest hashes


def load(folder: Path) -> "Regressor":
    """Return the regressor of a model folder, with the record of `howsure fit` as its attribute ``record_``.

    The record is a dict, which is empty for a model that was saved from Python.
    """
    from howsure import estimators
    from howsure.persistence import load_model, refusing_misfits

    tensors, settings = load_model(folder)
    if settings.get("model") == "images":
        raise InputError(f"{folder} holds a model of images; the command line is for tables")
    model: Any = estimators.restore(folder, tensors, settings)
    with refusing_misfits(folder):
        model.record_ = _checked(settings.get(RECORD, {}))
    regressor: Regressor = model
    return regressor


def _checked(record: Any) -> dict[str, Any]:
    """Return the record of a fit after a check of the values that commands read."""
    if record:
        held_out = record["held_out"]
        counts, words = [record["rows"], held_out["rows"]], [held_out["how"], *record["scores"]]
        if not all(type(count) is int for count in counts) or not all(isinstance(word, str) for word in words):
            raise InputError(f"its {RECORD} does not say what was held out")
        for found in record["scores"].values():
            list(scoring.compare_models(found))  # raises if a score is not a number
        np.frombuffer(base64.b64decode(record.get("row_hashes", ""), validate=True), "<u4")
    return dict(record)


def save(model: "Regressor", folder: Path, record: dict[str, Any]) -> None:
    """Write a model folder with the record of its fit, both whole or not at all: they are one file."""
    from howsure.persistence import save_model

    tensors, settings = model._state()
    try:
        save_model(folder, tensors, settings | {RECORD: finite(record)})
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error


def finite(value: Any) -> Any:
    """Return plain values with None instead of numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_outside(output: Path, model: Path) -> None:
    """Raise if an output would lie in a model folder: one with other files in it is never replaced by a later fit."""
    if output.resolve().is_relative_to(model.resolve()):
        raise InputError(f"{output} would lie in the folder of the model; name another place with -o")


def check_output(folder: Path, force: bool) -> None:
    """Raise unless a model can be saved under this name, before anything takes time.

    A folder that is not empty is replaced only if it is a model of ours, and only with ``force``.
    """
    from howsure.persistence import _check_ours, is_model

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a model is saved as a folder, choose another name with -o")
    if folder.is_dir():
        _check_ours(folder)
        if is_model(folder) and not force:
            raise InputError(f"{folder} holds a model already; --force replaces it, -o names another folder")
    parent = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{folder} cannot be written: {parent} is no folder to write to; choose another name with -o")


# Training rows --------------------------------------------------------------------------------------------------------


def row_hashes(model: "Regressor", x: "pd.DataFrame", y: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return a hash of each row, of its columns as the model reads them and of its targets (N, T)."""
    import pandas as pd

    with warnings.catch_warnings(action="ignore"):  # of cells that cannot be read: they were reported before
        columns = [column.values for column in model.encoding_.read(x).columns]
    whole = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate([*columns, *y.T]))), index=False)
    return (whole.to_numpy() >> np.uint64(32)).astype(np.uint32)


def training_rows_among(model: Any, x: "pd.DataFrame", y: NDArray[np.float64]) -> int:
    """Return about how many rows are training rows, by the hashes that `howsure fit` recorded; 0 if it recorded none.

    Only the smallest hashes are recorded. The share of recorded hashes among the hashes up to the largest recorded one
    estimates the share among all.
    """
    kept = np.frombuffer(base64.b64decode(model.record_.get("row_hashes", "")), "<u4")
    if not len(kept):
        return 0
    found = row_hashes(model, x, y)
    comparable = found[found <= kept.max()] if len(kept) == MAX_HASHES else found
    return round(len(found) * float(np.isin(comparable, kept).mean())) if len(comparable) else 0


def recorded(hashes: NDArray[np.uint32]) -> str:
    """Return the smallest hashes as text."""
    return base64.b64encode(np.sort(hashes)[:MAX_HASHES].astype("<u4").tobytes()).decode()
