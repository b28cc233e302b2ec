"""One self-contained HTML page about a model and test rows: scores in words, charts, and the rows not to trust."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure import __version__
from howsure.errors import InputError, InputTypeError, install_hint
from howsure.estimators import Regressor
from howsure.files import write_text
from howsure.report import charts
from howsure.report.evaluation import (
    COVERAGE,
    Group,
    TargetResult,
    by_familiarity,
    by_group,
    evaluate,
)
from howsure.report.readings import ScoreLine, score_lines, summary_lines
from howsure.report.unusual import ColumnShare, Reason, TrainingColumns
from howsure.report.words import clip, counted, percent, show
from howsure.tables.table import Table

__all__ = ["MARK", "render", "write_html", "write_report"]

MARK = '<meta name="generator" content="howsure report">'
DOUBTFUL = 10  # rows in the table of the most doubtful ones
MOST_POINTS = 1500  # in a chart of rows, of all targets together
FEWEST_POINTS = 200  # in a chart of one target
MOST_COLUMNS = 200  # of which the page says what they were taken for
FEW_LEVELS = 12  # of a category whose groups are shown without being asked for
MOST_AUTOMATIC = 3  # columns whose groups are shown without being asked for


def write_report(
    model: Regressor,
    X: Any,  # noqa: N803
    y: ArrayLike,
    path: str | Path,
    *,
    by: str | Sequence[Any] | NDArray[Any] | None = None,
    title: str | None = None,
    replace: bool = False,
) -> Path:
    """Write one self-contained HTML page on how good a model is for test rows, and which of them not to trust.

    The page needs no network: open it in a browser, print it, or send it by mail.

    Args:
        model: a fitted regressor.
        X: test rows, as `predict` takes them; with ``by``, also with the column that it names.
        y: their targets, (N,) or (N, T), NaN where one is unknown. Rows that the model has learned from look better
            than new ones will.
        path: of the file. Missing folders are made.
        by: the name of a column of X, or a value for every row: intervals are checked in each group of equal values.
            Numbers with many values are divided into quarters. None: categories with few values are taken.
        title: of the page.
        replace: whether a file that this function did not write is replaced; its own are.

    Returns:
        The path of the page.

    Raises:
        InputTypeError: if the model is no regressor of a table.
        InputError: if rows and targets do not fit, the file is someone else's, or plotly or jinja2 are missing.
    """
    if not isinstance(model, Regressor):
        raise InputTypeError(f"a report is about a regressor of a table, not about a {type(model).__name__}")
    environment, script = _tools()
    target = Path(path)
    check_free(target, replace)
    content = _content(model, X, y, by, title)
    write_html(target, environment, "report.html.j2", content | {"plotly": script})
    return target


def check_free(
    path: Path, replace: bool, advice: str = "move it away, or replace it with replace=True (--force)"
) -> None:
    """Raise unless a page may be written there: nothing is there, or a page of ours, or ``replace``."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file for the report, such as {path / 'report.html'}")
    if path.exists() and not path.is_file():  # a device or a pipe, which the page would replace
        raise InputError(f"{path} is not a plain file; name another one for the report")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"{path} cannot be written: {nearest} is a file, not a folder")
    if replace or not path.exists():
        return
    with path.open("rb") as file:
        start = file.read(2000)
    if MARK.encode() not in start:
        raise InputError(f"{path} exists and is no page of howsure; {advice}")


def write_html(path: Path, environment: Any, template: str, values: dict[str, Any]) -> None:
    """Write a page made from a template, whole or not at all."""
    text = render(environment, template, values)
    try:
        write_text(path, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing was written") from error


def render(environment: Any, template: str, values: dict[str, Any]) -> str:
    """Return the page that a template of this package makes of some values."""
    text = str(environment.get_template(template).render(mark=MARK, **values)) + "\n"
    return text.encode("utf-8", errors="replace").decode("utf-8")  # names may have halves of characters


def _tools() -> tuple[Any, str]:
    """Return jinja2's environment, with escaping, and the script of plotly.js."""
    try:
        get_plotlyjs = import_module("plotly.offline").get_plotlyjs
    except ModuleNotFoundError as error:
        raise InputError(f"a report needs plotly and jinja2: {install_hint('report')}") from error
    return page_environment(), get_plotlyjs()


def page_environment(package: str = "howsure.report") -> Any:
    """Return a jinja2 environment with autoescaping for the templates of a package and of this one."""
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        raise InputError(f"a report needs plotly and jinja2: {install_hint('report')}") from error
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "") for name in (package, "howsure.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.filters["show"] = show
    environment.filters["clip"] = clip
    environment.filters["script_json"] = lambda value: Markup(script_json(value))
    return environment


def script_json(value: Any) -> str:
    r"""Return a value as JSON that can stand in a script element of a page, whatever text is in it.

    >>> script_json({"name": "</script><b>"})
    '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # only ASCII: U+2028 is escaped as well
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# What the page shows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoubtfulRow:
    """A line of the table of the most doubtful rows."""

    label: str
    y: float
    point: float
    lower: float
    upper: float
    inside: bool
    noise: float | None
    doubt: float
    familiarity: float | None
    reasons: list[Reason]
    otherwise: str  # what to say where no column is unusual


@dataclass(frozen=True)
class Grouping:
    """The groups of the rows by one column."""

    column: str
    groups: list[Group]


@dataclass(frozen=True)
class TargetSection:
    """All that the page shows about one target."""

    result: TargetResult
    summary: list[str]
    scores: list[ScoreLine]
    charts: list[charts.Chart]
    familiar: list[Group]
    doubtful: list[DoubtfulRow]
    groupings: list[Grouping]
    notes: list[str]


def _content(model: Regressor, X: Any, y: ArrayLike, by: Any, title: str | None) -> dict[str, Any]:  # noqa: N803
    features, columns = _separate(model, X, by)
    p = model.predict_distribution(features)
    if not len(p):
        raise InputError("the table has no rows; a report needs at least one")
    table = model.read(features)
    x = model.features_of(table)
    known = TrainingColumns(model)
    labels = _labels(table)
    threshold = model.unfamiliar_below_ or 0.0  # no row is below 0
    results = evaluate(model, p, y)
    groupings = _groupings(table, columns)
    sections = [
        _section(result, table, x, known, labels, threshold, groupings, len(results), p.shape[0]) for result in results
    ]
    names = " and ".join(clip(result.name) for result in results) if len(results) < 4 else f"{len(results)} targets"
    odd = known.shares(table)
    return {
        "version": __version__,
        "title": title or f"How far to trust the predictions of {names}",
        "rows": p.shape[0],
        "coverage": COVERAGE,
        "model": _model_lines(model, results),
        "columns": model.columns_.iloc[:MOST_COLUMNS].reset_index().to_dict("records"),
        "columns_left_out": max(0, len(model.encoding_.names) - MOST_COLUMNS),
        "sections": sections,
        "odd_columns": odd,
        "odd_note": _odd_note(odd, table.rows),
        "threshold": threshold,
        "figures": {f"{k}-{c.name}": c.figure for k, s in enumerate(sections) for c in s.charts},
        "several": len(sections) > 1,
        "counted_from_zero": labels[0] == "0",
    }


def _separate(model: Regressor, X: Any, by: Any) -> tuple[Any, dict[str, Any]]:  # noqa: N803
    """Return the rows as the model takes them, and the columns to group by: their values by name."""
    if by is None:
        return X, {}
    if isinstance(by, str):
        names = [str(name) for name in getattr(X, "column_names", getattr(X, "columns", []))]
        if by not in names:
            held = (
                f"; it has {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else ", which has no names"
            )
            raise InputError(f"by names the column {by!r}, which the table does not have{held}")
        values = _column(X, by)
        if by in model.encoding_.names:
            return X, {by: values}
        rest = (
            X.drop_columns([by])
            if hasattr(X, "drop_columns")
            else X.drop(columns=[by])
            if hasattr(X, "iloc")
            else X.drop(by)
        )
        return rest, {by: values}
    values = list(by)
    rows = len(X) if hasattr(X, "__len__") else X.num_rows
    if len(values) != rows:
        raise InputError(f"by has {len(values)} values for {rows} rows; it needs one for every row")
    name = getattr(by, "name", None)
    return X, {"group" if name is None else str(name): values}


def _column(X: Any, name: str) -> list[Any]:  # noqa: N803
    column = X[name]
    for method in ("to_list", "to_pylist"):  # of pandas and polars, and of Arrow
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _labels(table: Table) -> list[str]:
    """Return how rows are called: by the labels of the frame's index, or by position from 0."""
    return [str(k) for k in (range(table.rows) if table.index is None else table.index)]


def _groupings(table: Table, columns: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the group of every row, as text, by the columns that were named, or else by categories with few values."""
    if columns:
        return {name: _group_labels(values) for name, values in columns.items()}
    found: dict[str, NDArray[Any]] = {}
    for column in table.columns:
        if column.kind not in ("category", "boolean") or len(found) == MOST_AUTOMATIC:
            continue
        words: dict[Any, str] = {0.0: "false", 1.0: "true"} if column.kind == "boolean" else {}
        values = ["(missing)" if v is None or v != v else words.get(v, str(v)) for v in column.values.tolist()]
        if 2 <= len(set(values)) <= FEW_LEVELS:
            found[column.name] = np.array(values, dtype=object)
    return found


def _group_labels(values: Sequence[Any]) -> NDArray[Any]:
    """Return the group of each value: the value as text, or the quarter that a number lies in if there are many."""
    import pandas as pd

    series = pd.Series(list(values))
    types = pd.api.types
    dates = types.is_datetime64_any_dtype(series)
    if (dates or types.is_numeric_dtype(series)) and not types.is_bool_dtype(series) and series.nunique() > FEW_LEVELS:
        edges: list[Any] = series.dropna().quantile([0, 0.25, 0.5, 0.75, 1]).drop_duplicates().to_list()
        code = np.clip(np.searchsorted(edges, series.fillna(edges[0]), side="right") - 1, 0, len(edges) - 2)
        ends = [str(edge.date()) if dates else show(float(edge)) for edge in edges]
        texts = [f"{ends[k]} to {ends[k + 1]}" for k in range(len(edges) - 1)]
        made = [("(missing)" if gone else texts[k]) for k, gone in zip(code, series.isna(), strict=True)]
        return np.array(made, dtype=object)
    return np.array(
        ["(missing)" if gone else str(v) for v, gone in zip(series, series.isna(), strict=True)], dtype=object
    )


def _section(
    result: TargetResult,
    table: Table,
    x: NDArray[np.float64],
    known: TrainingColumns,
    labels: list[str],
    threshold: float,
    groupings: dict[str, NDArray[Any]],
    targets: int,
    rows: int,
) -> TargetSection:
    own_labels = [labels[k] for k in result.rows]
    shown = result.sample(max(FEWEST_POINTS, MOST_POINTS // targets))
    made = [
        charts.predicted_chart(result, shown, own_labels),
        charts.uncertainty_chart(result, shown, own_labels, threshold),
        charts.calibration_chart(result),
        charts.pit_chart(result),
        charts.retention_chart(result),
    ]
    familiar = by_familiarity(result, threshold)
    return TargetSection(
        result,
        summary_lines(result, familiar, threshold),
        score_lines(result),
        [chart for chart in made if chart is not None],
        familiar,
        [_doubtful(result, int(k), table, x, known, labels, threshold) for k in result.most_doubtful(DOUBTFUL)],
        [Grouping(name, by_group(result, each[result.rows])) for name, each in groupings.items()],
        _notes(result, rows),
    )


def _doubtful(
    result: TargetResult,
    k: int,
    table: Table,
    x: NDArray[np.float64],
    known: TrainingColumns,
    labels: list[str],
    threshold: float,
) -> DoubtfulRow:
    row = int(result.rows[k])
    w = None if result.familiarity is None else float(result.familiarity[k])
    reasons = known.reasons(table, x, row, w)
    otherwise = "No column alone is unusual."
    if w is not None and w >= threshold:
        otherwise = "It looks like the training rows; the networks disagree here, or the data scatter."
    elif w is not None:
        otherwise = "No column alone is unusual: their combination is."
    noise = None if result.aleatoric is None else float(result.aleatoric[k])
    return DoubtfulRow(
        labels[row],
        float(result.y[k]),
        float(result.point[k]),
        float(result.lower[k]),
        float(result.upper[k]),
        bool(result.inside[k]),
        noise,
        float(result.doubt[k]),
        w,
        reasons,
        otherwise,
    )


def _notes(result: TargetResult, rows: int) -> list[str]:
    """Return what a reader must know about the rows of a target before trusting its numbers."""
    notes = []
    if len(result.y) < rows:
        notes.append(f"{counted(rows - len(result.y), 'row')} without a known target are left out.")
    if result.few_values:
        notes.append(
            f"The target has {len(np.unique(result.y))} different values only. A density is a rough model of it: "
            "curves have steps, and the surprise (NLL) says little."
        )
    if len(result.y) < 100:
        notes.append(f"With {counted(len(result.y), 'row')} all numbers are rough.")
    if result.guaranteed:
        notes.append("Intervals are conformal: they have a guarantee for new rows exchangeable with the training rows.")
    return notes


def _odd_note(odd: list[ColumnShare], rows: int) -> str:
    """Return what counts as unusual here, and that there is nothing if so."""
    rule = (
        "A number is unusual if it lies outside of the range of the training rows; a category if it was not in "
        "training; a missing value if the column never lacked one."
    )
    return rule if odd else f"{rule} None of the {rows:,} rows has such a value."


def _model_lines(model: Regressor, results: list[TargetResult]) -> list[tuple[str, str]]:
    """Return what the model is, as names and values."""
    names = {
        "EvidentialRegressor": "Deep evidential regression",
        "EnsembleRegressor": "Deep ensemble",
    }
    kind = type(model).__name__
    networks = model.model_.members
    lines = [
        ("Method", f"{names.get(kind, kind)} ({kind}), {counted(networks, 'network')}"),
        ("Target", clip(", ".join(result.name for result in results), 500)),
        (
            "Columns",
            f"{len(model.encoding_.names):,}, from which networks see {len(model.encoding_.features):,} numbers",
        ),
    ]
    threshold = model.unfamiliar_below_
    flags = "not flagged: there are too few held-out rows, or the evidence is plain"
    if threshold is not None:
        flags = f"familiarity below {show(threshold)}, as for 1% of rows like the training rows"
    lines.append(("Unfamiliar rows", flags))
    if model.calibration_ is not None:
        lines.append(("Calibration", model.calibration_.method))
    if model.target_transform is not None:
        lines.append(("Target transform", model.target_transform))
    return lines
