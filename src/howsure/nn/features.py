"""Features of any network: the numbers that its layers compute for each element of its output.

An *element* is a part of the output with its own prediction: a row, a token, a pixel, a node of a graph. A network may
predict several targets for each element.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from howsure.distributions import NormalInverseGamma, StudentT
from howsure.errors import InputError, InputTypeError

__all__ = ["FeatureReader", "Outputs", "device_of", "fingerprint", "in_dtype_of_layers", "read_outputs"]

GRADIENT_FEATURES = 256  # random directions in the weights
DIRECTIONS_AT_ONCE = 32
SEED = 0  # of the directions
MAX_FEATURES = 2048  # of the last two hidden layers together
LAST_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
FLOAT_LAYERS = (*LAST_LAYERS, nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.RNNBase)


class Outputs(NamedTuple):
    """Location of the targets, and the scale and α − 1 of a Student t where the network computes them."""

    mean: Tensor
    scale: Tensor | None
    excess: Tensor | None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Outputs":
        """Return the outputs with every tensor changed."""
        scale, excess = (None if x is None else change(x) for x in self[1:])
        return Outputs(change(self.mean), scale, excess)


def read_outputs(output: Any) -> Outputs:
    """Return the numbers that a network computed: a tensor of means, or a distribution."""
    if isinstance(output, NormalInverseGamma):
        t = output.predictive()
        return Outputs(t.loc, t.scale, output.alpha_minus_one)
    if isinstance(output, StudentT):
        return Outputs(output.loc, output.scale, output.df_minus_two / 2)
    if isinstance(output, torch.distributions.Normal):
        return Outputs(output.loc, output.scale, None)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise InputTypeError(
            f"the network must return a tensor of predictions, a NormalInverseGamma, a StudentT or a Normal, not "
            f"{type(output).__name__}; wrap the network in a module that returns one of these"
        )
    return Outputs(output.to(torch.promote_types(output.dtype, torch.float32)), None, None)


@dataclass(frozen=True)
class FeatureReader:
    """Positions of the features and of the targets of a network. Use :meth:`find` to make one.

    Args:
        layers: names of modules, as in ``named_modules()``; empty for gradients of the output by the weights.
        entering: whether the features are the inputs of the modules; otherwise they are the outputs.
        target_dim: dimension of the output along which several targets lie, 1 or −1; None: there is one target.
    """

    layers: tuple[str, ...]
    entering: bool
    target_dim: int | None

    @classmethod
    def find(cls, network: nn.Module, inputs: Sequence[Any], layers: Sequence[str] | None, gradients: bool) -> Self:
        """Return the reader of a network, which is called once with the inputs of a batch.

        Args:
            network: any module.
            inputs: of one batch.
            layers: names of modules whose outputs are the features. None: the last two hidden layers, which are the
                inputs of the last two linear layers or convolutions that are called.
            gradients: whether the features are gradients of the output by the weights.
        """
        modules = dict(network.named_modules())
        if isinstance(layers, str) or any(name not in modules for name in layers or ()):
            known = ", ".join(name for name in modules if name)
            raise InputError(f"layers must be a list of names of modules, got {layers!r}", hint=f"known are {known}")
        called: list[_Call] = []
        with ExitStack() as hooks:
            for name, module in modules.items():
                if isinstance(module, LAST_LAYERS):
                    hooks.callback(module.register_forward_hook(_appending(called, name)).remove)
            shape = tuple(read_outputs(network(*inputs)).mean.shape)
        if not called and not layers and not gradients:
            raise InputError("the network calls no linear layer and no convolution", hint="name layers in layers=")
        target_dim = _target_dim(shape, called[-1].elements, called[-1].channels) if called else None
        if not called and len(shape) > 1:
            target_dim = -1 if len(shape) < 4 else 1
        if gradients:
            return cls((), False, target_dim)
        if layers is not None:
            return cls(tuple(layers), False, target_dim)
        return cls(_last_hidden(called), True, target_dim)

    def __call__(self, network: nn.Module, inputs: Sequence[Any]) -> tuple[Outputs, list[Tensor]]:
        """Return the outputs for these inputs, and the features (*elements, D) of each layer."""
        if not self.layers:
            outputs = read_outputs(network(*inputs))
            return outputs, [self._gradients(network, inputs)]
        modules = dict(network.named_modules())
        seen: dict[str, Any] = {}
        with ExitStack() as hooks:
            for name in self.layers:
                hooks.callback(_keep(modules[name], name, self.entering, seen))
            outputs = read_outputs(network(*inputs))
        if missing := [name for name in self.layers if name not in seen]:
            raise InputError(f"the network did not call {', '.join(missing)}", hint="choose other layers=")
        elements = self.targets_last(outputs.mean).shape[:-1]
        return outputs, [_aligned(_channels_last(modules[name], seen[name]), elements) for name in self.layers]

    def targets_last(self, x: Tensor) -> Tensor:
        """Return a tensor of the output's shape as (*elements, T)."""
        return x.unsqueeze(-1) if self.target_dim is None else x.movedim(self.target_dim, -1)

    def targets_back(self, x: Tensor) -> Tensor:
        """Return (*elements, T) in the shape of the output."""
        return x.squeeze(-1) if self.target_dim is None else x.movedim(-1, self.target_dim)

    def _gradients(self, network: nn.Module, inputs: Sequence[Any]) -> Tensor:
        """Return derivatives of the output, summed over targets, along random directions in the weights."""
        weights = {name: p.detach() for name, p in network.named_parameters() if p.is_floating_point()}
        generator = torch.Generator().manual_seed(SEED)

        def output(parameters: dict[str, Tensor]) -> Tensor:
            answer = functional_call(network, parameters, tuple(inputs))
            return self.targets_last(read_outputs(answer).mean).sum(-1)

        def along(direction: dict[str, Tensor]) -> Tensor:
            return cast(Tensor, jvp(output, (weights,), (direction,))[1])

        found = []
        for _ in range(GRADIENT_FEATURES // DIRECTIONS_AT_ONCE):
            # on the CPU, so that every device has the same directions
            drawn = {
                k: torch.randn(DIRECTIONS_AT_ONCE, *w.shape, generator=generator).to(w) for k, w in weights.items()
            }
            found.append(vmap(along)(drawn))
        return torch.cat(found).movedim(0, -1)


class _Call(NamedTuple):
    """A call of a linear layer or convolution."""

    name: str
    entering: Tensor
    elements: tuple[int, ...]  # shape of the output without its channels
    channels: int  # dimension of the channels: 1 or −1


def _appending(called: list[_Call], name: str) -> Callable[..., None]:
    def append(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        shape, is_map = tuple(output.shape), isinstance(module, nn.modules.conv._ConvNd)
        if inputs:
            elements = (shape[0], *shape[2:]) if is_map else shape[:-1]
            called.append(_Call(name, inputs[0], elements, 1 if is_map else -1))

    return append


def _last_hidden(called: Sequence[_Call]) -> tuple[str, ...]:
    """Return the layers that the last two hidden layers enter; only the last if both are too wide together."""
    last = called[-1]
    for earlier in reversed(called[1:-1]):  # the input of the first layer is the input of the network
        if earlier.entering is last.entering:  # two heads on the same features
            continue
        width = sum(call.entering.shape[call.channels] for call in (earlier, last))
        fits = earlier.entering.shape[0] == last.entering.shape[0] and earlier.name != last.name
        return (earlier.name, last.name) if fits and width <= MAX_FEATURES else (last.name,)
    return (last.name,)


def _keep(module: nn.Module, name: str, entering: bool, seen: dict[str, Any]) -> Callable[[], None]:
    """Register a hook that stores a module's input or output in ``seen``; return the function that removes it."""
    thread = threading.get_ident()  # others may call the same network

    def before(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            seen[name] = inputs[0]

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() == thread:
            seen[name] = output

    handle = module.register_forward_pre_hook(before) if entering else module.register_forward_hook(after)
    return handle.remove


@contextmanager
def in_dtype_of_layers(network: nn.Module, inputs: Sequence[Any]) -> Iterator[None]:
    """Convert whole numbers and float64 that enter a linear layer, or another of ``FLOAT_LAYERS``, to its dtype."""

    def convert(module: nn.Module, entering: tuple[Any, ...]) -> tuple[Any, ...]:
        if not entering or not odd(entering[0]):
            return entering
        return entering[0].to(next(module.parameters(), torch.empty(0)).dtype), *entering[1:]

    def odd(x: Any) -> bool:
        return isinstance(x, Tensor) and (x.dtype is torch.float64 or not (x.is_floating_point() or x.is_complex()))

    with ExitStack() as hooks:
        if any(map(odd, inputs)):
            for module in network.modules():
                if isinstance(module, FLOAT_LAYERS):
                    hooks.callback(module.register_forward_pre_hook(convert).remove)
        yield


def _target_dim(shape: tuple[int, ...], elements: tuple[int, ...], channels: int) -> int | None:
    """Return the dimension of the targets in an output of this shape; None if there is one target.

    Args:
        shape: of the output.
        elements: shape of the last layer's output without its channels.
        channels: dimension of these channels.
    """
    if len(shape) == 1:
        return None
    if len(shape) == 2 and shape != elements:
        return -1
    if len(shape) not in (len(elements), len(elements) + 1):
        raise InputError(f"an output of shape {shape} does not fit a last layer with elements {elements}")
    return None if len(shape) == len(elements) else channels


def _channels_last(module: nn.Module, features: Any) -> Tensor:
    """Return a layer's features with its channels in the last dimension.

    Maps (N, C, H, W) and volumes have them in dimension 1, and so have the sequences of 1-d convolutions.
    """
    if not isinstance(features, Tensor) or not features.is_floating_point() or features.ndim < 2:
        is_tensor = isinstance(features, Tensor)
        found = f"{features.dtype} of shape {tuple(features.shape)}" if is_tensor else type(features).__name__
        hint = "pass a batch of rows" if is_tensor and features.ndim < 2 else "choose other layers="
        raise InputError(f"features must be floats of shape (N, …, D), got {found}", hint=hint)
    is_linear = isinstance(module, nn.Linear | nn.LayerNorm)
    is_map = features.ndim > 3 or isinstance(module, nn.Conv1d | nn.ConvTranspose1d | nn.BatchNorm1d)
    return features.movedim(1, -1) if is_map and not is_linear else features


def _aligned(features: Tensor, elements: Sequence[int]) -> Tensor:
    """Return features (N, …, D) for each element: averaged, repeated or resized where the layer has another size."""
    shape, size = tuple(features.shape[:-1]), features.shape[-1]
    if shape == tuple(elements) or prod(shape) == prod(elements):
        return features.reshape(*elements, size)
    if shape[0] == elements[0] and len(elements) == 1:
        return features.flatten(1, -2).mean(1)
    if shape[0] == elements[0] and len(shape) == 1:
        return features.view(*shape, *(1,) * (len(elements) - 1), size).expand(*elements, size)
    if shape[0] != elements[0] or len(shape) != len(elements):
        raise InputError(
            f"features of shape {tuple(features.shape)} do not fit an output with elements {tuple(elements)}",
            hint="name other layers in layers=",
        )
    return nn.functional.interpolate(features.movedim(-1, 1), size=tuple(elements[1:])).movedim(1, -1)


def fingerprint(network: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of a network's state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def device_of(network: nn.Module) -> torch.device:
    """Return the device of a network's parameters."""
    tensors = [*network.parameters(), *network.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
