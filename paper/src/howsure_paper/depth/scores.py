"""Scores of a depth model: errors, calibration, unfamiliar images, attacked images.

All are measured on images that took no part in training. What has to be chosen (the noise of least squares, the
features of the density) is chosen without them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from howsure import metrics
from howsure.distributions import Normal, NormalInverseGamma
from howsure.images import Pairs, to_network
from howsure.images.pairs import pad_images
from howsure.nn import FeatureDensity, UNet
from howsure.nn.appearance import COLOURS, appearance
from howsure.prediction import Prediction
from howsure_paper.depth.models import DepthModel
from howsure_paper.depth.plan import BLOCKS, EPSILONS
from howsure_paper.depth.trials import Array, shown_score

__all__ = [
    "Summary",
    "alive_channels",
    "attack",
    "curves",
    "density_scores",
    "error_scores",
    "gradient_sign",
    "histogram_scores",
    "image_scores",
    "mean_errors",
    "summarize",
]

LOG_2PIE = math.log(2 * math.pi * math.e)
QUANTILES = np.linspace(0, 1, 41)  # of the authors' calibration curves


# Summaries ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Arrays that the scores of a model are computed from, without the dimension of its members.

    Attributes:
        mean: of every pixel, (N, H, W).
        aleatoric: variance by the paper's formula, (N, H, W); None if the method does not have it.
        epistemic: variance by the paper's formula, (N, H, W); None if the method does not have it.
        images: scores of each image, (N,), by name.
        familiarity: of each image, (N,); None without fading.
        log_prob: log density at the known targets, one after the other; None without targets.
        pit: CDF at the known targets, one after the other; None without targets.
    """

    mean: Array
    aleatoric: Array | None
    epistemic: Array | None
    images: dict[str, Tensor]
    familiarity: Array | None = None
    log_prob: Array | None = None
    pit: Array | None = None


def summarize(batches: Iterable[Prediction], maps: Tensor | None = None) -> Summary:
    """Return the summary of the predictions of consecutive batches of images.

    A model with 50 draws has 50 distributions per pixel. The summary needs memory for one batch of them.

    Args:
        batches: predictions of shape (n, H, W).
        maps: targets of all images, (N, H, W), NaN where there is none.
    """
    columns: dict[str, list[Any]] = {}
    images: list[dict[str, Tensor]] = []
    first = 0
    for batch in batches:
        row = {"mean": batch.mean, **batch.decompose("paper")._asdict(), "familiarity": batch.familiarity}
        if maps is not None:
            y = maps[first : first + len(batch)]
            known = ~y.isnan()
            row["log_prob"] = batch.log_prob(torch.where(known, y, 0.0))[known.cpu().numpy()]
            row["pit"] = metrics.pit(batch, y, mask=known)
        for name, values in row.items():
            columns.setdefault(name, []).append(values)
        images.append(_image_scores(batch))
        first += len(batch)
    whole = {name: None if parts[0] is None else np.concatenate(parts) for name, parts in columns.items()}
    return Summary(images=_joined(images), **whole)  # type: ignore[arg-type]


# Targets known --------------------------------------------------------------------------------------------------------


def error_scores(summary: Summary, maps: Tensor) -> dict[str, float]:
    """Return errors, likelihood and coverage over all pixels that have a target."""
    assert summary.log_prob is not None
    assert summary.pit is not None
    return mean_errors(summary, maps) | {
        "nll": -float(np.mean(summary.log_prob.astype(np.float64))),
        "coverage_90": float(np.mean(np.abs(2 * summary.pit - 1) <= 0.9)),
    }


def mean_errors(summary: Summary, maps: Tensor) -> dict[str, float]:
    """Return the errors of the mean over all pixels that have a target."""
    mean, known = _only_mean(summary), ~maps.isnan()
    return {"rmse": metrics.rmse(mean, maps, mask=known), "mae": metrics.mae(mean, maps, mask=known)}


def _only_mean(summary: Summary) -> Normal:
    """Return distributions with the predicted means, for metrics that use nothing else."""
    return Normal(torch.from_numpy(summary.mean), 1.0)


def curves(summary: Summary, maps: Tensor, every: int = 4) -> dict[str, Any]:
    """Return calibration curves, and how well the deviations rank the errors.

    The predictive distribution is calibrated over all pixels that have a target, the rest is computed from one in
    ``every`` of them. Pixels are ranked by the epistemic deviation, or by the aleatoric one of a model without. The
    authors calibrate a normal distribution with that deviation.
    """
    known = ~maps.isnan()
    some = torch.zeros_like(known)
    some.view(-1)[known.view(-1).nonzero()[::every]] = True
    variance = summary.aleatoric if summary.epistemic is None else summary.epistemic
    assert variance is not None
    assert summary.pit is not None
    mean, deviation = _only_mean(summary), torch.from_numpy(variance).sqrt()
    share, mae = metrics.retention_curve(mean, maps, deviation, "mae", mask=some)
    rmse = metrics.retention_curve(mean, maps, deviation, "rmse", mask=some)[1]
    by_authors = Normal(mean.loc.double(), deviation.double().clamp(min=1e-12))
    below = np.searchsorted(np.sort(summary.pit), QUANTILES, side="right")  # targets at or below each quantile
    return {
        "ause": metrics.ause(mean, maps, deviation, mask=some),
        "aurg": metrics.aurg(mean, maps, deviation, mask=some),
        "cutoff": {"share": share, "mae": mae, "rmse": rmse},
        "calibration": {
            "authors": _calibration(metrics.calibration_curve(by_authors, maps, QUANTILES, mask=some)),
            "predictive": _calibration(below / len(summary.pit)),
        },
    }


def _calibration(observed: Array) -> dict[str, Any]:
    """Return a calibration curve and its mean distance from the diagonal, which is the authors' error."""
    return {"observed": observed, "error": float(np.mean(np.abs(observed - QUANTILES)))}


# Uncertainty of an image ----------------------------------------------------------------------------------------------


def image_scores(batches: Iterable[Prediction]) -> dict[str, Tensor]:
    """Return the uncertainty of each image by every score that the method has: its mean over the pixels.

    The entropy of a mixture is that of a normal of its variance. The mutual information is exact for one evidential
    network, and for several networks the entropy of the whole less the mean entropy of the parts.

    Args:
        batches: predictions of consecutive batches of images.
    """
    return _joined([_image_scores(batch) for batch in batches])


def _joined(scores: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the scores of several batches as one."""
    return {name: torch.cat([batch[name] for batch in scores]) for name in scores[0]}


@torch.no_grad()
def _image_scores(part: Prediction) -> dict[str, Tensor]:
    answers = part.answers
    entropies = answers.predictive().entropy()
    maps = {"total entropy": entropies[0] if part.members == 1 else _normal_entropy(part.variance, entropies)}
    epistemic = part.decompose("paper").epistemic
    if epistemic is not None:
        maps["epistemic entropy"] = _normal_entropy(epistemic, entropies)
        if part.members == 1 and isinstance(answers, NormalInverseGamma):
            maps["mutual information"] = answers.mutual_information()[0]
        else:
            maps["mutual information"] = maps["total entropy"] - entropies.mean(0)
    if isinstance(answers, NormalInverseGamma):
        maps["−log ν"] = -answers.nu.log().mean(0)
    return {name: each.flatten(1).mean(1).float().cpu() for name, each in maps.items()}


def _normal_entropy(variance: np.ndarray, like: Tensor) -> Tensor:
    """Return the entropy of normal distributions, on the device of another tensor."""
    return 0.5 * (LOG_2PIE + torch.as_tensor(variance, device=like.device).clamp(min=1e-12).log())


# Unfamiliar images ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def density_scores(
    network: UNet, train: Tensor, validation: Tensor, images: Mapping[str, Tensor], logarithms: bool = True
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Return the distance of pooled encoder features from those of the training images.

    Pooled features are never negative and have long tails: their logarithms are closer to the normal distribution that
    a Mahalanobis distance assumes.

    Args:
        network: whose features are taken.
        train: images (N, H, W, 3) of bytes that the density is fitted to.
        validation: images whose distances have mean 0 and deviation 1.
        images: sets of images to score, by name.
        logarithms: whether to take the logarithms of the features.

    Returns:
        For each set the mean over the first blocks, one score per image; and the same for every block on its own.
    """
    network.eval()

    def features(pixels: Tensor) -> tuple[Tensor, ...]:
        parts = [network.forward_with_features(_padded(network, x))[1] for x in pixels.split(32)]
        return tuple(torch.cat(block) for block in zip(*parts, strict=True))

    asked = {name: features(pixels) for name, pixels in images.items()}
    blocks = [
        _distances(learned, usual, {name: found[k] for name, found in asked.items()}, logarithms)
        for k, (learned, usual) in enumerate(zip(features(train), features(validation), strict=True))
    ]
    score = {name: torch.stack([block[name] for block in blocks[:BLOCKS]]).mean(0) for name in images}
    return score, blocks


def _distances(learned: Tensor, usual: Tensor, asked: dict[str, Tensor], logarithms: bool) -> dict[str, Tensor]:
    """Return standardised distances by one block; 0 if its features do not depend on the image."""
    if bool((learned == learned[0]).all()):
        return {name: torch.zeros(len(x)) for name, x in asked.items()}
    if logarithms:
        least = 0.01 * learned.mean()  # otherwise a channel that is zero in one image decides alone
        learned, usual = (learned + least).log(), (usual + least).log()
        asked = {name: (x + least).log() for name, x in asked.items()}
    density = FeatureDensity.fit(learned)
    distance = density(usual)
    return {name: ((density(x) - distance.mean()) / distance.std().clamp(min=1e-12)).cpu() for name, x in asked.items()}


@torch.no_grad()
def histogram_scores(train: Tensor, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the distance of each image's colour histograms from those of the training images, without any network.

    What a network's features tell more than this is what they are worth. Histograms have 16 bins for each of red, green
    and blue, of whose shares the square roots are taken.

    Args:
        train: images (N, H, W, 3) of bytes that the density is fitted to.
        images: sets of images to score, by name.
    """

    def features(pixels: Tensor) -> Tensor:
        return torch.cat([appearance(to_network(x))[:, :COLOURS] for x in pixels.split(32)])

    density = FeatureDensity.fit(features(train))
    return {name: density(features(pixels)).cpu() for name, pixels in images.items()}


@torch.no_grad()
def alive_channels(network: UNet, images: Tensor) -> list[float]:
    """Return the share of pixels at which each channel of the squeeze in the paper's head is not zero."""
    parts: list[Tensor] = []

    def count(_layer: nn.Module, _inputs: tuple[Tensor, ...], squeezed: Tensor) -> None:
        parts.append((squeezed > 0).float().mean((0, 2, 3)) * len(squeezed))

    network.eval()
    with network.head[0].register_forward_hook(count):  # its first layer is the squeeze, before the ReLU
        for x in images.split(32):
            network(_padded(network, x))
    return [float(share) for share in torch.stack(parts).sum(0) / len(images)]


def _padded(network: UNet, images: Tensor) -> Tensor:
    """Return images as the network sees them, with sides that it can take."""
    return to_network(pad_images(images, network.multiple))


# Attacked images ------------------------------------------------------------------------------------------------------


def gradient_sign(model: DepthModel, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the sign of the gradient of each image's squared error, through the mean prediction.

    Args:
        model: that is attacked.
        x: images (N, 3, H, W) from 0 to 1.
        y: maps (N, H, W), NaN where there is no target.
        generator: that draws of dropout are taken from.
    """
    leaf = x.detach().clone().requires_grad_()
    known = ~y.isnan()
    mean = Prediction(model.answers(leaf, generator), members=0).distribution.mean
    loss = torch.where(known, (torch.where(known, y, 0.0) - mean).square(), 0.0).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient.sign()


def attack(
    model: DepthModel,
    pairs: Pairs,
    epsilons: Sequence[float] = EPSILONS,
    generator: torch.Generator | None = None,
) -> list[dict[str, Any]]:
    """Return errors and scores when each image is moved by ε along the sign of the gradient at the clean image."""
    x = to_network(pairs.images)
    few = zip(x.split(16), pairs.maps.split(16), strict=True)
    sign = torch.cat([gradient_sign(model, images, maps, generator) for images, maps in few])
    rows = []
    for epsilon in epsilons:
        draws = torch.Generator(x.device).manual_seed(0)  # the same draws of dropout for every ε
        summary = summarize(model.predict_batches((x + epsilon * sign).clamp(0, 1), draws))
        scores = summary.images
        # The shown score is kept image by image; all scores would be most of a record.
        shown = shown_score(scores)
        means: dict[str, dict[str, Any]] = {name: {"mean": float(each.mean())} for name, each in scores.items()}
        means[shown]["images"] = scores[shown].numpy()
        errors = mean_errors(summary, pairs.maps)
        rows.append({"epsilon": epsilon, **errors, "scores": means})
    return rows
