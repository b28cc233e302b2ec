"""``howsure-paper data fetch NAME``: fetch a benchmark set into a data folder."""

from pathlib import Path
from typing import Annotated

import typer

from howsure.cli import console

__all__ = ["app"]

app = typer.Typer(
    help="Download data sets.\n\nExample: howsure-paper data fetch yacht --data data", no_args_is_help=True
)


@app.command()
def fetch(
    name: Annotated[list[str], typer.Argument(help="Names of data sets (boston concrete energy …), or all.")],
    data: Annotated[
        Path | None, typer.Option(help="Data folder (default: the environment variable HOWSURE_DATA).")
    ] = None,
    origin: Annotated[str | None, typer.Option(help="Address of a mirror.")] = None,
    quiet: console.Quiet = False,
) -> None:
    """Download UCI regression sets with their standard splits, and check them by SHA-256.

    Example: howsure-paper data fetch yacht --data data
    """
    from howsure.errors import InputError
    from howsure_paper.datasets import uci
    from howsure_paper.datasets.folder import need_data

    names = list(uci.SETS) if name == ["all"] else name
    for each in names:
        if each not in uci.SETS:
            raise InputError(f"unknown set {each!r}; known are {', '.join(uci.SETS)}, all")
    folder = need_data(data)
    for each in names:
        console.remark(f"fetching {each} …", quiet)
        print(uci.download(each, folder, origin or uci.ORIGIN))
