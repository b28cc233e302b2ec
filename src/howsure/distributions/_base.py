"""Base classes of the distributions, and the checks of their parameters.

A distribution consists of its *leaves*, tensors of one shape and dtype:

- ``NormalInverseGamma``: gamma, nu, alpha_minus_one, beta;
- ``StudentT``: df, loc, scale, df_minus_two;
- ``Normal``: loc, scale;
- ``Mixture``: the leaves of its components, and its weights where there are any: float64, one for each member.

The leaves are always there, and everything else is computed from them. Each class is a pytree node over its leaves, so
``torch.func.vmap``, ``torch.export`` and ``torch.compile`` can return one from a function, and
:class:`~howsure.Prediction` can move all of them to another device, dtype or dimension by one ``tree_map``. Each is
also a dataclass over the same leaves, because ``DistributedDataParallel``, FSDP and Lightning look for tensors in
dataclasses and not in pytrees.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size
from torch.utils import _pytree

from howsure.errors import InputError, InputTypeError


def as_tensors(owner: str, parameters: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters as tensors of one shape, device and floating dtype (at least float32).

    Args:
        owner: name of the distribution, for error messages.
        parameters: tensors or numbers by name.

    Raises:
        InputTypeError: for a parameter that is neither a floating-point tensor nor a number.
        InputError: for tensors on different devices, or of shapes that do not broadcast.
    """
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
                devices = ", ".join(f"{k} on {v.device}" for k, v in parameters.items() if isinstance(v, Tensor))
                raise InputError(f"{owner}: parameters lie on different devices ({devices}); move them to one")
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


def fit_shape(x: Any, shape: Sequence[int]) -> Any:
    """Return x in this shape if it has exactly one dimension of size 1 more or less, as (N, 1) and (N,); else x itself.

    Elements keep their order and nothing broadcasts, so that each has one counterpart. x is a tensor or an array.
    """
    own, wanted = tuple(x.shape), tuple(shape)
    if own == wanted:
        return x
    long, short = (own, wanted) if len(own) > len(wanted) else (wanted, own)
    places = [k for k, size in enumerate(long) if size == 1] if len(long) == len(short) + 1 else []
    return x.reshape(wanted) if any(long[:k] + long[k + 1 :] == short for k in places) else x


def fit_rows(x: Any, shape: Sequence[int]) -> Any:
    """Return x in this shape as :func:`fit_shape` does, or repeated along a row if it has one element for each row.

    The shapes (N,), (N, 1) and (N, T) all fit (N, T).
    """
    fitted, rows = fit_shape(x, shape), tuple(shape[:1])
    if tuple(fitted.shape) == tuple(shape) or tuple(x.shape) not in (rows, (*rows, 1)):
        return fitted
    column = x.reshape(*rows, *(1,) * (len(shape) - 1))
    return column.expand(shape).contiguous() if isinstance(x, Tensor) else np.broadcast_to(column, shape)


def check_floating(what: str, value: Any) -> None:
    """Raise an error, which begins with ``what``, if the value is not a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise InputTypeError(f"{what} must be a floating-point tensor, not {kind}")
    if value.is_nested:
        raise InputError(f"{what} is a nested tensor; heads work row by row: give them the rows, x.values()")


def check_domain(owner: str, parameters: Mapping[str, Tensor], domains: Mapping[str, Any]) -> None:
    """Raise an error if a value of a parameter is not finite or lies outside the parameter's domain.

    Args:
        owner: name of the distribution, for the error message.
        parameters: tensors by name.
        domains: a constraint of ``torch.distributions`` for each of these names.
    """
    for name, value in parameters.items():
        valid = domains[name].check(value) & value.isfinite()
        if bool(valid.all()):
            continue
        rule = "finite" if domains[name] is constraints.real else f"finite and > {domains[name].lower_bound:g}"
        raise InputError(f"{owner}: {name} must be {rule}; {count_invalid(value, valid)}")


def count_invalid(value: Tensor, valid: Tensor) -> str:
    """Return a phrase for error messages: how many values are not valid, the first of them and its index."""
    first = tuple(int(i) for i in (~valid).nonzero()[0])
    index = f" at index {first}" if first else ""
    return f"{int((~valid).sum())} of {valid.numel()} values break this (first: {value[first].item():g}{index})"


@dataclass(init=False, repr=False, eq=False, match_args=False)
class TensorTree:
    """Base class of objects made of tensors and of other such objects, into which torch's tools can look.

    A subclass is a pytree node and a dataclass. Its fields are arguments of its constructor, so that
    ``dataclasses.replace`` works; that validates if the original did.
    """

    validate_args: InitVar[bool | None] = field(default=None, kw_only=True)

    def to(self, target: torch.device | torch.dtype | str | int, *, non_blocking: bool = False) -> Self:
        """Return the same on another device, or in another dtype.

        Args:
            target: a device, or ``torch.float32`` or ``torch.float64``.
            non_blocking: as for ``torch.Tensor.to``.

        Raises:
            InputError: for another dtype.
        """
        if isinstance(target, torch.dtype) and target not in (torch.float32, torch.float64):
            raise InputError(f"{type(self).__name__}: parameters are float32 or float64, not {target}")
        return self._map(lambda t: t.to(target, non_blocking=non_blocking))

    def cpu(self) -> Self:
        """Return the same on the CPU."""
        return self.to("cpu")

    def detach(self) -> Self:
        """Return the same without its graph of gradients, as for saving, copying and other processes."""
        return self._map(lambda t: t.detach())

    def pin_memory(self) -> Self:
        """Return the same in pinned memory, from which copies to a GPU do not wait; a ``DataLoader`` calls this."""
        return self._map(lambda t: t.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: Self = _pytree.tree_map(change, self)
        return changed

    def __len__(self) -> int:
        shape: torch.Size = getattr(self, "batch_shape", torch.Size())
        if not shape:
            raise TypeError(f"a {type(self).__name__} without dimensions has no length")
        return shape[0]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Self:
        """Return a part of the distribution, by indices as of a tensor of its batch shape."""
        return self._of_parts(_pytree.tree_map(lambda t: t[key], self.to_dict()))

    @classmethod
    def cat(cls, distributions: "Iterable[Self]") -> Self:
        """Return several distributions as one, row after row.

        Args:
            distributions: at least one, all of this class.

        Raises:
            InputTypeError: for an empty list or other classes.
        """
        every = list(distributions)
        kinds = {(type(each), str(_pytree.tree_structure(each.to_dict()))) for each in every if isinstance(each, cls)}
        if len(kinds) != 1 or not all(isinstance(each, cls) for each in every):
            raise InputTypeError(f"{cls.__name__}.cat takes a list of at least one {cls.__name__}, all of one kind")
        return every[0]._of_parts(_pytree.tree_map(lambda *t: torch.cat(t), *(each.to_dict() for each in every)))

    def _of_parts(self, parts: dict[str, Any]) -> Self:
        """Return the object with these values of :meth:`to_dict`."""
        return self.from_dict(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the tensors by name, as plain dicts, for tools that support only tuples and dicts.

        They have the first dimensions of the distribution, so that rows can be sliced, joined and gathered in each.
        """
        raise NotImplementedError

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        """Return the object of :meth:`to_dict`. The values of ``parts`` are tensors or NumPy arrays."""
        raise NotImplementedError


# dataclasses.replace passes on the default of an InitVar, so that a copy validates as this object does
TensorTree.validate_args = property(lambda self: getattr(self, "_validate_args", None))  # type: ignore[attr-defined]


def class_name(x: Any) -> str:
    """Return the name of the class of an object, with the package for torch's distributions of equal names."""
    kind = type(x)
    package = "torch.distributions." if kind.__module__.startswith("torch.distributions.") else ""
    return f"{package}{kind.__name__}"


def checked_parts(owner: str, parts: Any, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """Return the parts of ``from_dict`` by name, arrays as tensors, or raise an error if names are wrong."""
    required, known = set(required), {*required, *optional}
    if not isinstance(parts, Mapping):
        raise InputTypeError(f"{owner}.from_dict takes a dict as of to_dict(), not {type(parts).__name__}")
    if not required <= set(parts) <= known:
        found = ", ".join(str(name) for name in parts) or "nothing"
        raise InputError(f"{owner}.from_dict takes {', '.join(sorted(known))} as of to_dict(); got {found}")
    return {name: part if isinstance(part, Tensor | Mapping) else torch.tensor(part) for name, part in parts.items()}


def one_of(owner: str, parts: Any, kinds: "Iterable[type[TreeDistribution]]") -> Any:
    """Return the distribution that a dict of leaves describes: of the class that has leaves of these names."""
    kinds = list(kinds)
    for kind in kinds:
        if isinstance(parts, Mapping) and set(parts) == set(kind.leaves):
            return kind.from_dict(parts)
    names = " or a ".join(kind.__name__ for kind in kinds)
    raise InputError(f"{owner}.from_dict: expected the leaves of a {names}, as of to_dict()")


class TreeDistribution(TensorTree, Distribution):
    """A distribution whose state is its leaves: the tensors whose names the class lists in ``leaves``."""

    leaves: ClassVar[tuple[str, ...]]
    event: ClassVar[torch.Size] = torch.Size()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "leaves"):
            _register_pytree(cls)

    def _set_leaves(self, values: Iterable[Any], validate_args: bool | None) -> None:
        """Initialise the distribution with these leaves, without a check.

        The values are valid parameters, or the placeholders that tree functions put in their stead.
        """
        for name, value in zip(self.leaves, values, strict=True):
            setattr(self, name, value)
        shape = getattr(getattr(self, self.leaves[0]), "shape", torch.Size())
        # without torch's check, which would raise first, with a shorter message than `check_domain`
        Distribution.__init__(self, shape, self.event, validate_args=False)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args

    @classmethod
    def _from_leaves(cls, values: Iterable[Any]) -> Self:
        """Return a distribution with these leaves, without a check."""
        new = cls.__new__(cls)
        new._set_leaves(values, validate_args=False)
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in self.leaves}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        """Return the distribution with these ``parts``, as of :meth:`to_dict`, tensors or NumPy arrays."""
        return cls(**checked_parts(cls.__name__, parts, cls.leaves))

    def _of_parts(self, parts: dict[str, Any]) -> Self:
        return self._from_leaves(parts.values())  # without a check: a part of a distribution may be NaN

    def double(self) -> Self:
        """Return the same distribution in float64."""
        return self._from_leaves(getattr(self, name).double() for name in self.leaves)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        """Return the distribution with its parameters expanded to ``batch_shape``."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new._set_leaves((getattr(self, name).expand(batch_shape) for name in self.leaves), self._validate_args)
        return new

    def _checked(self, value: Tensor) -> Tensor:
        """Return the value, or raise if it lies outside the support and arguments are validated."""
        if self._validate_args:
            self._validate_sample(value)
        return value


class Predictive:
    """Standard deviation and intervals of a distribution of one number, under the names of a prediction."""

    variance: Any
    icdf: Callable[..., Tensor]
    isf: Callable[..., Tensor]

    @property
    def std(self) -> Tensor:
        """Standard deviation of a new y."""
        std: Tensor = self.variance.sqrt()
        return std

    def interval(self, coverage: float = 0.9) -> Tensor:
        """Return the central interval that contains a new y with probability ``coverage``: its ends, (*shape, 2).

        Raises:
            InputError: if the coverage is not between 0 and 1.
        """
        if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise InputError(f"coverage must be a number between 0 and 1, got {coverage!r}")
        tail = 0.5 * (1 - float(coverage))
        return torch.stack([self.icdf(tail), self.isf(tail)], dim=-1)


class Univariate(Predictive, TreeDistribution):
    """A distribution of one number.

    Its density, tails, quantiles and CRPS are the functions of the module ``formulas``, called with the value and with
    the leaves named in ``arguments``.
    """

    loc: Tensor
    scale: Tensor
    formulas: ClassVar[ModuleType]
    arguments: ClassVar[tuple[str, ...]]

    def _call(self, name: str, value: Any) -> Tensor:
        """Return the formula of this name at the value."""
        value = as_value(type(self).__name__, value, self.loc)
        if name not in ("icdf", "isf"):  # their argument is a probability; for a number outside [0, 1] they return NaN
            value = self._checked(value)
        result: Tensor = getattr(self.formulas, name)(value, *(getattr(self, a) for a in self.arguments))
        return result

    def log_prob(self, value: Tensor | float) -> Tensor:
        """Return the log density at ``value``."""
        return self._call("log_prob", value)

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return P(Y ≤ value), exact in the lower tail."""
        return self._call("cdf", value)

    def sf(self, value: Tensor | float) -> Tensor:
        """Return P(Y > value), exact in the upper tail."""
        return self._call("sf", value)

    def icdf(self, value: Tensor | float) -> Tensor:
        """Return the quantile with probability ``value`` below it, exact in the lower tail."""
        return self._call("icdf", value)

    def isf(self, value: Tensor | float) -> Tensor:
        """Return the quantile with probability ``value`` above it, exact in the upper tail."""
        return self._call("isf", value)

    def crps(self, value: Tensor | float) -> Tensor:
        """Return the continuous ranked probability score of ``value``, in the units of y. Smaller is better."""
        return self._call("crps", value)

    def mean_distance(self, value: Tensor | float) -> Tensor:
        """Return the mean distance of a draw from ``value``, E|X−value|."""
        return self._call("mean_distance", value)

    def predictive(self) -> Self:
        """Return the distribution itself, as a counterpart to the method of a Normal Inverse-Gamma."""
        return self

    def half_spread(self) -> Tensor:
        """Return half the mean distance of two independent draws, ½E|X−X'|."""
        raise NotImplementedError


def _register_pytree(cls: type[TreeDistribution]) -> None:
    """Register the class as a pytree node, which torch's tree functions take apart into its leaves and rebuild.

    A class that a user derives from ours has no serialized name, and so cannot be part of an exported program on disk.
    """

    def flatten(d: TreeDistribution) -> tuple[list[Any], None]:
        return [getattr(d, name) for name in cls.leaves], None

    def flatten_with_keys(d: TreeDistribution) -> tuple[list[tuple[Any, Any]], None]:
        return [(_pytree.GetAttrKey(name), getattr(d, name)) for name in cls.leaves], None

    _pytree.register_pytree_node(
        cls,
        flatten,
        lambda values, _: cls._from_leaves(values),
        serialized_type_name=f"howsure.{cls.__name__}" if cls.__module__.startswith("howsure.") else None,
        flatten_with_keys_fn=flatten_with_keys,
    )
