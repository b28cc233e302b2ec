"""The methods of Table 1, with the library's networks and recipes or with those of the authors' code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from howsure.distributions import NormalInverseGamma
from howsure.errors import InputError
from howsure.formulas import penalties
from howsure.formulas.nig import nll
from howsure.likelihoods import Evidential, Method, Network, NormalLikelihood, Recipe
from howsure.nn import Population
from howsure.training import Settings
from howsure_paper.baselines import BayesByBackprop, MCDropout
from howsure_paper.paper import UCI_SETTINGS
from howsure_paper.uci.plan import Plan

__all__ = ["ReleasedEvidential", "best_recipe", "method_of", "recipe_of", "released_recipe"]

ASCENT, AIM = 1e-4, 0.01  # of λ, in the authors' code


@dataclass(frozen=True)
class ReleasedEvidential(Evidential):
    """λ by the dual ascent of the authors' code: from 0, each step by 1e-4 times what the penalty has above 0.01.

    λ changes during training and is therefore a buffer of the networks, which a checkpoint keeps.
    """

    weight: float | Sequence[float] = 0.0

    def loss(
        self,
        answer: NormalInverseGamma,
        y: Tensor,
        networks: nn.Module | None = None,
        cells: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        if cells is not None:
            raise InputError("the authors' loss is not defined for censored targets; use Evidential")
        parameters = answer.parameters
        excess = penalties.error(y, *parameters) - AIM
        assert networks is not None
        weight = cast(Tensor, networks.evidence_weight)
        each = nll(y, *parameters) + weight.clone() * excess
        weight.add_(ASCENT * excess.detach().mean((1, 2), keepdim=True))
        return each

    def fused(self, population: Population) -> dict[str, Any]:
        weight = cast(Tensor, population.evidence_weight).view(-1)  # the kernel moves λ in the buffer itself
        return {"evidential": True, "weight": weight, "ascent": ASCENT, "aim": AIM}


def method_of(name: str, plan: Plan) -> tuple[Method, int]:
    """Return a method, and how many of its networks make one model.

    The paper's evidential model is one network; the library's is a mixture of as many as the other methods have.
    """
    paper = plan.network == "paper"
    return {
        "evidential": (ReleasedEvidential(), 1) if paper else (Evidential(0.01), plan.members),
        "gaussian": (NormalLikelihood(), 1),
        "ensemble": (NormalLikelihood(), plan.members),
        "dropout": (MCDropout(plan.members, 0.05), 1),
        "bayes": (BayesByBackprop(plan.members), 1),
    }[name]


def recipe_of(method: Method, name: str, rows: int, plan: Plan) -> Recipe:
    """Return the recipe of a method on a set with so many training rows."""
    # by the standard protocol nothing is chosen on the way, and an evaluation only says who diverged
    every = 100 if plan.protocol == "published" else 1000
    recipe = best_recipe(method, rows) if plan.network == "best" else released_recipe(name, rows, every)
    if plan.steps is not None:
        every = max(1, min(recipe.settings.evaluate_every, plan.steps // 10))
        recipe = replace(recipe, settings=replace(recipe.settings, steps=plan.steps, evaluate_every=every))
    return recipe


def best_recipe(method: Method, rows: int) -> Recipe:
    """Return the network and settings that the committed records were made with, whatever the library's are by now."""
    small = rows < 5000
    if isinstance(method, BayesByBackprop):
        if small:
            return Recipe(Network((50,)), Settings(steps=8000, learning_rate=1e-2, evaluate_every=400), 64)
        return Recipe(Network((128, 128)), Settings(steps=20_000, learning_rate=5e-3, evaluate_every=1000), 256)
    if small:
        return Recipe(Network((128, 128)), Settings(steps=4000, learning_rate=5e-3, evaluate_every=50), 64)
    return Recipe(Network((256, 256, 256)), Settings(steps=20_000, learning_rate=1e-3, evaluate_every=200), 256)


def released_recipe(name: str, rows: int, evaluate_every: int = 100) -> Recipe:
    """Return the authors' network and settings: 50 ReLU units, Adam at a constant rate, 40 epochs, the last weights."""
    released = UCI_SETTINGS.get(name, UCI_SETTINGS["boston"])
    settings = Settings(
        steps=40 * rows // released.batch_size,
        learning_rate=released.learning_rate,
        warmup=0.0,
        schedule="constant",
        clip=None,
        evaluate_every=evaluate_every,
    )
    return Recipe(Network((50,), "relu"), settings, released.batch_size)
