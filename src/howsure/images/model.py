"""A fitted image model: predictions, evidence that decreases for unfamiliar images, and model files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from howsure.distributions import Normal, NormalInverseGamma
from howsure.errors import InputError
from howsure.images.batches import to_network
from howsure.images.networks import ImageRecipe, answer_of, maps_and_features, pooled_features, raw_maps
from howsure.images.pairs import MAX_TARGET, Pairs, as_images, pad_images, padding, read_pairs
from howsure.likelihoods import Method
from howsure.nn import UNet
from howsure.nn.appearance import MIN_IMAGES, ImageFading, Seen, appearance
from howsure.prediction import Answer, Prediction
from howsure.prediction.state import location, stretch
from howsure.storage import checked_header, load_model, reading_model, save_model
from howsure.tables.state import METHODS, method_from_state, method_state, training_from_state, training_state
from howsure.training import Training, resolve_device

__all__ = ["FittedImages", "ImageHeader"]

BATCH_IMAGES = 24  # the most images in a batch of a prediction
BATCH_PIXELS = {"cpu": 1 << 21, "cuda": 1 << 24}  # the most pixels in a batch, counted for every member
POWERS = (4.0, 3.0, 2.0, 1.0)  # candidate powers of the familiarity
WIDTHS = tuple(1.05**k for k in range(-10, 15))  # factors of the scales that validation maps choose from
FADING = "fading."  # between the number of a network and the name of a tensor in model files


@dataclass(frozen=True, eq=False)
class FittedImages:
    """Trained networks from images to maps, with all they need to predict.

    Args:
        method: the likelihood, which turns raw outputs into a distribution.
        networks: one or several, of one recipe. They are the members of a prediction.
        recipe: that they were trained by.
        training: the result of each training.
        loc: of the targets. Networks are trained with (y − loc) / scale.
        scale: of the targets.
        fading: for each network, the share of its evidence that counts for an image. None: all of it.

    Raises:
        InputError: for no network, or another number of entries in ``fading``.

    >>> import tempfile
    >>> import numpy as np
    >>> from howsure.images import ImageRecipe, fit_images
    >>> from howsure.training import Settings
    >>> images, maps = np.zeros((4, 16, 16), np.uint8), np.random.default_rng(0).normal(size=(4, 16, 16))
    >>> recipe = ImageRecipe(width=4, blocks=1, settings=Settings(steps=2, learning_rate=1e-3))
    >>> model = fit_images(images, maps, recipe=recipe, members=2, device="cpu")
    >>> model.members, model.predict(images[:3]).interval(0.9).shape
    (2, (3, 16, 16, 2))
    >>> sum(len(p) for p in model.predict_batches(images))
    4
    >>> path = model.save(tempfile.mkdtemp() + "/model.safetensors")
    >>> from howsure.storage import load_model
    >>> FittedImages.restore(path, *load_model(path)).device
    device(type='cpu')
    >>> FittedImages.join([FittedImages.load(path), FittedImages.from_state(*model.state())]).to("cpu").members
    4
    >>> model.answers_with_evidence(torch.zeros(1, 3, 16, 16))[0].batch_shape
    torch.Size([2, 1, 16, 16])
    >>> model.fit_fading(np.zeros((10, 16, 16), np.uint8)).predict(images).familiarity.shape
    (4,)
    """

    method: Method
    networks: tuple[UNet, ...]
    recipe: ImageRecipe = field(default_factory=ImageRecipe)
    training: tuple[Training, ...] = ()
    loc: float = 0.0
    scale: float = 1.0
    fading: tuple[ImageFading, ...] | None = None

    methods: ClassVar[Mapping[str, type[Method]]] = METHODS  # the classes of methods that can be saved, by name

    def __post_init__(self) -> None:
        if not self.networks:
            raise InputError("a model of images needs at least one network")
        if self.fading is not None and len(self.fading) != len(self.networks):
            raise InputError(f"{len(self.networks)} networks need one `fading` each, got {len(self.fading)}")

    def __repr__(self) -> str:
        fading = ", fading" if self.fading is not None else ""
        return f"{type(self).__name__}({self.method}, networks={len(self.networks)}{fading})"

    @classmethod
    def join(cls, models: Iterable[Self]) -> Self:
        """Return one model with the networks of several: an ensemble.

        Args:
            models: at least one. They must have one method, recipe and scale of targets, as fits to the same images
                with the same ``validation`` do. All of them have a ``fading``, or none.

        Raises:
            InputError: if they differ.
        """
        models = list(models)
        if not models:
            raise InputError("there are no models to join")
        first, *others = models
        for other in others:
            for name in ("method", "recipe", "loc", "scale"):
                ours, theirs = getattr(first, name), getattr(other, name)
                if ours != theirs:
                    raise InputError(f"models that differ in their {name} cannot be joined: {ours} and {theirs}")
        fadings = [model.fading for model in models]
        some = [each for each in fadings if each is not None]
        if some and len(some) < len(models):
            raise InputError(
                "models with and without evidence of images cannot be joined: use `replace(model, fading=None)`"
            )
        return replace(
            first,
            networks=tuple(network for model in models for network in model.networks),
            training=tuple(training for model in models for training in model.training),
            fading=tuple(each for several in some for each in several) if some else None,
        )

    @property
    def members(self) -> int:
        """Number of networks."""
        return len(self.networks)

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(p.numel() for network in self.networks for p in network.parameters())

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        return next(self.networks[0].parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Move the networks to ``device``, and return the model."""
        there = resolve_device(device)
        for network in self.networks:
            network.to(there, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for fading in self.fading or ():
            _place(fading, there)
        return self

    # Predictions ------------------------------------------------------------------------------------------------------

    def predict(self, images: Any) -> Prediction:
        """Return the predictive distribution of every pixel, (N, H, W), in the units of the targets.

        With ``fading`` the evidence decreases for images that differ from the training images.
        The whole prediction is kept in memory, on the device of the model: per pixel and network four numbers of an
        evidential model, two of a normal one. :meth:`predict_batches` needs less memory.

        Args:
            images: (N, H, W, 3) or (N, H, W), bytes or floats from 0 to 1; or a float tensor (N, 3, H, W) as networks
                see it.
        """
        return Prediction.cat(self.predict_batches(images))

    def predict_batches(self, images: Any) -> Iterator[Prediction]:
        """Return an iterator over the predictions of consecutive batches of images.

        A batch has at most 24 images, fewer if they are large or the model has many members. A batch is computed when
        the iterator reaches it, so memory does not grow with the number of images.

        Args:
            images: as :meth:`predict` takes them.
        """
        return (self._predict_batch(batch) for batch in self._batches(self._inputs(images)))

    def answers(self, images: Tensor) -> Answer:
        """Return the distribution of each member for images, (members, N, H, W), all at once, without ``fading``.

        Args:
            images: bytes (N, H, W, 3), or floats (N, 3, H, W) from 0 to 1, which have gradients.
        """
        return self._answer(raw_maps(self.networks, self._seen_by_networks(images), self._half), self._size(images))

    def answers_with_evidence(self, images: Tensor) -> tuple[Answer, Tensor | None]:
        """Return the distributions of :meth:`answers` with less evidence for unfamiliar images, and the familiarity.

        The evidence ν of a network is multiplied by the familiarity of the image, (members, N). Of a normal
        distribution, the variance is divided. The scales are multiplied by the width of ``fading``. Without
        ``fading``, the familiarity is None.

        Args:
            images: as :meth:`answers` takes them.
        """
        if self.fading is None:
            return self.answers(images), None
        x, size = self._seen_by_networks(images), self._size(images)
        raw, features = maps_and_features(self.networks, x, self._half)
        looks = appearance(x[..., : size[0], : size[1]])
        shares = [fading(Seen(looks, pooled)) for fading, pooled in zip(self.fading, features, strict=True)]
        familiarity = torch.stack(shares)
        widths = torch.stack([fading.width for fading in self.fading])[:, None, None, None]
        answer = self._answer(raw, size)
        answer = stretch(answer, widths.to(location(answer).dtype), location(answer))
        return with_share(answer, familiarity[..., None, None]), familiarity

    @torch.no_grad()
    def _predict_batch(self, batch: Tensor) -> Prediction:
        """Return the prediction of one batch of images, as :meth:`_inputs` returns them."""
        answer, familiarity = self.answers_with_evidence(batch)
        return Prediction(answer, members=0, familiarity=familiarity)

    def _batches(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the images in batches; no images are one batch without any."""
        height, width = self._size(inputs)
        pixels = max(1, self.members * height * width)
        size = max(1, min(BATCH_IMAGES, BATCH_PIXELS.get(self.device.type, 1 << 21) // pixels))
        return inputs.split(size) if len(inputs) else (inputs,)

    def fit_fading(self, images: Any, validation: Any = None, targets: Any = None) -> Self:
        """Return the model with evidence that decreases for images unlike its training images.

        The result has the attribute ``fading``: the evidence of an image is multiplied by its familiarity, a power of
        the usual distance from the training images divided by the image's own, at most 1.

        Args:
            images: that the networks were trained on, at least ten, as :meth:`predict` takes them.
            validation: images that the networks were not trained on, which define the usual distance. With fewer than
                ten, the training images define it.
            targets: maps of at least ten validation images. Then the power of the familiarity is the largest of
                4, 3, 2 and 1 for which their likelihood is not worse than without ``fading``, by more than a standard
                error. If there is none, ``fading`` is None. Without targets it is 4, or 2 with fewer than ten
                validation images. The scales of each network are multiplied by the factor under which the
                validation maps are most likely. Without targets it is 1.
        """
        train = self.seen(images)
        usual: tuple[Seen, ...] | list[None] = [None] * len(train) if validation is None else self.seen(validation)
        few = validation is None or len(usual[0].appearance) < MIN_IMAGES  # type: ignore[union-attr]
        fadings = [ImageFading.fit(a, b, power=2.0 if few else 4.0) for a, b in zip(train, usual, strict=True)]
        faded = replace(self, fading=tuple(_place(fading, self.device) for fading in fadings))
        if targets is not None and not few:
            pairs = read_pairs(self._inputs(validation), targets)
            for k in range(len(fadings)):
                one = replace(faded, networks=faded.networks[k : k + 1], fading=faded.fading[k : k + 1])  # type: ignore[index]
                _choose_power(one, pairs)
                _choose_width(one, pairs)
        return faded

    def seen(self, images: Any) -> tuple[Seen, ...]:
        """Return the inputs of each network's `ImageFading` on the CPU: appearance and pooled features.

        Args:
            images: as :meth:`predict` takes them.
        """
        inputs = self._inputs(images)
        parts: list[list[Seen]] = [[] for _ in self.networks]
        for few in inputs.split(BATCH_IMAGES):
            x, (height, width) = self._seen_by_networks(few), self._size(few)
            looks = appearance(x[..., :height, :width])
            for network, found in zip(self.networks, parts, strict=True):
                found.append(Seen(looks, pooled_features(network, x, self._half)).to("cpu"))
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
        """Return the output distribution of padded raw maps, in the units of the targets."""
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

    # Files ------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], "ImageHeader"]:
        """Return the contents of a model file: tensors by name, and the header."""
        tensors = {f"{k}.{name}": t for k, net in enumerate(self.networks) for name, t in net.state_dict().items()}
        for k, fading in enumerate(self.fading or ()):
            tensors |= {f"{k}.{FADING}{name}": t.double() for name, t in fading.state_dict().items()}
        return tensors, ImageHeader(
            method=method_state(self.method, self.methods),
            recipe=self.recipe,
            networks=len(self.networks),
            training=[training_state(each) for each in self.training],
            loc=self.loc,
            scale=self.scale,
            fading=self.fading is not None,
        )

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: "ImageHeader") -> Self:
        """Return the model of :meth:`state`, on the CPU.

        Args:
            tensors: weights by name.
            header: everything else.

        Raises:
            InputError: if its parts do not fit together.
        """
        method, recipe = method_from_state(header.method, cls.methods), header.recipe
        count, loc, scale, fades = header.networks, float(header.loc), float(header.scale), header.fading
        if not 0 < count <= len(tensors):
            raise InputError(f"the model has {count} networks")
        if not abs(loc) <= MAX_TARGET or not 1 / MAX_TARGET <= scale <= MAX_TARGET:
            raise InputError(f"targets cannot have the location {loc} and the scale {scale}")
        if not all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point()):
            raise InputError("some tensors have values that are not finite")
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
        training = tuple(training_from_state(each) for each in header.training)
        return cls(method, tuple(networks), recipe, training, loc, scale, tuple(fadings) if fades else None)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a model file, to be read by :func:`howsure.load`, on any device. Nothing in it is ever executed.

        Args:
            path: of the file. An older model there is replaced.
            overwrite: whether to replace a file that is not a model.
        """
        return save_model(path, *self.state(), overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the model that :meth:`save` wrote to the file ``path``, on the CPU."""
        return cls.restore(path, *load_model(path))

    @classmethod
    def restore(cls, path: str | Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> Self:
        """Return the model of a file that was read.

        Args:
            path: of the file, for errors.
            tensors: its tensors by name.
            values: its header.

        Raises:
            InputError: if the file has another kind of model, or a damaged one.
        """
        if values.get("model") != "images":
            raise InputError(f"{path} does not hold a model of images", hint="howsure.load reads every kind of model")
        with reading_model(path):
            return cls.from_state(tensors, checked_header(ImageHeader, values))


@dataclass(frozen=True)
class ImageHeader:
    """Header of a model file of images."""

    method: dict[str, Any]
    recipe: ImageRecipe
    networks: int
    training: list[Any]
    loc: float | int
    scale: float | int
    fading: bool
    extra: dict[str, Any] = field(default_factory=dict)  # of a subclass
    model: str = "images"


def _check_weights(weights: dict[str, Tensor], recipe: ImageRecipe) -> None:
    """Raise unless the tensors have the shapes of the recipe's network, before memory is taken for one of its size."""
    first, last = weights.get("encoder.0.0.weight"), weights.get(f"encoder.{recipe.blocks - 1}.2.weight")
    widest = recipe.width * 2 ** min(recipe.blocks - 1, 60)
    shapes = [None if t is None else tuple(t.shape) for t in (first, last)]
    expected = [(recipe.width, 3, 3, 3), (widest, widest, 3, 3)]
    if shapes != expected or not all(t.dtype == torch.float32 for t in weights.values()):
        raise InputError("the tensors do not fit a network of this recipe")


def with_share(answer: Answer, share: Tensor) -> Answer:
    r"""Return distributions with a share w of the evidence: :math:`w\nu`, or :math:`\sigma/\sqrt w` of a normal one."""
    if isinstance(answer, NormalInverseGamma):
        w = share.to(answer.nu.dtype)
        nu = answer.nu * w
        return NormalInverseGamma(
            answer.gamma, nu, alpha_minus_one=answer.alpha_minus_one, beta=answer.beta, validate_args=False
        )
    assert isinstance(answer, Normal)
    return Normal(answer.loc, answer.scale / share.to(answer.scale.dtype).sqrt(), validate_args=False)


@torch.no_grad()
def _choose_power(model: FittedImages, pairs: Pairs) -> None:
    """Set the power of the one network's `ImageFading` without loss of likelihood on these pairs."""
    assert model.fading is not None
    (fading,) = model.fading
    rises: dict[float, list[Tensor]] = {power: [] for power in POWERS}
    for part in pairs.chunks(BATCH_IMAGES):
        part = part.to(model.device)
        known = ~part.maps.isnan()
        y = torch.where(known, part.maps, 0.0)
        fading.power.fill_(1.0)
        plain_answer = model.answers(part.images)
        share = fading(model.seen(part.images)[0].to(model.device))

        def nll(keep: Tensor, given: Answer = plain_answer, y: Tensor = y, known: Tensor = known) -> Tensor:
            each = -with_share(given, keep[None, :, None, None]).predictive().log_prob(y)[0]
            return torch.where(known, each, 0.0).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)

        plain, seen = nll(torch.ones_like(share)), known.any(2).any(1)
        for power, found in rises.items():
            found.append((nll(share**power) - plain)[seen].double())
    fading.power.zero_()
    for power, found in rises.items():
        rise = torch.cat(found)
        if len(rise) >= MIN_IMAGES and float(rise.mean()) <= float(rise.std()) / len(rise) ** 0.5:
            fading.power.fill_(power)
            return


@torch.no_grad()
def _choose_width(model: FittedImages, pairs: Pairs) -> None:
    """Set the width of the one network's `ImageFading` to the factor with the largest likelihood of these maps."""
    assert model.fading is not None
    (fading,) = model.fading
    totals = torch.zeros(len(WIDTHS), dtype=torch.float64, device="cpu")
    for part in pairs.chunks(BATCH_IMAGES):
        part = part.to(model.device)
        known = ~part.maps.isnan()
        predictive = model.answers_with_evidence(part.images)[0].predictive()
        y = torch.where(known, part.maps, 0.0)
        for k, width in enumerate(WIDTHS):
            factor = torch.tensor(width, dtype=predictive.loc.dtype, device=model.device)
            each = stretch(predictive, factor, predictive.loc).log_prob(y)[0]
            totals[k] += torch.where(known, each, 0.0).sum().double().cpu()
    fading.width.fill_(WIDTHS[int(totals.argmax())])


def _place(fading: ImageFading, device: torch.device) -> ImageFading:
    """Move an `ImageFading` to a device, and return it. The device mps has no float64."""
    return fading.to(device, torch.float32 if device.type == "mps" else torch.float64)


def _fading_from(tensors: dict[str, Tensor], recipe: ImageRecipe) -> ImageFading:
    """Return the `ImageFading` of a network of this recipe, after checking shapes and values of the tensors."""
    fading = ImageFading([recipe.width * 2**k for k in range(recipe.blocks)])
    if not all(t.dtype == torch.float64 for t in tensors.values()):
        raise InputError("the tensors of the image evidence are not float64")
    fading.load_state_dict(tensors)
    positive = torch.cat([fading.least, fading.scale, fading.width.view(1)])
    if not (bool((positive > 0).all()) and fading.reach >= 0 and fading.power >= 0):
        raise InputError("the numbers of the image evidence are out of range")
    return fading
