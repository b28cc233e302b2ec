"""State of a prediction: the distributions of several networks, their weights, labels of rows and targets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils import _pytree

from howsure.distributions import (
    Discrete,
    Mixture,
    Normal,
    NormalInverseGamma,
    StudentT,
    Support,
    Transform,
    Transformed,
    WithAtom,
)
from howsure.distributions.arguments import class_name, short_numbers
from howsure.distributions.base import on_leaves
from howsure.distributions.mixture import normalised_weights
from howsure.errors import InputError, InputTypeError
from howsure.formulas import mixture as mixtures
from howsure.prediction.checks import real_numbers

__all__ = ["Answer", "State", "device_of", "location", "stretch"]

Array = NDArray[Any]  # of floats: float64 or float32
Answer = NormalInverseGamma | StudentT | Normal
Predictive = Mixture | Transformed | Discrete | WithAtom
PART = 1 << 22  # numbers of a distribution that are processed at once
CPU_PART = (1 << 14) - 1  # the same on a CPU, limited by its cache


class State:
    """State of a :class:`~howsure.Prediction`, whose arguments are described there."""

    answers: Answer  # the distribution of each member, with the members in dimension 0
    _weights: Tensor | None = None  # of sum 1, float64 on the CPU
    atom: float | None = None  # a value with positive probability
    gate: Tensor | None = None  # that probability by each member, (members, *shape)
    guarantee: Any = None  # of its intervals, such as :class:`howsure.conformal.ConformalIntervals`

    def __init__(
        self,
        answer: Answer | Mixture | Transformed | Discrete,
        members: int | None = None,
        weights: ArrayLike | Tensor | None = None,
        *,
        transform: Transform | Support | None = None,
        familiarity: Tensor | None = None,
        atom: float | None = None,
        gate: Tensor | None = None,
    ) -> None:
        self.transform = transform
        self.index: Any = None  # of the rows and names of the targets, if the caller has them
        self.names: Sequence[str] | None = None
        answer = from_torch(answer)
        if isinstance(answer, Transformed | Discrete):
            if transform is not None:
                raise InputError(f"a {class_name(answer)} distribution has its transform; leave out transform=")
            self.transform, answer = answer.transform, answer.base
        if isinstance(answer, Mixture):
            if members is not None:
                raise InputError("a Mixture has its own dimension of members: leave out members=")
            if weights is not None:
                raise InputError("a Mixture has the weights of its members; leave out weights=, or give them to it")
            self._weights = None if answer.weights is None else members_of_weights_first(answer.weights)
            answer, members = answer.components, answer.dim  # type: ignore[assignment]
        elif weights is not None and members is None:
            raise InputError("weights= requires members=, the dimension of the networks")
        # with the members in dimension 0
        self.answers: Answer = members_first(answer, members)
        self.members, *shape = self.answers.batch_shape
        self.shape = tuple(shape)
        self._set_weights(weights)
        if self._weights is not None and 1 < self._weights.ndim <= len(shape):
            self._weights = self._weights_like(location(self.answers)).expand(-1, *shape)  # type: ignore[union-attr]
        self._familiarity = self._mean_familiarity(familiarity)
        self._set_atom(atom, gate)

    def _set_weights(self, weights: Any) -> None:
        """Store the weights of the members, except for a single member."""
        if weights is not None:
            given = weights if isinstance(weights, Tensor) else torch.from_numpy(real_numbers("weights", weights))
            if given.ndim > 1:
                self._weights = self._weights_of_rows(given)
            else:
                self._weights = normalised_weights("Prediction", given, self.members, validate=True).cpu()
        if self.members == 1:
            self._weights = None

    def _weights_of_rows(self, weights: Tensor) -> Tensor:
        """Return weights that differ between rows, (members, *shape), with sums of 1, after checking them."""
        if tuple(weights.shape) != (self.members, *self.shape):
            expected = (self.members, *self.shape)
            raise InputError(f"weights must have the shape {expected[:1]} or {expected}, got {tuple(weights.shape)}")
        total = weights.double().sum(0)
        if not bool((weights >= 0).all() & total.isfinite().all() & (total > 0).all()):
            raise InputError("weights must be numbers of at least 0, and not all 0 in a row")
        return (weights.double() / total).cpu()

    def _set_atom(self, atom: float | None, gate: Tensor | None) -> None:
        """Store the atom and its probability, after checking both."""
        if (atom is None) != (gate is None):
            raise InputError("atom= and gate= belong together")
        if atom is None or gate is None:
            return
        if self.transform is not None:
            raise InputError("a prediction has an atom or a transform, not both")
        if tuple(gate.shape) == self.shape and self.members == 1:
            gate = gate.unsqueeze(0)
        if tuple(gate.shape) != (self.members, *self.shape):
            raise InputError(f"gate must have shape {(self.members, *self.shape)}, got {tuple(gate.shape)}")
        if not bool(((gate >= 0) & (gate <= 1)).all()):
            raise InputError("gate must hold probabilities, numbers from 0 to 1")
        self.atom, self.gate = float(atom), gate

    def _mean_familiarity(self, familiarity: Tensor | None) -> Tensor | None:
        """Return the familiarity of each row, (rows,), after checking its shape."""
        if familiarity is None:
            return None
        rows = self.shape[:1]
        if familiarity.shape == (self.members, *rows):
            familiarity = self._mean_over_members(familiarity)
        if tuple(familiarity.shape) != rows:
            raise InputError(f"familiarity must have shape {rows}, got {tuple(familiarity.shape)}")
        return familiarity

    # Members ----------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Weights of the members, (members,) or (members, *shape), of sum 1. None: equal weights."""
        return None if self._weights is None else self._weights.detach().numpy().copy()

    @property
    def several(self) -> bool:
        """Whether more than one member counts, so that their means can differ."""
        if self._weights is None:
            return self.members > 1
        return bool(((self._weights > 0).sum(0) > 1).any())

    def _mean_over_members(self, x: Tensor) -> Tensor:
        """Return the weighted mean over the members, which are dimension 0."""
        return mixtures.mean(x, self._weights_like(x))

    def _weights_like(self, x: Tensor) -> Tensor | None:
        """Return the weights on the device of x and with its dimensions."""
        w = self._weights
        return None if w is None else w.to(x.device).view(*w.shape, *(1,) * (x.ndim - w.ndim))

    @property
    def distribution(self) -> Predictive:
        """The predictive distribution as a torch object."""
        each = self.answers.predictive()
        if self.gate is not None and self.atom is not None:
            # members that give the atom a large probability count less for other values
            gate = self.gate.double().clamp(max=1 - 1e-12)
            shares = self._weights_like(gate)
            others = (1 - gate) if shares is None else shares * (1 - gate)
            mixture = Mixture(each, dim=0, weights=others, validate_args=False)
            return WithAtom(mixture, self._mean_over_members(gate), self.atom)
        weights = None if self._weights is None else self._weights.to(each.loc.device)
        mixture = Mixture(each, dim=0, weights=weights, validate_args=False)
        if isinstance(self.transform, Support):
            return Discrete(mixture, self.transform)
        return mixture if self.transform is None else Transformed(mixture, self.transform)

    @property
    def continuous(self) -> bool:
        """Whether no value of y has positive probability."""
        return self.transform is None and self.atom is None

    # Rows -------------------------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[Self]:
        """Yield the prediction a few rows at a time, to bound the memory of computations."""
        if not self.shape or not len(self):
            yield self
            return
        each = self.members * max(1, int(np.prod(self.shape[1:])))
        on_cpu = device_of(self.answers).type == "cpu"
        step = max(1, (min(PART, CPU_PART) if on_cpu else PART) // each)
        for first in range(0, len(self), step):
            yield self[first : first + step] if step < len(self) else self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a prediction without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Self:
        """Return some of the rows, or with several indices some of the targets or pixels, as for an array."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(k is Ellipsis or k is None for k in keys) or len(keys) > len(self.shape):
            raise IndexError(f"a prediction of shape {self.shape} cannot be indexed with {key!r}")
        keys = tuple(index_of(k, size) for k, size in zip(keys, self.shape, strict=False))

        def of_members(p: Tensor) -> Tensor:
            return p[(slice(None), *on_device(keys, p.device))]

        some = self._apply(of_members, lambda p: p[on_device(keys[:1], p.device)])
        some.shape = tuple(some.answers.batch_shape[1:])
        if self.transform is not None:
            some.transform = self.transform.at(self.shape, on_device(keys, torch.device("cpu")))
        if self._weights is not None and self._weights.ndim > 1:
            some._weights = of_members(self._weights)
        if self.guarantee is not None:
            some.guarantee = self.guarantee.at(tuple(k.cpu().numpy() if isinstance(k, Tensor) else k for k in keys))
        some.index = some.names = None
        some._label_like(self, keys)
        return some

    def _label_like(self, whole: "State", key: tuple[Any, ...]) -> None:
        """Take over the index of the chosen rows, and the names of the targets while there is a dimension of them."""
        keys = [k.cpu().numpy() if isinstance(k, Tensor) else k for k in key] or [slice(None)]
        row = isinstance(keys[0], int) and not isinstance(keys[0], bool)
        if whole.index is not None and row and not self.shape:
            self.index = whole.index[[keys[0]]]  # the label of the one row
        elif whole.names is not None and row and len(whole.shape) == 2 and len(keys) == 1:
            self.index = np.array(whole.names, dtype=object)  # the targets of one row, one below the other
        elif whole.index is not None and self.shape and np.ndim(keys[0]) < 2 and not row:
            self.index = whole.index[keys[0]]
        if whole.names is not None and len(self.shape) == len(whole.shape) == 2:
            self.names = list(np.array(whole.names, dtype=object)[keys[1]]) if len(keys) > 1 else whole.names

    def _apply(self, change: Callable[[Tensor], Tensor], of_rows: Callable[[Tensor], Tensor] | None = None) -> Self:
        """Return the same prediction with every tensor changed, but for the weights; the familiarity by ``of_rows``."""
        new = type(self).__new__(type(self))
        new.__dict__ = {k: v for k, v in self.__dict__.items() if k != "moments"}
        new.answers = on_leaves(change, self.answers)
        new.gate = None if self.gate is None else change(self.gate)
        new._familiarity = None if self._familiarity is None else (of_rows or change)(self._familiarity)
        return new

    def to(self, target: torch.device | torch.dtype | str) -> Self:
        """Return the prediction on another device, or in another dtype.

        Args:
            target: a device such as ``"cuda"``, or ``torch.float32`` or ``torch.float64``.

        Raises:
            InputTypeError: for another dtype.
        """
        if isinstance(target, torch.dtype) and target not in (torch.float32, torch.float64):
            raise InputTypeError(f"a prediction computes in float32 or float64, not {target}")
        return self._apply(lambda p: p.to(target))

    def cpu(self) -> Self:
        """Return the prediction on the CPU."""
        return self.to("cpu")

    def detach(self) -> Self:
        """Return the prediction without the graph of gradients."""
        new = self._apply(Tensor.detach)
        new._weights = None if self._weights is None else self._weights.detach()
        return new

    @classmethod
    def cat(cls, predictions: Iterable[Self]) -> Self:
        """Return several predictions as one, row after row.

        Args:
            predictions: at least one, of the same kind, with the same members and weights, or with weights that differ
                between rows. All of them have a familiarity and a guarantee, or none has.

        Raises:
            InputError: if they do not fit together.
        """
        parts = list(predictions)
        if not parts or not all(isinstance(p, State) and p.shape for p in parts):
            raise InputError("cat takes a list of at least one prediction with rows")
        first, found = parts[0], "; ".join(f"{p!r}" for p in parts[:3])
        if len({p._kind for p in parts}) > 1:
            raise InputError(f"only predictions of one shape, kind and number of members can be joined, got {found}")
        if not all(_same_weights(first, p) for p in parts):
            raise InputError(f"only predictions whose members have the same weights can be joined, got {found}")
        if any(p.transform != first.transform for p in parts):
            raise InputError("only predictions with the same transform of the target can be joined")
        joined = cls(join([p.answers for p in parts]), members=0, transform=first.transform)
        joined.atom, joined.names, joined._weights = first.atom, first.names, first._weights
        if first._weights is not None and first._weights.ndim > 1:
            joined._weights = torch.cat([cast(Tensor, p._weights) for p in parts], 1)
        if first.gate is not None:
            joined.gate = torch.cat([cast(Tensor, p.gate) for p in parts], 1)
        if first._familiarity is not None:
            joined._familiarity = torch.cat([cast(Tensor, p._familiarity) for p in parts])
        if first.guarantee is not None:
            joined.guarantee = first.guarantee.joined([p.guarantee for p in parts[1:]])
        if all(p.index is not None for p in parts):
            one, *rest = (p.index for p in parts)
            joined.index = one.append(rest) if hasattr(one, "append") else np.concatenate([one, *rest])
        return joined

    @property
    def _kind(self) -> tuple[Any, ...]:
        """Properties that are equal in predictions that can be joined."""
        given = (self.transform is None, self._familiarity is None, self.guarantee is None)
        return self.members, self.shape[1:], type(self.answers), self.atom, given

    def scaled(self, factor: ArrayLike) -> Self:
        """Return the prediction with every row's distribution stretched about the row's mean.

        The mean, the shape of the distribution, the members' weights, the familiarity and the shares of the
        decomposition stay; every deviation is multiplied by the factor. With a transform of the target it acts before
        the transform, about the mean of that variable. A guarantee of the intervals is lost.

        Args:
            factor: > 0: a number, one for each row, or an array that broadcasts to the shape of the prediction.

        >>> from howsure import Normal, Prediction
        >>> p = Prediction(Normal(torch.tensor([1.0, 2.0]), 1.0)).scaled([1.0, 3.0])
        >>> p.mean, p.std
        (array([1., 2.], dtype=float32), array([1., 3.], dtype=float32))
        """
        by = self._factor(factor)
        new = self._apply(lambda p: p)
        new.guarantee = None
        loc = location(self.answers)
        new.answers = stretch(self.answers, by.to(loc.device, loc.dtype), self._mean_over_members(loc))
        return new

    def _factor(self, factor: ArrayLike) -> Tensor:
        """Return a factor as a float64 tensor with the dimensions of the prediction, after checking it."""
        by = torch.from_numpy(real_numbers("factor", factor))
        if by.ndim and by.ndim < len(self.shape):
            by = by.view(*by.shape, *(1,) * (len(self.shape) - 1)) if tuple(by.shape) == self.shape[:1] else by
        by = by.view((1,) * len(self.shape)) if not by.ndim else by
        if by.ndim != len(self.shape) or any(a not in (1, b) for a, b in zip(by.shape, self.shape, strict=True)):
            raise InputError(
                f"factor is a number, one for each row, or an array that fits the shape {self.shape} of the "
                f"prediction; got shape {np.shape(factor)}"
            )
        valid = by.isfinite() & (by > 0)
        if not bool(valid.all()):
            raise InputError(f"factor must be finite and greater than 0; {int((~valid).sum())} values are not")
        return by

    def __repr__(self) -> str:
        weights = "" if self._weights is None else f", weights={short_numbers(self._weights, 8)}"
        transform = "" if self.transform is None else f", transform={self.transform.kind!r}"
        atom = "" if self.atom is None else f", atom={self.atom:g}"
        return f"Prediction(shape={self.shape}, members={self.members}{weights}{transform}{atom})"


def members_of_weights_first(weights: Tensor) -> Tensor:
    """Return the weights of a mixture on the CPU: (members,) if they are the same in all rows, else (members, …)."""
    weights = weights.double().cpu()
    rows = weights.reshape(-1, weights.shape[-1])
    return rows[0] if len(rows) and bool((rows == rows[0]).all()) else weights.movedim(-1, 0)


def _same_weights(first: State, second: State) -> bool:
    """Return whether the weights are the same to rounding, so that they may have been normalised again."""
    if first._weights is second._weights:
        return True
    equal = torch.full((first.members,), 1 / first.members, dtype=torch.float64)
    one, other = (equal if p._weights is None else p._weights.detach() for p in (first, second))
    if one.ndim > 1 or other.ndim > 1:
        return one.ndim == other.ndim
    return bool((one - other).abs().max() <= 1e-12)


# Distributions of members ---------------------------------------------------------------------------------------------


def from_torch(answer: Any) -> Any:
    """Return a Normal, StudentT or Independent of ``torch.distributions`` as a distribution of howsure."""
    if isinstance(answer, torch.distributions.Independent):
        answer = answer.base_dist
    if type(answer) is torch.distributions.Normal:
        return Normal(answer.loc, answer.scale, validate_args=False)
    if type(answer) is torch.distributions.StudentT:
        return StudentT(answer.df, answer.loc, answer.scale, validate_args=False)
    return answer


def members_first(answer: Any, members: Any) -> Answer:
    """Return a distribution with its members in dimension 0, after checking that it has this dimension."""
    if not isinstance(answer, Answer):
        raise InputError(
            f"Prediction takes a NormalInverseGamma, a Normal, a StudentT or a Mixture, not {class_name(answer)}"
        )
    if members is None:
        return on_leaves(lambda p: p.unsqueeze(0), answer)
    if isinstance(members, bool) or not isinstance(members, int):
        raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
    shape = tuple(answer.batch_shape)
    if not -len(shape) <= members < len(shape) or shape[members] == 0:
        raise InputError(
            f"members= is the dimension of the networks: an output of shape {shape} has no "
            f"dimension {members} with at least one network"
        )
    return on_leaves(lambda p: p.movedim(members, 0), answer)


def join(answers: Sequence[Answer]) -> Answer:
    """Return the distributions of several parts of the rows as one, members in dimension 0."""
    if len(answers) == 1:
        return answers[0]
    joined: Answer = _pytree.tree_map(lambda *parts: torch.cat(parts, 1), *answers)
    return joined


def device_of(answer: Answer) -> torch.device:
    """Return the device of a distribution."""
    return location(answer).device


def index_of(key: Any, size: int) -> Any:
    """Return an index as torch takes it: lists and arrays as tensors, and slices that go backwards as lists."""
    if isinstance(key, str | bytes | dict | float):
        raise InputTypeError(f"a prediction is indexed by positions of rows and targets, not by {key!r}", value=key)
    if isinstance(key, slice) and key.step is not None and key.step < 0:
        key = list(range(*key.indices(size)))
    if isinstance(key, np.integer) or (isinstance(key, np.ndarray | Tensor) and key.ndim == 0):
        return bool(key) if getattr(key, "dtype", None) in (np.bool_, torch.bool) else int(key)
    if isinstance(key, list | np.ndarray | range):
        array = np.asarray(key)
        return torch.from_numpy(array.astype(np.int64) if not array.size else array.copy())
    return key


def on_device(keys: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    """Return indices whose tensors lie on a device."""
    return tuple(k.to(device) if isinstance(k, Tensor) else k for k in keys)


def location(answer: Answer) -> Tensor:
    """Return the mean of a distribution, which a Student t of few degrees of freedom does not have."""
    return answer.gamma if isinstance(answer, NormalInverseGamma) else answer.loc


def stretch(answer: Any, factor: Tensor, mean: Tensor) -> Any:
    """Return a distribution stretched about a mean, which has no dimension of members, or about its location."""
    loc = location(answer)
    around = loc + (factor - 1) * (loc - mean)  # exact for a factor of 1
    leaves: tuple[Tensor, ...]
    if isinstance(answer, NormalInverseGamma):
        leaves = (around, answer.nu, answer.alpha_minus_one, factor.square() * answer.beta)
    elif isinstance(answer, StudentT):
        leaves = (answer.df, around, factor * answer.scale, answer.df_minus_two)
    else:
        leaves = (around, factor * answer.scale)
    return answer._from_leaves(torch.broadcast_tensors(*leaves))
