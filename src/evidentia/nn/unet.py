"""A U-Net for maps: the network of Amini et al. (2020) for monocular depth, with a healthy head as the default."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, max_pool2d, pad, relu

from evidentia.errors import InputError, InputTypeError
from evidentia.nn.heads import _check_sizes, exact_conv

__all__ = ["UNet"]

HEADS = ("direct", "paper")


class UNet(nn.Module):
    """Images (N, C, H, W) → raw maps (N, outputs, H, W), the same size: four outputs for an evidential answer.

    Each encoder block is two 3×3 convolutions with ReLU, twice as wide as the block before; the decoder up-samples,
    puts the encoder's maps beside its own, and convolves twice. Spatial ``dropout`` follows each pooling and stands
    nowhere else; it draws from torch's global generator, or from ``generator`` where one on the network's device is set
    (to compile the network for CUDA, leave it None). Weights are float32 and Glorot uniform, biases zero; a ``seed``
    draws them and leaves torch's generator be.

    ``head="direct"`` is one 1×1 convolution. ``head="paper"`` squeezes an evidential answer through four channels and
    a ReLU first, as the authors did: where those channels die in training, all four maps follow what is left of them,
    or stay constant. Use it to repeat their work only. With any other number of outputs the two are the same. The head
    computes in float32 at least, also under ``torch.autocast``.

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
        _check_sizes(outputs=outputs, in_channels=in_channels, width=width, blocks=blocks)
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
        self.decoder = nn.ModuleList(_Up(*_layers(3 * w, w)) for w in reversed(widths[:-1]))
        squeezed = [4] if head == "paper" and outputs == 4 else []
        sizes = [width, *squeezed, outputs]
        self.head = nn.ModuleList(_conv(i, o, 1) for i, o in itertools.pairwise(sizes))
        self._draw(None if seed is None else torch.Generator().manual_seed(seed))

    def _draw(self, generator: torch.Generator | None) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    @property
    def generator(self) -> torch.Generator | None:
        """Where dropout draws from; None is torch's global generator."""
        return next((drop.generator for drop in cast(list[_Dropout2d], list(self.drops))), None)

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        for drop in cast(list[_Dropout2d], list(self.drops)):
            drop.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        return self._decode(self._encode(x))

    def forward_with_features(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Raw maps, and the spatial mean of every encoder block's output, (N, width·2ᵏ) in float32 at least.

        One pass gives both, so that a score of the features, such as :class:`~evidentia.nn.FeatureDensity`, costs next
        to nothing.
        """
        maps = self._encode(x)
        features = tuple(m.mean((2, 3), dtype=torch.promote_types(m.dtype, torch.float32)) for m in maps)
        return self._decode(maps), features

    def _encode(self, x: Tensor) -> list[Tensor]:
        """The output of every encoder block, from the finest to the coarsest."""
        self._check(x)
        maps = [self.encoder[0](x)]
        for drop, block in zip(self.drops, list(self.encoder)[1:], strict=True):
            maps.append(block(drop(max_pool2d(maps[-1], 2))))
        return maps

    def squeezed(self, x: Tensor) -> Tensor:
        """What passes the squeeze of the paper's head, (N, 4, H, W): a channel that is zero everywhere is dead."""
        if len(self.head) == 1:
            raise InputError("only an evidential network with head='paper' squeezes its answer")
        return relu(exact_conv(self._climb(self._encode(x)), cast(nn.Conv2d, self.head[0])))

    def _decode(self, maps: list[Tensor]) -> Tensor:
        x = self._climb(maps)
        for k, layer in enumerate(cast(list[nn.Conv2d], list(self.head))):
            x = exact_conv(relu(x) if k else x, layer)
        return x

    def _climb(self, maps: list[Tensor]) -> Tensor:
        """Back up from the coarsest maps to the features that the head sees."""
        *skips, x = maps
        for block, skip in zip(self.decoder, reversed(skips), strict=True):
            x = block(x, skip)
        return x

    def _check(self, x: Tensor) -> None:
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
                f"got {sizes[0]}×{sizes[1]}; the next that fit are {height}×{width}: resize, pad or crop the images"
            )

    @contextmanager
    def sampling(self) -> Iterator[Self]:
        """Dropout on, whatever the mode, and as it was afterwards: each pass inside is one Monte Carlo draw.

        >>> net = UNet(width=4, blocks=2, dropout=0.5).eval()
        >>> x = torch.ones(1, 3, 8, 8)
        >>> with net.sampling():
        ...     draws = torch.stack([net(x) for _ in range(5)])
        """
        before = [drop.training for drop in self.drops]
        try:
            for drop in self.drops:
                drop.train()
            yield self
        finally:
            for drop, mode in zip(self.drops, before, strict=True):
                drop.train(mode)


class _Dropout2d(nn.Dropout2d):
    """``nn.Dropout2d`` that draws from ``generator`` where one is set, the same numbers as torch from the same seed."""

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None or not self.training or not self.p:
            return super().forward(x)
        kept = x.new_empty((*x.shape[:2], 1, 1)).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept.div_(1 - self.p)


class _Up(nn.Sequential):
    """The layers of a block, on a map doubled in size by repeating its pixels, with ``skip`` beside it."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:  # type: ignore[override]
        first, *others = cast(list[nn.Conv2d], list(self))
        x = _convolve_doubled(x, skip, first)
        for layer in others:
            x = layer(x)
        return x


def _convolve_doubled(x: Tensor, skip: Tensor, conv: nn.Conv2d) -> Tensor:
    """``conv(cat([x with every pixel repeated to 2×2, skip], 1))``, without the repetition.

    A 3×3 kernel meets a repeated pixel at one or two of its places in each direction. So it is a 4×4 kernel of sums
    that writes around each pixel of the small map, a transposed convolution: 16/36 of the multiplications, and no large
    copy of ``x`` to write, to read, and on the way back to sum up.
    """
    doubled, beside = conv.weight.split([x.shape[1], skip.shape[1]], 1)
    sums = sum(pad(doubled, (i, 1 - i, j, 1 - j)) for i in (0, 1) for j in (0, 1))
    kernel = cast(Tensor, sums).flip(2, 3).transpose(0, 1)
    return conv_transpose2d(x, kernel, stride=2, padding=1) + conv2d(skip, beside, conv.bias, padding=1)


def _layers(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return _conv(inputs, outputs, 3), nn.ReLU(), _conv(outputs, outputs, 3), nn.ReLU()


def _conv(inputs: int, outputs: int, size: int) -> nn.Conv2d:
    """Return a convolution with "same" padding and no weights yet, in float32.

    Weights that torch draws itself would come from the global generator.
    """
    made = nn.utils.skip_init(nn.Conv2d, inputs, outputs, size, padding=size // 2, dtype=torch.float32)
    return cast(nn.Conv2d, made)
