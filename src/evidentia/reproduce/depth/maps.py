"""The maps that figures show of a model: one compressed file for each, beside the record."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidentia.reproduce.arrays import read_arrays, write_arrays
from evidentia.reproduce.protocol import file_name

__all__ = ["MAPS", "Maps", "maps_path", "read_maps", "write_maps"]

Maps = dict[str, NDArray[Any]]
MAPS = "maps"  # the folder, beside the record


def maps_path(out: Path, model: str) -> Path:
    """Return the path of the maps of a model."""
    return out / MAPS / f"{file_name(model)}.npz"


def write_maps(out: Path, model: str, maps: Maps) -> None:
    """Write the maps of a model; float32 becomes float16, which is enough for pictures."""
    small = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in maps.items()}
    write_arrays(maps_path(out, model), small)


def read_maps(out: Path, model: str) -> Maps | None:
    """Return the maps of a model, float16 as float32; None if there are none."""
    arrays = read_arrays(maps_path(out, model))
    return arrays and {name: a.astype(np.float32) if a.dtype == np.float16 else a for name, a in arrays.items()}
