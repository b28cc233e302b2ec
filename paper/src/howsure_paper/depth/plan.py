"""The plan of the depth experiment: which groups of networks are trained, how often, and what is asked of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from howsure.errors import InputError
from howsure_paper.protocol import LARGEST_SEED, Experiment, option

__all__ = [
    "BLOCKS",
    "EPSILONS",
    "EXPERIMENT",
    "FADED",
    "FRAME",
    "GROUPS",
    "SHOWN_EPSILONS",
    "STUDIED",
    "NetworkGroup",
    "Plan",
    "quick_plan",
]

# The labelled images of NYU have a white frame, two pixels wide at 160×128, which JPEG smears over its blocks of eight.
# Images without it look unfamiliar for that reason alone (studies/depth_unfamiliar.py), so it is cut from all images.
FRAME = 8
EPSILONS = tuple(0.005 * k for k in range(9))  # how far attacked images are moved
SHOWN_EPSILONS = (0.0, 0.02, 0.04)  # of the attacked image whose maps are drawn
BLOCKS = 3  # the first blocks, whose features tell unfamiliar images: chosen by studies/depth_unfamiliar.py


@dataclass(frozen=True)
class NetworkGroup:
    """Networks that are trained alike, and the models that are made of them.

    A model consists of several networks or, where the recipe has dropout, of several draws of one network.
    """

    method: str  # a key of ``recipes.METHODS``
    models: Mapping[str, int]  # name of the model → number of its networks or draws
    recipe: Mapping[str, Any] = field(default_factory=dict)  # changes to the recipe
    settings: Mapping[str, Any] = field(default_factory=dict)  # changes to the recipe's settings
    trials: int | None = None  # if fewer than the plan has

    @property
    def has_draws(self) -> bool:
        """Whether the models consist of draws of dropout."""
        return bool(self.recipe.get("dropout"))

    @property
    def network_count(self) -> int:
        """Number of networks that a trial needs."""
        return 1 if self.has_draws else max(self.models.values())


# The learning rate was chosen for each loss on validation pairs (studies/depth_recipe.py); only evidential networks did
# better at a lower one.
SLOWER = {"learning_rate": 3e-4}
# The paper's own settings (Sec. S3.1): Adam at 5e-5, λ = 0.1, 60,000 iterations, weights by validation RMSE.
PAPER = {"head": "paper", "augmentation": None, "select": "rmse"}
PAPER_SETTINGS = {
    "steps": 60_000,
    "learning_rate": 5e-5,
    "warmup": 0.0,
    "schedule": "constant",
    "clip": None,
    "evaluate_every": 500,
}
DRAWS = (2, 5, 10, 25, 50)
GROUPS: Mapping[str, NetworkGroup] = {
    "evidential": NetworkGroup("evidential", {"evidential": 1}, settings=SLOWER),
    "evidential, paper's head": NetworkGroup(
        "evidential", {"evidential, paper's head": 1}, {"head": "paper"}, settings=SLOWER
    ),
    "gaussian": NetworkGroup(
        "gaussian", {"gaussian": 1, "ensemble of likelihoods, 2": 2, "ensemble of likelihoods, 5": 5}
    ),
    "dropout of likelihoods": NetworkGroup(
        "gaussian", {f"dropout of likelihoods, {n}": n for n in DRAWS}, {"dropout": 0.1}
    ),
    "ensemble": NetworkGroup("least squares", {"plain": 1, "ensemble, 2": 2, "ensemble, 5": 5}, {"select": "rmse"}),
    "dropout": NetworkGroup("least squares", {f"dropout, {n}": n for n in DRAWS}, {"dropout": 0.1, "select": "rmse"}),
    "evidential, paper's settings": NetworkGroup(
        "evidential, paper's weight", {"evidential, paper's settings": 1}, PAPER, PAPER_SETTINGS, trials=1
    ),
}
# These models are also asked about calibration, unfamiliar and attacked images; of the others Table S1 has the errors.
STUDIED = (
    "evidential",
    "evidential, paper's head",
    "evidential, paper's settings",
    "gaussian",
    "ensemble, 5",
    "ensemble of likelihoods, 5",
    "dropout, 10",
    "dropout of likelihoods, 10",
)

FADED = "evidential"  # the model that is also studied with evidence that fades


@dataclass(frozen=True)
class Plan:
    """Which images, which groups of networks, and how many trials of each."""

    pairs: Path | None = option(  # noqa: RUF009
        None, "Other pairs than NYU's: a zip or folder, nyu_depth_v2_labeled.mat, or the authors' .h5."
    )
    outside: Path | None = option(None, "Other images from elsewhere than CamVid's: a folder or zip.")  # noqa: RUF009
    cut: int | None = option(
        None,
        f"Pixels to cut from each side of all images (default: {FRAME}, the white frame of NYU; 0 for synthetic "
        "rooms).",
    )
    trials: int = option(3, "Trials of each method (paper: 3).", minimum=1, maximum=1000)
    groups: tuple[str, ...] | None = option(
        None, "Groups of networks, separated by semicolons, as in 'evidential;gaussian' (default: all).", separator=";"
    )
    steps: int | None = option(None, "Training steps of a network (default: 6000).")
    seed: int = option(0, "Random seed of the split by scenes.", minimum=0, maximum=LARGEST_SEED)
    quick: bool = False

    def __post_init__(self) -> None:
        for name in self.group_names:
            if name not in GROUPS:
                raise InputError(f"unknown group {name!r}; known are {'; '.join(GROUPS)}")

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups to train, in this order."""
        return tuple(GROUPS) if self.groups is None else self.groups

    def group(self, name: str) -> NetworkGroup:
        """Return a group of networks.

        In a quick plan a model has at most two networks or five draws, and all groups but the paper's settings have the
        learning rate of the quick recipe.
        """
        group = GROUPS[name]
        if not self.quick:
            return group
        most = 5 if group.has_draws else 2
        models = {model: min(n, most) for model, n in group.models.items() if n <= most or model in STUDIED}
        kept = ("learning_rate", "schedule") if group.settings is PAPER_SETTINGS else ()
        return replace(group, models=models, settings={key: group.settings[key] for key in kept})

    def trials_of(self, name: str) -> int:
        """Return the number of trials of a group."""
        return min(GROUPS[name].trials or self.trials, self.trials)


def quick_plan(plan: Plan | None = None) -> Plan:
    """Return the plan with one trial, small networks and few steps, on synthetic rooms."""
    return replace(plan or Plan(), trials=1, quick=True)


EXPERIMENT = Experiment(
    name="depth",
    summary="Table S1, Fig. 4 to 6 and S4 to S7: monocular depth. Without data it uses rendered rooms and streets.",
    example="howsure-paper depth --data DATA --out out/depth",
    plan=Plan,
    module="howsure_paper.depth.run",
    quick=quick_plan,
    data_help="Data folder that contains nyu_v2_160x128.zip and camvid_160x128.zip (default: HOWSURE_DATA).",
)
