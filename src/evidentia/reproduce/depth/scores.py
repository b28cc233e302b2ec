"""What a depth model knows and does not: errors, calibration, unfamiliar images, attacked images.

A model is one network or several, or so many draws of one network's dropout. Everything here is measured on images that
took no part in training; what has to be chosen (the noise of least squares, the features of the density) is chosen
without them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evidentia import metrics
from evidentia.distributions import Gaussian, Mixture, NormalInverseGamma
from evidentia.fitting import Pairs
from evidentia.fitting.images import answers
from evidentia.methods import LeastSquares, Method
from evidentia.nn import FeatureDensity, UNet
from evidentia.prediction import Prediction
from evidentia.reproduce.depth.plan import BLOCKS, EPSILONS
from evidentia.reproduce.depth.trials import shown_score
from evidentia.training import seeded
from evidentia.training.images import to_network

__all__ = [
    "DepthModel",
    "alive_channels",
    "attack",
    "choose_noise",
    "curves",
    "density_scores",
    "fast_gradient_sign",
    "look",
    "score",
]

LOG_2PIE = math.log(2 * math.pi * math.e)
LEVELS = np.linspace(0, 1, 41)  # of the authors' calibration curves


@dataclass(frozen=True)
class DepthModel:
    """A method with the networks that stand for it; with ``draws`` each pass is so many draws of dropout."""

    method: Method
    networks: tuple[UNet, ...]
    draws: int = 0
    precision: str = "float32"

    @property
    def parameters(self) -> int:
        """How many numbers were learned."""
        return sum(p.numel() for network in self.networks for p in network.parameters())

    def __call__(self, images: Tensor) -> Any:
        """A distribution of shape (K, N, H, W), one entry for each network or draw."""
        return answers(self.method, self.networks, images, self.draws, self.precision)


@dataclass(frozen=True)
class Look:
    """What a model says about some images: maps (N, H, W), scores per image (N,), and if it saw targets, how it did."""

    mean: Tensor
    aleatoric: Tensor | None  # variances
    epistemic: Tensor | None
    scores: dict[str, Tensor]
    log_prob: Tensor | None = None
    pit: Tensor | None = None

    @property
    def ranking(self) -> Tensor:
        """The deviation by which pixels are ranked: the epistemic one, or the aleatoric one of a model without."""
        variance = self.aleatoric if self.epistemic is None else self.epistemic
        assert variance is not None
        return variance.sqrt()


@torch.no_grad()
def look(model: DepthModel, images: Tensor, maps: Tensor | None = None, size: int = 24) -> Look:
    """A few images at a time; the answer is on the CPU."""
    for network in model.networks:
        network.eval()
    targets = [None] * len(images.split(size)) if maps is None else list(maps.split(size))
    parts = [_look(model(x), y) for x, y in zip(images.split(size), targets, strict=True)]

    def join(values: list[Any]) -> Any:
        return None if values[0] is None else torch.cat([v.float().cpu() for v in values])

    scores = {name: join([p.scores[name] for p in parts]) for name in parts[0].scores}
    fields = ("mean", "aleatoric", "epistemic", "log_prob", "pit")
    return Look(scores=scores, **{name: join([getattr(p, name) for p in parts]) for name in fields})


def _look(answer: Any, y: Tensor | None) -> Look:
    count = answer.batch_shape[0]
    predictive = Mixture(answer.predictive(), validate_args=False)
    if isinstance(answer, NormalInverseGamma):
        aleatoric = answer.aleatoric_variance.mean(0)
        epistemic: Tensor | None = answer.epistemic_variance.mean(0) + predictive.between_variance
    else:
        aleatoric = predictive.within_variance
        epistemic = predictive.between_variance if count > 1 else None
    scores = _scores(answer, aleatoric, epistemic)
    seen: dict[str, Tensor] = {}
    if y is not None:
        seen = {"log_prob": predictive.log_prob(y), "pit": predictive.cdf(y)}
    return Look(predictive.mean, aleatoric, epistemic, scores, **seen)


def _scores(answer: Any, aleatoric: Tensor, epistemic: Tensor | None) -> dict[str, Tensor]:
    """How doubtful each image is, by every score that the method has: the mean over its pixels.

    The entropy of a mixture is that of a normal of its variance. The mutual information is exact for one evidential
    answer, and for several the entropy of the whole less the mean entropy of the parts.
    """
    entropies = answer.predictive().entropy()
    single = answer.batch_shape[0] == 1
    total = aleatoric if epistemic is None else aleatoric + epistemic
    whole = entropies[0] if single else _normal_entropy(total)
    maps = {"total entropy": whole}
    if epistemic is not None:
        maps["epistemic entropy"] = _normal_entropy(epistemic)
        exact = single and isinstance(answer, NormalInverseGamma)
        maps["mutual information"] = answer.mutual_information()[0] if exact else whole - entropies.mean(0)
    if isinstance(answer, NormalInverseGamma):
        maps["−log ν"] = -answer.nu.log().mean(0)
    return {name: each.flatten(1).mean(1) for name, each in maps.items()}


def _normal_entropy(variance: Tensor) -> Tensor:
    return 0.5 * (LOG_2PIE + variance.clamp(min=1e-12).log())


# Targets known --------------------------------------------------------------------------------------------------------


def score(seen: Look, maps: Tensor) -> dict[str, float]:
    """Errors, likelihood and coverage over all pixels that have a target."""
    known = ~maps.isnan().cpu()
    assert seen.log_prob is not None
    assert seen.pit is not None
    error = (maps.cpu() - seen.mean)[known]
    return {
        "rmse": float(error.square().mean().sqrt()),
        "mae": float(error.abs().mean()),
        "nll": float(-seen.log_prob[known].double().mean()),
        "coverage_90": float(((2 * seen.pit[known] - 1).abs() <= 0.9).double().mean()),
    }


def curves(seen: Look, maps: Tensor, every: int = 4) -> dict[str, Any]:
    """Calibration over all pixels that have a target, and how well the deviations rank the errors, over one in four."""
    known = ~maps.isnan().cpu()
    assert seen.pit is not None
    ranking, mean, target = (t.cpu()[known][::every].double().numpy() for t in (seen.ranking, seen.mean, maps))
    pixels = Prediction(Gaussian(torch.from_numpy(mean), torch.from_numpy(ranking).clamp(min=1e-12)))
    share, mae = metrics.retention_curve(pixels, target, ranking, "mae")
    rmse = metrics.retention_curve(pixels, target, ranking, "rmse")[1]
    quantile = pixels.distribution.cdf(torch.from_numpy(target)).numpy()
    return {
        "ause": metrics.ause(pixels, target, ranking),
        "aurg": metrics.aurg(pixels, target, ranking),
        "cutoff": {"share": share, "mae": mae, "rmse": rmse},
        "calibration": {"authors": _calibration(quantile), "predictive": _calibration(seen.pit[known].numpy())},
    }


def _calibration(levels: np.ndarray) -> dict[str, Any]:
    """Share of targets below the predicted quantile at each of 41 levels, and the mean distance from the diagonal."""
    observed = np.searchsorted(np.sort(levels), LEVELS, side="right") / len(levels)
    observed[0] = np.mean(levels <= 0)
    return {"observed": observed, "error": float(np.mean(np.abs(observed - LEVELS)))}


@torch.no_grad()
def choose_noise(model: DepthModel, validation: Pairs, every: int = 29) -> DepthModel:
    """The same deviation everywhere for networks of least squares: the one of the best validation likelihood."""
    if not isinstance(model.method, LeastSquares):
        return model
    means, targets = [], []
    for part in validation.chunks(24):
        known = ~part.maps.isnan()
        means.append(model(part.images).loc[:, known][:, ::every])
        targets.append(part.maps[known][::every])
    loc, y = torch.cat(means, 1), torch.cat(targets)
    candidates = np.geomspace(0.01, 1, 61).tolist()
    nll = [
        -float(Mixture(Gaussian(loc, torch.full_like(loc, s)), validate_args=False).log_prob(y).mean())
        for s in candidates
    ]
    return replace(model, method=replace(model.method, noise=candidates[int(np.argmin(nll))]))


# Unfamiliar images ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def density_scores(
    network: UNet, train: Tensor, validation: Tensor, groups: dict[str, Tensor], logarithms: bool = True
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Distance of pooled encoder features from those of the training images, for each group of images.

    Pooled features are never negative and have long tails: their logarithms are more like what a Mahalanobis distance
    takes for granted. The mean over the first blocks is the score. Returns it, and the distances of every block on its
    own.
    """
    network.eval()

    def features(images: Tensor) -> tuple[Tensor, ...]:
        parts = [network.forward_with_features(to_network(x))[1] for x in images.split(32)]
        return tuple(torch.cat(block) for block in zip(*parts, strict=True))

    asked = {name: features(images) for name, images in groups.items()}
    blocks = [
        _distances(learned, usual, {name: found[k] for name, found in asked.items()}, logarithms)
        for k, (learned, usual) in enumerate(zip(features(train), features(validation), strict=True))
    ]
    score = {name: torch.stack([block[name] for block in blocks[:BLOCKS]]).mean(0) for name in groups}
    return score, blocks


def _distances(learned: Tensor, usual: Tensor, asked: dict[str, Tensor], logarithms: bool) -> dict[str, Tensor]:
    """By one block, standardised by the validation images'; 0 if it died in training and answers all images alike."""
    if bool((learned == learned[0]).all()):
        return {name: torch.zeros(len(x)) for name, x in asked.items()}
    if logarithms:
        least = 0.01 * learned.mean()  # or a channel that is silent in one image would decide alone
        learned, usual = (learned + least).log(), (usual + least).log()
        asked = {name: (x + least).log() for name, x in asked.items()}
    density = FeatureDensity.fit(learned)
    far = density(usual)
    return {name: ((density(x) - far.mean()) / far.std().clamp(min=1e-12)).cpu() for name, x in asked.items()}


@torch.no_grad()
def alive_channels(network: UNet, images: Tensor) -> list[float]:
    """The share of pixels at which each channel of the squeeze in the paper's head is not zero."""
    network.eval()
    parts = [(network.squeezed(to_network(x)) > 0).float().mean((0, 2, 3)) * len(x) for x in images.split(32)]
    return [float(share) for share in torch.stack(parts).sum(0) / len(images)]


# Attacked images ------------------------------------------------------------------------------------------------------


def fast_gradient_sign(answer: Callable[[Tensor], Any], x: Tensor, y: Tensor) -> Tensor:
    """The sign of the gradient of each image's squared error, through the mean prediction, at the images themselves."""
    leaf = x.detach().clone().requires_grad_()
    known = ~y.isnan()
    mean = Mixture(answer(leaf).predictive(), validate_args=False).mean
    loss = torch.where(known, (torch.where(known, y, 0.0) - mean).square(), 0.0).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient.sign()


def attack(model: DepthModel, pairs: Pairs, epsilons: Sequence[float] = EPSILONS) -> list[dict[str, Any]]:
    """Errors and doubts when each image is moved by ε along the sign of the gradient at the clean image, once."""
    for network in model.networks:
        network.eval()
    x = to_network(pairs.images)
    signs = [fast_gradient_sign(model, a, b) for a, b in zip(x.split(16), pairs.maps.split(16), strict=True)]
    sign = torch.cat(signs)
    rows = []
    for epsilon in epsilons:
        with seeded(0, x.device):  # the same draws of dropout for every ε
            seen = look(model, (x + epsilon * sign).clamp(0, 1))
        error = (pairs.maps.cpu() - seen.mean)[~pairs.maps.cpu().isnan()]
        scores: dict[str, dict[str, Any]] = {n: {"mean": float(v.mean())} for n, v in seen.scores.items()}
        # image by image for the one score that is drawn so: all of them would be most of a record
        drawn = shown_score(seen.scores)
        scores[drawn]["images"] = seen.scores[drawn].numpy()
        errors = {"rmse": float(error.square().mean().sqrt()), "mae": float(error.abs().mean())}
        rows.append({"epsilon": epsilon, **errors, "scores": scores})
    return rows
