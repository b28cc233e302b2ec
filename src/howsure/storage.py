"""Model files: one safetensors file, with everything that is not a tensor as JSON in its header. No pickle, no code.

Python's ``json`` writes NaN and infinity too, such as scores of networks that diverged.

A file is written next to its place, synced and renamed, so that a killed writer leaves the old file whole.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from howsure.errors import InputError
from howsure.files import read_plain, write_whole

__all__ = ["checked_header", "is_model", "load_model", "reading_model", "save_model"]

FORMAT = 3  # 1 and 2 were folders
HEADER, DIGEST = "howsure", "sha256"  # entries of the metadata of a safetensors file
NOT_OURS = "is not a model file of howsure"

Header = TypeVar("Header")


def save_model(path: str | Path, tensors: dict[str, Tensor], header: Any, overwrite: bool = False) -> Path:
    """Write a model file and return its path. An older model there is replaced.

    Args:
        path: of the file.
        tensors: by name.
        header: a dataclass of plain values.
        overwrite: whether to replace a file that is not a model.

    Raises:
        InputError: if the path is a file that is not a model, or a folder.
    """
    from safetensors.torch import save

    path = Path(path)
    if path.exists() and not overwrite and not is_model(path):
        hint = "choose another name" if path.is_dir() else "choose another name, or pass overwrite=True"
        raise InputError(f"{path} exists and {NOT_OURS}", hint=hint)
    plain = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    text = json.dumps({"format": FORMAT, **asdict(header)}, default=_plain)
    data = save(plain, {HEADER: text, DIGEST: _digest(text, plain)})
    write_whole(path, lambda file: file.write(data))
    return path


def load_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (on the CPU) and the header of a model file.

    Raises:
        InputError: if the file is not a model, was truncated or changed, or has numbers that are not finite.
    """
    from safetensors.torch import load

    path = Path(path)
    data = _read(path)
    try:
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        text, digest = metadata[HEADER], metadata[DIGEST]
        header = json.loads(text)
        version = header.pop("format")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path} {NOT_OURS}, or it is truncated") from None
    if version != FORMAT:
        raise InputError(f"{path} has the format {version!r}, this version of howsure reads {FORMAT}")
    with reading_model(path):
        tensors = load(data)
        if digest != _digest(text, tensors):
            raise InputError("it was truncated or changed", hint="save the model again")
        return tensors, header


def is_model(path: str | Path) -> bool:
    """Return whether a file is a model of howsure, by its header."""
    path = Path(path)
    try:
        if not path.is_file():  # a pipe would keep its reader waiting
            return False
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return size < path.stat().st_size and HEADER in json.loads(file.read(size)).get("__metadata__", {})
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@contextlib.contextmanager
def reading_model(path: str | Path) -> Iterator[None]:
    """Turn all errors of parts that do not fit together into one InputError that names the file."""
    try:
        yield
    except Exception as error:
        why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{path} cannot be loaded: {' '.join(why.split())}", hint="save the model again") from error


def checked_header(kind: type[Header], values: Any) -> Header:
    """Return a dataclass from the plain values of a file, after checking the names and the types of its fields.

    Args:
        kind: a dataclass. The annotation of a field is a type, a list, a tuple or a union of types, or a dataclass.
        values: of all its fields, as JSON has them.
    """
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict) or set(values) != set(known):
        odd = sorted(set(values).symmetric_difference(known)) if isinstance(values, dict) else sorted(known)
        raise InputError(f"inconsistent model file: missing or unknown entries {', '.join(odd)}")
    made = {}
    for name, expected in known.items():
        try:
            made[name] = _typed(values[name], expected)
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"inconsistent model file: {name} is {values[name]!r:.60}") from None
    return kind(**made)


def _typed(value: Any, kind: Any) -> Any:
    """Return a value of JSON with the type of an annotation, or raise a TypeError."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        for part in parts:
            with contextlib.suppress(TypeError, InputError):
                return _typed(value, part)
    elif origin is Literal:
        if value in parts:
            return value
    elif origin in (list, tuple):
        if isinstance(value, list | tuple):
            return origin(_typed(each, parts[0]) for each in value)
    elif origin is np.ndarray:
        return np.array(value, get_args(parts[1])[0])
    elif is_dataclass(origin) and isinstance(origin, type):
        return checked_header(origin, value)
    elif origin is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return value
    elif isinstance(value, origin) and (not isinstance(value, bool) or origin is bool):
        return value
    raise TypeError(f"{value!r:.60} is not {kind}")


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint="a model is a file that save wrote") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a hash of the header, and of the names, types, shapes and bytes of the tensors."""
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _plain(value: Any) -> Any:
    """Return a number or array of NumPy or torch as Python's own."""
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, torch.device):
        return str(value)
    raise InputError(f"a model file holds numbers, text, lists and dicts, not {value!r:.60}")
