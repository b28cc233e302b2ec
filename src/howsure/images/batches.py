"""Batches of images and maps that are stored and augmented on the device, without worker processes or copies."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from howsure.errors import InputError
from howsure.training.batches import HashedBatches, random_integers

__all__ = ["Augmentation", "ImageBatches", "to_network"]


@dataclass(frozen=True)
class Augmentation:
    """Random changes of an image and its map. ``Augmentation(flip=False, zoom=1, color=0)`` changes nothing.

    Args:
        flip: mirror half of the pairs left to right.
        zoom: with 1.5, cut out between all and 1/1.5 of each side and enlarge it to the full size.
        color: largest relative change of contrast, brightness and gamma, in [0, 1); each channel changes by at most
            half of it.
        rescale: multiply the map by the zoom, up to 1. For disparities: an enlarged object looks nearer, as through a
            longer lens.
    """

    flip: bool = True
    zoom: float = 1.5
    color: float = 0.3
    rescale: bool = False

    def __post_init__(self) -> None:
        if not self.zoom >= 1:
            raise InputError(f"zoom is how much a part may be enlarged, at least 1, got {self.zoom}", value=self.zoom)
        if not 0 <= self.color < 1:
            raise InputError(f"color is a relative change in [0, 1), got {self.color}", value=self.color)

    def __call__(self, x: Tensor, y: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return changed images and maps.

        Args:
            x: images in [0, 1], (B, 3, H, W).
            y: maps, (B, H, W).
            uniform: random numbers in [0, 1), (B, 10), which determine the changes.
        """
        u = uniform.unbind(1)
        if self.flip or self.zoom > 1:
            zoom = torch.exp(u[0] * math.log(self.zoom))
            one = torch.ones_like(zoom)
            mirror = torch.where(u[1] < 0.5, -one, one) if self.flip else one
            room, zero = 1 - 1 / zoom, torch.zeros_like(zoom)
            across = torch.stack([mirror / zoom, zero, room * (2 * u[2] - 1)], 1)
            down = torch.stack([zero, 1 / zoom, room * (2 * u[3] - 1)], 1)
            grid = affine_grid(torch.stack([across, down], 1), list(x.shape), align_corners=False)
            x = grid_sample(x, grid, "bilinear", "border", align_corners=False)
            # by the nearest neighbour, because interpolation would spread missing values
            y = grid_sample(y.unsqueeze(1), grid, "nearest", "border", align_corners=False).squeeze(1)
            if self.rescale:
                y = (y * zoom.view(-1, 1, 1)).clamp(max=1)
        return (self._recolor(x, u[4:]) if self.color else x), y

    def _recolor(self, x: Tensor, u: tuple[Tensor, ...]) -> Tensor:
        """Return the images with other colors, determined by six uniform numbers per image."""

        def factor(part: Tensor, strength: float) -> Tensor:
            return torch.exp(math.log1p(strength) * (2 * part - 1))

        gamma, contrast, brightness = (factor(part, self.color).view(-1, 1, 1, 1) for part in u[:3])
        gains = factor(torch.stack(u[3:6], 1), self.color / 2).unflatten(1, (3, 1, 1))
        x = x.clamp(1e-4, 1) ** gamma
        middle = x.mean((1, 2, 3), keepdim=True)
        recolored: Tensor = (middle + (x - middle) * contrast) * brightness * gains
        return recolored.clamp(0, 1)


class ImageBatches(HashedBatches):
    """Random batches of images and maps from tensors on the device, drawn with replacement and augmented.

    Args:
        images: (N, H, W, 3), bytes.
        maps: (N, H, W), floats with NaN where there is no target.
        batch_size: pairs in a batch.
        seed: determines, with the step, the pairs and their changes.
        augmentation: random changes of each pair; None for none.
    """

    def __init__(
        self, images: Tensor, maps: Tensor, batch_size: int, seed: int = 0, augmentation: Augmentation | None = None
    ) -> None:
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != torch.uint8 or maps.shape != images.shape[:3]:
            raise InputError(
                "images (N, H, W, 3) of bytes and maps (N, H, W) are needed, "
                f"got {images.dtype} {tuple(images.shape)} and {tuple(maps.shape)}"
            )
        if not len(images):
            raise InputError("there are no images to train on")
        super().__init__(batch_size, images.device)
        self.images, self.maps, self.seed, self.augmentation = images, maps, seed, augmentation

    def next(self) -> tuple[Tensor, Tensor]:
        """Return images (B, 3, H, W) in [0, 1], with channels last in memory, and maps (B, H, W)."""
        drawn = random_integers(self.seed, self.step, (self.batch_size, 11))
        self.step += 1
        rows = drawn[:, 0] % len(self.images)
        x, y = to_network(self.images[rows]), self.maps[rows]
        if self.augmentation is None:
            return x, y
        # use the upper 24 of 62 bits, as many as a float32 holds
        x, y = self.augmentation(x, y, (drawn[:, 1:] >> 38).float() / (1 << 24))
        return x.contiguous(memory_format=torch.channels_last), y


def to_network(images: Tensor) -> Tensor:
    """Return images (N, H, W, 3) of bytes as floats (N, 3, H, W) in [0, 1], with channels last in memory."""
    return images.permute(0, 3, 1, 2).float() / 255
