"""One run, one folder, one ``record.json``: what was run, where, with which seeds, and what came out."""

import json
import math
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from evidentia.errors import InputError
from evidentia.files import write_whole

__all__ = ["environment", "find_record", "read_record", "write_record"]

SCHEMA = 1
FILE = "record.json"


def environment(device: Any = "cpu") -> dict[str, Any]:
    """Versions and device, as every record has them."""
    import torch

    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    # the source tree also runs without being installed, and then only the package itself knows its version
    packages = {"evidentia": getattr(sys.modules["evidentia"], "__version__", "unknown")}
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


def write_record(folder: str | Path, record: dict[str, Any]) -> Path:
    """Write ``folder/record.json`` whole or not at all. Numbers that are not finite become null, with a note."""
    folder = Path(folder)
    text = json.dumps({"schema": SCHEMA, **_plain(record)}, indent=1, allow_nan=False) + "\n"
    write_whole(folder / FILE, lambda file: file.write(text.encode()))
    return folder / FILE


def read_record(folder: str | Path) -> dict[str, Any]:
    """Read ``folder/record.json``; refuse one from a newer version."""
    path = Path(folder) / FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; the folder of a run has one") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON ({error}); a truncated file?") from error
    if not isinstance(record, dict) or record.get("schema", SCHEMA + 1) > SCHEMA:
        raise InputError(f"{path} was written by a newer version (schema {record.get('schema')}, known {SCHEMA})")
    return record


def find_record(folder: str | Path) -> dict[str, Any] | None:
    """The record of a run, or None where there is none yet."""
    return read_record(folder) if (Path(folder) / FILE).exists() else None


def _plain(value: Any) -> Any:
    """What JSON knows: arrays and tensors as lists, paths as text, and null for what is not finite."""
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
