"""Images and the maps that belong to them, as tensors of one size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from howsure.errors import InputError, InputTypeError
from howsure.images.folders import check_unknown, load_pairs
from howsure.prediction import real_numbers
from howsure.tables.splits import random

__all__ = ["MAX_TARGET", "Pairs", "as_images", "read_pairs"]

MAX_TARGET = 1e15  # largest target, and inverse of the smallest spread: squares must be finite in float32


@dataclass(frozen=True)
class Pairs:
    """Images (N, H, W, 3) as bytes and maps (N, H, W) as floats, NaN where there is no target, on one device."""

    images: Tensor
    maps: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> "Pairs":
        """Return the pairs on this device."""
        return Pairs(self.images.to(device), self.maps.to(device))

    def chunks(self, size: int = 48) -> Iterator["Pairs"]:
        """Yield the pairs, a few at a time."""
        return map(Pairs, self.images.split(size), self.maps.split(size))

    def select(self, rows: ArrayLike) -> "Pairs":
        """Return some of the pairs."""
        chosen = torch.as_tensor(np.asarray(rows), device=self.images.device)
        return Pairs(self.images[chosen], self.maps[chosen])


def read_pairs(images: Any, targets: Any = None, unknown: float | None = None) -> Pairs:
    """Return pairs from arrays, or from a folder or zip with ``image/`` and ``target/``.

    Args:
        images: (N, H, W, 3) or (N, H, W), bytes or floats from 0 to 1; or the path of a folder or zip; or `Pairs`.
        targets: maps (N, H, W) or (N, H, W, 1) of numbers, NaN where unknown; None if ``images`` is a path or `Pairs`.
        unknown: a value of the targets that means unknown, as 0 does in the maps of depth cameras.
    """
    check_unknown(unknown)
    if isinstance(images, Pairs):
        if targets is not None:
            raise InputError("pairs have their targets with them; leave out the second argument")
        images, targets = images.images, images.maps
    if isinstance(images, str | Path):
        if targets is not None:
            raise InputError("a folder has its targets in it, in target/; leave out the second argument")
        images, targets, _ = load_pairs(images, unknown)
    if targets is None:
        raise InputError("targets are missing: pass images and targets, or a folder with image/ and target/")
    pictures = as_images(images)
    values = _as_maps(targets, unknown)
    if values.shape != pictures.shape[:3]:
        raise InputError(
            f"images of shape {tuple(pictures.shape)} need targets of shape {tuple(pictures.shape[:3])}, "
            f"got {tuple(values.shape)}"
        )
    return Pairs(pictures, values)


def _as_maps(targets: Any, unknown: float | None) -> Tensor:
    """Return maps as float32 with NaN where unknown; raise where float32 cannot hold them, or nothing is known."""
    if isinstance(targets, Tensor) and targets.dtype == torch.float32:
        exact = targets.detach()
    else:
        exact = torch.from_numpy(real_numbers("targets", targets))
    exact = exact[..., 0] if exact.ndim == 4 and exact.shape[-1] == 1 else exact
    if unknown is not None:
        exact = torch.where(exact == float(unknown), torch.nan, exact)
    if bool(exact.isinf().any()):
        image = int(exact.isinf().flatten(1).any(1).nonzero()[0])
        raise InputError(f"targets has infinite values (first in image {image}); unknown ones are NaN")
    known = exact[~exact.isnan()].double()
    if not len(known):
        raise InputError("targets has no known value: all of them are NaN, or equal to unknown=")
    size, spread = float(known.abs().max()), float(known.max() - known.min())
    if size > MAX_TARGET or 0 < spread < 1 / MAX_TARGET:
        raise InputError(
            f"targets of size {size:.3g} that vary by {spread:.3g} have variances that float32 cannot hold; pass them "
            "in other units"
        )
    if 0 < spread < 1e-5 * size and exact.dtype == torch.float64:
        raise InputError(
            f"targets near {size:.6g} vary by {spread:.3g} only, too little for float32: subtract a constant"
        )
    return exact.float()


def as_images(images: Any) -> Tensor:
    """Return images as bytes (N, H, W, 3): grey ones in three equal channels, floats from 0 to 1 times 255."""
    if isinstance(images, Tensor) and images.dtype == torch.uint8 and images.ndim == 4 and images.shape[3] == 3:
        return images
    try:
        pixels = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    except (ValueError, TypeError) as error:
        raise InputError(f"images must have one size, as one array ({error}); resize them first") from error
    if pixels.dtype.kind not in "uif":
        hint = "; read the files of a folder with howsure.images.load_images" if pixels.dtype.kind in "US" else ""
        raise InputTypeError(f"images are numbers, bytes or floats from 0 to 1, not {pixels.dtype}{hint}")
    if pixels.ndim == 3 and pixels.shape[2] == 3:
        raise InputError(f"images of shape {pixels.shape} look like one image in colour; pass images[None] for one")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape[1:]:
        hint = "; move the channels to the end" if pixels.ndim == 4 and pixels.shape[1] in (1, 3) else ""
        raise InputError(
            f"images have shape (N, H, W, 3), or (N, H, W) if they are grey, got {tuple(np.shape(images))}{hint}"
        )
    if pixels.dtype.kind == "f":
        if not ((pixels >= 0) & (pixels <= 1)).all():  # NaN is neither
            raise InputError("images of floats lie between 0 and 1; divide them by their largest value, or pass bytes")
        pixels = np.rint(pixels * 255)
    elif pixels.dtype == np.uint16 and pixels.size and pixels.max() > 255:
        pixels = pixels // 257
    elif pixels.size and (pixels.min() < 0 or pixels.max() > 255):
        raise InputError(f"images of {pixels.dtype} lie between 0 and 255, got {pixels.min()} to {pixels.max()}")
    return torch.from_numpy(np.array(np.broadcast_to(pixels, (*pixels.shape[:3], 3)), dtype=np.uint8))


def hold_out_images(pairs: Pairs, share: float, groups: ArrayLike | None, seed: int) -> tuple[Pairs, Pairs]:
    """Return (training, validation) pairs: a share of the images at random, or of whole groups until it is reached."""
    if not 0 < share < 1:
        raise InputError(f"validation is a share of the images between 0 and 1, or other pairs, got {share}")
    if groups is None:
        train, validation = random(len(pairs), share, seed)
        return pairs.select(train), pairs.select(validation)
    labels = np.asarray(groups)
    if labels.shape != (len(pairs),):
        raise InputError(f"groups needs one entry per image, ({len(pairs)},), got {labels.shape}", value=labels.shape)
    try:
        names, index = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(f"groups must be labels of one kind, numbers or text ({error})") from error
    if len(names) < 2:
        raise InputError("groups has one group only; at least two are needed, one of them to validate with")
    counts, goal, held = np.bincount(index), share * len(pairs), np.zeros(len(names), dtype=bool)
    for group in np.random.default_rng(seed).permutation(len(names)):
        # a group is held out if that brings their number nearer to the goal
        now = counts[held].sum()
        held[group] = abs(now + counts[group] - goal) < abs(now - goal)
    if not held.any():
        held[np.argmin(counts)] = True
    if held.all():
        held[np.argmax(counts)] = False
    return pairs.select(np.flatnonzero(~held[index])), pairs.select(np.flatnonzero(held[index]))


def padded(pairs: Pairs, multiple: int) -> Pairs:
    """Return pairs whose sides are multiples of a number: images repeat their last pixels, maps are unknown there."""
    right, bottom = padding(pairs.images.shape[1:3], multiple)
    if not right and not bottom:
        return pairs
    maps = torch.nn.functional.pad(pairs.maps, (0, right, 0, bottom), value=torch.nan)
    return Pairs(pad_images(pairs.images, multiple), maps)


def pad_images(images: Tensor, multiple: int) -> Tensor:
    """Return images (N, H, W, 3) whose last row and column are repeated until both sides are multiples of a number."""
    height, width = images.shape[1:3]
    right, bottom = padding((height, width), multiple)
    rows = torch.arange(height + bottom, device=images.device).clamp(max=height - 1)
    columns = torch.arange(width + right, device=images.device).clamp(max=width - 1)
    return images[:, rows][:, :, columns]


def padding(size: Sequence[int], multiple: int) -> tuple[int, int]:
    """Return how many columns and rows are missing to a multiple of this number in both directions."""
    height, width = size
    return -width % multiple, -height % multiple
