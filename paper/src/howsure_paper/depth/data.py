"""The images of the depth experiment: NYU Depth v2 and CamVid, one's own, or synthetic rooms and streets."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsure import metrics
from howsure.distributions import Normal
from howsure.errors import InputError
from howsure.images import Pairs
from howsure_paper.datasets import depth as datasets
from howsure_paper.datasets import rooms
from howsure_paper.depth.plan import FRAME

__all__ = ["DepthData", "load", "mean_of_training"]


@dataclass(frozen=True)
class DepthData:
    """Pairs of images and maps to train on, to choose by and to test on, and images from elsewhere."""

    name: str
    train: Pairs
    validation: Pairs
    test: Pairs
    outside_name: str
    outside: Tensor
    synthetic: bool = False
    note: str = ""
    cut: int = 0  # pixels that were cut from each side of all images

    def to(self, device: torch.device) -> "DepthData":
        """Return the same images on a device."""
        parts = {name: getattr(self, name).to(device) for name in ("train", "validation", "test", "outside")}
        return replace(self, **parts)

    def record(self) -> dict[str, Any]:
        """Return what a record says of the data; it must be equal for a run to continue from another's record."""
        counts = {part: len(getattr(self, part).maps) for part in ("train", "validation", "test")}
        about = {"name": self.name, "synthetic": self.synthetic, "note": self.note, "cut": self.cut, **counts}
        return about | {"outside": self.outside_name, "outside images": len(self.outside)}


def load(
    data: Path | None = None,
    pairs: Path | None = None,
    outside: Path | None = None,
    seed: int = 0,
    quick: bool = False,
    cut: int | None = None,
) -> DepthData:
    """Load NYU and CamVid from a data folder, or one's own pairs and images; without either, render rooms and streets.

    Args:
        data: folder with the files of NYU and CamVid.
        pairs: a file or folder of one's own pairs.
        outside: a file or folder of images from elsewhere.
        seed: of the split by scenes, and of rendered rooms.
        quick: render fewer and smaller rooms, even where there is a data folder.
        cut: pixels to cut from each side of all images; by default the frame of NYU, and nothing from rendered rooms.
    """
    if pairs is not None or (data is not None and not quick):
        inside = datasets.load_nyu(pairs) if pairs is not None else datasets.nyu(data)
    else:
        size, count = ((48, 64), 1200) if quick else ((128, 160), 1600)
        inside = rooms.rooms(count, seed, size)
    size = inside.image.shape[1:3]
    if outside is not None:
        elsewhere, name = datasets.load_images(outside, size), outside.stem
    elif inside.synthetic:
        elsewhere, name = rooms.outdoors(max(32, len(inside) // 8), seed, size), "synthetic streets"
    else:
        elsewhere, name = datasets.camvid(data), "CamVid"
    cut = (0 if inside.synthetic else FRAME) if cut is None else cut
    if not 0 <= 2 * cut < min(size):
        raise InputError(f"cut must be at least 0 and leave something of images of {size[1]}×{size[0]}, got {cut}")
    kept = slice(None), *(slice(cut, length - cut) for length in size)
    train, validation, test = (
        Pairs(torch.from_numpy(inside.image[rows][kept]), torch.from_numpy(inside.disparity[rows][kept]))
        for rows in datasets.split_scenes(inside.scene, seed=seed)
    )
    outside_images = torch.from_numpy(elsewhere[kept])
    return DepthData(inside.name, train, validation, test, name, outside_images, inside.synthetic, inside.note, cut)


def mean_of_training(data: DepthData) -> dict[str, float]:
    """Return the test errors of the per-pixel mean and deviation of the training maps: a model without skill."""
    mean = data.train.maps.nanmean(0)
    deviation = (data.train.maps - mean).square().nanmean(0).sqrt()
    maps = data.test.maps
    model = Normal(mean.expand_as(maps), deviation.expand_as(maps), validate_args=False)
    scores = {"rmse": metrics.rmse, "mae": metrics.mae, "nll": metrics.nll}
    return {name: score(model, maps, mask=~maps.isnan()) for name, score in scores.items()}
