"""Fit a population of networks to the rows of a table, all at once, and predict with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from evidentia.data.encoding import IGNORED, Scaling
from evidentia.distributions import Gaussian, Mixture, NormalInverseGamma
from evidentia.errors import InputError
from evidentia.fitting.fused import Fused, allowed
from evidentia.fitting.members import Member
from evidentia.methods.base import Method, Recipe
from evidentia.nn import Population
from evidentia.prediction import Prediction
from evidentia.training import TableBatches, Training, resolve_device, train
from evidentia.training.batches import pad_rows
from evidentia.training.checkpoint import fingerprint

__all__ = ["Fitted", "fit"]

CHUNK = 1 << 22  # how many (member, row) pairs to evaluate at once


@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    method: Method,
    x: ArrayLike,
    y: ArrayLike,
    members: Sequence[Member],
    *,
    recipe: Recipe | None = None,
    device: str | torch.device = "auto",
    sample_weight: ArrayLike | None = None,
    standardise: bool = True,
    validate: "Callable[[Fitted], Tensor] | None" = None,
    fused: bool | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> "Fitted":
    """Train one network per member, all at once. Each sees its own rows only, standardised by its training rows.

    Args:
        method: how raw outputs become an answer and a loss.
        x: features (N, F), numbers.
        y: targets (N,) or (N, T), in any units.
        members: one entry per network; :func:`hold_out` makes them.
        recipe: network, settings and batch size, the same for all; by default what the number of rows suggests.
        device: "auto", "cpu", "cuda" or "mps".
        sample_weight: (N,), non-negative; weighs the rows in the loss and in the validation score.
        standardise: if False, networks see features and targets as they are, and λ has the unit 1/y.
        validate: a score of each member in the place of its validation rows'; smaller is better.
        fused: train in one kernel without a launch between steps, which small networks on CUDA can; by default where
            possible.
        checkpoint: a file to continue from, as in :func:`evidentia.training.train`; one of another fit is refused.
        progress: show it.
    """
    place = resolve_device(device)
    features = torch.from_numpy(np.array(x, dtype=float))
    targets = torch.from_numpy(np.array(y, dtype=float))
    weights = None if sample_weight is None else torch.from_numpy(np.array(sample_weight, dtype=float))
    _check_table(features, targets, members, weights)
    recipe = recipe or method.recipe(max(len(m.train) for m in members))
    one_target = targets.ndim == 1
    targets = targets.reshape(len(targets), -1)
    # scale in float64 on the CPU: a column with mean 1e6 and spread 1 has no digits left in float32
    rows = [m.train for m in members]
    if standardise:
        scale_x, scale_y = Scaling.fit(features, rows, ignore_constant=True), Scaling.fit(targets, rows)
    else:
        scale_x, scale_y = Scaling.none(features, rows), Scaling.none(targets, rows)
    table = _Table.build(features, targets, weights, members, scale_x, scale_y, place)
    seeds = [m.seed for m in members]
    population = method.build(seeds, features.shape[1], method.outputs * targets.shape[1], recipe.network).to(place)
    row_counts = torch.tensor([len(r) for r in rows], device=place)
    fitted = Fitted(method, population, scale_x, scale_y, one_target)
    batches = TableBatches(table.tensors, rows, seeds, recipe.batch_size)
    fast = (
        Fused(method, population, batches, table.own_x, table.own_y, row_counts)
        if allowed(fused, method, population, recipe, weights is not None)
        else None
    )

    # of dropout and weight noise: a generator of this fit alone, so that fits in other threads draw nothing from it
    population.generator = torch.Generator(place).manual_seed(seeds[0])
    with torch.autocast(place.type, enabled=False):  # the settings say what precision is used, not the caller's context
        fitted.training = train(
            population,
            batches,
            _loss(table, fitted, row_counts),
            validate=_score(table, fitted, members, validate),
            settings=recipe.settings,
            fast_steps=fast,
            checkpoint=checkpoint,
            identity="" if checkpoint is None else _identity(method, members, recipe, features, targets, weights),
            progress=progress,
        )
    population.generator = None
    return fitted


def _identity(method: Method, members: Sequence[Member], recipe: Recipe, *tables: Tensor | None) -> str:
    """A hash of all that a training depends on beside its settings: method, network, members and data."""
    rows = [part for m in members for part in (m.train, m.validation)]
    return fingerprint(method, recipe.network, recipe.batch_size, [m.seed for m in members], *rows, *tables)


@dataclass
class Fitted:
    """A trained population with what it needs to predict."""

    method: Method
    population: Population
    scale_x: Scaling
    scale_y: Scaling
    one_target: bool
    training: Training = field(init=False)

    def scaled_answer(self, module: nn.Module, x: Tensor) -> NormalInverseGamma | Gaussian:
        """The answer to scaled features (M, N, F), of shape (M, N, T), for scaled targets."""
        return self.method.answer(module(x).unflatten(-1, (-1, self.method.outputs)))

    def predict(self, x: ArrayLike, members: Sequence[int] | None = None) -> Prediction:
        """The mixture of these members (default: all) on features (N, F), in the units of y."""
        return Prediction(self.answers(x, members), members=0)

    def select(self, members: Sequence[int]) -> "Fitted":
        """A model of some of the networks."""
        chosen = list(members)
        some = replace(
            self,
            population=self.population.select(chosen),
            scale_x=self.scale_x.select(chosen),
            scale_y=self.scale_y.select(chosen),
        )
        some.training = self.training
        return some

    def mixtures(self, x: ArrayLike, count: int, members: Sequence[int] | None = None) -> Mixture:
        """Several models at once, (count, N) or (count, N, T): equally many members for each, in their order."""
        each = self.answers(x, members).predictive()
        apart = torch.utils._pytree.tree_map(lambda p: p.unflatten(0, (count, -1)), each)
        return Mixture(apart, dim=1, validate_args=False)

    @torch.no_grad()
    def answers(self, x: ArrayLike, members: Sequence[int] | None = None) -> NormalInverseGamma | Gaussian:
        """What each network says, (networks, N) or (networks, N, T): all of a member's, one member after the other."""
        chosen = list(range(self.population.members)) if members is None else list(members)
        features = torch.from_numpy(np.array(x, dtype=float))
        if features.ndim != 2 or features.shape[1] != self.population.sizes[0]:
            raise InputError(f"x must have shape (N, {self.population.sizes[0]}), got {tuple(features.shape)}")
        place = self.population.weights[0].device
        # in float64 on the CPU, so that a row's answer does not depend on how many others are asked for with it
        dtype = torch.float64 if place.type == "cpu" else torch.float32
        some = self.method.networks(self.population, chosen).to(dtype).eval()
        scaled_as = [i for i in chosen for _ in range(some.members // len(chosen))]
        scale_x, scale_y = self.scale_x.select(scaled_as), self.scale_y.select(scaled_as)
        parts = []
        for chunk in features.split(max(1, CHUNK // some.members)):
            answer = self.scaled_answer(some, scale_x(chunk).to(place, dtype))
            parts.append(torch.utils._pytree.tree_map(lambda p: p.double().cpu(), answer))
        whole = torch.utils._pytree.tree_map(lambda *p: torch.cat(p, 1), *parts)
        whole = whole.affine(scale_y.loc, scale_y.scale)
        if self.one_target:
            whole = torch.utils._pytree.tree_map(lambda p: p.squeeze(-1), whole)
        answers: NormalInverseGamma | Gaussian = whole
        return answers


def _loss(table: "_Table", fitted: Fitted, rows: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], Tensor]:
    """(Module, batch) → what each member minimises; a complexity counts once for all of its training rows."""
    method = fitted.method

    def loss(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        answer = fitted.scaled_answer(module, table.own_x(batch[0]))
        each = method.loss(answer, table.own_y(batch[1]), module)
        fit_term = each.mean((1, 2)) if len(batch) == 2 else (each.mean(2) * batch[2]).mean(1)
        complexity = method.complexity(module)
        return fit_term if complexity is None else fit_term + complexity / rows

    return loss


def _score(
    table: "_Table", fitted: Fitted, members: Sequence[Member], validate: Callable[[Fitted], Tensor] | None
) -> Callable[[nn.Module], Tensor] | None:
    """What decides which weights are kept: a score that was given, the validation rows', or nothing."""
    if validate is not None:
        return lambda _: validate(fitted)
    return table.validation_nll(fitted) if any(len(m.validation) for m in members) else None


@dataclass(frozen=True)
class _Table:
    """The table on the device, in float32, roughly scaled for all and then exactly for each member."""

    x: Tensor
    y: Tensor
    row_weights: Tensor | None  # of mean 1
    own_x: Scaling
    own_y: Scaling
    validation: Tensor
    weights: Tensor

    @classmethod
    def build(
        cls,
        x: Tensor,
        y: Tensor,
        row_weights: Tensor | None,
        members: Sequence[Member],
        scale_x: Scaling,
        scale_y: Scaling,
        place: torch.device,
    ) -> "_Table":
        # the first member's scaling brings every column near unit scale; the others' differ from it by a little
        first_x, first_y = _common(scale_x), _common(scale_y)
        # where there are no validation rows, this table of them is not used
        validation, counts = pad_rows([m.validation if len(m.validation) else m.train[:1] for m in members])
        weights = (torch.arange(validation.shape[1], device=counts.device) < counts.unsqueeze(1)).double()
        if row_weights is not None:
            row_weights = row_weights / row_weights.mean()
            weights = weights * row_weights[validation]
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-12)

        def ready(t: Tensor) -> Tensor:
            return t.float().to(place)

        def inner(own: Scaling, shared: Scaling) -> Scaling:
            return Scaling(ready((own.loc - shared.loc) / shared.scale), ready(own.scale / shared.scale))

        return cls(
            ready(first_x(x)[0]),
            ready(first_y(y)[0]),
            None if row_weights is None else ready(row_weights),
            inner(scale_x, first_x),
            inner(scale_y, first_y),
            validation.to(place),
            ready(weights),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What batches are drawn from."""
        return (self.x, self.y) if self.row_weights is None else (self.x, self.y, self.row_weights)

    def validation_nll(self, fitted: Fitted) -> Any:
        """Module → the negative log likelihood of each member on its own validation rows (scaled targets)."""

        def score(module: nn.Module) -> Tensor:
            x, y = self.x[self.validation], self.y[self.validation]
            answer = fitted.scaled_answer(module, self.own_x(x))
            nll = -answer.predictive().log_prob(self.own_y(y)).mean(-1)
            return (nll * self.weights).sum(1)

        return score


def _common(own: Scaling) -> Scaling:
    """The first member's scaling, or where a column is constant for it, that of a member for which it is not."""
    varies = own.scale.argmin(0, keepdim=True)
    first, other = own.select([0]), Scaling(own.loc.gather(0, varies), own.scale.gather(0, varies))
    constant = first.scale == IGNORED
    return Scaling(torch.where(constant, other.loc, first.loc), torch.where(constant, other.scale, first.scale))


def _check_table(x: Tensor, y: Tensor, members: Sequence[Member], weights: Tensor | None) -> None:
    if weights is not None:
        if weights.shape != (len(x),):
            raise InputError(f"sample_weight must have shape ({len(x)},), got {tuple(weights.shape)}")
        if not (weights.isfinite().all() and (weights >= 0).all() and weights.sum() > 0):
            raise InputError("sample_weight must be finite, at least 0, and not all 0")
    if x.ndim != 2:
        raise InputError(f"x must have shape (rows, features), got {tuple(x.shape)}")
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise InputError(f"y must have shape ({len(x)},) or ({len(x)}, targets), got {tuple(y.shape)}")
    if not members:
        raise InputError("no members to fit")
    for name, table in (("x", x), ("y", y)):
        bad = ~table.isfinite().reshape(len(table), -1).all(1)
        if bad.any():
            raise InputError(
                f"{name} has {int(bad.sum())} rows with NaN or infinite values (first: row {int(bad.nonzero()[0])})"
            )
    validated = any(len(m.validation) for m in members)
    for k, member in enumerate(members):
        if not len(member.train) or (validated and not len(member.validation)):
            raise InputError(
                f"member {k} has {len(member.train)} training and {len(member.validation)} validation rows"
            )
