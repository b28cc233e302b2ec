"""Draw charts as SVG: marks, lines and intervals on linear or logarithmic axes.

An element of a chart has a class instead of a color; ``page.css.j2`` has the colors. The text of a table is escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

from howsure.report.words import show

__all__ = ["Axis", "Chart"]

Array = NDArray[np.float64]
WIDTH, HEIGHT = 640, 434  # units of the drawing, which scales with the page
LEFT, TOP, RIGHT, BOTTOM = 92, 46, 30, 84  # margins for the labels
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
LETTER = 15  # units that a letter of a label takes on a narrow page, where letters are largest
MARKS = {
    "dot": '<circle class="{2}" cx="{0}" cy="{1}" r="3.2">{3}</circle>',
    "ring": '<circle class="{2}" cx="{0}" cy="{1}" r="7">{3}</circle>',
    "cross": '<path class="{2}" d="M{0} {1}m-4-4l8 8m0-8l-8 8">{3}</path>',
}


@dataclass(frozen=True)
class Axis:
    """One axis: its label, its ends, and whether it is logarithmic or a percentage."""

    label: str
    low: float
    high: float
    logarithmic: bool = False
    percent: bool = False

    def place(self, values: Array) -> Array:
        """Return where values lie on the axis: 0 at the low end and 1 at the high end, NaN if there is no place."""
        low, high = self.low, self.high
        if self.logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                low, high, values = np.log(low), np.log(high), np.log(values)
        placed: Array = (np.clip(values, low - 2 * (high - low), high + 2 * (high - low)) - low) / (high - low)
        return placed

    def ticks(self) -> list[float]:
        """Return about five round values between the ends.

        >>> Axis("", 0, 97).ticks(), Axis("", 0.3, 40, logarithmic=True).ticks()
        ([0.0, 20.0, 40.0, 60.0, 80.0], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
        """
        if self.logarithmic and self.high > 8 * self.low:  # with less, round numbers in equal steps are more
            first, last = int(np.floor(np.log10(self.low))), int(np.ceil(np.log10(self.high)))
            step = max(1, (last - first) // 5)
            factors = (1.0, 2.0, 5.0) if last - first < 4 else (1.0,)
            found = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
        else:
            rough = (self.high - self.low) / 5
            unit = 10.0 ** np.floor(np.log10(rough))
            step = unit * min((1, 2, 5, 10), key=lambda factor: abs(factor * unit - rough))
            found = (
                step * np.arange(np.ceil(self.low / step), np.floor(self.high / step) + 1) + 0.0
            ).tolist()  # 0 instead of -0
        return [tick for tick in found if self.low <= tick <= self.high]

    def text(self, tick: float) -> str:
        """Return a tick as a reader sees it."""
        return f"{100 * tick:.0f}%" if self.percent else show(tick, 6)


@dataclass
class Chart:
    """A chart that grows by calls.

    Args:
        name: of the chart, unique on its page and free of special characters.
        title: above the chart.
        reading: one sentence on how to read it.
        seen: its content with the numbers: the accessible text of the drawing.
        x, y: the axes.
        keys: samples and texts of the legend.
    """

    name: str
    title: str
    reading: str
    seen: str
    x: Axis
    y: Axis
    keys: list[tuple[str, str]] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)

    def line(self, x: Array, y: Array, style: str, key: str = "") -> None:
        """Draw a line through points."""
        points = " ".join(f"{a},{b}" for a, b in zip(*self._places(x, y), strict=True))
        self._parts.append(f'<polyline class="{style}" points="{points}"/>')
        self._add_key(f'<line class="{style}" x1="0" y1="8" x2="24" y2="8"/>', key)

    def area(self, x: Array, low: Array, high: Array, style: str, key: str = "") -> None:
        """Fill the space between two lines."""
        there, back = self._places(x, low), self._places(x[::-1], high[::-1])
        points = " ".join(f"{a},{b}" for side in (there, back) for a, b in zip(*side, strict=True))
        self._parts.append(f'<polygon class="{style}" points="{points}"/>')
        self._add_key(f'<rect class="{style}" x="0" y="2" width="24" height="12"/>', key)

    def intervals(self, x: Array, low: Array, high: Array, style: str) -> None:
        """Draw a vertical line for each interval."""
        places, ends = self._places(x, low), self._places(x, high)[1]
        path = "".join(f"M{a} {b}V{c}" for a, b, c in zip(*places, ends, strict=True))
        self._parts.append(f'<path class="{style}" d="{path}"/>')

    def marks(self, x: Array, y: Array, titles: Sequence[str], shape: str, style: str, key: str = "") -> None:
        """Draw a mark for each point, with a text that appears under the pointer."""
        drawn = MARKS[shape]
        for a, b, title in zip(*self._places(x, y), titles, strict=True):
            self._parts.append(drawn.format(a, b, style, f"<title>{escape(title, quote=False)}</title>"))
        if len(titles):
            self._add_key(drawn.format(12, 8, style, ""), key)

    def svg(self) -> str:
        """Return the drawing, with its title and its text for readers who cannot see it."""
        head = (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{self.name}-title '
            f'{self.name}-seen"><title id="{self.name}-title">{escape(self.title)}</title>'
            f'<desc id="{self.name}-seen">{escape(self.seen)}</desc>'
        )
        # an inner svg shows nothing beyond its edges
        plot = f'<svg x="{LEFT}" y="{TOP}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}">{"".join(self._parts)}</svg>'
        return f"{head}{self._axes()}{plot}</svg>"

    def _axes(self) -> str:
        """Return the grid, the ticks and the labels."""
        parts = []
        bottom = TOP + PLOT_HEIGHT
        for tick, place in self._drawn_ticks(self.x, PLOT_WIDTH, LETTER):
            at = f"{LEFT + PLOT_WIDTH * place:.1f}"
            parts.append(f'<path class="grid" d="M{at} {TOP}V{bottom}"/>')
            parts.append(f'<text class="middle" x="{at}" y="{bottom + 37}">{tick}</text>')
        for tick, place in self._drawn_ticks(self.y, PLOT_HEIGHT, 0):
            at = f"{bottom - PLOT_HEIGHT * place:.1f}"
            parts.append(f'<path class="grid" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text class="end" x="{LEFT - 8}" y="{at}" dy="0.35em">{tick}</text>')
        parts.append(f'<text x="4" y="18">{escape(self.y.label)}</text>')
        parts.append(f'<text class="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}">{escape(self.x.label)}</text>')
        return "".join(parts)

    @staticmethod
    def _drawn_ticks(axis: Axis, length: int, letter: int) -> list[tuple[str, float]]:
        """Return the labels of ticks and their places; those that would touch the one before are left out.

        Args:
            axis: to label.
            length: of the axis, in units of the drawing.
            letter: room for each letter, 0 if labels stand above each other.
        """
        drawn: list[tuple[str, float]] = []
        for tick in axis.ticks():
            label, place = axis.text(tick), float(axis.place(np.array([tick]))[0])
            if not drawn or (place - drawn[-1][1]) * length > LETTER + letter * len(label):
                drawn.append((label, place))
        return drawn

    def _places(self, x: Array, y: Array) -> tuple[list[str], list[str]]:
        """Return coordinates of the drawing, which start at the top."""
        across, down = PLOT_WIDTH * self.x.place(x), PLOT_HEIGHT * (1 - self.y.place(y))
        return [f"{v:.1f}" for v in across.tolist()], [f"{v:.1f}" for v in down.tolist()]

    def _add_key(self, sample: str, text: str) -> None:
        if text:
            self.keys.append((f'<svg class="key" viewBox="0 0 24 16" aria-hidden="true">{sample}</svg>', text))
