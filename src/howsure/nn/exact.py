"""Layers that compute in float32 at least, whatever the precision of their weights and of their input.

They are ``nn.Linear`` and ``nn.Conv1d``, ``2d``, ``3d`` in everything but the precision of their arithmetic, so that
hooks, parametrizations, pruning, LoRA and FSDP treat them as the same classes. Call them through :func:`call_exactly`:
it also keeps autocast away from modules wrapped around them.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

__all__ = ["ExactConv1d", "ExactConv2d", "ExactConv3d", "ExactLinear", "call_exactly"]


def call_exactly(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the layer's output for x in float32 at least, with autocast off.

    Both are done around the layer and not inside it, so that they hold for hooks and for wrappers of the layer as well:
    LoRA computes its correction outside the layer that it wraps.
    """
    with _without_autocast(x.device.type):
        out: Tensor = layer(x.to(torch.promote_types(x.dtype, torch.float32)))
        return out


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    # the compiler of torch 2.11 cannot ask whether there is autocast
    if torch.compiler.is_compiling() or torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()  # on the meta device, for example, where autocast would raise an error


class ExactLinear(nn.Linear):
    """``nn.Linear`` that computes in float32 at least.

    >>> ExactLinear(3, 2, dtype=torch.bfloat16)(torch.zeros(5, 3, dtype=torch.bfloat16)).dtype
    torch.float32
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(*_at_least_float32(x, self.weight, self.bias))


class _ExactConv(nn.modules.conv._ConvNd):
    """Convolution that computes in float32 at least.

    One with a kernel of size 1 is a matrix product: by default cuDNN rounds the float32 inputs of a convolution to the
    eleven bits of TF32.
    """

    def forward(self, x: Tensor) -> Tensor:
        x, weight, bias = _at_least_float32(x, self.weight, self.bias)
        if not self._is_matrix_product():
            return self._conv_forward(x, weight, bias)
        channels = -1 - len(self.kernel_size)
        return linear(x.movedim(channels, -1), weight.flatten(1), bias).movedim(-1, channels)

    def _is_matrix_product(self) -> bool:
        """Return whether every output depends on the one position at its own place."""
        unpadded = self.padding in ("same", "valid") or not any(self.padding)
        return unpadded and self.groups == 1 and {*self.kernel_size, *self.stride} == {1}


class ExactConv1d(_ExactConv, nn.Conv1d):
    """``nn.Conv1d`` that computes in float32 at least."""


class ExactConv2d(_ExactConv, nn.Conv2d):
    """``nn.Conv2d`` that computes in float32 at least."""


class ExactConv3d(_ExactConv, nn.Conv3d):
    """``nn.Conv3d`` that computes in float32 at least."""


def _at_least_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return all three in the precision of the finest of them, and float32 at least."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
