"""``howsure export MODEL -o FILE``: a model as an ONNX graph, for programs without howsure or Python."""

from pathlib import Path
from typing import Annotated

import typer

from howsure.cli import console, models

__all__ = ["export"]


def export(
    model: Annotated[Path, typer.Argument(help="Folder of the model.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File of the graph; FILE.columns.json is written next to it.")
    ] = Path("model.onnx"),
    coverage: console.Coverage = 0.9,
    interval: Annotated[
        bool, typer.Option("--interval/--no-interval", help="Whether the graph has an interval at all.")
    ] = True,
    single: Annotated[
        bool, typer.Option("--single", help="Compute the networks in float32: quicker, with fewer digits.")
    ] = False,
    force: console.Force = False,
    quiet: console.Quiet = False,
    _seed: console.NoSeed = 0,
) -> None:
    """Write a model as an ONNX graph, from the columns of a table to mean, deviations and interval.

    The graph takes numbers. Their meaning, and the code of every text, is in the JSON file next to it.

    Example: howsure export model -o model.onnx
    """
    with console.speaking(), console.Progress("exporting", None, quiet):
        from howsure.export import columns_file, export_onnx

        regressor = models.load(model)
        models.check_outside(out, model)
        path = export_onnx(regressor, out, coverage=coverage if interval else None, single=single, force=force)
    size = path.stat().st_size / 1e6
    console.remark(f"wrote {path} ({size:.1f} MB) and {columns_file(path)}, the meaning of its columns", quiet)
