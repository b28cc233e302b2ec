"""Which encoder blocks tell unfamiliar images, by shifts made up for it; and what the white frame of NYU does to it.

    python studies/depth_unfamiliar.py --data DATA --out docs/results/depth_unfamiliar [--seeds 2] [--width 32]

Blocks: evidential networks are asked about validation images, and about these images blurred, noisy, negative and
upside down, parts of the two photographs that scikit-learn comes with, and rendered streets. The mean distance over the
first n blocks is the score, of pooled features or of their logarithms. Which, and `BLOCKS`, the n, of
`evidentia.reproduce.depth.scores` are those of the largest AUROC. Images that the experiment asks about are not looked
at.

Frame: the labelled images of NYU Depth v2 have a white frame, CamVid has none. A network that was trained on images
with their frame is asked about validation images and CamVid as they are, with the frame painted onto CamVid, and with
the frame of the validation images painted over. Nothing is chosen by this.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from evidentia.datasets import rooms
from evidentia.fitting import fit_images
from evidentia.methods import Evidential
from evidentia.metrics import auroc
from evidentia.record import environment, write_record
from evidentia.reproduce.depth import run as depth
from evidentia.reproduce.depth.scores import DepthModel, density_scores, look
from evidentia.training import resolve_device

METHOD = Evidential(0.01)
EDGE = 2  # width of the frame in pixels


def shifts(images: Tensor) -> dict[str, Tensor]:
    """Images (N, H, W, 3) of bytes that no network was trained on, nor will be judged by."""
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
    """Random parts of two photographs, a temple and a flower."""
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


def edge(size: tuple[int, int]) -> Tensor:
    """True on the frame."""
    mask = torch.ones(size, dtype=torch.bool)
    mask[EDGE:-EDGE, EDGE:-EDGE] = False
    return mask


def framed(images: Tensor, like: Tensor) -> Tensor:
    """With the frame of other images' mean."""
    result, mask = images.clone(), edge(tuple(images.shape[1:3]))
    result[:, mask] = like.float().mean(0).byte()[mask]
    return result


def unframed(images: Tensor) -> Tensor:
    """The frame painted over with what is beside it."""
    rows, columns = (torch.arange(n).clamp(EDGE, n - 1 - EDGE) for n in images.shape[1:3])
    return images[:, rows][:, :, columns]


def network_for(data: depth.DepthData, recipe, seed: int, device):
    network, training = fit_images(METHOD, data.train, data.validation, recipe, seed=seed, device=device)
    print(f"seed {seed}, cut {data.cut}: validation NLL {float(training.best_score[0]):.3f}", flush=True)
    return network


def blocks_of(data: depth.DepthData, network, device) -> dict[str, dict[str, list[float]]]:
    """Kind of features → shift → AUROC of the mean distance over the first 1, 2, … blocks."""
    groups = {"inside": data.validation.images.cpu(), **shifts(data.validation.images.cpu())}
    groups = {name: images.to(device) for name, images in groups.items()}
    pixels = data.train.images, data.validation.images
    found: dict[str, dict[str, list[float]]] = {}
    for kind, logarithms in (("logarithms", True), ("features", False)):
        _, blocks = density_scores(network, *pixels, groups, logarithms)
        first = [
            {group: torch.stack([block[group] for block in blocks[:n]]).mean(0) for group in groups}
            for n in range(1, len(blocks) + 1)
        ]
        found[kind] = {name: [auroc(x["inside"], x[name]) for x in first] for name in list(groups)[1:]}
    return found


def frame_of(data: depth.DepthData, network, device) -> dict[str, dict[str, float]]:
    """AUROC of every score for CamVid, as it is and with its difference in frames removed, and for the frame alone."""
    inside, outside = data.validation.images.cpu(), data.outside.cpu()
    groups = {"inside": inside, "outside": outside, "framed": framed(outside, data.train.images.cpu())}
    groups = {name: images.to(device) for name, images in (groups | {"unframed": unframed(inside)}).items()}
    distance, _ = density_scores(network, data.train.images, data.validation.images, groups)
    seen = {name: look(DepthModel(METHOD, (network,)), images).scores for name, images in groups.items()}
    compared = {
        "CamVid": ("inside", "outside"),
        "CamVid with a frame": ("inside", "framed"),
        "CamVid, no frame on either": ("unframed", "outside"),
        "validation images without their frame": ("inside", "unframed"),
    }
    return {
        words: {score: auroc(seen[a][score], seen[b][score]) for score in seen[a]}
        | {"feature distance": auroc(distance[a], distance[b])}
        for words, (a, b) in compared.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/depth_unfamiliar"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--width", type=int, default=depth.RECIPE.width)
    parser.add_argument("--steps", type=int, default=depth.RECIPE.settings.steps)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    settings = replace(depth.RECIPE.settings, steps=options.steps)
    recipe = replace(depth.RECIPE, width=options.width, settings=settings)
    record = {"run": "depth_unfamiliar", "environment": environment(device)}
    record |= {"width": options.width, "steps": options.steps, "blocks": {}, "frame": {}}
    data = depth.load(options.data).to(device)
    for seed in range(100, 100 + options.seeds):
        record["blocks"][str(seed)] = found = blocks_of(data, network_for(data, recipe, seed, device), device)
        for kind, by_shift in found.items():
            means = " ".join(f"{value:.3f}" for value in np.mean(list(by_shift.values()), axis=0))
            print(f"{kind}: mean AUROC over the first 1, 2, … blocks {means}", flush=True)
    data = depth.load(options.data, cut=0).to(device)
    record["frame"] = frame_of(data, network_for(data, recipe, 100, device), device)
    for words, scores in record["frame"].items():
        print(f"{words}: " + ", ".join(f"{score} {area:.3f}" for score, area in scores.items()), flush=True)
    write_record(options.out, record)


if __name__ == "__main__":
    main()
