"""Read and write ``record.json``: a run has one folder with one record of its settings, seeds, machine and results."""

import contextlib
import json
import math
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from howsure.errors import InputError
from howsure.files import listed, locked, read_plain, write_text

__all__ = ["environment", "find_record", "read_record", "refusing_damage", "run_folder", "write_record"]

SCHEMA = 1
FILE = "record.json"
_BEGUN = "begun"  # marks a record that has no results yet; beside it stands the name of the run only


def environment(device: Any = "cpu") -> dict[str, Any]:
    """Return the versions and the device that every record states."""
    import torch

    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    # the source tree also runs without being installed, and then only the package itself knows its version
    packages = {"howsure": getattr(sys.modules["howsure"], "__version__", "unknown")}
    for package in ("torch", "numpy", "scipy", "scikit-learn"):
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": packages,
        "device": {"type": device.type, "name": name, "threads": torch.get_num_threads()},
    }


@contextlib.contextmanager
def run_folder(folder: Path, run: str) -> Iterator[dict[str, Any] | None]:
    """Claim a folder for one run before any work is done, and yield the record of an earlier run in it, or None.

    Nobody else can claim the folder until the block ends.

    Raises:
        InputError: if the folder holds files but no record of such a run, or another process writes there.
        OSError: if it cannot be written to.
    """
    with locked(folder, wait=False):
        before = find_record(folder)
        if before is None:
            found = sorted(path.name for path in folder.iterdir())
            if found:
                raise InputError(
                    f"{folder} holds {listed(found)}, but no record of a run of {run!r}; choose an empty folder"
                )
        elif before.get("run") != run:
            raise InputError(
                f"{folder} holds a run of {before.get('run')!r}, not of {run!r}; choose another folder, or delete it"
            )
        if before is None or _BEGUN in before:
            before = None
            write_record(folder, {"run": run, _BEGUN: True})
        yield before


def write_record(folder: str | Path, record: dict[str, Any]) -> Path:
    """Write ``folder/record.json`` whole or not at all; numbers that are not finite become null.

    Raises:
        InputError: if a file of that name is no record; it stays as it is.
    """
    folder = Path(folder)
    text = json.dumps({"schema": SCHEMA, **_plain(record)}, indent=1, allow_nan=False) + "\n"
    try:
        before = find_record(folder)
    except InputError as error:
        raise InputError(f"a record cannot be written to {folder}: {error}, or choose another folder") from error
    if before is not None and not isinstance(before.get("run"), str):
        raise InputError(f"{folder / FILE} is not a record of howsure; remove it, or choose another folder")
    write_text(folder / FILE, text)
    return folder / FILE


def read_record(folder: str | Path) -> dict[str, Any]:
    """Return the record in ``folder/record.json``.

    Raises:
        InputError: if there is none, or it is damaged, not a record, or from a newer version.
    """
    path = Path(folder) / FILE
    try:
        record: dict[str, Any] = json.loads(read_plain(path).decode())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; the folder of a run has one") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); a truncated file? Remove it") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if type(schema) is not int or schema < 1:
        raise InputError(f"{path} is not a record of howsure; remove it")
    if schema > SCHEMA:
        raise InputError(f"{path} has the schema {schema}, and this version of howsure knows {SCHEMA}; update it")
    return record


def find_record(folder: str | Path) -> dict[str, Any] | None:
    """Return the record in a folder, or None if there is none yet."""
    return read_record(folder) if (Path(folder) / FILE).exists() else None


@contextlib.contextmanager
def refusing_damage(folder: str | Path) -> Iterator[None]:
    """Turn whatever the block raises because a record is damaged into one InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{Path(folder) / FILE} is damaged ({type(error).__name__}: {error}); remove it to start anew"
        ) from error


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays and tensors as lists, paths as text, and null for what is not finite."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Path):
        return str(value)
    raise InputError(f"a record holds numbers, text, lists and dicts, not {type(value).__name__}")
