"""The metrics batch by batch, with the contract of torchmetrics: ``update(answer, y, mask=None)``, ``compute()``.

Each class is a ``torchmetrics.Metric`` and gives the number of the function of `howsure.metrics` with its name on all
targets it has seen: in all batches, and in all processes of ``torch.distributed``. The term of a target is the same
function there and here (`terms.py`). Sums are kept in float64 on the device of the metric. It works in
``MetricCollection`` and with Lightning's ``self.log``.

>>> import torch, howsure as hs
>>> from howsure.metrics import streaming
>>> metric = streaming.NLL()
>>> for y in torch.tensor([0.0, 1.0]), torch.tensor([2.0, torch.nan]):
...     metric.update(hs.Normal(torch.zeros(2), 1.0), y, mask=~y.isnan())
>>> round(metric.compute().item(), 4), metric.count.item()
(1.7523, 3)
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from howsure.errors import InputError, InputTypeError, install_hint
from howsure.metrics.calibration import PROBABILITIES
from howsure.metrics.ranking import area_above_oracle, area_below_random, check_ranking, retention, uncertainties
from howsure.metrics.terms import (
    Mask,
    Predictive,
    Targets,
    at_targets,
    calibration_sums,
    counted,
    coverage_sums,
    errors,
    key_of,
    levels_of,
    scored,
    width_and_distance,
)
from howsure.prediction import checked_coverages

try:
    import torchmetrics
    from torchmetrics import Metric, MetricCollection
    from torchmetrics.utilities.plot import plot_curve
except ImportError as error:
    raise ImportError(
        f"howsure.metrics.streaming needs torchmetrics; install it with {install_hint('torchmetrics')}"
    ) from error

__all__ = [
    "AURG",
    "AUSE",
    "CRPS",
    "MAE",
    "NLL",
    "RMSE",
    "BootStrapper",
    "CalibrationCurve",
    "CalibrationError",
    "Coverage",
    "CoverageCurve",
    "IntervalScore",
    "IntervalWidth",
    "PITHistogram",
    "RetentionCurve",
    "StreamingMetric",
    "summary",
]


def summary(coverage: float = 0.9, **options: Any) -> MetricCollection:
    """Return a collection of the metrics of `howsure.metrics.summary`, by the same names.

    Args:
        coverage: the probability that the central intervals state.
        options: of ``MetricCollection``, such as ``prefix="val_"``.

    >>> import torch, howsure as hs
    >>> metrics = summary()
    >>> metrics.update(hs.Normal(torch.zeros(4), 1.0), torch.tensor([-3.0, -1.0, 0.0, 1.0]))
    >>> {name: round(value.item(), 3) for name, value in metrics.compute().items()}  # doctest: +NORMALIZE_WHITESPACE
    {'calibration_error': 0.159, 'coverage': 0.75, 'crps': 0.969, 'interval_width': 3.29, 'mae': 1.25, 'nll': 2.294,
    'rmse': 1.658}
    """
    metrics = {
        "rmse": RMSE(),
        "mae": MAE(),
        "nll": NLL(),
        "crps": CRPS(),
        "coverage": Coverage(coverage),
        "interval_width": IntervalWidth(coverage),
        "calibration_error": CalibrationError(),
    }
    return MetricCollection(metrics, **options)


class StreamingMetric(Metric):
    """Base of the metrics here: sums over targets, in float64, that add up over batches and processes.

    ``compute()`` of no targets at all is NaN, so that a batch without known targets stops no training; one process
    without any is fine. Shapes, missing targets and masks are checked as in `howsure.metrics`.

    The dtype of the sums never changes: neither ``.to(torch.bfloat16)`` of a module that holds the metric nor
    ``set_dtype`` touches it. On a device without float64 (mps), sums stay on the CPU.

    Args:
        options: of ``torchmetrics.Metric``, such as ``dist_sync_on_step``, ``process_group`` or ``sync_on_compute``.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    count: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # A state has the name of the term that it sums. MetricCollection takes metrics whose states have equal names
        # and, after the first batch, equal values for one metric. A batch without targets must not make them equal.
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, answer: Predictive, y: Targets, mask: Mask = None) -> None:
        """Add the targets of one batch.

        Args:
            answer: the output of the network, or a :class:`~howsure.Prediction`.
            y: targets, of the same shape.
            mask: True where a target counts; without it a missing target is an error.
        """
        raise NotImplementedError

    def _add_sum(self, name: str, size: tuple[int, ...] = ()) -> None:
        """Add a state that is a sum over targets."""
        self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def _increase(self, count: int, **sums: Tensor) -> None:
        """Add the number of targets and the sums of a batch to the states."""
        self.count = self.count + count
        for name, value in sums.items():
            total = getattr(self, name)
            setattr(self, name, total + value.detach().to(total.device))

    def _mean(self, name: str) -> Tensor:
        """Return the mean over all targets of the term that the state sums. NaN without targets."""
        mean: Tensor = getattr(self, name) / self.count
        return mean

    def _result(self, value: Tensor) -> Tensor:
        """Return a result on the metric's device, in float64 where that has it."""
        return value if value.device == self.device else value.float().to(self.device)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Return a figure and axes with a value, or with a curve.

        Args:
            val: a result of ``compute`` or ``forward``. None: the current result.
            ax: matplotlib axes; None makes a figure.
        """
        value, labels = self.compute() if val is None else val, ("share kept", "error")
        if isinstance(value, Tensor) and value.ndim and hasattr(self, "levels"):
            value, labels = (torch.from_numpy(self.levels), value), ("probability", "share of targets")
        if isinstance(value, tuple):
            return plot_curve(value, ax=ax, label_names=labels, name=type(self).__name__)
        return self._plot(value, ax)

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:  # noqa: ARG002
        """Return the metric as it is: sums stay in float64, counts whole numbers."""
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Move the states to another device, in their own dtype."""

        def move(state: Tensor) -> Tensor:
            try:
                moved = fn(state)
                return moved if moved.dtype == state.dtype else state.to(moved.device)
            except TypeError:  # of a device without float64
                return state

        moved: Self = super()._apply(move, exclude_state)
        return moved


class BootStrapper(torchmetrics.wrappers.BootStrapper):
    """Bootstrapped values of a metric: torchmetrics' own ``BootStrapper``, which draws rows of predictions too.

    Args:
        base_metric, num_bootstraps, mean, std, quantile, raw, sampling_strategy: as of the class in torchmetrics.

    >>> import torch, howsure as hs
    >>> metric = BootStrapper(CRPS(), num_bootstraps=20)
    >>> metric.update(hs.Normal(torch.zeros(50), 1.0), torch.randn(50))
    >>> sorted(metric.compute())
    ['mean', 'std']
    """

    def update(self, answer: Predictive, y: Targets, mask: Mask = None) -> None:
        """Add rows of a batch, drawn anew for each bootstrap sample; see :class:`StreamingMetric`."""
        p = scored(answer)
        target, known = p.target(y, mask), None if mask is None else p.known(mask)
        for metric in self.metrics:
            count = torch.poisson(torch.ones(len(p))).long()
            rows = torch.arange(len(p)).repeat_interleave(count)
            if self.sampling_strategy == "multinomial":
                rows = torch.randint(len(p), (len(p),))
            metric.update(p[rows], target[rows], None if known is None else known[rows])


# Scores ---------------------------------------------------------------------------------------------------------------


class _MeanOfTerms(StreamingMetric):
    """The mean over targets of one term."""

    _name: str  # of the state and the term
    _of_moments = True  # whether the term needs a mean, which targets learned by their logarithm do not have

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._add_sum(self._name)

    def _terms(self, answer: Predictive, y: Targets, mask: Mask) -> Tensor:
        """Return the term of every target that counts."""
        raise NotImplementedError

    def update(self, answer: Predictive, y: Targets, mask: Mask = None) -> None:
        """Add the targets of one batch; see :class:`StreamingMetric`."""
        p = scored(answer)
        if self._of_moments and p.transform is not None and not p.transform.has_moments:
            terms = counted(p, p.target(y, mask) * torch.nan, mask)  # as in `howsure.metrics.summary`
        else:
            terms = self._terms(p, y, mask)
        self._increase(terms.numel(), **{self._name: terms.sum()})

    def compute(self) -> Tensor:
        """Return the mean over all targets; NaN if there are none."""
        return self._result(self._mean(self._name))


class RMSE(_MeanOfTerms):
    """Root mean squared error of the mean, `howsure.metrics.rmse`, in the units of y."""

    _name = "squared_error"

    def _terms(self, answer: Predictive, y: Targets, mask: Mask) -> Tensor:
        return errors(answer, y, mask).square()

    def compute(self) -> Tensor:
        """Return the root of the mean over all targets; NaN if there are none."""
        return self._result(self._mean(self._name).sqrt())


class MAE(_MeanOfTerms):
    """Mean absolute error of the mean, `howsure.metrics.mae`, in the units of y."""

    _name = "absolute_error"

    def _terms(self, answer: Predictive, y: Targets, mask: Mask) -> Tensor:
        return errors(answer, y, mask).abs()


class NLL(_MeanOfTerms):
    """Negative log likelihood of the predictive distribution, `howsure.metrics.nll`, in nats per target."""

    _name = "negative_log_likelihood"
    _of_moments = False

    def _terms(self, answer: Predictive, y: Targets, mask: Mask) -> Tensor:
        return -at_targets("log_prob", answer, y, mask)


class CRPS(_MeanOfTerms):
    """Continuous ranked probability score, `howsure.metrics.crps`, in the units of y."""

    _name = "ranked_probability_score"

    def _terms(self, answer: Predictive, y: Targets, mask: Mask) -> Tensor:
        return at_targets("crps", answer, y, mask)


class _Interval(StreamingMetric):
    """Widths of central intervals and distances from them, which `MetricCollection` sums once for all that need them.

    Args:
        coverage: the probability that the intervals state, in (0, 1).
        options: of ``torchmetrics.Metric``.
    """

    def __init__(self, coverage: float = 0.9, **options: Any) -> None:
        super().__init__(**options)
        (self.coverage,) = checked_coverages([coverage])
        self._width, self._distance = (f"{name}_{key_of(self.coverage)}" for name in ("width", "distance"))
        self._add_sum(self._width)
        self._add_sum(self._distance)

    def update(self, answer: Predictive, y: Targets, mask: Mask = None) -> None:
        """Add the targets of one batch; see :class:`StreamingMetric`."""
        width, distance = width_and_distance(answer, y, self.coverage, mask)
        self._increase(width.numel(), **{self._width: width.sum(), self._distance: distance.sum()})


class IntervalScore(_Interval):
    """Width of the central interval plus 2/(1−coverage) times the distance of y, `howsure.metrics.interval_score`.

    Args:
        coverage: the probability that the intervals state, in (0, 1).
        options: of ``torchmetrics.Metric``.
    """

    def compute(self) -> Tensor:
        """Return the mean over all targets, in the units of y; NaN if there are none."""
        return self._result(self._mean(self._width) + 2 / (1 - self.coverage) * self._mean(self._distance))


class IntervalWidth(_Interval):
    """Mean width of the central intervals, ``interval_width`` of `howsure.metrics.summary`, in the units of y.

    Args:
        coverage: the probability that the intervals state, in (0, 1).
        options: of ``torchmetrics.Metric``.
    """

    higher_is_better: bool | None = None

    def compute(self) -> Tensor:
        """Return the mean over all targets; NaN if there are none."""
        return self._result(self._mean(self._width))


# Calibration ----------------------------------------------------------------------------------------------------------


class _Curve(StreamingMetric):
    """Share of targets that satisfy a condition at each of several probabilities."""

    higher_is_better: bool | None = None

    _argument: ClassVar[str]  # name of the probabilities
    _term: ClassVar[str]  # name of the term that is summed
    _sums: ClassVar[Callable[..., tuple[Tensor, int]]]

    def _set_levels(self, levels: ArrayLike) -> None:
        """Add the state for these probabilities."""
        self.levels = levels_of(self._argument, levels)
        self._state = f"{self._term}_{key_of(self.levels)}"
        self._add_sum(self._state, self.levels.shape)

    def update(self, answer: Predictive, y: Targets, mask: Mask = None) -> None:
        """Add the targets of one batch; see :class:`StreamingMetric`."""
        sums, count = self._sums(answer, y, self.levels, mask)
        self._increase(count, **{self._state: sums})

    def compute(self) -> Tensor:
        """Return a share for each probability, ideally the probability itself; NaN if there are no targets."""
        return self._result(self._mean(self._state))


class CoverageCurve(_Curve):
    """Share of targets in each of several central intervals, `howsure.metrics.coverage_curve`.

    Args:
        coverage: the probabilities that the intervals state.
        options: of ``torchmetrics.Metric``.
    """

    _argument, _term, _sums = "coverage", "inside", staticmethod(coverage_sums)

    def __init__(self, coverage: ArrayLike = PROBABILITIES, **options: Any) -> None:
        super().__init__(**options)
        self._set_levels(coverage)


class Coverage(CoverageCurve):
    """Share of targets in the central interval that should hold ``coverage`` of them, `howsure.metrics.coverage`.

    Args:
        coverage: the probability that the intervals state.
        options: of ``torchmetrics.Metric``.
    """

    def __init__(self, coverage: float = 0.9, **options: Any) -> None:
        super().__init__(np.array([coverage]), **options)

    def compute(self) -> Tensor:
        """Return the share, ideally the coverage; NaN if there are no targets."""
        return self._result(self._mean(self._state)[0])


class CalibrationCurve(_Curve):
    """Share of targets at or below each predicted quantile, `howsure.metrics.calibration_curve`.

    Args:
        quantiles: the probabilities of the quantiles.
        options: of ``torchmetrics.Metric``.
    """

    _argument, _term, _sums = "quantiles", "at_most", staticmethod(calibration_sums)

    def __init__(self, quantiles: ArrayLike = PROBABILITIES, **options: Any) -> None:
        super().__init__(**options)
        self._set_levels(quantiles)


class CalibrationError(CalibrationCurve):
    """Root mean squared distance of the calibration curve from the diagonal, `howsure.metrics.calibration_error`.

    Args:
        quantiles: the probabilities of the quantiles at which the curve is read.
        options: of ``torchmetrics.Metric``.
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the distance, 0 is ideal; NaN if there are no targets."""
        curve = self._mean(self._state)
        return self._result((curve - torch.from_numpy(self.levels).to(curve.device)).square().mean().sqrt())


class PITHistogram(CalibrationCurve):
    """Histogram of the probability integral transform F(y), `howsure.metrics.pit`: flat if calibrated.

    A bin includes its upper edge. The first one includes 0 too. A target with a positive probability, a zero under
    ``target_transform="positive"``, counts evenly in the bins that this probability spans.

    Args:
        bins: number of bins of equal width.
        options: of ``torchmetrics.Metric``.
    """

    def __init__(self, bins: int = 10, **options: Any) -> None:
        if isinstance(bins, bool) or not isinstance(bins, int | np.integer):
            raise InputTypeError(f"bins must be a whole number, not {bins!r}")
        if bins < 1:
            raise InputError(f"bins must be at least 1, got {bins}")
        super().__init__(np.arange(1, int(bins) + 1) / int(bins), **options)

    def compute(self) -> Tensor:
        """Return the share of targets in each bin, (bins,), ideally 1/bins; NaN if there are no targets."""
        curve = self._mean(self._state)
        return self._result(curve.diff(prepend=curve.new_zeros(1)))


# Ranking --------------------------------------------------------------------------------------------------------------


class RetentionCurve(StreamingMetric):
    """Error of the targets that are left when the most uncertain are dropped, `howsure.metrics.retention_curve`.

    A ranking needs all targets: this metric keeps two float64 numbers for each of them, 16 bytes, until ``reset()``;
    with ``compute_on_cpu=True`` outside the device. ``compute()`` copies them to the CPU to sort them.

    Args:
        uncertainty: the ranking: "std", "aleatoric", "epistemic" or "entropy". A part that the prediction does not
            have raises an error.
        error: "rmse" or "mae", of the mean.
        options: of ``torchmetrics.Metric``.
    """

    higher_is_better: bool | None = None

    def __init__(self, uncertainty: str = "std", error: str = "rmse", **options: Any) -> None:
        super().__init__(**options)
        if uncertainty not in ("std", "aleatoric", "epistemic", "entropy"):
            raise InputError(f"unknown uncertainty {uncertainty!r}; known are std, aleatoric, epistemic, entropy")
        check_ranking(error)
        self.uncertainty, self.error = uncertainty, error
        self._score = f"score_{uncertainty}"
        self.add_state("distance", [], dist_reduce_fx="cat")
        self.add_state(self._score, [], dist_reduce_fx="cat")

    def update(self, answer: Predictive, y: Targets, mask: Mask = None) -> None:
        """Add the targets of one batch; see :class:`StreamingMetric`."""
        p = scored(answer)
        distance = errors(p, y, mask).abs().flatten()
        score = torch.from_numpy(uncertainties(p, self.uncertainty, mask).ravel())
        self._increase(distance.numel())
        for name, values in (("distance", distance), (self._score, score)):
            getattr(self, name).append(values.to(self.count.device))

    def compute(self) -> Any:
        """Return (share kept, error of the kept), both from all targets to the most certain ones.

        Without targets both are empty. Where an error is not finite or an uncertainty is NaN, errors are NaN.
        """
        rows = self._rows()
        if not rows[0].size:
            return tuple(self._result(self.count.new_empty(0, dtype=torch.float64)) for _ in range(2))
        share, kept = retention(*rows, self.error)
        return self._array(share), self._array(kept if _rankable(*rows) else np.full_like(kept, np.nan))

    def _area(self, area: Callable[..., float]) -> Tensor:
        """Return a function of errors and uncertainties; NaN if there are none, or if some cannot be ranked."""
        rows = self._rows()
        good = rows[0].size > 0 and _rankable(*rows)
        return self._array(np.array(area(*rows, self.error) if good else np.nan))

    def _rows(self) -> tuple[Any, Any]:
        """Return |mean − y| and uncertainty of all targets as arrays."""
        joined = []
        for name in ("distance", self._score):
            state = getattr(self, name)  # a list of batches, or one tensor after a synchronisation
            whole = state if isinstance(state, Tensor) else torch.cat(state) if state else torch.empty(0)
            joined.append(whole.cpu().numpy())
        return joined[0], joined[1]

    def _array(self, array: Any) -> Tensor:
        return self._result(torch.from_numpy(array).to(self.count.device))

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """Join the states of all processes. The states of a process without targets have the dtype of the others."""
        for name in ("distance", self._score):
            if not len(getattr(self, name)):
                setattr(self, name, [torch.empty(0, dtype=torch.float64, device=self.count.device)])
        super()._sync_dist(*args, **kwargs)


class AUSE(RetentionCurve):
    """Area under the sparsification error, `howsure.metrics.ause`.

    Memory and arguments as in :class:`RetentionCurve`.
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the area, smaller is better; NaN without targets, or where some cannot be ranked."""
        return self._area(area_above_oracle)


class AURG(RetentionCurve):
    """Area under the random gain, `howsure.metrics.aurg`.

    Memory and arguments as in :class:`RetentionCurve`.
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the area, larger is better; NaN without targets, or where some cannot be ranked."""
        return self._area(area_below_random)


def _rankable(distance: Any, score: Any) -> bool:
    return bool(np.isfinite(distance).all() and not np.isnan(score).any())
