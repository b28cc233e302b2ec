r"""Intervals with a guarantee: conformal prediction, applied as a scale on what a model predicts.

A row's *score* at a coverage c is the smallest s ≥ 0 for which its target lies in the model's central c-interval,
stretched about its centre by s. With the model's interval [l, u] and its centre m,

.. math:: s(x, y) = \max\Bigl(0,\; \frac{y-m}{u-m},\; \frac{m-y}{m-l}\Bigr).

The centre is the mean of the prediction. Where a skewed mixture has its mean outside the inner half of the interval,
the centre is the nearer end of that half instead, so that l < m < u always holds. With a transform of the target all of
this is about the variable before the transform; y lies in an interval exactly if that variable does.

**Split** (Papadopoulos et al. 2002, Vovk et al. 2005, Lei et al. 2018): n rows are set apart before anything is
learned. The factor q(c) is the ⌈(n+1)c⌉-th smallest of their scores. If the n rows and a new one are exchangeable, the
new row's interval, stretched by q(c), holds its target with probability at least c, and at most c + 1/(n+1) if no two
scores are equal. Then the coverage, which varies with the rows that were set apart, is Beta(k, n+1−k) for k = ⌈(n+1)c⌉.

**CV+** (Barber, Candès, Ramdas and Tibshirani 2021, Theorem 4): every row is scored by a model that learned without the
row's fold. With K folds of n/K rows and α = 1 − c, the interval holds a new target with probability at least
1 − 2α − min(2(1−1/K)/(n/K+1), (1−K/n)/(K+1)) ≥ 1 − 2α − √(2/n), in practice about 1 − α. Their proof does nothing with
scores but compare them, so it holds for those above as for absolute errors (Gupta, Kuchibhotla and Ramdas 2022).

Both are statements on average over rows like those that were calibrated with, and for each target alone: not for a
chosen x, not for all targets of a row together, and not for rows of another kind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsure.data.table import Table
from howsure.distributions import Mixture, Normal, StudentT, Transform, Transformed
from howsure.errors import InputError, InputTypeError
from howsure.prediction import Prediction

__all__ = [
    "CalibrationRows",
    "CrossConformal",
    "Frame",
    "Groups",
    "SplitConformal",
    "cross_ends",
    "deal_folds",
    "fewest_rows",
    "quantile_of_scores",
    "rank_of",
    "scores_of",
    "set_apart",
    "stretch",
]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
SHARE = 0.2  # of the rows that "split" sets apart
FOLDS = 8  # of "cv+"
MOST = 10_000  # rows to calibrate with: their coverage has a deviation of 0.3 %, and more would only cost training rows
COVERAGE = 0.9  # whose factor scales the distribution
LEAST = 1e-6  # smallest factor: a model that is right to the last digit still needs a scale
AT_ONCE = 1 << 22  # ends of intervals that CV+ looks at together


# Ranks ----------------------------------------------------------------------------------------------------------------


def rank_of(coverage: float, rows: int) -> int:
    """Return ⌈(rows+1)·coverage⌉, with the coverage taken as the decimal number that it is written as.

    In floating point (9+1)·0.9 could be above 9.

    >>> rank_of(0.9, 9), rank_of(0.9, 10), rank_of(0.9, 8)
    (9, 10, 9)
    """
    return math.ceil((rows + 1) * _decimal(coverage))


def fewest_rows(coverage: float) -> int:
    """Return how many rows are needed to calibrate intervals of this coverage: ⌈c/(1−c)⌉.

    >>> fewest_rows(0.9), fewest_rows(0.95), fewest_rows(0.5)
    (9, 19, 1)
    """
    c = _decimal(coverage)
    return max(1, math.ceil(c / (1 - c)))


def _decimal(coverage: float) -> Fraction:
    if isinstance(coverage, bool | np.bool_) or not isinstance(coverage, int | float | np.integer | np.floating):
        raise InputTypeError(f"coverage must be a number between 0 and 1, got {coverage!r}")
    if not 0 < coverage < 1:
        raise InputError(f"coverage must lie between 0 and 1, got {coverage}")
    return Fraction(repr(float(coverage)))


def quantile_of_scores(scores: ArrayLike, coverage: float) -> Array:
    """Return the ⌈(n+1)·coverage⌉-th smallest of n scores, for each column: (n,) → (), (n, T) → (T,).

    Raises:
        InputError: if there are so few scores that only an infinite interval has the guarantee.
    """
    values = np.asarray(scores, dtype=float)
    rank = rank_of(coverage, len(values))
    if rank > len(values):
        raise InputError(_too_few(len(values), coverage))
    ordered: Array = np.partition(np.where(np.isnan(values), np.inf, values), rank - 1, axis=0)[rank - 1]
    return ordered


def _too_few(rows: int, coverage: float) -> str:
    most = math.floor(1000 * rows / (rows + 1)) / 1000
    return (
        f"{rows} rows to calibrate with cannot guarantee a coverage of {coverage:g}, which needs "
        f"{fewest_rows(coverage)}: only infinite intervals would have it; ask for at most {most:g}, or fit with more "
        "rows"
    )


# Scores ---------------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """Central intervals of one coverage and their centres, each (rows,) or (rows, targets)."""

    lower: Array
    centre: Array
    upper: Array

    @classmethod
    def of(cls, ends: ArrayLike, mean: ArrayLike) -> "Frame":
        """Return the frame of intervals (…, 2) and means (…); a mean outside the inner half of its interval is moved.

        >>> Frame.of([[0.0, 4.0], [0.0, 4.0]], [2.5, 9.0]).centre
        array([2.5, 3. ])
        """
        both, middle = np.asarray(ends, dtype=float), np.asarray(mean, dtype=float)
        lower, upper = both[..., 0], both[..., 1]
        quarter = 0.25 * (upper - lower)
        return cls(lower, np.clip(middle, lower + quarter, upper - quarter), upper)

    def at(self, key: Any) -> "Frame":
        """Return the frame of some rows."""
        return Frame(*(np.asarray(part)[key] for part in (self.lower, self.centre, self.upper)))


def scores_of(frame: Frame, y: ArrayLike, above: ArrayLike | None = None) -> Array:
    """Return the smallest factors by which intervals must be stretched about their centres to hold y.

    Args:
        frame: intervals and centres.
        y: targets, or what they are before their transform, of the shape of the frame.
        above: what the upper end must reach, if that is another value than y: −∞ for a target of 0 under a transform
            that makes 0 of all small values, because every interval reaches 0 from above.

    Returns:
        Factors ≥ 0; infinite where no factor is large enough, and where a prediction is not a number.
    """
    low = np.asarray(y, dtype=float)
    high = low if above is None else np.asarray(above, dtype=float)
    up = _ratio(high - frame.centre, frame.upper - frame.centre)
    down = _ratio(frame.centre - low, frame.centre - frame.lower)
    worst = np.maximum(np.maximum(up, down), 0.0)
    found: Array = np.where(np.isnan(worst), np.inf, worst)
    return found


def _ratio(distance: Array, width: Array) -> Array:
    """Return distance/width; of an interval without width, ∞ for a positive distance and else 0."""
    flat = width <= 0
    ratio = np.where(flat, 1.0, distance) / np.where(flat, 1.0, width)
    found: Array = np.where(flat, np.where(distance > 0, np.inf, 0.0), ratio)
    return found


def stretch(frame: Frame, factor: ArrayLike) -> Array:
    """Return intervals stretched about their centres, with their ends in a new last dimension."""
    by = np.asarray(factor, dtype=float)
    ends = [frame.centre + _product(by, end - frame.centre) for end in (frame.lower, frame.upper)]
    return np.stack(ends, axis=-1)


def _product(factor: Array, width: Array) -> Array:
    """Return factor·width, and 0 where an infinite factor meets no width."""
    with np.errstate(invalid="ignore"):
        product = factor * width
    found: Array = np.where(width == 0, 0.0, product)
    return found


# CV+ ------------------------------------------------------------------------------------------------------------------


def cross_ends(lower: Sequence[Any], upper: Sequence[Any], coverage: float) -> Array:
    """Return CV+ intervals of several rows, from what the model of each fold makes of the scores of the fold.

    The lower end is the ⌊α(n+1)⌋-th smallest of the n values m_k(x) − S_i (m_k(x) − l_k(x)), the upper end the
    ⌈(1−α)(n+1)⌉-th smallest of m_k(x) + S_i (u_k(x) − m_k(x)), where S_i is the score of row i and k its fold.

    Args:
        lower: for each fold, the lower ends of every row for each score of the fold, (scores, rows).
        upper: the same for the upper ends.
        coverage: 1 − α.

    Returns:
        Intervals (rows, 2).
    """
    n = sum(len(part) for part in lower)
    rank = rank_of(coverage, n)
    if rank > n:
        raise InputError(_too_few(n, coverage))
    # q⁻ of the values is −q⁺ of their negatives, so that both ends have the same rank
    down = -np.partition(-np.concatenate([np.asarray(part) for part in lower]), rank - 1, axis=0)[rank - 1]
    up = np.partition(np.concatenate([np.asarray(part) for part in upper]), rank - 1, axis=0)[rank - 1]
    return np.stack([down, up], axis=-1)


# Rows -----------------------------------------------------------------------------------------------------------------


def set_apart(rows: ArrayLike, seed: int, share: float = SHARE, most: int = MOST) -> tuple[Rows, Rows]:
    """Return the rows to learn from, and those to calibrate with, drawn at random; each in order.

    Args:
        rows: of the table.
        seed: of the draw.
        share: of the rows to calibrate with; at least what a coverage of 0.9 needs.
        most: of them.
    """
    table = np.asarray(rows, dtype=np.int64)
    least = fewest_rows(COVERAGE)
    if len(table) < 2 * least:
        raise InputError(
            f'conformal="split" needs at least {2 * least} rows, {least} to calibrate with and as many to learn from; '
            f"there are {len(table)}"
        )
    count = min(max(least, math.ceil(share * len(table))), most)
    shuffled = np.random.default_rng([seed, 2]).permutation(table)
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])


def deal_folds(groups: ArrayLike, seed: int, folds: int = FOLDS, most: int = MOST) -> list[Rows]:
    """Return the positions of the rows of each fold: equally many in all, and equally many of each group.

    Theorem 4 is about folds of one size. Rows that are left over are in no fold, and every model learns from them.

    Args:
        groups: the group of each row, a whole number, negative for rows of no group.
        seed: of the draw.
        folds: number of folds.
        most: rows in all folds together.
    """
    codes = np.asarray(groups, dtype=np.int64)
    least = max(2 * folds, fewest_rows(COVERAGE))
    if len(codes) < least:
        raise InputError(f'conformal="cv+" with {folds} folds needs at least {least} rows; there are {len(codes)}')
    shuffled = np.random.default_rng([seed, 3]).permutation(len(codes))[:most]
    # groups with fewer rows than folds are dealt together with the rows of no group
    names, inverse, counts = np.unique(codes[shuffled], return_inverse=True, return_counts=True)
    pooled = (counts < folds) | (names < 0)
    which = np.where(pooled, -1, names)[inverse]
    parts: list[list[Rows]] = [[] for _ in range(folds)]
    for name in np.unique(which):
        own = shuffled[which == name]
        each = len(own) // folds
        for k in range(folds):
            parts[k].append(own[k * each : (k + 1) * each])
    return [np.sort(np.concatenate(part)) for part in parts]


# Groups ---------------------------------------------------------------------------------------------------------------

Key = tuple[str | float | None, ...]


@dataclass(frozen=True)
class Groups:
    """Groups of rows with equal values in some columns, each calibrated on its own.

    Args:
        columns: names of the columns.
        keys: the values of each group, in the order of the columns: text, numbers, or None where they are missing.
    """

    columns: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    _codes: dict[Key, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_codes", {key: k for k, key in enumerate(self.keys)})

    @classmethod
    def learn(cls, table: Table, columns: Any, least: int | None = None) -> "Groups":
        """Return the groups of a table that have at least so many rows, by default what a coverage of 0.9 needs.

        Args:
            table: the rows to calibrate with.
            columns: the name or the position of a column, or a list of these.
            least: rows of a group. Rows of a smaller one are in no group.
        """
        names = column_names(table, columns)
        least = fewest_rows(COVERAGE) if least is None else least
        counts: dict[Key, int] = {}
        for key in _keys(table, names):
            counts[key] = counts.get(key, 0) + 1
        kept = sorted((key for key, count in counts.items() if count >= least), key=repr)
        return cls(names, tuple(kept))

    def codes(self, table: Table) -> Rows:
        """Return the group of each row of a table, −1 for one that is unknown."""
        find = self._codes.get
        return np.array([find(key, -1) for key in _keys(table, self.columns)], dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the groups as plain values."""
        return {"columns": list(self.columns), "keys": [list(key) for key in self.keys]}

    @classmethod
    def from_dict(cls, saved: Any) -> "Groups":
        """Return the groups that :meth:`to_dict` described; raise if they are not such values."""
        if not isinstance(saved, dict) or set(saved) != {"columns", "keys"}:
            raise InputError("the groups of a conformal model are columns and keys")
        columns, keys = saved["columns"], saved["keys"]
        if not isinstance(columns, list) or not columns or not all(isinstance(c, str) for c in columns):
            raise InputError(f"the columns of groups are names, not {columns!r}")
        if not isinstance(keys, list) or not all(_is_key(key, len(columns)) for key in keys):
            raise InputError(f"each group has a text, a finite number or None for each of {len(columns)} columns")
        found = tuple(tuple(float(v) if type(v) is int else v for v in key) for key in keys)
        if len(set(found)) < len(found):
            raise InputError("two groups of a conformal model are the same")
        return cls(tuple(columns), found)


def column_names(table: Table, columns: Any) -> tuple[str, ...]:
    """Return the names of columns that are given by name or position, one or several."""
    several = list(columns) if isinstance(columns, list | tuple | np.ndarray) else [columns]
    names = []
    for each in several:
        if isinstance(each, str) and each in table.names:
            names.append(each)
        elif isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < len(table.names):
            names.append(table.names[int(each)])
        else:
            known = ", ".join(map(repr, table.names[:8])) + (", …" if len(table.names) > 8 else "")
            raise InputError(
                f"conformal_groups names columns of X or gives their positions, 0 to {len(table.names) - 1}; there is "
                f"no column {each!r} among {known}"
            )
    if not names or len(set(names)) < len(names):
        raise InputError(f"conformal_groups is a column or several different ones, got {columns!r}")
    return tuple(names)


def _keys(table: Table, names: Sequence[str]) -> list[Key]:
    """Return the values of these columns for each row."""
    by_name = {column.name: column.values for column in table.columns}
    return list(zip(*(map(_plain, by_name[name].tolist()) for name in names), strict=True))


def _plain(value: Any) -> str | float | None:
    """Return a value as text or as a number, None if it is missing; −0 is 0."""
    if value is None or value != value:  # NaN is the only number that is not equal to itself
        return None
    return float(value) + 0.0 if isinstance(value, bool | int | float) else str(value)


def _is_key(key: Any, columns: int) -> bool:
    def is_value(value: Any) -> bool:
        return value is None or type(value) is str or (type(value) in (int, float) and math.isfinite(value))

    return isinstance(key, list) and len(key) == columns and all(map(is_value, key))


# Rows that were calibrated with ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CalibrationRows:
    """Rows to calibrate with: what a model that has not seen them predicts for them, and their targets.

    The predictions are kept, and not their scores: scores depend on the coverage, which is not known before an interval
    is asked for, and only with the predictions are those of every coverage exact.

    Args:
        prediction: (rows,) or (rows, targets).
        y: targets, of its shape, in its units.
        groups: the group of each row, −1 for none. None: there are no groups.
    """

    prediction: Prediction
    y: Array
    groups: Any = None  # (rows,) of int64 once it is there
    _scores: dict[float, Array] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.prediction.shape) not in (1, 2):
            raise InputError(
                "rows to calibrate with are those of a table, (rows,) or (rows, targets); the prediction has the shape "
                f"{self.prediction.shape}: pixels of an image are not exchangeable"
            )
        y = self.prediction._target(self.y).double().cpu().numpy()
        if not np.isfinite(y).all():
            raise InputError("targets to calibrate with must be finite")
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "groups", _codes(self.groups, len(y)))

    def scores(self, coverage: float) -> Array:
        """Return the scores of the rows at a coverage, (rows, targets); they are computed once."""
        if coverage not in self._scores:
            found = scores_of(frame_of(self.prediction, coverage), *before_transform(self.prediction, self.y))
            self._scores[coverage] = found.reshape(len(self.y), -1)
        return self._scores[coverage]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_scores": {}}

    @property
    def targets(self) -> int:
        """Number of targets."""
        return 1 if self.y.ndim == 1 else self.y.shape[1]

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Return everything as tensors whose names begin with this prefix; the transform is not among them."""
        whole = self.prediction.distribution
        mixture = whole.base if isinstance(whole, Transformed) else whole
        each = mixture.components
        tensors = {"loc": each.loc, "scale": each.scale}
        if isinstance(each, StudentT):
            tensors["df"] = each.df
        if mixture.weights is not None:  # a member without weight may have said anything, and is left out
            counts = mixture.weights > 0
            tensors = {name: t[counts] for name, t in tensors.items()} | {"weights": mixture.weights[counts]}
        tensors = {name: t.detach().double().cpu().contiguous() for name, t in tensors.items()}
        tensors |= {"y": torch.from_numpy(np.array(self.y)), "groups": torch.from_numpy(np.array(self.groups))}
        return {prefix + name: t for name, t in tensors.items()}

    @classmethod
    def from_state(
        cls, tensors: dict[str, Tensor], prefix: str, transform: Transform | None, targets: int | None, groups: int
    ) -> "CalibrationRows":
        """Return the rows that :meth:`state` described; raise if their parts do not fit together.

        Args:
            tensors: by name.
            prefix: of the names.
            transform: of the target.
            targets: their number, or None for targets of shape (rows,).
            groups: number of groups.
        """
        own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        if not {"loc", "scale", "y", "groups"} <= set(own) <= {"loc", "scale", "y", "groups", "df", "weights"}:
            raise InputError(f"the rows to calibrate with have the tensors {sorted(own)}")
        y, codes = own.pop("y"), own.pop("groups")
        if not y.ndim:
            raise InputError(f"{prefix}y of the rows to calibrate with has no rows")
        rows = (len(y),) if targets is None else (len(y), targets)
        members = len(own["loc"]) if own["loc"].ndim else 0
        for name, tensor in (("y", y), *own.items()):
            shape = rows if name == "y" else (members,) if name == "weights" else (members, *rows)
            good = tensor.dtype is torch.float64 and tuple(tensor.shape) == shape and bool(tensor.isfinite().all())
            if not good or (name in ("df", "scale") and not bool((tensor > 0).all())):
                raise InputError(f"{prefix}{name} of the rows to calibrate with cannot be what was saved")
        if (
            codes.dtype is not torch.int64
            or codes.shape != y.shape[:1]
            or bool(((codes < -1) | (codes >= groups)).any())
        ):
            raise InputError(f"{prefix}groups of the rows to calibrate with names groups that are not there")
        if not members or not len(y):
            raise InputError("there are no rows to calibrate with")
        each = StudentT(own["df"], own["loc"], own["scale"]) if "df" in own else Normal(own["loc"], own["scale"])
        mixture = Mixture(each, dim=0, weights=own.get("weights"), validate_args=True)
        return cls(Prediction(mixture, transform=transform), y.numpy().copy(), codes.numpy().copy())


def frame_of(prediction: Prediction, coverage: float) -> Frame:
    """Return a prediction's central intervals and their centres, of the variable before the transform."""
    before = prediction._without_transform()
    return Frame.of(before._ends([coverage])[..., 0, :], before.mean)


def before_transform(prediction: Prediction, y: Array) -> tuple[Array, Array]:
    """Return what an interval's lower end and its upper end must reach to hold y, before the transform."""
    z = prediction._before_transform(y)
    return (z, z) if prediction.transform is None else (z, np.where(y == 0, -np.inf, z))


def _forward(transform: Transform | None, z: Array) -> Array:
    """Return targets for values before the transform."""
    if transform is None:
        return z
    y: Array = transform.forward(torch.from_numpy(np.array(z))).numpy()
    return y


def _forward_ends(transform: Transform | None, ends: Array) -> Array:
    return np.stack([_forward(transform, ends[..., k]) for k in (0, 1)], axis=-1)


# Predictions with a guarantee -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitConformal:
    """Factors by which intervals are stretched, from rows that were set apart before anything was learned.

    Args:
        rows: the rows that were set apart.
        groups: which of them are calibrated on their own; None: all have one factor.
    """

    rows: CalibrationRows
    groups: Groups | None = None

    def factors(self, coverage: float) -> Array:
        """Return the factor of each group and target; in the last row that of all rows: (groups + 1, targets).

        A group with too few rows for this coverage has the factor of all rows.
        """
        scores = self.rows.scores(coverage)
        whole = quantile_of_scores(scores, coverage)
        known = 0 if self.groups is None else len(self.groups.keys)
        table = np.tile(whole, (known + 1, 1))
        for code in range(known):
            own = scores[self.rows.groups == code]
            if len(own) >= fewest_rows(coverage):
                table[code] = quantile_of_scores(own, coverage)
        return np.maximum(table, LEAST)

    def apply(self, prediction: Prediction, groups: Rows | None = None) -> Prediction:
        """Return a prediction with a guarantee: scaled by the factors of 0.9, with intervals by those of any coverage.

        Args:
            prediction: of new rows, by the model that predicted the calibration rows.
            groups: the group of each row, −1 for none. None: no row is in a group.
        """
        codes, targets = _labels(prediction, groups, self.rows.targets)
        scale = _finite(self.factors(COVERAGE)[codes, targets])
        scaled = prediction.scaled(scale)
        scaled.guarantee = SplitGuarantee(self, codes, targets, scale)
        return scaled

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors by name, and plain values."""
        return self.rows.state("conformal.0."), _settings(1, self.groups)

    @classmethod
    def from_state(
        cls, tensors: dict[str, Tensor], saved: Any, transform: Transform | None, targets: int | None
    ) -> "SplitConformal":
        """Return what :meth:`state` described; raise if its parts do not fit together."""
        groups = _groups(saved, 1)
        known = 0 if groups is None else len(groups.keys)
        return cls(CalibrationRows.from_state(tensors, "conformal.0.", transform, targets, known), groups)


@dataclass(frozen=True)
class CrossConformal:
    """Intervals by CV+, from models that each learned without a fold of the rows.

    Args:
        rows: the rows of each fold, as predicted by the model that learned without them.
        groups: which rows are calibrated on their own; None: all together.
    """

    rows: tuple[CalibrationRows, ...]
    groups: Groups | None = None

    def intervals(self, folds: Sequence[Prediction], codes: Rows, targets: Rows, coverage: float) -> Array:
        """Return CV+ intervals in the units of y, (*shape, 2).

        Args:
            folds: what the model of each fold predicts for the new rows.
            codes: the group of each row and target, −1 for none, of the shape of the predictions.
            targets: the number of each target, of the same shape.
            coverage: 1 − α.
        """
        shape = codes.shape
        frames = [Frame(*(part.reshape(-1) for part in frame_of(p, coverage))) for p in folds]
        transforms = [_flat_transform(p) for p in folds]
        codes, targets = codes.reshape(-1), targets.reshape(-1)
        ends = np.empty((codes.size, 2))
        for code, target in np.unique(np.stack([codes, targets], axis=1), axis=0):
            scores = self._scores(int(code), int(target), coverage)
            (chosen,) = ((codes == code) & (targets == target)).nonzero()
            step = max(1, AT_ONCE // sum(map(len, scores)))
            for few in (chosen[k : k + step] for k in range(0, len(chosen), step)):
                each = [
                    _ends_of_scores(
                        own, frame.at(few), None if t is None else t.at(codes.shape, (torch.from_numpy(few),))
                    )
                    for own, frame, t in zip(scores, frames, transforms, strict=True)
                ]
                ends[few] = cross_ends([low for low, _ in each], [high for _, high in each], coverage)
        return ends.reshape(*shape, 2)

    def _scores(self, code: int, target: int, coverage: float) -> list[Array]:
        """Return the scores of each fold that count for a group: its own, or all if it has too few."""
        whole = [part.scores(coverage)[:, target] for part in self.rows]
        own = [scores[part.groups == code] for scores, part in zip(whole, self.rows, strict=True)]
        return own if code >= 0 and sum(map(len, own)) >= fewest_rows(coverage) else whole

    def apply(self, prediction: Prediction, folds: Sequence[Prediction], groups: Rows | None = None) -> Prediction:
        """Return a prediction with a guarantee, scaled such that its intervals contain those of CV+.

        Args:
            prediction: of new rows, by any model, such as one that learned from all rows.
            folds: what the model of each fold predicts for them.
            groups: the group of each row, −1 for none. None: no row is in a group.
        """
        if len(folds) != len(self.rows) or any(p.shape != prediction.shape for p in folds):
            raise InputError(f"CV+ needs a prediction of shape {prediction.shape} from each of {len(self.rows)} models")
        codes, targets = _labels(prediction, groups, self.rows[0].targets)
        ends = self.intervals(folds, codes, targets, COVERAGE)
        scale = _finite(_factor_to_contain(prediction, frame_of(prediction, COVERAGE), ends))
        scaled = prediction.scaled(scale)
        scaled.guarantee = CrossGuarantee(self, codes, targets, scale, tuple(folds))
        return scaled

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors by name, and plain values."""
        tensors: dict[str, Tensor] = {}
        for k, part in enumerate(self.rows):
            tensors |= part.state(f"conformal.{k}.")
        return tensors, _settings(len(self.rows), self.groups)

    @classmethod
    def from_state(
        cls, tensors: dict[str, Tensor], saved: Any, transforms: Sequence[Transform | None], targets: int | None
    ) -> "CrossConformal":
        """Return what :meth:`state` described; raise if its parts do not fit together.

        Args:
            tensors: by name.
            saved: plain values.
            transforms: of the target, as the model of each fold knows it.
            targets: their number, or None for targets of shape (rows,).
        """
        groups = _groups(saved, len(transforms))
        known = 0 if groups is None else len(groups.keys)
        parts = (
            CalibrationRows.from_state(tensors, f"conformal.{k}.", transform, targets, known)
            for k, transform in enumerate(transforms)
        )
        return cls(tuple(parts), groups)


def _settings(parts: int, groups: Groups | None) -> dict[str, Any]:
    return {"parts": parts, "groups": None if groups is None else groups.to_dict()}


def _groups(saved: Any, parts: int) -> Groups | None:
    """Return the groups of saved settings, after checking that they are those of so many parts."""
    if not isinstance(saved, dict) or set(saved) != {"parts", "groups"} or saved["parts"] != parts:
        raise InputError(f"the settings of conformal intervals are not those of {parts} models")
    return None if saved["groups"] is None else Groups.from_dict(saved["groups"])


def _codes(groups: Any, rows: int) -> Rows:
    """Return the group of each of so many rows, −1 for all without groups."""
    codes = np.full(rows, -1) if groups is None else np.asarray(groups)
    if codes.shape != (rows,) or codes.dtype.kind not in "iu":
        raise InputError(f"groups are {rows} whole numbers, one for each row; got {codes.dtype} {codes.shape}")
    return codes.astype(np.int64)


def _labels(prediction: Prediction, groups: Rows | None, expected: int) -> tuple[Rows, Rows]:
    """Return the group and the number of the target of each value of a prediction with so many targets."""
    if len(prediction.shape) not in (1, 2) or (prediction.shape[1:] or (1,)) != (expected,):
        raise InputError(f"the calibration is of {expected} targets, and the prediction has shape {prediction.shape}")
    rows, *targets = prediction.shape
    codes = _codes(groups, rows)
    if not targets:
        return codes, np.zeros_like(codes)
    return np.repeat(codes[:, None], targets[0], axis=1), np.tile(np.arange(targets[0]), (rows, 1))


def _finite(factors: Array) -> Array:
    """Return factors, or raise if one is infinite, which the scale of a distribution cannot be."""
    if not np.isfinite(factors).all():
        raise InputError(
            "no scale of the predictions holds 90 % of the rows that were set apart to calibrate with: the model takes "
            "their targets for impossible, as zeros are under a transform that has seen none; use another "
            "target_transform, or leave conformal out"
        )
    return factors


def _flat_transform(prediction: Prediction) -> Transform | None:
    """Return the transform with its numbers in one dimension, one for each value of the prediction."""
    if prediction.transform is None or prediction.transform.scale.ndim == 0:
        return prediction.transform
    numbers = (prediction.transform.scale, prediction.transform.shift)
    return Transform(prediction.transform.kind, *(t.expand(prediction.shape).reshape(-1) for t in numbers))


def _ends_of_scores(scores: Array, frame: Frame, transform: Transform | None) -> tuple[Array, Array]:
    """Return the ends of intervals stretched by each score, in the units of y: two arrays (scores, rows)."""
    ends = _forward_ends(transform, stretch(frame, scores[:, None]))
    return ends[..., 0], ends[..., 1]


def _factor_to_contain(prediction: Prediction, frame: Frame, ends: Array) -> Array:
    """Return the factor by which intervals must be stretched to contain others, given in the units of y.

    An end that the transform of the target cannot reach, such as one below 0, asks for nothing.
    """
    low, high = (before_transform(prediction, ends[..., k])[k] for k in (0, 1))
    if prediction.transform is not None:
        low = np.where(np.isneginf(low), frame.centre, low)
    return np.maximum(scores_of(frame, low, high), LEAST)


@dataclass(frozen=True)
class SplitGuarantee:
    """Where the intervals of a prediction come from, after split conformal calibration.

    Args:
        conformal: the calibration.
        groups: the group of each value of the prediction, −1 for none.
        targets: the number of the target of each value.
        scale: what the prediction was scaled by.
    """

    conformal: Any
    groups: Rows
    targets: Rows
    scale: Array

    def ends(self, prediction: Prediction, coverages: Sequence[float]) -> Array:
        """Return the ends of several intervals of the prediction that this belongs to, (*shape, coverages, 2)."""
        found = [self._ends(prediction, coverage) for coverage in coverages]
        return np.stack(found, axis=-2)

    def _ends(self, prediction: Prediction, coverage: float) -> Array:
        factor = self.conformal.factors(coverage)[self.groups, self.targets]
        return _forward_ends(prediction.transform, stretch(self._frame(prediction, coverage), factor))

    def _frame(self, prediction: Prediction, coverage: float) -> Frame:
        """Return the intervals that the prediction had before it was scaled."""
        before = prediction._without_transform()
        mean = np.asarray(before.mean, dtype=float)
        ends = np.asarray(before._ends([coverage])[..., 0, :], dtype=float)
        return Frame.of(mean[..., None] + (ends - mean[..., None]) / np.asarray(self.scale)[..., None], mean)

    def at(self, keys: tuple[Any, ...]) -> "SplitGuarantee":
        """Return the guarantee of a part of the prediction."""
        return replace(self, groups=self.groups[keys], targets=self.targets[keys], scale=self.scale[keys])

    def joined(self, others: Sequence[Any]) -> "SplitGuarantee":
        """Return the guarantee of this prediction and others of the same model, row after row."""
        if any(type(each) is not type(self) or each.conformal is not self.conformal for each in others):
            raise InputError("the intervals of these predictions are guaranteed by different models; do not join them")
        every = (self, *others)
        parts = {name: np.concatenate([getattr(g, name) for g in every]) for name in ("groups", "targets", "scale")}
        return replace(self, **parts)


@dataclass(frozen=True)
class CrossGuarantee(SplitGuarantee):
    """Where the intervals of a prediction come from, with CV+.

    Args:
        conformal, groups, targets, scale: as for :class:`SplitGuarantee`.
        folds: what the model of each fold predicts for the same rows.
    """

    folds: tuple[Prediction, ...]

    def _ends(self, prediction: Prediction, coverage: float) -> Array:
        inner = self.conformal.intervals(self.folds, self.groups, self.targets, coverage)
        frame = self._frame(prediction, coverage)
        ends = _forward_ends(prediction.transform, stretch(frame, _factor_to_contain(prediction, frame, inner)))
        # rounding, and ends that a transform cannot reach, must not cut anything off
        return np.stack([np.minimum(ends[..., 0], inner[..., 0]), np.maximum(ends[..., 1], inner[..., 1])], axis=-1)

    def at(self, keys: tuple[Any, ...]) -> "CrossGuarantee":
        """Return the guarantee of a part of the prediction."""
        part = super().at(keys)
        assert isinstance(part, CrossGuarantee)
        return replace(part, folds=tuple(p[keys] for p in self.folds))

    def joined(self, others: Sequence[Any]) -> "CrossGuarantee":
        """Return the guarantee of this prediction and others of the same model, row after row."""
        whole = super().joined(others)
        assert isinstance(whole, CrossGuarantee)
        every = zip(*(g.folds for g in (self, *others)), strict=True)
        return replace(whole, folds=tuple(Prediction.cat(parts) for parts in every))
