"""Familiarity of an image: by its appearance, and by the features of a network.

The appearance is a few numbers of the pixels alone: the frequency of each level of a colour, and the strength of the
edges are. They do not depend on a network, so that they also detect differences that a network has learned to
overlook.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from howsure.errors import InputError, InputTypeError
from howsure.nn.checks import check_counts
from howsure.nn.density import FeatureDensity

__all__ = ["APPEARANCE", "BLOCKS", "COLOURS", "MIN_IMAGES", "ImageFading", "Seen", "appearance"]

BINS = 16  # of each histogram
CHANNELS = 3
COLOURS = BINS * CHANNELS
"""Number of features that `appearance` returns for an image's colours, before those of its gradients."""
APPEARANCE = COLOURS + BINS
"""Number of features that `appearance` returns for an image."""

BLOCKS = 3
"""Encoder blocks whose pooled features count: the first, which see how things look more than what they are."""
MIN_IMAGES = 10
"""Images that a distance needs. With fewer, the evidence is not reduced."""
TREND = 8  # principal components that the usual distance depends on
SHARPEST = 3.0  # deviations along a principal component beyond which the usual distance changes no more
FOLDS = 5

MIN_SHARE = 1e-6  # of the evidence that counts, however far an image is
AT_ONCE = 1 << 25  # comparisons of pixels with edges of bins that are kept at once


def appearance(images: Tensor) -> Tensor:
    """Return square roots of histograms of an image's colours and of its gradients, (N, 64), for images (N, 3, H, W).

    The first 48 features are 16 bins of red, green and blue. The last 16 are bins of the logarithm of the gradient's
    size, between neighbouring pixels of the mean of the channels. Square roots make the differences of frequencies
    about equally uncertain, whether rare or common. Images are from 0 to 1, of any size. An image one pixel high or
    wide has no gradient in that direction. A grey image has three equal channels.

    >>> appearance(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 64])
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise InputTypeError("appearance expects a tensor of floats from 0 to 1; scale bytes by 1/255")
    if images.ndim != 4 or images.shape[1] != CHANNELS or 0 in images.shape[2:]:
        raise InputError(f"appearance expects images of shape (N, {CHANNELS}, H, W), got {tuple(images.shape)}")
    with torch.autocast(images.device.type, enabled=False):
        x = images.to(torch.promote_types(images.dtype, torch.float32))
        k = torch.arange(BINS - 1, dtype=x.dtype, device=x.device)
        # Bytes 0 to 15 are the first bin, …; half a byte below each edge, so that rounding is harmless.
        colors = _shares(x, ((k + 1) * (256 / BINS) - 0.5) / 255)
        # From less than a byte to half of the range, equally spaced in the logarithm of a byte more.
        gradients = _shares(_gradient(x.mean(1, keepdim=True)), torch.exp(-5.4 + 4.6 / (BINS - 2) * k) - 1 / 255)
        return torch.cat([colors, gradients], 1).flatten(1).sqrt()


def _gradient(grey: Tensor) -> Tensor:
    """Return the size of the gradient between neighbouring pixels, (N, 1, H, W); 0 across the last row and column."""
    down = pad(grey[:, :, 1:] - grey[:, :, :-1], (0, 0, 0, 1))
    across = pad(grey[:, :, :, 1:] - grey[:, :, :, :-1], (0, 1, 0, 0))
    return torch.sqrt(down.square() + across.square())


def _shares(x: Tensor, edges: Tensor) -> Tensor:
    """Return the share of pixels (N, C, H, W) in each bin, (N, C, bins), the first of them below the first edge."""
    step = max(1, AT_ONCE // max(1, x.numel()))
    pixels = x.flatten(2).contiguous().unsqueeze(2)  # pixels next to each other in memory: sums are faster
    shares = [(pixels >= some[:, None]).sum(3, dtype=x.dtype) for some in edges.split(step)]
    above = torch.cat(shares, 2) / pixels.shape[3]
    return pad(above, (1, 0), value=1.0) - pad(above, (0, 1))


class Seen(NamedTuple):
    """Inputs of the familiarity of N images: `appearance` (N, 64), and pooled features (N, C) of each block."""

    appearance: Tensor
    pooled: tuple[Tensor, ...]

    def to(self, device: torch.device | str) -> "Seen":
        """Return the same on a device."""
        return Seen(self.appearance.to(device), tuple(block.to(device) for block in self.pooled))

    @classmethod
    def cat(cls, parts: Sequence["Seen"]) -> "Seen":
        """Return several batches as one."""
        blocks = zip(*(part.pooled for part in parts), strict=True)
        return cls(torch.cat([part.appearance for part in parts]), tuple(torch.cat(block) for block in blocks))


class ImageFading(nn.Module):
    r"""Share of a network's evidence to keep for an image, of shape (N,): :math:`w = \min(1, (r/d)^p)`.

    The features are logarithms of the pooled features of the first three blocks, and :func:`appearance`. Each of the
    parts is divided by its spread over the training images. d is their Mahalanobis distance from the training images
    (:class:`FeatureDensity`, with the covariance of Ledoit and Wolf), divided by the distance that is usual for such an
    image. The usual distance is a linear function of the first eight principal components, fitted to logarithms of the
    training images' own distances, each measured by a density that has not seen it: bare walls are always farther from
    the mean than a room full of things, and would otherwise count as less familiar than a street. The reach r is the
    median of d over validation images, and p is 4. How all this was chosen: ``studies/depth_fading.py``.

    Its buffer ``width`` is the factor of the scales of the network, 1 until validation maps choose another.

    Use :meth:`fit` to make one. ``ImageFading(channels)`` itself returns NaN until a state dict is loaded into it.

    Args:
        channels: of the encoder's blocks; the first three count.
    """

    least: Tensor
    scale: Tensor
    directions: Tensor
    trend: Tensor
    reach: Tensor
    power: Tensor
    width: Tensor

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.channels = tuple(channels)[:BLOCKS]
        for count in self.channels:
            check_counts(channels=count)
        features = sum(self.channels) + APPEARANCE
        shapes: dict[str, tuple[int, ...]] = {
            "least": (sum(self.channels),),
            "scale": (features,),
            "directions": (features, TREND),
            "trend": (TREND + 1,),
            "reach": (),
            "power": (),
            "width": (),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.full(shape, torch.nan, dtype=torch.float64))
        self.density = FeatureDensity(features)

    @classmethod
    @torch.no_grad()
    def fit(cls, train: Seen, validation: Seen | None = None, *, power: float = 4.0, quantile: float = 0.5) -> Self:
        """Fit the distances to training and validation images.

        Args:
            train: features of at least ten images that the network was trained on.
            validation: the same of images that it was not trained on. With fewer than ten of these, or None, the reach
                comes from the training images, each measured by a density without it.
            power: p; 0 keeps all evidence.
            quantile: share of the validation images that keep all evidence.
        """
        count = len(train.appearance)
        if count < MIN_IMAGES:
            raise InputError(f"a distance from training images needs at least {MIN_IMAGES} of them, got {count}")
        if not (math.isfinite(power) and power >= 0):
            raise InputError(f"power must be a number of at least 0, got {power}", value=power)
        if not 0 < quantile <= 1:
            raise InputError(f"quantile is a share of the images in (0, 1], got {quantile}", value=quantile)
        new = cls([block.shape[1] for block in train.pooled]).to(train.appearance.device)
        new.power.fill_(power)
        new.width.fill_(1.0)
        # otherwise a channel that is zero in one image decides alone
        means = [block.double().mean().expand(block.shape[1]) for block in train.pooled[:BLOCKS]]
        new.least.copy_(torch.cat([torch.where(mean > 0, 0.01 * mean, 1.0) for mean in means]))
        new.scale.fill_(1.0)
        parts = new.features(train).split([*new.channels, COLOURS, BINS], 1)
        spreads = [part.var(0, correction=0).mean().sqrt().expand(part.shape[1]) for part in parts]
        new.scale.copy_(torch.cat([torch.where(spread > 0, spread, 1.0) for spread in spreads]))
        x = new.features(train)
        unseen = new._set_density(x)
        enough = validation is not None and len(validation.appearance) >= MIN_IMAGES
        distances = new.distance(validation) if enough and validation is not None else unseen
        new.reach.copy_(torch.quantile(distances.double(), quantile))
        return new

    def _set_density(self, x: Tensor) -> Tensor:
        """Fit density and trend to features (N, D), and return the distances of the rows, each as if it were new."""
        if bool((x == x[0]).all()):  # equal images: every distance is 0
            for buffer in (self.density.mean, self.density.whiten, self.directions, self.trend):
                buffer.zero_()
            return x.new_zeros(len(x))
        self.density.load_state_dict(FeatureDensity.fit(x).state_dict())
        fold = torch.arange(len(x), device=x.device) * FOLDS // len(x)  # neighbours are often frames of one scene
        unseen = x.new_zeros(len(x))
        for k in range(FOLDS):
            rest = x[fold != k]
            rest = x if bool((rest == rest[0]).all()) else rest
            unseen[fold == k] = FeatureDensity.fit(rest)(x[fold == k]).to(x.dtype)
        _, spreads, directions = torch.linalg.svd(x - self.density.mean, full_matrices=False)
        spreads = spreads / math.sqrt(len(x))
        used = int((spreads[:TREND] > 1e-6 * spreads[0]).sum()) if len(x) >= 10 * TREND else 0
        self.directions.zero_()
        self.directions[:, :used] = directions[:used].mT / spreads[:used]
        z = torch.cat([x.new_ones(len(x), 1), self._components(x)], 1)
        penalty = MIN_IMAGES * torch.eye(TREND + 1, dtype=x.dtype, device=x.device)
        penalty[0, 0] = 1e-9
        log = unseen.clamp(min=1e-12).log()
        self.trend.copy_(torch.linalg.solve(z.mT @ z + penalty, z.mT @ log))
        return (log - z @ self.trend).exp()

    def features(self, seen: Seen) -> Tensor:
        """Return all features, each part in units of its spread, (N, D), in the dtype of the buffers."""
        blocks = seen.pooled[:BLOCKS]
        if tuple(block.shape[1] for block in blocks) != self.channels:
            found = [block.shape[1] for block in seen.pooled]
            raise InputError(f"ImageFading expects blocks of {list(self.channels)} channels, got {found}", value=found)
        dtype = self.least.dtype
        logs = (torch.cat(blocks, 1).to(dtype) + self.least).log()
        return torch.cat([logs, seen.appearance.to(dtype)], 1) / self.scale

    def _components(self, x: Tensor) -> Tensor:
        """Return the first principal components of features, in units of their deviation, (N, 8)."""
        return ((x - self.density.mean) @ self.directions).clamp(-SHARPEST, SHARPEST)

    def distance(self, seen: Seen) -> Tensor:
        """Return the distances of images from the training images, in units of the usual distance, (N,)."""
        with torch.autocast(seen.appearance.device.type, enabled=False):
            x = self.features(seen)
            usual = torch.exp(self._components(x) @ self.trend[1:] + self.trend[0])
            distance: Tensor = self.density(x) / usual
        return distance

    def forward(self, seen: Seen) -> Tensor:
        distance = self.distance(seen)
        return torch.where(distance <= self.reach, 1.0, (self.reach / distance).pow(self.power).clamp(min=MIN_SHARE))
