"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_whole"]


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write beside the file and swap: after a kill or on a full disk the old one is still there, and no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        temporary.chmod(0o644)  # a temporary file is its owner's alone
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
