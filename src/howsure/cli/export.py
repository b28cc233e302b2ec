"""``howsure export MODEL --onnx FILE``: a model as an ONNX graph, for programs without howsure or Python."""

from pathlib import Path
from typing import Annotated

import typer

from howsure.cli import console, models
from howsure.errors import InputError

__all__ = ["export"]


def export(
    model: Annotated[Path, typer.Argument(help="Folder of the model.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="File to write, such as model.onnx.")],
    coverage: Annotated[float, typer.Option(help="Probability of the interval from lower to upper.")] = 0.9,
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

    The graph takes numbers. What they mean, and the code of every text, is in its metadata.

    Example: howsure export model --onnx model.onnx
    """
    if not 0 < coverage < 1:
        raise InputError(f"--coverage is a probability between 0 and 1, as in 0.9, got {coverage:g}")
    with console.speaking():
        from howsure.exporting import export as export_model

        regressor = models.load(model)
        if onnx.resolve() == model.resolve():
            raise InputError(f"{onnx} is the model; name another place with --onnx")
        options = {"coverage": coverage if interval else None, "single": single, "overwrite": force}
        path = export_model(regressor, onnx, **options)
    console.remark(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", quiet)
