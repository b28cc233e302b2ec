"""The parts that all figures share: those of `howsure.plots`, bands, legends, and PNG and SVG files.

Matplotlib is imported when a figure is drawn, not before: the library works without it.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from howsure.errors import import_extra
from howsure.files import write_whole
from howsure.plots import COLOURS, add_axes, legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

__all__ = ["COLOURS", "add_axes", "band", "import_matplotlib", "legend", "legend_below", "new_figure", "save"]

Array = NDArray[np.float64]


def import_matplotlib(module: str = "matplotlib") -> Any:
    """Return matplotlib, or a module of it such as ``"matplotlib.figure"``."""
    return import_extra(module, "plot")


def legend_below(part: "Figure | SubFigure", ax: Any, columns: int, title: str | None = None) -> None:
    """Add one legend below all panels of a figure, or of a part of it, with the entries of the axes ``ax``."""
    options = {"title": title, "title_fontsize": 8, "frameon": False, "fontsize": 8}
    part.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **options)


def band(ax: Any, x: Array, mean: Array, std: Array | None, color: str, label: str) -> None:
    """Draw a prediction as a line, with bands of one, two and three standard deviations unless ``std`` is None."""
    ax.plot(x, mean, color=color, lw=1.5, label="prediction")
    if std is None:
        return
    for k in (3, 2, 1):
        ax.fill_between(
            x, mean - k * std, mean + k * std, color=color, alpha=0.2, lw=0, label=label if k == 1 else None
        )


def save(figure: "Figure", folder: str | Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg`` to the folder, and return both paths."""
    paths = []
    with import_matplotlib().rc_context({"svg.hashsalt": name}):  # without it the same figure gives another file
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            paths.append(Path(folder) / f"{name}.{kind}")
            write_whole(paths[-1], functools.partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
    return paths
