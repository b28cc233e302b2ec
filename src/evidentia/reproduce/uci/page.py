"""The page of Table 1: tables and numbers from the records of both protocols and both networks.

The prose is in ``page.md``. What a missing run would show is left out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evidentia.report.pages import fill_template, read_template
from evidentia.report.tables import markdown
from evidentia.reproduce.paper import TABLE_1
from evidentia.reproduce.protocol import Record, find_runs
from evidentia.reproduce.uci.tables import (
    Results,
    Rows,
    digits_of,
    long_rows,
    paired_rows,
    published_rows,
    score_values,
    standard_rows,
)

__all__ = ["page"]

RUNS = (
    "standard_best",
    "standard_paper",
    "published_paper",
    "published_best",
    "standard_paper_published_targets",
)
STANDARD, PUBLISHED = ("standard_best", "standard_paper"), ("published_paper", "published_best")
OTHERS = ("ensemble", "dropout", "gaussian", "bayes")
SCORES = ("nll", "rmse")
Values = dict[str, object]


def page(folder: Path) -> str:
    """Return the page of the run in a folder, or of those in its sub-folders."""
    runs = {_run_name(record): (path, record) for path, record in find_runs(folder).items()}
    records = {name: runs[name][1] for name in RUNS if name in runs}
    # the page lies beside the folder
    links = {name: (folder.name / path.relative_to(folder)).as_posix() for name, (path, _) in runs.items()}
    return fill_template(read_template("evidentia.reproduce.uci"), links | _values(records))


def _run_name(record: Record) -> str:
    plan = record["plan"]
    return f"{plan['protocol']}_{plan['network']}" + ("_published_targets" if plan["targets"] == "published" else "")


def _values(records: Mapping[str, Record]) -> Values:
    """Return what the template names and the runs have."""
    results: dict[str, Results] = {name: record["results"] for name, record in records.items()}
    environments = [record["environment"] for record in records.values()]
    values: Values = {
        "devices": ", ".join(sorted({environment["device"]["name"] for environment in environments})),
        "versions": ", ".join(sorted({environment["packages"]["torch"] for environment in environments})),
        "summary": markdown([_summary_row(name, results[name]) for name in STANDARD if name in results]),
        "seconds": markdown(_seconds(results)),
        **_rule(results.get("published_paper", {})),
        **_milliseconds(results.get("standard_paper", {})),
    }
    for name in STANDARD:
        values |= {f"{name}_{key}": value for key, value in _standard(results.get(name, {})).items()}
    for name in PUBLISHED:
        values[f"{name}_rows"] = markdown(published_rows(results.get(name, {})))
    compared = ("standard_paper", "standard_paper_published_targets", "published_paper")
    if results.keys() >= set(compared):
        for score in SCORES:
            values[f"changes_{score}"] = markdown(_changes(score, *(results[name] for name in compared)))
    return values


def _mean(result: dict[str, Any], score: str) -> float:
    return float(score_values(result, score).mean())


def _signed(value: float, digits: int, plus: bool = True) -> str:
    return f"{value:{'+' if plus else ''}.{digits}f}".replace("-", "−")


# The standard protocol ------------------------------------------------------------------------------------------------


def _standard(results: Results) -> Values:
    """Return the tables of a run by the standard protocol; nothing if there is none."""
    if not results:
        return {}
    paired = paired_rows(results)
    values: Values = {
        "reached": markdown([row for score in SCORES if (row := _reached_row(results, score))]),
        "verdicts": markdown([_verdict_row(paired, score, other) for score in SCORES for other in OTHERS]),
        "scores": markdown([{k: v for k, v in row.items() if k != "seconds"} for row in long_rows(results)]),
        "missing": ", ".join(name for name in TABLE_1 if name not in results),
    }
    for score in SCORES:
        values[score] = markdown(standard_rows(results, score))
        values[f"{score}_gaps"] = markdown(_gap_rows(paired, score))
    return values


def _gap_rows(paired: Rows, score: str) -> Rows:
    """Return, for each set, evidential less each other method with its standard error and verdict."""
    rows: dict[str, dict[str, Any]] = {}
    for other in OTHERS:
        for found in (row for row in paired if (row["score"], row["against"]) == (score, other)):
            digits = digits_of(found["set"], score)
            gap, error = _signed(found["difference"], digits), _signed(found["error"], digits, plus=False)
            row = rows.setdefault(found["set"], {"set": found["set"]})
            row[f"less {other}"] = f"{gap} ± {error} {found['verdict']}"
    return list(rows.values())


def _verdict_row(paired: Rows, score: str, other: str) -> dict[str, Any]:
    """Return on how many sets the evidential method wins, ties and loses, and which it loses or diverges on."""
    sets = {
        verdict: [
            row["set"] for row in paired if (row["score"], row["against"], row["verdict"]) == (score, other, verdict)
        ]
        for verdict in ("win", "tie", "loss", "diverged")
    }
    return {
        "score": score.upper(),
        "other method": other,
        "wins": len(sets["win"]),
        "ties": len(sets["tie"]),
        "losses": len(sets["loss"]),
        "lost on": ", ".join(sets["loss"]) or None,
        "diverged on": ", ".join(sets["diverged"]) or None,
    }


def _reached_row(results: Results, score: str) -> dict[str, Any]:
    """Return on how many sets the paper's number is reached, and where it is not; nothing if the paper has no set.

    The paper prints two digits: its 0.00 is reached by what rounds to it.
    """
    known = [name for name in results if name in TABLE_1 and "evidential" in results[name]]
    if not known:
        return {}
    above = []
    for name in known:
        ours, paper = _mean(results[name]["evidential"], score), getattr(TABLE_1[name]["evidential"], score)
        if round(ours, 2) > paper:
            above.append(f"{name} ({_signed(ours, 2, plus=False)}, paper {_signed(paper, 2, plus=False)})")
    return {
        "score": score.upper(),
        "at or below the paper's": f"{len(known) - len(above)} of {len(known)} sets",
        "above it on": ", ".join(above) or None,
    }


def _summary_row(name: str, results: Results) -> dict[str, Any]:
    """Return on how many sets the evidential method reaches the paper, and is better or worse than other methods."""
    row: dict[str, Any] = {"networks": "the library's" if name.endswith("best") else "the paper's"}
    for score in SCORES:
        reached = _reached_row(results, score)
        row[f"{score.upper()} at or below the paper's"] = reached.get("at or below the paper's")
    paired = paired_rows(results)
    for other in ("ensemble", "dropout"):
        verdicts = _verdict_row(paired, "nll", other)
        row[f"NLL better than our {other}"] = verdicts["wins"]
        row[f"worse than our {other}"] = verdicts["losses"]
    return row


# The published protocol -----------------------------------------------------------------------------------------------


def _rule(results: Results) -> Values:
    """Return by how much minima over test batches lie below the NLL of the last weights on all test rows."""
    evidential = [methods["evidential"] for methods in results.values() if "evidential" in methods]
    gains = [_mean(result, "nll") - _mean(result, "nll_min") for result in evidential]
    if not gains:
        return {}
    numbers = {"rule_median": float(np.median(gains)), "rule_least": min(gains), "rule_most": max(gains)}
    return {key: f"{number:.2f}" for key, number in numbers.items()}


def _changes(score: str, standard: Results, other_targets: Results, published: Results) -> Rows:
    """Return the steps from the standard protocol to the paper's column for the evidential method."""
    rows = []
    for name in (name for name in standard if name in published and name in TABLE_1):
        digits = digits_of(name, score)
        start = _mean(standard[name]["evidential"], score)
        moved = _mean(other_targets[name]["evidential"], score) if name in other_targets else start
        last, least = (_mean(published[name]["evidential"], key) for key in (score, f"{score}_min"))
        paper = getattr(TABLE_1[name]["evidential"], score)
        steps = {"targets": moved - start, "split": last - moved, "rule": least - last}
        row: dict[str, Any] = {"set": name, f"{score.upper()}, standard": _signed(start, digits, plus=False)}
        row |= {step: _signed(change, digits) if change else "–" for step, change in steps.items()}
        row |= {"published": _signed(least, digits, plus=False), "paper": _signed(paper, 2, plus=False)}
        rows.append(row | {"left": _signed(paper - least, digits)})
    return rows


# Times ----------------------------------------------------------------------------------------------------------------


def _seconds(results: Mapping[str, Results]) -> Rows:
    """Return the seconds that each method took in each run."""
    rows = []
    for name, sets in results.items():
        row: dict[str, Any] = {"run": name, "sets": len(sets)}
        for method in ("evidential", *OTHERS):
            row[method] = round(sum(methods[method]["seconds"] for methods in sets.values() if method in methods), 1)
        rows.append(row | {"all": round(sum(row[method] for method in ("evidential", *OTHERS)), 1)})
    return rows


def _milliseconds(results: Results) -> Values:
    """Return the times to answer with the paper's network, and how those of two methods compare with one network's."""
    rows: Rows = []
    compared = ("evidential", "ensemble", "dropout")
    for name, methods in results.items():
        times = {method: round(result["milliseconds"], 2) for method, result in methods.items()}
        known = TABLE_1.get(name)
        paper = {f"{method}, paper": known[method].milliseconds if known else None for method in compared}
        rows.append({"set": name, **times, **paper})
    values: Values = {"milliseconds": markdown(rows)}
    whole = [row for row in rows if all(method in row for method in compared)]
    for method in ("ensemble", "dropout"):
        ratios = [row[method] / row["evidential"] for row in whole]
        values[f"{method}_ratio"] = f"{np.mean(ratios):.2f}" if ratios else None
    return values
