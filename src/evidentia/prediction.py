"""What every method answers with: a predictive distribution in the units of y, NumPy outside and torch inside."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evidentia.distributions import Gaussian, Mixture, NormalInverseGamma
from evidentia.errors import InputError, InputTypeError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Decomposition", "Prediction"]

Array = NDArray[np.float64]


class Decomposition(NamedTuple):
    """Variances that add up to the total. A part that a method does not have is None, never 0."""

    aleatoric: Array | None
    epistemic: Array | None


class Prediction:
    r"""A predictive distribution for N rows, (N,), or N rows and T targets, (N, T).

    Args:
        answer: what a network, or several, said: a :class:`~evidentia.NormalInverseGamma` or a
            :class:`~evidentia.Gaussian`.
        members: the dimension of the answer along which several networks stand, 0 as a rule. None: there is one
            network, and every dimension is rows or targets. It is never guessed.

    The predictive distribution is the equal-weight mixture of the members' own; its mean, variance, density, quantiles
    and intervals do not depend on how the variance is divided. The division has two readings:

    ``"paper"``
        aleatoric :math:`\beta/(\alpha-1)`, epistemic :math:`\beta/(\nu(\alpha-1))` (plus the variance of the members'
        means). The likelihood does not identify it: λ alone can move the aleatoric share from 91 % to 0.2 %.
    ``"identified"``
        aleatoric is the mean of the members' predictive variances, epistemic the variance of their means. A single
        network has no spread of means: its epistemic part is None.

    The default is ``"identified"`` for several members, which recovers a known noise, and ``"paper"`` for one.

    >>> from evidentia import Gaussian
    >>> answer = Gaussian(torch.zeros(5, 3), 1.0)
    >>> Prediction(answer), Prediction(answer, members=0)
    (Prediction(shape=(5, 3), members=1), Prediction(shape=(3,), members=5))
    """

    def __init__(self, answer: NormalInverseGamma | Gaussian, members: int | None = None) -> None:
        if not isinstance(answer, NormalInverseGamma | Gaussian):
            raise InputError(f"Prediction takes a NormalInverseGamma or a Gaussian, not {type(answer).__name__}")
        if members is not None and (isinstance(members, bool) or not isinstance(members, int)):
            raise InputTypeError(f"members is the dimension of the networks, a whole number or None, not {members!r}")
        shape, several = tuple(answer.batch_shape), 0 if members is None else 1
        if len(shape) - several not in (1, 2) or (members is not None and not -len(shape) <= members < len(shape)):
            raise InputError(
                f"Prediction takes answers of shape (rows,) or (rows, targets), with one more dimension for several "
                f"networks if members= says which; got {shape} and members={members}"
            )
        with torch.no_grad():
            wide = torch.utils._pytree.tree_map(lambda p: p.detach().cpu().double(), answer)
            self.members = torch.utils._pytree.tree_map(
                lambda p: p.unsqueeze(0) if members is None else p.movedim(members, 0), wide
            )
        self.distribution = Mixture(self.members.predictive(), dim=0, validate_args=False)
        self.index: Any = None  # of the rows and names of the targets, where the caller knows them
        self.names: Sequence[str] | None = None

    def __len__(self) -> int:
        return int(self.distribution.batch_shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """(N,) or (N, T)."""
        return tuple(self.distribution.batch_shape)

    # Moments ----------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        return _numpy(self.distribution.mean)

    @property
    def variance(self) -> Array:
        return _numpy(self.distribution.variance)

    @property
    def std(self) -> Array:
        """Of the predictive distribution: both uncertainties together."""
        return np.sqrt(self.variance)

    @property
    def aleatoric_std(self) -> Array | None:
        """By the default decomposition."""
        return _root(self.decompose().aleatoric)

    @property
    def epistemic_std(self) -> Array | None:
        """By the default decomposition."""
        return _root(self.decompose().epistemic)

    @property
    def default_decomposition(self) -> str:
        """The reading that is used unless another is asked for."""
        return "identified" if self.distribution.members > 1 else "paper"

    def decompose(self, reading: str | None = None) -> Decomposition:
        """Aleatoric and epistemic variance by one of the two readings."""
        reading = reading or self.default_decomposition
        if reading not in ("paper", "identified"):
            raise InputError(f"unknown decomposition {reading!r}; known are paper, identified")
        several = self.distribution.members > 1
        between = _numpy(self.distribution.between_variance) if several else None
        if reading == "identified" or isinstance(self.members, Gaussian):
            return Decomposition(_numpy(self.distribution.within_variance), between)
        aleatoric = _numpy(self.members.aleatoric_variance.mean(0))
        epistemic = _numpy(self.members.epistemic_variance.mean(0))
        return Decomposition(aleatoric, epistemic if between is None else epistemic + between)

    # Densities, tails, scores -----------------------------------------------------------------------------------------

    def log_prob(self, y: ArrayLike) -> Array:
        return _numpy(self.distribution.log_prob(self._target(y)))

    def density(self, y: ArrayLike) -> Array:
        return np.exp(self.log_prob(y))

    def cdf(self, y: ArrayLike) -> Array:
        """P(Y ≤ y)."""
        return _numpy(self.distribution.cdf(self._target(y)))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row."""
        return _numpy(self.distribution.crps(self._target(y)))

    def entropy(self) -> Array:
        """Of the predictive distribution, in nats."""
        return _numpy(self.distribution.entropy())

    def quantile(self, q: float | Sequence[float]) -> Array:
        """One quantile, of the shape of the prediction, or several, along a last dimension."""
        levels = real_numbers("q", q)
        if levels.ndim > 1 or not levels.size or not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"quantiles are a number between 0 and 1, or a list of them, got {q}")
        if levels.ndim == 0:
            return _numpy(self.distribution.icdf(self._full(float(levels))))
        return np.stack([self.quantile(float(level)) for level in levels], axis=-1)

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds a new y with this probability: lower and upper end in the last dimension."""
        if np.ndim(coverage) or isinstance(coverage, str) or not 0 < coverage < 1:
            raise InputError(f"coverage must lie between 0 and 1, got {coverage}")
        tail = self._full(0.5 * (1 - coverage))
        return np.stack([_numpy(self.distribution.icdf(tail)), _numpy(self.distribution.isf(tail))], axis=-1)

    def _full(self, value: float) -> Tensor:
        return torch.full(self.shape, value, dtype=torch.float64, device="cpu")

    def _target(self, y: ArrayLike) -> Tensor:
        values = torch.from_numpy(real_numbers("y", y))
        if tuple(values.shape) != self.shape:
            raise InputError(f"y has shape {tuple(values.shape)} but the prediction {self.shape}; they must be equal")
        missing = values.isnan()
        if bool(missing.any()):
            row = int(missing.nonzero()[0, 0])
            raise InputError(f"y has {int(missing.sum())} missing values (first in row {row}); leave those rows out")
        return values

    # Tables -----------------------------------------------------------------------------------------------------------

    def to_frame(self, coverage: float = 0.9, index: Any = None, names: Sequence[str] | None = None) -> "pd.DataFrame":
        """A data frame with mean, std, both parts and an interval; the columns of several targets are prefixed."""
        import pandas as pd

        index, names = self.index if index is None else index, names or self.names
        parts = self.decompose()
        ends = self.interval(coverage)
        columns = {
            "mean": self.mean,
            "std": self.std,
            "aleatoric_std": _root(parts.aleatoric),
            "epistemic_std": _root(parts.epistemic),
            f"lower_{coverage:g}": ends[..., 0],
            f"upper_{coverage:g}": ends[..., 1],
        }
        present = {k: v for k, v in columns.items() if v is not None}
        if len(self.shape) == 1:
            return pd.DataFrame(present, index=index)
        names = names or [f"y{t}" for t in range(self.shape[1])]
        if len(names) != self.shape[1] or len(set(names)) != len(names):
            raise InputError(f"{len(names)} names for {self.shape[1]} targets, each of which needs one of its own")
        wide = {f"{name}_{k}": v[:, t] for t, name in enumerate(names) for k, v in present.items()}
        return pd.DataFrame(wide, index=index)

    def __repr__(self) -> str:
        return f"Prediction(shape={self.shape}, members={self.distribution.members})"


def real_numbers(name: str, values: Any) -> Array:
    """Return values as a new float64 array with NaN where they are masked or missing; raise for dates, text and others.

    A new one, because what pandas hands out cannot be written to, which torch warns about.
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
        result: Array = array.astype(float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must be real numbers ({error})") from error
    if hidden is not None:
        result[hidden] = np.nan
    return result


def _numpy(x: Tensor) -> Array:
    return x.detach().numpy()


def _root(x: Array | None) -> Array | None:
    return None if x is None else np.sqrt(x)
