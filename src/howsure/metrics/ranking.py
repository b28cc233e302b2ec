"""Whether the uncertain rows are the wrong ones: ``(prediction, y) → number or curve``; only the order matters."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure.metrics.scores import Mask, Predictive, Targets
from howsure.metrics.terms import errors
from howsure.prediction import Prediction, as_prediction, real_numbers

__all__ = ["aurg", "auroc", "ause", "retention_curve"]

Array = NDArray[np.float64]
POINTS = 100  # of a curve: shares 1, 0.99, …, 0.01, each rounded up to whole rows


def retention_curve(
    prediction: Predictive,
    y: Targets,
    uncertainty: Targets | str = "std",
    error: str = "rmse",
    *,
    mask: Mask = None,
) -> tuple[Array, Array]:
    """Return the error of the rows that are left when the most uncertain ones are dropped.

    Among equal uncertainties the rows kept are random: the curve is the expected mean squared (its root is taken last)
    or mean absolute error, so the order of rows is irrelevant and a constant uncertainty gives a flat curve. Each
    target, or pixel, counts as a row. The shares are 1, 0.99, …, 0.01, each rounded up to whole rows.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        uncertainty: the ranking: "std", "aleatoric", "epistemic", "entropy", or an array of the shape of y. A part that
            the prediction does not have raises an error.
        error: "rmse" or "mae", of the mean.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        (share kept, error of the kept), both from all rows to the most certain ones.

    Raises:
        InputError: if y does not fit the prediction, a target is missing and not masked, or an uncertainty is NaN.

    >>> import torch, howsure as hs
    >>> retention_curve(hs.Normal(torch.zeros(2), torch.tensor([1.0, 2.0])), [1.0, 3.0], error="mae")
    (array([1. , 0.5]), array([2., 1.]))
    """
    return retention(*_ranked(prediction, y, uncertainty, error, mask), error)


def check_ranking(error: str) -> None:
    """Raise an error if the name of the error is unknown."""
    if error not in ("rmse", "mae"):
        raise InputError(f"unknown error {error!r}; known are rmse, mae")


def _ranked(prediction: Any, y: Any, uncertainty: Any, error: str, mask: Any) -> tuple[Array, Array]:
    """Return |mean − y| and the uncertainty of every target that counts, one after the other, all of them finite."""
    check_ranking(error)
    p = as_prediction(prediction)
    distance: Array = errors(p, y, mask).abs().flatten().cpu().numpy()
    if not distance.size:
        raise InputError("the prediction has no rows; a ranking needs at least one")
    if not np.isfinite(distance).all():
        bad = int(np.sum(~np.isfinite(distance)))
        raise InputError(
            f"{bad} of {distance.size} errors y − mean are NaN or infinite; leave out the rows without a finite y"
        )
    score = uncertainties(p, uncertainty, mask).ravel()
    if np.isnan(score).any():
        bad = int(np.isnan(score).sum())
        raise InputError(f"{bad} of {score.size} uncertainties are NaN, which has no rank; leave those rows out")
    return distance, score


def retention(distance: Array, score: Array, error: str) -> tuple[Array, Array]:
    """Return the :func:`retention_curve` of errors and uncertainties, (rows,), for at least one row."""
    rows = len(distance)
    loss = distance**2 if error == "rmse" else distance
    order = np.lexsort((loss, score))  # by loss within ties: then not even the rounding depends on the order of rows
    loss, score = loss[order], score[order]
    first = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])  # row of each group of ties
    total = np.add.reduceat(loss, first)
    mean = total / np.diff(np.r_[first, rows])
    below = np.r_[0.0, np.cumsum(total)[:-1]]
    kept = np.unique(-(-rows * np.arange(1, POINTS + 1) // POINTS))[::-1]  # ⌈rows · j/points⌉, without floats
    last = np.searchsorted(first, kept - 1, side="right") - 1  # the group that is cut
    # (kept − first)/kept is exactly 1 for a single group, (kept − first) · mean / kept need not be its mean
    curve = below[last] / kept + (kept - first[last]) / kept * mean[last]
    return kept / rows, np.sqrt(curve) if error == "rmse" else curve


def ause(
    prediction: Predictive,
    y: Targets,
    uncertainty: Targets | str = "std",
    error: str = "rmse",
    *,
    mask: Mask = None,
) -> float:
    """Return the area under the sparsification error (Ilg et al. 2018): ∫ (e(s) − oracle(s)) ds / e(1).

    e(s) is the :func:`retention_curve` at the share s kept, the oracle the curve of the ranking by the true error. The
    trapezoidal rule over the shares of the curve; divided by the error of all rows, so free of units.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        uncertainty: the ranking: "std", "aleatoric", "epistemic", "entropy", or an array of the shape of y. A part that
            the prediction does not have raises an error.
        error: "rmse" or "mae", of the mean.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        An area, smaller is better. The ranking by the true error has 0.

    Raises:
        InputError: if y does not fit the prediction, a target is missing and not masked, or an uncertainty is NaN.

    >>> import torch, howsure as hs
    >>> ause(hs.Normal(torch.zeros(2), torch.tensor([1.0, 2.0])), [1.0, 3.0])
    0.0
    """
    return area_above_oracle(*_ranked(prediction, y, uncertainty, error, mask), error)


def aurg(
    prediction: Predictive,
    y: Targets,
    uncertainty: Targets | str = "std",
    error: str = "rmse",
    *,
    mask: Mask = None,
) -> float:
    """Return the area under the random gain (Poggi et al. 2020): ∫ (e(1) − e(s)) ds / e(1).

    Curve, rule and division as in :func:`ause`.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        uncertainty: the ranking: "std", "aleatoric", "epistemic", "entropy", or an array of the shape of y. A part that
            the prediction does not have raises an error.
        error: "rmse" or "mae", of the mean.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        An area, larger is better. A random ranking leaves the error of all rows at every share kept and has 0. A
        misleading one is negative.

    Raises:
        InputError: if y does not fit the prediction, a target is missing and not masked, or an uncertainty is NaN.

    >>> import torch, howsure as hs
    >>> aurg(hs.Normal(torch.zeros(2), torch.tensor([2.0, 1.0])), [1.0, 3.0], error="mae")
    -0.125
    """
    return area_below_random(*_ranked(prediction, y, uncertainty, error, mask), error)


def auroc(inside: Targets, outside: Targets) -> float:
    """Return P(outside > inside) + ½ P(outside = inside), the separation of unfamiliar from familiar rows by a score.

    Args:
        inside: scores (uncertainties, for example) of rows like the training rows.
        outside: scores of other rows.

    Returns:
        The area under the receiver operating characteristic: 1 separates the two, ½ is chance.

    Raises:
        InputError: if one of the two has no scores, or a score is NaN.

    >>> auroc(inside=[0.1, 0.2, 0.3], outside=[0.3, 0.9])
    0.9166666666666666
    """
    scores = []
    for name, values in (("inside", inside), ("outside", outside)):
        if values is None:  # which NumPy would read as one NaN
            raise InputError(f"the scores {name} are None: the prediction has no such uncertainty; take another")
        array = real_numbers(f"the scores {name}", values).ravel()
        if array.size == 0:
            raise InputError(f"there are no scores {name}; auroc needs at least one on each side")
        if np.isnan(array).any():
            raise InputError(f"{int(np.isnan(array).sum())} of {array.size} scores {name} are NaN; leave them out")
        scores.append(array)
    low, high = np.sort(scores[0]), scores[1]
    # twice the wins: those below, and those below or equal
    wins = np.searchsorted(low, high, side="left").sum() + np.searchsorted(low, high, side="right").sum()
    return float(wins / (2 * low.size * high.size))


def area_above_oracle(distance: Array, score: Array, error: str) -> float:
    """Return :func:`ause` of errors and uncertainties, (rows,)."""
    share, kept = retention(distance, score, error)
    oracle = retention(distance, distance, error)[1]
    return _relative_area(share, kept - oracle, kept[0])


def area_below_random(distance: Array, score: Array, error: str) -> float:
    """Return :func:`aurg` of errors and uncertainties, (rows,)."""
    share, kept = retention(distance, score, error)
    return _relative_area(share, kept[0] - kept, kept[0])


def uncertainties(prediction: Prediction, uncertainty: Any, mask: Any) -> Array:
    """Return the uncertainty with this name, or the given array, for the targets that count."""
    kind = uncertainty
    if kind is None:  # prediction.epistemic_std of a model without this part
        raise InputError("the uncertainty is None: the prediction has no such part; rank by 'std' instead")
    if not isinstance(kind, str):
        values = real_numbers("the uncertainty", kind)
        if values.shape != prediction.shape:
            raise InputError(
                f"the uncertainty has shape {values.shape} but the prediction {prediction.shape}. They must be equal"
            )
    elif kind in ("std", "entropy"):
        values = prediction.std if kind == "std" else prediction.entropy()
    elif kind in ("aleatoric", "epistemic"):
        part = prediction.aleatoric_std if kind == "aleatoric" else prediction.epistemic_std
        if part is None:
            raise InputError(
                f"the prediction has no {kind} uncertainty: {kind}_std is None, as the epistemic one of a single "
                "Gaussian network is; rank by 'std', or predict with several networks"
            )
        values = part
    else:
        raise InputError(
            f"unknown uncertainty {kind!r}; known are std, aleatoric, epistemic, entropy, or give an array"
        )
    known = ... if mask is None else prediction.known(mask).cpu().numpy()
    return np.asarray(values[known], dtype=float)


def _relative_area(share: Array, gap: Array, whole: float) -> float:
    """Return ∫ gap d(share) / whole; without any error every ranking is as good as the oracle and as chance: 0."""
    area = np.sum((share[:-1] - share[1:]) * (gap[:-1] + gap[1:]) / 2)  # NumPy 1 has no trapezoid
    return float(area / whole) if whole > 0 else 0.0
