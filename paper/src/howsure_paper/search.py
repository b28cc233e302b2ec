"""Choose a method's one number (λ, dropout rate, prior) by cross-validation: candidates x folds as one population."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from howsure.distributions import Mixture
from howsure.errors import InputError
from howsure.likelihoods.base import Method, Recipe
from howsure.tables.censoring import cells_of_bounds, log_likelihood, read_censored
from howsure.tables.members import hold_out
from howsure.tables.model import TableModel
from howsure_paper.training import fit

__all__ = ["Search", "folds_of", "mixtures", "one_standard_error", "search", "searched_by"]

Array = NDArray[np.float64]
# the number of each method that is searched, and its candidates; of those that tie, the first is taken
SEARCHED: dict[str, tuple[str, tuple[float, ...]]] = {
    "Evidential": ("weight", (0.0, 0.001, 0.01, 0.1, 1.0)),
    "MCDropout": ("rate", (0.3, 0.2, 0.1, 0.05, 0.02, 0.005)),
}


def searched_by(method: Method) -> tuple[str, tuple[float, ...]] | None:
    """Return the parameter of a method that is searched, and its candidates; None if it has none."""
    return next((SEARCHED[cls.__name__] for cls in type(method).__mro__ if cls.__name__ in SEARCHED), None)


@dataclass(frozen=True)
class Search:
    """The candidates of a search, their scores, and the one that was chosen."""

    parameter: str
    candidates: tuple[float, ...]
    scores: Array  # (candidates, folds): the negative log likelihood of a fold's rows, in nats a row
    chosen: float

    def to_dict(self) -> dict[str, Any]:
        """Return the search as plain values, with None for the score of a network that diverged."""
        scores = [[value if np.isfinite(value) else None for value in row] for row in self.scores.tolist()]
        return {**asdict(self), "candidates": list(self.candidates), "scores": scores}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Search":
        scores = np.array([[np.inf if value is None else value for value in row] for row in saved["scores"]])
        return cls(saved["parameter"], tuple(saved["candidates"]), scores, saved["chosen"])


def search(
    method: Method,
    x: ArrayLike,
    y: ArrayLike,
    groups: Sequence[ArrayLike],
    *,
    parameter: str | None = None,
    candidates: Sequence[float] | None = None,
    folds: int | None = None,
    seed: int = 0,
    validation_fraction: float = 0.1,
    recipe: Recipe | None = None,
    effort: float = 1.0,
    sample_weight: ArrayLike | None = None,
    censored: ArrayLike | None = None,
    **options: Any,
) -> list[Search]:
    """Return, for each group of rows, which number the method should use on them; all groups are searched at once.

    One network per group, candidate and fold. The networks of a fold start alike, see the same batches and stop by the
    same rows, which are not those of the fold they are scored on, so that they differ in the candidate alone.

    Args:
        method: its parameter and candidates are those of `searched_by`, unless they are given here:
        parameter: a field of the method that takes one value per member.
        candidates: in the order of preference: of those that tie, the first is chosen.
        groups: rows of the table (x, y), each a set of training rows. Rows in no group leave no trace.
        folds: 5 by default, 3 from 5,000 rows on.
        seed, validation_fraction: how a group is divided.
        effort: the share of the recipe's steps that the networks of the search get.
        recipe, sample_weight, censored, **options: as for :func:`howsure_paper.training.fit`.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    usual = searched_by(method) or ("", ())
    if usual == ("", ()) and (parameter is None or candidates is None):
        raise InputError(f"{type(method).__name__} has no number to search; name the parameter and its candidates")
    parameter, tried = parameter or usual[0], tuple(float(c) for c in candidates or usual[1])
    folds = folds or (5 if min(np.size(rows) for rows in groups) < 5000 else 3)
    parts = [folds_of(rows, folds, seed) for rows in groups]
    # (group, fold, candidate) with the candidate as the fastest index
    members = [
        member
        for group in parts
        for k in range(folds)
        for member in hold_out(np.concatenate(group[:k] + group[k + 1 :]), [seed + k], validation_fraction) * len(tried)
    ]
    if effort != 1.0:
        recipe = recipe or method.recipe(max(len(m.train) for m in members))
        steps = max(1, round(effort * recipe.settings.steps))
        recipe = replace(recipe, settings=replace(recipe.settings, steps=steps))
    each = replace(method, **{parameter: tried * (len(parts) * folds)})  # type: ignore[type-var]
    fitted = fit(each, x, y, members, recipe=recipe, sample_weight=sample_weight, censored=censored, **options)
    cells = cells_of_bounds(y, read_censored(censored, y))
    scores = _scores(fitted, x, y, parts, len(tried), weights, cells)
    return [Search(parameter, tried, group.T, tried[one_standard_error(group.T)]) for group in scores]


def _scores(
    fitted: TableModel,
    x: Array,
    y: Array,
    parts: Sequence[Sequence[NDArray[np.int64]]],
    tried: int,
    weights: Array,
    cells: Array | None = None,
) -> Array:
    """Return the score of each network on the rows of its fold, (group, fold, candidate); infinite if it diverged."""
    diverged = fitted.result.diverged.cpu().numpy().reshape(len(parts), -1, tried)
    scores = np.full(diverged.shape, np.inf)
    for k, (group, fold) in enumerate(np.ndindex(scores.shape[:2])):
        # the networks of a fold answer together: a call costs the same for one as for all
        rows, members = parts[group][fold], range(k * tried, (k + 1) * tried)
        target = torch.from_numpy(y[rows]).expand(tried, *y[rows].shape)
        known = None if cells is None else torch.from_numpy(cells[rows]).expand(*target.shape, 2)
        surprise = -log_likelihood(mixtures(fitted, x[rows], tried, members), target, known).numpy()
        scores[group, fold] = np.average(surprise.reshape(tried, len(rows), -1).mean(2), axis=1, weights=weights[rows])
    return np.where(diverged, np.inf, scores)


def mixtures(fitted: TableModel, x: Array, count: int, members: Sequence[int] | None = None) -> Mixture:
    """Return several models at once, (count, N) or (count, N, T): equally many members for each, in their order."""
    each = fitted.select(members).evaluate(x)[0].predictive()
    apart = torch.utils._pytree.tree_map(lambda p: p.unflatten(0, (count, -1)), each)
    return Mixture(apart, dim=1, validate_args=False)


def folds_of(rows: ArrayLike, folds: int, seed: int) -> list[NDArray[np.int64]]:
    """Return these rows in so many parts of equal size, at random."""
    table = np.asarray(rows, dtype=np.int64)
    # a fold's networks need two rows to learn from and one to stop by
    if folds < 2 or len(table) < max(folds, 5):
        raise InputError(
            f"{len(table)} rows are too few for a search over {folds} folds, which needs at least {max(folds, 5)}; "
            "fix the parameter to a number instead of 'auto'"
        )
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(table), folds)]


def one_standard_error(scores: Array) -> int:
    """Return the first candidate that ties with the best: its mean excess over it is within one standard error.

    The error is that of the excess, fold by fold: what makes a fold hard is common to all candidates and cancels.
    """
    mean = scores.mean(1)
    if not np.isfinite(mean).any():
        raise InputError("no candidate has a finite score on every fold; is the learning rate too large?")
    best = int(np.nanargmin(np.where(np.isfinite(mean), mean, np.inf)))
    for k, row in enumerate(scores):
        excess = row - scores[best]
        if k == best or (np.isfinite(mean[k]) and excess.mean() <= excess.std(ddof=1) / np.sqrt(len(excess))):
            return k
    return best
