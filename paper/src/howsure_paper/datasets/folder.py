"""Find the data folder: an argument, or the environment variable ``HOWSURE_DATA``."""

import os
from pathlib import Path

from howsure.errors import InputError

__all__ = ["find_data", "need_data"]


def find_data(data: str | Path | None = None) -> Path | None:
    """Return the data folder that was passed or that ``HOWSURE_DATA`` names, or None if there is neither."""
    root = data or os.environ.get("HOWSURE_DATA")
    return Path(root) if root else None


def need_data(data: str | Path | None = None) -> Path:
    """Return the data folder as `find_data` does, but raise if there is none."""
    root = find_data(data)
    if root is None:
        raise InputError("no data folder: pass one, or set the environment variable HOWSURE_DATA to it")
    return root
