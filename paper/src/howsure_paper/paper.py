"""Numbers that were published: the paper's tables and the settings of the authors' code."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["DEPTH_CALIBRATION", "TABLE_1", "TABLE_S1", "UCI_SETTINGS", "Depth", "Published", "Released"]


class Published(NamedTuple):
    """One method on one set in the paper's Table 1: RMSE, NLL and inference time in milliseconds."""

    rmse: float
    nll: float
    milliseconds: float


class Released(NamedTuple):
    """The authors' settings for one set: Adam's rate, batch size, and the share of rows for testing."""

    learning_rate: float
    batch_size: int
    test: float = 0.1


def _row(rmse: str, nll: str, speed: str) -> Mapping[str, Published]:
    columns = (map(float, text.split()) for text in (rmse, nll, speed))
    names = ("dropout", "ensemble", "evidential")
    return MappingProxyType({n: Published(*v) for n, v in zip(names, zip(*columns, strict=True), strict=True)})


# The first two columns of each block were taken by the paper from Gal and Ghahramani (2016) and Lakshminarayanan et al.
# (2017). Evidential numbers are minima over test batches, of other targets for energy and naval (docs/errata.md, E17).
TABLE_1: Mapping[str, Mapping[str, Published]] = MappingProxyType(
    {
        "boston": _row("2.97 3.28 3.06", "2.46 2.41 2.35", "3.24 3.35 0.85"),
        "concrete": _row("5.23 6.03 5.85", "3.04 3.06 3.01", "2.99 3.43 0.94"),
        "energy": _row("1.66 2.09 2.06", "1.99 1.38 1.39", "3.08 3.80 0.87"),
        "kin8nm": _row("0.10 0.09 0.09", "-0.95 -1.20 -1.24", "3.24 3.79 0.97"),
        "naval": _row("0.01 0.00 0.00", "-3.80 -5.63 -5.73", "3.31 3.37 0.84"),
        "power": _row("4.02 4.11 4.23", "2.80 2.79 2.81", "2.93 3.36 0.85"),
        "protein": _row("4.36 4.71 4.64", "2.89 2.83 2.63", "3.45 3.68 1.18"),
        "wine": _row("0.62 0.64 0.61", "0.93 0.94 0.89", "3.00 3.32 0.86"),
        "yacht": _row("1.11 1.58 1.57", "1.55 1.18 1.03", "2.99 3.36 0.87"),
    }
)

# One layer of 50 ReLU units and 40 epochs for all; Boston and wine are split 80/20
UCI_SETTINGS: Mapping[str, Released] = MappingProxyType(
    {
        "boston": Released(1e-3, 8, 0.2),
        "concrete": Released(5e-3, 1),
        "energy": Released(2e-3, 1),
        "kin8nm": Released(1e-3, 1),
        "naval": Released(5e-4, 1),
        "power": Released(1e-3, 2),
        "protein": Released(1e-3, 64),
        "wine": Released(1e-4, 32, 0.2),
        "yacht": Released(5e-4, 1),
    }
)


class Depth(NamedTuple):
    """A row of the paper's Table S1; the deviations are those printed, over pixels or images the paper does not say."""

    parameters: int
    seconds: float
    rmse: float
    rmse_deviation: float
    nll: float
    nll_deviation: float


TABLE_S1: Mapping[str, Depth] = MappingProxyType(
    {
        "evidential": Depth(7_846_776, 0.003, 0.024, 0.032, -1.128, 0.290),
        "dropout, 2": Depth(7_846_657, 0.028, 0.033, 0.037, -0.564, 0.231),
        "dropout, 5": Depth(7_846_657, 0.031, 0.031, 0.033, -1.227, 0.374),
        "dropout, 10": Depth(7_846_657, 0.037, 0.035, 0.042, -1.139, 0.379),
        "dropout, 25": Depth(7_846_657, 0.065, 0.032, 0.035, -1.137, 0.327),
        "dropout, 50": Depth(7_846_657, 0.107, 0.032, 0.036, -1.110, 0.381),
        "ensemble, 2": Depth(15_693_314, 0.005, 0.026, 0.032, -1.080, 3.334),
        "ensemble, 5": Depth(39_233_285, 0.010, 0.023, 0.027, -1.077, 0.298),
        "ensemble, 10": Depth(78_466_570, 0.019, 0.025, 0.038, -0.980, 0.298),
        "ensemble, 25": Depth(196_166_425, 0.045, 0.022, 0.029, -1.000, 0.259),
        "ensemble, 50": Depth(392_332_850, 0.112, 0.022, 0.031, -0.996, 0.275),
    }
)
# the calibration errors in the inset of Fig. 4C
DEPTH_CALIBRATION: Mapping[str, float] = MappingProxyType(
    {"evidential": 0.033, "ensemble, 5": 0.048, "dropout, 10": 0.126}
)
