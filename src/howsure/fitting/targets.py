"""Targets as networks learn them: ties spread, and a transform where the target cannot be negative."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from howsure.data.target import check_sign, describe_ties, find_ties, is_skewed, positive_numbers, spread_ties
from howsure.distributions import Transform
from howsure.fitting.censoring import log_likelihood
from howsure.fitting.members import hold_out
from howsure.fitting.tables import Fitted, fit
from howsure.methods.base import Method, Recipe
from howsure.prediction import Prediction

__all__ = ["PreparedTarget", "choose_transform", "prepare_target"]

Array = NDArray[np.float64]
FEWEST = 50  # rows that a choice between transforms needs
EFFORT = 0.25  # share of the steps that the networks of the choice get
MOST = 2000  # rows that they are compared on
LEAST_GAIN = 0.01  # nats a row: far from zero the transform is a line, and its small gains are not worth having


@dataclass(frozen=True)
class PreparedTarget:
    """A target as networks learn it.

    Args:
        values: of all rows; those that no network learns from are as they were, or 0 with a transform.
        transform: from these values to the target, or None.
        notices: warnings for the user about values that many rows share.
    """

    values: Array
    transform: Transform | None
    notices: tuple[str, ...]


def prepare_target(
    y: Array,
    rows: NDArray[np.int64],
    kind: str | None,
    seed: int,
    names: Sequence[str] | None = None,
    censored: NDArray[np.int8] | None = None,
) -> PreparedTarget:
    """Return the targets, (N,) or (N, T), as networks learn them from some of the rows.

    Without ties and without a transform they are returned as they are. Bounds of censored targets are no ties, however
    many rows share one, and are not spread.

    Args:
        y: targets.
        rows: those that count.
        kind: "positive", "log" or None.
        seed: of the random numbers that spread ties.
        names: of several targets.
        censored: of the shape of y, as `read_censored` returns it; None: all are values.
    """
    table = y.reshape(len(y), -1)
    several = table.shape[1] > 1
    values = np.zeros_like(table) if kind else table.copy()
    scales, shifts, notices = [], [], []
    for t in range(table.shape[1]):
        own = table[rows, t]
        name = f"y[{names[t]!r}]" if several and names is not None else f"y[:, {t}]" if several else "y"
        if kind is not None:
            check_sign(own, rows, kind, name)
        known = slice(None) if censored is None else censored.reshape(table.shape)[rows, t] == 0
        ties = find_ties(own[known])
        scale, shift = positive_numbers(own, ties) if kind == "positive" else (1.0, 0.0)
        if ties is not None:
            notices.append(describe_ties(ties, name, kind is None and bool((own >= 0).all())))
            own = own.copy()
            own[known] = spread_ties(own[known], ties, (seed, t), None if kind is None else shift)
        values[rows, t] = own
        scales.append(scale)
        shifts.append(shift)
    if kind is None:
        return PreparedTarget(values.reshape(y.shape), None, tuple(notices))
    transform = Transform(kind, scales, shifts) if several else Transform(kind, scales[0], shifts[0])
    # a tied 0 lies below 0 now, and the shift lifts it: the transform of the lifted values is that without a shift
    lifted = torch.from_numpy(values[rows] + np.array(shifts))
    before = Transform(kind, scales) if several else Transform(kind, scales[0])
    values[rows] = before.inverse(lifted).numpy()
    return PreparedTarget(values.reshape(y.shape), transform, tuple(notices))


def choose_transform(
    method: Method,
    x: Array,
    y: Array,
    rows: NDArray[np.int64],
    seed: int,
    *,
    recipe: Recipe,
    validation_fraction: float = 0.1,
    censored: NDArray[np.int8] | None = None,
    **options: Any,
) -> str | None:
    """Return "positive" or None, whichever predicts rows of the training table better that were held out.

    Where targets are never negative and one of them is skewed, two short fits with the same seeds and rows are
    compared by the negative log likelihood of a fifth of the rows, in the units of y. The transform is taken if it is
    better by more than 0.01 nat a row and one standard error of the difference, row by row. Where many rows share a
    value, densities say little: then they are compared by CRPS in units of its mean. All targets get the same.

    Args:
        method, x, y, recipe, censored, **options: as for :func:`howsure.fitting.fit`.
        rows: those that count.
        seed: of the division and of the networks.
        validation_fraction: of the rows that the networks learn from.
    """
    table = y.reshape(len(y), -1)[rows]
    if len(rows) < FEWEST or (table < 0).any() or not any(is_skewed(column) for column in table.T):
        return None
    shuffled = np.random.default_rng([seed, 1]).permutation(rows)
    held_out = np.sort(shuffled[: min(MOST, len(rows) // 5)])
    members = hold_out(np.sort(shuffled[len(held_out) :]), [seed, seed + 1], validation_fraction)
    settings = recipe.settings
    steps = max(1, min(settings.steps, 50), round(EFFORT * settings.steps))
    settings = replace(settings, steps=steps, evaluate_every=max(1, min(settings.evaluate_every, steps // 20)))
    short = replace(recipe, settings=settings)
    scores = []
    for kind in (None, "positive"):
        target = prepare_target(y, rows, kind, seed, censored=censored)
        fitted = fit(method, x, target.values, members, recipe=short, censored=censored, **options)
        if bool(fitted.training.diverged.all()):
            scores.append(np.full(len(held_out), np.inf))
            continue
        known = None if censored is None else censored[held_out]
        scores.append(_scores(fitted, x, y, target, held_out, known).reshape(len(held_out), -1).mean(1))
    gain = scores[0] - scores[1]
    if target.notices and censored is None:
        gain = gain / max(float(np.mean(scores[0])), np.finfo(float).tiny)
    if not np.isfinite(gain).all():
        return "positive" if np.isfinite(scores[1]).all() else None
    return "positive" if gain.mean() > max(LEAST_GAIN, gain.std(ddof=1) / np.sqrt(len(gain))) else None


def _scores(
    fitted: Fitted,
    x: Array,
    y: Array,
    target: PreparedTarget,
    rows: NDArray[np.int64],
    censored: NDArray[np.int8] | None,
) -> Array:
    """Return a score of some rows: NLL, but for what transforms have in common, or CRPS where rows share values.

    Bounds have no CRPS: where there are any, it is the NLL.
    """
    if target.notices and censored is None:
        scores: Array = Prediction(fitted.answers(x[rows]), members=0, transform=target.transform).crps(y[rows])
        return scores
    z = torch.from_numpy(target.values[rows])
    known = None if censored is None else torch.from_numpy(censored)
    surprise = -log_likelihood(fitted.predict(x[rows]).distribution, z, known)
    if target.transform is not None:
        change = torch.nn.functional.logsigmoid(z / target.transform.scale)
        surprise = surprise + (change if known is None else torch.where(known == 0, change, 0.0))
    result: Array = surprise.numpy()
    return result
