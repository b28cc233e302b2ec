"""``howsure fit TABLE --target NAME -o FOLDER``: a model of a table, with scores on rows that were held out."""

import dataclasses
import shlex
import sys
import time
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from howsure.cli import console, models, scoring
from howsure.cli.rows import check_columns, features_of, naming_rows, read_target
from howsure.errors import InputError
from howsure.files import listed
from howsure.io import CsvOptions, read_file

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = ["fit"]

Array = NDArray[np.float64]
FEWEST = 10  # rows with a target: with fewer, neither a fit nor a score means anything
HELD_OUT = 0.1
MIN_ROWS_FOR_HOLDOUT = 100  # with fewer, a tenth of the rows is too few to score a model
CROSS_VALIDATION_FOLDS = 5
SHOWN_COLUMNS = 40


class Method(StrEnum):
    """Names of the regressors."""

    EVIDENTIAL = "evidential"
    ENSEMBLE = "ensemble"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to fit a model."""

    method: Method
    members: int | None
    steps: int | None
    seed: int
    device: str
    quiet: bool

    def regressor(self) -> "Regressor":
        """Return a regressor that is not fitted yet."""
        import howsure as hs

        kinds: dict[Method, type[Regressor]] = {
            Method.EVIDENTIAL: hs.EvidentialRegressor,
            Method.ENSEMBLE: hs.EnsembleRegressor,
        }
        kind = kinds[self.method]
        given: dict[str, Any] = {"steps": self.steps, "random_state": self.seed, "device": self.device}
        if self.members is not None:
            given["members"] = self.members
        return kind(verbose=not self.quiet, **given)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a table: features as a frame, targets (N, T), the name of the table and their numbers in it."""

    x: "pd.DataFrame"
    y: Array
    table: str
    numbers: NDArray[np.int64]

    def take(self, chosen: NDArray[np.int64]) -> "Rows":
        """Return some of the rows."""
        return Rows(self.x.iloc[chosen].reset_index(drop=True), self.y[chosen], self.table, self.numbers[chosen])


@dataclasses.dataclass(frozen=True)
class Division:
    """Training and test rows of each fold, a description of the test rows, and the rows of the saved model.

    ``refit`` is None if the model that was scored is saved.
    """

    folds: list[tuple[Rows, Rows]]
    how: str
    refit: Rows | None


def fit(
    table: Annotated[
        Path | None, typer.Argument(help="Table with a line of names: .csv, .tsv, .csv.gz, .parquet, .feather, .xlsx.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Column to predict; may be given several times.", metavar="COLUMN")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the model.")] = Path("model"),
    method: Annotated[Method, typer.Option(help="Kind of model.")] = Method.EVIDENTIAL,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column to leave out; may be given several times.", metavar="COLUMN")
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(help="Column to take for categories; may be given several times.", metavar="COLUMN"),
    ] = None,
    split_by_time: Annotated[
        str | None, typer.Option(help="Column with times: the last tenth of the rows is held out.", metavar="COLUMN")
    ] = None,
    split_by_group: Annotated[
        str | None,
        typer.Option(help="Column whose values stay together: a tenth of them is held out.", metavar="COLUMN"),
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Table to take scores on, in the place of held-out rows.")] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit again to all rows after scoring; takes twice as long.")
    ] = False,
    example: Annotated[bool, typer.Option("--example", help="Fit to scikit-learn's diabetes table.")] = False,
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
    fitted again to all rows. A table of fewer than 100 rows is scored by five-fold cross-validation, and the saved
    model is fitted to all rows.

    Example: howsure fit houses.csv --target price --drop id -o model

    Without a table: howsure fit --example -o model
    """
    settings = Settings(method, members, steps, seed, device, quiet)
    regressor = settings.regressor()
    regressor._check_parameters()
    models.check_output(output, force)
    csv = CsvOptions(separator, encoding)
    with console.speaking():
        frame, targets, name = _read(table, target or [], example, csv)
        frame = _declare(frame, category or [], targets, name)
        rows, left_out, times, groups = _prepare(frame, targets, drop or [], split_by_time, split_by_group, name, quiet)
        division = _divide(rows, targets, times, groups, split_by_group, test, csv, seed, refit)
        started = time.perf_counter()
        model, record = _fit_and_score(division, targets, settings)
        record |= {
            "table": name,
            "dropped": list(drop or []),
            "without_target": left_out,
            "seconds": round(time.perf_counter() - started, 1),
        }
        models.check_output(output, force)  # again: someone may have saved a model there in the meantime
        models.save(model, output, record)
    console.remark(f"saved in {output}; next: howsure predict {output} NEW.csv -o predictions.csv", quiet)


# The table -----------------------------------------------------------------------------------------------------------


def _read(
    table: Path | None, targets: list[str], example: bool, csv: CsvOptions
) -> tuple["pd.DataFrame", list[str], str]:
    """Return the table as a frame, the names of its targets, and its name."""
    if example:
        if table is not None:
            raise InputError("--example has a table of its own; leave out the file, or --example")
        from sklearn.datasets import load_diabetes

        frame = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
        return frame, targets or ["progression"], "the diabetes table of scikit-learn"
    if table is None:
        raise InputError("name a table, as in: howsure fit houses.csv --target price (or try --example)")
    if not targets:
        raise InputError("name the column to predict, as in: --target price")
    frame = read_file(table, csv=csv)
    frame.columns = [str(each) for each in frame.columns]
    return frame, targets, table.name


def _declare(frame: "pd.DataFrame", categories: list[str], targets: list[str], name: str) -> "pd.DataFrame":
    """Return the table with columns declared as categories."""
    check_columns(categories, frame.columns, f"--category: {name} has no column")
    for column in categories:
        if column in targets:
            raise InputError(f"--category: {column!r} is the target, which is a number")
    return frame.astype(dict.fromkeys(categories, "category"))


def _prepare(
    frame: "pd.DataFrame",
    targets: list[str],
    drop: list[str],
    by_time: str | None,
    by_group: str | None,
    name: str,
    quiet: bool,
) -> tuple[Rows, int, Array | None, Any]:
    """Return rows that have all targets, how many have not, and their times and groups where those divide the rows."""
    if by_time is not None and by_group is not None:
        raise InputError("--split-by-time and --split-by-group both say which rows are held out; choose one")
    if len(set(targets)) < len(targets):
        raise InputError(f"--target names a column twice: {listed(targets)}")
    check_columns(targets, frame.columns, f"--target: {name} has no column")
    check_columns(drop, frame.columns, f"--drop: {name} has no column")
    for option, column in (("--split-by-time", by_time), ("--split-by-group", by_group)):
        if column is not None:
            check_columns([column], frame.columns, f"{option}: {name} has no column")
    for column in (*drop, by_time, by_group):
        if column in targets:
            raise InputError(f"{column!r} is the target, and cannot be left out or divide the rows")
    y = read_target(frame, targets, name)
    known = ~np.isnan(y).any(1)
    left_out = int((~known).sum())
    if left_out:
        console.remark(f"left out: {left_out:,} of {len(y):,} rows without a target", quiet)
    if known.sum() < FEWEST:
        count = console.counted(int(known.sum()))
        raise InputError(f"{name} has {count} with a target; at least {FEWEST} are needed")
    for column, values in zip(targets, y[known].T, strict=True):
        if (values == values[0]).all():
            warnings.warn(
                f"the target {column!r} is {values[0]:g} in every row: there is nothing to learn about it, and "
                "intervals around its predictions mean nothing",
                stacklevel=2,
            )
    numbers = np.flatnonzero(known)
    frame = frame.iloc[numbers].reset_index(drop=True)
    gone = [*targets, *drop]
    if by_group is not None and by_group not in gone:
        gone.append(by_group)
        console.remark(f"{by_group!r} says which rows belong together, and is not learned from", quiet)
    features = frame.drop(columns=gone)
    if not len(features.columns):
        raise InputError(f"{name} has no columns left to learn from")
    with naming_rows(name, numbers):
        times = None if by_time is None else _times(frame, by_time, name)
    groups = None if by_group is None else frame[by_group].astype(object).where(frame[by_group].notna(), None)
    return Rows(features, y[known], name, numbers), left_out, times, groups


def _times(frame: "pd.DataFrame", column: str, name: str) -> Array:
    """Return the times of rows as numbers, NaN where missing."""
    from howsure.tables.table import read_table

    found = read_table(frame[[column]]).columns[0]
    if found.kind not in ("date", "number"):
        raise InputError(f"--split-by-time: the column {column!r} of {name} holds no dates or numbers")
    values: Array = found.values
    return values


# The division --------------------------------------------------------------------------------------------------------


def _divide(
    rows: Rows,
    targets: list[str],
    times: Array | None,
    groups: Any,
    group_name: str | None,
    test: Path | None,
    csv: CsvOptions,
    seed: int,
    refit: bool,
) -> Division:
    """Return training rows and held-out rows, as the options say."""
    from howsure.tables import splits

    count = len(rows.y)
    if test is not None:
        if times is not None or groups is not None:
            raise InputError("--test cannot be combined with --split-by-time or --split-by-group")
        if refit:
            raise InputError("--refit has no held-out rows to add: with --test the model learns from all rows")
        return Division([(rows, _read_test(test, rows, targets, csv))], f"the rows of {test.name}", None)
    if times is None and groups is None and count < MIN_ROWS_FOR_HOLDOUT:
        folds = CROSS_VALIDATION_FOLDS
        of_row = np.random.default_rng(seed).permutation(count) % folds
        return Division([_split(rows, of_row == k) for k in range(folds)], f"{folds}-fold cross-validation", rows)
    if times is not None:
        held_out = _latest(times)
        tenth = held_out.sum() <= round(1.5 * HELD_OUT * len(times))
        how = "the last tenth in time" if tenth else "the last in time; more than a tenth, as many share a time"
    elif groups is not None:
        held_out, how = _some_groups(groups, seed)
        how = how.format(group_name)
    else:
        held_out, how = np.zeros(count, bool), "a tenth at random"
        held_out[splits.random(count, HELD_OUT, seed)[1]] = True
    if (~held_out).sum() < 2:
        raise InputError(f"{how} leaves fewer than 2 rows to learn from; choose the held-out rows in another way")
    return Division([_split(rows, held_out)], how, rows if refit else None)


def _split(rows: Rows, held_out: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Return the rows to learn from and the held-out rows."""
    return rows.take(np.flatnonzero(~held_out)), rows.take(np.flatnonzero(held_out))


def _read_test(path: Path, rows: Rows, targets: list[str], csv: CsvOptions) -> Rows:
    """Return the rows of a table of its own that have all targets."""
    import pandas as pd

    # text of the training rows is text here, too, though it may look like numbers
    types = {name: getattr(dtype, "categories", dtype) for name, dtype in rows.x.dtypes.items()}
    numbers = [str(name) for name, kind in types.items() if pd.api.types.is_numeric_dtype(kind)]
    frame = read_file(path, [*numbers, *targets], csv)
    frame.columns = [str(each) for each in frame.columns]
    lacking = [each for each in rows.x.columns if each not in frame.columns]
    if lacking:
        raise InputError(f"--test: {path} lacks the column{'s' if len(lacking) > 1 else ''} {listed(lacking)}")
    y = read_target(frame, targets, path)
    known = np.flatnonzero(~np.isnan(y).any(1))
    if not len(known):
        raise InputError(f"--test: {path} has no rows with a target")
    return Rows(frame[list(rows.x.columns)], y, path.name, np.arange(len(y))).take(known)


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


def _some_groups(groups: Any, seed: int) -> tuple[NDArray[np.bool_], str]:
    """Return which rows belong to a tenth of the groups, drawn at random, and how that was done."""
    import pandas as pd

    codes, names = pd.factorize(groups, use_na_sentinel=False)
    if len(names) < 2:
        raise InputError("--split-by-group: all rows are of one group, so that none can be held out")
    order = np.random.default_rng(seed).permutation(len(names))
    chosen = order[: max(1, round(HELD_OUT * len(names)))]
    return np.isin(codes, chosen), f"{len(chosen):,} of {len(names):,} groups of {{!r}}"


# The fit and its scores -----------------------------------------------------------------------------------------------


def _fit_and_score(division: Division, targets: list[str], settings: Settings) -> tuple["Regressor", dict[str, Any]]:
    """Return the model to save and its record with the scores on held-out rows."""
    scored: dict[str, list[list[scoring.Scored]]] = {}
    for k, (train, test) in enumerate(division.folds):
        simple = _simple_models(train, test, dataclasses.replace(settings, quiet=settings.quiet or k > 0))
        fold = f" (fold {k + 1} of {len(division.folds)})" if len(division.folds) > 1 else ""
        console.remark(f"fitting to {len(train.y):,} rows{fold}", settings.quiet)
        model = _fit(settings, train, targets, again=k > 0)
        found = {str(settings.method): model.predict_distribution(features_of(model, test.x)), **simple}
        for name, prediction in found.items():
            scored.setdefault(name, []).append(scoring.score_rows(prediction, test.y))
    each = {name: parts for name, parts in scored.items() if len(parts) == len(division.folds)}
    scores = {
        column: {name: scoring.score(scoring.join_scored([part[t] for part in parts])) for name, parts in each.items()}
        for t, column in enumerate(targets)
    }
    count, learned = sum(len(test.y) for _, test in division.folds), division.folds[0][0]
    _show(scores, count, division.how)
    if division.refit is not None:
        learned = division.refit
        console.remark(f"fitting again, to all {len(learned.y):,} rows", settings.quiet)
        model = _fit(settings, learned, targets, again=True)
    held_out = {"how": division.how, "rows": count, "learned_from": division.refit is not None}
    return model, {
        "method": str(settings.method),
        "targets": targets,
        "rows": len(learned.y),
        "held_out": held_out,
        "scores": scores,
    }


def _fit(settings: Settings, rows: Rows, targets: list[str], again: bool) -> "Regressor":
    """Return a fitted model; a fit that is done again repeats no warnings about columns and targets."""
    import pandas as pd

    model = settings.regressor()
    with warnings.catch_warnings():
        if again:
            warnings.simplefilter("ignore", UserWarning)
        model.fit(rows.x, pd.DataFrame(rows.y, columns=targets))
    return model.set_params(verbose=None)


def _simple_models(train: Rows, test: Rows, settings: Settings) -> dict[str, Any]:
    """Return what simple models predict for the held-out rows, and say what columns were taken for on the way.

    The seed is that of the regressor, so that its encoding is this one.
    """
    from sklearn.utils import check_random_state

    from howsure.tables.encoder import Encoding
    from howsure.tables.table import read_table

    seed = int(check_random_state(settings.seed).randint(2**31 - 1))
    y = train.y[:, 0] if train.y.shape[1] == 1 else train.y
    with naming_rows(train.table, train.numbers, _hint):
        encoding, x = Encoding.fit_transform(read_table(train.x), y, seed)
    if not settings.quiet:
        _show_columns(encoding.to_frame())
    with naming_rows(test.table, test.numbers):
        x_test = encoding.transform(encoding.read(test.x))
    return scoring.baselines(x, train.y, x_test, settings.seed)


def _hint(column: str) -> str:
    """Return what to do about a column that cannot be read."""
    name = shlex.quote(column)
    return f"correct it, leave the column out with --drop {name}, or take it for categories with --category {name}"


# What is said ---------------------------------------------------------------------------------------------------------


def _show_columns(columns: "pd.DataFrame") -> None:
    from howsure.cli.info import column_rows

    rows = column_rows(columns.head(SHOWN_COLUMNS))
    print(console.table(rows, left=("taken for", "why")))
    if len(columns) > SHOWN_COLUMNS:
        print(f"and {len(columns) - SHOWN_COLUMNS:,} columns more; howsure info MODEL shows all")
    sys.stdout.flush()


def _show(scores: dict[str, dict[str, Any]], rows: int, how: str) -> None:
    """Print the scores of all models, a table for each target."""
    for column, found in scores.items():
        print("\n" + scoring.heading(column, rows, how))
        print(console.table(list(scoring.compare_models(found))))
    sys.stdout.flush()
