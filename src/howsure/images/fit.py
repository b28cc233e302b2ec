"""Train U-Nets from images to maps (for example depth) with one of the likelihoods."""

import sys
import warnings
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from howsure.errors import InputError, InputTypeError
from howsure.images.model import FittedImages
from howsure.images.networks import ImageRecipe
from howsure.images.pairs import Pairs, hold_out_images, read_pairs
from howsure.images.training import train_network
from howsure.likelihoods import Evidential, Method
from howsure.nn.appearance import MIN_IMAGES
from howsure.nn.checks import is_whole
from howsure.training import resolve_device

__all__ = ["fit_images"]

EVIDENCE = ("fading", "plain")


@torch.inference_mode(False)
@torch.enable_grad()
def fit_images(
    images: Any,
    targets: Any = None,
    *,
    method: Method | None = None,
    validation: Any = 0.1,
    groups: ArrayLike | None = None,
    unknown: float | None = None,
    members: int = 1,
    recipe: ImageRecipe | None = None,
    standardize: bool = True,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    evidence: str = "fading",
    keep_diverged: bool = False,
    progress: bool = False,
) -> FittedImages:
    """Train U-Nets from images to maps, and return them with the weights of the best validation score.

    All pairs are kept on the device. There, on CUDA, the step is compiled and captured, and convolutions run in the
    precision of the settings; on a CPU it is float32. Images may have any size: sides that are not multiples of the
    factor of the network are padded, and predictions are cropped.

    Args:
        images: (N, H, W, 3) or (N, H, W), bytes or floats from 0 to 1; or a folder or zip with ``image/`` and
            ``target/`` in it (:func:`howsure.images.load_pairs`).
        targets: maps (N, H, W) in any unit, NaN where unknown; None with a folder.
        method: by default :class:`~howsure.likelihoods.Evidential`.
        validation: the share of the images that chooses the weights, or other (images, targets), or a folder. 0
            trains to the end on all images.
        groups: one label per image (the scene, the patient): whole groups are kept for validation, because frames of
            one scene look alike.
        unknown: a value of the targets that means unknown, as 0 does in the maps of depth cameras.
        members: networks, with the seeds seed, seed + 1, …. Several are an ensemble.
        recipe: network, settings and augmentation.
        standardize: train on targets of mean 0 and deviation 1. Otherwise λ has the unit 1/y.
        seed: of the first network, its batches and the split.
        device: "auto", "cpu", "cuda" or "mps".
        checkpoint: a file to continue from, as in :func:`howsure.training.train`. With several networks one each,
            with names that end in .1, .2, ….
        evidence: ``"fading"`` reduces the evidence of each network for images unlike its training images
            (:class:`howsure.nn.appearance.ImageFading`), unless this costs the validation images
            likelihood (:meth:`FittedImages.fit_fading`). It widens normal distributions, too. ``"plain"`` keeps all
            evidence, as for a fit to fewer than ten training images.
        keep_diverged: whether to return networks that diverged, with their best weights. By default they are left out
            with a warning.
        progress: whether to show a progress bar.

    Returns:
        The fitted model, with ``predict`` and ``save``.

    Raises:
        InputError: if images and targets do not fit together, or every network diverged.

    >>> import numpy as np
    >>> from howsure.training import Settings
    >>> images, maps = np.zeros((4, 16, 16), np.uint8), np.random.default_rng(0).normal(size=(4, 16, 16))
    >>> recipe = ImageRecipe(width=4, blocks=1, settings=Settings(steps=2, learning_rate=1e-3))
    >>> fit_images(images, maps, recipe=recipe, device="cpu").predict(images).mean.shape
    (4, 16, 16)
    """
    recipe = ImageRecipe() if recipe is None else recipe
    method, target_device = Evidential() if method is None else method, resolve_device(device)
    _check_fit(method, recipe)
    if evidence not in EVIDENCE:
        raise InputError(f"evidence is {' or '.join(EVIDENCE)}, not {evidence!r}")
    members, seed = _whole("members", members, least=1), _whole("seed", seed, least=0)
    pairs = read_pairs(images, targets, unknown)
    train_pairs, held = _split(pairs, validation, groups, unknown, seed)
    _check_known(train_pairs, held, recipe)
    loc, scale = _location_and_scale(train_pairs.maps) if standardize else (0.0, 1.0)
    models = []
    # The recipe chooses the precision, not the caller. No copies of weights are kept: see raw_maps.
    with torch.autocast(target_device.type, enabled=False, cache_enabled=False):
        for k in range(members):
            if progress and members > 1:
                sys.stderr.write(f"network {k + 1} of {members}\n")
            file = checkpoint if checkpoint is None or k == 0 else f"{checkpoint}.{k}"
            network, training = train_network(
                method, train_pairs, held, recipe, (loc, scale), seed + k, target_device, file, progress
            )
            models.append(FittedImages(method, (network,), recipe, (training,), loc, scale))
        model = FittedImages.join(models if keep_diverged else _usable(models))
        if evidence == "fading" and len(train_pairs) >= MIN_IMAGES:
            model = model.fit_fading(train_pairs.images, *(() if held is None else (held.images, held.maps)))
        return model


def _check_fit(method: Any, recipe: Any) -> None:
    """Raise for a method or a recipe that images cannot be fitted with."""
    if not isinstance(recipe, ImageRecipe):
        raise InputTypeError(f"recipe is an ImageRecipe, not {type(recipe).__name__}")
    if not isinstance(method, Method):
        raise InputTypeError(f"method is one of howsure.likelihoods, such as Evidential(), not {type(method).__name__}")
    if np.ndim(getattr(method, "weight", 0.0)):
        raise InputError("the evidence weight of a model of images is one number")


def _check_known(pairs: Pairs, validation: Pairs | None, recipe: ImageRecipe) -> None:
    """Raise if there is no target to learn from or to choose by, or if the augmentation cannot rescale the targets."""
    for name, part in (("training", pairs), ("validation", validation)):
        if part is not None and bool(part.maps.isnan().all()):
            raise InputError(f"no target of the {name} images is known; hold out others, or another share")
    if recipe.augmentation is not None and recipe.augmentation.rescale:
        largest = float(pairs.maps[~pairs.maps.isnan()].max())
        if largest > 1:
            raise InputError(
                f"Augmentation(rescale=True) is for disparities of at most 1, and the targets reach {largest:.3g}"
            )


def _whole(name: str, value: Any, least: int) -> int:
    if not is_whole(value) or not least <= int(value) < 2**62:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def _usable(models: list[FittedImages]) -> list[FittedImages]:
    """Return the models with a finite score. A warning has the number of the others. Raise if there is none."""
    good = [m for m in models if bool(m.training[0].best_score.isfinite().all())]
    advice = "lower the learning rate of recipe.settings, and look for outliers in the targets"
    if not good:
        raise InputError(f"training diverged: all {len(models)} networks reached values that are not finite; {advice}")
    if len(good) < len(models):
        lost = len(models) - len(good)
        warnings.warn(f"training of {lost} of {len(models)} networks diverged; {advice}", RuntimeWarning, stacklevel=3)
    return good


def _split(
    pairs: Pairs, validation: Any, groups: ArrayLike | None, unknown: float | None, seed: int
) -> tuple[Pairs, Pairs | None]:
    """Return the pairs to learn from and those to choose by: given, held out, or None."""
    if isinstance(validation, Pairs | str | Path):
        held = read_pairs(validation, None, unknown)
    elif isinstance(validation, tuple | list):
        if len(validation) != 2:
            raise InputError(f"validation pairs are (images, targets), got {len(validation)} entries")
        held = read_pairs(validation[0], validation[1], unknown)
    elif isinstance(validation, Real) and not isinstance(validation, bool):
        return (pairs, None) if validation == 0 else hold_out_images(pairs, float(validation), groups, seed)
    else:
        raise InputError(f"validation is a share of the images, or (images, targets), got {type(validation).__name__}")
    if groups is not None:
        raise InputError("groups= chooses the images to hold out together and cannot be used with validation pairs")
    return pairs, held


def _location_and_scale(maps: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of the known targets. The deviation is 1 if they do not vary."""
    known = maps[~maps.isnan()].double()
    spread = float(known.std(correction=0))
    return float(known.mean()), spread if spread > 1e-12 * float(known.abs().max()) else 1.0
