"""What the distributions share: parameters as tensors, one clear message per bad one, leaves, and tails."""

from collections.abc import Iterable, Mapping
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size
from torch.utils import _pytree

from evidentia.errors import InputError, InputTypeError


def as_tensors(owner: str, parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """Parameters as tensors of one shape, device and floating dtype (at least float32), or an error that names one."""
    tensors = [p for p in parameters.values() if isinstance(p, Tensor)]
    dtype = torch.float32 if tensors else torch.promote_types(torch.get_default_dtype(), torch.float32)
    device = tensors[0].device if tensors else None
    for name, value in parameters.items():
        if not isinstance(value, Tensor | Real) or isinstance(value, bool):
            raise InputTypeError(f"{owner}: {name} must be a tensor or a number, not {type(value).__name__}")
        if isinstance(value, Tensor):
            if not value.is_floating_point():
                raise InputTypeError(
                    f"{owner}: {name} is {value.dtype}; parameters are floating point, as in {name}.float()"
                )
            if value.device != device:
                places = ", ".join(f"{k} on {v.device}" for k, v in parameters.items() if isinstance(v, Tensor))
                raise InputError(f"{owner}: parameters lie on different devices ({places}); move them to one")
            dtype = torch.promote_types(dtype, value.dtype)
    full = [torch.as_tensor(value, dtype=dtype, device=device) for value in parameters.values()]
    try:
        return dict(zip(parameters, torch.broadcast_tensors(*full), strict=True))
    except RuntimeError:
        shapes = ", ".join(f"{k} {tuple(v.shape)}" for k, v in zip(parameters, full, strict=True))
        raise InputError(f"{owner}: shapes that do not broadcast: {shapes}") from None


def as_value(owner: str, value: Any, like: Tensor) -> Tensor:
    """Return the argument of a method: a tensor as it is, a number as a tensor of the dtype and device of ``like``."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputTypeError(
            f"{owner}: the argument must be a tensor or a number, not {type(value).__name__}; "
            "torch.as_tensor makes one from a list or an array"
        )
    return torch.as_tensor(float(value), dtype=like.dtype, device=like.device)


def check_floating(what: str, value: Any) -> None:
    """Raise where a floating-point tensor is needed and something else was given."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise InputTypeError(f"{what} must be a floating-point tensor, not {kind}")


def check_domain(owner: str, parameters: Mapping[str, Tensor], domains: Mapping[str, Any]) -> None:
    """Raise, with the first offender and how many there are, where a parameter is not finite or leaves its domain."""
    for name, value in parameters.items():
        valid = domains[name].check(value) & value.isfinite()
        if bool(valid.all()):
            continue
        rule = "finite" if domains[name] is constraints.real else f"finite and > {domains[name].lower_bound:g}"
        at = tuple(int(i) for i in (~valid).nonzero()[0])
        place = f" at index {at}" if at else ""
        raise InputError(
            f"{owner}: {name} must be {rule}; {int((~valid).sum())} of {valid.numel()} values "
            f"break this (first: {value[at].item():g}{place})"
        )


class TreeDistribution(Distribution):
    """A distribution that is made of tensors of one shape, its leaves, and is a pytree node over them."""

    leaves: ClassVar[tuple[str, ...]]
    event: ClassVar[torch.Size] = torch.Size()

    def _fill(self, values: Iterable[Any], validate_args: bool | None) -> None:
        """Take values for the leaves as they are: known to be valid, or what tree functions put in their place."""
        self._store(tuple(values))
        shape = getattr(getattr(self, self.leaves[0]), "shape", torch.Size())
        # torch's own check would raise first, and say less than `check_domain`
        Distribution.__init__(self, shape, self.event, validate_args=False)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args

    def _store(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(self.leaves, values, strict=True):
            setattr(self, name, value)

    @classmethod
    def _from_leaves(cls, values: Iterable[Any]) -> Self:
        new = cls.__new__(cls)
        new._fill(values, validate_args=False)
        return new

    def double(self) -> Self:
        """The same distribution in float64."""
        return self._from_leaves(getattr(self, name).double() for name in self.leaves)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        new = self.__new__(type(self)) if _instance is None else _instance
        new._fill((getattr(self, name).expand(batch_shape) for name in self.leaves), self._validate_args)
        return new

    def _checked(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return value


class Univariate(TreeDistribution):
    """A distribution of one number whose density, tails, quantiles and CRPS are the functions of a formula module."""

    loc: Tensor
    scale: Tensor
    formulas: ClassVar[ModuleType]
    arguments: ClassVar[tuple[str, ...]]

    def _call(self, name: str, value: Any) -> Tensor:
        value = as_value(type(self).__name__, value, self.loc)
        if name not in ("icdf", "isf"):  # their argument is a probability, and NaN is the answer where it is none
            value = self._checked(value)
        result: Tensor = getattr(self.formulas, name)(value, *(getattr(self, a) for a in self.arguments))
        return result

    def log_prob(self, value: Tensor | float) -> Tensor:
        return self._call("log_prob", value)

    def cdf(self, value: Tensor | float) -> Tensor:
        """P(Y ≤ value), exact in the lower tail."""
        return self._call("cdf", value)

    def sf(self, value: Tensor | float) -> Tensor:
        """P(Y > value), exact in the upper tail."""
        return self._call("sf", value)

    def icdf(self, value: Tensor | float) -> Tensor:
        """The quantile of probability ``value`` from below; exact in the lower tail."""
        return self._call("icdf", value)

    def isf(self, value: Tensor | float) -> Tensor:
        """The quantile of probability ``value`` from above; exact in the upper tail."""
        return self._call("isf", value)

    def crps(self, value: Tensor | float) -> Tensor:
        """Continuous ranked probability score (smaller is better), in the units of y."""
        return self._call("crps", value)

    def half_spread(self) -> Tensor:
        """Half the mean distance of two independent draws, ½E|X−X'|."""
        raise NotImplementedError


def register_pytree(cls: type[TreeDistribution]) -> None:
    """Let torch's tree functions (vmap, export, compile) take the distribution apart and put it together again."""

    def flatten(d: TreeDistribution) -> tuple[list[Any], None]:
        return [getattr(d, name) for name in cls.leaves], None

    def flatten_with_keys(d: TreeDistribution) -> tuple[list[tuple[Any, Any]], None]:
        return [(_pytree.GetAttrKey(name), getattr(d, name)) for name in cls.leaves], None

    _pytree.register_pytree_node(
        cls,
        flatten,
        lambda values, _: cls._from_leaves(values),
        serialized_type_name=f"evidentia.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
