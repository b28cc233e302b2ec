"""What the three experiments on y = x³ share: run, training, numbers, curves, the frame of a panel, and the page."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure import metrics
from howsure.likelihoods import Method, Network, Recipe
from howsure.tables.members import hold_out
from howsure.tables.model import TableModel
from howsure.training import Settings
from howsure_paper.arrays import Arrays, read_arrays, write_arrays
from howsure_paper.datasets.cubic import cubic
from howsure_paper.figures import COLOURS, import_matplotlib
from howsure_paper.fused import fused_steps
from howsure_paper.pages import fill_template, read_template
from howsure_paper.protocol import Context, Record, new_record, open_run, write_from_record
from howsure_paper.record import read_record, write_record
from howsure_paper.tables import Rows, markdown
from howsure_paper.toy.plan import ToyPlan
from howsure_paper.training import fit

__all__ = [
    "GRID",
    "TRAINED",
    "Array",
    "draw_frame",
    "fill_page",
    "median",
    "missing_units",
    "numbers",
    "read_curves",
    "run_units",
    "train_toy",
    "training_data",
]

Array = NDArray[np.float64]
TRAINED, SHOWN = 4.0, 6.0  # |x| of the training rows, and of the figures
GRID = np.linspace(-SHOWN, SHOWN, 601)
CURVES = "curves"  # folder beside the record


# Runs -----------------------------------------------------------------------------------------------------------------


def run_units(
    name: str,
    plan: ToyPlan,
    context: Context,
    units: Iterable[str],
    study: Callable[[Any, Context, str], tuple[Any, Arrays]],
    write_results: Callable[[Record, Path], list[Path]],
    check: Callable[[Record], object],
) -> list[Path]:
    """Run the units that the record does not have yet, and write record, curves, tables and figures.

    Args:
        name: of the experiment.
        plan: its settings.
        context: where to, and on what.
        units: the methods or penalties to train.
        study: plan, context, unit → its result, for the record, and the curves that figures show of it.
        write_results: writes tables and figures.
        check: raises if tables cannot be made of a record.
    """
    import_matplotlib()  # without it there is no figure, which is said before any training
    with open_run(context.out, new_record(name, plan, context.device), check=check) as record:
        for unit in units:
            if unit in record["results"]:
                continue
            record["results"][unit], curves = study(plan, context, unit)
            write_arrays(context.out / CURVES, unit, curves)
            write_record(context.out, record)
            context.checkpoint(unit).unlink(missing_ok=True)
        return write_from_record(context.out, write_results)


def missing_units(record: Record, units: Iterable[str]) -> list[str]:
    """Return those of the plan's units that the record does not have yet."""
    return [unit for unit in units if unit not in record["results"]]


def train_toy(
    unit: str, method: Method, plan: ToyPlan, seeds: Sequence[int], context: Context, data: tuple[Array, Array]
) -> TableModel:
    """Train one network per seed, all on the same data, with Adam at a constant rate, and keep the last weights."""
    x, y = data
    settings = Settings(
        steps=plan.iterations,
        learning_rate=plan.learning_rate,
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
        standardize=False,
        fast_steps=fused_steps,
        device=context.device,
        checkpoint=context.checkpoint(unit),
        progress=context.progress,
    )


def training_data(rows: int, noise: float) -> tuple[Array, Array]:
    """Return the rows that all networks on y = x³ + noise are trained on."""
    return cubic(rows, noise, TRAINED, seed=0)


# Numbers --------------------------------------------------------------------------------------------------------------


def numbers(fitted: TableModel, members: Sequence[int], noise: float) -> dict[str, float | None]:
    """Return what the model of these members says inside and outside the training range, compared with the truth.

    Uncertainties are medians over rows; None where the model does not have them.
    """
    fresh_x, fresh_y = cubic(2000, noise, TRAINED, seed=12_345)
    inside = fitted.predict(fresh_x, members)
    out_x = np.concatenate([np.linspace(-SHOWN, -TRAINED - 0.5, 200), np.linspace(TRAINED + 0.5, SHOWN, 200)])
    outside = fitted.predict(out_x[:, None], members)
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
    return float(np.median(np.array(values, dtype=float)))


# Curves and panels ----------------------------------------------------------------------------------------------------


def read_curves(folder: Path, units: Collection[str]) -> dict[str, Arrays] | None:
    """Return the curves of all these units by name, or None if those of one are not there: then nothing is drawn."""
    curves = {unit: found for unit in units if (found := read_arrays(folder / CURVES, unit)) is not None}
    return curves if len(curves) == len(units) else None


def draw_frame(ax: Any, data: tuple[Array, Array]) -> None:
    """Draw training range, data and truth of a panel, with the same limits everywhere."""
    x, y = data
    ax.axvspan(-TRAINED, TRAINED, color=COLOURS["range"], zorder=0, label="training range")
    ax.plot(x[::4, 0], y[::4], ".", color=COLOURS["data"], ms=1.5, label="training data", rasterized=True)
    ax.plot(GRID, GRID**3, "--", color=COLOURS["truth"], lw=1, label="x³")
    ax.set(xlim=(-SHOWN, SHOWN), ylim=(-150, 150))


# Pages ----------------------------------------------------------------------------------------------------------------


def fill_page(
    folder: Path, link: str, table_rows: Callable[[Record], Rows], units: Callable[[Record], Iterable[str]]
) -> str:
    """Return the page of a run from the template of its experiment.

    Args:
        folder: of the run.
        link: path from the page to the folder.
        table_rows: record → rows of the table.
        units: record → units of its plan.
    """
    record = read_record(folder)
    values = {
        "folder": link,
        "device": record["environment"]["device"]["name"],
        "torch": record["environment"]["packages"]["torch"],
        **record["plan"],
        **{path.stem: f"{link}/{path.name}" for path in folder.glob("*.png")},
        "missing": "; ".join(missing_units(record, units(record))),
        "table": markdown(table_rows(record)),
    }
    return fill_template(read_template("howsure_paper.toy", f"{record['run']}.md"), values)
