"""The name of the device that a benchmark runs on."""

import platform

import torch

__all__ = ["device_label"]


def device_label(device: torch.device) -> str:
    """Return the name of the GPU, or the architecture of the processor and how many threads torch uses on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
