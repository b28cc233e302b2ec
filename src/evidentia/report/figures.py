"""What the figures have in common: colours that everyone can tell apart, bands, and files as PNG and SVG."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from evidentia.files import write_whole

__all__ = ["COLOURS", "band", "legend", "legend_below", "new_figure", "save", "sweep"]

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
Array = NDArray[np.float64]


def new_figure(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure with a grid of axes, without the frame's upper and right side; no display is needed or touched."""
    figure = Figure(figsize=size, layout="constrained")
    axes = np.atleast_2d(figure.subplots(rows, columns, squeeze=False, **options))
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return figure, axes


def legend(ax: Any, **options: Any) -> None:
    """A small legend on white, so that it can be read on any panel."""
    ax.legend(fontsize=7, facecolor="white", edgecolor="none", framealpha=0.85, **options)


def legend_below(figure: Figure, ax: Any) -> None:
    """One legend for all panels, under them, made of what is in this one."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)


def band(ax: Any, x: Array, mean: Array, std: Array | None, colour: str, label: str) -> None:
    """A prediction with bands of one, two and three standard deviations; the line alone if there is no deviation."""
    ax.plot(x, mean, color=colour, lw=1.5, label="prediction")
    if std is None:
        return
    for k in (3, 2, 1):
        ax.fill_between(
            x, mean - k * std, mean + k * std, color=colour, alpha=0.2, lw=0, label=label if k == 1 else None
        )


def sweep(ax: Any, x: Sequence[float], curves: Mapping[str, Array], colours: Sequence[str]) -> None:
    """Medians over seeds (the second dimension of a curve) and all seeds as points, evenly spaced: x may start at 0."""
    places = np.arange(len(x))
    for (label, values), colour in zip(curves.items(), colours, strict=True):
        ax.plot(places, np.median(values, axis=1), "o-", color=colour, ms=4, label=label)
        ax.plot(places, values, ".", color=colour, ms=3, alpha=0.4)
    ax.set_xticks(places, [f"{v:g}" for v in x])
    ax.set_yscale("log")


def save(figure: Figure, folder: str | Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg`` to the folder."""
    paths = []
    with mpl.rc_context({"svg.hashsalt": name}):  # the same figure is the same file
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            paths.append(Path(folder) / f"{name}.{kind}")
            write_whole(paths[-1], functools.partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
    return paths
