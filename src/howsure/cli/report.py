"""``howsure report MODEL TABLE``: one self-contained page on how far to trust the predictions of a model."""

from pathlib import Path
from typing import Annotated

import typer

from howsure.cli import console, models
from howsure.cli.evaluate import numbers_of, target_columns, without_targets
from howsure.cli.rows import check_columns, features_of, naming_rows, read_target
from howsure.errors import InputError
from howsure.io import CsvOptions, read_file

__all__ = ["report"]


def report(
    model: Annotated[Path, typer.Argument(help="Folder of the model.")],
    table: Annotated[Path, typer.Argument(help="Table with the columns and the targets of the model.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the page.")] = Path("report.html"),
    by: Annotated[str | None, typer.Option(help="Column in whose groups intervals are checked.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Column of the target, if the model does not know its name.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    separator: console.Separator = None,
    encoding: console.Encoding = None,
    force: console.Force = False,
    quiet: console.Quiet = False,
    _seed: console.NoSeed = 0,
) -> None:
    """Write a page on how good a model is on rows with known targets, and which rows not to trust.

    The page is one file that needs no network: scores in words, charts, doubtful rows, groups.

    Example: howsure report model test.csv -o report.html --by region
    """
    import pandas as pd

    from howsure.report.html import check_free, write_report

    check_free(out, force)
    if out.exists() and table.exists() and out.samefile(table):
        raise InputError(f"{out} is the table itself; name another file with -o")
    with console.speaking():
        regressor = models.load(model)
        models.check_outside(out, model)
        names = target_columns(regressor, target or [])
        frame = read_file(table, numbers_of(regressor, names), CsvOptions(separator, encoding))
        check_columns([] if by is None else [by], frame.columns, f"--by: {table} has no column")
        x = features_of(regressor, without_targets(frame, names, regressor), table)
        y = pd.DataFrame(read_target(frame, names, table), columns=names)
        console.remark(f"{console.counted(len(frame))} of {table}: predicting and drawing", quiet)
        groups = None if by is None else frame[by]
        with naming_rows(table, range(len(frame))):
            write_report(regressor, x, y, out, by=groups, title=title, replace=force)
    size = out.stat().st_size / 1e6
    print(f"wrote {out} ({size:.1f} MB); open it in a browser")
