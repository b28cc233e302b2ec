"""``howsure info [FOLDER]``: versions, device and kernels, and a summary of a model."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from howsure.cli import console, models, scoring

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from howsure.estimators import Regressor

__all__ = ["column_rows", "info"]

PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "pyarrow", "ray")


def info(
    model: Annotated[Path | None, typer.Argument(help="Folder of a model to describe.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps: where a fit would run.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    _quiet: console.Quiet = False,  # there is nothing but results
    _seed: console.NoSeed = 0,
) -> None:
    """Show versions, the device and the kernels that a fit would use, and why; with a folder, what its model is.

    Example: howsure info model
    """
    with console.speaking():
        regressor = None if model is None else models.load(model)
        found = {"system": _system(), "device": _device(device), "kernels": _kernels(device, regressor)}
        if regressor is not None and model is not None:
            found["model"] = _describe(regressor, model)
    if as_json:
        print(json.dumps(models.finite(found), indent=1, ensure_ascii=False, default=str))
        return
    _show_pairs({**found["system"], **found["device"]})
    print()
    _show_pairs(found["kernels"])
    if "model" in found:
        _show_model(found["model"])


# The machine ---------------------------------------------------------------------------------------------------------


def _system() -> dict[str, str]:
    """Return versions by name; packages that are not installed are called so."""
    from howsure import __version__

    found = {"howsure": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def _device(name: str) -> dict[str, str]:
    import torch

    from howsure.training import resolve_device

    device = resolve_device(name)
    threads = torch.get_num_threads()
    used = f"{threads} thread{'' if threads == 1 else 's'}"
    words = torch.cuda.get_device_name(device) if device.type == "cuda" else used
    why = "" if name != "auto" else ": a CUDA device is there" if device.type == "cuda" else ": there is no CUDA device"
    return {"device": f"{device} ({words}){why}"}


def _kernels(device: str, model: "Regressor | None") -> dict[str, str]:
    """Return for each kernel whether a fit would use it, and why or why not; without a model, the default's fit."""
    from howsure import EvidentialRegressor
    from howsure.training import resolve_device

    method = (EvidentialRegressor() if model is None else model)._method()
    networks = method.build([0], 8, method.outputs, method.recipe(1000).network).to(resolve_device(device))
    return {"kernel evidential_loss": _loss_kernel(method, networks.weights[0])}


def _loss_kernel(method: Any, like: "Tensor") -> str:
    """Return how the loss of a method is computed on the device of a tensor, and why."""
    from howsure.kernels.evidential_loss import PENALTIES, uses_triton
    from howsure.likelihoods import Evidential

    if not isinstance(method, Evidential) or method.penalty not in PENALTIES:
        return f"not used: it is for the evidential method with the penalty {' or '.join(PENALTIES)}"
    how = "by Triton" if uses_triton(like, like) else f"by tensor operations on {like.device.type}"
    return f"used: loss and gradient in one pass from raw outputs, {how}"


# The model -----------------------------------------------------------------------------------------------------------


def column_rows(columns: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a table that says what columns were taken for."""
    return [
        {
            "column": name,
            "taken for": row["taken for"],
            "features": row["features"],
            "missing": "–" if row["missing"] is None or row["missing"] != row["missing"] else row["missing"],
            "why": row["why"],
        }
        for name, row in zip(columns.index, columns.astype(object).to_dict("records"), strict=True)
    ]


def _describe(model: "Regressor", folder: Path) -> dict[str, Any]:
    """Return what a model is, as plain values."""
    population, training = model.fitted_.population, model.training_
    default = type(model)().get_params()
    own = {name: value for name, value in model.get_params().items() if value != default.get(name)}
    width = model.width_
    return {
        "folder": str(folder),
        "class": type(model).__name__,
        "parameters": {n: v if isinstance(v, int | float | str | None) else str(v) for n, v in own.items()},
        "targets": model.target_names_,
        "networks": population.members,
        "layers": list(population.sizes),
        "weights": sum(parameter.numel() for parameter in population.parameters()),
        "bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "inputs": model.inputs_,
        "evidence": getattr(model, "evidence", "plain"),
        "unfamiliar_below": model.unfamiliar_below_,
        "width": None if width is None else width.tolist(),
        "target_transform": model.target_transform,
        "calibration": None if model.calibration_ is None else model.calibration_.method,
        "training": {"steps": training["steps"], "seconds": training["seconds"], "best_step": training["best_step"]},
        "columns": column_rows(model.columns_),
        "record": model.record_,  # type: ignore[attr-defined]
    }


def _show_pairs(pairs: dict[str, Any]) -> None:
    width = max(map(len, pairs))
    for name, value in pairs.items():
        print(f"{name.ljust(width)}  {console.printable(str(value))}")


def _show_model(found: dict[str, Any]) -> None:
    """Print the summary of a model, its columns, and the scores of its fit."""
    parameters = ", ".join(f"{name}={value!r}" for name, value in found["parameters"].items())
    best, layers = found["training"]["best_step"], "-".join(map(str, found["layers"]))
    inputs = ", ".join(f"{name} {weight:.2f}" for name, weight in found["inputs"].items())
    shown = {
        "model": f"{found['class']}({parameters})",
        "folder": f"{found['folder']}, {found['bytes']:,} bytes",
        "targets": ", ".join(found["targets"] or ["without names"]),
        "networks": f"{found['networks']} of layers {layers}, {found['weights']:,} weights",
        "inputs": inputs,
        "evidence": found["evidence"]
        if found["unfamiliar_below"] is None
        else f"{found['evidence']}; rows are flagged below a familiarity of {found['unfamiliar_below']:.3g}",
        "training": f"{found['training']['steps']:,} steps, {found['training']['seconds']:.1f} s, best after "
        f"{min(best):,} to {max(best):,} steps",
    }
    for name in ("target_transform", "calibration"):
        if found[name] is not None:
            shown[name.replace("_", " ")] = found[name]
    if found["width"] is not None:
        shown["width"] = ", ".join(f"{each:.3f}" for each in found["width"])
    print()
    _show_pairs(shown)
    print("\n" + console.table(found["columns"], left=("taken for", "why")))
    _show_scores(found["record"])


def _show_scores(record: dict[str, Any]) -> None:
    """Print the scores that a fit recorded, if it did."""
    for target, found in record.get("scores", {}).items():
        held_out = record["held_out"]
        print("\n" + scoring.heading(target, held_out["rows"], held_out["how"]))
        print(console.table(list(scoring.compare_models(found))))
    if record and record["held_out"]["learned_from"]:
        print(f"The model was then fitted to all {record['rows']:,} rows.")
