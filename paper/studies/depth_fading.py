"""Chooses how the evidence of depth networks fades for unfamiliar images, and measures on CamVid what was chosen.

    python paper/studies/depth_fading.py --data DATA --out paper/docs/results/depth_fading [--trials 3] [--width 32]

Networks are trained as `howsure-paper depth` trains its evidential ones, with the seeds of its trials.

Choice: familiar are validation images. Unfamiliar are the shifts of `depth_unfamiliar.py` and five more: rooms darker,
tinted, cut into pieces and shuffled, enlarged, and rendered. Densities of several kinds of features are compared by the
AUROC of their distance; reach and power by the AUROC of the faded epistemic entropy, by the validation NLL, and by the
NLL of the shifts whose true maps are known. What was chosen, the largest AUROC for which neither NLL is worse than
without fading, is in `howsure.nn.appearance.ImageFading`. No image of CamVid and no test image is used.

Result: test images and CamVid, asked about once, with fading and without, and what a plain Mahalanobis distance of
colour histograms makes of them. Without data the images are synthetic rooms and streets.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from depth_unfamiliar import METHOD, shifted_images
from howsure.images import FittedImages, Pairs, fit_images
from howsure.images.model import with_share
from howsure.metrics import auroc
from howsure.nn import FeatureDensity
from howsure.nn.appearance import COLOURS, ImageFading, Seen
from howsure.prediction import Prediction
from howsure.training import resolve_device
from howsure_paper.datasets import rooms
from howsure_paper.datasets.folder import find_data
from howsure_paper.depth.data import DepthData, load
from howsure_paper.depth.plan import Plan
from howsure_paper.depth.recipes import group_recipe
from howsure_paper.depth.scores import Summary, curves, error_scores, histogram_scores, image_scores, summarize
from howsure_paper.record import read_record, write_record
from howsure_paper.timing import captured, median_seconds
from shared import device_and_record, new_record, option_parser

POWERS, QUANTILES = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0), (0.5, 0.75, 0.9)
SAME_MAP = ("blurred", "negative", "noisy", "dark", "tinted")  # shifts that leave the depth what it is
PIECE = 16  # pixels of a side of the pieces that are shuffled
SCORE = "epistemic entropy"


def more_shifts(images: Tensor) -> dict[str, Tensor]:
    """Return, by the kind of shift, more images (N, H, W, 3) of bytes beside those of `shifted_images`."""
    count, height, width, _ = images.shape
    random = torch.Generator().manual_seed(1)
    tint = 0.4 + 0.9 * torch.rand((count, 1, 1, 3), generator=random)
    planes = images.permute(0, 3, 1, 2).float()
    middle = planes[:, :, height // 4 : height - height // 4, width // 4 : width - width // 4]
    enlarged = interpolate(middle, size=(height, width), mode="bilinear").permute(0, 2, 3, 1)
    return {
        "dark": (0.35 * images.float()).byte(),
        "tinted": (images.float() * tint).clamp(0, 255).byte(),
        "shuffled": shuffled(images, random),
        "enlarged": enlarged.byte(),
        "rendered": torch.from_numpy(rooms.rooms(100, 3, (height, width)).image),
    }


def shuffled(images: Tensor, random: torch.Generator) -> Tensor:
    """Return the images with their square pieces in another order; what is left over at the edges is cut off."""
    rows, columns = (length // PIECE for length in images.shape[1:3])
    whole = images[:, : rows * PIECE, : columns * PIECE]
    pieces = whole.unflatten(2, (columns, PIECE)).unflatten(1, (rows, PIECE)).transpose(2, 3).flatten(1, 2)
    mixed = torch.stack([each[torch.randperm(len(each), generator=random)] for each in pieces])
    return mixed.unflatten(1, (rows, columns)).transpose(2, 3).flatten(3, 4).flatten(1, 2)


def trained_model(data: DepthData, trial: int, plan: Plan, width: int | None, device: torch.device) -> FittedImages:
    """Train an evidential network as the depth experiment does, without fading, and return it."""
    recipe = group_recipe(plan, "evidential")
    recipe = recipe if width is None else replace(recipe, width=width)
    chosen = {"method": METHOD, "recipe": recipe, "seed": 1000 * trial, "device": device}
    return fit_images(data.train, validation=data.validation, standardize=False, evidence="plain", **chosen)


# Choice ---------------------------------------------------------------------------------------------------------------


def distance_areas(train: Seen, groups: dict[str, Seen]) -> dict[str, dict[str, float]]:
    """Return the AUROC of the distance by several kinds of features, by shift."""
    fading = ImageFading.fit(train, groups["validation"])
    pooled = sum(fading.channels)
    columns = {
        "pooled features": slice(0, pooled),
        "colours": slice(pooled, pooled + COLOURS),
        "colours and gradients": slice(pooled, None),
        "pooled features, colours": slice(0, pooled + COLOURS),
        "all": slice(None),
    }
    distances = {}
    for name, part in columns.items():
        density = FeatureDensity.fit(fading.features(train)[:, part])
        distances[name] = {group: density(fading.features(seen)[:, part]) for group, seen in groups.items()}
    distances["all, in units of what is usual"] = {group: fading.distance(seen) for group, seen in groups.items()}
    return {
        name: {group: auroc(by_group["validation"], d) for group, d in by_group.items() if group != "validation"}
        for name, by_group in distances.items()
    }


def fading_rows(
    model: FittedImages, data: DepthData, pixels: dict[str, Tensor], train: Seen, groups: dict[str, Seen]
) -> list[dict[str, Any]]:
    """Return a row for each reach and power: AUROC over the shifts, and the change of NLL there and inside."""
    plain = {name: image_scores(model.predict_batches(images))[SCORE] for name, images in pixels.items()}
    known = {name: Pairs(pixels[name], data.validation.maps) for name in ("validation", *SAME_MAP)}
    before = {name: image_nll(model, pairs, None) for name, pairs in known.items()}
    found = []
    for quantile in QUANTILES:
        for power in POWERS:
            fading = ImageFading.fit(train, groups["validation"], power=power, quantile=quantile)
            kept = {name: fading(seen).cpu() for name, seen in groups.items()}
            # the faded epistemic variance is that of the network over w, in every pixel
            scores = {name: plain[name] - 0.5 * kept[name].log() for name in pixels}
            areas = [auroc(scores["validation"], each) for name, each in scores.items() if name != "validation"]
            rise = {name: image_nll(model, pairs, kept[name]) - before[name] for name, pairs in known.items()}
            inside = rise.pop("validation")
            row = {"quantile": quantile, "power": power, "auroc": float(np.mean(areas))}
            row |= {"nll rises by": float(inside.mean()), "error": float(inside.std() / len(inside) ** 0.5)}
            found.append(row | {"nll of shifts rises by": float(np.mean([each.mean() for each in rise.values()]))})
    return found


@torch.no_grad()
def image_nll(model: FittedImages, pairs: Pairs, keep: Tensor | None) -> Tensor:
    """Return the mean NLL of each image, of a network whose evidence counts by this share."""
    device, found = model.device, []
    shares = torch.ones(len(pairs)) if keep is None else keep
    for part, share in zip(pairs.chunks(), shares.split(48), strict=True):
        answer = with_share(model.answers(part.images), share.to(device)[:, None, None])
        maps = part.maps.to(device)
        each = -Prediction(answer, members=0).distribution.log_prob(maps.nan_to_num())
        known = ~maps.isnan()
        found.append(torch.where(known, each, 0.0).sum((1, 2)) / known.sum((1, 2)).clamp(min=1))
    return torch.cat(found).cpu().double()


def choice(model: FittedImages, data: DepthData, device: torch.device) -> dict[str, Any]:
    """Return how well features, reaches and powers do on images that the experiment does not score."""
    inside = data.validation.images.cpu()
    pixels = {"validation": inside} | shifted_images(inside) | more_shifts(inside)
    pixels = {name: images.to(device) for name, images in pixels.items()}
    (train,) = model.seen(data.train.images)
    groups = {name: model.seen(images)[0] for name, images in pixels.items()}
    return {"distances": distance_areas(train, groups), "rows": fading_rows(model, data, pixels, train, groups)}


# Result ---------------------------------------------------------------------------------------------------------------


def result(model: FittedImages, data: DepthData) -> dict[str, Any]:
    """Return errors, calibration and AUROC on test images and images from elsewhere, with fading and without."""
    faded = model.fit_fading(data.train.images, data.validation.images, data.validation.maps)
    found: dict[str, Any] = {}
    pairs = {"inside": data.test.images, "outside": data.outside}
    for name, each in (("plain", model), ("fading", faded)):
        inside = summarize(each.predict_batches(data.test.images), data.test.maps)
        outside = summarize(each.predict_batches(data.outside))
        found[name] = error_scores(inside, data.test.maps)
        found[name]["calibration"] = curves(inside, data.test.maps)["calibration"]["predictive"]["error"]
        found[name]["auroc"] = {s: auroc(inside.images[s], outside.images[s]) for s in inside.images}
        found[name]["nll of images"] = image_nll_of(inside, data.test.maps)
        if name == "fading":
            shares = {"inside": inside.familiarity, "outside": outside.familiarity}
            found["familiarity"] = {side: float(np.mean(share)) for side, share in shares.items()}
    fading = ImageFading.fit(*(model.seen(images)[0] for images in (data.train.images, data.validation.images)))
    found["distance"] = auroc(**{side: fading.distance(model.seen(images)[0]) for side, images in pairs.items()})
    found["colour histograms"] = auroc(**histogram_scores(data.train.images, pairs))
    rise = np.array(found["fading"].pop("nll of images")) - np.array(found["plain"].pop("nll of images"))
    found["nll rises by"] = {"mean": float(rise.mean()), "error": float(rise.std() / len(rise) ** 0.5)}
    return found


def in_float32(model: FittedImages, data: DepthData) -> dict[str, float]:
    """Return what changes where the network computes in float32, as on a CPU, and the fading was fitted in bfloat16."""
    faded = model.fit_fading(data.train.images, data.validation.images, data.validation.maps)
    exact = replace(faded, recipe=replace(faded.recipe, settings=replace(faded.recipe.settings, precision="float32")))
    both = [each.predict(data.test.images) for each in (faded, exact)]
    change = np.abs(np.log(both[1].familiarity / both[0].familiarity))
    scores = [image_scores(exact.predict_batches(images))[SCORE] for images in (data.test.images, data.outside)]
    return {"auroc": auroc(*scores), "largest change of log w": float(change.max())}


def seconds(model: FittedImages, images: Tensor) -> dict[str, dict[str, float]]:
    """Return how long answers take with fading and without, for one image and for 32 or all there are."""
    found: dict[str, dict[str, float]] = {"plain": {}, "fading": {}}
    faded = model.fit_fading(images)
    with torch.no_grad():
        for count in (1, min(32, len(images))):
            for name, answers in (("plain", model.answers), ("fading", lambda x: faded.answers_with_evidence(x)[0])):
                call = captured(partial(_predictive, answers, images[:count]), images.device)
                found[name][str(count)] = median_seconds(call, images.device)
    return found


def _predictive(answers: Callable[[Tensor], Any], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale of every pixel."""
    predictive = answers(images).predictive()
    return predictive.loc, predictive.scale


def image_nll_of(summary: Summary, maps: Tensor) -> list[float]:
    """Return the mean NLL of each image."""
    assert summary.log_prob is not None
    counts = (~maps.isnan()).flatten(1).sum(1).cpu().numpy()
    return [float(-each.mean()) for each in np.split(summary.log_prob, np.cumsum(counts)[:-1])]


def main() -> None:
    parser = option_parser(__doc__, "depth_fading")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--width", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", action="store_true", help="measure only how long answers take, again")
    options = parser.parse_args()
    device = resolve_device(options.device)
    record = new_record("depth_fading", device, trials=[])
    data = load(find_data(options.data)).to(device)
    if options.seconds:
        recipe = group_recipe(Plan(), "evidential")
        untrained = FittedImages(METHOD, (recipe.network(METHOD.outputs, 0).eval(),), recipe).to(device)
        record = read_record(options.out)
        record["seconds"] = seconds(untrained, data.train.images)
        write_record(options.out, record)
        print(record["seconds"])
        return
    record["data"] = data.record()
    for trial in range(options.trials):
        model = trained_model(data, trial, Plan(steps=options.steps), options.width, device)
        found = {"seed": 1000 * trial, "validation nll": float(model.training[0].best_score[0])}
        found |= {"choice": choice(model, data, device)} | result(model, data)
        record["trials"].append(found | {"in float32": in_float32(model, data)})
        said = record["trials"][-1]
        areas = ", ".join(f"{name} {said[name]['auroc'][SCORE]:.3f}" for name in ("plain", "fading"))
        print(f"seed {found['seed']}: AUROC {areas}, colours {said['colour histograms']:.3f}", flush=True)
        print(f"  test NLL {said['plain']['nll']:.3f}, fading {said['fading']['nll']:.3f}", flush=True)
        write_record(options.out, record)
    record["seconds"] = seconds(model, data.train.images)
    write_record(options.out, record)
    print(device_and_record(record, options.out))


if __name__ == "__main__":
    main()
