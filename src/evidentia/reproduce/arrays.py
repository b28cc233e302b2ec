"""Arrays that figures are drawn from: compressed files beside the record, which holds the numbers of the tables."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidentia.errors import InputError
from evidentia.files import write_whole

__all__ = ["read_arrays", "write_arrays"]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name as a compressed ``.npz`` file."""
    write_whole(path, lambda file: np.savez_compressed(file, **dict(arrays)))  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of an ``.npz`` file by name, or None if there is no such file.

    Raises:
        InputError: if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it to draw without it") from error
