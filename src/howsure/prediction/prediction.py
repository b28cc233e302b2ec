"""Predictive distributions of rows of any shape: tensors inside, NumPy arrays outside."""

from collections.abc import Sequence
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsure.distributions import NormalInverseGamma
from howsure.distributions.arguments import fit_rows, fit_shape
from howsure.errors import InputError
from howsure.prediction import quantities
from howsure.prediction.checks import checked_coverages, checked_levels, real_numbers
from howsure.prediction.state import State, device_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Decomposition", "Prediction", "as_prediction"]

Array = NDArray[Any]  # of floats: float64 or float32


class Decomposition(NamedTuple):
    """Variances that add up to the total. A part that a method does not have is None, never 0."""

    aleatoric: Array | None
    epistemic: Array | None


class Prediction(State):
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

    Tensors stay on their device and in their dtype. Properties and methods return NumPy arrays of that dtype, or the
    wider one of y. The torch objects are ``answers``, with the members in dimension 0, and ``distribution``, their
    mixture. Predictions can be indexed along their dimensions, joined with :meth:`cat` and moved with :meth:`to`.

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
    """

    # Moments ----------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """Mean of the predictive distribution."""
        return _numpy(self.moments.mean)

    @property
    def median(self) -> Array:
        """The value that a new y exceeds with probability ½."""
        return self.quantile(0.5)

    @property
    def variance(self) -> Array:
        """Variance of the predictive distribution, which :meth:`decompose` divides."""
        return _numpy(self.moments.variance)

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
        """The default of :meth:`decompose`: ``"identified"`` for several members, and ``"paper"`` for one.

        A familiarity or weights by row make it ``"paper"`` for a Normal Inverse-Gamma without a transform. With a
        transform, a familiarity makes it ``"identified"``.
        """
        by_row = self._weights is not None and self._weights.ndim > 1  # components of one posterior, not networks
        computed = self._familiarity is not None or by_row
        if computed and isinstance(self.answers, NormalInverseGamma) and self.transform is None:
            return "paper"
        familiar = self.transform is not None and self._familiarity is not None
        return "identified" if self.several or familiar else "paper"

    def decompose(self, decomposition: str | None = None) -> Decomposition:
        """Return aleatoric and epistemic variance, which add up to :attr:`variance`.

        Args:
            decomposition: ``"paper"`` or ``"identified"``. None: :attr:`default_decomposition`.

        Returns:
            A named tuple (aleatoric, epistemic). A part that the distribution does not have is None.

        Raises:
            InputError: for another decomposition, or ``"paper"`` for a target with a transform.

        >>> from howsure import Normal
        >>> Prediction(Normal(torch.zeros(1), 2.0)).decompose()
        Decomposition(aleatoric=array([4.], dtype=float32), epistemic=None)
        """
        if self.transform is not None and decomposition == "paper":
            raise InputError(
                f'the division of the paper is not defined for a target under the transform "{self.transform.kind}"; '
                'ask for "identified", which needs several members'
            )
        decomposition = decomposition or self.default_decomposition
        if decomposition not in ("paper", "identified"):
            raise InputError(f"unknown decomposition {decomposition!r}; known are paper, identified")
        found = self.moments
        if decomposition == "paper":
            aleatoric, epistemic = found.aleatoric, found.epistemic
        elif self.transform is not None and self._familiarity is not None:
            share = quantities.without_transform(self).moments
            assert share.aleatoric is not None
            aleatoric = found.variance * (share.aleatoric / share.variance)
            epistemic = found.variance - aleatoric
        else:
            aleatoric, epistemic = found.within, found.between if self.several else None
        return Decomposition(*(None if part is None else _numpy(part) for part in (aleatoric, epistemic)))

    @cached_property
    def moments(self) -> quantities.Moments:
        """Everything that means and variances are made of, in one pass over the rows."""
        with torch.no_grad():
            return quantities.Moments(*quantities.in_one_pass(quantities.moments_of, self))

    @property
    def familiarity(self) -> Array | None:
        """How near each row is to the training rows, in [0, 1], (rows,); None if it is unknown."""
        return None if self._familiarity is None else _numpy(self._familiarity)

    # Densities, tails, scores -----------------------------------------------------------------------------------------

    def log_prob(self, y: ArrayLike) -> Array:
        """Return the log density of the predictive distribution at y.

        For a value with positive probability, a possible value of a ``Support`` or an atom, it is the logarithm of
        that probability.
        """
        return _numpy(quantities.at_targets(self, "log_prob", self.target(y)))

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
        return _numpy(quantities.at_targets(self, "cdf", self.target(y)))

    def crps(self, y: ArrayLike) -> Array:
        """Return the continuous ranked probability score of each y. Smaller is better.

        Args:
            y: targets of the shape of the prediction, without missing values.
        """
        return _numpy(quantities.at_targets(self, "crps", self.target(y)))

    def entropy(self) -> Array:
        """Return the entropy of the predictive distribution, in nats."""
        return _numpy(quantities.by_parts(self, lambda mixture: mixture.entropy()))

    def quantile(self, q: ArrayLike) -> Array:
        """Return quantiles of the predictive distribution.

        Args:
            q: a probability in [0, 1], or a list of them.

        Returns:
            One quantile of the shape of the prediction, or several in a new last dimension.

        Raises:
            InputError: for other probabilities.
        """
        levels = checked_levels(q)
        below = [(float(level), False) for level in np.atleast_1d(levels)]
        found = _numpy(quantities.by_parts(self, lambda mixture: quantities.quantiles(mixture, below)))
        return found[..., 0] if levels.ndim == 0 else found

    def interval(self, coverage: float = 0.9) -> Array:
        """Return the central interval that contains a new y with probability ``coverage``.

        A prediction with a guarantee, as of a regressor with ``conformal``, returns the calibrated interval.

        Args:
            coverage: a probability between 0 and 1.

        Returns:
            The ends, (*shape, 2).
        """
        return self._ends(checked_coverages([coverage]))[..., 0, :]

    def _ends(self, coverages: Sequence[float]) -> Array:
        """Return the ends of several central intervals in one pass: (*shape, coverages, 2)."""
        if self.guarantee is not None:
            ends: Array = self.guarantee.ends(self, coverages)
            return ends
        return _numpy(quantities.central_ends(self, coverages))

    def sample(self, n: int, seed: int | None = None) -> Array:
        """Return n independent draws of a new y.

        Args:
            n: number of draws for every row.
            seed: the same seed gives the same draws, on the same device. None: other draws each time. The global
                random state of torch is neither used nor changed.

        Returns:
            An array of shape (n, *shape).

        Raises:
            InputError: if n or the seed is not such a number.
        """
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
            raise InputError(f"n must be a whole number of at least 1, got {n!r}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
            raise InputError(f"seed must be None or a whole number of at least 0, got {seed!r}")
        generator = torch.Generator(device_of(self.answers))
        _ = generator.seed() if seed is None else generator.manual_seed(int(seed))
        return _numpy(quantities.draws(self, int(n), generator))

    def target(self, y: ArrayLike, mask: ArrayLike | None = None) -> Tensor:
        """Return y as a tensor of the prediction's shape, with 0 where the mask leaves it out.

        Args:
            y: targets.
            mask: True where a target counts.

        Raises:
            InputError: for another shape, and for a missing target that counts.
        """
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
            mask: True where a target counts, of the shape of the prediction, or (N,) or (N, 1) for whole rows.

        Raises:
            InputError: if it is not boolean, or has another shape.
        """
        chosen = mask.detach() if isinstance(mask, Tensor) else np.array(mask)
        if isinstance(chosen, np.ndarray) and chosen.dtype == object and all(isinstance(m, bool) for m in chosen.flat):
            chosen = chosen.astype(bool)  # of pandas' nullable booleans
        chosen = fit_rows(chosen, self.shape)
        if chosen.dtype not in (torch.bool, np.bool_) or tuple(chosen.shape) != self.shape:
            raise InputError(
                f"mask must be boolean, True where a target counts, of the shape {self.shape} of the prediction; got "
                f"{str(chosen.dtype).removeprefix('torch.')} {tuple(chosen.shape)}"
            )
        return chosen if isinstance(chosen, Tensor) else torch.from_numpy(chosen)

    # Tables -----------------------------------------------------------------------------------------------------------

    def to_frame(self, coverage: float | Sequence[float] = 0.9) -> "pd.DataFrame":
        """Return a data frame with mean, standard deviations, intervals and familiarity.

        With several targets, the columns start with the name of the target: ``price_mean``. Rows have the
        index of the table that was predicted.

        Args:
            coverage: probability of the interval, or several: ``[0.5, 0.9]`` gives ``lower_0.5``, ``upper_0.5``,
                ``lower_0.9``, ``upper_0.9``.

        Raises:
            InputError: for predictions with more than two dimensions.
        """
        import pandas as pd

        if len(self.shape) > 2:
            raise InputError(f"expected a prediction of rows, or of rows and targets, got shape {self.shape}")
        columns = {k: np.atleast_1d(v) for k, v in self._columns(checked_coverages(coverage)).items()}
        familiarity = self.familiarity
        shares = {} if familiarity is None else {"familiarity": np.atleast_1d(familiarity)}
        if len(self.shape) < 2:
            return pd.DataFrame(columns | shares, index=self.index)
        names = self.names or [f"y{t}" for t in range(self.shape[1])]
        wide = {f"{name}_{k}": v[:, t] for t, name in enumerate(names) for k, v in columns.items()}
        wide |= shares
        return pd.DataFrame(wide, index=self.index)

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


def as_prediction(answer: Any) -> Prediction:
    """Return a prediction as it is, and a distribution of one network as a prediction."""
    return answer if isinstance(answer, Prediction) else Prediction(answer)


def _numpy(x: Tensor) -> Array:
    array: Array = x.detach().cpu().numpy()
    return array


def _root(x: Array | None) -> Array | None:
    return None if x is None else np.sqrt(x)
