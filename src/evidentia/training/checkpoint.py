"""Checkpoints: written whole or not at all, and read without running any code."""

import pickle
from pathlib import Path
from typing import Any

import torch

from evidentia.errors import InputError
from evidentia.files import write_whole

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write the state; a kill in the middle leaves the last good one."""
    write_whole(path, lambda file: torch.save(state, file))


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read tensors and plain values only."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"checkpoint {path} cannot be read ({error}); delete it to start anew") from error
    # random states live on the CPU, wherever the rest goes
    state["generator"] = state["generator"].cpu()
    if "generator" in state["batches"]:
        state["batches"]["generator"] = state["batches"]["generator"].cpu()
    return state
