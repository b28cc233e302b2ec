"""Pictures of a model, in the form of scikit-learn's displays: ``from_estimator`` and ``from_predictions``.

Each class stores the arrays that it draws. After ``plot`` the attributes ``ax_`` and ``figure_`` hold the axes and the
figure. A notebook shows a display as its figure. Matplotlib is needed (extra ``plot``).
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure import metrics
from howsure.errors import InputError
from howsure.plots import COLOURS, figure_of, legend, new_figure
from howsure.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CalibrationDisplay", "EvidenceDisplay", "IntervalDisplay", "RetentionDisplay"]

Array = NDArray[Any]
CURVE_POINTS = 101
MAX_INTERVALS = 250  # in one panel
GRID_POINTS = 101  # along a single feature
GRID_SIDE = 41  # along each of two features


class _Drawn:
    """Axes and figure of a display."""

    ax_: "Axes"
    figure_: "Figure"

    def _axes(self, ax: "Axes | None", size: tuple[float, float] = (5.2, 4.0)) -> "Axes":
        """Set ``ax_`` and ``figure_`` to the given axes, or to new ones."""
        if ax is None:
            ax = new_figure(1, 1, size)[1][0, 0]
        self.ax_ = ax
        self.figure_ = figure_of(ax)
        return ax

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG, for notebooks."""
        target = io.BytesIO()
        self.figure_.savefig(target, format="png", dpi=100)
        return target.getvalue()


class _Display(_Drawn):
    """Display that compares predictions with targets."""

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: ArrayLike, *, ax: "Axes | None" = None, **options: Any) -> Self:  # noqa: N803
        """Predict the rows of X and draw the display.

        Args:
            estimator: a fitted model with the method ``predict_distribution``.
            X: rows of the features.
            y: targets, (rows,).
            ax: matplotlib axes to draw into. None makes a new figure.
            **options: further arguments of `from_predictions`.

        Returns:
            The display, drawn.

        Raises:
            InputError: if the model has several targets, or matplotlib is not installed.
        """
        display: Self = cast(Any, cls).from_predictions(estimator.predict_distribution(X), y, ax=ax, **options)
        return display


FROM_PREDICTIONS = "choose a target, as in prediction[:, 0] and y[:, 0], and use from_predictions"


def _one_target(prediction: Prediction, hint: str = FROM_PREDICTIONS) -> None:
    """Raise an error unless the prediction has the shape (rows,) with at least one row."""
    if len(prediction.shape) != 1:
        raise InputError(f"a display draws one target per row, got predictions of shape {prediction.shape}", hint=hint)
    if not prediction.shape[0]:
        raise InputError("there are no rows to draw")


def _levels(prediction: Prediction) -> Array:
    """Return coverages between 0 and 1, as far as a conformal prediction from few rows has intervals for them."""
    levels = np.linspace(0, 1, CURVE_POINTS)[1:-1]
    while prediction.guarantee is not None and len(levels) > 1:
        try:
            prediction[:1].interval(levels[-1])
            break
        except InputError:
            levels = levels[:-1]
    return levels


class IntervalDisplay(_Display):
    """Central intervals around the predicted medians, from the narrowest to the widest, with the targets.

    Args:
        prediction: predictions of shape (rows,).
        y: targets, (rows,).
        coverage: probability of the intervals.

    >>> import torch, howsure as hs
    >>> p = hs.Prediction(hs.Normal(torch.zeros(3), 1.0))
    >>> hs.IntervalDisplay(p, [0.1, -2.0, 0.5], coverage=0.8).inside
    array([ True, False,  True])
    >>> display = hs.IntervalDisplay.from_predictions(p, [0.1, -2.0, 0.5])
    >>> display.plot().ax_ is display.figure_.axes[-1]
    True
    """

    def __init__(self, prediction: Prediction, y: ArrayLike, coverage: float = 0.9) -> None:
        _one_target(prediction)
        metrics.coverage(prediction, y, coverage)  # checks y and the coverage
        ends, values = prediction.interval(coverage), np.asarray(y, dtype=float).ravel()
        self.prediction, self.y, self.coverage, self.ends = prediction, values, coverage, ends
        self.inside: Array = (values >= ends[:, 0]) & (values <= ends[:, 1])

    @classmethod
    def from_predictions(
        cls, prediction: Prediction, y: ArrayLike, *, ax: "Axes | None" = None, coverage: float = 0.9
    ) -> Self:
        """Draw intervals of predictions that exist already.

        Args:
            prediction: predictions of shape (rows,).
            y: targets, (rows,).
            ax: matplotlib axes to draw into. None makes a new figure.
            coverage: probability of the intervals.

        Returns:
            The display, drawn.
        """
        return cls(prediction, y, coverage).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw into ``ax``, or into a new figure, and return the display.

        At most 250 rows are drawn, spread evenly over the order of widths. The legend counts all rows.
        """
        ax = self._axes(ax, (6.4, 4.0))
        order = np.argsort(self.ends[:, 1] - self.ends[:, 0], kind="stable")
        shown = order[np.linspace(0, len(order) - 1, min(len(order), MAX_INTERVALS)).round().astype(int)]
        median, place = self.prediction[shown].median, np.arange(len(shown))
        low, high = (self.ends[shown] - median[:, None]).T
        label = f"{100 * self.coverage:.4g}% interval"
        width = float(np.clip(220 / len(shown), 0.8, 6.0))
        ax.vlines(place, low, high, colors=COLOURS["epistemic"], alpha=0.35, lw=width, label=label)
        ax.axhline(0, color=COLOURS["epistemic"], lw=0.8)
        count = int((~self.inside).sum())
        outside = f"target outside ({count:,} of {len(order):,}, {100 * count / len(order):.3g}%)"
        inside, deviation = self.inside[shown], self.y[shown] - median
        for chosen, color, name in ((inside, "data", "target inside"), (~inside, "aleatoric", outside)):
            ax.scatter(place[chosen], deviation[chosen], s=8, color=COLOURS[color], lw=0, label=name, zorder=3)
        ax.set(xlabel=f"{len(shown):,} rows, narrowest to widest interval", ylabel="target − predicted median")
        ax.set_xticks([])
        legend(ax, loc="upper left")
        return self


class CalibrationDisplay(_Display):
    """Share of the targets inside central intervals, for every coverage, with the range that chance explains.

    Args:
        coverage: probabilities of the intervals.
        observed: share of the targets inside each.
        rows: number of targets.

    Raises:
        InputError: if the arrays do not fit together.

    >>> import torch, howsure as hs
    >>> hs.CalibrationDisplay([0.5, 0.9], [0.4, 0.8], rows=100).plot().observed
    array([0.4, 0.8])
    >>> p = hs.Prediction(hs.Normal(torch.zeros(3), 1.0))
    >>> hs.CalibrationDisplay.from_predictions(p, [0.1, -2.0, 0.5]).rows
    3
    """

    def __init__(self, coverage: ArrayLike, observed: ArrayLike, rows: int) -> None:
        self.coverage, self.observed = np.asarray(coverage, dtype=float), np.asarray(observed, dtype=float)
        if self.coverage.shape != self.observed.shape or self.coverage.ndim != 1:
            raise InputError(
                f"coverage and observed must have one length, got {self.coverage.shape} and {self.observed.shape}"
            )
        self.rows = rows

    @classmethod
    def from_predictions(cls, prediction: Prediction, y: ArrayLike, *, ax: "Axes | None" = None) -> Self:
        """Draw the calibration of predictions that exist already.

        Args:
            prediction: predictions of shape (rows,).
            y: targets, (rows,).
            ax: matplotlib axes to draw into. None makes a new figure.

        Returns:
            The display, drawn.
        """
        _one_target(prediction)
        coverage = _levels(prediction)
        observed = metrics.coverage_curve(prediction, y, coverage)
        return cls(coverage, observed, prediction.shape[0]).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw into ``ax``, or into a new figure, and return the display."""
        ax = self._axes(ax)
        levels, chance = self.coverage, 1.96 * np.sqrt(self.coverage * (1 - self.coverage) / max(1, self.rows))
        low, high = (np.clip(levels + sign * chance, 0, 1) for sign in (-1, 1))
        ax.fill_between(levels, low, high, color=COLOURS["range"], lw=0, label="ideal ± chance (95%)")
        ax.plot([0, 1], [0, 1], color=COLOURS["data"], lw=1, ls="--", label="ideal")
        ax.plot(levels, self.observed, color=COLOURS["epistemic"], lw=1.8, label="observed")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="coverage of the interval", ylabel="share of targets inside")
        legend(ax, loc="upper left")
        return self


class RetentionDisplay(_Display):
    """Error of the remaining rows when the most uncertain rows are left out.

    Args:
        kept: shares of the rows that remain.
        error: error of the remaining rows when they are ranked by the predicted uncertainty.
        oracle: the same for a ranking by the true error, the best possible one.
        name: name of the error.

    >>> import torch, howsure as hs
    >>> hs.RetentionDisplay([1.0, 0.5], [2.0, 1.0], [2.0, 0.5], name="rmse").plot().kept
    array([1. , 0.5])
    >>> p = hs.Prediction(hs.Normal(torch.zeros(2), torch.tensor([1.0, 2.0])))
    >>> hs.RetentionDisplay.from_predictions(p, [0.5, 3.0], error="mae").error
    array([1.75, 0.5 ])
    """

    def __init__(self, kept: ArrayLike, error: ArrayLike, oracle: ArrayLike, name: str = "rmse") -> None:
        self.kept, self.error, self.oracle = (np.asarray(each, dtype=float) for each in (kept, error, oracle))
        self.name = name

    @classmethod
    def from_predictions(
        cls,
        prediction: Prediction,
        y: ArrayLike,
        *,
        ax: "Axes | None" = None,
        uncertainty: ArrayLike | str = "std",
        error: str = "rmse",
    ) -> Self:
        """Draw the retention curve of predictions that exist already.

        Args:
            prediction: predictions of shape (rows,).
            y: targets, (rows,).
            ax: matplotlib axes to draw into. None makes a new figure.
            uncertainty: the ranking: "std", "aleatoric", "epistemic", "entropy", or one number per row.
            error: "rmse" or "mae", of the mean.

        Returns:
            The display, drawn.
        """
        _one_target(prediction)
        kept, curve = metrics.retention_curve(prediction, y, uncertainty, error)
        distance = np.abs(prediction.mean - np.asarray(y, dtype=float).ravel())
        _, oracle = metrics.retention_curve(prediction, y, distance, error)
        return cls(kept, curve, oracle, error).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw into ``ax``, or into a new figure, and return the display."""
        ax = self._axes(ax)
        ax.axhline(self.error[0], color=COLOURS["data"], lw=1, ls="--", label="random order")
        ax.plot(self.kept, self.error, color=COLOURS["epistemic"], lw=1.8, label="by predicted uncertainty")
        ax.plot(self.kept, self.oracle, color=COLOURS["total"], lw=1.2, label="by true error (best possible)")
        ax.set(xlim=(1, 0), xlabel="share of rows kept, most certain rows last", ylabel=f"{self.name} of the rows kept")
        ax.set_ylim(bottom=0)
        legend(ax, loc="lower left")
        return self


class EvidenceDisplay(_Drawn):
    """Mean, interval and familiarity along one feature, or the interval width over two features.

    The other features have the values of one row: the median of numbers, and the most frequent value of other columns.

    Args:
        prediction: predictions at the points of the grid.
        grid: values of each feature along the grid, one array per feature.
        names: names of the features.
        coverage: probability of the intervals.
        rows: values of these features in X, (rows, features), drawn as points.

    >>> import numpy as np, torch, howsure as hs
    >>> p = hs.Prediction(hs.Normal(torch.zeros(3), 1.0))
    >>> hs.EvidenceDisplay(p, [np.arange(3.0)], ["size"]).plot().coverage
    0.9
    """

    def __init__(
        self,
        prediction: Prediction,
        grid: Sequence[Array],
        names: Sequence[str],
        coverage: float = 0.9,
        rows: Array | None = None,
    ) -> None:
        self.prediction, self.grid, self.names = prediction, list(grid), list(names)
        self.coverage, self.rows = coverage, rows

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,  # noqa: N803
        features: Any,
        *,
        ax: "Axes | None" = None,
        coverage: float = 0.9,
        margin: float = 0.5,
    ) -> Self:
        """Predict a grid over one or two numeric features, and draw the display.

        Args:
            estimator: a fitted model with the method ``predict_distribution`` and one target.
            X: rows with all columns of the model, such as the training rows; a NumPy array or a pandas frame. They
                decide the range of the grid and the typical values of the other columns.
            features: name or position of one feature, or a pair of these.
            ax: matplotlib axes to draw into. None makes a new figure.
            coverage: probability of the intervals.
            margin: share of the range of each feature that the grid adds on each side.

        Returns:
            The display, drawn.

        Raises:
            InputError: if a feature does not exist, or is not a number.

        >>> import numpy as np, howsure as hs
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(X, X[:, 0])
        >>> hs.EvidenceDisplay.from_estimator(model, X, features=0).names
        ['feature 0']
        """
        import pandas as pd

        is_table = hasattr(X, "columns")
        frame = X.to_pandas() if hasattr(X, "to_pandas") else X if is_table else pd.DataFrame(np.asarray(X))
        chosen = list(features) if isinstance(features, list | tuple) else [features]
        if len(chosen) not in (1, 2):
            raise InputError(f"features must name one or two columns, got {len(chosen)}")
        names = [_column(frame, each) for each in chosen]
        if len(set(names)) < len(names):
            raise InputError(f"features must be two different columns, got {names[0]!r} twice")
        values = [_numbers(frame, name) for name in names]
        size = GRID_POINTS if len(names) == 1 else GRID_SIDE
        grid = [_steps(each, margin, size) for each in values]
        points = np.stack([each.ravel() for each in np.meshgrid(*grid, indexing="ij")], axis=1)
        table = pd.concat([_typical_row(frame)] * len(points), ignore_index=True)
        for position, name in enumerate(names):
            table[name] = points[:, position]
        prediction = estimator.predict_distribution(table if is_table else table.to_numpy())
        _one_target(prediction, "fit a model to one of the targets")
        labels = [name if isinstance(name, str) else f"feature {name}" for name in names]
        return cls(prediction, grid, labels, coverage, np.stack(values, axis=1)).plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw into ``ax``, or into a new figure, and return the display."""
        ax = self._axes(ax, (6.0, 4.0))
        if len(self.grid) == 1:
            self._plot_line(ax)
        else:
            self._plot_map(ax)
        return self

    def _plot_line(self, ax: "Axes") -> None:
        """Draw mean and interval along one feature, and the familiarity on a second axis."""
        (x,), p = self.grid, self.prediction
        low, high = p.interval(self.coverage).T
        ax.fill_between(
            x, low, high, color=COLOURS["epistemic"], alpha=0.25, lw=0, label=f"{100 * self.coverage:.4g}% interval"
        )
        ax.plot(x, p.median, color=COLOURS["epistemic"], lw=1.8, label="median")
        ax.set(xlabel=self.names[0], ylabel="y", xlim=(x[0], x[-1]))
        if self.rows is not None:
            bottom = np.full(len(self.rows), 0.01)
            ax.plot(
                self.rows[:, 0], bottom, "|", color=COLOURS["data"], transform=ax.get_xaxis_transform(), label="rows"
            )
        if p.familiarity is not None:
            other = ax.twinx()
            other.plot(x, p.familiarity, color=COLOURS["aleatoric"], lw=1.2, ls="--")
            other.set_ylim(0, 1.02)
            other.set_ylabel("familiarity (dashed)", color=COLOURS["aleatoric"])
        legend(ax, loc="upper left")

    def _plot_map(self, ax: "Axes") -> None:
        """Draw the width of the interval as colours over two features, with the rows of X."""
        x, y = self.grid
        ends = self.prediction.interval(self.coverage)
        width = (ends[:, 1] - ends[:, 0]).reshape(len(x), len(y))
        image = ax.pcolormesh(x, y, width.T, shading="nearest", cmap="viridis")
        self.figure_.colorbar(image, ax=ax, label=f"width of the {100 * self.coverage:.4g}% interval")
        if self.rows is not None:
            ax.plot(self.rows[:, 0], self.rows[:, 1], ".", color="white", ms=3, mec="black", mew=0.3)
        ax.set(xlabel=self.names[0], ylabel=self.names[1])


def _column(frame: Any, feature: Any) -> Any:
    """Return the name of a column from its name or position."""
    if feature in frame.columns:
        return feature
    if isinstance(feature, int) and -len(frame.columns) <= feature < len(frame.columns):
        return frame.columns[feature]
    raise InputError(f"X has no column {feature!r}", hint=f"it has {', '.join(map(str, frame.columns[:10]))}")


def _numbers(frame: Any, name: Any) -> Array:
    """Return the values of a numeric column."""
    values: Array = (
        frame[name].to_numpy(dtype=float, na_value=np.nan) if frame[name].dtype.kind in "iuf" else np.empty(0)
    )
    if not np.isfinite(values).any():
        raise InputError(f"column {name!r} has no finite numbers", column=str(name), hint="choose a numeric feature")
    return values


def _steps(values: Array, margin: float, size: int) -> Array:
    """Return ``size`` values from below the smallest to above the largest one."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    space = margin * (high - low) or 1.0
    return np.linspace(low - space, high + space, size)


def _typical_row(frame: Any) -> Any:
    """Return a frame of one row: the median of each number, and the most frequent value of other columns."""
    import pandas as pd

    def typical(column: Any) -> Any:
        if column.dtype.kind in "iuf":
            return pd.Series([column.median()], name=column.name)
        common = column.mode().iloc[:1]
        return common if len(common) else column.iloc[:1].reset_index(drop=True)

    return pd.concat([typical(frame[name]) for name in frame.columns], axis=1)
