"""``howsure fit TABLE --target NAME -o FILE``: a model of a table, with scores on rows that were held out."""

import shlex
import sys
import time
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from howsure.cli import console, models, scoring
from howsure.cli.console import counted
from howsure.cli.evaluate import training_rows_note
from howsure.cli.info import column_rows
from howsure.cli.rows import Rows, check_columns, features_of, naming_rows, rows_with_targets
from howsure.errors import InputError
from howsure.files import listed
from howsure.io import CsvOptions, read_file

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = ["fit"]

Array = NDArray[np.float64]
MIN_ROWS = 10  # with a target: with fewer, neither a fit nor a score means anything
HELD_OUT = 0.1
MIN_ROWS_FOR_TENTH = 100  # of fewer rows, a tenth would be too few to score a model
FOLDS = 5  # of the cross-validation of fewer rows
MIN_CALIBRATION_ROWS = 20  # for conformal intervals of 95%
SHOWN_COLUMNS = 40
QUICK = {"members": 3, "steps": 300}
ALMOST_EXACT = 0.1  # RMSE by the standard deviation of the targets: 99% of the variance is explained
MAX_ROWS_FOR_LEAK = 1000  # rows on which columns are shuffled


class Method(StrEnum):
    """Names of the regressors."""

    EVIDENTIAL = "evidential"
    ENSEMBLE = "ensemble"


class Calibration(StrEnum):
    """Methods of `howsure.calibrate` for regressors."""

    SCALE = "scale"
    CONFORMAL = "conformal"


def fit(
    table: Annotated[
        Path | None, typer.Argument(help="Table with a line of names: .csv, .tsv, .csv.gz, .parquet, .feather, .xlsx.")
    ] = None,
    target: Annotated[list[str] | None, console.column("Column to predict; may be given several times.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="File of the model.")] = Path("model"),
    method: Annotated[Method, typer.Option(help="Kind of model.")] = Method.EVIDENTIAL,
    positive: Annotated[bool, typer.Option("--positive", help="The target cannot be negative.")] = False,
    calibrate: Annotated[
        Calibration | None, typer.Option(help="Calibrate by a tenth of the rows, which is not learned from.")
    ] = None,
    drop: Annotated[list[str] | None, console.column("Column to leave out; may be given several times.")] = None,
    category: Annotated[
        list[str] | None, console.column("Column to take for categories; may be given several times.")
    ] = None,
    split_by_time: Annotated[
        str | None, console.column("Column with times: the last tenth of the rows is held out.")
    ] = None,
    split_by_group: Annotated[
        str | None, console.column("Column whose values stay together, not learned from: a tenth is held out.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Table to take scores on, instead of held-out rows.")] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit again to all rows after scoring; takes twice as long.")
    ] = False,
    example: Annotated[bool, typer.Option("--example", help="Fit to scikit-learn's diabetes table.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="3 networks of 300 steps: a first look.")] = False,
    members: Annotated[int | None, typer.Option(min=1, max=10_000, help="Number of networks.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=100_000_000, help="Most training steps.")] = None,
    seed: console.Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    separator: console.Separator = None,
    encoding: console.Encoding = None,
    force: console.Force = False,
    quiet: console.Quiet = False,
) -> None:
    """Fit a model to a table and score it on held-out rows.

    A linear model and a constant are scored on the same rows. The model that was scored is saved; with --refit, it is
    fitted again to all rows. Fewer than 100 rows are scored by five-fold cross-validation, and the saved model is
    fitted to all rows.

    Example: howsure fit houses.csv --target price --drop id -o model

    Without a table: howsure fit --example -o model
    """
    from howsure.training import resolve_device

    resolve_device(device)
    models.check_output(out, force)
    settings: dict[str, Any] = {"random_state": seed, "device": device, "verbose": not quiet}
    settings |= (QUICK if quick else {}) | ({"target_transform": "positive"} if positive else {})
    settings |= {name: value for name, value in (("members", members), ("steps", steps)) if value is not None}
    csv = CsvOptions(separator, encoding)
    started = time.perf_counter()
    with console.speaking():
        frame, targets, name = _read(table, target or [], example, csv, quiet)
        if split_by_time is not None and split_by_group is not None:
            raise InputError("--split-by-time and --split-by-group both choose the held-out rows; use one of them")
        by = {"--split-by-time": split_by_time, "--split-by-group": split_by_group}
        options = {option: [column] for option, column in by.items() if column is not None}
        _check_options(frame, targets, name, {"--drop": drop or [], "--category": category or []} | options)
        rows = rows_with_targets(frame.astype(dict.fromkeys(category or [], "category")), targets, name)
        _check_rows(rows, quiet)
        if test is not None and (split_by_time or split_by_group or refit):
            raise InputError("--test cannot be combined with --split-by-time, --split-by-group or --refit")
        held_out = None if test is not None else _hold_out(rows, split_by_time, split_by_group, seed)
        rows = rows._replace(x=rows.x.drop(columns=[*targets, *(drop or []), *filter(None, [split_by_group])]))
        if not len(rows.x.columns):
            raise InputError(f"{name} has no columns left to learn from")
        if held_out is not None:
            masks, how = held_out
            folds = [(rows.take(~chosen), rows.take(chosen)) for chosen in masks]
        elif test is not None:
            folds, how = [(rows, _read_test(test, rows, csv))], f"the rows of {test.name}"
        task = Task(method, settings, calibrate, quiet)
        found = []
        for k, (train, scored) in enumerate(folds):
            with warnings.catch_warnings(action="ignore" if k else None):  # of columns and targets: shown before
                model = task.fit(train)
            if not quiet and not k:
                _show_columns(model)
            found.append(_score(model, train, scored, task))
        if test is not None:
            _note_copies(model, train, scored)
        scores, count = scoring.mean_of_folds(found), sum(len(scored.y) for _, scored in folds)
        scoring.show(scores, count, how)
        _point_at_leaks(model, scored, scores)
        again = refit or len(folds) > 1
        if again:
            console.remark(f"fitting again, to all {len(rows.y):,} rows", quiet)
            train = rows
            with warnings.catch_warnings(action="ignore"):  # of columns and targets: they were shown before
                model = task.fit(rows)
        record = {
            "method": str(method),
            "targets": targets,
            "table": name,
            "dropped": list(drop or []),
            "rows": len(train.y),
            "without_target": rows.left_out,
            "held_out": {"how": how, "rows": count, "learned_from": again},
            "scores": scores,
            "row_hashes": models.recorded(models.row_hashes(model, train.x, train.y)),
            "seconds": round(time.perf_counter() - started, 1),
        }
        models.check_output(out, force)  # again: someone may have saved a model there in the meantime
        models.save(model, out, record)
    console.remark(f"saved in {out}; next: howsure predict {out} NEW.csv -o predictions.csv", quiet)


# The table -----------------------------------------------------------------------------------------------------------


def _read(
    table: Path | None, targets: list[str], example: bool, csv: CsvOptions, quiet: bool
) -> tuple["pd.DataFrame", list[str], str]:
    """Return the table as a frame, the names of its targets, and its name."""
    if example:
        if table is not None:
            raise InputError("--example has its own table; leave out the file, or --example")
        from sklearn.datasets import load_diabetes

        frame = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
        return frame, targets or ["progression"], "the diabetes table of scikit-learn"
    if table is None:
        raise InputError("name a table, as in: howsure fit houses.csv --target price (or try --example)")
    if not targets:
        raise InputError("name the column to predict, as in: --target price")
    with console.Progress(f"reading {table}", None, quiet):
        frame = read_file(table, csv=csv)
    frame.columns = [str(each) for each in frame.columns]
    return frame, targets, table.name


def _check_options(frame: "pd.DataFrame", targets: list[str], name: str, options: dict[str, list[str]]) -> None:
    """Raise for options that name columns which are not there, or which the options use twice."""
    if len(set(targets)) < len(targets):
        raise InputError(f"--target names a column twice: {listed(targets)}")
    for option, columns in {"--target": targets, **options}.items():
        check_columns(columns, frame.columns, f"{option}: {name} has no column")
        if option != "--target" and (both := set(columns) & set(targets)):
            raise InputError(f"{option}: {min(both)!r} is the target", column=min(both))


def _check_rows(rows: Rows, quiet: bool) -> None:
    """Raise for too few rows, and print a note if the scores are uncertain."""
    if rows.left_out:
        console.remark(f"left out: {rows.left_out:,} of {rows.left_out + len(rows.y):,} rows without a target", quiet)
    if len(rows.y) < MIN_ROWS:
        have = counted(len(rows.y))
        raise InputError(f"{rows.table} has {have} with a target; at least {MIN_ROWS} are needed")
    for column, values in zip(rows.targets, rows.y.T, strict=True):
        if (values == values[0]).all():
            console.remark(
                f"note: the target {column!r} is {values[0]:g} in every row: there is nothing to learn about it, and "
                "intervals around its predictions mean nothing"
            )
    copies = int(rows.x.astype(str).duplicated().sum())
    if copies:
        console.remark(
            f"note: {copies:,} of {counted(len(rows.y))} are copies of other rows. The scores of held-out copies of "
            "training rows are too good"
        )


# Held-out rows --------------------------------------------------------------------------------------------------------


def _hold_out(rows: Rows, by_time: str | None, by_group: str | None, seed: int) -> tuple[list[NDArray[np.bool_]], str]:
    """Return which rows each fold holds out, and how they were chosen: one fold, or five of fewer than 100 rows."""
    from howsure.tables import splits

    if by_time is not None:
        held_out = _latest(_times(rows, by_time))
        tenth = held_out.sum() <= round(1.5 * HELD_OUT * len(held_out))
        how = "the last tenth in time" if tenth else "the last in time, more than a tenth because of equal times"
    elif by_group is not None:
        held_out, how = _some_groups(rows.x[by_group], seed)
    elif len(rows.y) < MIN_ROWS_FOR_TENTH:
        fold = np.random.default_rng(seed).permutation(len(rows.y)) % FOLDS
        return [fold == k for k in range(FOLDS)], f"{FOLDS}-fold cross-validation"
    else:
        held_out, how = np.zeros(len(rows.y), bool), "a tenth at random"
        held_out[splits.random(len(rows.y), HELD_OUT, seed)[1]] = True
    if (~held_out).sum() < 2:
        raise InputError(f"{how} leaves fewer than 2 rows to learn from; choose the held-out rows in another way")
    return [held_out], how


def _times(rows: Rows, column: str) -> Array:
    """Return the times of rows as numbers, NaN where missing."""
    from howsure.tables.table import read_table

    with naming_rows(rows.table, rows.numbers):
        found = read_table(rows.x[[column]]).columns[0]
    if found.kind not in ("date", "number"):
        raise InputError(f"--split-by-time: the column {column!r} of {rows.table} holds no dates or numbers")
    return np.asarray(found.values)


def _latest(times: Array) -> NDArray[np.bool_]:
    """Return which rows are the last tenth in time; equal times stay together, and rows without one come first."""
    known = np.where(np.isnan(times), -np.inf, times)
    cut = np.sort(known)[-max(1, round(HELD_OUT * len(known)))]
    latest = known >= cut
    if latest.mean() > 0.5:  # many rows share the time of the cut
        latest = known > cut
    if not latest.any() or latest.all():
        raise InputError("--split-by-time: most rows have the same time, so that no last tenth can be held out")
    return np.asarray(latest)


def _some_groups(groups: "pd.Series[Any]", seed: int) -> tuple[NDArray[np.bool_], str]:
    """Return which rows belong to a tenth of the groups, drawn at random, and how that was done."""
    import pandas as pd

    codes, names = pd.factorize(groups, use_na_sentinel=False)
    if len(names) < 2:
        raise InputError("--split-by-group: all rows are of one group, so that none can be held out")
    order = np.random.default_rng(seed).permutation(len(names))
    chosen = order[: max(1, round(HELD_OUT * len(names)))]
    return np.isin(codes, chosen), f"{len(chosen):,} of {len(names):,} groups of {groups.name!r}"


def _read_test(path: Path, rows: Rows, csv: CsvOptions) -> Rows:
    """Return the rows of another table that have all targets."""
    import pandas as pd

    # text of the training rows is text here, too, though it may look like numbers
    types = {name: getattr(dtype, "categories", dtype) for name, dtype in rows.x.dtypes.items()}
    numbers = [str(name) for name, kind in types.items() if pd.api.types.is_numeric_dtype(kind)]
    frame = read_file(path, [*numbers, *rows.targets], csv)
    frame.columns = [str(each) for each in frame.columns]
    check_columns(list(rows.x.columns), frame.columns, f"--test: {path} has no column")
    found = rows_with_targets(frame, rows.targets, path)
    return found._replace(x=found.x[list(rows.x.columns)], table=path.name)


# The fit and its scores -----------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """The model to fit: its method and parameters, and its calibration."""

    method: Method
    settings: dict[str, Any]
    calibrate: Calibration | None
    quiet: bool

    def fit(self, rows: Rows) -> "Regressor":
        """Return a fitted model; with a calibration, by a tenth of the rows that the fit does not see."""
        import pandas as pd

        import howsure as hs
        from howsure.tables import splits

        kinds: dict[Method, type[Regressor]] = {
            Method.EVIDENTIAL: hs.EvidentialRegressor,
            Method.ENSEMBLE: hs.EnsembleRegressor,
        }
        learned = rows
        if self.calibrate is not None:
            share = max(HELD_OUT, min(0.5, MIN_CALIBRATION_ROWS / len(rows.y)))
            first, second = splits.random(len(rows.y), share, self.settings["random_state"])
            learned, rows = rows.take(first), rows.take(second)
        console.remark(f"fitting to {counted(len(learned.y))}", self.quiet)
        model = kinds[self.method](**self.settings)
        with naming_rows(learned.table, learned.numbers, _hint):
            model.fit(learned.x, pd.DataFrame(learned.y, columns=rows.targets))
        model.set_params(verbose=None)
        if self.calibrate is None:
            return model
        with naming_rows(rows.table, rows.numbers):
            calibrated: Regressor = hs.calibrate(model, rows.x, rows.y, method=str(self.calibrate))
        return calibrated


def _hint(column: str) -> str:
    """Return the remedy for a column that cannot be read."""
    name = shlex.quote(column)
    return f"correct it, leave the column out with --drop {name}, or take it for categories with --category {name}"


def _score(model: "Regressor", train: Rows, scored: Rows, task: Task) -> dict[str, dict[str, Any]]:
    """Return the scores of the model and of the simple models, by target and name of the model."""
    with naming_rows(scored.table, scored.numbers):
        found = {str(task.method): model.predict_distribution(features_of(model, scored.x))}
        x, x_new = (model.features_of(model.read(each.x)) for each in (train, scored))
    found |= scoring.baselines(x, train.y, x_new, task.settings["random_state"])
    scores: dict[str, dict[str, Any]] = {target: {} for target in scored.targets}
    for name, p in found.items():
        for target, (own, y) in zip(scored.targets, scoring.of_targets(p, scored.y), strict=True):
            scores[target][name] = scoring.score(own, y)
    return scores


def _note_copies(model: "Regressor", train: Rows, scored: Rows) -> None:
    """Print a note if scored rows are training rows."""
    known, found = (models.row_hashes(model, each.x, each.y) for each in (train, scored))
    copies = int(np.isin(found, known).sum())
    if copies:
        console.remark(f"note: {training_rows_note(copies, len(found))}")


def _point_at_leaks(model: "Regressor", scored: Rows, scores: dict[str, dict[str, Any]]) -> None:
    """Print a note about the most important column if predictions are almost exact: it may contain the target."""
    from sklearn.inspection import permutation_importance

    some = scored.take(np.arange(min(len(scored.y), MAX_ROWS_FOR_LEAK)))
    for k, (target, found) in enumerate(scores.items()):
        if not min(each["rmse"] or np.inf for each in found.values()) <= ALMOST_EXACT * np.std(scored.y[:, k]):
            continue

        def error(model: "Regressor", x: "pd.DataFrame", y: Array, k: int = k) -> float:
            return -float(np.mean((model.predict(x).reshape(y.shape)[:, k] - y[:, k]) ** 2))

        importance = permutation_importance(model, some.x, some.y, scoring=error, n_repeats=1, random_state=0)
        worst = str(some.x.columns[importance.importances_mean.argmax()])
        console.remark(
            f"note: the columns determine {target!r} almost exactly, most of all {worst!r}. If it is known only "
            f"together with {target!r}, leave it out with --drop {shlex.quote(worst)}"
        )


# Output --------------------------------------------------------------------------------------------------------------


def _show_columns(model: "Regressor") -> None:
    columns = model.columns_
    print(console.table(column_rows(columns.head(SHOWN_COLUMNS)), left=("taken for", "why")))
    if len(columns) > SHOWN_COLUMNS:
        print(f"and {len(columns) - SHOWN_COLUMNS:,} columns more; howsure info MODEL shows all")
    sys.stdout.flush()
