"""Checkpoints of a training run: written completely or not at all, and read without running code from the file."""

import functools
import hashlib
import io
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure.errors import InputError
from howsure.files import write_whole

__all__ = ["fingerprint", "load_checkpoint", "save_checkpoint"]


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write the state to the file. If the process is killed meanwhile, the previous checkpoint remains."""
    data = io.BytesIO()  # torch's writer does not report a full disk
    torch.save(state, data)
    write_whole(path, lambda file: file.write(data.getbuffer()))


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the state in a checkpoint, which may hold tensors and plain values only.

    Args:
        path: the file.
        device: the device to load tensors to.
    """
    if not path.is_file():  # reading from a pipe would block
        raise InputError(f"{path} is not a file; name another one for the checkpoint")
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    # torch keeps the states of generators on the CPU
    state["generator"] = state["generator"].cpu()
    if "generator" in state["batches"]:
        state["batches"]["generator"] = state["batches"]["generator"].cpu()
    return state


def fingerprint(*parts: Any) -> str:
    """Return a hash of settings and tensors that identifies the run to which a checkpoint belongs."""
    return hashlib.sha256(json.dumps(parts, default=_plain, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value as one that JSON has, the same in every process: a function by its name, not its address."""
    if isinstance(value, Tensor):
        content = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes())
        return [str(value.dtype), list(value.shape), content.hexdigest()]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, {f.name: getattr(value, f.name) for f in fields(value) if f.compare}]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
