"""Model files: one safetensors file, with everything that is not a tensor as JSON in its header. No pickle, no code.

A file is written next to its place, synced and renamed, so that a killed writer leaves the old file whole.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

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
    try:
        path.resolve()
    except (RuntimeError, ValueError) as error:  # a link to itself, or a name with a zero in it
        raise InputError(f"{str(path)!r} cannot be the name of a file ({error})") from error
    if path.exists() and not overwrite and not is_model(path):
        hint = "choose another name" if path.is_dir() else "choose another name, or pass overwrite=True"
        raise InputError(f"{path} exists and {NOT_OURS}", hint=hint)
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    text = json.dumps({"format": FORMAT, **asdict(header)}, allow_nan=False, default=_plain)
    body = _split(save(plain))[1]
    data = save(plain, {HEADER: text, DIGEST: _digest(text, body)})
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
        metadata, body = _split(data)
        text, digest = metadata[HEADER], metadata[DIGEST]
        header = json.loads(text)
        version = header["format"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f"{path} {NOT_OURS}, or it is truncated") from None
    if version != FORMAT:
        raise InputError(f"{path} has the format {version!r}, this version of howsure reads {FORMAT}")
    with reading_model(path):
        if digest != _digest(text, body):
            raise InputError("it was truncated or changed", hint="save the model again")
        return load(data), header


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


def checked_header(kind: type[Header], values: dict[str, Any]) -> Header:
    """Return a header from the values of a file, after checking the names and the types of its fields.

    Args:
        kind: a dataclass. The annotation of a field is a type or a union of types.
        values: of all its fields, and of "format".
    """
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    if set(values) != {*known, "format"}:
        odd = sorted(set(values).symmetric_difference({*known, "format"}))
        raise InputError(f"inconsistent model file: missing or unknown entries {', '.join(odd)}")
    for name, expected in known.items():
        if not _is(values[name], expected):
            raise InputError(f"inconsistent model file: {name} is {values[name]!r:.60}")
    return kind(**{name: values[name] for name in known})


def _is(value: Any, expected: Any) -> bool:
    """Return whether a value has the type of an annotation. The types of elements are not checked."""
    if isinstance(expected, UnionType):
        return any(_is(value, each) for each in get_args(expected))
    kind = get_origin(expected) or expected
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint="a model is a file that save wrote") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _split(data: bytes) -> tuple[dict[str, str], bytes]:
    """Return the metadata of a safetensors file, and the rest of it: names, places and bytes of its tensors."""
    end = 8 + int.from_bytes(data[:8], "little")
    if end > len(data):
        raise ValueError("truncated")
    header = json.loads(data[8:end])
    metadata = header.pop("__metadata__", {})
    return metadata, json.dumps(header, sort_keys=True).encode() + data[end:]


def _digest(text: str, body: bytes) -> str:
    return hashlib.sha256(text.encode() + body).hexdigest()


def _plain(value: Any) -> Any:
    """Return a number or array of NumPy or torch as Python's own."""
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, torch.device):
        return str(value)
    raise TypeError(f"a model file holds numbers, text, lists and dicts, not {type(value).__name__}")
