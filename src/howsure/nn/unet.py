"""A U-Net that predicts maps: the network of Amini et al. (2020) for monocular depth, with a better head by default."""

import itertools
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, max_pool2d, pad, relu

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import check_counts
from howsure.nn.exact import ExactConv2d, call_exactly

__all__ = ["UNet"]

HEADS = ("direct", "paper")


class UNet(nn.Module):
    """U-Net from images (N, C, H, W) to raw maps (N, outputs, H, W).

    Each encoder block consists of two 3×3 convolutions with ReLU and is twice as wide as the block before. A decoder
    block doubles the size of its map, concatenates the encoder's map of that size, and convolves twice. The head
    computes in float32 at least, also under ``torch.autocast``.

    The dropout layers are in ``drops``. They draw from ``generator``, which must be on the network's device, or from
    torch's global generator if that is None. To compile the network for CUDA, leave it None.

    Args:
        outputs: raw outputs per pixel, four for an evidential network.
        in_channels: C.
        width: channels of the first block.
        blocks: number of encoder blocks. Heights and widths must be multiples of 2^(blocks − 1).
        dropout: rate of the spatial dropout after each pooling, in [0, 1).
        head: "direct" is one 1×1 convolution. "paper" first reduces the features to four evidential channels with a
            ReLU, as the authors did. If some of these channels are always zero after training, all four maps depend on
            the rest alone, or are constant: use it only to repeat their work. For other numbers of outputs both are
            the same.
        seed: the initial weights follow from it (float32, Glorot uniform; biases are zero), and torch's generator is
            untouched. None draws them from torch's generator.

    >>> UNet(width=4, blocks=3)(torch.zeros(2, 3, 16, 20)).shape
    torch.Size([2, 4, 16, 20])
    """

    def __init__(
        self,
        outputs: int = 4,
        in_channels: int = 3,
        width: int = 32,
        blocks: int = 5,
        dropout: float = 0.0,
        head: str = "direct",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_counts(outputs=outputs, in_channels=in_channels, width=width, blocks=blocks)
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), got {dropout}")
        if head not in HEADS:
            raise InputError(f"unknown head {head!r}; known are {', '.join(HEADS)}")
        self.in_channels, self.multiple = in_channels, 2 ** (blocks - 1)
        widths = [width * 2**k for k in range(blocks)]
        self.encoder = nn.ModuleList(
            nn.Sequential(*_layers(i, o)) for i, o in itertools.pairwise([in_channels, *widths])
        )
        self.drops = nn.ModuleList(_Dropout2d(dropout) for _ in widths[1:])
        self.decoder = nn.ModuleList(_UpBlock(*_layers(3 * w, w)) for w in reversed(widths[:-1]))
        squeezed = [4] if head == "paper" and outputs == 4 else []
        sizes = [width, *squeezed, outputs]
        self.head = nn.ModuleList(_conv(i, o, 1, ExactConv2d) for i, o in itertools.pairwise(sizes))
        self._draw(None if seed is None else torch.Generator().manual_seed(seed))

    def _draw(self, generator: torch.Generator | None) -> None:
        """Draw the initial weights."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    @property
    def generator(self) -> torch.Generator | None:
        """Generator that dropout draws from; None is torch's global one."""
        return next((drop.generator for drop in cast(list[_Dropout2d], list(self.drops))), None)

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        for drop in cast(list[_Dropout2d], list(self.drops)):
            drop.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_head(self._decode(self._encode(x)))

    def forward_with_features(self, x: Tensor, blocks: int | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the raw maps, and the spatial mean of the output of every encoder block, or of the first ``blocks``.

        Both come from one pass, so that a score of the features, such as :class:`~howsure.nn.FeatureDensity`, costs
        next to nothing.

        Returns:
            The maps, (N, outputs, H, W); and features (N, width·2ᵏ) of block k = 0, 1, …, in float32 at least.
        """
        maps = self._encode(x)
        return self._apply_head(self._decode(maps)), tuple(_pool(m) for m in maps[:blocks])

    def pooled(self, x: Tensor, blocks: int) -> tuple[Tensor, ...]:
        """Return the features of the first blocks, as :meth:`forward_with_features` does, without the rest."""
        return tuple(_pool(m) for m in self._encode(x, blocks))

    def _encode(self, x: Tensor, blocks: int | None = None) -> list[Tensor]:
        """Return the output of every encoder block, from the finest to the coarsest, or of the first ``blocks``."""
        self._check(x)
        maps = [self.encoder[0](x)]
        for drop, block in list(zip(self.drops, list(self.encoder)[1:], strict=True))[: blocks and blocks - 1]:
            maps.append(block(drop(max_pool2d(maps[-1], 2))))
        return maps

    def _decode(self, maps: list[Tensor]) -> Tensor:
        """Return the output of the last decoder block, (N, width, H, W), from the outputs of the encoder blocks."""
        *skips, x = maps
        for block, skip in zip(self.decoder, reversed(skips), strict=True):
            x = block(x, skip)
        return x

    def _apply_head(self, x: Tensor) -> Tensor:
        """Return the raw maps from the output of the decoder."""
        for k, layer in enumerate(self.head):
            x = call_exactly(layer, relu(x) if k else x)
        return x

    def _check(self, x: Tensor) -> None:
        """Raise an error if x is not a batch of images of a size that the network can take."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"UNet expects a tensor of images, not {type(x).__name__}")
        if not x.is_floating_point():
            raise InputTypeError(
                f"UNet expects floating-point images, not {x.dtype}; convert, and scale bytes by 1/255"
            )
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise InputError(f"UNet expects images of shape (N, {self.in_channels}, H, W), got {tuple(x.shape)}")
        sizes, step = tuple(x.shape[2:]), self.multiple
        if any(size < 1 or size % step for size in sizes):
            height, width = (max(-(-size // step), 1) * step for size in sizes)
            raise InputError(
                f"UNet with {len(self.encoder)} blocks expects heights and widths that are multiples of {step}, "
                f"got {sizes[0]}×{sizes[1]}. Resize, pad or crop the images to {height}×{width}, for example"
            )


class _Dropout2d(nn.Dropout2d):
    """``nn.Dropout2d`` that draws from ``generator`` if one is set: the numbers torch draws from the same seed."""

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None or not self.training or not self.p:
            return super().forward(x)
        kept = x.new_empty((*x.shape[:2], 1, 1)).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept.div_(1 - self.p)


class _UpBlock(nn.Sequential):
    """Decoder block: doubles a map by repeating its pixels, concatenates ``skip``, and applies the block's layers."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:  # type: ignore[override]
        first, *others = cast(list[nn.Conv2d], list(self))
        x = _convolve_doubled(x, skip, first)
        for layer in others:
            x = layer(x)
        return x


def _convolve_doubled(x: Tensor, skip: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return ``conv(cat([x with every pixel repeated to 2×2, skip], 1))`` without repeating pixels.

    A 3×3 kernel on a map of repeated pixels is a transposed convolution of the small map with a 4×4 kernel, whose
    entries are sums of the 3×3 kernel's. It needs 16/36 of the multiplications and no large copy of ``x``, nor the sum
    over that copy in the backward pass.
    """
    doubled, beside = conv.weight.split([x.shape[1], skip.shape[1]], 1)
    sums = sum(pad(doubled, (i, 1 - i, j, 1 - j)) for i in (0, 1) for j in (0, 1))
    kernel = cast(Tensor, sums).flip(2, 3).transpose(0, 1)
    return conv_transpose2d(x, kernel, stride=2, padding=1) + conv2d(skip, beside, conv.bias, padding=1)


def _pool(x: Tensor) -> Tensor:
    """Return the mean over all pixels, in float32 at least."""
    return x.mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))


def _layers(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Return the layers of a block."""
    return _conv(inputs, outputs, 3), nn.ReLU(), _conv(outputs, outputs, 3), nn.ReLU()


def _conv(inputs: int, outputs: int, size: int, layer: type[nn.Conv2d] = nn.Conv2d) -> nn.Conv2d:
    """Return a float32 convolution with "same" padding and uninitialised weights.

    Otherwise torch would draw weights from the global generator.
    """
    made = nn.utils.skip_init(layer, inputs, outputs, size, padding=size // 2, dtype=torch.float32)
    return cast(nn.Conv2d, made)
