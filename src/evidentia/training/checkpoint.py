"""Checkpoints: written whole or not at all, and read without running any code."""

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

from evidentia.errors import InputError

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write beside the file and swap, so that a kill or a full disk leaves the last good one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(state, file)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read tensors and plain values only."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"checkpoint {path} cannot be read ({error}); delete it to start anew") from error
    # random states live on the CPU, wherever the rest goes
    for key in ("generator", "now"):
        if key in state["batches"]:
            state["batches"][key] = state["batches"][key].cpu()
    return state
