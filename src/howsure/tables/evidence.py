"""Evidence of a fitted table model by conjugacy; :mod:`howsure.nn.evidence` has the formulas.

The ridge λ is learned without any row from outside: networks that are fitted for a few hundred steps to the inner part
of the training rows predict the ends that were left out along several directions. λ is the smallest number under which
these ends are as likely as under the best one, up to one standard error over directions: of several that explain the
ends equally well, it is the most cautious.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from howsure.distributions import NormalInverseGamma
from howsure.formulas import nig
from howsure.likelihoods.base import Method, Recipe
from howsure.nn.evidence import PRIOR_VARIANCE, ConjugateEvidence, FeatureBasis
from howsure.tables.members import hold_out
from howsure.tables.target import Target
from howsure.tables.views import Views

__all__ = [
    "TableEvidence",
    "add_evidence",
    "best_ridge",
    "extrapolation_folds",
    "learn_ridge",
    "rows_of_a_fold",
    "short_recipe",
]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Fold = tuple[Rows, Rows]  # inner rows, rows of both ends

MIN_ROWS_FOR_FOLDS = 50
MAX_FOLD_ROWS = 2000
DIRECTIONS = 8  # along which both ends are left out: half of them features, the others random
LEFT_OUT_SHARE = 1 / 3  # of the rows, in both ends together
FOLD_STEPS = 300
RIDGES = tuple(float(v) for v in np.geomspace(1e-3, 1e5, 17))
WORST_NLL = 1e4  # of a left-out row: larger values do not help to choose λ
EDGE_RIDGE = 1e-4  # without folds: of the mean eigenvalue
MIN_RIDGE = 1e-8  # for features that do not vary: their eigenvalues are 0
EDGE_QUANTILE = 0.9  # of the leverage of held-out rows, beyond which the variance grows without folds
RANK = 128  # directions of the features along which the inverse is exact
MAX_TRAIN_ROWS = 4000  # of a network, from which its features are learned
BATCH_ROWS = 500  # whose features are computed at once
SCALE_QUANTILES = (0.01, 0.99)  # of a network's scale on training rows, which bound it everywhere
MIN_EXCESS_DF = 1.0  # df − 2: the standard deviation of a Student t is then at most 1.74 scales
MIN_EVIDENCE = 1e-3  # smallest ν
UNFAMILIAR_SHARE = 0.01  # of rows like the training rows that are flagged
MIN_ROWS_FOR_THRESHOLD = 50  # held-out rows; of new rows, one in 51 is then flagged


class TableEvidence(nn.Module):
    """Total scale, evidence and bounded mean of each network of a table model, for standardized targets.

    Args:
        leverage: of the features of each network.
        **parts: the buffers, which are described below.
    """

    typical: Tensor  # s̄, (M, 1, T)
    lowest: Tensor  # bounds of s, (M, 1, T)
    highest: Tensor
    most_excess: Tensor  # largest α − 1 on training rows, (M, 1, T)
    tails: Tensor  # factor of α − 1, learned with the width, (M, 1, T)
    reference: Tensor  # h₀, (M, 1)
    rate: Tensor  # κ, (M, 1)
    median: Tensor  # of the leverage of held-out rows, (M, 1)
    prior: Tensor  # V₀, ()

    def __init__(self, leverage: ConjugateEvidence, **parts: Tensor) -> None:
        super().__init__()
        self.leverage = leverage
        for name in TableEvidence.__annotations__:
            self.register_buffer(name, parts[name])

    def forward(
        self, answer: NormalInverseGamma, features: Tensor, width: Tensor | float = 1.0
    ) -> tuple[NormalInverseGamma, Tensor]:
        """Return distributions (M, N, T) with evidence by conjugacy, and the familiarity of each row (M, N).

        Args:
            answer: distributions of the networks, (M, N, T).
            features: of all hidden layers, (M, N, D).
            width: factor of the scales of the networks, (T,).
        """
        return self.with_leverage(answer, self.leverage(features), width)

    def with_leverage(
        self, answer: NormalInverseGamma, leverage: Tensor, width: Tensor | float = 1.0
    ) -> tuple[NormalInverseGamma, Tensor]:
        """Return the result of ``forward`` for rows with this leverage, (M, N)."""
        excess = torch.minimum(answer.alpha_minus_one, self.most_excess).clamp(min=MIN_EXCESS_DF / 2) * self.tails
        scale = width * nig.predictive_scale(answer.nu, answer.alpha_minus_one, answer.beta)
        scale = torch.maximum(torch.minimum(scale, self.highest), self.lowest)
        made = nig.conjugate_evidence(
            nig.Parameters(answer.gamma, answer.nu, excess, answer.beta),
            scale,
            self.typical.square() * torch.minimum(leverage, self.reference).unsqueeze(-1),
            self.typical.square() * (leverage - self.reference).clamp(min=0).unsqueeze(-1),
            self.rate.unsqueeze(-1),
            self.prior,
            MIN_EVIDENCE,
        )
        return NormalInverseGamma(
            made.gamma, made.nu, alpha_minus_one=made.alpha_minus_one, beta=made.beta, validate_args=False
        ), self.familiarity(leverage)

    def familiarity(self, leverage: Tensor) -> Tensor:
        """Return the familiarity (M, N) of rows with this leverage."""
        return (self.median / leverage).clamp(max=1)

    def select(self, members: Sequence[int]) -> "TableEvidence":
        """Return the same for copies of some of the networks."""
        chosen = list(members)
        parts = {name: part[chosen] if part.ndim else part for name, part in self.named_buffers(recurse=False)}
        return TableEvidence(self.leverage.select(chosen), **parts)


class _Learned(NamedTuple):
    """Statistics of the training rows for each network: the basis of its features, and its scales."""

    basis: FeatureBasis
    scales: dict[str, Tensor]  # buffers of the evidence that do not depend on λ
    held_out: Tensor  # features of validation rows (M, n, D); of training rows where there are none


@torch.no_grad()
def _learn(model: Any, views: Views) -> _Learned:
    """Return the statistics for each network, from at most ``MAX_TRAIN_ROWS`` training rows."""
    table, members = views.table, views.members
    train, held_out = _equally_many([m.train for m in members]), _equally_many([m.validation for m in members])
    if train.shape[1] < 2:  # one row has no spread
        train = torch.cat([train, held_out], 1)
    excess, scales, features = [], [], []
    for batch in train.split(BATCH_ROWS, 1):
        answer, own = model.before_evidence(table[batch])
        scales.append(nig.predictive_scale(answer.nu, answer.alpha_minus_one, answer.beta))
        excess.append(answer.alpha_minus_one)
        features.append(own)
    scale = torch.cat(scales, 1)
    quantiles = torch.tensor(SCALE_QUANTILES, dtype=scale.dtype, device=scale.device)
    lowest, highest = scale.quantile(quantiles, dim=1, keepdim=True)
    typical = scale.median(1, keepdim=True).values
    clamped = torch.maximum(torch.minimum(scale, highest), lowest)
    weights = (2 * (typical.log() - clamped.log()).mean(-1)).exp()
    rows = torch.tensor([float(len(m.train)) for m in members], dtype=torch.float64, device=scale.device)
    layers = list(model.networks.sizes[1:-1]) or [model.networks.sizes[0]]
    batches = zip(features, weights.split(BATCH_ROWS, 1), strict=True)
    basis = FeatureBasis.fit(batches, layers=layers, rows=rows)
    known = held_out if held_out.shape[1] else train
    inner = torch.cat([model.before_evidence(table[batch])[1] for batch in known.split(BATCH_ROWS, 1)], 1)
    largest = torch.cat(excess, 1).quantile(SCALE_QUANTILES[1], dim=1, keepdim=True)
    found = {"typical": typical, "lowest": lowest, "highest": highest, "most_excess": largest}
    found |= {"tails": torch.ones_like(typical), "prior": torch.tensor(PRIOR_VARIANCE, device=typical.device)}
    return _Learned(basis, found, inner)


def _with_ridge(learned: _Learned, ridge: float | None, squares: tuple[Tensor, Tensor] | None = None) -> TableEvidence:
    """Return the evidence with a ridge; None: relative to the edge of the training rows.

    Args:
        learned: statistics of the training rows.
        ridge: λ.
        squares: of the features of held-out rows, if they are known.
    """
    basis = learned.basis
    penalty = (basis.values.mean(-1) * EDGE_RIDGE).clamp(min=MIN_RIDGE) if ridge is None else ridge
    leverage = ConjugateEvidence.of(basis, penalty, rank=RANK)
    held_out = leverage.of_squares(*(squares or leverage.squares(learned.held_out))).double()
    quantiles = torch.tensor([0.5, EDGE_QUANTILE], dtype=torch.float64, device=held_out.device)
    median, edge = held_out.quantile(quantiles, dim=1).unsqueeze(-1)
    reference, rate = (edge, 1 / edge) if ridge is None else (median, torch.ones_like(edge))
    parts = learned.scales | {"median": median, "reference": reference, "rate": rate}
    return TableEvidence(leverage, **{name: part.float() for name, part in parts.items()})


def add_evidence(model: Any, views: Views, ridge: float | None) -> Any:
    """Return the model with evidence by conjugacy.

    Args:
        model: a trained model.
        views: the inputs of its networks for all rows.
        ridge: λ; None: the variance grows relative to the edge of the training rows.
    """
    learned = _learn(model, views)
    model.evidence = _with_ridge(learned, ridge)
    model.ready()
    model.unfamiliar_below = _unfamiliar_below(model, views, learned.held_out)
    return model


@torch.no_grad()
def _unfamiliar_below(model: Any, views: Views, features: Tensor) -> float | None:
    """Return the familiarity below which 1% of rows like the training rows lie; None for fewer than 50 held-out rows.

    Each held-out row counts with the mean familiarity of the networks that held it out, from its features (M, n, D).
    """
    rows = _equally_many([m.validation for m in views.members])
    total, count = torch.zeros(2, len(views.x), dtype=torch.float64, device="cpu")
    familiarity = model.evidence.familiarity(model.evidence.leverage(features)).double()
    for own, shares, weight in zip(rows, familiarity, model.network_weights, strict=True):
        total[own] += weight * shares[: len(own)]  # without validation rows, the features are of training rows
        count[own] += weight
    known = count > 0
    if int(known.sum()) < MIN_ROWS_FOR_THRESHOLD:
        return None
    return float(np.quantile((total[known] / count[known]).numpy(), UNFAMILIAR_SHARE, method="lower"))


def _equally_many(rows: Sequence[Tensor]) -> Tensor:
    """Return equally many rows of each network, (M, n): of more than ``MAX_TRAIN_ROWS`` some, spread over all."""
    count = min(MAX_TRAIN_ROWS, *(len(r) for r in rows))
    return torch.stack([r[torch.from_numpy(np.linspace(0, len(r) - 1, count).astype(np.int64))] for r in rows])


# λ from left-out ends -------------------------------------------------------------------------------------------------


def learn_ridge(
    train: Any, method: Method, views: Views, target: Target, seed: int, recipe: Recipe, share: float, **options: Any
) -> float | None:
    """Return λ as learned from left-out ends of the training rows.

    It is None with fewer than 50 rows, without validation rows, or if fewer than two features vary: one direction does
    not show how errors beyond the ends differ. The networks see numbers alone, because trees know nothing beyond the
    training rows.

    Args:
        train: :func:`howsure.tables.train.train`.
        method, views, target, **options: of the fit.
        seed: of the directions and of the networks.
        recipe: for as many rows as :func:`rows_of_a_fold` returns; at most ``FOLD_STEPS`` of its steps are taken.
        share: of the rows that the networks hold out.
    """
    x = views.features
    if len(x) < MIN_ROWS_FOR_FOLDS or not share:
        return None
    folds = extrapolation_folds(x, np.arange(len(x)), seed)
    if len(folds) < 2:
        return None
    if options.get("progress"):
        sys.stderr.write("learning how intervals widen outside of the training rows\n")
    members = [m for kept, _ in folds for m in hold_out(kept, [seed], share)]
    inner = Views(x, members)
    return best_ridge(train(method, inner, target, short_recipe(recipe), **options), inner, target, folds)


@torch.no_grad()
def best_ridge(model: Any, views: Views, target: Target, folds: Sequence[Fold]) -> float | None:
    """Return the smallest ridge under which the ends of the folds are about as likely as under the best.

    About is one standard error over the folds. It is None if networks of fewer than two folds could be trained.
    """
    usable = (model.result.best_score.isfinite() & ~model.result.diverged).cpu()
    if not bool(usable.all()):
        kept = usable.nonzero().flatten().tolist()
        if len(kept) < 2:
            return None
        model, folds, views = model.select(kept), [folds[k] for k in kept], views.select(kept)
    learned = _learn(model, views)
    count = min(len(ends) for _, ends in folds)
    ends = torch.from_numpy(np.stack([own[:count] for _, own in folds]))
    answer, features = model.before_evidence(views.table[ends])
    targets = torch.from_numpy(target.table)[ends]
    cells = None if target.cells is None else torch.from_numpy(target.cells)[ends].unbind(-1)
    any_ridge = ConjugateEvidence.of(learned.basis, 1.0, rank=RANK)
    held_out, outside = any_ridge.squares(learned.held_out), any_ridge.squares(features)
    scores = []
    for ridge in RIDGES:
        evidence = _with_ridge(learned, ridge, held_out)
        made = evidence.with_leverage(answer, evidence.leverage.of_squares(*outside))[0]
        made = made.affine(model.scale_y.loc, model.scale_y.scale)
        nll = model.method.nll(made, targets, cells)
        scores.append(nll.clamp(max=WORST_NLL).nan_to_num(WORST_NLL).flatten(1).mean(1))
    table = torch.stack(scores)  # (ridges, folds)
    worse = table - table[table.mean(1).argmin()]
    error = worse.std(1) / worse.shape[1] ** 0.5
    return RIDGES[int((worse.mean(1) <= error).nonzero()[0])]


def extrapolation_folds(x: Array, rows: Rows, seed: int) -> list[Fold]:
    """Return folds along several directions: half of them features, the others random.

    Of more than ``MAX_FOLD_ROWS`` rows, this number is drawn first. A table with one feature has one direction.
    """
    random = np.random.default_rng([seed, 2])
    own = np.sort(random.choice(rows, MAX_FOLD_ROWS, replace=False)) if len(rows) > MAX_FOLD_ROWS else rows
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
        each = round(len(order) * LEFT_OUT_SHARE / 2)
        folds.append((np.sort(own[order[each:-each]]), own[np.concatenate([order[:each], order[-each:]])]))
    return folds


def rows_of_a_fold(rows: int) -> int:
    """Return the number of rows that the networks of :func:`learn_ridge` learn from, of a table of ``rows``."""
    return round(min(rows, MAX_FOLD_ROWS) * (1 - LEFT_OUT_SHARE))


def short_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe with at most ``FOLD_STEPS`` steps."""
    short = recipe.with_steps(min(FOLD_STEPS, recipe.settings.steps))
    steps = short.settings.steps
    warmup = min(1 - 1 / steps, recipe.settings.warmup * recipe.settings.steps / steps)
    return replace(short, settings=replace(short.settings, warmup=warmup))
