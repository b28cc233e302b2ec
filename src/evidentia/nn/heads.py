"""Heads: the last layer of a network, from features to a distribution.

A head replaces the last ``Linear`` or ``Conv2d`` of any model. It computes in float32 at least, also under
``torch.autocast`` and in a model cast to bfloat16: eight bits of precision are enough for features, but not for a
prediction and its variance.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from evidentia.distributions import Gaussian, NormalInverseGamma
from evidentia.errors import InputError, InputTypeError
from evidentia.nn.checks import check_counts, check_features

__all__ = ["GaussianHead", "NIGConv2d", "NIGHead"]


class _Dense(nn.Module):
    """Linear layer with ``parameters_per_target`` outputs for each target, in the last dimension."""

    parameters_per_target: int

    def __init__(self, in_features: int, targets: int | None = None, *, device: Any = None, dtype: Any = None):
        super().__init__()
        check_counts(in_features=in_features, targets=1 if targets is None else targets)
        self.in_features, self.targets = in_features, targets
        outputs = (targets or 1) * self.parameters_per_target
        self.linear = nn.Linear(in_features, outputs, device=device, dtype=dtype)

    def raw(self, x: Tensor) -> Tensor:
        """Return the raw outputs as a plain tensor, from which ``from_raw`` makes the distribution.

        Args:
            x: features, (…, F).

        Returns:
            (…, P) with P outputs per target, or (…, T, P) with ``targets=T``.
        """
        check_features(self, x, self.in_features)
        with torch.autocast(x.device.type, enabled=False):
            out = linear(*_at_least_float32(x, self.linear.weight, self.linear.bias))
        return out if self.targets is None else out.unflatten(-1, (self.targets, self.parameters_per_target))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, targets={self.targets}"


class NIGHead(_Dense):
    """Linear layer that maps features (…, F) to a :class:`~evidentia.NormalInverseGamma`.

    Args:
        in_features: F.
        targets: None for one target, an answer of shape (…,); or the number T of targets, an answer of shape (…, T).
        device, dtype: of the parameters, as in ``nn.Linear``.

    >>> head = NIGHead(64)
    >>> head(torch.zeros(8, 64)).batch_shape
    torch.Size([8])
    >>> NIGHead(64, targets=3).raw(torch.zeros(8, 64)).shape
    torch.Size([8, 3, 4])
    """

    parameters_per_target = 4

    def forward(self, x: Tensor) -> NormalInverseGamma:
        return NormalInverseGamma.from_raw(self.raw(x))


class GaussianHead(_Dense):
    """Linear layer that maps features (…, F) to a :class:`~evidentia.Gaussian`.

    The arguments are those of :class:`NIGHead`. The standard deviation is the softplus of the second raw output plus
    1e-6.

    >>> GaussianHead(64)(torch.zeros(8, 64)).loc.shape
    torch.Size([8])
    """

    parameters_per_target = 2

    def forward(self, x: Tensor) -> Gaussian:
        return Gaussian.from_raw(self.raw(x))


class NIGConv2d(nn.Module):
    """Convolution with "same" padding that maps feature maps to a :class:`~evidentia.NormalInverseGamma` per pixel.

    Args:
        in_channels: C, for feature maps of shape (N, C, H, W).
        targets: None for one target, an answer of shape (N, H, W); or the number T of targets, an answer of shape
            (N, T, H, W).
        kernel_size: height and width of the kernel.
        device, dtype: of the parameters, as in ``nn.Conv2d``.

    >>> NIGConv2d(32)(torch.zeros(2, 32, 8, 10)).batch_shape
    torch.Size([2, 8, 10])
    """

    def __init__(
        self,
        in_channels: int,
        targets: int | None = None,
        kernel_size: int = 1,
        *,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        check_counts(in_channels=in_channels, targets=1 if targets is None else targets, kernel_size=kernel_size)
        self.in_channels, self.targets = in_channels, targets
        self.conv = nn.Conv2d(
            in_channels,
            4 * (targets or 1),
            kernel_size,
            padding="same",
            device=device,
            dtype=dtype,
        )

    def raw(self, x: Tensor) -> Tensor:
        """Return the raw outputs as a plain tensor, from which ``from_raw(raw, dim=-3)`` makes the distribution.

        Args:
            x: feature maps, (N, C, H, W) or (C, H, W).

        Returns:
            (N, 4, H, W), or (N, T, 4, H, W) with ``targets=T``.
        """
        if not isinstance(x, Tensor):
            raise InputTypeError(f"{type(self).__name__} expects a tensor, not {type(x).__name__}")
        if x.ndim not in (3, 4) or x.shape[-3] != self.in_channels:
            raise InputError(
                f"{type(self).__name__} expects maps of shape (N, {self.in_channels}, H, W), got {tuple(x.shape)}"
            )
        out = exact_conv(x, self.conv)
        return out if self.targets is None else out.unflatten(-3, (self.targets, 4))

    def forward(self, x: Tensor) -> NormalInverseGamma:
        return NormalInverseGamma.from_raw(self.raw(x), dim=-3)

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, targets={self.targets}"


def exact_conv(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Return the layer's output with "same" padding, computed in float32 at least, also under autocast.

    A 1×1 convolution is computed as a matrix product: by default cuDNN rounds the float32 inputs of a convolution to
    the eleven bits of TF32.
    """
    with torch.autocast(x.device.type, enabled=False):
        x, weight, bias = _at_least_float32(x, layer.weight, layer.bias)
        if weight.shape[2:] == (1, 1):
            return linear(x.movedim(-3, -1), weight.flatten(1), bias).movedim(-1, -3)
        return conv2d(x, weight, bias, padding="same")


def _at_least_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    assert bias is not None
    dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    return x.to(dtype), weight.to(dtype), bias.to(dtype)
