"""``howsure evaluate MODEL TABLE``: scores of a model on rows with known targets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from howsure.cli import console, models, scoring
from howsure.cli.console import counted, number, printable, share
from howsure.cli.rows import Rows, naming_rows, read_test_rows
from howsure.io import BATCH_ROWS, CsvOptions

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor
    from howsure.prediction import Prediction

__all__ = ["Target", "evaluate", "note_rows", "training_rows_note"]

Array = NDArray[np.float64]
SHOWN_GROUPS = 50
Target = Annotated[
    list[str] | None, console.column("Column of the target, if the model does not know its name.", "--target")
]


def evaluate(
    model: Annotated[Path, typer.Argument(help="File of the model.")],
    table: Annotated[Path, typer.Argument(help="Table with the columns and the targets of the model.")],
    by: Annotated[str | None, console.column("Column whose values are groups with their own scores.")] = None,
    target: Target = None,
    separator: console.Separator = None,
    encoding: console.Encoding = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    quiet: console.Quiet = False,
) -> None:
    """Score the predictions and the intervals of a model on rows with known targets.

    Example: howsure evaluate model test.csv --by region
    """
    with console.speaking():
        regressor = models.load(model)
        rows, groups = read_test_rows(regressor, table, target or [], by, CsvOptions(separator, encoding))
        note_rows(regressor, rows, quiet or as_json)
        p = _predict(regressor, rows, quiet or as_json)
        found = {"model": str(model), "table": str(table), "rows": len(rows.y), "without_target": rows.left_out}
        found |= _scores(regressor, p, rows, groups)
    if as_json:
        print(json.dumps(models.finite(found), indent=1, ensure_ascii=False))
    else:
        _show(found)


def note_rows(model: "Regressor", rows: Rows, quiet: bool) -> list[str]:
    """Print the number of rows without a target, and print and return notes about the others."""
    if rows.left_out:
        console.remark(f"left out: {counted(rows.left_out)} without a target", quiet)
    copies = models.training_rows_among(model, rows.x, rows.y)
    notes = [training_rows_note(copies, len(rows.y))] if copies else []
    for note in notes:
        console.remark(f"note: {note}")
    return notes


def training_rows_note(copies: int, rows: int) -> str:
    """Return a sentence about rows that the model has learned from."""
    return (
        f"{copies:,} of {counted(rows)} are rows that the model has learned from; errors of new rows are larger than "
        "these scores"
    )


def _predict(model: "Regressor", rows: Rows, quiet: bool) -> "Prediction":
    """Return the prediction of all rows, computed in parts."""
    from howsure.prediction import Prediction

    parts = []
    with console.Progress("predicting", len(rows.y), quiet) as progress:
        for k in range(0, len(rows.y), BATCH_ROWS):
            numbers = rows.numbers[k : k + BATCH_ROWS]
            with naming_rows(rows.table, numbers):
                parts.append(model.predict_distribution(rows.x[k : k + BATCH_ROWS]))
            progress.add(len(numbers))
    return parts[0] if len(parts) == 1 else Prediction.cat(parts)


def _scores(model: "Regressor", p: "Prediction", rows: Rows, labels: "pd.Series[Any] | None") -> dict[str, Any]:
    """Return all scores as plain values."""
    targets, groups = {}, {}
    for name, (own, y) in zip(rows.targets, scoring.of_targets(p, rows.y), strict=True):
        targets[name] = scoring.score(own, y)
        if labels is not None:
            groups[name] = _by_group(own, y, labels)
    below, unfamiliar = model.unfamiliar_below_, None
    if p.familiarity is not None and below is not None:
        unfamiliar = float(np.mean(p.familiarity < below))
    found: dict[str, Any] = {"unfamiliar": unfamiliar, "targets": targets}
    return found | ({} if labels is None else {"by": {"column": labels.name, "targets": groups}})


def _by_group(p: "Prediction", y: Array, labels: "pd.Series[Any]") -> list[dict[str, Any]]:
    """Return the scores of each group, the largest first."""
    rows = p.to_frame(0.9)
    rows["inside"] = (rows["lower_0.9"] <= y) & (y <= rows["upper_0.9"])
    rows["square"] = (rows["mean"] - y) ** 2 if "mean" in rows else np.nan
    rows["nll"] = -p.log_prob(y)
    shown = labels.astype(object).map(lambda value: "(missing)" if value is None or value != value else str(value))
    scores = rows.groupby(shown.to_numpy())
    found = scores.agg(rows=("nll", "size"), coverage=("inside", "mean"), rmse=("square", "mean"), nll=("nll", "mean"))
    found["rmse"] **= 0.5
    found = found.rename_axis("group").reset_index().sort_values(["rows", "group"], ascending=[False, True])
    return found.to_dict("records")  # type: ignore[return-value]


# Tables for people ----------------------------------------------------------------------------------------------------


def _show(found: dict[str, Any]) -> None:
    """Print the scores as small tables, one after the other for each target."""
    for name, own in found["targets"].items():
        print(printable(f"{name}: {counted(own['rows'])}") + "\n")
        names = {"rmse": "RMSE", "mae": "MAE", "nll": "NLL", "crps": "CRPS", "calibration_error": "calibration error"}
        lines = {text: number(own[key]) for key, text in names.items()}
        lines["mean width of 90% intervals"] = number(own["interval_width"])
        if found["unfamiliar"] is not None:
            lines["flagged as unfamiliar"] = share(found["unfamiliar"])
        print(console.table([{"score": key, "value": value} for key, value in lines.items()]))
        inside = [{"stated": share(float(c)), "held": share(held)} for c, held in own["coverage"].items()]
        print("\nintervals\n" + console.table(inside))
        if own["retention"] is not None:
            kept = [{"rows kept": share(float(s)), "RMSE": number(rmse)} for s, rmse in own["retention"].items()]
            print("\nerror of the most certain rows\n" + console.table(kept))
        if "by" in found:
            _show_groups(found["by"]["column"], found["by"]["targets"][name])
        print()


def _show_groups(column: str, groups: list[dict[str, Any]]) -> None:
    rows = [
        {
            column: each["group"],
            "rows": f"{each['rows']:,}",
            "90% coverage": share(each["coverage"]),
            "RMSE": number(each["rmse"]),
            "NLL": number(each["nll"]),
        }
        for each in groups[:SHOWN_GROUPS]
    ]
    print(f"\nby {printable(column)}\n" + console.table(rows))
    if len(groups) > SHOWN_GROUPS:
        print(f"and {len(groups) - SHOWN_GROUPS:,} groups more, which --json has")
