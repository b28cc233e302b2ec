"""``howsure evaluate MODEL TABLE``: scores of a model on rows with known targets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from howsure.cli import console, models, scoring
from howsure.cli.console import counted, number, printable, share
from howsure.cli.rows import check_columns, features_of, naming_rows, number_columns, read_target, target_names
from howsure.errors import InputError
from howsure.io import BATCH_ROWS, CsvOptions, read_file

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = ["evaluate", "numbers_of", "target_columns", "without_targets"]

SHOWN_GROUPS = 50


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of the model.")],
    table: Annotated[Path, typer.Argument(help="Table with the columns and the targets of the model.")],
    by: Annotated[
        str | None, typer.Option(help="Column whose values are groups with scores of their own.", metavar="COLUMN")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Column of the target, if the model does not know its name.", metavar="COLUMN"),
    ] = None,
    separator: console.Separator = None,
    encoding: console.Encoding = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    quiet: console.Quiet = False,
    _seed: console.NoSeed = 0,
) -> None:
    """Say how good the predictions and the intervals of a model are on rows with known targets.

    Example: howsure evaluate model test.csv --by region
    """
    with console.speaking():
        regressor = models.load(model)
        names = target_columns(regressor, target or [])
        found = _evaluate(regressor, names, table, by, CsvOptions(separator, encoding), quiet or as_json)
    found = {"model": str(model), "table": str(table), **found}
    if as_json:
        print(json.dumps(models.finite(found), indent=1, ensure_ascii=False))
    else:
        _show(found)


def target_columns(model: "Regressor", given: list[str]) -> list[str]:
    """Return the names of the columns with the targets."""
    names = given or target_names(model)
    count = model.model_.targets
    if names is None:
        raise InputError("the model does not know the names of its targets", hint="name them with --target")
    if len(names) != count:
        raise InputError(f"--target: the model has {count} target{'' if count == 1 else 's'}, not {len(names)}")
    return names


def _evaluate(
    model: "Regressor", names: list[str], table: Path, by: str | None, csv: CsvOptions, quiet: bool
) -> dict[str, Any]:
    """Return all scores, as plain values; the rows are predicted in parts."""
    frame = read_file(table, numbers_of(model, names), csv)
    check_columns([] if by is None else [by], frame.columns, f"--by: {table} has no column")
    check_columns(names, frame.columns, f"{table} has no target column")
    x = features_of(model, without_targets(frame, names, model), table)
    empty = any(frame[name].isna().all() for name in names)
    y = np.full((len(frame), len(names)), np.nan) if empty else read_target(frame, names, table)
    rows = np.flatnonzero(~np.isnan(y).any(1))
    if not len(rows):
        raise InputError(f"{table} has no rows with a target to compare with")
    if len(rows) < len(y):
        console.remark(f"left out: {counted(len(y) - len(rows))} without a target", quiet)
    parts, unfamiliar = [], []
    with console.RowProgress(len(rows), quiet) as progress:
        for k in range(0, len(rows), BATCH_ROWS):
            known = rows[k : k + BATCH_ROWS]
            with naming_rows(table, known):
                p = model.predict_distribution(x.iloc[known] if hasattr(x, "iloc") else x[known])
            parts.append(scoring.score_rows(p, y[known]))
            if p.familiarity is not None and model.unfamiliar_below_ is not None:
                unfamiliar.append(p.familiarity < model.unfamiliar_below_)
            progress.add(len(known))
    scored = [scoring.join_scored(each) for each in zip(*parts, strict=True)]
    found: dict[str, Any] = {
        "rows": len(rows),
        "without_target": len(y) - len(rows),
        "unfamiliar": float(np.concatenate(unfamiliar).mean()) if unfamiliar else None,
        "targets": {name: scoring.score(each) for name, each in zip(names, scored, strict=True)},
    }
    if by is not None:
        labels = frame[by].iloc[rows].astype(object).reset_index(drop=True)
        each = {name: _by_group(s.rows, labels) for name, s in zip(names, scored, strict=True)}
        found["by"] = {"column": by, "targets": each}
    return found


def numbers_of(model: "Regressor", targets: list[str]) -> list[str] | None:
    """Return the columns that are read as numbers, those with targets among them."""
    numbers = number_columns(model)
    return None if numbers is None else [*numbers, *targets]


def without_targets(batch: "pd.DataFrame", names: list[str], model: "Regressor") -> "pd.DataFrame":
    """Return the frame without targets where columns have no names for the model, and only their number tells."""
    return batch if hasattr(model, "feature_names_in_") else batch.drop(columns=[n for n in names if n in batch])


def _by_group(rows: "pd.DataFrame", labels: "pd.Series[Any]") -> list[dict[str, Any]]:
    """Return the scores of each group, the largest first."""
    shown = labels.map(lambda value: "(missing)" if value is None or value != value else str(value))
    found = [
        {
            "group": str(name),
            "rows": len(own),
            "coverage": float(own["inside_0.9"].mean()),
            "rmse": float(np.sqrt(np.mean(own["error"] ** 2))),
            "nll": float(own["nll"].mean()),
        }
        for name, own in rows.groupby(shown.to_numpy(), sort=True)
    ]
    return sorted(found, key=lambda each: (-int(each["rows"]), each["group"]))


# What is said ---------------------------------------------------------------------------------------------------------


def _show(found: dict[str, Any]) -> None:
    """Print the scores as small tables, one after the other for each target."""
    for name, own in found["targets"].items():
        print(printable(f"{name}: {counted(own['rows'])}") + "\n")
        lines = {
            "RMSE": number(own["rmse"]),
            "MAE": number(own["mae"]),
            "NLL": number(own["nll"]),
            "CRPS": number(own["crps"]),
            "calibration error": number(own["calibration_error"]),
            "mean width of 90 % intervals": number(own["interval_width"]),
        }
        if found["unfamiliar"] is not None:
            lines["flagged as unfamiliar"] = share(found["unfamiliar"])
        print(console.table([{"score": key, "value": value} for key, value in lines.items()]))
        print("\nintervals\n" + console.table(_coverage_rows(own)))
        if own["retention"] is not None:
            print("\nerror of the most certain rows\n" + console.table(_retention_rows(own)))
        if "by" in found:
            _show_groups(found["by"]["column"], found["by"]["targets"][name])
        print()


def _coverage_rows(own: dict[str, Any]) -> list[dict[str, str]]:
    return [{"stated": share(float(stated)), "held": share(held)} for stated, held in own["coverage"].items()]


def _retention_rows(own: dict[str, Any]) -> list[dict[str, str]]:
    return [{"rows kept": share(float(kept)), "RMSE": number(error)} for kept, error in own["retention"].items()]


def _show_groups(column: str, groups: list[dict[str, Any]]) -> None:
    rows = [
        {
            column: each["group"],
            "rows": f"{each['rows']:,}",
            "90 % coverage": share(each["coverage"]),
            "RMSE": number(each["rmse"]),
            "NLL": number(each["nll"]),
        }
        for each in groups[:SHOWN_GROUPS]
    ]
    print(f"\nby {printable(column)}\n" + console.table(rows))
    if len(groups) > SHOWN_GROUPS:
        print(f"and {len(groups) - SHOWN_GROUPS:,} groups more, which --json has")
