"""Figures of predictions: arrays in, a figure out; and the few parts that all figures of the library share.

Matplotlib is imported when a figure is drawn, not before: the library works without it.
"""

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.errors import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

__all__ = ["COLOURS", "Predicted", "add_axes", "draw", "draw_coverage", "figure_of", "legend", "new_figure"]

# Okabe and Ito's palette, safe for colour-blind readers
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "aleatoric": "#D55E00",
        "epistemic": "#0072B2",
        "total": "#009E73",
        "truth": "#000000",
        "data": "#595959",
        "range": "#EBEBEB",
        "other": "#CC79A7",
        "more": "#E69F00",
    }
)
MAX_INTERVALS = 250  # in one panel
Array = NDArray[Any]


@dataclass(frozen=True)
class Predicted:
    """Arrays of a figure about one target, (rows,).

    Args:
        name: name of the target, for the axes.
        median: medians of the predictive distributions.
        ends: ends of their central intervals, (rows, 2).
        y: targets, or None.
        pit: P(Y ≤ y) for each target, or None.
        depth: the probability that the smallest central interval with y in it states, or None.
        total: number of rows that these were drawn from.
        unit: name of a row, in the plural.
    """

    name: str
    median: Array
    ends: Array
    y: Array | None
    pit: Array | None
    depth: Array | None
    total: int
    unit: str = "rows"


def draw(targets: Sequence[Predicted], coverage: float, ax: Any = None) -> "Figure":
    """Return a figure with one row of panels for each target: intervals and, if y is known, calibration and PIT.

    Args:
        targets: the arrays of each target.
        coverage: the probability that the intervals state.
        ax: matplotlib axes to draw the intervals of the first target into, and nothing else; None makes a new figure.
    """
    if ax is not None:
        draw_intervals(ax, targets[0], coverage)
        return figure_of(ax)
    with_y = targets[0].y is not None
    columns, width = (3, 12.0) if with_y else (1, 6.4)
    figure, axes = new_figure(len(targets), columns, (width, 3.7 * len(targets)))
    for row, target in zip(axes, targets, strict=True):
        draw_intervals(row[0], target, coverage)
        if with_y:
            draw_calibration(row[1], target, coverage)
            draw_pit(row[2], target)
    # a notebook shows the figure also before pyplot was imported, which would register it there
    figure._repr_png_ = functools.partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def draw_intervals(ax: Any, target: Predicted, coverage: float) -> None:
    """Draw the intervals: with y around their medians, narrowest first; without, in the units of y by their medians."""
    low, high = target.ends.T
    if target.y is None:
        order = _evenly(np.argsort(target.median, kind="stable"))
        middle, centre = target.median[order], np.zeros(len(order))
        ax.set_ylabel(target.name, fontsize=9)
        title, along = "Predictions", "smallest to largest median"
    else:
        order = _evenly(np.argsort(high - low, kind="stable"))
        middle, centre = np.zeros(len(order)), target.median[order]
        ax.set_ylabel(f"{target.name} − predicted median", fontsize=9)
        title, along = "Intervals and targets", "narrowest to widest interval"
    place = np.arange(len(order))
    width = float(np.clip(220 / max(1, len(order)), 0.8, 6.0))
    ax.vlines(
        place,
        low[order] - centre,
        high[order] - centre,
        colors=COLOURS["epistemic"],
        alpha=0.35,
        lw=width,
        label=f"{_percent(coverage)} interval",
    )
    size = float(np.clip(1200 / max(1, len(order)), 5, 20))
    if target.y is None:
        ax.scatter(place, middle, s=size, color=COLOURS["epistemic"], lw=0, label="median", zorder=3)
    else:
        ax.axhline(0, color=COLOURS["epistemic"], lw=0.8)
        _draw_targets(ax, target, order, size)
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(f"{_count(target, len(order))}, {along}", fontsize=9)
    ax.set_xticks([])
    ax.margins(x=0.02)
    legend(ax, loc="upper left")


def _draw_targets(ax: Any, target: Predicted, order: NDArray[np.int64], size: float) -> None:
    """Mark the targets, those outside their intervals in another colour, and keep far ones at the edge of the axes."""
    assert target.y is not None
    outside = (target.y < target.ends[:, 0]) | (target.y > target.ends[:, 1])
    share = f"{int(outside.sum()):,} of {len(outside):,}, {100 * outside.mean() if len(outside) else 0:.3g}%"
    deviation = (target.y - target.median)[order]
    limits = _limits(target.ends - target.median[:, None], target.y - target.median)
    shown = deviation if limits is None else np.clip(deviation, *limits)
    far = shown != deviation
    place = np.arange(len(order))
    for chosen, color, label in (
        (~outside[order] & ~far, COLOURS["data"], "target inside"),
        (outside[order] & ~far, COLOURS["aleatoric"], f"target outside ({share})"),
    ):
        ax.scatter(place[chosen], shown[chosen], s=size, color=color, lw=0, label=label, zorder=3)
    for chosen, marker in ((far & (deviation > 0), "^"), (far & (deviation < 0), "v")):
        ax.scatter(place[chosen], shown[chosen], s=16, marker=marker, color=COLOURS["aleatoric"], lw=0, zorder=3)
    if limits is not None:
        margin = 0.03 * (limits[1] - limits[0])
        ax.set_ylim(limits[0] - margin, limits[1] + margin)


def draw_calibration(ax: Any, target: Predicted, coverage: float) -> None:
    """Draw which share of the targets lies in intervals of every stated coverage."""
    assert target.depth is not None
    levels = np.linspace(0, 1, 101)
    inside = np.sort(target.depth)
    count = max(1, len(inside))
    observed = np.searchsorted(inside, levels, side="right") / count
    draw_coverage(ax, levels, observed, count, 100)
    at = float(np.searchsorted(inside, coverage, side="right") / count)
    told = f"{100 * at:.3g}% in the {_percent(coverage)} intervals"
    ax.plot([100 * coverage], [100 * at], "o", color=COLOURS["epistemic"], ms=5, label=told, clip_on=False)
    wide = float(observed.mean()) > 0.5  # then the curve is in the upper left corner, and the legend in the other
    words: dict[str, Any] = {"fontsize": 8, "color": COLOURS["data"], "style": "italic"}
    ax.text(3, 88 if wide else 60, "intervals\ntoo wide", **words)
    ax.text(97, 33 if wide else 4, "intervals\ntoo narrow", ha="right", **words)
    ax.set_xlabel("stated probability of the interval, %", fontsize=9)
    ax.set_ylabel(f"{target.unit} with {target.name} inside, %", fontsize=9)
    ax.set_title("Calibration", fontsize=10)
    legend(ax, loc="lower right" if wide else "upper left")


def draw_coverage(ax: Any, levels: Array, observed: Array, count: int, whole: float = 1.0) -> None:
    """Draw the share of ``count`` targets inside intervals by their probability, and the range that chance explains.

    Args:
        ax: matplotlib axes.
        levels: probabilities of the intervals.
        observed: share of the targets in each.
        count: number of targets.
        whole: length of both axes, 1 for shares and 100 for percent.
    """
    chance = 1.96 * np.sqrt(levels * (1 - levels) / max(1, count))
    low, high = (whole * np.clip(levels + sign * chance, 0, 1) for sign in (-1, 1))
    ax.fill_between(whole * levels, low, high, color=COLOURS["range"], lw=0, label="ideal ± chance (95%)")
    ax.plot([0, whole], [0, whole], color=COLOURS["data"], lw=1, ls="--", label="ideal")
    ax.plot(whole * levels, whole * observed, color=COLOURS["epistemic"], lw=1.8, label="observed")
    ax.set(xlim=(0, whole), ylim=(0, whole))


def draw_pit(ax: Any, target: Predicted) -> None:
    """Draw the histogram of the probabilities below the targets, which is flat for a calibrated prediction."""
    assert target.pit is not None
    below = target.pit[np.isfinite(target.pit)]
    bins = int(np.clip(len(below) // 15, 5, 20))
    counts, edges = np.histogram(below, bins=bins, range=(0, 1))
    ideal = len(below) / bins
    chance = 1.96 * np.sqrt(ideal * (1 - 1 / bins))
    ax.bar(edges[:-1], counts, width=1 / bins, align="edge", color=COLOURS["epistemic"], alpha=0.45, ec="white")
    ax.axhline(ideal, color=COLOURS["data"], lw=1, ls="--", label="ideal: flat")
    for k, limit in enumerate((ideal - chance, ideal + chance)):
        ax.axhline(limit, color=COLOURS["data"], lw=1, ls=":", label=None if k else "ideal ± chance (95%)")
    ax.set(xlim=(0, 1), ylim=(0, 1.5 * max(float(counts.max(initial=0)), ideal + chance, 1.0)))
    ax.set_xlabel("predicted probability of a value below the target", fontsize=9)
    ax.set_ylabel(target.unit, fontsize=9)
    ax.set_title("Where targets lie in their distribution (PIT)", fontsize=10)
    ax.text(
        0.5,
        0.87,
        "high at both ends: intervals too narrow\nhigh in the middle: intervals too wide\n"
        "high on the left: predictions too high, on the right: too low",
        transform=ax.transAxes,
        ha="center",
        va="top",
        fontsize=7,
        color=COLOURS["data"],
        style="italic",
    )
    legend(ax, loc="upper center", ncols=2)


def _evenly(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entries of an order that are shown: all of few, or a fixed number of many at equal distances."""
    if len(order) <= MAX_INTERVALS:
        return order
    shown: NDArray[np.int64] = order[np.linspace(0, len(order) - 1, MAX_INTERVALS).round().astype(int)]
    return shown


def _percent(share: float) -> str:
    return f"{round(100 * share, 10):.12g}%"  # 99.99999 is not 100


def _count(target: Predicted, shown: int) -> str:
    return f"{shown:,} {target.unit}" if shown == target.total else f"{shown:,} of {target.total:,} {target.unit}"


def _limits(ends: Array, deviations: Array) -> tuple[float, float] | None:
    """Return how far the axes reach if a few values lie far beyond all others, or None if they do not."""
    values = np.concatenate([ends.ravel(), deviations.ravel()]).astype(float)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    usual = float(np.quantile(np.abs(values), 0.95))
    if not 0 < usual < np.abs(values).max() / 4:
        return None
    return max(float(values.min()), -3 * usual), min(float(values.max()), 3 * usual)


def _png(figure: "Figure") -> bytes:
    """Return the figure as PNG, for notebooks."""
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=100)
    return target.getvalue()


# Parts of all figures -------------------------------------------------------------------------------------------------


def new_figure(rows: int, columns: int, size: tuple[float, float], **options: Any) -> "tuple[Figure, Any]":
    """Return a figure and its grid of axes, which have no line at the top and on the right. No display is needed.

    Args:
        rows: Rows of the grid.
        columns: Columns of the grid.
        size: Width and height in inches.
        **options: Arguments of ``Figure.subplots``, such as ``sharex``.

    Raises:
        InputError: if matplotlib is not installed.
    """
    figure = import_extra("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    return figure, add_axes(figure, rows, columns, **options)


def add_axes(part: "Figure | SubFigure", rows: int, columns: int, **options: Any) -> Any:
    """Return a new grid of axes in a figure or a part of one."""
    axes = part.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return axes


def figure_of(ax: Any) -> "Figure":
    """Return the figure of axes, also of those in a part of it."""
    figure: Figure = ax.get_figure(root=True) if hasattr(ax.figure, "figure") else ax.figure
    return figure


def legend(ax: Any, **options: Any) -> None:
    """Add a small legend on a white ground, which can be read on top of any panel."""
    ax.legend(fontsize=7, facecolor="white", edgecolor="none", framealpha=0.85, **options)
