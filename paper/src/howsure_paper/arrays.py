"""Arrays that figures are drawn from: a compressed file for each unit, beside the record with the numbers of tables."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure.files import write_whole
from howsure_paper.protocol import file_name

__all__ = ["Arrays", "arrays_path", "read_arrays", "write_arrays"]

Arrays = Mapping[str, NDArray[Any]]


def arrays_path(folder: Path, unit: str) -> Path:
    """Return the path of the arrays of a unit."""
    return folder / f"{file_name(unit)}.npz"


def write_arrays(folder: Path, unit: str, arrays: Arrays) -> None:
    """Write the arrays of a unit by name."""
    write_whole(arrays_path(folder, unit), lambda file: np.savez_compressed(file, **dict(arrays)))  # type: ignore[arg-type]


def read_arrays(folder: Path, unit: str) -> Arrays | None:
    """Return the arrays of a unit by name, float16 as float32; None if there is no file of them.

    Raises:
        InputError: if the file is damaged.
    """
    path = arrays_path(folder, unit)
    if not path.exists():
        return None
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it to draw without it") from error
    return {name: a.astype(np.float32) if a.dtype == np.float16 else a for name, a in arrays.items()}
