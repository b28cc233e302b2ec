"""``howsure report MODEL TABLE``: one self-contained page on how far to trust the predictions of a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from howsure.cli import console, models
from howsure.cli.evaluate import Target, note_rows
from howsure.cli.rows import naming_rows, read_test_rows
from howsure.io import CsvOptions

__all__ = ["report"]


def report(
    model: Annotated[Path, typer.Argument(help="File of the model.")],
    table: Annotated[Path, typer.Argument(help="Table with the columns and the targets of the model.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File of the page.")] = Path("report.html"),
    by: Annotated[str | None, console.column("Column in whose groups intervals are checked.")] = None,
    target: Target = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    separator: console.Separator = None,
    encoding: console.Encoding = None,
    force: console.Force = False,
    quiet: console.Quiet = False,
) -> None:
    """Write a page on how good a model is on rows with known targets, and which rows need a check.

    The page is one file that needs no network: a picture, three sentences, the rows to check first, scores and groups.

    Example: howsure report model test.csv -o report.html --by region
    """
    import pandas as pd

    from howsure.report.html import check_free, write_report

    check_free(out, force)
    models.check_other(out, model, table)
    with console.speaking():
        regressor = models.load(model)
        rows, groups = read_test_rows(regressor, table, target or [], by, CsvOptions(separator, encoding))
        notes = [f"{note}." for note in note_rows(regressor, rows, quiet)]
        y = pd.DataFrame(rows.y, columns=rows.targets)
        options: dict[str, Any] = {"by": groups, "title": title, "replace": force, "notes": notes}
        with console.Progress(f"predicting {console.counted(len(y))}", None, quiet), naming_rows(table, rows.numbers):
            write_report(regressor, rows.x, y, out, **options)
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB); open it in a browser")
