"""``howsure evaluate MODEL TABLE``: scores of a model on rows with known targets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from howsure.cli import console, models, scoring
from howsure.cli.console import counted, number, printable, share
from howsure.cli.rows import check_columns, features_of, naming_rows, read_target, target_names, text_columns
from howsure.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from howsure.estimators import Regressor

__all__ = ["evaluate", "target_columns", "without_targets"]

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
        found = _evaluate(regressor, names, table, by, quiet or as_json)
    found = {"model": str(model), "table": str(table), **found}
    if as_json:
        print(json.dumps(models.finite(found), indent=1, ensure_ascii=False))
    else:
        _show(found)


def target_columns(model: "Regressor", given: list[str]) -> list[str]:
    """Return the names of the columns with the targets."""
    names = given or target_names(model)
    count = 1 if model.fitted_.one_target else model.fitted_.scale_y.loc.shape[-1]
    if names is None:
        raise InputError("the model does not know the names of its targets; name them with --target")
    if len(names) != count:
        raise InputError(f"--target: the model has {count} target{'' if count == 1 else 's'}, not {len(names)}")
    return names


def _evaluate(model: "Regressor", names: list[str], table: Path, by: str | None, quiet: bool) -> dict[str, Any]:
    """Return all scores, as plain values; the rows are read and predicted in parts."""
    import pandas as pd

    from howsure.data.table_files import count_rows, read_batches

    text = [name for name in text_columns(model) if name not in names]
    parts: list[list[scoring.Scored]] = []
    groups, unfamiliar, left_out = [], [], 0
    with console.RowProgress(count_rows(table), quiet) as progress:
        for batch in read_batches(table, text=text):
            check_columns([] if by is None else [by], batch.columns, f"--by: {table} has no column")
            x = features_of(model, without_targets(batch, names, model), table)
            first = progress.done
            with naming_rows(table, range(first, first + len(batch))):
                y = _read_known(batch, names, table)
            known = np.flatnonzero(~np.isnan(y).any(1))
            left_out += len(y) - len(known)
            if len(known):
                with naming_rows(table, first + known):
                    p = model.predict_distribution(x.iloc[known] if hasattr(x, "iloc") else x[known])
                parts.append(scoring.score_rows(p, y[known]))
                if p.familiarity is not None and model.unfamiliar_below_ is not None:
                    unfamiliar.append(p.familiarity < model.unfamiliar_below_)
                if by is not None:
                    groups.append(batch[by].iloc[known].astype(object))
            progress.add(len(batch))
    if not parts:
        raise InputError(f"{table} has no rows with a target to compare with")
    if left_out:
        console.remark(f"left out: {counted(left_out)} without a target", quiet)
    scored = [scoring.join_scored(each) for each in zip(*parts, strict=True)]
    found: dict[str, Any] = {
        "rows": len(scored[0].rows),
        "without_target": left_out,
        "unfamiliar": float(np.concatenate(unfamiliar).mean()) if unfamiliar else None,
        "targets": {name: scoring.score(each) for name, each in zip(names, scored, strict=True)},
    }
    if by is not None:
        labels = pd.concat(groups, ignore_index=True)
        each = {name: _by_group(s.rows, labels) for name, s in zip(names, scored, strict=True)}
        found["by"] = {"column": by, "targets": each}
    return found


def without_targets(batch: "pd.DataFrame", names: list[str], model: "Regressor") -> "pd.DataFrame":
    """Return the frame without targets where columns have no names for the model, and only their number tells."""
    return batch if hasattr(model, "feature_names_in_") else batch.drop(columns=[n for n in names if n in batch])


def _read_known(batch: "pd.DataFrame", names: list[str], table: Path) -> Any:
    """Return the targets of a batch, which may lack all of them."""
    check_columns(names, batch.columns, f"{table} has no target column")
    empty = [name for name in names if batch[name].isna().all()]
    return np.full((len(batch), len(names)), np.nan) if empty else read_target(batch, names, table)


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
