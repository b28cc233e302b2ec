"""Model files as the commands use them: a regressor, the record of the fit that made it, and its training rows."""

import base64
import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.cli import scoring
from howsure.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = [
    "check_other",
    "check_output",
    "finite",
    "load",
    "recorded",
    "row_hashes",
    "save",
    "training_rows_among",
    "writing_to",
]

MAX_HASHES = 10_000  # training rows that are recognised; of more, those with the smallest hashes


def load(path: Path) -> "Regressor":
    """Return the regressor of a model file, whose attribute ``record_`` has the record of `howsure fit`.

    The record is a dict, which is empty for a model that was saved from Python.
    """
    from howsure import estimators
    from howsure.storage import reading_model

    model: Any = estimators.load(path)
    if not isinstance(model, estimators.Regressor):
        raise InputError(f"{path} holds a model of images, and the shell supports tables only: use hs.load")
    with reading_model(path):
        model.record_ = _checked(model.record_)
    return model


def _checked(record: Any) -> dict[str, Any]:
    """Return the record of a fit after a check of the values that commands read."""
    if record:
        held_out = record["held_out"]
        counts, words = [record["rows"], held_out["rows"]], [held_out["how"], *record["scores"]]
        if not all(type(count) is int for count in counts) or not all(isinstance(word, str) for word in words):
            raise InputError("its record does not name the held-out rows")
        for found in record["scores"].values():
            scoring.compare_models(found)  # raises if a score is not a number
        np.frombuffer(base64.b64decode(record.get("row_hashes", ""), validate=True), "<u4")
    return dict(record)


def save(model: "Regressor", path: Path, record: dict[str, Any]) -> None:
    """Write a model file with the record of its fit."""
    model = copy(model)
    model.record_ = finite(record)
    with writing_to(path):
        model.save(path)


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Raise errors of the disk as a sentence with the name of the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def finite(value: Any) -> Any:
    """Return plain values with None instead of numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_other(out: Path, *inputs: Path) -> None:
    """Raise if an output would replace the model or the table that a command reads."""
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise InputError(f"{out} is read by this command; name another place with -o")


def check_output(path: Path, force: bool) -> None:
    """Raise unless a model can be saved under this name, before anything takes time.

    A file is replaced only if it is a model of ours, and only with ``force``.
    """
    from howsure.storage import is_model

    if path.exists():
        if not is_model(path):
            raise InputError(f"{path} exists and is not a model", hint="choose another name with -o")
        if not force:
            raise InputError(f"{path} holds a model already; --force replaces it, -o names another file")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{path} cannot be written: {parent} is not a folder to write to; choose another name with -o")


# Training rows --------------------------------------------------------------------------------------------------------


def row_hashes(model: "Regressor", x: "pd.DataFrame", y: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return a hash of each row, of its columns as the model reads them and of its targets (N, T)."""
    from howsure.tables import copies

    with warnings.catch_warnings(action="ignore"):  # of cells that cannot be read: they were reported before
        found = copies.row_hashes(model.read(x), y)
    return (found >> np.uint64(32)).astype(np.uint32)


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
    """Return the ``MAX_HASHES`` smallest hashes, encoded as text for a model file."""
    return base64.b64encode(np.sort(hashes)[:MAX_HASHES].astype("<u4").tobytes()).decode()
