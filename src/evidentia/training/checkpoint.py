"""Checkpoints: written whole or not at all, and read without running any code."""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evidentia.errors import InputError
from evidentia.files import write_whole

__all__ = ["fingerprint", "load_checkpoint", "save_checkpoint"]


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write the state; a kill in the middle leaves the last good one."""
    write_whole(path, lambda file: torch.save(state, file))


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint, tensors and plain values only."""
    if not path.is_file():  # a pipe would keep its reader waiting
        raise InputError(f"{path} is not a file; name another one for the checkpoint")
    try:
        state: Any = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever the reader of pickles stumbles over in a file that is none
        raise InputError(f"checkpoint {path} cannot be read ({error!r}); delete it to start anew") from error
    if not isinstance(state, dict) or not {"generator", "batches", "settings", "shapes"} <= state.keys():
        raise InputError(f"{path} is not a checkpoint of a training; delete it, or name another file")
    # random states live on the CPU, wherever the rest goes
    state["generator"] = state["generator"].cpu()
    if "generator" in state["batches"]:
        state["batches"]["generator"] = state["batches"]["generator"].cpu()
    return state


def fingerprint(*parts: Any) -> str:
    """A hash of settings and tensors by which a checkpoint knows the run it belongs to."""
    total = hashlib.sha256()
    for part in parts:
        head = f"{part.dtype} {tuple(part.shape)}" if isinstance(part, Tensor) else _words(part)
        total.update(f"{len(head)} {head}".encode())  # with its length, so that no part runs into the next
        if isinstance(part, Tensor):
            total.update(part.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def _words(value: Any) -> str:
    """Settings as text that is the same in every process: a function is its name, not its address."""
    if is_dataclass(value) and not isinstance(value, type):
        compared = {f.name: getattr(value, f.name) for f in fields(value) if f.compare}
        return f"{type(value).__qualname__}{_words(compared)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_words(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list | tuple | range):
        return "[" + ", ".join(map(_words, value)) + "]"
    if isinstance(value, functools.partial):
        return f"{_words(value.func)}({_words(value.args)}, {_words(value.keywords)})"
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
