"""Fit U-Nets from images to maps (depth, say) by any method, and predict with one or several of them."""

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from evidentia.distributions import Faded, Gaussian, Mixture, StudentT
from evidentia.errors import InputError, InputTypeError
from evidentia.fitting.image_networks import ImageRecipe, answer_of, maps_and_features, pooled_features, raw_maps
from evidentia.fitting.image_training import CompiledLosses, train_network
from evidentia.fitting.pairs import LARGEST, Pairs, as_images, hold_out_images, pad_images, padding, read_pairs
from evidentia.fitting.state import method_from_state, method_state, training_from_state, training_state
from evidentia.methods import BayesByBackprop, Evidential, LeastSquares, MCDropout, Method
from evidentia.nn import UNet
from evidentia.nn.appearance import FEWEST, ImageFading, Seen, appearance
from evidentia.nn.checks import is_whole
from evidentia.persistence import load_model, refusing_misfits, save_model
from evidentia.prediction import Answer, Deferred, Prediction
from evidentia.training import Augmentation, Settings, Training, resolve_device
from evidentia.training.images import to_network

__all__ = ["FittedImages", "fit_images"]

PART = 24  # images that are asked about at once, or fewer:
PIXELS = {"cpu": 1 << 21, "cuda": 1 << 24}  # pixels of all members together that one part may have
EVIDENCE = ("fading", "plain")
POWERS = (4.0, 3.0, 2.0, 1.0)  # with which evidence may fade
FADING = "fading."  # between the number of a network and the name of a tensor in model files
HELD = 1 << 25  # pixels of all members together up to which a prediction is kept in memory


# Models ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FittedImages:
    """Trained networks from images to maps, with all they need to predict.

    Args:
        method: how raw outputs become an answer.
        networks: one or several, of one recipe; the members of a prediction.
        recipe: that they were trained by.
        training: the result of each training.
        loc: of the targets, which networks see as (y − loc) / scale.
        scale: likewise.
        draws: if not 0, each network predicts with so many draws of its dropout; these are then the members.
        seed: of the draws.
        fading: for each network, how much of its evidence counts for an image; None counts all of it everywhere.
    """

    method: Method
    networks: tuple[UNet, ...]
    recipe: ImageRecipe = field(default_factory=ImageRecipe)
    training: tuple[Training, ...] = ()
    loc: float = 0.0
    scale: float = 1.0
    draws: int = 0
    seed: int = 0
    fading: tuple[ImageFading, ...] | None = None

    def __post_init__(self) -> None:
        if not self.networks:
            raise InputError("a model of images needs at least one network")
        if self.draws < 0:
            raise InputError(f"draws must be at least 0, got {self.draws}")
        if self.draws and not self.recipe.dropout:
            raise InputError("draws are those of dropout, and these networks were trained without; set recipe.dropout")
        if self.fading is not None and len(self.fading) != len(self.networks):
            raise InputError(f"{len(self.networks)} networks need as many fadings, got {len(self.fading)}")

    def __repr__(self) -> str:
        draws = f", draws={self.draws}" if self.draws else ""
        fading = ", fading" if self.fading is not None else ""
        return f"FittedImages({self.method}, networks={len(self.networks)}{draws}{fading})"

    @classmethod
    def join(cls, models: Iterable["FittedImages"]) -> "FittedImages":
        """Return one model with the networks of several: an ensemble.

        They must have one method, recipe and scale of targets; fits to the same images with the same ``validation``
        have. All of them fade or none. Of least squares, choose the noise again afterwards.
        """
        models = list(models)
        if not models:
            raise InputError("there are no models to join")
        first, *others = models
        for other in others:
            for name in ("method", "recipe", "loc", "scale", "draws"):
                ours, theirs = getattr(first, name), getattr(other, name)
                if name == "method" and isinstance(ours, LeastSquares) and isinstance(theirs, LeastSquares):
                    continue
                if ours != theirs:
                    raise InputError(f"models that differ in their {name} cannot be joined: {ours} and {theirs}")
        fadings = [model.fading for model in models]
        some = [each for each in fadings if each is not None]
        if some and len(some) < len(models):
            raise InputError(
                "models with and without fading cannot be joined; replace(model, fading=None) goes without"
            )
        return replace(
            first,
            networks=tuple(network for model in models for network in model.networks),
            training=tuple(training for model in models for training in model.training),
            fading=tuple(each for several in some for each in several) if some else None,
        )

    @property
    def members(self) -> int:
        """How many answers a prediction has for each pixel."""
        return len(self.networks) * max(1, self.draws)

    @property
    def parameters(self) -> int:
        """How many numbers were learned."""
        return sum(p.numel() for network in self.networks for p in network.parameters())

    @property
    def device(self) -> torch.device:
        return next(self.networks[0].parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Move the networks to this device, and return the model."""
        there = resolve_device(device)
        for network in self.networks:
            network.to(there, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for fading in self.fading or ():
            _place(fading, there)
        return self

    # Predictions ------------------------------------------------------------------------------------------------------

    def predict(self, images: Any, *, generator: torch.Generator | None = None) -> Prediction:
        """Return what the networks say about images, (N, H, W), in the units of the targets.

        Networks with fading say less about an image the less it looks like those they were trained on.

        Where all answers would be too many to keep (50 draws of hundreds of images, say), the prediction computes them
        a few images at a time, whenever it is asked for something; its parts are then best read in one loop over
        :meth:`evidentia.Prediction.parts`.

        Args:
            images: (N, H, W, 3) or (N, H, W), bytes or floats from 0 to 1; or a float tensor (N, 3, H, W) as networks
                see it.
            generator: that draws of dropout are taken from; by default they follow from the model's seed.
        """
        inputs = self._inputs(images)
        count, height, width = len(inputs), *self._size(inputs)
        pixels = self.members * height * width
        if inputs is images and count * pixels > HELD:
            inputs = inputs.clone()  # what is computed later must not change with the caller's tensor
        step = max(1, min(PART, PIXELS.get(self.device.type, 1 << 21) // max(1, pixels)))
        parts = inputs.split(step) if count else (inputs,)
        source = _Source(self, parts, generator)
        sizes = tuple(len(part) for part in parts)
        deferred = Deferred(source, sizes, (count, height, width), self.members)
        if count * pixels > HELD:
            return Prediction(deferred)
        return Prediction(deferred).computed()

    def answers(self, images: Tensor, generator: torch.Generator | None = None) -> Answer:
        """Return what each member says about images, (members, N, H, W), all at once, before any fading.

        ``images`` are bytes (N, H, W, 3), or floats (N, 3, H, W) from 0 to 1, by which there are gradients.
        """
        x = self._seen_by_networks(images)
        return self._answer(raw_maps(self.networks, x, self.draws, self._half, generator), self._size(images))

    def faded_answers(self, images: Tensor, generator: torch.Generator | None = None) -> Answer | Faded:
        """Return the same with the share of each member's evidence that counts; without fading, :meth:`answers`."""
        if self.fading is None:
            return self.answers(images, generator)
        x, size = self._seen_by_networks(images), self._size(images)
        raw, features = maps_and_features(self.networks, x, self.draws, self._half, generator)
        looks = appearance(x[..., : size[0], : size[1]])
        shares = [fading(Seen(looks, pooled)) for fading, pooled in zip(self.fading, features, strict=True)]
        keep = torch.stack(shares).repeat_interleave(max(1, self.draws), 0)[..., None, None]
        answer = self._answer(raw, size)
        assert not isinstance(answer, StudentT)
        return Faded(answer, keep, validate_args=False)

    def fit_fading(self, images: Any, validation: Any = None, targets: Any = None) -> "FittedImages":
        """Return the model with evidence that fades for images that look unlike these, on which it was trained.

        Args:
            images: that the networks were trained on, at least ten, as :meth:`predict` takes them.
            validation: images that they were not trained on, which say what is usual; without, or with fewer than ten,
                the training images do.
            targets: maps of at least ten validation images. Then the power with which evidence fades is the largest of
                4, 3, 2 and 1 with which their likelihood is not worse than without fading, by more than a standard
                error; if there is none, nothing fades. Without targets it is 4, or 2 if there are fewer than ten
                validation images to judge by.

        A model of least squares is returned as it is: its noise is one number, which says nothing of an image.
        """
        if isinstance(self.method, LeastSquares):
            return self
        train = self.seen(images)
        usual: tuple[Seen, ...] | list[None] = [None] * len(train) if validation is None else self.seen(validation)
        few = validation is None or len(usual[0].appearance) < FEWEST  # type: ignore[union-attr]
        fadings = [ImageFading.fit(a, b, power=2.0 if few else 4.0) for a, b in zip(train, usual, strict=True)]
        faded = replace(self, fading=tuple(_place(fading, self.device) for fading in fadings), draws=0)
        if targets is not None and not few:
            pairs = read_pairs(self._inputs(validation), targets)
            for k in range(len(fadings)):
                _choose_power(replace(faded, networks=faded.networks[k : k + 1], fading=faded.fading[k : k + 1]), pairs)  # type: ignore[index]
        return replace(faded, draws=self.draws)

    def seen(self, images: Any) -> tuple[Seen, ...]:
        """Return what each network's fading knows of images, on the CPU: how they look, and pooled features."""
        inputs = self._inputs(images)
        parts: list[list[Seen]] = [[] for _ in self.networks]
        for few in inputs.split(PART):
            x, (height, width) = self._seen_by_networks(few), self._size(few)
            looks = appearance(x[..., :height, :width])
            for network, found in zip(self.networks, parts, strict=True):
                found.append(Seen(looks, pooled_features(network, x, self._half)).cpu())
        return tuple(Seen.cat(found) for found in parts)

    @property
    def _half(self) -> bool:
        """Whether networks compute in bfloat16."""
        return self.device.type == "cuda" and self.recipe.settings.precision == "bfloat16"

    def _seen_by_networks(self, images: Tensor) -> Tensor:
        """Return images as floats (N, 3, H, W) on the model's device, with sides that the networks can take."""
        multiple = self.networks[0].multiple
        if images.dtype == torch.uint8:
            return to_network(pad_images(images.to(self.device), multiple))
        right, bottom = padding(self._size(images), multiple)
        x = images.to(torch.float32)
        x = nn.functional.pad(x, (0, right, 0, bottom), mode="replicate") if right or bottom else x
        return x.to(self.device)

    def _answer(self, raw: Tensor, size: tuple[int, int]) -> Answer:
        """Return the answer that padded raw maps stand for, in the units of the targets."""
        answer = answer_of(self.method, raw[..., : size[0], : size[1]])
        return answer if (self.loc, self.scale) == (0.0, 1.0) else answer.affine(self.loc, self.scale)  # type: ignore[no-any-return]

    def _inputs(self, images: Any) -> Tensor:
        """Return images as bytes (N, H, W, 3), or as they are if networks can see them so."""
        if isinstance(images, Tensor) and images.is_floating_point() and images.ndim == 4 and images.shape[1] == 3:
            if images.shape[3] == 3:
                raise InputError(f"images of shape {tuple(images.shape)} have two dimensions of channels; pass bytes")
            if images.numel() and not (float(images.min()) >= 0 and float(images.max()) <= 1):
                raise InputError("images of floats lie between 0 and 1; divide them by their largest value")
            return images
        return as_images(images)

    def _size(self, inputs: Tensor) -> tuple[int, int]:
        height, width = inputs.shape[1:3] if inputs.dtype == torch.uint8 else inputs.shape[2:4]
        return height, width

    def choose_noise(self, images: Any, targets: Any, *, generator: torch.Generator | None = None) -> "FittedImages":
        """Return the model with the noise that a method without one of its own needs, chosen by these pairs.

        Least squares does not say how large the noise is: it gets one deviation for all pixels, the one with the best
        likelihood, read off every 29th pixel. A model of any other method is returned as it is.
        """
        if not isinstance(self.method, LeastSquares):
            return self
        pairs = read_pairs(images, targets)
        means, known = [], []
        with torch.no_grad():
            for part in pairs.to(self.device).chunks(PART):
                chosen = ~part.maps.isnan()
                answer = self.answers(part.images, generator)
                assert isinstance(answer, Gaussian)
                means.append(answer.loc[:, chosen][:, ::29])
                known.append(part.maps[chosen][::29])
            loc, y = torch.cat(means, 1), torch.cat(known)
            # in units of the targets' deviation, or of the errors where these are far from it
            error = float((loc.mean(0) - y).square().mean().sqrt())
            unit = self.scale if 0.01 * self.scale < error < self.scale else 3 * error or self.scale
            candidates = np.geomspace(0.01, 1, 61)
            deviations = [torch.full_like(loc, float(s) * unit) for s in candidates]
            nll = [-float(Mixture(Gaussian(loc, s), validate_args=False).log_prob(y).mean()) for s in deviations]
        best = float(candidates[int(np.argmin(nll))])
        noise = best if unit == self.scale else best * unit / self.scale
        return replace(self, method=replace(self.method, noise=noise))

    # Files ------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all that the model knows: tensors by name, and plain values."""
        tensors = {f"{k}.{name}": t for k, net in enumerate(self.networks) for name, t in net.state_dict().items()}
        for k, fading in enumerate(self.fading or ()):
            tensors |= {f"{k}.{FADING}{name}": t.double() for name, t in fading.state_dict().items()}
        return tensors, {
            "model": "images",
            "method": method_state(self.method),
            "recipe": asdict(self.recipe),
            "networks": len(self.networks),
            "training": [training_state(each) for each in self.training],
            "loc": self.loc,
            "scale": self.scale,
            "draws": self.draws,
            "seed": self.seed,
            "fading": self.fading is not None,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> "FittedImages":
        """Return the model that :meth:`state` described, on the CPU; raise if its parts do not fit together."""
        method, recipe = method_from_state(settings["method"]), _recipe_from(settings["recipe"])
        count = settings["networks"]
        if type(count) is not int or not 0 < count <= len(tensors):
            raise InputError(f"the model has {count!r} networks")
        loc, scale = (float(settings[name]) for name in ("loc", "scale"))
        if not abs(loc) <= LARGEST or not 1 / LARGEST <= scale <= LARGEST:
            raise InputError(f"targets cannot have the location {loc} and the scale {scale}")
        fades = settings.get("fading", False)  # models of earlier versions do not
        if type(fades) is not bool:
            raise InputError(f"fading is true or false, not {fades!r}")
        networks, fadings = [], []
        for k in range(count):
            own = {n.removeprefix(f"{k}."): t for n, t in tensors.items() if n.startswith(f"{k}.")}
            weights = {n: t for n, t in own.items() if not n.startswith(FADING)}
            _check_weights(weights, recipe)
            networks.append(recipe.network(method.outputs, 0).eval())
            networks[-1].load_state_dict(weights)
            if fades:
                found = {n.removeprefix(FADING): t for n, t in own.items() if n.startswith(FADING)}
                fadings.append(_fading_from(found, recipe))
        if sum(len(list(m.state_dict())) for m in [*networks, *fadings]) != len(tensors):
            raise InputError("there are tensors that belong to no network")
        training = tuple(training_from_state(each) for each in settings["training"])
        draws, seed = int(settings["draws"]), int(settings["seed"])
        kept = tuple(fadings) if fades else None
        return cls(method, tuple(networks), recipe, training, loc, scale, draws, seed, kept)

    def save(self, folder: str | Path) -> Path:
        """Write a model folder, to be read by :func:`evidentia.load`, on any device. Nothing in it is ever executed."""
        return save_model(folder, *self.state())

    @classmethod
    def load(cls, folder: str | Path) -> "FittedImages":
        """Return the model that :meth:`save` wrote to this folder, on the CPU."""
        return cls.restore(folder, *load_model(folder))

    @classmethod
    def restore(cls, folder: str | Path, tensors: dict[str, Tensor], settings: dict[str, Any]) -> "FittedImages":
        """Return the model of a folder that was read; raise an InputError that names the folder if it is none."""
        if settings.get("model") != "images":
            raise InputError(f"{folder} does not hold a model of images; evidentia.load reads every kind of model")
        with refusing_misfits(folder):
            return cls.from_state(tensors, settings)


class _Source:
    """Part number → the answers to that part of the images, the same whenever it is asked again."""

    def __init__(self, model: FittedImages, parts: Sequence[Tensor], generator: torch.Generator | None) -> None:
        self.model, self.parts, self.generator = model, parts, generator
        self.states: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, part: int) -> Answer | Faded:
        if not self.model.draws:
            return self.model.faded_answers(self.parts[part])
        if self.generator is None:
            seed = np.random.SeedSequence([self.model.seed, part]).generate_state(1)[0]
            return self.model.faded_answers(self.parts[part], torch.Generator(self.model.device).manual_seed(int(seed)))
        if part not in self.states:
            self.states[part] = self.generator.get_state()
            return self.model.faded_answers(self.parts[part], self.generator)
        again = torch.Generator(self.generator.device)
        again.set_state(self.states[part])
        return self.model.faded_answers(self.parts[part], again)


def _recipe_from(saved: dict[str, Any]) -> ImageRecipe:
    """Return the recipe of a model file; settings that this version does not know are left out."""
    known = {name: value for name, value in saved["settings"].items() if name in Settings.__dataclass_fields__}
    varied = None if saved["augmentation"] is None else Augmentation(**saved["augmentation"])
    return ImageRecipe(**{**saved, "settings": Settings(**known), "augmentation": varied})


def _check_weights(weights: dict[str, Tensor], recipe: ImageRecipe) -> None:
    """Raise unless the tensors have the shapes of the recipe's network, before memory is taken for one of its size."""
    for name, value in (("width", recipe.width), ("blocks", recipe.blocks)):
        if type(value) is not int or value < 1:
            raise InputError(f"a network has no {name} of {value!r}")
    first, last = weights.get("encoder.0.0.weight"), weights.get(f"encoder.{recipe.blocks - 1}.2.weight")
    widest = recipe.width * 2 ** min(recipe.blocks - 1, 60)
    shapes = [None if t is None else tuple(t.shape) for t in (first, last)]
    expected = [(recipe.width, 3, 3, 3), (widest, widest, 3, 3)]
    if shapes != expected or not all(t.dtype == torch.float32 for t in weights.values()):
        raise InputError("the tensors are not those of a network of this recipe")


@torch.no_grad()
def _choose_power(model: FittedImages, pairs: Pairs) -> None:
    """Set the power of the one network's fading to the largest that costs these pairs no likelihood."""
    assert model.fading is not None
    (fading,) = model.fading
    rises: dict[float, list[Tensor]] = {power: [] for power in POWERS}
    for part in pairs.chunks(PART):
        part = part.to(model.device)
        known = ~part.maps.isnan()
        y = torch.where(known, part.maps, 0.0)
        fading.power.fill_(1.0)
        given = model.faded_answers(part.images)
        assert isinstance(given, Faded)

        def nll(keep: Tensor | float, given: Faded = given, y: Tensor = y, known: Tensor = known) -> Tensor:
            each = -Faded(given.plain, keep, validate_args=False).predictive().log_prob(y)[0]
            return torch.where(known, each, 0.0).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)

        plain, seen = nll(1.0), known.any(2).any(1)
        for power, found in rises.items():
            found.append((nll(given.keep**power) - plain)[seen].double())
    fading.power.zero_()
    for power, found in rises.items():
        rise = torch.cat(found)
        if len(rise) >= FEWEST and float(rise.mean()) <= float(rise.std()) / len(rise) ** 0.5:
            fading.power.fill_(power)
            return


def _place(fading: ImageFading, device: torch.device) -> ImageFading:
    """Move a fading to a device, and return it; mps has no float64."""
    return fading.to(device, torch.float32 if device.type == "mps" else torch.float64)


def _fading_from(tensors: dict[str, Tensor], recipe: ImageRecipe) -> ImageFading:
    """Return the fading of a network of this recipe; raise unless the tensors have its shapes and possible values."""
    fading = ImageFading([recipe.width * 2**k for k in range(recipe.blocks)])
    if not all(t.dtype == torch.float64 for t in tensors.values()):
        raise InputError("the tensors of the fading are not float64")
    fading.load_state_dict(tensors)
    if not (bool((fading.least > 0).all() & (fading.scale > 0).all()) and fading.reach >= 0 and fading.power >= 0):
        raise InputError("the numbers of the fading are out of range")
    return fading


# Fits -----------------------------------------------------------------------------------------------------------------


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
    standardise: bool = True,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    evidence: str = "fading",
    losses: CompiledLosses | None = None,
    keep_diverged: bool = False,
    progress: bool = False,
) -> FittedImages:
    """Train U-Nets from images to maps, and return them with the weights of the best validation score.

    All pairs are kept on the device. There, on CUDA, the step is compiled and captured, and convolutions run in the
    precision of the settings; on a CPU it is float32. Images of any size will do; sides that are no multiples of what
    the network needs are padded for it, and predictions cut back.

    Args:
        images: (N, H, W, 3) or (N, H, W), bytes or floats from 0 to 1; or a folder or zip with ``image/`` and
            ``target/`` in it (:func:`evidentia.data.images.load_pairs`).
        targets: maps (N, H, W) in any unit, NaN where unknown; None with a folder.
        method: by default :class:`~evidentia.methods.Evidential`.
        validation: the share of the images that chooses the weights, or (images, targets) of its own, or a folder; 0
            trains to the end on all images.
        groups: one label per image (the scene, the patient): whole groups are kept for validation, because frames of
            one scene look alike.
        unknown: a value of the targets that means unknown, as 0 does in the maps of depth cameras.
        members: networks, with the seeds seed, seed + 1, …; several are an ensemble.
        recipe: network, settings and augmentation.
        standardise: let networks see targets of mean 0 and deviation 1; otherwise λ has the unit 1/y.
        seed: of the first network, its batches and the split.
        device: "auto", "cpu", "cuda" or "mps".
        checkpoint: a file to continue from, as in :func:`evidentia.training.train`; with several networks one each,
            whose names end in .1, .2, ….
        evidence: "fading" lets each network's evidence count the less, the less an image looks like those it was
            trained on (:class:`evidentia.nn.appearance.ImageFading`), as far as that costs the validation images no
            likelihood (:meth:`FittedImages.fit_fading`); it widens Gaussians too. "plain" counts all of it everywhere.
            Least squares stays plain, and so does a fit to fewer than ten training images.
        losses: compiled losses to share with other calls.
        keep_diverged: return networks that diverged too, with the best weights they had, instead of leaving them out
            with a warning, or raising if all did.
        progress: show it.

    Returns:
        The model; predict with it, and save it.
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
    loc, scale = _location_and_scale(train_pairs.maps) if standardise else (0.0, 1.0)
    compiled = losses or CompiledLosses()
    models = []
    # The recipe says what precision is used, not the caller. No copies of weights are kept: see raw_maps.
    with torch.autocast(target_device.type, enabled=False, cache_enabled=False):
        for k in range(members):
            if progress and members > 1:
                sys.stderr.write(f"network {k + 1} of {members}\n")
            file = checkpoint if checkpoint is None or k == 0 else f"{checkpoint}.{k}"
            loss = compiled(method, target_device, loc, scale)
            network, training = train_network(
                method, train_pairs, held, recipe, (loc, scale), seed + k, target_device, loss, file, progress
            )
            models.append(FittedImages(method, (network,), recipe, (training,), loc, scale, seed=seed))
        model = FittedImages.join(models if keep_diverged else _usable(models))
        if evidence == "fading" and len(train_pairs) >= FEWEST:
            model = model.fit_fading(train_pairs.images, *(() if held is None else (held.images, held.maps)))
        return model if held is None else model.choose_noise(held, None)


def _check_fit(method: Any, recipe: Any) -> None:
    """Raise for a method or a recipe that images cannot be fitted with."""
    if not isinstance(recipe, ImageRecipe):
        raise InputTypeError(f"recipe is an ImageRecipe, not {type(recipe).__name__}")
    if not isinstance(method, Method):
        raise InputTypeError(f"method is one of evidentia.methods, such as Evidential(), not {type(method).__name__}")
    if isinstance(method, MCDropout | BayesByBackprop):
        raise InputError(
            f"{type(method).__name__} is for tables; for images take GaussianLikelihood() with recipe.dropout, and "
            "dataclasses.replace(model, draws=…) afterwards"
        )
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
    """Return the models whose network learned something; a warning says how many did not, and an error if none did."""
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
        raise InputError("groups say which images to hold out together; with validation pairs of their own none are")
    return pairs, held


def _location_and_scale(maps: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of the targets that are known; a deviation of 1 if they do not vary."""
    known = maps[~maps.isnan()].double()
    spread = float(known.std(correction=0))
    return float(known.mean()), spread if spread > 1e-12 * float(known.abs().max()) else 1.0
