"""The tables of README.md, docs/results.md, docs/choices.md, docs/images.md and paper/docs/reproduce.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from howsure_paper.depth.tables import number, signed, spread
from howsure_paper.depth.trials import trial_values
from howsure_paper.paper import TABLE_1
from howsure_paper.quoted.blocks import Block, table
from howsure_paper.record import read_record
from howsure_paper.tables import mean_and_error

__all__ = ["TABLES", "differences_to_peers"]

SETS = tuple(TABLE_1)
PEERS = {"ngboost": "NGBoost", "catboost": "CatBoost", "gp": "Gaussian process", "quantile": "quantile trees"}
INPUTS = (  # mixtures of table_inputs that the page shows
    "numbers", "bins", "trees", "bins and trees",
    "4 each: numbers + bins + trees, equal", "4 each: numbers + bins + trees, stacked",
    "8 each: numbers + bins + trees, stacked", "numbers, silu", "periodic, σ = 0.1", "periodic, σ = 1",
    "numbers, same rows", "numbers, same rows, stopped as one", "bins, same rows", "bins, same rows, stopped as one",
    "numbers, TabM of 8", "bins, TabM of 8", "numbers, TabM of 32", "bins, TabM of 32",
)  # fmt: skip
QUOTED_TABPFN = {  # mean NLL on all standard splits, from an unreviewed third-party repository
    "concrete": 2.21, "energy": 0.15, "kin8nm": -1.27, "naval": -7.33, "power": 2.28, "protein": 1.73, "yacht": -0.73,
}  # fmt: skip
CUBIC = {  # names of the page where they differ from those of the record
    "ensemble": "ensemble of 5",
    "dropout": "dropout, 5 draws",
    "Bayes by backprop": "Bayes by backprop, 5 draws",
}


def _mean(runs: Sequence[dict[str, Any]], score: str) -> float:
    return float(np.mean([run[score] for run in runs]))


# Tables -------------------------------------------------------------------------------------------------------------


def _inputs(results: Path) -> str:
    """NLL on rows set aside by the kind of networks."""
    rows = read_record(results / "table_inputs")["rows"]

    def cell(kind: str, name: str) -> str:
        found = [row for row in rows if (row["set"], row["kind"]) == (name, kind)]
        return number(_mean(found, "nll")) if found else "–"

    header = " | ".join(("kind", *SETS))
    return table(header, [[kind, *(cell(kind, name) for name in SETS)] for kind in INPUTS])


def _members(results: Path) -> str:
    """NLL of mixtures of 1 to 8 networks, as differences to mixtures of 16."""
    rows = read_record(results / "members")["rows"]

    def nll(name: str, count: int) -> float:
        return _mean([row for row in rows if (row["set"], row["members"]) == (name, count)], "nll")

    counts = (1, 2, 3, 5, 8)
    lines = [[name, *(signed(nll(name, count) - nll(name, 16), 3) for count in counts)] for name in SETS]
    return table(" | ".join(("set", *map(str, counts))), lines)


def _out_of_the_box(results: Path) -> str:
    """Scores of the default regressor on the nine sets, and of an earlier default on the same splits."""
    now, earlier = (read_record(results / name)["sets"] for name in ("uci_estimator", "uci_estimator_earlier"))
    lines = []
    for name in SETS:
        runs, before = now[name], earlier[name]
        first, same, old = (mean_and_error([run["nll"] for run in r]) for r in (runs, runs[: len(before)], before))
        means = [f"{_mean(runs, 'rmse'):.3g}", f"{_mean(runs, 'crps'):.3g}", f"{_mean(runs, 'coverage_90'):.3f}"]
        lines.append([name, str(len(runs)), first, *means, same, old])
    return table("set | splits | NLL | RMSE | CRPS | in 90% intervals | NLL, first six | before", lines)


def differences_to_peers(results: Path, name: str, score: str) -> tuple[list[float], str]:
    """Return the differences of the default regressor to the best other package, split by split, and its name.

    The best package is the one with the largest mean difference on the splits that both were run on.
    """
    ours = {run["split"]: run[score] for run in read_record(results / "uci_estimator")["sets"][name]}
    found: dict[str, list[float]] = {}
    for row in read_record(results / "bench_tables")["rows"]:
        if row["set"] == name and row["method"] in PEERS and row[score] is not None:
            found.setdefault(row["method"], []).append(ours[row["split"]] - row[score])
    best = max(found, key=lambda method: float(np.mean(found[method])))
    return found[best], PEERS[best]


def _peers(results: Path) -> str:
    """Differences of NLL and CRPS to the best of the other packages."""

    def cells(name: str, score: str) -> list[str]:
        if (name, score) == ("wine", "nll"):  # its target is six whole numbers, which densities do not describe
            return ["–", "–"]
        differences, peer = differences_to_peers(results, name, score)
        single = f"{differences[0]:.4g}".replace("-", "−")
        shown = mean_and_error(differences, 4) if len(differences) > 1 else single
        return [shown, f"{peer} ({len(differences)})"]

    header = "set | NLL, ours − best other | best other by NLL | CRPS, ours − best other | best other by CRPS"
    return table(header, [[name, *cells(name, "nll"), *cells(name, "crps")] for name in SETS])


def _packages(results: Path) -> str:
    """NLL and CRPS of each package on the splits that all of them were run on, and TabPFN as quoted."""
    peers = ("catboost", "ngboost", "quantile")
    rows = read_record(results / "bench_tables")["rows"]
    lines = []
    for name, quoted in QUOTED_TABPFN.items():
        runs = {peer: {r["split"]: r for r in rows if (r["set"], r["method"]) == (name, peer)} for peer in peers}
        runs["howsure"] = {run["split"]: run for run in read_record(results / "uci_estimator")["sets"][name]}
        splits = sorted(set.intersection(*(set(of_method) for of_method in runs.values())))

        def mean(method: str, score: str, runs: dict[str, Any] = runs, splits: list[int] = splits) -> float:
            return _mean([runs[method][split] for split in splits], score)

        nll = [number(mean(method, "nll"), 2) for method in ("howsure", "catboost", "ngboost")]
        crps = [f"{mean(method, 'crps'):.2g}" for method in ("howsure", "quantile")]
        lines.append([f"{name} ({len(splits)})", *nll, number(quoted, 2), *crps])
    header = "set (splits) | NLL: howsure | CatBoost | NGBoost | TabPFN, quoted | CRPS: howsure | quantile trees"
    return table(header, lines)


def _real_tables(results: Path) -> str:
    """Scores on bikes and houses, before and now."""
    before, now = (read_record(results / name)["cases"] for name in ("real_tables_earlier", "real_tables"))
    lines = []
    for case in now:
        for when, runs in (("before", before.get(case)), ("now", now[case])):
            if runs:
                run = runs[0]  # the same split in both records
                rmse, crps = (f"{v:,.0f}" if v >= 1000 else f"{v:.4g}" for v in (run["rmse"], run["crps"]))
                lines.append([case, when, rmse, f"{run['nll']:.3f}", crps, f"{run['coverage_90']:.3f}"])
    return table("table | | RMSE | NLL | CRPS | in 90% intervals", lines)


def _recipes(results: Path) -> str:
    """NLL and steps of the earlier and the present recipe on the small sets."""
    rows = read_record(results / "table_recipe")["rows"]
    sets = list(dict.fromkeys(row["set"] for row in rows))

    def cell(recipe: str, name: str) -> str:
        found = [row for row in rows if (row["set"], row["recipe"]) == (name, recipe)]
        return f"{number(_mean(found, 'nll'), 2)} ({_mean(found, 'steps'):.0f})"

    recipes = dict.fromkeys(row["recipe"] for row in rows)
    return table(
        " | ".join(("recipe", *sets)), [[recipe, *(cell(recipe, name) for name in sets)] for recipe in recipes]
    )


def _baselines(results: Path) -> str:
    """NLL and RMSE of ensembles and dropout next to the published ones."""
    lines = []
    for name in SETS:
        cells = [name]
        for folder, method in (("baselines", "ensemble"), ("baselines_first", "dropout")):
            found, published = read_record(results / folder)["results"][method][name], TABLE_1[name][method]
            cells += [mean_and_error(found["nll"]), number(published.nll, 2)]
            cells += [f"{np.mean(found['rmse']):#.3g}", f"{published.rmse:.2f}"]
        lines.append(cells)
    header = "set | ensemble NLL | published | RMSE | published | dropout NLL | published | RMSE | published"
    return table(header, lines)


def _cubic(results: Path) -> str:
    """Scores of every method on y = x³ + noise: medians over starts."""
    digits = {"nll_inside": 3, "coverage_90_inside": 2, "aleatoric_inside": 2}
    digits |= {"epistemic_inside": 2, "epistemic_outside": 2, "auroc_epistemic": 2}
    lines = []
    for method, result in read_record(results / "cubic")["results"].items():
        values = {key: [run.get(key) for run in result["numbers"]] for key in digits}
        medians = [None if None in v else float(np.median(np.array(v, dtype=float))) for v in values.values()]
        lines.append([CUBIC.get(method, method), *map(number, medians, digits.values())])
    header = "method | NLL inside | in 90% intervals | aleatoric inside | epistemic inside | epistemic outside | AUROC"
    return table(header, lines)


def _disentangle(results: Path) -> str:
    """Distance of the deviations from the true noise: medians and ranges over starts."""
    found = read_record(results / "disentangle")["results"]
    lines = []
    for penalty in ("standard_score", "error"):
        for model, reading in (("one network", "paper"), ("mixture of 8", "identified")):
            runs = [run for run in found[penalty] if (run["model"], run["reading"]) == (model, reading)]
            keys = ("total_error", "aleatoric_error", "aleatoric_share")
            cells = [_median_and_range([run[key] for run in runs]) for key in keys]
            lines.append([penalty.replace("_", " "), model, reading, *cells])
    return table("penalty | model | divided as | total | aleatoric | aleatoric share", lines)


def _median_and_range(values: Sequence[float]) -> str:
    median = f"{np.median(values):.2f}"
    return f"{median} ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else median


def _image_familiarity(results: Path) -> str:
    """AUROC of telling CamVid from NYU Depth v2, and test NLL."""
    trials = read_record(results / "depth_fading")["trials"]
    lines = []
    for evidence in ("plain", "fading"):
        areas = trial_values(trials, evidence, "auroc", "epistemic entropy")
        nll = number(float(trial_values(trials, evidence, "nll").mean()))
        lines.append([f'epistemic entropy, `evidence="{evidence}"`', str(spread(areas, 3)), nll])
    colors = f"{trial_values(trials, 'colour histograms').mean():.3f}"  # the same in every trial
    lines.append(["distance d", str(spread(trial_values(trials, "distance"), 3)), "–"])
    lines.append(["distance of colour histograms, without any network", colors, "–"])
    return table("score | AUROC: mean (least to greatest) | test NLL", lines)


TABLES: dict[str, Block] = {
    "table-inputs": _inputs,
    "table-members": _members,
    "table-out-of-the-box": _out_of_the_box,
    "table-peers": _peers,
    "table-packages": _packages,
    "table-real-tables": _real_tables,
    "table-recipes": _recipes,
    "table-baselines": _baselines,
    "table-cubic": _cubic,
    "table-disentangle": _disentangle,
    "table-image-familiarity": _image_familiarity,
}
