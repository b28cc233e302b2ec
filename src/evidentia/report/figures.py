"""The parts that all figures share: colours everyone can tell apart, axes, bands, legends, and PNG and SVG files.

Matplotlib is imported when a figure is drawn, not before: the library works without it.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evidentia.errors import InputError
from evidentia.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

__all__ = ["COLOURS", "add_axes", "band", "import_matplotlib", "legend", "legend_below", "new_figure", "save"]

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


def import_matplotlib(module: str = "matplotlib") -> Any:
    """Return matplotlib, or a module of it such as ``"matplotlib.figure"``.

    Raises:
        InputError: if matplotlib is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError("figures need matplotlib, which is not installed: pip install evidentia[plot]") from error


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
    figure = import_matplotlib("matplotlib.figure").Figure(figsize=size, layout="constrained")
    return figure, add_axes(figure, rows, columns, **options)


def add_axes(part: "Figure | SubFigure", rows: int, columns: int, **options: Any) -> Any:
    """Return a new grid of axes in a figure or a part of one."""
    axes = part.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return axes


def legend(ax: Any, **options: Any) -> None:
    """Add a small legend on a white ground, which can be read on top of any panel."""
    ax.legend(fontsize=7, facecolor="white", edgecolor="none", framealpha=0.85, **options)


def legend_below(part: "Figure | SubFigure", ax: Any, columns: int, title: str | None = None) -> None:
    """Add one legend below all panels of a figure, or of a part of it, with the entries of the axes ``ax``."""
    options = {"title": title, "title_fontsize": 8, "frameon": False, "fontsize": 8}
    part.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **options)


def band(ax: Any, x: Array, mean: Array, std: Array | None, colour: str, label: str) -> None:
    """Draw a prediction as a line, with bands of one, two and three standard deviations unless ``std`` is None."""
    ax.plot(x, mean, color=colour, lw=1.5, label="prediction")
    if std is None:
        return
    for k in (3, 2, 1):
        ax.fill_between(
            x, mean - k * std, mean + k * std, color=colour, alpha=0.2, lw=0, label=label if k == 1 else None
        )


def save(figure: "Figure", folder: str | Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg`` to the folder, and return both paths."""
    paths = []
    with import_matplotlib().rc_context({"svg.hashsalt": name}):  # without it the same figure gives another file
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            paths.append(Path(folder) / f"{name}.{kind}")
            write_whole(paths[-1], functools.partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
    return paths
