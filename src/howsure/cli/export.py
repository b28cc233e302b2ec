"""``howsure export MODEL -o FILE``: a model as an ONNX graph, for programs without howsure or Python."""

from pathlib import Path
from typing import Annotated

import typer

from howsure.cli import console, models

__all__ = ["export"]


def export(
    model: Annotated[Path, typer.Argument(help="File of the model.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write, such as model.onnx.")] = Path("model.onnx"),
    coverage: console.Coverage = 0.9,
    interval: Annotated[
        bool, typer.Option("--interval/--no-interval", help="Whether the graph has an interval at all.")
    ] = True,
    single: Annotated[
        bool, typer.Option("--single", help="Compute the networks in float32: quicker, with fewer digits.")
    ] = False,
    force: console.Force = False,
    quiet: console.Quiet = False,
) -> None:
    """Write a model as an ONNX graph, from the columns of a table to mean, deviations and interval.

    The graph takes numbers. Their meaning, and the code of every text, is in its metadata.

    Example: howsure export model -o model.onnx
    """
    models.check_other(out, model)
    with console.speaking(), console.Progress("exporting", None, quiet):
        from howsure.exporting import export as export_model

        shown, regressor = coverage if interval else None, models.load(model)
        with models.writing_to(out):
            path = export_model(regressor, out, coverage=shown, single=single, overwrite=force)
    console.remark(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", quiet)
