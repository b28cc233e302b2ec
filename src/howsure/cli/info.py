"""``howsure info [MODEL]``: versions and device, and a summary of a model."""

import json
import platform
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howsure.cli import console, models, scoring

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = ["column_rows", "info"]

PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "pyarrow", "ray")


def info(
    model: Annotated[Path | None, typer.Argument(help="File of a model to describe.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps: where a fit would run.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
) -> None:
    """Show versions and the device that a fit would use; with the file of a model, also a summary of it.

    Example: howsure info model
    """
    found: dict[str, Any] = {"system": _system(), "device": _device(device)}
    if model is not None:
        with console.speaking():
            found["model"] = _describe(models.load(model), model)
    if as_json:
        print(json.dumps(models.finite(found), indent=1, ensure_ascii=False, default=str))
        return
    _show_pairs({**found["system"], "device": found["device"]})
    if model is not None:
        _show_model(found["model"])


def _system() -> dict[str, str]:
    """Return versions by name, "not installed" for missing packages."""
    from howsure import __version__

    installed = {each.name.lower(): each.version for each in distributions()}
    packages = {name: installed.get(name, "not installed") for name in PACKAGES}
    machine = f"{platform.system()} {platform.machine()}"
    return {"howsure": __version__, "python": platform.python_version()} | packages | {"system": machine}


def _device(name: str) -> str:
    import torch

    from howsure.training import resolve_device

    device = resolve_device(name)
    threads = torch.get_num_threads()
    return f"{device} ({torch.cuda.get_device_name(device) if device.type == 'cuda' else f'{threads} threads'})"


# The model -----------------------------------------------------------------------------------------------------------


def column_rows(columns: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a table of the columns of a model, as `columns_` has them."""
    found = columns.astype(object).where(columns.notna(), "–").reset_index()
    return found.to_dict("records")  # type: ignore[return-value]


def _describe(model: "Regressor", path: Path) -> dict[str, Any]:
    """Return the properties of a model as plain values."""
    default = type(model)().get_params()
    own = {name: value for name, value in model.get_params().items() if value != default.get(name)}
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "class": type(model).__name__,
        "parameters": {n: v if isinstance(v, int | float | str | None) else str(v) for n, v in own.items()},
        "targets": model.target_names_,
        "inputs": model.inputs_,
        "unfamiliar_below": model.unfamiliar_below_,
        "width": None if model.width_ is None else model.width_.tolist(),
        "calibration": None if model.calibration_ is None else model.calibration_.method,
        "training": model.training_,
        "columns": column_rows(model.columns_),
        "record": {k: v for k, v in model.record_.items() if k != "row_hashes"},
    }


def _show_pairs(pairs: dict[str, Any]) -> None:
    width = max(map(len, pairs))
    for name, value in pairs.items():
        print(f"{name.ljust(width)}  {console.printable(str(value))}")


def _show_model(found: dict[str, Any]) -> None:
    """Print the summary of a model, its columns, and the scores of its fit."""
    parameters = ", ".join(f"{name}={value!r}" for name, value in found["parameters"].items())
    training, below, width = found["training"], found["unfamiliar_below"], found["width"]
    inputs = ", ".join(f"{name} {weight:.2f}" for name, weight in found["inputs"].items())
    shown = {
        "model": f"{found['class']}({parameters})",
        "path": f"{found['path']}, {found['bytes']:,} bytes",
        "targets": ", ".join(found["targets"] or ["without names"]),
        "networks": f"{len(training['best_step'])}, weights by inputs: {inputs}",
        "training": f"{training['steps']:,} steps, {training['seconds']:.1f} s",
        "unfamiliar": "not known" if below is None else f"below a familiarity of {below:.3g}",
        "width": width and ", ".join(f"{each:.3f}" for each in width),
        "calibration": found["calibration"],
    }
    print()
    _show_pairs({name: value for name, value in shown.items() if value is not None})
    print("\n" + console.table(found["columns"], left=("taken for", "why")))
    record = found["record"]
    if record:
        scoring.show(record["scores"], record["held_out"]["rows"], record["held_out"]["how"])
    if record and record["held_out"]["learned_from"]:
        print(f"The model was then fitted to all {record['rows']:,} rows.")
