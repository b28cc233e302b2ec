"""Save and load model folders: a safetensors file for the tensors, ``model.json`` for the rest. No pickle, no code.

``model.json`` names the file with the tensors, which is named by its own hash, and is replaced last: whenever a writer
is killed, the folder holds the old model or the new one. This module knows tensors and plain settings, but no classes.
"""

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure.errors import InputError
from howsure.files import check_schema, listed, locked, read_plain, reading_json, write_text, write_whole

__all__ = ["is_model", "load_model", "refusing_misfits", "save_model"]

SCHEMA = 2
SETTINGS = "model.json"
LARGEST_SETTINGS = 1 << 28  # bytes
FIRST_TENSORS = "model.safetensors"  # of schema 1
_TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
_PART = re.compile(r"\.(model\.json|tensors-[0-9a-f]{16}\.safetensors)\.[0-9a-f]{8}\.part")
_DESKTOP_FILES = frozenset((".DS_Store", "Thumbs.db", "desktop.ini"))
_A_MODEL = f"a model is a folder with {SETTINGS} and the tensors it names"


def save_model(folder: str | Path, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Path:
    """Write a model folder and return its path.

    An older model there is replaced; a folder with anything but a model in it is refused and left as it is. Two writers
    exclude each other. A killed one leaves the old model or the new one, and the next one removes what it left over.
    """
    from safetensors.torch import save

    folder = Path(folder)
    data = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    file = f"tensors-{digest[:16]}.safetensors"
    # through JSON and back, so that the digest is that of what a reader will see
    named = {"tensors": file, "tensors_bytes": len(data), "tensors_sha256": digest}
    body = {"schema": SCHEMA, **named, "settings": _as_json(settings)}
    text = json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False) + "\n"
    new = not folder.exists()
    with locked(folder) as alone:
        before = _check_ours(folder)
        try:
            write_whole(folder / file, lambda f: f.write(data))
            write_text(folder / SETTINGS, text)
        except BaseException:
            # an interrupt may come after model.json was replaced: then the new model is there
            if _named_tensors(folder) != file:
                (folder / file).unlink(missing_ok=True)
            if new:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        _remove_leftovers(folder, keep=file, before=before, parts=alone)
    return folder


def load_model(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (tensors on the CPU, settings) of a model folder, after checking every byte and every number of it."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = Path(folder)
    body, data = _read_pair(folder)
    path = folder / body["tensors"]
    if hashlib.sha256(data).hexdigest() != body["tensors_sha256"]:
        raise InputError(f"{path} is not the file that was saved: truncated or changed; save the model again")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} cannot be read ({error})") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{path}: the tensor {name!r} has values that are NaN or infinite; train the model again")
    return tensors, body["settings"]


@contextlib.contextmanager
def refusing_misfits(folder: str | Path) -> Iterator[None]:
    """Turn whatever the block raises because parts of a model do not fit together into one InputError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{folder} does not hold a model that can be used ({why}); save the model again") from error


def is_model(folder: str | Path) -> bool:
    """Return whether a folder holds a model. A first save that was killed leaves none."""
    return (Path(folder) / SETTINGS).is_file()


def _read_pair(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the content of ``model.json`` and the bytes of the tensors it names, both of one save."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; {_A_MODEL}")
    for _ in range(100):
        body = _read_settings(folder)
        try:
            return body, _read_bytes(folder, body["tensors"], body.get("tensors_bytes"))
        except FileNotFoundError:
            time.sleep(0.002)  # a writer may have replaced the model in between: then model.json names others now
    raise InputError(f"{folder / body['tensors']} is missing; {_A_MODEL}")


def _read_bytes(folder: Path, file: str, size: int | None = None) -> bytes:
    """Return the content of a file of a model folder, or raise if it is a link out of it or has another size."""
    path = folder / file
    try:
        # a link may lead out of the folder, to a file somebody else can change
        if path.is_symlink() and path.resolve().parent != folder.resolve():
            raise InputError(f"{path} leads out of the model folder, to {path.resolve()}; copy the file there instead")
        found = path.stat().st_size
    except RuntimeError:  # a link to itself, which `read_plain` reports
        found = size or 0
    if size is not None and found != size:
        raise InputError(f"{path} is not the file that was saved: truncated or changed; save the model again")
    if file == SETTINGS and found > LARGEST_SETTINGS:
        raise InputError(f"{path} has {found:,} bytes, which no model has")
    return read_plain(path)


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of ``model.json``, with the name of the tensors whatever its schema."""
    path = folder / SETTINGS
    with reading_json(path, f"is missing; {_A_MODEL}", "truncated or changed"):
        content = json.loads(_read_bytes(folder, SETTINGS).decode(), parse_constant=_refuse_constant)
        claimed = content.pop("sha256", None) if isinstance(content, dict) else None
        digest = _digest(content)
    body = check_schema(path, content, SCHEMA, "does not describe a model of howsure")
    if claimed != digest:
        raise InputError(f"{path} is not the file that was saved: it was changed; save the model again")
    if body["schema"] == 1:
        body["tensors"] = FIRST_TENSORS
    named = body.get("tensors")
    if not isinstance(named, str) or not (named == FIRST_TENSORS or _TENSORS.fullmatch(named)):
        raise InputError(f"{path} does not name its tensors")
    if not isinstance(body.get("settings"), dict):
        raise InputError(f"{path} has no settings")
    if body["schema"] > 1 and type(body.get("tensors_bytes")) is not int:
        raise InputError(f"{path} does not say how large its tensors are")
    return body


def _refuse_constant(name: str) -> None:
    """Raise for NaN and Infinity, which Python would read."""
    raise ValueError(f"{name} is not a number of JSON")


def _check_ours(folder: Path) -> str | None:
    """Raise unless the folder holds a model or nothing; return the name of that model's tensors."""
    names = sorted(path.name for path in folder.iterdir())
    tensors = None
    if SETTINGS in names:
        if (folder / SETTINGS).is_symlink():
            raise InputError(f"{folder / SETTINGS} is a link; choose another name for the model, or remove it")
        try:
            body = _read_settings(folder)
        except InputError as error:
            raise InputError(f"a model cannot be saved over {folder}: {error}, or choose another name") from error
        tensors = body["tensors"] if _hash_of(folder / body["tensors"]) == body["tensors_sha256"] else None
    foreign = [
        name
        for name in names
        if name not in (SETTINGS, tensors) and not _is_leftover(folder / name) and name not in _DESKTOP_FILES
    ]
    if foreign:
        raise InputError(
            f"{folder} holds {listed(foreign)}, which no model has; choose another name, or remove what is in the way"
        )
    return tensors


def _is_leftover(path: Path) -> bool:
    """Return whether a killed save left this: a part of a file, or tensors under the name that their hash gives."""
    if _PART.fullmatch(path.name):
        return path.is_file() and not path.is_symlink()
    return bool(_TENSORS.fullmatch(path.name)) and (_hash_of(path) or "").startswith(path.name[8:24])


def _hash_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it is a link or no file."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named_tensors(folder: Path) -> str | None:
    """Return the name of the tensors of the model in a folder, or None if there is no model."""
    try:
        named: str = _read_settings(folder)["tensors"]
    except (InputError, OSError):
        return None
    return named


def _remove_leftovers(folder: Path, keep: str, before: str | None, parts: bool) -> None:
    """Remove the tensors of the model before and, if no one else can be writing here, what killed writers left."""
    for path in folder.iterdir():
        if path.name != keep and (path.name == before or (parts and _is_leftover(path))):
            with contextlib.suppress(OSError):  # a reader on Windows may hold it; the next save removes it
                path.unlink()


def _as_json(settings: dict[str, Any]) -> Any:
    """Return settings as JSON has them: lists for tuples, and Python's numbers for NumPy's."""
    return json.loads(json.dumps(settings, allow_nan=False, default=_plain_number))


def _plain_number(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a model file holds numbers, text, lists and dicts, not {type(value).__name__}")


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
