"""What the three experiments on y = x³ share: run, training, numbers, curves, the frame of a panel, and the page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidentia import metrics
from evidentia.datasets.cubic import cubic
from evidentia.fitting import Fitted, fit, hold_out
from evidentia.methods import Method, Network, Recipe
from evidentia.prediction import Prediction
from evidentia.record import write_record
from evidentia.report.figures import COLOURS
from evidentia.report.pages import fill_template, read_template
from evidentia.reproduce.arrays import read_arrays, write_arrays
from evidentia.reproduce.protocol import (
    Context,
    Record,
    file_name,
    find_runs,
    new_record,
    open_run,
    write_from_record,
)
from evidentia.reproduce.toy.plan import ToyPlan
from evidentia.training import Settings

__all__ = [
    "GRID",
    "SHOWN",
    "TRAINED",
    "Curves",
    "draw_frame",
    "fill_page",
    "median",
    "numbers",
    "read_curves",
    "run_units",
    "train_toy",
]

Array = NDArray[np.float64]
Curves = Mapping[str, NDArray[Any]]
TRAINED, SHOWN = 4.0, 6.0  # |x| of the training rows, and of the figures
GRID = np.linspace(-SHOWN, SHOWN, 601)


# Runs -----------------------------------------------------------------------------------------------------------------


def run_units(
    name: str,
    plan: ToyPlan,
    context: Context,
    units: Iterable[str],
    study: Callable[[str], tuple[Any, Curves]],
    write_results: Callable[[Record, Path], list[Path]],
    check: Callable[[Record], object],
) -> list[Path]:
    """Run the units that the record does not have yet, and write record, curves, tables and figures.

    Args:
        name: of the experiment.
        plan: its settings.
        context: where to, and on what.
        units: the methods or penalties to train.
        study: unit → its result, for the record, and the curves that figures show of it.
        write_results: writes tables and figures.
        check: raises if tables cannot be made of a record.
    """
    with open_run(context.out, new_record(name, plan, context.device), check=check) as record:
        for unit in units:
            if unit in record["results"]:
                continue
            record["results"][unit], curves = study(unit)
            write_arrays(_curves_path(context.out, unit), curves)
            write_record(context.out, record)
            context.checkpoint(unit).unlink(missing_ok=True)
        return write_from_record(context.out, write_results)


def train_toy(
    unit: str,
    method: Method,
    plan: ToyPlan,
    seeds: Sequence[int],
    context: Context,
    data: tuple[Array, Array],
    learning_rate: float | None = None,
) -> Fitted:
    """Train one network per seed, all on the same data, with Adam at a constant rate, and keep the last weights."""
    x, y = data
    settings = Settings(
        steps=plan.iterations,
        learning_rate=plan.learning_rate if learning_rate is None else learning_rate,
        warmup=0.0,
        schedule="constant",
        clip=None,
        evaluate_every=max(1, plan.iterations // 20),
        checkpoint_every=5,
    )
    return fit(
        method,
        x,
        y,
        hold_out(np.arange(len(x)), list(seeds), share=0),
        recipe=Recipe(Network(plan.hidden, "relu"), settings, plan.batch_size),
        standardise=False,
        device=context.device,
        checkpoint=context.checkpoint(unit),
        progress=context.progress,
    )


def training_data(rows: int, noise: float) -> tuple[Array, Array]:
    """Return the rows that all networks on y = x³ + noise are trained on."""
    return cubic(rows, noise, TRAINED, seed=0)


# Numbers --------------------------------------------------------------------------------------------------------------


def numbers(predict: Callable[[Array], Prediction], noise: float) -> dict[str, float | None]:
    """Return what a model says inside and outside the training range, compared with the truth.

    Uncertainties are medians over rows; None where the model does not have them.
    """
    fresh_x, fresh_y = cubic(2000, noise, TRAINED, seed=12_345)
    inside = predict(fresh_x)
    out_x = np.concatenate([np.linspace(-SHOWN, -TRAINED - 0.5, 200), np.linspace(TRAINED + 0.5, SHOWN, 200)])
    outside = predict(out_x[:, None])
    within, beyond = inside.epistemic_std, outside.epistemic_std
    return {
        "rmse_inside": float(np.sqrt(np.mean((inside.mean - fresh_x[:, 0] ** 3) ** 2))),
        "rmse_outside": float(np.sqrt(np.mean((outside.mean - out_x**3) ** 2))),
        "nll_inside": metrics.nll(inside, fresh_y),
        "coverage_90_inside": metrics.coverage(inside, fresh_y),
        "total_inside": float(np.median(inside.std)),
        "aleatoric_inside": None if inside.aleatoric_std is None else float(np.median(inside.aleatoric_std)),
        "epistemic_inside": None if within is None else float(np.median(within)),
        "epistemic_outside": None if beyond is None else float(np.median(beyond)),
        "auroc_epistemic": None if within is None or beyond is None else metrics.auroc(within, beyond),
    }


def median(starts: Sequence[Mapping[str, float | None]], key: str) -> float | None:
    """Return the median of a number over starts: one that went astray is seen in the record, and hides no other.

    None if the method does not have the number; NaN if it was not finite, which a record cannot tell from None.
    """
    values = [start[key] for start in starts]
    if all(value is None and start["rmse_inside"] is not None for value, start in zip(values, starts, strict=True)):
        return None
    return float(np.median(as_floats(values)))


def as_floats(values: Iterable[float | None]) -> Array:
    """Return numbers of a record as an array; null, which stands for what was not finite, as NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


# Curves and panels ----------------------------------------------------------------------------------------------------


def _curves_path(folder: Path, unit: str) -> Path:
    return folder / "curves" / f"{file_name(unit)}.npz"


def read_curves(folder: Path, units: Iterable[str]) -> dict[str, Curves] | None:
    """Return the curves of all these units by name, or None if those of one are not there: then nothing is drawn."""
    found = {unit: read_arrays(_curves_path(folder, unit)) for unit in units}
    curves: dict[str, Curves] = {unit: arrays for unit, arrays in found.items() if arrays is not None}
    return curves if len(curves) == len(found) else None


def draw_frame(ax: Any, data: tuple[Array, Array], limit: float = 150.0) -> None:
    """Draw training range, data and truth of a panel, with the same limits everywhere."""
    x, y = data
    ax.axvspan(-TRAINED, TRAINED, color=COLOURS["range"], zorder=0, label="training range")
    ax.plot(x[::4, 0], y[::4], ".", color=COLOURS["data"], ms=1.5, label="training data", rasterized=True)
    ax.plot(GRID, GRID**3, "--", color=COLOURS["truth"], lw=1, label="x³")
    ax.set(xlim=(-SHOWN, SHOWN), ylim=(-limit, limit))


# Pages ----------------------------------------------------------------------------------------------------------------


def fill_page(folder: Path, figures: Sequence[str], values: Callable[[Record], Mapping[str, object]]) -> str:
    """Return the page of a folder from the template of its experiment.

    Args:
        folder: of the run.
        figures: their names; one that is not there is left out of the page.
        values: record → what the template names beside figures, folder, device, version of torch and plan.
    """
    (record,) = find_runs(folder).values()
    links = {name: f"{folder.name}/{name}.png" if (folder / f"{name}.png").exists() else None for name in figures}
    known = {
        "folder": folder.name,
        "device": record["environment"]["device"]["name"],
        "torch": record["environment"]["packages"]["torch"],
        **{key: f"{value:g}" if isinstance(value, float) else value for key, value in record["plan"].items()},
        **links,
    }
    template = read_template("evidentia.reproduce.toy", f"{record['run']}.md")
    return fill_template(template, known | dict(values(record)))
