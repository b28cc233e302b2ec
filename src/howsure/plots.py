"""The few parts that all figures of the library share.

Matplotlib is imported when a figure is drawn, not before: the library works without it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from howsure.errors import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

__all__ = ["COLOURS", "add_axes", "figure_of", "legend", "new_figure"]

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
