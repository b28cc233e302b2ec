"""Terms of the metrics: the contribution of each target, in float64 tensors on the device of the prediction.

The metrics have two faces: functions of the whole data (`scores.py`, `calibration.py`, `ranking.py`), which return
NumPy, and sums over batches (`streaming.py`). Both are made of these terms.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsure.distributions import Mixture
from howsure.errors import InputError
from howsure.prediction import Answer, Prediction, as_prediction, checked_coverages, device_of, quantities, real_numbers

__all__ = ["Mask", "Predictive", "Targets"]

Predictive = Prediction | Answer | Mixture  # a prediction, or the output distribution of one network
Targets = ArrayLike | Tensor
Mask = ArrayLike | Tensor | None  # True where a target counts
WITHOUT_FLOAT64 = ("mps",)  # devices whose terms are computed on the CPU


def scored(prediction: Any) -> Prediction:
    """Return ``prediction`` as a `Prediction`, on the CPU if its device has no float64."""
    p = as_prediction(prediction)
    return p.cpu() if device_of(p.answers).type in WITHOUT_FLOAT64 else p


def counted(p: Prediction, values: Tensor, mask: Any) -> Tensor:
    """Return values of the targets that count in float64: (known targets, …), or without a mask as they are."""
    values = values.cpu() if values.device.type in WITHOUT_FLOAT64 else values
    chosen = values if mask is None else values[p.known(mask).to(values.device)]
    return chosen.double()


def at_targets(quantity: str, prediction: Any, y: Any, mask: Any) -> Tensor:
    """Return ``"log_prob"``, ``"cdf"`` or ``"crps"`` of the predictive distribution at every target that counts."""
    p = scored(prediction)
    return counted(p, quantities.at_targets(p, quantity, p.target(y, mask)), mask)


def errors(prediction: Any, y: Any, mask: Any) -> Tensor:
    """Return mean − y of every target that counts."""
    p = scored(prediction)
    target = p.target(y, mask)
    mean = counted(p, p.moments.mean, mask)
    return mean - counted(p, target.to(mean.device), mask)


def width_and_distance(prediction: Any, y: Any, coverage: float, mask: Any) -> tuple[Tensor, Tensor]:
    """Return the width of the central interval and the distance of y from it, for every target that counts."""
    p = scored(prediction)
    ends = _interval(p, coverage, mask)
    low, high = ends[..., 0], ends[..., 1]
    target = counted(p, p.target(y, mask).to(ends.device), mask)
    return high - low, (low - target).clamp(min=0) + (target - high).clamp(min=0)


def probabilities(prediction: Any, y: Any, mask: Any) -> tuple[Tensor, Tensor]:
    """Return P(Y < y) and P(Y ≤ y) of every target that counts, one after the other; one tensor where both are equal.

    They differ only where single values have a positive probability.
    """
    p = scored(prediction)
    target = p.target(y, mask)
    everywhere = quantities.at_targets(p, "cdf", target)
    at = counted(p, everywhere, mask).flatten()
    if p.continuous:
        return at, at
    below = torch.from_numpy(quantities.strictly_below(p, target.cpu().numpy(), everywhere.cpu().numpy()))
    return counted(p, below.to(at), mask).flatten(), at


def calibration_sums(prediction: Any, y: Any, quantiles: NDArray[np.float64], mask: Any) -> tuple[Tensor, int]:
    """Return how many targets lie at or below each predicted quantile, and how many targets there are.

    A target with a positive probability counts by the share of it that lies below the quantile's.
    """
    below, at = probabilities(prediction, y, mask)
    levels = torch.from_numpy(quantiles).to(at.device)
    sums = _counts_at_most(at, levels).double()
    if below is not at:
        atom = at > below
        first, last = below[atom], at[atom]
        inside = ((levels.unsqueeze(1) - first) / (last - first)).clamp(0, 1) - (last <= levels.unsqueeze(1)).double()
        sums = sums + inside.sum(1)
    return sums, at.numel()


def coverage_sums(prediction: Any, y: Any, coverage: NDArray[np.float64], mask: Any) -> tuple[Tensor, int]:
    """Return how many targets lie in each of several central intervals, and how many targets there are.

    Intervals with a guarantee come from the prediction. Other intervals need no ends, since y lies in one exactly if
    neither tail beyond y is smaller than (1 − coverage)/2.
    """
    p = scored(prediction)
    if p.guarantee is not None:
        inside = [width_and_distance(p, y, float(each), mask)[1].flatten() == 0 for each in coverage]
        return torch.stack([each.sum() for each in inside]).double(), inside[0].numel()
    below, at = probabilities(p, y, mask)
    depth = torch.maximum(1 - 2 * at, 2 * below - 1)
    return _counts_at_most(depth, torch.from_numpy(coverage).to(depth.device)).double(), depth.numel()


def levels_of(name: str, levels: ArrayLike) -> NDArray[np.float64]:
    """Return the probabilities at which a curve is read as a new array, after checking that they are such."""
    array = real_numbers(name, levels)
    if array.ndim != 1 or not array.size or not ((array >= 0) & (array <= 1)).all():
        shown = array[0] if array.shape == (1,) else array
        raise InputError(f"{name} must lie between 0 and 1, one or several, got {shown}")
    return array


def key_of(levels: Any) -> str:
    """Return probabilities as a part of a state's name: one as its digits, several as their number and a digest."""
    array = np.atleast_1d(np.asarray(levels, dtype=float))
    if array.size == 1:
        return f"{float(array[0])!r}".replace(".", "_")
    return f"{array.size}_{hashlib.sha256(array.tobytes()).hexdigest()[:8]}"


def _interval(p: Prediction, coverage: float, mask: Any) -> Tensor:
    """Return the ends of the central interval of every target that counts, in a new last dimension."""
    coverages = checked_coverages([coverage])
    if p.guarantee is None:
        ends = quantities.central_ends(p, coverages)
    else:
        ends = torch.from_numpy(np.array(p.guarantee.ends(p, coverages)))
    return counted(p, ends[..., 0, :], mask)


def _counts_at_most(values: Tensor, limits: Tensor) -> Tensor:
    """Return how many of the values are at most each limit; NaN, of a prediction that is not finite, never is."""
    increasing, order = limits.sort()
    place = torch.bucketize(values, increasing)  # the first limit that is not smaller; NaN lies beyond the last one
    counts = torch.bincount(place, minlength=len(limits) + 1)[: len(limits)].cumsum(0)
    return counts[order.argsort()]
