"""Base classes of the distributions.

A distribution consists of its *leaves*, tensors of one shape and dtype:

- ``NormalInverseGamma``: gamma, nu, alpha_minus_one, beta;
- ``StudentT``: df, loc, scale, df_minus_two;
- ``Normal``: loc, scale;
- ``Mixture``: its components, a distribution, and its weights where there are any, in float64;
- ``Transformed``, ``Discrete`` and ``WithAtom``: a mixture, and the probability of the atom.

The leaves are always there, and everything else is computed from them. Each class is a pytree node over its leaves, so
``torch.func.vmap``, ``torch.export`` and ``torch.compile`` can return one from a function, and
:class:`~howsure.Prediction` can move all of them to another device, dtype or dimension by one ``tree_map``. Each is
also a dataclass over the same leaves, because ``DistributedDataParallel``, FSDP and Lightning look for tensors in
dataclasses and not in pytrees.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from numbers import Real
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.types import _size
from torch.utils import _pytree

from howsure.distributions.arguments import as_value, checked_parts
from howsure.errors import InputError, InputTypeError

__all__ = ["Predictive", "Rows", "Tree", "TreeDistribution", "Univariate", "on_leaves"]


class Tree(Distribution):
    """A distribution that torch's tree functions take apart into its leaves, and rebuild from them.

    The leaves may also be placeholders, by which these functions replace tensors.
    """

    leaves: ClassVar[tuple[str, ...]]  # the last ones may be None, and are then left out
    context: ClassVar[str | None] = None  # name of an attribute without tensors
    event: ClassVar[torch.Size] = torch.Size()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "leaves"):
            return
        _pytree.register_pytree_node(
            cls,
            lambda d: (list(d._present().values()), d._context()),
            cls._from_leaves,
            # a class that a user derives from ours cannot be part of an exported program on disk
            serialized_type_name=f"howsure.{cls.__name__}" if cls.__module__.startswith("howsure.") else None,
            flatten_with_keys_fn=lambda d: (
                [(_pytree.GetAttrKey(name), leaf) for name, leaf in d._present().items()],
                d._context(),
            ),
        )

    def _present(self) -> dict[str, Any]:
        """Return the leaves by name, without those that are None."""
        leaves = {name: getattr(self, name) for name in self.leaves}
        return {name: leaf for name, leaf in leaves.items() if leaf is not None}

    def _context(self) -> Any:
        return None if self.context is None else getattr(self, self.context)

    @classmethod
    def _from_leaves(cls, values: Iterable[Any], context: Any = None) -> Self:
        """Return a distribution with these leaves, without a check."""
        new = cls.__new__(cls)
        new._set_leaves(values, False, context)
        return new

    def _set_leaves(self, values: Iterable[Any], validate_args: bool | None, context: Any = None) -> None:
        """Initialise the distribution with these leaves, without a check."""
        for name, value in zip(self.leaves, values, strict=False):
            setattr(self, name, value)
        if self.context is not None:
            setattr(self, self.context, context)
        # without torch's check, which would raise first, with a shorter message than `check_domain`
        Distribution.__init__(self, self._shape_of_leaves(), self.event, validate_args=False)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args

    def _shape_of_leaves(self) -> torch.Size:
        """Return the batch shape."""
        first = getattr(self, self.leaves[0])
        shape: torch.Size = getattr(first, "shape", getattr(first, "batch_shape", torch.Size()))
        return shape


class Predictive:
    """Quantiles, standard deviation and intervals of a distribution of one number, under the names of a prediction."""

    variance: Any
    quantile: Callable[..., Tensor]

    @property
    def std(self) -> Tensor:
        """Standard deviation of a new y."""
        std: Tensor = self.variance.sqrt()
        return std

    def icdf(self, value: Tensor | float) -> Tensor:
        """Return the quantile with probability ``value`` below it, exact in the lower tail."""
        return self.quantile(value, upper=False)

    def isf(self, value: Tensor | float) -> Tensor:
        """Return the quantile with probability ``value`` above it, exact in the upper tail."""
        return self.quantile(value, upper=True)

    def interval(self, coverage: float = 0.9) -> Tensor:
        """Return the central interval that contains a new y with probability ``coverage``: its ends, (*shape, 2).

        Raises:
            InputError: if the coverage is not between 0 and 1.
        """
        if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise InputError(f"coverage must be a number between 0 and 1, got {coverage!r}")
        tail = 0.5 * (1 - float(coverage))
        return torch.stack([self.icdf(tail), self.isf(tail)], dim=-1)


@dataclass(init=False, repr=False, eq=False, match_args=False)
class Rows(Tree):
    """A distribution that can be moved, indexed, joined, and turned into plain dicts.

    A subclass is also a dataclass. Its fields are arguments of its constructor, so that ``dataclasses.replace`` works;
    that validates if the original did.
    """

    validate_args: InitVar[bool | None] = field(default=None, kw_only=True)

    def to(self, target: torch.device | torch.dtype | str | int, *, non_blocking: bool = False) -> Self:
        """Return the same on another device, or in another dtype. The weights of a mixture stay in float64.

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
        leaves = self._present().values()
        changed = [leaf._map(change) if isinstance(leaf, Rows) else change(leaf) for leaf in leaves]
        return self._from_leaves(changed, self._context())

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
        return self._present()

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Self:
        """Return the distribution with these ``parts``, as of :meth:`to_dict`, tensors or NumPy arrays."""
        return cls(**checked_parts(cls.__name__, parts, cls.leaves))

    def _checked(self, value: Tensor) -> Tensor:
        """Return the value, or raise an error if it lies outside the support and arguments are validated."""
        if self._validate_args:
            self._validate_sample(value)
        return value


# dataclasses.replace passes on the default of an InitVar, so that a copy validates as this object does
Rows.validate_args = property(lambda self: getattr(self, "_validate_args", None))  # type: ignore[attr-defined]


D = TypeVar("D", bound=Rows)


def on_leaves(change: Callable[[Tensor], Tensor], distribution: D) -> D:
    """Return a distribution with every tensor changed, without a check."""
    return distribution._map(change)


class TreeDistribution(Rows):
    """A distribution whose leaves are tensors of its batch shape."""

    def _of_parts(self, parts: dict[str, Any]) -> Self:
        return self._from_leaves(parts.values())  # without a check: a part of a distribution may be NaN

    def double(self) -> Self:
        """Return the same distribution in float64."""
        return self._map(lambda t: t.double())

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        """Return the distribution with its parameters expanded to ``batch_shape``."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new._set_leaves((getattr(self, name).expand(batch_shape) for name in self.leaves), self._validate_args)
        return new


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

    def quantile(self, value: Tensor | float, upper: bool) -> Tensor:
        """Return `isf` of ``value`` if ``upper`` is true, else `icdf`."""
        return self._call("isf" if upper else "icdf", value)

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
        """Return half the mean distance of two independent draws, ½E|X−X'|. A Student t needs df > 1."""
        spread: Tensor = self.formulas.half_spread(*(getattr(self, a) for a in self.arguments if a != "loc"))
        return spread
