"""The page of Table 1: tables and numbers from the records of both protocols and both networks.

The prose is in ``page.md``. Parts of missing runs are left out.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from howsure.errors import InputError
from howsure_paper.datasets.uci import SETS
from howsure_paper.pages import fill_template, read_template
from howsure_paper.paper import TABLE_1
from howsure_paper.protocol import Record, find_runs
from howsure_paper.tables import markdown
from howsure_paper.uci.plan import KNOWN_SETS, METHODS, Plan
from howsure_paper.uci.tables import (
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


def page(folder: Path, link: str) -> str:
    """Return the page of the run in a folder, or of those in its sub-folders; ``link`` leads from it to the folder."""
    found = _named_runs(find_runs(folder))
    runs = {name: found[name] for name in RUNS if name in found}
    records = {name: record for name, (_, record) in runs.items()}
    values = _values(records) | {
        "commands": "\n".join(f"    {_command(*run)}" for run in runs.values() if _is_command(run[1]))
    }
    for name, (path, record) in runs.items():
        values[name] = (link / path.relative_to(folder)).as_posix()
        values |= _linked(name, path, str(values[name]), record["results"])
    return fill_template(read_template("howsure_paper.uci"), values)


def _named_runs(runs: Mapping[Path, Record]) -> dict[str, tuple[Path, Record]]:
    """Return folder and record of each run by its protocol and network.

    A run with other targets than its protocol has them in its name, if another run has the protocol's targets.

    Raises:
        InputError: if two runs have the same name.
    """
    named: dict[str, tuple[Path, Record]] = {}
    for path, record in sorted(runs.items(), key=lambda run: _other_targets(run[1]) or ""):
        base = f"{record['plan']['protocol']}_{record['plan']['network']}"
        other = _other_targets(record) if base in named else None
        name = f"{base}_{other}_targets" if other else base
        if name in named or name not in RUNS:
            beside = named.get(name, named[base])[0]
            raise InputError(f"the runs in {beside} and {path} do not go on one page; name the folder of one of them")
        named[name] = path, record
    return named


def _other_targets(record: Record) -> str | None:
    """Return the targets of a run if they differ from its protocol."""
    targets: str | None = record["plan"]["targets"]
    return None if targets == record["plan"]["protocol"] else targets


def _is_command(record: Record) -> bool:
    """Return whether a command makes the run: without --quick there is none for fewer splits or steps."""
    return bool(record["quick"]) or record["plan"]["splits"] is record["plan"]["steps"] is None


def _command(folder: Path, record: Record) -> str:
    """Return the command that makes a run."""
    plan, results = record["plan"], record["results"]
    sets = [name for name in KNOWN_SETS if name in results or name in plan["sets"]]
    methods = [method for method in METHODS if method in {*_methods([results]), *plan["methods"]}]
    options = {
        "--data DATA": sets != ["diabetes"],
        "--quick": record["quick"],
        f"--protocol {plan['protocol']} --network {plan['network']}": True,
        f"--targets {plan['targets']}": plan["targets"],
        f"--sets {','.join(sets)}": sets != list(SETS),
        f"--methods {','.join(methods)}": methods != list(METHODS),
        f"--members {plan['members']}": plan["members"] != Plan.members,
        "--no-search": not plan["search"] and not record["quick"],
        f"--out {folder.name}": True,
    }
    return " ".join(["howsure-paper uci", *(option for option, given in options.items() if given)])


def _methods(runs: Iterable[Results]) -> list[str]:
    """Return the methods that runs have results of."""
    found = {method for results in runs for methods in results.values() for method in methods}
    return [method for method in METHODS if method in found]


def _linked(name: str, folder: Path, link: str, results: Results) -> Values:
    """Return the links to files of a run that not every run has."""
    files = {"figure": "paired_nll.png", "paired": "paired.csv"}
    values: Values = {f"{name}_{key}": f"{link}/{file}" for key, file in files.items() if (folder / file).exists()}
    return values | {f"{name}_wine": f"{link}/all_scores.csv" if "wine" in results else None}


def _values(records: Mapping[str, Record]) -> Values:
    """Return the values of the template that the runs have."""
    results: dict[str, Results] = {name: record["results"] for name, record in records.items()}
    environments = [record["environment"] for record in records.values()]
    values: Values = {
        "sets": ", ".join(name for name in KNOWN_SETS if any(name in sets for sets in results.values())),
        "methods": ", ".join(_methods(results.values())),
        "members": _alternatives(record["plan"]["members"] for record in records.values()),
        "papers_network": ", ".join(name for name in records if "paper" in name),
        **_search(results.get("standard_best", {})),
        "devices": ", ".join(sorted({environment["device"]["name"] for environment in environments})),
        "versions": ", ".join(sorted({environment["packages"]["torch"] for environment in environments})),
        "summary": markdown(_summary_rows(results)),
        "seconds": markdown(_seconds(results)),
        **_rule(results.get("published_paper", {})),
        **_milliseconds(results.get("standard_paper", {})),
    }
    for name in STANDARD:
        values |= {f"{name}_{key}": value for key, value in _standard(results.get(name, {})).items()}
    for name in PUBLISHED:
        values[f"{name}_rows"] = markdown(published_rows(results.get(name, {})))
    for name, record in records.items():
        values |= {f"{name}_{key}": value for key, value in _run_values(record).items()}
    compared = ("standard_paper", "standard_paper_published_targets", "published_paper")
    if results.keys() >= set(compared):
        for score in SCORES:
            values[f"changes_{score}"] = markdown(_changes(score, *(results[name] for name in compared)))
        values["below_paper"] = ", ".join(_below_paper(results["published_paper"]))
    return values


def _run_values(record: Record) -> Values:
    """Return how often a run repeats each set, how often it evaluates, and the missing parts of its plan."""
    plan, results = record["plan"], record["results"]
    units = "splits" if plan["protocol"] == "standard" else "trials"
    each = [result for methods in results.values() for result in methods.values()]
    counts = {name: len(next(iter(methods.values()))[units]) for name, methods in results.items()}
    most = max(counts.values())
    fewer = [f"{name}: {count}" for name, count in counts.items() if count < most]
    missing = {name: [m for m in plan["methods"] if m not in results.get(name, {})] for name in plan["sets"]}
    return {
        "repeats": f"{most} {units if most > 1 else units[:-1]}" + (f" ({', '.join(fewer)})" if fewer else ""),
        "every": _alternatives(result["recipe"]["settings"]["evaluate_every"] for result in each),
        "missing": "; ".join(f"{name} ({', '.join(methods)})" for name, methods in missing.items() if methods),
        "targets": _other_targets(record) if {"energy", "naval"} & results.keys() else None,
    }


def _alternatives(numbers: Iterable[int]) -> str:
    """Return the different ones of some numbers, as in "50, 200 or 400"."""
    *others, last = map(str, sorted(set(numbers)))
    return f"{', '.join(others)} or {last}" if others else last


def _search(results: Results) -> Values:
    """Return the name of the run with the library's networks where λ or the dropout rate was searched, or was not."""
    tuned = [methods[m]["chosen"] for methods in results.values() for m in ("evidential", "dropout") if m in methods]
    searched = any(chosen is not None for chosen in tuned)
    return {
        "searched": "standard_best" if searched else None,
        "unsearched": "standard_best" if tuned and not searched else None,
    }


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
    others = [other for other in OTHERS if any(row["against"] == other for row in paired)]
    known = len(_known_sets(results))
    values: Values = {
        "reached": markdown([row for score in SCORES if (row := _reached_row(results, score))]),
        "known": f"{known} set{'s' if known > 1 else ''}" if known else None,
        "verdicts": markdown([_verdict_row(paired, score, other) for score in SCORES for other in others]),
        "others": ", ".join(others),
        "scores": markdown([{k: v for k, v in row.items() if k != "seconds"} for row in long_rows(results)]),
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

    The paper prints two digits: numbers that round to its 0.00 reach it.
    """
    known = _known_sets(results)
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


def _known_sets(results: Results) -> list[str]:
    """Return the sets whose evidential numbers can be compared with the paper's."""
    return [name for name in results if name in TABLE_1 and "evidential" in results[name]]


def _summary_rows(results: Mapping[str, Results]) -> Rows:
    """Return a row for each run by the standard protocol in which the evidential method can be compared."""
    rows = {name: _summary_row(results[name]) for name in STANDARD if name in results}
    networks = {"standard_best": "the library's", "standard_paper": "the paper's"}
    return [
        {"networks": networks[name]} | row for name, row in rows.items() if any(v is not None for v in row.values())
    ]


def _summary_row(results: Results) -> dict[str, Any]:
    """Return on how many sets the evidential method reaches the paper, and is better or worse than other methods."""
    row: dict[str, Any] = {}
    for score in SCORES:
        reached = _reached_row(results, score)
        row[f"{score.upper()} at or below the paper's"] = reached.get("at or below the paper's")
    paired = paired_rows(results)
    for other in ("ensemble", "dropout"):
        verdicts = _verdict_row(paired, "nll", other) if any(pair["against"] == other for pair in paired) else {}
        row[f"NLL better than our {other}"] = verdicts.get("wins")
        row[f"worse than our {other}"] = verdicts.get("losses")
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
    for name in (name for name in _known_sets(standard) if name in _known_sets(published)):
        digits = digits_of(name, score)
        start = _mean(standard[name]["evidential"], score)
        moved = _mean(other_targets[name]["evidential"], score) if name in _known_sets(other_targets) else start
        last, least = (_mean(published[name]["evidential"], key) for key in (score, f"{score}_min"))
        paper = getattr(TABLE_1[name]["evidential"], score)
        steps = {"targets": moved - start, "split": last - moved, "rule": least - last}
        row: dict[str, Any] = {"set": name, f"{score.upper()}, standard": _signed(start, digits, plus=False)}
        row |= {step: _signed(change, digits) if change else "–" for step, change in steps.items()}
        row |= {"published": _signed(least, digits, plus=False), "paper": _signed(paper, 2, plus=False)}
        rows.append(row | {"left": _signed(paper - least, digits)})
    return rows


def _below_paper(published: Results) -> list[str]:
    """Return the sets whose minima of the NLL are below the numbers of the paper."""
    known = _known_sets(published)
    return [n for n in known if _mean(published[n]["evidential"], "nll_min") < TABLE_1[n]["evidential"].nll]


# Times ----------------------------------------------------------------------------------------------------------------


def _seconds(results: Mapping[str, Results]) -> Rows:
    """Return the seconds that each method took in each run."""
    rows = []
    for name, sets in results.items():
        row: dict[str, Any] = {"run": name, "sets": len(sets)}
        for method in ("evidential", *OTHERS):
            times = [methods[method]["seconds"] for methods in sets.values() if method in methods]
            row[method] = round(sum(times), 1) if times else None
        rows.append(row | {"all": round(sum(row[method] or 0 for method in ("evidential", *OTHERS)), 1)})
    return rows


def _milliseconds(results: Results) -> Values:
    """Return the times to predict with the paper's network, and the ratios of two methods to one network."""
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
