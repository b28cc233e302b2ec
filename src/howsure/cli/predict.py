"""``howsure predict MODEL TABLE -o PREDICTIONS``: predictions for any number of rows, in bounded memory."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from howsure.cli import console, models
from howsure.cli.rows import naming_rows, number_columns, predict_frame
from howsure.errors import InputError
from howsure.files import listed, new_folder
from howsure.io import CsvOptions, check_output, count_rows, is_ours, read_batches, writing

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["predict"]

Job = tuple[Path, Path]  # a table, and the file of its predictions
Read = Callable[..., Iterator["pd.DataFrame"]]
Function = Callable[["pd.DataFrame"], "pd.DataFrame"]
PARQUET = (".parquet", ".pq")


class Engine(StrEnum):
    """Where rows are predicted."""

    LOCAL = "local"
    RAY = "ray"


def predict(
    model: Annotated[Path, typer.Argument(help="File of the model.")],
    table: Annotated[Path, typer.Argument(help="Table of new rows, or a folder of Parquet files.")],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File of the predictions: .csv, .csv.gz, .parquet or .feather; or a folder."),
    ],
    coverage: console.Coverage = 0.9,
    keep: Annotated[list[str] | None, console.column("Column to copy; may be given several times.")] = None,
    escape_formulas: Annotated[
        bool, typer.Option("--escape-formulas", help="Put ' before copied texts that a spreadsheet would compute.")
    ] = False,
    engine: Annotated[Engine, typer.Option(help="This machine, or the workers of a Ray cluster.")] = Engine.LOCAL,
    separator: console.Separator = None,
    encoding: console.Encoding = None,
    force: console.Force = False,
    quiet: console.Quiet = False,
) -> None:
    """Predict the rows of a table: mean, standard deviations, interval and familiarity of each row.

    Rows keep their order, and the output appears when it is complete. Of a folder, each file is predicted into a file
    of the same name in the output folder.

    Example: howsure predict model new.parquet -o predictions.parquet --keep id
    """
    models.check_other(out, model, table)
    kept = list(dict.fromkeys(keep or []))
    with console.speaking(in_batches=True):
        regressor = models.load(model)
        function = partial(predict_frame, regressor, coverage=coverage, keep=kept, escape_formulas=escape_formulas)
        read = partial(read_batches, numbers=number_columns(regressor), csv=CsvOptions(separator, encoding))
        known = {*regressor.encoding_.names, *kept, *(regressor.target_names_ or ())}

        def noted(path: Path) -> Iterator["pd.DataFrame"]:
            for batch in read(path):
                ignored = [str(name) for name in batch.columns if str(name) not in known]
                if ignored and hasattr(regressor, "feature_names_in_") and not quiet:
                    warnings.warn(f"ignored, as the model did not learn from them: {listed(ignored)}", stacklevel=1)
                yield batch

        with _jobs(table, out, force) as jobs, console.Progress("predicting", _count(jobs), quiet) as progress:
            if engine is Engine.RAY:
                from howsure.cli import ray_engine

                for path, _ in jobs:
                    function(next(iter(noted(path)))[:1])  # raises if columns are missing
                ray_engine.predict(jobs, read, function, replace=force, progress=progress.add)
            else:
                _locally(jobs, noted, function, force, progress)
    console.remark(f"wrote {out}: {progress.summary()}", quiet)


# Input and output ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _jobs(table: Path, out: Path, force: bool) -> Iterator[list[Job]]:
    """Yield the tables and the files to write; of a folder, the folder of these files appears when the block ends."""
    if not table.is_dir():
        if out.is_dir():
            raise InputError(f"{out} is a folder; name the file of the predictions, as in -o {out / 'new.csv'}")
        check_output(out, force)
        yield [(table, out)]
        return
    tables = sorted(path for path in table.iterdir() if path.suffix.lower() in PARQUET and path.is_file())
    if not tables:
        raise InputError(f"{table} is a folder without Parquet files; name a table, or a folder of .parquet files")
    left = sorted(path.name for path in table.iterdir() if path not in tables and not path.name.startswith((".", "_")))
    if left:
        warnings.warn(f"left out, since only Parquet files in {table} itself are read: {listed(left)}", stacklevel=2)
    if out.is_dir() and any(out.iterdir()) and not force:
        raise InputError(f"{out} exists already; --force replaces it, -o names another folder")
    with new_folder(out, _check_replaceable if force else None) as folder:
        yield [(path, folder / path.name) for path in tables]


def _check_replaceable(folder: Path) -> None:
    """Raise unless a folder has nothing in it but predictions: all else is the user's, and never removed."""
    foreign = sorted(path.name for path in folder.iterdir() if not is_ours(path))
    if foreign:
        raise InputError(
            f"{folder} holds {listed(foreign, most=1)}, which howsure predict did not write; --force replaces only "
            "a folder of predictions, so name another one with -o"
        )


def _count(jobs: list[Job]) -> int | None:
    """Return the number of rows, where that is cheap to know."""
    counts = [count_rows(table) for table, _ in jobs]
    return None if None in counts else sum(filter(None, counts))


def _locally(jobs: list[Job], read: Read, function: Function, force: bool, progress: console.Progress) -> None:
    """Predict by the processors of this machine, a batch of rows for each."""
    import torch

    from howsure.threads import stream_in_threads

    def numbered(table: Path) -> Iterator[tuple[Path, int, "pd.DataFrame"]]:
        first = 0
        for batch in read(table):
            yield table, first, batch
            first += len(batch)

    def predicted(item: tuple[Path, int, "pd.DataFrame"]) -> "pd.DataFrame":
        table, first, batch = item
        with naming_rows(table, range(first, first + len(batch))):
            return function(batch)

    for table, out in jobs:
        with writing(out, replace=force) as write:
            for found in stream_in_threads(predicted, numbered(table), torch.get_num_threads()):
                write(found)
                progress.add(len(found))
