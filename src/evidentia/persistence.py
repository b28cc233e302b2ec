"""Model folders: ``model.safetensors`` for the tensors, ``model.json`` for everything else. No pickle, no code.

This room knows tensors and plain settings, but no classes: what they mean is the business of who saved them.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from evidentia.errors import InputError

__all__ = ["load_model", "save_model"]

SCHEMA = 1
TENSORS, SETTINGS = "model.safetensors", "model.json"


def save_model(folder: str | Path, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Path:
    """Write a model folder whole or not at all; an older model there is replaced, anything else is left alone."""
    from safetensors.torch import save_file

    folder = Path(folder)
    if folder.exists() and not _is_model(folder):
        raise InputError(f"{folder} exists and is not a model folder; choose another name, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        scratch.chmod(0o755)
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, scratch / TENSORS)
        (scratch / TENSORS).chmod(0o644)
        body = {"schema": SCHEMA, "tensors_sha256": _sha256(scratch / TENSORS), "settings": settings}
        text = json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False)
        (scratch / SETTINGS).write_text(text + "\n", encoding="utf-8")
        _swap(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return folder


def load_model(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(Tensors on the CPU, settings) of a model folder, after checking that every byte is the one that was written."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; a model is a folder with {TENSORS} and {SETTINGS}")
    for file in (SETTINGS, TENSORS):
        path = folder / file
        if not path.is_file():
            raise InputError(f"{path} is missing; a model is a folder with {TENSORS} and {SETTINGS}")
        # a link may lead out of the folder, to a file somebody else can change
        if path.resolve().parent != folder.resolve():
            raise InputError(f"{path} leads out of the model folder, to {path.resolve()}; copy the file there instead")
    body = _read_settings(folder / SETTINGS)
    if _sha256(folder / TENSORS) != body["tensors_sha256"]:
        raise InputError(
            f"{folder / TENSORS} is not the file that was saved: truncated or changed; save the model again"
        )
    try:
        return load_file(folder / TENSORS), body["settings"]
    except SafetensorError as error:
        raise InputError(f"{folder / TENSORS} cannot be read ({error})") from error


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        body: Any = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); truncated or changed") from error
    if not isinstance(body, dict) or not isinstance(body.get("schema"), int):
        raise InputError(f"{path} does not describe a model")
    if body["schema"] > SCHEMA:
        raise InputError(
            f"{path} was written by a newer version of evidentia (schema {body['schema']}, this one knows {SCHEMA}); "
            "update it"
        )
    if body.pop("sha256", None) != _digest(body):
        raise InputError(f"{path} is not the file that was saved: it was changed; save the model again")
    return body


def _is_model(folder: Path) -> bool:
    return folder.is_dir() and ((folder / SETTINGS).is_file() or not any(folder.iterdir()))


def _swap(new: Path, folder: Path) -> None:
    """Put a finished folder in place. Folders cannot be exchanged at once: the old one waits under another name."""
    if not folder.exists():
        new.rename(folder)
        return
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
    os.replace(folder, old)  # noqa: PTH105 (a rename onto an empty folder)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()
