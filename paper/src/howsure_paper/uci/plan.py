"""The plan of Table 1: which sets, methods, protocol and networks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from howsure.errors import InputError
from howsure_paper.datasets.uci import SETS
from howsure_paper.protocol import Experiment, option

__all__ = ["EXPERIMENT", "KNOWN_SETS", "METHODS", "NETWORKS", "PROTOCOLS", "Plan", "quick_plan"]

KNOWN_SETS = (*SETS, "diabetes")  # in the order of tables; diabetes comes with scikit-learn and needs no data folder
METHODS = ("evidential", "gaussian", "ensemble", "dropout", "bayes")
PROTOCOLS = ("standard", "published")
NETWORKS = ("best", "paper")


@dataclass(frozen=True)
class Plan:
    """What to run. The number of networks, or draws, is the same for every method that has several."""

    sets: tuple[str, ...] = option(
        tuple(SETS), "Data sets, separated by commas, as in yacht,boston (default: all nine)."
    )
    methods: tuple[str, ...] = option(
        METHODS, "Methods, separated by commas (default: evidential, gaussian, ensemble, dropout, bayes)."
    )
    protocol: str = option(
        "standard", "standard: test rows are used once; published: the smallest score over test batches."
    )
    targets: str | None = option(None, "Targets of energy and naval, standard or published (default: as the protocol).")
    network: str = option("best", "best: the defaults of howsure; paper: one layer of 50 ReLU units, 40 epochs.")
    members: int = option(
        5, "Networks of a mixture or ensemble, and draws of the other methods.", minimum=1, maximum=1000
    )
    search: bool = option(True, "Choose λ and the dropout rate on training rows, or take 0.01 and 0.05.")
    splits: int | None = None  # only the first so many
    steps: int | None = None  # fewer than the recipe has, to try things out
    quick: bool = False

    def __post_init__(self) -> None:
        for name, values, known in (
            ("set", self.sets, KNOWN_SETS),
            ("method", self.methods, METHODS),
            ("protocol", (self.protocol,), PROTOCOLS),
            ("network", (self.network,), NETWORKS),
            ("target", () if self.targets is None else (self.targets,), PROTOCOLS),
        ):
            for value in values:
                if value not in known:
                    raise InputError(f"unknown {name} {value!r}; known are {', '.join(known)}")


def quick_plan(plan: Plan) -> Plan:
    """Return a plan with three splits, 600 steps and no search."""
    return replace(plan, splits=3, steps=600, search=False, quick=True)


def _folder(plan: Plan) -> str:
    return f"uci_{plan.protocol}_{plan.network}"


def _variants(quick: bool) -> Sequence[Plan]:
    """Return both protocols with both networks; if quick, two of the four, on the set that needs no data folder."""
    if quick:
        pairs = (("standard", "best"), ("published", "paper"))
        return [Plan(sets=("diabetes",), protocol=protocol, network=network) for protocol, network in pairs]
    return [Plan(protocol=protocol, network=network) for protocol in PROTOCOLS for network in NETWORKS]


EXPERIMENT = Experiment(
    name="uci",
    summary="Table 1: five methods on nine data sets. Repeat the command of a stopped run to continue it.",
    example="howsure-paper uci --data DATA --sets yacht,boston --out out/uci",
    plan=Plan,
    module="howsure_paper.uci.run",
    quick=quick_plan,
    data_help="Data folder that contains uci/ (default: the environment variable HOWSURE_DATA).",
    folder=_folder,
    variants=_variants,
)
