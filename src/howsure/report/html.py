"""One self-contained HTML page about a model and test rows: a picture, three sentences, and tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure import __version__
from howsure.errors import InputError, InputTypeError, install_hint
from howsure.estimators import Regressor
from howsure.files import write_text
from howsure.report import charts, sentences
from howsure.report.evaluation import COVERAGE, TargetResult, by_familiarity, by_group, evaluate
from howsure.report.explained import explain
from howsure.report.unusual import later_rows, reasons, unusual_columns
from howsure.report.words import clip, counted, percent, show
from howsure.tables.table import Table

__all__ = ["MARK", "check_free", "page_environment", "render", "write_report"]

MARK = '<meta name="generator" content="howsure report">'
SHOWN_ROWS = 10  # in the table of rows to check
MAX_MARKS = 1000  # in the charts of rows, of all targets together
MIN_MARKS = 150  # in a chart of one target
SHOWN_COLUMNS = 200  # in the table of the columns of the model
MAX_GROUP_VALUES = 12  # of numbers: with more, the groups are quarters


def write_report(
    model: Regressor,
    X: Any,  # noqa: N803
    y: ArrayLike,
    path: str | Path,
    *,
    by: str | Sequence[Any] | NDArray[Any] | None = None,
    title: str | None = None,
    replace: bool = False,
    notes: Sequence[str] = (),
) -> Path:
    """Write one self-contained HTML page on how good a model is for test rows, and which of them need a check.

    The page needs neither network nor scripts: open it in a browser, print it, or send it by mail.

    Args:
        model: a fitted regressor.
        X: test rows, as `predict` takes them; with ``by``, also with the column that it names.
        y: their targets, (N,) or (N, T), NaN where one is unknown. Rows that the model has learned from look better
            than new ones will.
        path: of the file. Missing folders are made.
        by: the name of a column of X, or a value for every row: intervals are checked in each group of equal values.
            Numbers with many values are divided into quarters.
        title: of the page.
        replace: whether a file that this function did not write is replaced. Reports are always replaced.
        notes: sentences to show below the summary.

    Returns:
        The path of the page.

    Raises:
        InputTypeError: if the model is not a regressor of a table.
        InputError: if rows and targets do not fit, the file is not a report, or jinja2 is missing (extra ``report``).

    >>> import tempfile
    >>> import howsure as hs
    >>> X, y = np.random.default_rng(0).random((60, 3)), np.arange(60.0)
    >>> model = hs.EvidentialRegressor(members=2, steps=20, random_state=0).fit(X[:40], y[:40])
    >>> write_report(model, X[40:], y[40:], tempfile.mkdtemp() + "/report.html").name
    'report.html'
    """
    if not isinstance(model, Regressor):
        raise InputTypeError(f"a report needs a regressor of a table, not a {type(model).__name__}")
    environment = page_environment()
    target = Path(path)
    check_free(target, replace)
    text = render(environment, "report.html.j2", _content(model, X, y, by, title, notes))
    try:
        write_text(target, text)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}; nothing was written") from error
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
        raise InputError(f"{path} exists and was not written by howsure; {advice}")


def render(environment: Any, template: str, values: dict[str, Any]) -> str:
    """Return the page that a template makes of some values."""
    text = str(environment.get_template(template).render(mark=MARK, **values)) + "\n"
    return text.encode("utf-8", errors="replace").decode("utf-8")  # names may have halves of characters


def page_environment(package: str = "howsure.report") -> Any:
    """Return a jinja2 environment with autoescaping for the templates of a package and of this one."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise InputError(f"a report needs jinja2: {install_hint('report')}") from error
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "") for name in (package, "howsure.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "show": show, "clip": clip}
    return environment


# Content of the page --------------------------------------------------------------------------------------------------


def _content(
    model: Regressor,
    X: Any,  # noqa: N803
    y: ArrayLike,
    by: Any,
    title: str | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    features, name, labels = _separate(model, X, by)
    p = model.predict_distribution(features)
    if not len(p):
        raise InputError("the table has no rows; a report needs at least one")
    table = model.read(features)
    results = evaluate(p, y, model.unfamiliar_below_)
    sections = [_section(k, each, model, features, table, labels, name, len(results)) for k, each in enumerate(results)]
    names = " and ".join(clip(result.name) for result in results) if len(results) < 4 else f"{len(results)} targets"
    return {
        "version": __version__,
        "title": title or f"How far to trust the predictions of {names}",
        "rows": len(p),
        "coverage": COVERAGE,
        "notes": [*notes, *later_rows(model.encoding_.encoders, table)],
        "sections": sections,
        "unusual": unusual_columns(model.encoding_.encoders, table),
        "model": _model_lines(model),
        "columns": model.columns_.iloc[:SHOWN_COLUMNS].reset_index().to_dict("records"),
        "columns_left_out": max(0, len(model.encoding_.names) - SHOWN_COLUMNS),
    }


def _separate(model: Regressor, X: Any, by: Any) -> tuple[Any, str, NDArray[Any] | None]:  # noqa: N803
    """Return the rows as the model takes them, and the name and the group of every row to group by, if any."""
    if by is None:
        return X, "", None
    if isinstance(by, str):
        names = [str(name) for name in getattr(X, "column_names", getattr(X, "columns", ()))]
        if by not in names:
            raise InputError(f"by: the table has no column {by!r}", column=by, hint=f"it has {clip(', '.join(names))}")
        values = list(getattr(X[by], "to_pylist", X[by].__iter__)())
        if by not in model.encoding_.names:
            kept = [name for name in names if name != by]
            X = X[kept] if hasattr(X, "iloc") else X.select(kept)  # noqa: N806
        return X, by, _group_labels(values)
    values = list(by)
    rows = len(X) if hasattr(X, "__len__") else X.num_rows
    if len(values) != rows:
        raise InputError(f"by has {len(values)} values for {rows} rows; it needs one for every row")
    return X, str(getattr(by, "name", None) or "group"), _group_labels(values)


def _group_labels(values: Sequence[Any]) -> NDArray[Any]:
    """Return the group of each value: the value as text, or the quarter that a number lies in if there are many."""
    import pandas as pd

    series = pd.Series(values)
    if pd.api.types.is_numeric_dtype(series) and series.nunique() > MAX_GROUP_VALUES:
        quarters = pd.qcut(series.astype(float), 4, duplicates="drop")
        series = quarters.map(lambda quarter: f"{show(quarter.left)} to {show(quarter.right)}", na_action="ignore")
    texts = series.astype(object).map(str, na_action="ignore")
    return np.asarray(texts.where(texts.notna(), "(missing)"), dtype=object)


def _section(
    number: int, result: TargetResult, model: Regressor, rows: Any, table: Table, groups: Any, by: str, targets: int
) -> dict[str, Any]:
    """Return the content of the page about one target."""
    index = [str(label) for label in (range(table.rows) if table.index is None else table.index)]
    labels = [index[k] for k in result.rows]
    shown = result.sample(max(MIN_MARKS, MAX_MARKS // targets))
    made = [draw(result, shown, labels) for draw in (charts.predicted_chart, charts.parts_chart)]
    made += [charts.calibration_chart(result), charts.retention_chart(result)]
    picture, *others = [chart for chart in made if chart is not None]
    for chart in (picture, *others):
        chart.name += f"-{number}"
    found = [("Familiarity", by_familiarity(result))]
    if groups is not None:
        found.append((clip(by), by_group(result, groups[result.rows])))
    encoders = model.encoding_.encoders
    checked = [(labels[k], k, reasons(encoders, table, int(result.rows[k]))) for k in result.widest[:SHOWN_ROWS]]
    return {
        "result": result,
        "picture": picture,
        "summary": sentences.summary(result),
        "notes": sentences.notes(result, table.rows),
        "rows": checked,
        "groups": [(name, each) for name, each in found if each],
        "scores": sentences.score_lines(result),
        "charts": others,
        "explained": explain(model, rows, result, labels),
    }


def _model_lines(model: Regressor) -> list[tuple[str, str]]:
    """Return the properties of the model, as names and values."""
    given = {name: value for name, value in model.get_params().items() if value != type(model)().get_params()[name]}
    settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
    columns, features = (len(each) for each in (model.encoding_.names, model.encoding_.features))
    threshold = model.unfamiliar_below_
    limit = f"below {show(threshold)}, as 1% of rows like the training rows are" if threshold else "not known"
    lines = [
        ("Model", f"{type(model).__name__}({clip(settings, 300)})"),
        ("Columns", f"{counted(columns, 'column')}, from which {counted(features, 'number')} are made"),
        ("Unfamiliar rows", limit),
    ]
    if model.calibration_ is not None:
        lines.append(("Calibration", f"{model.calibration_.method}, by rows that the model has not learned from"))
    return lines
