"""Evidence that fades away from the training rows: how far they reach, and how fast it fades beyond.

No row from outside is needed to learn this. Short fits to the inner part of the training rows, with both ends of a
feature or of a random direction left out, show how wrong such networks are where they have seen nothing.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsure.distributions import Mixture, Normal, NormalInverseGamma
from howsure.fitting.censoring import log_likelihood, read_censored
from howsure.fitting.members import Member, hold_out
from howsure.fitting.tables import USUAL_THRESHOLD, Fitted, faded_answer, fit
from howsure.methods.base import Method, Recipe
from howsure.nn import FadingEvidence
from howsure.prediction import Answer

__all__ = [
    "USUAL_POWER",
    "best_power",
    "choose_power",
    "extrapolation_folds",
    "fold_members",
    "learned_power",
    "rows_of_a_fold",
    "scores_by_power",
    "short_recipe",
    "unfamiliar_below",
    "with_fading",
]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
FLAGGED = 0.01  # share of rows like the training rows that count as unfamiliar
Fold = tuple[Rows, Rows]  # inner rows, rows of both ends
USUAL_POWER = 2.0  # where there are too few rows to learn one
FEWEST = 50  # rows from which a power is learned
MOST = 2000  # rows that it is learned from
DIRECTIONS, NETWORKS = 8, 2  # that both ends are left out of, and networks for each
LEFT_OUT = 1 / 3  # share of the rows in both ends together
STEPS = 500  # of the short fits
FAR = 1 / 3  # share of the left-out rows, the farthest, that the power is chosen by
POWERS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0)
RIDGE = 0.001  # of the covariance of the features
LEARNED_FROM = 4000  # training rows of a network that its density of features is learned from
BATCH = 500  # rows whose features are computed at once


def with_fading(fitted: Fitted, x: Array, members: Sequence[Member], power: float) -> Fitted:
    """Return the model with evidence that fades away from its training rows.

    The features of a network are the outputs of its first hidden layer. Their density is learned from at most 4,000 of
    its training rows; how far these reach, from its validation rows, or from the training rows if there are none.

    Args:
        fitted: a trained model.
        x: the features (N, F) that it was fitted to.
        members: the rows of each network, as it was fitted.
        power: of the distance, by which evidence fades.
    """
    train = _same_number([m.train for m in members])
    validation = _same_number([m.validation for m in members])
    if train.shape[1] < 2:  # one row has no spread
        train = torch.cat([train, validation], 1)
    table = torch.from_numpy(x)
    learned = _features(fitted, table, train)
    if validation.shape[1]:
        fading = FadingEvidence.fit(learned, _features(fitted, table, validation), power=power, ridge=RIDGE)
    else:
        fading = FadingEvidence.fit(list(learned), power=power, ridge=RIDGE)
    faded = replace(
        fitted, fading=fading, typical=_typical(fitted, table, validation if validation.shape[1] else train)
    )
    faded.training = fitted.training
    return faded


def unfamiliar_below(faded: Fitted, x: Array, members: Sequence[Member]) -> float:
    """Return the familiarity below which about 1 % of rows like the training rows are; 0.5 without validation rows.

    What counts are rows that networks held out, each by the mean of those that did: of its own training rows a network
    knows more than of new ones.

    Args:
        faded: a model whose evidence fades.
        x: the features (N, F) that it was fitted to.
        members: the rows of each network, as it was fitted.
    """
    assert faded.fading is not None
    rows = _same_number([m.validation for m in members])
    if not rows.shape[1]:
        return USUAL_THRESHOLD
    keep = torch.cat([faded.fading(part) for part in _features(faded, torch.from_numpy(x), rows)], 1).double().cpu()
    weights = torch.ones(len(members), dtype=torch.float64, device="cpu") if faded.weights is None else faded.weights
    total, count = torch.zeros(2, len(x), dtype=torch.float64, device="cpu")
    for own, share, weight in zip(rows, keep, weights, strict=True):
        total[own] += weight * share
        count[own] += weight
    known = count > 0
    return float(np.quantile((total[known] / count[known]).numpy(), FLAGGED, method="lower"))


def _typical(fitted: Fitted, x: Tensor, rows: Tensor) -> Answer:
    """Return what each network usually says, (M, 1, T): medians over rows of its evidence and of its noise."""
    answers = [fitted.own(x[some]) for some in rows.split(BATCH, 1)]
    answer = torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts, 1), *answers)

    def median(values: Tensor) -> Tensor:
        return values.median(1, keepdim=True).values

    if isinstance(answer, NormalInverseGamma):
        nu, alpha_minus_one = median(answer.nu), median(answer.alpha_minus_one)
        beta = median(answer.beta / answer.alpha) * (1 + alpha_minus_one)
        return NormalInverseGamma(torch.zeros_like(nu), nu, alpha_minus_one=alpha_minus_one, beta=beta)
    assert isinstance(answer, Normal)
    scale = median(answer.scale)
    return Normal(torch.zeros_like(scale), scale)


def _same_number(rows: Sequence[Tensor]) -> Tensor:
    """Return equally many rows of each network, (M, n): of more than a few thousand some, spread over all."""
    count = min(LEARNED_FROM, *(len(r) for r in rows))
    return torch.stack([r[torch.from_numpy(np.linspace(0, len(r) - 1, count).astype(np.int64))] for r in rows])


def _features(fitted: Fitted, x: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Yield the features of each network's own rows, (M, n, D), a few rows at a time."""
    for some in rows.split(BATCH, 1):
        yield fitted.features(x[some])


def choose_power(
    method: Method,
    x: Array,
    y: Array,
    rows: Rows,
    seed: int,
    *,
    recipe: Recipe,
    validation_fraction: float = 0.1,
    censored: NDArray[np.int8] | None = None,
    **options: Any,
) -> float:
    """Return the power by which evidence should fade beyond these rows, learned from these rows alone.

    Networks that did not see the ends of a direction predict them. The power is the one with the best likelihood of the
    third of these rows that is farthest from what the networks saw: near by, every power says the same. With fewer than
    50 rows, without validation rows, or if no feature varies, it is 2.

    Args:
        method, x, y, censored, **options: as for :func:`howsure.fitting.fit`.
        recipe: for as many rows as `rows_of_a_fold` says; at most 500 of its steps are taken.
        rows: those that count.
        seed: of the directions and of the networks.
        validation_fraction: of the rows that the networks learn from.
    """
    if len(rows) < FEWEST or not validation_fraction:
        return USUAL_POWER
    folds = extrapolation_folds(x, rows, seed)
    if not folds:
        return USUAL_POWER
    if options.get("progress"):
        sys.stderr.write("networks that do not see the ends of the data, to learn how fast evidence fades\n")
    members = fold_members(folds, seed, validation_fraction)
    fitted = fit(method, x, y, members, recipe=short_recipe(recipe), censored=censored, **options)
    return learned_power(fitted, x, y, folds, members, read_censored(censored, y))


def fold_members(folds: Sequence[Fold], seed: int, validation_fraction: float = 0.1) -> list[Member]:
    """Return the members that learn from the inner rows of each fold, two for each."""
    seeds = [seed + k for k in range(NETWORKS)]
    return [m for inner, _ in folds for m in hold_out(inner, seeds, validation_fraction)]


def learned_power(
    fitted: Fitted,
    x: Array,
    y: Array,
    folds: Sequence[Fold],
    members: Sequence[Member],
    censored: NDArray[np.int8] | None = None,
) -> float:
    """Return the power that the ends of the folds prefer, by networks that were fitted to `fold_members`."""
    faded = with_fading(fitted, x, members, 1.0)
    usable = fitted.training.best_score.isfinite() & ~fitted.training.diverged
    distances, scores = [], []
    for k, (_, ends) in enumerate(folds):
        chosen = [i for i in range(NETWORKS * k, NETWORKS * (k + 1)) if usable[i]]
        if chosen:
            answer, keep = faded.ask(x[ends], chosen)
            assert keep is not None
            distances.append(-keep.log().mean(0))
            known = None if censored is None else torch.from_numpy(censored[ends])
            scores.append(scores_by_power(answer, keep, torch.from_numpy(y[ends]), faded.usual(chosen), known))
    return best_power(torch.cat(distances), torch.cat(scores, 1)) if scores else USUAL_POWER


def extrapolation_folds(x: Array, rows: Rows, seed: int) -> list[Fold]:
    """Return folds by several directions: half of them features, the others random.

    Of more than 2,000 rows, so many are drawn first. A table with one feature has one direction.
    """
    random = np.random.default_rng([seed, 2])
    own = np.sort(random.choice(rows, MOST, replace=False)) if len(rows) > MOST else rows
    part = x[own]
    with np.errstate(over="ignore"):
        spread = part.std(0)
    varying = np.flatnonzero((spread > 0) & np.isfinite(spread))
    scaled = (part[:, varying] - part[:, varying].mean(0)) / spread[varying]
    if len(varying) < 2:
        directions = [scaled[:, 0]] if len(varying) else []
    else:
        features = random.permutation(len(varying))[: DIRECTIONS // 2]
        mixed = random.standard_normal((len(varying), DIRECTIONS - len(features)))
        directions = [*scaled[:, features].T, *(scaled @ mixed).T]
    folds = []
    for values in directions:
        # rows with the same value come in random order: where many share one, they are on both sides
        order = np.lexsort((random.random(len(values)), values))
        each = round(len(order) * LEFT_OUT / 2)
        folds.append((np.sort(own[order[each:-each]]), own[np.concatenate([order[:each], order[-each:]])]))
    return folds


def rows_of_a_fold(rows: int) -> int:
    """Return how many rows the networks of `choose_power` learn from, of a table of so many."""
    return round(min(rows, MOST) * (1 - LEFT_OUT))


def best_power(distance: Tensor, nll: Tensor) -> float:
    """Return the power that the far third of the rows prefers; of several that are about as good, the largest.

    Too much doubt is the smaller fault. About as good is what differs from the best by at most one standard error. Rows
    at a distance of 0 keep all evidence by every power and do not count; if there are no others, it is the usual one.

    Args:
        distance: of the rows, (rows,).
        nll: their negative log likelihood by every power, (powers, rows).
    """
    far = nll[:, (distance >= distance.quantile(1 - FAR)) & (distance > 0)]
    if not far.shape[1]:
        return USUAL_POWER
    worse = far - far[far.mean(1).nan_to_num(torch.inf, torch.inf).argmin()]
    error = worse.std(1, correction=0) / worse.shape[1] ** 0.5
    good = (worse.mean(1) <= error).nonzero()
    return POWERS[int(good.max())] if len(good) else USUAL_POWER


def short_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe with at most 500 steps."""
    settings, steps = recipe.settings, min(STEPS, recipe.settings.steps)
    every = max(1, min(settings.evaluate_every, steps // 20))
    warmup = min(1.0, settings.warmup * settings.steps / steps)
    return replace(recipe, settings=replace(settings, steps=steps, warmup=warmup, evaluate_every=every))


def scores_by_power(
    answer: Answer, keep: Tensor, y: Tensor, typical: Answer | None = None, censored: Tensor | None = None
) -> Tensor:
    """Return the negative log likelihood of every row by every power, (powers, rows).

    Args:
        answer: of the networks, (networks, N) or (networks, N, T).
        keep: the share of their evidence that a power of 1 keeps, (networks, N).
        y: targets, (N,) or (N, T).
        typical: what the networks usually say, if they are to settle.
        censored: of the shape of y, as `read_censored` returns it; None: all are values.
    """
    scores = []
    for power in POWERS:
        mixture = Mixture(faded_answer(answer, keep.pow(power), typical).predictive(), dim=0, validate_args=False)
        nll = -log_likelihood(mixture, y, censored)
        scores.append(nll.mean(1) if nll.ndim > 1 else nll)
    return torch.stack(scores)
