"""Predictive distributions of rows of any shape: tensors inside, NumPy arrays outside."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

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
from howsure.distributions._base import class_name, fit_shape
from howsure.distributions.mixture import normalised_weights, short_weights
from howsure.errors import InputError, InputTypeError
from howsure.formulas import mixture as mixtures
from howsure.plots import Predicted, draw
from howsure.threads import one_thread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Answer", "Decomposition", "Guarantee", "Prediction"]

Array = NDArray[Any]  # of floats: float64 or float32
Answer = NormalInverseGamma | StudentT | Normal
Predictive = Mixture | Transformed | Discrete | WithAtom
PART = 1 << 22  # numbers of a distribution that are processed at once
CPU_PART = (1 << 14) - 1  # the same on a CPU, limited by its cache
PLOTTED = 10_000  # values of a target that a figure is made from


class Decomposition(NamedTuple):
    """Variances that add up to the total. A part that a method does not have is None, never 0."""

    aleatoric: Array | None
    epistemic: Array | None


class Guarantee(Protocol):
    """Where the intervals of a prediction come from, if they have a guarantee beyond its distribution."""

    def ends(self, prediction: "Prediction", coverages: Sequence[float]) -> Array:
        """Return the ends of several intervals of the prediction that has this guarantee, (*shape, coverages, 2)."""
        ...

    def at(self, keys: tuple[Any, ...]) -> "Guarantee":
        """Return the guarantee of a part of the prediction, chosen by indices as of NumPy arrays."""
        ...

    def joined(self, others: Sequence[Any]) -> "Guarantee":
        """Return the guarantee of this prediction and others, row after row."""
        ...


class _Moments(NamedTuple):
    """Means and variances of a prediction: of the mixture, and by the paper's formula if there is one."""

    mean: Tensor
    within: Tensor
    between: Tensor
    aleatoric: Tensor | None
    epistemic: Tensor | None

    @property
    def variance(self) -> Tensor:
        return self.within + self.between


class Prediction:
    r"""A predictive distribution for any number of rows: (rows,), (rows, targets), (rows, height, width), ….

    Args:
        answer: the output of one network or several: a :class:`~howsure.NormalInverseGamma`, a
            :class:`~howsure.Normal` or a :class:`~howsure.StudentT`, or a :class:`~howsure.Mixture` of these.
        members: the dimension of the networks in ``answer``. None: there is one network, and every
            dimension belongs to the prediction. It is never guessed.
        weights: how much each network counts, (members,), or in each row, (members, *shape): numbers ≥ 0, not all 0,
            which are divided by their sum. None: equal weights. A Mixture has weights.
        transform: the function from the variable of ``answer`` to y: a :class:`~howsure.distributions.Transform` where
            y cannot be negative, or a :class:`~howsure.distributions.Support` where it has only some values. None: y
            itself.
        familiarity: how near each row is to the training rows, in [0, 1], (rows,). Or for each network, (members,
            rows), whose weighted mean is used. Given if the evidence ν was computed from the training rows.
        atom: a value of y with positive probability. Then ``answer`` is the distribution of all other values.
        gate: that probability by each network, (members, rows), or by a single one (rows,). Given with ``atom``.

    Raises:
        InputError: for members, weights, a familiarity or a gate that do not fit the distribution, and for
            an ``answer`` of another class.

    Tensors stay on their device and in their dtype. Properties and methods return NumPy arrays of that dtype, or the
    wider one of y. The torch objects are ``answers``, with the members in dimension 0, and ``distribution``, their
    mixture. Predictions can be indexed along their dimensions, joined with :meth:`cat`, moved with :meth:`to` and taken
    apart by torch's tree functions, with the leaves of ``answer``.

    The predictive distribution is the mixture of the members' distributions, with equal or given weights. Its mean,
    variance, density, quantiles and intervals do not depend on how the variance is divided. With weights, every mean
    over members below is a weighted one, and a network of weight 0 counts nowhere. There are
    two ways to divide the variance:

    ``"paper"``
        aleatoric :math:`\beta/(\alpha-1)`, epistemic :math:`\beta/(\nu(\alpha-1))` (plus the variance of the members'
        means). The likelihood does not identify it: λ alone can move the aleatoric share from 91% to 0.2%.
    ``"identified"``
        aleatoric is the mean of the members' predictive variances, epistemic the variance of their means. A single
        network has no spread of means: its epistemic part is None.

    The default is ``"identified"`` for several members, which recovers a known noise, and ``"paper"`` for one. A
    prediction with a familiarity has evidence that was computed and not learned, which identifies the paper's division:
    there it is the default. A normal distribution has one way: its variance is aleatoric. A single Student t has none,
    and both parts are None. With a transform of the target the aleatoric share of the variance is that before the
    transform. The variance between an atom and the other values is aleatoric.

    >>> from howsure import Normal
    >>> answer = Normal(torch.zeros(5, 3), 1.0)
    >>> Prediction(answer), Prediction(answer, members=0)
    (Prediction(shape=(5, 3), members=1), Prediction(shape=(3,), members=5))
    >>> Prediction(answer)[:2].std.shape
    (2, 3)
    >>> Prediction(answer, members=0, weights=[1, 1, 1, 1, 4])
    Prediction(shape=(3,), members=5, weights=[0.125, 0.125, 0.125, 0.125, 0.5])

    Two rows with the means 0 and 10:

    >>> p = Prediction(Normal(torch.tensor([0.0, 10.0]), 1.0))
    >>> p.mean, p.quantile(0.5), p.median
    (array([ 0., 10.], dtype=float32), array([ 0., 10.], dtype=float32), array([ 0., 10.], dtype=float32))
    >>> p.interval(0.9).round(2), p.quantile([0.1, 0.9]).shape
    (array([[-1.64,  1.64],
           [ 8.36, 11.64]], dtype=float32), (2, 2))
    >>> y = [1.0, 10.0]
    >>> p.cdf(y).round(2), p.crps(y).round(2), p.log_prob(y).round(2)
    (array([0.84, 0.5 ]), array([0.6 , 0.23]), array([-1.42, -0.92]))
    >>> p.sample(3, seed=0).shape, p.entropy().round(2), p.decompose().epistemic
    ((3, 2), array([1.42, 1.42], dtype=float32), None)
    >>> p.to_frame([0.5, 0.9]).columns.tolist()
    ['mean', 'std', 'aleatoric_std', 'lower_0.5', 'upper_0.5', 'lower_0.9', 'upper_0.9']
    >>> Prediction.cat([p.detach(), p.to(torch.float64).cpu().to(torch.float32)]), p.known([True, False])
    (Prediction(shape=(4,), members=1), tensor([ True, False]))
    """

    _weights: Tensor | None = None  # of sum 1, float64 on the CPU
    atom: float | None = None  # a value with positive probability
    _gate: Tensor | None = None  # that probability by each member, (members, *shape)
    guarantee: Guarantee | None = None  # of its intervals, as of a regressor with ``conformal``

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
        if isinstance(answer, Transformed | Discrete):
            if transform is not None:
                raise InputError(f"a {class_name(answer)} distribution has its transform; leave out transform=")
            self.transform, answer = answer.transform, answer.base
        if isinstance(answer, Mixture):
            if members is not None:
                raise InputError("a Mixture has its own dimension of members: leave out members=")
            if weights is not None:
                raise InputError("a Mixture has the weights of its members; leave out weights=, or give them to it")
            self._weights = None if answer.weights is None else _members_of_weights_first(answer.weights)
            answer, members = answer.components, answer.dim  # type: ignore[assignment]
        elif weights is not None and members is None:
            raise InputError("weights= requires members=, the dimension of the networks")
        # with the members in dimension 0
        self._given: Answer = _members_first(answer, members)
        self.members, *shape = self._given.batch_shape
        self.shape = tuple(shape)
        self._set_weights(weights)
        if self._weights is not None and 1 < self._weights.ndim <= len(shape):
            self._weights = self._weights_like(_first_leaf(self._given)).expand(-1, *shape)  # type: ignore[union-attr]
        self._familiarity = self._mean_familiarity(familiarity)
        self._set_atom(atom, gate)

    shape: tuple[int, ...]
    members: int

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
        self.atom, self._gate = float(atom), gate

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

    # Parts ----------------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> Answer:
        """The distribution of each member, with the members in dimension 0."""
        return self._given

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Weights of the members, (members,) or (members, *shape), of sum 1. None: equal weights."""
        return None if self._weights is None else self._weights.detach().numpy().copy()

    @property
    def _several(self) -> bool:
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

    def _of_members(self, given: Answer, transform: Transform | Support | None) -> "Prediction":
        """Return a prediction with other distributions of the same members, which are dimension 0."""
        new = Prediction(given, members=0, transform=transform)
        new._weights = self._weights
        return new

    def _familiarity_at(self, keys: tuple[Any, ...]) -> Tensor | None:
        """Return the familiarity of the chosen rows."""
        if self._familiarity is None or not keys:
            return self._familiarity
        return self._familiarity[_on_device(keys[:1], self._familiarity.device)]

    @property
    def distribution(self) -> Predictive:
        """The predictive distribution as a torch object."""
        return self._mixture_of(self.answers)

    def _mixture_of(self, answers: Answer) -> Predictive:
        """Return the mixture of the members' distributions of a new y, in the units of y."""
        each = answers.predictive()
        if self._gate is not None and self.atom is not None:
            # members that give the atom a large probability count less for other values
            gate = self._gate.double().clamp(max=1 - 1e-12)
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

    def _parts(self) -> Iterator["Prediction"]:
        """Yield the prediction a few rows at a time, to bound the memory of computations."""
        if not self.shape or not len(self):
            yield self
            return
        each = self.members * max(1, int(np.prod(self.shape[1:])))
        on_cpu = _device_of(self._given).type == "cpu"
        step = max(1, (min(PART, CPU_PART) if on_cpu else PART) // each)
        for first in range(0, len(self), step):
            yield self[first : first + step] if step < len(self) else self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a prediction without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> "Prediction":
        """Return some of the rows, or with several indices some of the targets or pixels, as for an array."""
        keys = key if isinstance(key, tuple) else (key,)
        if any(k is Ellipsis or k is None for k in keys) or len(keys) > len(self.shape):
            raise IndexError(f"a prediction of shape {self.shape} cannot be indexed with {key!r}")
        keys = tuple(_index(k, size) for k, size in zip(keys, self.shape, strict=False))
        chosen = _on_leaves(lambda p: p[(slice(None), *_on_device(keys, p.device))], self._given)
        some = self._of_members(chosen, self._transform_at(keys))
        some._label_like(self, keys)
        some._familiarity = self._familiarity_at(keys)
        if self._weights is not None and self._weights.ndim > 1:
            some._weights = self._weights[(slice(None), *_on_device(keys, self._weights.device))]
        if self._gate is not None:
            some.atom, some._gate = self.atom, self._gate[(slice(None), *_on_device(keys, self._gate.device))]
        if self.guarantee is not None:
            some.guarantee = self.guarantee.at(tuple(k.cpu().numpy() if isinstance(k, Tensor) else k for k in keys))
        return some

    def _without_transform(self) -> Self:
        """Return the prediction of the variable before the transform of the target, without a guarantee."""
        new = self._apply(lambda p: p)
        new.transform = new.guarantee = None
        return new

    def _before_transform(self, y: Array) -> Array:
        """Return the variable before the transform for targets, −∞ for targets outside of its range."""
        return y if self.transform is None else _numpy(self.transform.inverse(torch.from_numpy(np.array(y))))

    def _transform_at(self, keys: tuple[Any, ...]) -> Transform | Support | None:
        """Return the transform of the chosen rows and targets."""
        return None if self.transform is None else self.transform.at(self.shape, _on_device(keys, torch.device("cpu")))

    def _label_like(self, whole: "Prediction", key: tuple[Any, ...]) -> None:
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

    def _apply(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same prediction with every tensor changed."""
        new = type(self).__new__(type(self))
        new.__dict__ = {k: v for k, v in self.__dict__.items() if k not in ("_moments",)}
        new._given = _on_leaves(change, self._given)
        new._familiarity = None if self._familiarity is None else change(self._familiarity)
        new._gate = None if self._gate is None else change(self._gate)
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
    def cat(cls, predictions: Iterable["Prediction"]) -> "Prediction":
        """Return several predictions as one, row after row.

        Args:
            predictions: at least one, of the same kind, with the same members and weights, or with weights that differ
                between rows. All of them have a familiarity and a guarantee, or none has.

        Raises:
            InputError: if they do not fit together.
        """
        predictions = list(predictions)
        if not predictions or not all(isinstance(p, Prediction) and p.shape for p in predictions):
            raise InputError("cat takes a list of at least one prediction with rows")
        given = [p._given for p in predictions]
        shares = [p._familiarity for p in predictions if p._familiarity is not None]
        if 0 < len(shares) < len(predictions):
            raise InputError("some of these predictions have a familiarity and others have none")
        transforms = [p.transform for p in predictions if p.transform is not None]
        kinds = {
            (p.members, p.shape[1:], type(each), p.transform and p.transform.kind, p.atom)
            for p, each in zip(predictions, given, strict=True)
        }
        if len(kinds) > 1:
            found = ", ".join(f"{p!r}" for p in predictions[:3])
            raise InputError(f"only predictions of one shape, kind and number of members can be joined, got {found}")
        if not all(_same_weights(predictions[0], p) for p in predictions):
            found = "; ".join(f"{p!r}" for p in predictions[:3])
            raise InputError(f"only predictions whose members have the same weights can be joined, got {found}")
        shapes = [p.shape for p in predictions]
        transform = type(transforms[0]).cat(transforms, shapes) if transforms else None  # type: ignore[arg-type]
        joined = cls(_join(given), members=0, transform=transform)
        gates = [p._gate for p in predictions if p._gate is not None]
        joined.atom, joined._gate = predictions[0].atom, torch.cat(gates, 1) if gates else None
        joined._weights = predictions[0]._weights
        if joined._weights is not None and joined._weights.ndim > 1:
            joined._weights = torch.cat([cast(Tensor, p._weights) for p in predictions], 1)
        joined._familiarity = torch.cat(shares) if shares else None
        joined.names = predictions[0].names
        guarantees = [p.guarantee for p in predictions]
        first_guarantee, *other_guarantees = guarantees
        if len({each is None for each in guarantees}) > 1:
            raise InputError("the intervals of some of these predictions have a guarantee and of others none")
        if first_guarantee is not None:
            joined.guarantee = first_guarantee.joined(other_guarantees)
        if all(p.index is not None for p in predictions):
            first, *rest = (p.index for p in predictions)
            joined.index = first.append(rest) if hasattr(first, "append") else np.concatenate([first, *rest])
        return joined

    def scaled(self, factor: ArrayLike) -> "Prediction":
        """Return the prediction with every row's distribution stretched about the row's mean.

        The mean, the shape of the distribution, the members' weights, the familiarity and the shares of the
        decomposition stay; every deviation is multiplied by the factor. With a transform of the target it acts before
        the transform, about the mean of that variable. A guarantee of the intervals is lost.

        Args:
            factor: > 0: a number, one for each row, or an array that broadcasts to the shape of the prediction.

        >>> from howsure import Normal
        >>> p = Prediction(Normal(torch.tensor([1.0, 2.0]), 1.0)).scaled([1.0, 3.0])
        >>> p.mean, p.std
        (array([1., 2.], dtype=float32), array([1., 3.], dtype=float32))
        """
        by = self._factor(factor)
        new = self._apply(lambda p: p)
        new.guarantee = None
        given = self._given
        loc = given.gamma if isinstance(given, NormalInverseGamma) else given.loc
        new._given = _stretch(given, by.to(loc.device, loc.dtype), self._mean_over_members(loc))
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

    # Moments ----------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """Mean of the predictive distribution, in the units of y."""
        return _numpy(self._moments.mean)

    @property
    def median(self) -> Array:
        """The value that a new y exceeds with probability ½."""
        return self.quantile(0.5)

    @property
    def variance(self) -> Array:
        """Variance of the predictive distribution, the sum of both parts."""
        return _numpy(self._moments.variance)

    @property
    def std(self) -> Array:
        """Standard deviation of the predictive distribution, the root of :attr:`variance`."""
        return np.sqrt(self.variance)

    @property
    def aleatoric_std(self) -> Array | None:
        """Aleatoric part of the standard deviation, by the default decomposition. None if it is unknown."""
        return _root(self.decompose().aleatoric)

    @property
    def epistemic_std(self) -> Array | None:
        """Epistemic part of the standard deviation, by the default decomposition. None if it is unknown."""
        return _root(self.decompose().epistemic)

    @property
    def default_decomposition(self) -> str:
        """The default of :meth:`decompose`: ``"paper"`` or ``"identified"``."""
        by_row = self._weights is not None and self._weights.ndim > 1  # components of one posterior, not networks
        computed = self._familiarity is not None or by_row
        if computed and isinstance(self._given, NormalInverseGamma) and self.transform is None:
            return "paper"
        familiar = self.transform is not None and self._familiarity is not None
        return "identified" if self._several or familiar else "paper"

    def decompose(self, decomposition: str | None = None) -> Decomposition:
        """Return aleatoric and epistemic variance, which add up to :attr:`variance`.

        Args:
            decomposition: ``"paper"`` or ``"identified"``. None: :attr:`default_decomposition`.

        Returns:
            A named tuple (aleatoric, epistemic). A part that the distribution does not have is None.

        Raises:
            InputError: for another decomposition, or ``"paper"`` for a target with a transform.
        """
        if self.transform is not None and decomposition == "paper":
            raise InputError(
                f'the division of the paper is not defined for a target under the transform "{self.transform.kind}"; '
                'ask for "identified", which needs several members'
            )
        decomposition = decomposition or self.default_decomposition
        if decomposition not in ("paper", "identified"):
            raise InputError(f"unknown decomposition {decomposition!r}; known are paper, identified")
        found = self._moments
        if decomposition == "paper":
            aleatoric, epistemic = found.aleatoric, found.epistemic
        elif self.transform is not None and self._familiarity is not None:
            share = self._without_transform()._moments
            assert share.aleatoric is not None
            aleatoric = found.variance * (share.aleatoric / share.variance)
            epistemic = found.variance - aleatoric
        else:
            aleatoric, epistemic = found.within, found.between if self._several else None
        return Decomposition(*(None if part is None else _numpy(part) for part in (aleatoric, epistemic)))

    @cached_property
    def _moments(self) -> _Moments:
        """Everything that means and variances are made of, in one pass over the rows."""
        with torch.no_grad():
            return _Moments(*self._in_one_pass(_moments_of))

    @property
    def familiarity(self) -> Array | None:
        """How near each row is to the training rows, in [0, 1], (rows,); None if it is unknown."""
        return None if self._familiarity is None else _numpy(self._familiarity)

    # Densities, tails, scores -----------------------------------------------------------------------------------------

    def log_prob(self, y: ArrayLike) -> Array:
        """Return the log density of the predictive distribution at y.

        For a value with positive probability, a possible value of a ``Support`` or an atom, it is the logarithm of
        that probability.

        Args:
            y: targets of the shape of the prediction, without missing values.
        """
        return _numpy(self._at_targets("log_prob", self._target(y)))

    def density(self, y: ArrayLike) -> Array:
        """Return the density of the predictive distribution at y.

        Args:
            y: targets of the shape of the prediction, without missing values.
        """
        return np.exp(self.log_prob(y))

    def cdf(self, y: ArrayLike) -> Array:
        """Return the predictive probability P(Y ≤ y).

        Args:
            y: targets of the shape of the prediction, without missing values.
        """
        return _numpy(self._at_targets("cdf", self._target(y)))

    def _strictly_below(self, y: Array, at: Array) -> Array:
        """Return P(Y < y) for P(Y ≤ y): another number if y has positive probability."""
        if isinstance(self.transform, Support):
            index = self.transform.index(torch.from_numpy(np.asarray(y, dtype=float)))[0]
            before = self.transform.values[(index - 1).clamp(min=0)].numpy()
            return np.where(index.numpy() > 0, self.cdf(before), 0.0)
        if self.atom is not None and self._gate is not None:
            probability = _numpy(self._mean_over_members(self._gate.double()))
            return np.where(y == self.atom, at - probability, at)
        return at if self.transform is None else np.where(y <= 0, 0.0, at)

    def crps(self, y: ArrayLike) -> Array:
        """Return the continuous ranked probability score of each y. Smaller is better.

        Args:
            y: targets of the shape of the prediction, without missing values.
        """
        return _numpy(self._at_targets("crps", self._target(y)))

    def entropy(self) -> Array:
        """Return the entropy of the predictive distribution, in nats."""
        return _numpy(self._by_parts(lambda mixture: mixture.entropy()))

    def quantile(self, q: ArrayLike) -> Array:
        """Return quantiles of the predictive distribution.

        Args:
            q: a probability in [0, 1], or a list of them.

        Returns:
            One quantile of the shape of the prediction, or several in a new last dimension.

        Raises:
            InputError: for other probabilities.
        """
        levels = real_numbers("q", q)
        if levels.ndim > 1 or not levels.size or not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"quantiles are a number between 0 and 1, or a list of them, got {q!r}")
        below = [(float(level), False) for level in np.atleast_1d(levels)]
        found = _numpy(self._by_parts(lambda mixture: _quantiles(mixture, below)))
        return found[..., 0] if levels.ndim == 0 else found

    def interval(self, coverage: float = 0.9) -> Array:
        """Return the central interval that contains a new y with probability ``coverage``.

        A prediction with a guarantee, as of a regressor with ``conformal``, returns the calibrated interval.

        Args:
            coverage: a probability between 0 and 1.

        Returns:
            The ends, (*shape, 2).
        """
        return self._ends(_coverages([coverage]))[..., 0, :]

    def _ends(self, coverages: Sequence[float]) -> Array:
        """Return the ends of several central intervals in one pass: (*shape, coverages, 2)."""
        if self.guarantee is not None:
            return self.guarantee.ends(self, coverages)
        return _numpy(self._central_ends(coverages))

    def _central_ends(self, coverages: Sequence[float]) -> Tensor:
        """Return the ends of several central intervals of the distribution, without a guarantee, on its device."""
        ends = [(0.5 * (1 - coverage), upper) for coverage in coverages for upper in (False, True)]
        found = self._by_parts(lambda mixture: _quantiles(mixture, ends))
        return found.reshape(*self.shape, len(coverages), 2)

    def sample(self, n: int, seed: int | None = None) -> Array:
        """Return n independent draws of a new y.

        Args:
            n: number of draws for every row.
            seed: the same seed gives the same draws, on the same device. None: other draws each time. The global
                random state of torch is neither used nor changed.

        Returns:
            An array of shape (n, *shape).

        Raises:
            InputError: if n is not a positive integer, or seed is not None or an integer of at least 0.
        """
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
            raise InputError(f"n must be a whole number of at least 1, got {n!r}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
            raise InputError(f"seed must be None or a whole number of at least 0, got {seed!r}")
        draws: Array | None = None
        first = 0
        for part in self._parts():
            if draws is None:
                dtype, device = _first_leaf(part._given).dtype, _device_of(part._given)
                draws = np.empty((int(n), *self.shape), dtype=str(dtype).removeprefix("torch."))
                generator = torch.Generator(device)
                _ = generator.seed() if seed is None else generator.manual_seed(int(seed))
            rows = draws if part.shape == self.shape else draws[:, first : first + len(part)]
            step = max(1, PART // max(1, int(np.prod(part.shape))))  # draws at once: n may be large where rows are few
            predictive = part.answers.predictive()
            steps = None if part._weights is None else mixtures.steps(part._weights.detach()).to(device)
            for k in range(0, int(n), step):
                drawn = _draw(predictive, min(step, int(n) - k), generator, steps, part._gate, part.atom)
                if part.transform is not None:
                    drawn = part.transform.forward(drawn).to(drawn.dtype)
                rows[k : k + step] = _numpy(drawn)
            first += len(part) if part.shape else 0
        assert draws is not None
        return draws

    def _at_targets(self, quantity: str, y: Tensor) -> Tensor:
        """Return ``"log_prob"``, ``"cdf"`` or ``"crps"`` of the distribution at every target, on its device."""
        return self._by_parts(lambda mixture, y: getattr(mixture, quantity)(y), y)

    def _by_parts(self, quantity: Callable[..., Tensor], *targets: Tensor) -> Tensor:
        """Return quantity(mixture, *targets) of all rows on the device of the tensors, a few rows at a time."""

        def of_part(part: Prediction, *rows: Tensor) -> tuple[Tensor]:
            return (quantity(part.distribution, *(t.to(_device_of(part._given)) for t in rows)),)

        with torch.no_grad():
            found: Tensor = self._in_one_pass(of_part, *targets)[0]
        return found

    def _in_one_pass(self, function: Callable[..., tuple[Any, ...]], *targets: Tensor) -> tuple[Any, ...]:
        """Return the tensors that a function makes of a prediction and targets, part by part, for all rows."""
        whole: list[Any] | None = None
        first = 0
        for part in self._parts():
            if part.shape == self.shape:
                with one_thread():
                    return function(part, *targets)
            rows = slice(first, first + len(part))
            with one_thread():
                found = function(part, *(t[rows] for t in targets))
            if whole is None:  # memory for all rows first: results kept one by one would fragment it
                whole = [None if t is None else t.new_empty((len(self), *t.shape[1:])) for t in found]
            for column, tensor in zip(whole, found, strict=True):
                if tensor is not None:
                    column[rows] = tensor
            first = rows.stop
        assert whole is not None
        return tuple(whole)

    def _target(self, y: ArrayLike, mask: ArrayLike | None = None) -> Tensor:
        """Return y as a tensor of the prediction's shape, with 0 where the mask leaves it out; none may be missing."""
        if isinstance(y, Tensor) and y.is_floating_point():
            values = y.detach()
        else:
            values = torch.from_numpy(real_numbers("y", y))
            values = values.float() if getattr(y, "dtype", None) == np.float32 else values
        values = fit_shape(values, self.shape)  # regressors also accept tables with one column
        if tuple(values.shape) != self.shape:
            raise InputError(f"y has shape {tuple(values.shape)} but the prediction {self.shape}")
        if mask is not None:
            values = torch.where(self.known(mask).to(values.device), values, 0.0)
        missing = values.isnan()
        if bool(missing.any()):
            row = int(missing.nonzero()[0, 0]) if missing.ndim else 0
            advice = "leave those rows out, or exclude them with mask="
            raise InputError(f"y has {int(missing.sum())} missing values (first in row {row}); {advice}")
        return values

    def known(self, mask: ArrayLike) -> Tensor:
        """Return a mask as a boolean tensor of the prediction's shape.

        Args:
            mask: True where a target counts.

        Raises:
            InputError: if it is not boolean, or has another shape.
        """
        chosen = mask.detach() if isinstance(mask, Tensor) else np.array(mask)
        if isinstance(chosen, np.ndarray) and chosen.dtype == object and all(isinstance(m, bool) for m in chosen.flat):
            chosen = chosen.astype(bool)  # of pandas' nullable booleans
        chosen = fit_shape(chosen, self.shape)
        if chosen.dtype not in (torch.bool, np.bool_) or tuple(chosen.shape) != self.shape:
            raise InputError(
                f"mask must be boolean, True where a target counts, of the shape {self.shape} of the prediction; got "
                f"{str(chosen.dtype).removeprefix('torch.')} {tuple(chosen.shape)}"
            )
        return chosen if isinstance(chosen, Tensor) else torch.from_numpy(chosen)

    # Tables -----------------------------------------------------------------------------------------------------------

    def to_frame(
        self, coverage: float | Sequence[float] = 0.9, index: Any = None, names: Sequence[str] | None = None
    ) -> "pd.DataFrame":
        """Return a data frame with mean, standard deviations, intervals and familiarity.

        With several targets, the columns start with the name of the target: ``price_mean``.

        Args:
            coverage: probability of the interval, or several: ``[0.5, 0.9]`` gives ``lower_0.5``, ``upper_0.5``,
                ``lower_0.9``, ``upper_0.9``.
            index: labels of the rows. None: the labels of the table that was predicted.
            names: names of several targets. None: the names in the training of the regressor.

        Raises:
            InputError: for predictions with more than two dimensions, and names that do not fit.
        """
        import pandas as pd

        if len(self.shape) > 2:
            raise InputError(f"expected a prediction of rows, or of rows and targets, got shape {self.shape}")
        index, names = self.index if index is None else index, names or self.names
        columns = {k: np.atleast_1d(v) for k, v in self._columns(_coverages(coverage)).items()}
        familiarity = self.familiarity
        shares = {} if familiarity is None else {"familiarity": np.atleast_1d(familiarity)}
        if len(self.shape) < 2:
            return pd.DataFrame(columns | shares, index=index)
        names = names or [f"y{t}" for t in range(self.shape[1])]
        if len(names) != self.shape[1] or len(set(names)) != len(names):
            raise InputError(f"{len(names)} names for {self.shape[1]} targets: expected one different name each")
        wide = {f"{name}_{k}": v[:, t] for t, name in enumerate(names) for k, v in columns.items()}
        wide |= shares
        return pd.DataFrame(wide, index=index)

    def _columns(self, coverages: Sequence[float]) -> dict[str, Array]:
        """Return the columns of a table by name, without those that the prediction does not have."""
        columns: dict[str, Array | None]
        if self.transform is None or self.transform.has_moments:
            parts = self.decompose()
            columns = {
                "mean": self.mean,
                "std": self.std,
                "aleatoric_std": _root(parts.aleatoric),
                "epistemic_std": _root(parts.epistemic),
            }
        else:
            columns = {"median": self.median}
        ends = self._ends(coverages)
        for k, coverage in enumerate(coverages):
            columns[f"lower_{coverage:g}"], columns[f"upper_{coverage:g}"] = ends[..., k, 0], ends[..., k, 1]
        return {name: column for name, column in columns.items() if column is not None}

    def plot(
        self,
        y: ArrayLike | None = None,
        coverage: float = 0.9,
        *,
        mask: ArrayLike | None = None,
        ax: "Axes | None" = None,
    ) -> "Figure":
        """Return a matplotlib figure: the intervals and, with targets, how well they hold.

        Without y it shows the medians in their order, with their intervals. With y it has three panels: the targets in
        their intervals, from the narrowest to the widest, the share of targets in intervals of every
        probability, and the histogram of P(Y ≤ y), the probability integral transform. Several targets have a row of
        panels each. Of more than 10,000 rows or pixels, 10,000 are drawn at random, which the title notes.

        Args:
            y: targets, of the shape of the prediction.
            coverage: the probability of the intervals.
            mask: True where a target counts. Without it a missing target is an error.
            ax: matplotlib axes to draw only the intervals into.

        Raises:
            InputError: if matplotlib is not installed (extra ``plot``), or the prediction cannot be drawn.

        >>> from howsure import Normal
        >>> figure = Prediction(Normal(torch.arange(5.0), 1.0)).plot([0.0, 1.5, 2.0, 2.5, 4.0])
        >>> len(figure.axes)
        3
        """
        (coverage,) = _coverages([coverage])
        if not self.shape:
            raise InputError("plot shows rows, and a single value has none; of row i: p[[i]].plot()")
        several = self.shape[1] if len(self.shape) == 2 else 1
        if several > 6 or (ax is not None and several > 1):
            most = "one target into given axes" if ax is not None else "at most 6 targets"
            raise InputError(f"plot draws {most}, and there are {several}; choose, as in p[:, 0].plot()")
        known = np.ones(self.shape, dtype=bool) if mask is None else _numpy(self.known(mask))
        target = None if y is None else _numpy(self._target(y, mask))
        if not known.any():
            raise InputError("there are no rows to plot")
        label = getattr(y, "name", None)  # of a pandas or polars Series
        name = label if isinstance(label, str) and label else "y"
        return draw([self._predicted(t, name, target, known, coverage) for t in range(several)], coverage, ax)

    def _predicted(self, t: int, name: str, y: Array | None, known: Array, coverage: float) -> Predicted:
        """Return the data of a figure for one target or all pixels: at most `PLOTTED` values, drawn at random."""
        chosen: tuple[Any, ...]
        if len(self.shape) == 2:
            (rows,) = known[:, t].nonzero()
            chosen, total, name = (_some(rows), t), len(rows), self.names[t] if self.names is not None else f"y{t}"
        else:
            flat = known.ravel().nonzero()[0]
            chosen, total = np.unravel_index(_some(flat), self.shape), len(flat)
        p = self[chosen]
        ends = p._ends([coverage])[..., 0, :]
        unit = "rows" if len(self.shape) < 3 else "pixels"
        if y is None:
            return Predicted(str(name), p.median, ends, None, None, None, total, unit)
        at = np.asarray(p.cdf(y[chosen]), dtype=float)
        below = p._strictly_below(y[chosen], at)
        # at an atom, a uniform number between both makes the histogram flat for a right prediction
        pit = below + (at - below) * np.random.default_rng(0).random(len(at))
        depth = np.maximum(1 - 2 * at, 2 * below - 1)
        return Predicted(str(name), p.median, ends, y[chosen], pit, depth, total, unit)

    def __repr__(self) -> str:
        weights = "" if self._weights is None else f", weights={short_weights(self._weights)}"
        transform = "" if self.transform is None else f", transform={self.transform.kind!r}"
        atom = "" if self.atom is None else f", atom={self.atom:g}"
        return f"Prediction(shape={self.shape}, members={self.members}{weights}{transform}{atom})"

    def _repr_html_(self) -> str:
        """Return the first rows as a table for notebooks; only these are computed."""
        line = f"<p><code>{escape(repr(self))}</code></p>"
        if len(self.shape) > 2 or 0 in self.shape:
            return line
        rows, targets = (5, 1) if len(self.shape) < 2 else (3, 4)
        try:
            few = self[:rows, :targets] if len(self.shape) == 2 else self[:rows] if self.shape else self
            table = few._first_rows().to_html(float_format=lambda value: f"{value:.4g}", border=0)
        except Exception:  # a notebook would show a traceback instead of the object
            return line
        left = [f"{len(self) - rows:,} more rows"] if self.shape and len(self) > rows else []
        left += (
            [f"{self.shape[1] - targets:,} more targets"] if len(self.shape) == 2 and self.shape[1] > targets else []
        )
        return line + table + (f"<p>… and {' and '.join(left)}: <code>to_frame()</code></p>" if left else "")

    def _first_rows(self) -> "pd.DataFrame":
        """Return a table like `to_frame`, with several targets one below the other."""
        import pandas as pd

        if len(self.shape) < 2:
            return self.to_frame()
        labels = range(len(self)) if self.index is None else self.index
        names = self.names if self.names is not None else [f"y{t}" for t in range(self.shape[1])]
        index = pd.MultiIndex.from_product([labels, names])
        columns = {k: v.reshape(-1) for k, v in self._columns([0.9]).items()}
        if (familiarity := self.familiarity) is not None:
            columns["familiarity"] = familiarity.repeat(self.shape[1])
        return pd.DataFrame(columns, index=index)


def as_prediction(answer: Any) -> Prediction:
    """Return a prediction as it is, and a distribution of one network as a prediction."""
    return answer if isinstance(answer, Prediction) else Prediction(answer)


def real_numbers(name: str, values: Any) -> NDArray[np.float64]:
    """Return values as a new float64 array with NaN where they are masked or missing; raise for dates, text and others.

    A new one, because arrays of pandas are read-only, which causes a warning of torch.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.array(values)
        if array.dtype.kind in "mMcSU":
            raise TypeError(f"got {array.dtype}")
        if array.dtype.kind == "O":
            import pandas as pd

            array[pd.isna(array)] = np.nan
        result: NDArray[np.float64] = array.astype(float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must be real numbers ({error})") from error
    if hidden is not None:
        result[hidden] = np.nan
    return result


def _members_first(answer: Any, members: Any) -> Answer:
    """Return a distribution with its members in dimension 0, after checking that it has this dimension."""
    if not isinstance(answer, Answer):
        raise InputError(
            f"Prediction takes a NormalInverseGamma, a Normal, a StudentT or a Mixture, not {class_name(answer)}"
        )
    if members is None:
        return _on_leaves(lambda p: p.unsqueeze(0), answer)
    if isinstance(members, bool) or not isinstance(members, int):
        raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
    shape = tuple(answer.batch_shape)
    if not -len(shape) <= members < len(shape) or shape[members] == 0:
        raise InputError(
            f"members= is the dimension of the networks: an output of shape {shape} has no "
            f"dimension {members} with at least one network"
        )
    return _on_leaves(lambda p: p.movedim(members, 0), answer)


def _on_leaves(change: Callable[[Tensor], Tensor], answer: Answer) -> Answer:
    changed: Answer = _pytree.tree_map(change, answer)
    return changed


def _join(answers: Sequence[Answer]) -> Answer:
    """Return the distributions of several parts of the rows as one, members in dimension 0."""
    if len(answers) == 1:
        return answers[0]
    joined: Answer = _pytree.tree_map(lambda *parts: torch.cat(parts, 1), *answers)
    return joined


def _moments_of(p: Prediction) -> _Moments:
    """Return means and variances: from the parameters alone, or in the units of y where there is a transform."""
    plain = p._given
    if p.transform is not None:
        mixture = cast(Transformed | Discrete, p._mixture_of(plain))
        within, between = mixture.within_variance, mixture.between_variance
        aleatoric = within if isinstance(plain, Normal) else None
        epistemic = between if isinstance(plain, Normal) and p._several else None
        return _Moments(mixture.mean, within, between, aleatoric, epistemic)
    own: Tensor | None = None
    if isinstance(plain, NormalInverseGamma):
        noise = plain.aleatoric_variance
        means, doubt = plain.gamma, noise / plain.nu
        if p._gate is not None:
            doubt = (1 - p._gate) * doubt
            means, noise = _with_atom(p, means, noise)
        aleatoric, own = p._mean_over_members(noise), p._mean_over_members(doubt)
        within = aleatoric + own
    else:
        means, doubt = plain.mean, plain.variance
        if p._gate is not None:
            means, doubt = _with_atom(p, means, doubt)
        within = p._mean_over_members(doubt)
        aleatoric = within if isinstance(plain, Normal) else None
    mean = p._mean_over_members(means)
    between = mixtures.spread_of_means(means, p._weights_like(means))
    epistemic = None if aleatoric is None else _sum_of(own, between if p._several else None)
    return _Moments(mean, within, between, aleatoric, epistemic)


def _with_atom(p: Prediction, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means and variances of members that give the atom of a prediction a probability."""
    assert p._gate is not None
    gate, distance = p._gate.to(means.dtype), means - float(p.atom or 0)
    return means - gate * distance, (1 - gate) * (variances + gate * distance.square())


def _members_of_weights_first(weights: Tensor) -> Tensor:
    """Return the weights of a mixture on the CPU: (members,) if they are the same in all rows, else (members, …)."""
    weights = weights.double().cpu()
    rows = weights.reshape(-1, weights.shape[-1])
    return rows[0] if len(rows) and bool((rows == rows[0]).all()) else weights.movedim(-1, 0)


def _same_weights(first: Prediction, second: Prediction) -> bool:
    """Return whether the weights are the same to rounding, so that they may have been normalised again."""
    if first._weights is second._weights:
        return True
    equal = torch.full((first.members,), 1 / first.members, dtype=torch.float64)
    one, other = (equal if p._weights is None else p._weights.detach() for p in (first, second))
    if one.ndim > 1 or other.ndim > 1:
        return one.ndim == other.ndim
    return bool((one - other).abs().max() <= 1e-12)


def _sum_of(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the sum of two parts of a variance. Either may be None."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _stretch(answer: Any, factor: Tensor, mean: Tensor) -> Any:
    """Return a distribution stretched about a mean, which has no dimension of members."""
    leaves: tuple[Tensor, ...]
    if isinstance(answer, NormalInverseGamma):
        around = answer.gamma + (factor - 1) * (answer.gamma - mean)  # exact for a factor of 1
        leaves = (around, answer.nu, answer.alpha_minus_one, factor.square() * answer.beta)
    elif isinstance(answer, StudentT):
        around = answer.loc + (factor - 1) * (answer.loc - mean)
        leaves = (answer.df, around, factor * answer.scale, answer.df_minus_two)
    else:
        leaves = (answer.loc + (factor - 1) * (answer.loc - mean), factor * answer.scale)
    return answer._from_leaves(torch.broadcast_tensors(*leaves))


def _device_of(answer: Answer) -> torch.device:
    device: torch.device = _first_leaf(answer).device
    return device


def _index(key: Any, size: int) -> Any:
    """Return an index as torch takes it: lists and arrays as tensors, and slices that go backwards as lists."""
    if isinstance(key, slice) and key.step is not None and key.step < 0:
        key = list(range(*key.indices(size)))
    if isinstance(key, np.integer) or (isinstance(key, np.ndarray | Tensor) and key.ndim == 0):
        return bool(key) if getattr(key, "dtype", None) in (np.bool_, torch.bool) else int(key)
    if isinstance(key, list | np.ndarray | range):
        array = np.asarray(key)
        return torch.from_numpy(array.astype(np.int64) if not array.size else array.copy())
    return key


def _on_device(keys: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    return tuple(k.to(device) if isinstance(k, Tensor) else k for k in keys)


def _quantiles(mixture: Predictive, tails: Sequence[tuple[float, bool]]) -> Tensor:
    """Return several quantiles in a new last dimension, in the dtype of the mixture.

    Args:
        mixture: a mixture, its transform, or one with an atom.
        tails: pairs (probability, upper): the probability lies above the quantile if ``upper``, else below it.
    """
    base = mixture.base if isinstance(mixture, Transformed | Discrete) else mixture
    loc = base.components.loc
    shape = [1] * len(base.batch_shape)
    levels = torch.tensor([p for p, _ in tails], dtype=torch.float64, device=loc.device).view(-1, *shape)
    upper = torch.tensor([above for _, above in tails], device=loc.device).view(-1, *shape)
    at_once = max(1, 2 * (CPU_PART if loc.device.type == "cpu" else PART) // max(1, loc.numel()))
    found = [base.quantile(q, up) for q, up in zip(levels.split(at_once), upper.split(at_once), strict=True)]
    quantiles = torch.cat(found)
    if isinstance(mixture, Transformed | Discrete):
        quantiles = mixture.transform.forward(quantiles)
    return quantiles.movedim(0, -1).to(loc.dtype)


def _coverages(coverage: Any) -> list[float]:
    """Return one or several coverages as a list, after checking that they are probabilities, each given once."""
    several = [coverage] if isinstance(coverage, Real | str) or not isinstance(coverage, Iterable) else list(coverage)
    for each in several:
        if not isinstance(each, Real) or not 0 < float(each) < 1:
            raise InputError(f"coverage must lie between 0 and 1, got {each}")
    if not several or len({f"{float(each):g}" for each in several}) < len(several):
        raise InputError(f"coverage is a number between 0 and 1, or several different ones, got {coverage!r}")
    return [float(each) for each in several]


def _some(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all of few entries, or `PLOTTED` of many, drawn without a change of NumPy's random state, in order."""
    if len(entries) <= PLOTTED:
        return entries
    return np.sort(np.random.default_rng(0).choice(entries, PLOTTED, replace=False))


def _draw(
    each: StudentT | Normal,
    n: int,
    generator: torch.Generator,
    steps: Tensor | None,
    gate: Tensor | None,
    atom: float | None,
) -> Tensor:
    """Return n draws of the predictive distribution of each row: of a member chosen at random, (n, *rows).

    The steps are the sums of the members' weights up to each, None where all members count the same. The gate is the
    probability of the atom by each member.
    """
    with torch.no_grad():
        shape = (n, *each.batch_shape[1:])
        options: Any = {"generator": generator, "device": generator.device}
        if steps is None:
            member = torch.randint(each.batch_shape[0], shape, **options)
        else:
            level = torch.rand(shape, dtype=torch.float64, **options)
            member = torch.zeros(shape, dtype=torch.int64, device=generator.device)
            for step in steps[:-1]:  # of one number, or of one for each row
                member += level >= step
        noise = torch.randn(shape, dtype=each.loc.dtype, **options)
        if isinstance(each, StudentT):  # a chi-square over its degrees of freedom is a Gamma(df/2) over df/2
            half = 0.5 * each.df.gather(0, member)
            noise = noise * torch.rsqrt(torch._standard_gamma(half, generator=generator) / half)
        drawn = each.loc.gather(0, member) + each.scale.gather(0, member) * noise
        if gate is None:
            return drawn
        chosen = torch.rand(shape, dtype=torch.float64, **options) < gate.gather(0, member)
        return torch.where(chosen, torch.full_like(drawn, float(atom or 0)), drawn)


def _numpy(x: Tensor) -> Array:
    array: Array = x.detach().cpu().numpy()
    return array


def _root(x: Array | None) -> Array | None:
    return None if x is None else np.sqrt(x)


def _flatten(p: Prediction) -> tuple[list[Any], Any]:
    """Return the tensors of a prediction, and the context to rebuild it.

    The context is the dimension of the members, counted from the right, the transform, the atom, and which of the
    weights, the familiarity and the gate are there.
    """
    answer, members = p._given, cast(int | None, -1 - len(p.shape))
    if p.members == 1 and isinstance(_first_leaf(answer), Tensor):
        answer, members = _on_leaves(lambda leaf: leaf.squeeze(0), answer), None
    gate = p._gate.squeeze(0) if members is None and isinstance(p._gate, Tensor) else p._gate
    weights = p._weights.movedim(0, -1) if isinstance(p._weights, Tensor) else p._weights
    optional = (weights, p._familiarity, gate)
    present = tuple(part is not None for part in optional)
    return [answer, *(part for part in optional if part is not None)], (members, p.transform, p.atom, present)


def _unflatten(values: Iterable[Any], context: Any) -> Prediction:
    answer, *rest = values
    members, transform, atom, present = context
    weights, familiarity, gate = (rest.pop(0) if there else None for there in present)
    if isinstance(answer, Answer) and isinstance(_first_leaf(answer), Tensor):
        new = Prediction(answer, members, transform=transform)
        new._weights = _members_of_weights_first(weights) if isinstance(weights, Tensor) else None
        new._familiarity = familiarity
        new.atom, new._gate = atom, gate.unsqueeze(0) if members is None and gate is not None else gate
        return new
    new = Prediction.__new__(Prediction)  # of the objects that tree functions put instead of tensors
    new.__dict__ = {"_given": answer, "index": None, "names": None, "shape": (), "members": 1}
    new.transform, new._weights, new._familiarity = transform, weights, familiarity
    new.atom, new._gate = atom, gate
    return new


def _first_leaf(answer: Answer) -> Any:
    return getattr(answer, answer.leaves[0], None)


_pytree.register_pytree_node(Prediction, _flatten, _unflatten, serialized_type_name="howsure.Prediction")
