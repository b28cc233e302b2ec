"""Heads: the last layer of a network, from features to a distribution.

A head replaces the last ``Linear`` or convolution of any model. It computes in float32 at least, also under
``torch.autocast`` and in a model cast to bfloat16: eight bits of precision are enough for features, but not for a
prediction and its variance.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from howsure.distributions import Mixture, Normal, NormalInverseGamma
from howsure.errors import InputError, InputTypeError
from howsure.formulas import nig, normal
from howsure.formulas.transforms import inverse_softplus
from howsure.nn.checks import check_counts, check_features
from howsure.nn.exact import ExactConv1d, ExactConv2d, ExactConv3d, ExactLinear, call_exactly

__all__ = [
    "MixtureHead",
    "NIGConv1d",
    "NIGConv2d",
    "NIGConv3d",
    "NIGHead",
    "NormalConv1d",
    "NormalConv2d",
    "NormalConv3d",
    "NormalHead",
]

Sizes = int | Sequence[int]  # one for all dimensions of a map, or one for each


class _Head(nn.Module):
    """Layer with P outputs for each target, from which a distribution is made."""

    parameters_per_target: int  # P
    dim: ClassVar[int] = -1  # dimension of the features, and of the P outputs

    _sizes: ClassVar[tuple[str, str]]  # attributes of the layer: its inputs and outputs
    _settings: ClassVar[tuple[str, ...]] = ()  # further attributes, which a head keeps from a layer that it replaces
    _layer: ClassVar[str]  # name of the linear layer or convolution
    targets: int | None

    def _check(self, x: Any) -> None:
        """Raise an error if the layer cannot take x."""
        raise NotImplementedError

    @staticmethod
    def _start(std: Tensor) -> list[Tensor]:
        """Return the raw outputs that follow the prediction, for distributions with these standard deviations of y."""
        raise NotImplementedError

    def raw(self, x: Tensor) -> Tensor:
        """Return the raw outputs as a tensor, from which ``from_raw(raw, dim=head.dim)`` makes the distribution.

        Args:
            x: features (…, F), or maps (N, C, …) or (C, …) for convolutions.

        Returns:
            (…, P) with P outputs per target, or (…, T, P) with ``targets=T``. For convolutions (N, P, …) or
            (N, T, P, …).

        Raises:
            InputError: if x has the wrong number of features.
            InputTypeError: if x is not a floating-point tensor.
        """
        self._check(x)
        out = call_exactly(self.get_submodule(self._layer), x)
        return out if self.targets is None else out.unflatten(self.dim, (self.targets, self.parameters_per_target))

    @classmethod
    def _replacing(cls, where: str, old: Any, kind: type[nn.Module], std: Any, squeeze: bool) -> Self:
        """Return a head that starts at the predictions of an old layer, which has the class ``kind``."""
        where = f"{cls.__name__}.{where}"
        _check_old(where, old, kind)
        inputs, outputs = (getattr(old, name) for name in cls._sizes)
        if squeeze and outputs != 1:
            raise InputError(f"{where}: squeeze=True needs an old layer with one output, and this one has {outputs}")
        # otherwise torch would draw initial weights from the global generator
        head = nn.utils.skip_init(
            cls,
            inputs,
            None if squeeze else outputs,
            **{name: getattr(old, name) for name in cls._settings},
            device=old.weight.device,
            dtype=old.weight.dtype,
        )
        return cast(Self, head)._take_over(old, std)

    def _take_over(self, old: nn.Module, std: Any) -> Self:
        """Return this head with the predictions of an old layer, and the same standard deviation everywhere."""
        weight, bias = cast(Tensor, old.weight), cast(Tensor | None, old.bias)
        layer, p = cast(nn.Linear, self.get_submodule(self._layer)), self.parameters_per_target
        start = torch.stack(self._start(_checked_std(std, len(weight))), -1).to(weight.dtype)
        if not start.isfinite().all():
            raise InputError(
                f"std = {std} is too small or too large for a head of {weight.dtype}; "
                "standardise the targets, and give their standard deviation in that unit"
            )
        with torch.no_grad():
            layer.weight.zero_().unflatten(0, (-1, p))[:, 0] = weight
            biases = layer.bias.zero_().unflatten(0, (-1, p))
            biases[:, 1:] = start.to(weight.device)
            if bias is not None:
                biases[:, 0] = bias
        return self


class _Evidential(_Head):
    """Head that returns a :class:`~howsure.NormalInverseGamma`."""

    parameters_per_target = 4

    def forward(self, x: Tensor) -> NormalInverseGamma:
        """Return the distributions for features ``x``, as :meth:`raw` takes them."""
        return NormalInverseGamma.from_raw(self.raw(x), dim=self.dim)

    @staticmethod
    def _start(std: Tensor) -> list[Tensor]:
        """Return the raw outputs for ν = 1 and α = 2: little evidence, and equal aleatoric and epistemic variance."""
        one = torch.ones_like(std)
        values = one - nig.NU_FLOOR, one - nig.ALPHA_MINUS_ONE_FLOOR, std.square() / 2 - nig.BETA_FLOOR
        return [inverse_softplus(value) for value in values]


class _Normal(_Head):
    """Head that returns a :class:`~howsure.Normal`."""

    parameters_per_target = 2

    def forward(self, x: Tensor) -> Normal:
        """Return the distributions for features ``x``, as :meth:`raw` takes them."""
        return Normal.from_raw(self.raw(x), dim=self.dim)

    @staticmethod
    def _start(std: Tensor) -> list[Tensor]:
        return [inverse_softplus(std - normal.SCALE_FLOOR)]


# Vectors of features --------------------------------------------------------------------------------------------------


class _Vectors(_Head):
    """Head for features in the last dimension."""

    _layer = "linear"
    in_features: int

    def _check(self, x: Any) -> None:
        check_features(self, x, self.in_features)


class _Dense(_Vectors):
    """Head whose layer is linear, for features in the last dimension."""

    _sizes = ("in_features", "out_features")

    def __init__(self, in_features: int, targets: int | None = None, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        check_counts(in_features=in_features, targets=1 if targets is None else targets)
        self.in_features, self.targets = in_features, targets
        outputs = (targets or 1) * self.parameters_per_target
        self.linear = ExactLinear(in_features, outputs, device=device, dtype=dtype)

    @classmethod
    def from_linear(cls, old: nn.Linear, *, std: Any = 1.0, squeeze: bool = False) -> Self:
        """Return a head that starts at the predictions of an old layer, with the same uncertainty everywhere.

        Its predictions are the outputs of the old layer, up to rounding, and its distributions have their shape. The
        other parameters are the same for all features until they are trained. An evidential head starts at ν = 1 and
        α = 2.

        Args:
            old: an ``nn.Linear`` with one or more outputs, with or without a bias. It stays unchanged. The head has its
                device and dtype.
            std: standard deviation of y around the old predictions, such as their RMSE on validation data, in the unit
                of the outputs: a number, or one for each output. The default suits standardised targets.
            squeeze: whether the distribution of an old layer with one output has the shape (…,) and not (…, 1).

        Raises:
            InputError: for another layer, or a standard deviation that does not fit.

        >>> old, x = nn.Linear(64, 1), torch.randn(8, 64)
        >>> head = NIGHead.from_linear(old, std=0.3)
        >>> torch.allclose(head(x).prediction, old(x), atol=1e-5)
        True
        """
        return cls._replacing("from_linear", old, nn.Linear, std, squeeze)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, targets={self.targets}"


class NIGHead(_Dense, _Evidential):
    """Linear layer that maps features (…, F) to a :class:`~howsure.NormalInverseGamma`.

    Args:
        in_features: F.
        targets: None for one target and the shape (…,), or the number T of targets for the shape (…, T).
        device, dtype: of the parameters, as in ``nn.Linear``.

    >>> head = NIGHead(64)
    >>> head(torch.zeros(8, 64)).batch_shape
    torch.Size([8])
    >>> NIGHead(64, targets=3).raw(torch.zeros(8, 64)).shape
    torch.Size([8, 3, 4])
    """


class NormalHead(_Dense, _Normal):
    """Linear layer that maps features (…, F) to a :class:`~howsure.Normal`.

    The standard deviation is the softplus of the second raw output plus 1e-6.

    Args:
        in_features: F.
        targets: None for one target and the shape (…,), or the number T of targets for the shape (…, T).
        device, dtype: of the parameters, as in ``nn.Linear``.

    >>> NormalHead(64)(torch.zeros(8, 64)).loc.shape
    torch.Size([8])
    """


class MixtureHead(_Vectors):
    """Linear layer that maps features (…, F) to a :class:`~howsure.Mixture` with other weights in each row.

    A mixture density network (Bishop 1994) whose components are Normal Inverse-Gamma distributions: a target may have
    several modes at one x. The raw outputs of a target are four for each component, and then the logits of the weights.
    Train it with :func:`howsure.losses.nll_loss`. The likelihood identifies only the mixture, so the variance between
    components may be aleatoric: use the standard deviation, quantiles and intervals.

    Args:
        in_features: F.
        components: number of components, K.
        targets: None for one target and the shape (…,), or the number T of targets for the shape (…, T).
        device, dtype: of the parameters, as in ``nn.Linear``.

    >>> head = MixtureHead(64, components=3)
    >>> mixture = head(torch.zeros(8, 64))
    >>> mixture.batch_shape, mixture.weights.shape, mixture.mean.shape, mixture.interval(0.9).shape
    (torch.Size([8]), torch.Size([8, 3]), torch.Size([8]), torch.Size([8, 2]))
    """

    def __init__(
        self,
        in_features: int,
        components: int = 5,
        targets: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_counts(in_features=in_features, components=components, targets=1 if targets is None else targets)
        self.in_features, self.components, self.targets = in_features, components, targets
        self.parameters_per_target = 5 * components
        self.linear = ExactLinear(in_features, (targets or 1) * 5 * components, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Mixture:
        """Return the distributions for features ``x``, as :meth:`raw` takes them."""
        each, weights = self.parts(x)
        return Mixture(each.predictive(), dim=-1, weights=weights, validate_args=False)

    def parts(self, x: Tensor) -> tuple[NormalInverseGamma, Tensor]:
        """Return the components (…, K) and their weights (…, K) for features ``x``."""
        raw = self.raw(x)
        each = NormalInverseGamma.from_raw(raw[..., : 4 * self.components].unflatten(-1, (self.components, 4)))
        return each, raw[..., 4 * self.components :].softmax(-1)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, components={self.components}, targets={self.targets}"


# Maps -----------------------------------------------------------------------------------------------------------------


class _Conv(_Head):
    """Head whose layer is a convolution, for sequences, images or volumes of features."""

    _layer = "conv"
    _sizes = ("in_channels", "out_channels")
    _settings = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    axes: ClassVar[tuple[str, ...]]  # names of the dimensions of a map
    layer_type: ClassVar[type[Any]]
    old_type: ClassVar[type[nn.Module]]  # class of the layers that the head can replace

    def __init__(
        self,
        in_channels: int,
        targets: int | None = None,
        kernel_size: Sizes = 1,
        *,
        padding: str | Sizes = "same",
        groups: int = 1,
        device: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        count = 1 if targets is None else targets
        check_counts(in_channels=in_channels, targets=count, groups=groups)
        if in_channels % groups or count % groups:
            raise InputError(f"groups = {groups} must divide in_channels = {in_channels} and targets = {count}")
        self.in_channels, self.targets = in_channels, targets
        self.conv: ExactConv1d | ExactConv2d | ExactConv3d = self.layer_type(
            in_channels,
            count * self.parameters_per_target,
            kernel_size,
            padding=padding,
            groups=groups,
            device=device,
            **options,
        )

    @classmethod
    def from_conv(cls, old: Any, *, std: Any = 1.0, squeeze: bool = False) -> Self:
        """Return a head that starts at the maps of an old convolution, with the same uncertainty everywhere.

        Args:
            old: the convolution of as many dimensions, such as an ``nn.Conv2d``, with one or more output channels and
                any settings. It stays unchanged. The head has its settings, device and dtype.
            std, squeeze: as in :meth:`NIGHead.from_linear`. The result has the shape (N, T, …) of the old maps.
                With ``squeeze`` it is (N, …) instead of (N, 1, …).

        >>> old, x = nn.Conv2d(32, 1, 3, stride=2, padding=1), torch.randn(2, 32, 8, 10)
        >>> head = NIGConv2d.from_conv(old, std=0.3)
        >>> torch.allclose(head(x).prediction, old(x), atol=1e-5)
        True
        """
        return cls._replacing("from_conv", old, cls.old_type, std, squeeze)

    def _check(self, x: Any) -> None:
        name, dims = type(self).__name__, len(self.axes)
        if not isinstance(x, Tensor):
            raise InputTypeError(f"{name} expects a tensor, not {type(x).__name__}")
        if x.ndim not in (dims + 1, dims + 2) or x.shape[self.dim] != self.in_channels:
            one = ", ".join((str(self.in_channels), *self.axes))
            raise InputError(f"{name} expects maps of shape (N, {one}) or ({one}), got {tuple(x.shape)}")

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, targets={self.targets}"


class _Conv1d(_Conv):
    dim, axes, layer_type, old_type = -2, ("L",), ExactConv1d, nn.Conv1d


class _Conv2d(_Conv):
    dim, axes, layer_type, old_type = -3, ("H", "W"), ExactConv2d, nn.Conv2d


class _Conv3d(_Conv):
    dim, axes, layer_type, old_type = -4, ("D", "H", "W"), ExactConv3d, nn.Conv3d


class NIGConv2d(_Conv2d, _Evidential):
    """Convolution that maps images of features (N, C, H, W) to a :class:`~howsure.NormalInverseGamma` per pixel.

    Args:
        in_channels: C, for maps of shape (N, C, H, W) or (C, H, W).
        targets: None for one target and the shape (N, H, W), or the number T of targets for the shape (N, T, H, W).
        kernel_size: height and width of the kernel, a number or one for each.
        padding: "same" for the height and width of the input. With a stride, numbers as in ``nn.Conv2d``.
        groups: as in ``nn.Conv2d``. Each group of channels predicts T / groups targets.
        device: of the parameters, as in ``nn.Conv2d``.
        **options: further arguments of ``nn.Conv2d``: stride, dilation, padding_mode and dtype.

    >>> NIGConv2d(32)(torch.zeros(2, 32, 8, 10)).batch_shape
    torch.Size([2, 8, 10])
    >>> NIGConv2d(32, kernel_size=3, stride=2, padding=1)(torch.zeros(2, 32, 8, 10)).batch_shape
    torch.Size([2, 4, 5])
    """


class NIGConv1d(_Conv1d, _Evidential):
    """Convolution that maps sequences of features (N, C, L) to a :class:`~howsure.NormalInverseGamma` per position.

    Arguments as in :class:`NIGConv2d`. The result has the shape (N, L), or (N, T, L) with ``targets=T``.

    >>> NIGConv1d(32, kernel_size=5)(torch.zeros(2, 32, 100)).batch_shape
    torch.Size([2, 100])
    """


class NIGConv3d(_Conv3d, _Evidential):
    """Convolution that maps volumes of features (N, C, D, H, W) to a :class:`~howsure.NormalInverseGamma` per voxel.

    Arguments as in :class:`NIGConv2d`. The result has the shape (N, D, H, W), or (N, T, D, H, W) with
    ``targets=T``.

    >>> NIGConv3d(32, kernel_size=(1, 3, 3))(torch.zeros(2, 32, 4, 8, 10)).batch_shape
    torch.Size([2, 4, 8, 10])
    """


class NormalConv1d(_Conv1d, _Normal):
    """Convolution that maps sequences of features (N, C, L) to a :class:`~howsure.Normal` per position.

    Arguments as in :class:`NIGConv2d`, shapes as in :class:`NIGConv1d`.
    """


class NormalConv2d(_Conv2d, _Normal):
    """Convolution that maps images of features (N, C, H, W) to a :class:`~howsure.Normal` per pixel.

    Arguments and shapes as in :class:`NIGConv2d`.

    >>> NormalConv2d(32)(torch.zeros(2, 32, 8, 10)).batch_shape
    torch.Size([2, 8, 10])
    """


class NormalConv3d(_Conv3d, _Normal):
    """Convolution that maps volumes of features (N, C, D, H, W) to a :class:`~howsure.Normal` per voxel.

    Arguments as in :class:`NIGConv2d`, shapes as in :class:`NIGConv3d`.
    """


# Checks ---------------------------------------------------------------------------------------------------------------


def _check_old(where: str, old: Any, kind: type[nn.Module]) -> None:
    """Raise an error if a head cannot take the place of an old layer."""
    if not isinstance(old, kind):
        package = type(old).__module__.partition(".")[0]  # wrappers of nn.Linear are often called Linear, too
        hint = "; what wraps a layer must be merged or removed first" if isinstance(old, nn.Module) else ""
        raise InputTypeError(f"{where} takes an nn.{kind.__name__}, not {package}.{type(old).__name__}{hint}")
    if nn.parameter.is_lazy(cast(Tensor, old.weight)):
        raise InputError(f"{where}: the weights of the old layer are not there yet; call it with a batch first")
    if not cast(Tensor, old.weight).is_floating_point():
        raise InputTypeError(f"{where}: the old weights are {old.weight.dtype}; convert them to floating point first")


def _checked_std(std: Any, targets: int) -> Tensor:
    """Return standard deviations as a tensor of shape (targets,) in float64, or raise an error."""
    try:
        given = torch.as_tensor(std, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError(f"std must be a number, or one for each of the {targets} outputs, got {std!r}") from None
    if given.shape not in ((), (targets,)):
        raise InputError(
            f"std must be a number, or one for each of the {targets} outputs, got shape {tuple(given.shape)}"
        )
    if not ((given > 0) & given.isfinite()).all():
        raise InputError(f"std must be positive and finite, got {std}")
    return given.expand(targets)
