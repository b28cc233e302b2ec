"""Plans of the experiments on small problems. The defaults are the paper's settings (Sec. S2.1.1)."""

from dataclasses import dataclass, replace
from typing import Any

from howsure_paper.protocol import LARGEST_SEED, Experiment, option

__all__ = [
    "EXPERIMENTS",
    "CubicPlan",
    "DisentanglePlan",
    "DistributionPlan",
    "RegularizerPlan",
    "ToyPlan",
]


def _noise() -> Any:
    return option(3.0, "Standard deviation of the noise (paper: 3).", minimum=0, maximum=1e9)


def _weight() -> Any:
    return option(0.01, "λ, the weight of the evidence penalty (paper: 0.01).", minimum=0, maximum=1e9)


def _seeds(default: int, minimum: int = 1) -> Any:
    return option(default, "Random starts: the figure has the first, the table all.", minimum=minimum, maximum=1000)


@dataclass(frozen=True)
class ToyPlan:
    """What the experiments on y = x³ + noise share.

    Neither x nor y is standardised, as in the authors' code: λ has the unit 1/y.
    """

    iterations: int = option(5000, "Training steps (paper: 5000).", minimum=1, maximum=10**8)
    learning_rate: float = option(5e-3, "Learning rate of Adam (paper: 0.005).", minimum=1e-12, maximum=1e3)
    batch_size: int = option(128, "Rows per training step (paper: 128).", minimum=1, maximum=10**6)
    hidden: tuple[int, ...] = option((100, 100, 100), "Layer sizes (paper: 100,100,100).", minimum=1, maximum=10_000)
    seeds: int = _seeds(5)
    rows: int = 1000
    quick: bool = False


@dataclass(frozen=True)
class CubicPlan(ToyPlan):
    """Every method on y = x³ + noise."""

    weight: float = _weight()
    noise: float = _noise()
    samples: int = option(
        5, "Members of the ensemble, and draws of the other methods (paper: 5).", minimum=1, maximum=1000
    )
    dropout: float = option(0.05, "Dropout rate (authors' code: 0.05).", minimum=0, maximum=0.99)


@dataclass(frozen=True)
class RegularizerPlan(ToyPlan):
    """The error penalty, and the KL divergence from ε evidence for each of the epsilons, with each of the weights."""

    noise: float = _noise()
    weights: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    epsilons: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class DisentanglePlan(ToyPlan):
    """Noise that depends on x, and two penalties."""

    weight: float = _weight()
    seeds: int = _seeds(8, minimum=2)  # the spread of a mixture needs two networks
    rows: int = 2000


@dataclass(frozen=True)
class DistributionPlan:
    """The figure of evidential distributions, for which nothing is trained."""

    seed: int = option(0, "Random seed of the draws.", minimum=0, maximum=LARGEST_SEED)
    quick: bool = False


def _quick(plan: Any, iterations: int, seeds: int, **changes: Any) -> Any:
    """Return a quick plan, with at most so many steps and starts."""
    fewer = {"iterations": min(plan.iterations, iterations), "seeds": min(plan.seeds, seeds)}
    return replace(plan, quick=True, **fewer, **changes)


EXPERIMENTS = (
    Experiment(
        name="distribution",
        summary="Fig. 2: evidential distributions, and likelihoods drawn from them.",
        example="howsure-paper distribution --seed 1",
        plan=DistributionPlan,
        module="howsure_paper.toy.distribution",
    ),
    Experiment(
        name="cubic",
        summary="Fig. 3 and S1: aleatoric and epistemic uncertainty of every method on y = x³ + noise.",
        example="howsure-paper cubic --weight 0.1 --seeds 10",
        plan=CubicPlan,
        module="howsure_paper.toy.cubic",
        quick=lambda plan: _quick(plan, 1500, 2),
    ),
    Experiment(
        name="regularizer",
        summary="Fig. S2: the strength of the error penalty (A) and of the KL divergence (B).",
        example="howsure-paper regularizer --seeds 3",
        plan=RegularizerPlan,
        module="howsure_paper.toy.regularizer",
        quick=lambda plan: _quick(plan, 1000, 2, weights=plan.weights[::2], epsilons=plan.epsilons[1:3]),
    ),
    Experiment(
        name="disentangle",
        summary="Fig. S3: how the methods divide noise that peaks in the middle of the data.",
        example="howsure-paper disentangle --seeds 8",
        plan=DisentanglePlan,
        module="howsure_paper.toy.disentangle",
        quick=lambda plan: _quick(plan, 1500, 4),
    ),
)
