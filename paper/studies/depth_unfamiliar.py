"""Compares encoder blocks by how well they tell unfamiliar images, and measures what the white frame of NYU does to it.

    python paper/studies/depth_unfamiliar.py --data DATA --out paper/docs/results/depth_unfamiliar [--seeds 2]

Blocks: familiar are validation images. Unfamiliar are the same images blurred, noisy, negative and upside down, parts
of the two photographs that scikit-learn comes with, and rendered streets. The score is the mean feature distance over
the first n encoder blocks, of pooled features or of their logarithms. The kind of features and n, which is `BLOCKS` in
`howsure_paper.depth.plan`, are those with the largest AUROC. Images that the experiment scores are not used.

Frame: the labelled images of NYU Depth v2 have a white frame, CamVid has none. A network that was trained on images
with their frame is applied to validation images and CamVid as they are, with the frame painted onto CamVid, and with
the frame of the validation images painted over. Nothing is chosen by this. Without data the images are synthetic rooms
and streets.
"""

from dataclasses import replace

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from howsure.images import FittedImages, ImageRecipe
from howsure.likelihoods import Evidential
from howsure.metrics import auroc
from howsure.training import resolve_device
from howsure_paper.datasets import rooms
from howsure_paper.datasets.folder import find_data
from howsure_paper.depth.data import DepthData, load
from howsure_paper.depth.recipes import RECIPE
from howsure_paper.depth.scores import density_scores, image_scores
from howsure_paper.record import write_record
from shared import device_and_record, fit_depth, new_record, option_parser

METHOD = Evidential(0.01)
EDGE = 2  # width of the frame in pixels


def shifted_images(images: Tensor) -> dict[str, Tensor]:
    """Return, by the kind of shift, images (N, H, W, 3) of bytes that the experiment neither trains on nor scores."""
    size = tuple(images.shape[1:3])
    planes = images.permute(0, 3, 1, 2).float()
    blurred = interpolate(avg_pool2d(planes, 4), size=size, mode="bilinear").permute(0, 2, 3, 1)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return {
        "streets": torch.from_numpy(rooms.outdoors(100, 0, size)),
        "photographs": photographs(size),
        "upside down": images.flip(1),
        "blurred": blurred.byte(),
        "negative": 255 - images,
        "noisy": (images + 25 * noise).clamp(0, 255).byte(),
    }


def photographs(size: tuple[int, int], count: int = 40) -> Tensor:
    """Return random parts of two photographs, a temple and a flower."""
    random, parts = np.random.default_rng(0), []
    for photograph in load_sample_images().images:
        whole = torch.from_numpy(photograph.copy()).permute(2, 0, 1).float()
        for _ in range(count):
            height = int(random.uniform(0.5, 1) * whole.shape[1])
            width = min(height * size[1] // size[0], whole.shape[2])
            y, x = (int(random.integers(0, a - b + 1)) for a, b in zip(whole.shape[1:], (height, width), strict=True))
            part = whole[None, :, y : y + height, x : x + width]
            parts.append(interpolate(part, size=size, mode="bilinear", antialias=True)[0])
    return torch.stack(parts).permute(0, 2, 3, 1).round().clamp(0, 255).byte()


def frame_mask(size: tuple[int, int]) -> Tensor:
    """Return a mask (H, W) that is true on the frame."""
    mask = torch.ones(size, dtype=torch.bool)
    mask[EDGE:-EDGE, EDGE:-EDGE] = False
    return mask


def framed(images: Tensor, like: Tensor) -> Tensor:
    """Return the images with the mean frame of other images painted onto them."""
    result, mask = images.clone(), frame_mask(tuple(images.shape[1:3]))
    result[:, mask] = like.float().mean(0).byte()[mask]
    return result


def unframed(images: Tensor) -> Tensor:
    """Return the images with their frame painted over by the pixels beside it."""
    rows, columns = (torch.arange(n).clamp(EDGE, n - 1 - EDGE) for n in images.shape[1:3])
    return images[:, rows][:, :, columns]


def trained_model(data: DepthData, recipe: ImageRecipe, seed: int, device: torch.device) -> FittedImages:
    """Train an evidential network, and return it."""
    model = fit_depth(data.train, data.validation, METHOD, recipe, seed, device)
    print(f"seed {seed}, cut {data.cut}: validation NLL {float(model.training[0].best_score[0]):.3f}", flush=True)
    return model


def block_areas(data: DepthData, model: FittedImages, device: torch.device) -> dict[str, dict[str, list[float]]]:
    """Return the AUROC of the mean distance over the first 1, 2, … blocks, by kind of features and of shift."""
    groups = {"inside": data.validation.images.cpu(), **shifted_images(data.validation.images.cpu())}
    groups = {name: images.to(device) for name, images in groups.items()}
    pixels = data.train.images, data.validation.images
    found: dict[str, dict[str, list[float]]] = {}
    for kind, logarithms in (("logarithms", True), ("features", False)):
        _, blocks = density_scores(model.networks[0], *pixels, groups, logarithms)
        first = [
            {group: torch.stack([block[group] for block in blocks[:n]]).mean(0) for group in groups}
            for n in range(1, len(blocks) + 1)
        ]
        found[kind] = {name: [auroc(x["inside"], x[name]) for x in first] for name in list(groups)[1:]}
    return found


def frame_areas(data: DepthData, model: FittedImages, device: torch.device) -> dict[str, dict[str, float]]:
    """Return the AUROC of every score for CamVid, with the frames and without, and for the frame alone."""
    inside, outside = data.validation.images.cpu(), data.outside.cpu()
    groups = {"inside": inside, "outside": outside, "framed": framed(outside, data.train.images.cpu())}
    groups = {name: images.to(device) for name, images in (groups | {"unframed": unframed(inside)}).items()}
    distance, _ = density_scores(model.networks[0], data.train.images, data.validation.images, groups)
    scores = {name: image_scores(model.predict_batches(images)) for name, images in groups.items()}
    compared = {
        "CamVid": ("inside", "outside"),
        "CamVid with a frame": ("inside", "framed"),
        "CamVid, no frame on either": ("unframed", "outside"),
        "validation images without their frame": ("inside", "unframed"),
    }
    return {
        words: {score: auroc(scores[a][score], scores[b][score]) for score in scores[a]}
        | {"feature distance": auroc(distance[a], distance[b])}
        for words, (a, b) in compared.items()
    }


def main() -> None:
    parser = option_parser(__doc__, "depth_unfamiliar")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--width", type=int, default=RECIPE.width)
    parser.add_argument("--steps", type=int, default=RECIPE.settings.steps)
    options = parser.parse_args()
    device = resolve_device(options.device)
    recipe = replace(RECIPE, width=options.width, settings=replace(RECIPE.settings, steps=options.steps))
    record = new_record("depth_unfamiliar", device, width=options.width, steps=options.steps, blocks={}, frame={})
    folder = find_data(options.data)
    data = load(folder).to(device)
    for seed in range(100, 100 + options.seeds):
        areas = block_areas(data, trained_model(data, recipe, seed, device), device)
        record["blocks"][str(seed)] = areas
        for kind, by_shift in areas.items():
            means = " ".join(f"{value:.3f}" for value in np.mean(list(by_shift.values()), axis=0))
            print(f"{kind}: mean AUROC over the first 1, 2, … blocks {means}", flush=True)
    data = load(folder, cut=0).to(device)
    record["frame"] = frame_areas(data, trained_model(data, recipe, 100, device), device)
    for words, scores in record["frame"].items():
        print(f"{words}: " + ", ".join(f"{score} {area:.3f}" for score, area in scores.items()), flush=True)
    write_record(options.out, record)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
