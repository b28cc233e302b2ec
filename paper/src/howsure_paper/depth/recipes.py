"""The methods of the depth experiment, and the recipe by which the networks of each group are trained."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from howsure.images import Augmentation, ImageRecipe
from howsure.likelihoods import Evidential, Method, NormalLikelihood
from howsure.training import Settings
from howsure_paper.baselines import LeastSquares
from howsure_paper.depth.plan import GROUPS, Plan

__all__ = ["METHODS", "QUICK_RECIPE", "RECIPE", "base_recipe", "group_recipe", "plan_record"]

METHODS: Mapping[str, Method] = {
    "evidential": Evidential(0.01),
    "evidential, paper's weight": Evidential(0.1),
    "gaussian": NormalLikelihood(),
    "least squares": LeastSquares(),
}
# Chosen on validation pairs by studies/depth_recipe.py: what a crop enlarges is nearer, so that its disparities grow.
RECIPE = ImageRecipe(augmentation=Augmentation(rescale=True))
# Just enough to do better than the mean of the maps. Zoom and colour changes are off: 500 steps are too few to learn
# those invariances.
QUICK_RECIPE = replace(
    RECIPE,
    width=8,
    blocks=4,
    batch_size=8,
    augmentation=Augmentation(zoom=1, color=0.0),
    settings=Settings(steps=500, learning_rate=3e-3, evaluate_every=50),
)
RECORDED = ("steps", "learning_rate", "schedule")  # the settings of each group that are in the record


def base_recipe(plan: Plan) -> ImageRecipe:
    """Return the recipe that the groups make their changes to."""
    recipe = QUICK_RECIPE if plan.quick else RECIPE
    if plan.steps is None:
        return recipe
    settings = replace(recipe.settings, steps=plan.steps, evaluate_every=max(1, min(250, plan.steps // 4)))
    return replace(recipe, settings=settings)


def group_recipe(plan: Plan, name: str) -> ImageRecipe:
    """Return the recipe of a group of networks."""
    recipe, group = base_recipe(plan), plan.group(name)
    return replace(recipe, settings=replace(recipe.settings, **group.settings), **group.recipe)


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return the settings that must be equal for a run to continue from another's record."""
    settings = {name: group_recipe(plan, name).settings for name in GROUPS}
    recipe = asdict(base_recipe(plan))
    # records use the earlier name "colour", so that runs continue from them
    recipe["augmentation"] = {"colour" if k == "color" else k: v for k, v in recipe["augmentation"].items()}
    return {
        "recipe": recipe,
        "groups": {name: {key: getattr(each, key) for key in RECORDED} for name, each in settings.items()},
        "split_seed": plan.seed,
        "quick": plan.quick,
    }
