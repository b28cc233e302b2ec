"""The values of ``page.md``, the template of docs/results/depth.md, from the records of the run and of its studies.

What a record does not have is None, empty or absent, and the paragraphs of the template that need it are left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from howsure_paper.depth.figures import FIGURES
from howsure_paper.depth.plan import BLOCKS, Plan, quick_plan
from howsure_paper.depth.tables import attack_rows, learning_rate, number, signed, spread, table_rows
from howsure_paper.depth.trials import Trials, data_name, studied_models, trial_mean, trial_values
from howsure_paper.pages import fill_template, read_template
from howsure_paper.paper import TABLE_S1
from howsure_paper.protocol import Record
from howsure_paper.record import find_record, read_record
from howsure_paper.tables import markdown

__all__ = ["ALIVE", "page"]

Values = dict[str, object]
Rows = list[dict[str, Any]]
ALIVE = 1e-3  # share of pixels above which a channel is not called dead
RARE = 0.01  # share of pixels up to which a channel is called rare
PAPER_HEAD, PAPER_SETTINGS = "evidential, paper's head", "evidential, paper's settings"
CREDITS = {
    "NYU Depth v2": "Silberman, Hoiem, Kohli and Fergus, 2012",
    "CamVid": "Brostow, Fauqueur and Cipolla, 2009; CC BY-NC 4.0",
}


def page(folder: Path, link: str) -> str:
    """Return the page of the run in a folder, with the studies and the benchmark whose records lie beside it.

    ``link`` is the path from the page to the folder.
    """
    record, beside = read_record(folder), folder.parent
    names = ("depth_unfamiliar", "depth_fading", "depth_heads", "depth_recipe", "depth_earlier", "bench_depth")
    unfamiliar, fading, heads, recipes, earlier, speed = (find_record(beside / name) for name in names)
    values = {
        **_opening_values(record),
        "run_folder": folder.name,
        "folder": link,
        **_figure_values(folder, link),
        **_error_values(record),
        **_cost_values(record),
        **_unfamiliar_values(record),
        **_attack_values(record),
        **_head_values(record),
        **_table_values(record),
        **_shift_values(unfamiliar),
        **_fading_values(fading),
        **_channel_values(heads),
        **_recipe_values(recipes),
        **_earlier_values(record, earlier),
        **_speed_values(speed),
    }
    return fill_template(read_template("howsure_paper.depth"), values)


def _count(part: int, whole: int) -> str:
    return f"{part} of {whole}"


# The run --------------------------------------------------------------------------------------------------------------


def _opening_values(record: Record) -> Values:
    """Return the data, the machine, the recipe, and what the run lacks."""
    data, plan, environment = record["data"], record["plan"], record["environment"]
    recipe, groups = plan["recipe"], plan["groups"]
    varied = {name: value for name, value in (recipe["augmentation"] or {}).items() if value}
    named = [f"{name} ({CREDITS[name]})" for name in (data["name"], data["outside"]) if name in CREDITS]
    command = "howsure-paper depth" + (" --quick" if plan["quick"] else "")
    return {
        **data,
        "data": data_name(record),
        "synthetic_data": data_name(record).capitalize() if data["synthetic"] else None,
        "labelled_pairs": None if data["synthetic"] else sum(data[part] for part in ("train", "validation", "test")),
        "outside_count": data["outside images"],
        "split_seed": plan["split_seed"],
        "device": environment["device"]["name"],
        "torch": environment["packages"]["torch"],
        "command": command + ("" if data["synthetic"] else " --data DATA"),
        **recipe,
        **recipe["settings"],
        "select": recipe["select"].upper(),
        "augmentation": ", ".join(k if v is True else f"{k} {v}" for k, v in varied.items()) or "nothing",
        "rate": learning_rate(recipe["settings"]["learning_rate"]),
        "evidential_rate": learning_rate(groups["evidential"]["learning_rate"]),
        "paper_rate": learning_rate(groups[PAPER_SETTINGS]["learning_rate"]),
        "paper_schedule": groups[PAPER_SETTINGS]["schedule"],
        "paper_steps": groups[PAPER_SETTINGS]["steps"],
        "missing_models": _missing_models(record),
        "credits": ", ".join(named),
    }


def _missing_models(record: Record) -> str:
    """Return the models of the whole plan that have fewer trials than it asks for."""
    plan = quick_plan() if record["plan"]["quick"] else Plan()
    missing = []
    for name in plan.group_names:
        wanted = plan.trials_of(name)
        found = {model: len(record["results"].get(model, [])) for model in plan.group(name).models}
        missing += [f"{model} ({_count(n, wanted)} trials)" for model, n in found.items() if n < wanted]
    return "; ".join(missing)


def _figure_values(folder: Path, link: str) -> Values:
    """Return the links to the figures that are there, and the names of those that are not."""
    drawn = [name for name in FIGURES if (folder / f"figure_{name}.png").exists()]
    missing = [name.replace("_", ", ") for name in FIGURES if name not in drawn]
    links = {f"figure_{name}": f"{link}/figure_{name}.png" for name in drawn}
    return {**links, "missing_figures": "; ".join(missing)}


def _table_values(record: Record) -> Values:
    """Return the tables of the run."""
    rows = table_rows(record)
    training = [_training_row(record, name) for name in record["networks"]]
    return {
        **{name: markdown(rows[name]) for name in ("table_s1", "doubts", "unfamiliar", "attack") if name in rows},
        "blocks_table": markdown(rows.get("blocks", [])),
        "first_blocks": BLOCKS if "blocks" in rows else None,
        "studied": len(studied_models(record)) or None,
        "training": markdown(training),
        "trained_networks": sum(row["trained"] for row in training) or None,
    }


def _training_row(record: Record, name: str) -> dict[str, Any]:
    networks = [network for trial in record["networks"][name] for network in trial]
    steps, settings = [network["best_step"] for network in networks], record["plan"]["groups"][name]
    return {
        "networks": name,
        "trained": len(networks),
        "seconds each": float(np.median([network["seconds"] for network in networks])),
        "learning rate": learning_rate(settings["learning_rate"]),
        "steps": f"{settings['steps']:,}",
        "best step": f"{min(steps):,} to {max(steps):,}",
        "its validation score": spread(np.array([network["best_score"] for network in networks], float), 3),
        "diverged": sum(network["diverged"] for network in networks),
    }


# What it shows --------------------------------------------------------------------------------------------------------


def _error_values(record: Record) -> Values:
    """Return RMSE and NLL of the evidential network and of the paper's settings, and who does better."""
    results, base = record["results"], record["mean of training"]["rmse"]
    values: Values = {"mean_rmse": number(base), "paper_nll": number(TABLE_S1["evidential"].nll)}
    for prefix, model in (("", "evidential"), ("at_paper_", PAPER_SETTINGS)):
        rmse, nll = (trial_mean(results.get(model, []), score) for score in ("rmse", "nll"))
        values[f"{prefix}rmse"], values[f"{prefix}nll"] = _number(rmse), _number(nll)
        values[f"{prefix}rmse_to_mean"] = None if rmse is None else signed(100 * (rmse / base - 1), 1, " %")
    steps = [network["best_step"] for trial in record["networks"].get(PAPER_SETTINGS, []) for network in trial]
    values["at_paper_step"] = ", ".join(f"{step:,}" for step in steps)
    values["evidential_trials"] = len(results.get("evidential", [])) or None
    return values | {"comparison": markdown(_comparison_rows(record))}


def _number(value: float | None, digits: int = 3) -> str | None:
    return None if value is None else number(value, digits)


def _comparison_rows(record: Record) -> Rows:
    """Return a row for each score: the evidential network, the best of the others, and how many do better."""
    scores: dict[str, tuple[str, ...]] = {
        "NLL": ("nll",),
        "RMSE": ("rmse",),
        "calibration error, predictive distribution": ("calibration", "predictive", "error"),
        "calibration error, authors' rule": ("calibration", "authors", "error"),
    }
    rows: Rows = []
    for score, path in scores.items():
        found = {name: trial_mean(trials, *path) for name, trials in record["results"].items()}
        means = {name: mean for name, mean in found.items() if mean is not None and np.isfinite(mean)}
        ours = means.pop("evidential", None)
        if ours is not None and means:
            best, least = min(means.items(), key=lambda pair: pair[1])
            row = {"smaller is better": score, "evidential": number(ours), "best of the others": number(least)}
            better = sum(mean < ours for mean in means.values())
            rows.append(row | {"which": best, "others that do better": _count(better, len(means))})
    return rows


def _cost_values(record: Record) -> Values:
    """Return the time of an evidential answer to that of the plain network, and of several networks to it."""
    seconds = record["seconds"]
    if not {"evidential", "plain"} <= set(seconds):
        return {}
    counts = sorted(seconds["evidential"], key=int, reverse=True)
    ratios = {n: seconds["evidential"][n] / seconds["plain"][n] for n in counts}
    several = [name for name in ("ensemble, 5", "dropout, 10") if name in seconds]
    times = [f"{name}: {seconds[name][counts[0]] / seconds['evidential'][counts[0]]:.1f}" for name in several]
    return {
        "cost_to_plain": ", ".join(f"{r:.2f} for {n} image{'s' if int(n) > 1 else ''}" for n, r in ratios.items()),
        "cost_images": counts[0],
        "cost_of_several": "; ".join(times) or "–",
    }


def _unfamiliar_values(record: Record) -> Values:
    """Return how well the evidential network tells images from elsewhere, beside the baselines."""
    models = studied_models(record)
    if "evidential" not in models:
        return {}
    ours = trial_values(models["evidential"], "unfamiliar", "epistemic entropy", "auroc")
    areas = {name: trial_mean(trials, "unfamiliar", "epistemic entropy", "auroc") for name, trials in models.items()}
    others = {name: area for name, area in areas.items() if area is not None and not name.startswith("evidential")}
    return _widest_score(models) | {
        "trials_above_chance": _count(int((ours > 0.5).sum()), len(ours)),
        "epistemic_auroc": number(float(ours.mean()), 2),
        "baselines_reached": _count(sum(bool(ours.mean() >= area) for area in others.values()), len(others)),
        "baseline_aurocs": "; ".join(f"{name}: {number(area, 2)}" for name, area in others.items()),
        "feature_auroc": spread(trial_values(models["evidential"], "unfamiliar", "feature distance", "auroc"), 3),
    }


def _widest_score(models: dict[str, Trials]) -> Values:
    """Return the score whose AUROC changes most from one evidential model to the next, and its AUROCs."""
    ours = {name: trials for name, trials in models.items() if name.startswith("evidential")}
    if len(ours) < 2:
        return {}
    scores = [score for score in models["evidential"][0]["unfamiliar"] if not score.startswith("feature")]
    areas = {s: {n: trial_values(trials, "unfamiliar", s, "auroc") for n, trials in ours.items()} for s in scores}
    widest = max(scores, key=lambda s: float(np.nan_to_num(np.ptp([area.mean() for area in areas[s].values()]))))
    listed = "; ".join(f"{name}: {spread(area)}" for name, area in areas[widest].items())
    return {"widest_score": widest, "widest_aurocs": listed}


def _attack_values(record: Record) -> Values:
    """Return what an attack does to error and entropy of the evidential network."""
    rows = attack_rows(record)[1:]
    ours = next((row for row in rows if row["model"] == "evidential"), None)
    if ours is None:
        return {}
    small, large = (column.removeprefix("rises by, ") for column in ours if column.startswith("rises by, "))
    trials = studied_models(record)["evidential"]
    before, after = (trial_values(trials, "attack", k, "scores", ours["score"], "mean") for k in (0, -1))
    return {
        "small_epsilon": small,
        "small_rmse_rise": ours[f"rises by, {small}"],
        "small_entropy_rise": ours[f"entropy rises by, {small}"],
        "large_epsilon": large,
        "large_rmse_rise": ours[f"rises by, {large}"],
        "large_rmse": number(ours[f"RMSE, {large}"]),
        "large_entropy_rise": ours[f"entropy rises by, {large}"],
        "attack_score": ours["score"],
        "attack_trials_up": _count(int((after > before).sum()), len(trials)),
        "attack_auroc": number(ours[f"AUROC, {large}"], 2),
        "attack_models_up": _count(sum(r[f"entropy rises by, {large}"].startswith("+") for r in rows), len(rows)),
    }


def _head_values(record: Record) -> Values:
    """Return the errors of the paper's head, its live channels, and whether its maps follow one number."""
    ours, theirs = (record["results"].get(name, []) for name in ("evidential", PAPER_HEAD))
    alive = [str(_alive_count(trial["alive channels"])) for trial in theirs if "alive channels" in trial]
    values: Values = {f"head_{score}": _number(trial_mean(theirs, score)) for score in ("rmse", "nll")}
    same = {"head_one_number": theirs, "direct_one_number": ours}
    values |= {name: _count(sum(map(_follows_one_number, trials)), len(trials)) for name, trials in same.items()}
    return values | {"head_alive_channels": ", ".join(alive)}


def _follows_one_number(trial: dict[str, Any]) -> bool:
    """Return whether all scores have the same AUROC."""
    areas = [v["auroc"] for name, v in trial.get("unfamiliar", {}).items() if not name.startswith("feature")]
    return len(areas) > 1 and max(areas) - min(areas) < 0.005


def _alive_count(shares: Sequence[float]) -> int:
    """Return how many channels are positive at more than hardly any pixel."""
    return sum(share > ALIVE for share in shares)


# Studies and benchmark ------------------------------------------------------------------------------------------------


def _shift_values(record: Record | None) -> Values:
    """Return what studies/depth_unfamiliar.py found: AUROC by blocks, and with and without the frame."""
    if record is None:
        return {}
    networks, frame = list(record["blocks"].values()), record["frame"]
    first: dict[str, Any] = {}
    for kind, suffix in (("logarithms", ""), ("features", ", without logarithms")):
        by_shift = {shift: np.mean([found[kind][shift] for found in networks], axis=0) for shift in networks[0][kind]}
        first |= by_shift if kind == "logarithms" else {}
        first[f"mean{suffix}"] = np.mean(list(by_shift.values()), axis=0)
    shifts = [
        {"shift": shift} | {f"first {n + 1}": number(value) for n, value in enumerate(values)}
        for shift, values in first.items()
    ]
    frames = [{"images": images} | {s: number(v) for s, v in scores.items()} for images, scores in frame.items()]
    framed, *removed, alone = (number(scores["feature distance"]) for scores in frame.values())
    return {
        "unfamiliar_record": "depth_unfamiliar/record.json",
        "shift_networks": len(networks),
        "shifts": markdown(shifts),
        "frames": markdown(frames),
        "framed_auroc": framed,
        "frame_alone_auroc": alone,
        "frame_removed_aurocs": " or ".join(removed),
    }


def _fading_values(record: Record | None) -> Values:
    """Return what studies/depth_fading.py found: what was chosen by which numbers, and what it gives on CamVid."""
    if record is None or not record["trials"]:
        return {}
    trials, seconds = record["trials"], record["seconds"]
    labels = {"rmse": "RMSE", "nll": "NLL", "calibration": "calibration error", "coverage_90": "in 90 % intervals"}
    rows = [
        {
            "evidence": kind,
            "AUROC, epistemic entropy": spread(trial_values(trials, kind, "auroc", "epistemic entropy"), 3),
        }
        | {label: spread(trial_values(trials, kind, key), 3) for key, label in labels.items()}
        for kind in ("plain", "fading")
    ]
    distances = [trial["choice"]["distances"] for trial in trials]
    features = [
        {"features": name, "AUROC": number(float(np.mean([list(found[name].values()) for found in distances])))}
        for name in distances[0]
    ]
    one, many = seconds["plain"]
    return {
        "fading_record": "depth_fading/record.json",
        "fading_trials": len(trials),
        "fading_elsewhere": record["data"]["outside"],
        "fading_table": markdown(rows),
        "histogram_auroc": number(float(trial_values(trials, "colour histograms").mean())),
        "fading_distance_auroc": spread(trial_values(trials, "distance"), 3),
        "fading_nll": ", ".join(
            f"{signed(trial['nll rises by']['mean'], 3)} ± {number(trial['nll rises by']['error'])}" for trial in trials
        ),
        "fading_inside": number(float(trial_values(trials, "familiarity", "inside").mean()), 2),
        "fading_outside": number(float(trial_values(trials, "familiarity", "outside").mean()), 2),
        "fading_time_one": number(seconds["fading"][one] / seconds["plain"][one], 2),
        "fading_time_many": number(seconds["fading"][many] / seconds["plain"][many], 2),
        "fading_many": many,
        "fading_shifts": len(distances[0]["all"]),
        "fading_features": markdown(features),
        "fading_powers": markdown(_power_rows([trial["choice"]["rows"] for trial in trials])),
    }


def _power_rows(trials: list[Rows]) -> Rows:
    """Return the means over trials of what every reach and power gives."""
    found = []
    for same in zip(*trials, strict=True):
        mean = {key: float(np.mean([row[key] for row in same])) for key in same[0]}
        row = {
            "reach: quantile": f"{mean['quantile']:g}",
            "power": f"{mean['power']:g}",
            "AUROC": number(mean["auroc"]),
        }
        row |= {"NLL rises by": signed(mean["nll rises by"], 3), "standard error": number(mean["error"])}
        found.append(row | {"NLL of shifts rises by": signed(mean["nll of shifts rises by"], 3)})
    return found


def _channel_values(record: Record | None) -> Values:
    """Return what studies/depth_heads.py found: which channels of the paper's head live."""
    if record is None:
        return {}
    rows, rates = record["rows"], record["rates"]
    rare = np.array([row["before"] for row in rows]) <= RARE
    squeezed = [kind for kind in rates if kind != "direct"]
    starved = {kind: sum(_alive_count(row[kind]["alive"]) <= 1 for row in rows) for kind in squeezed}
    dead: Rows = []
    for kind in squeezed:
        channels = np.array([row[kind]["alive"] for row in rows]) <= ALIVE
        row = {"trained at": learning_rate(rates[kind]), "dead channels": int(channels.sum())}
        row |= {"of these rare untrained": int((channels & rare).sum())}
        dead.append(row | {"networks with one live channel or none": _count(starved[kind], len(rows))})
    heads = {kind: f"{kind.removesuffix(', slower')} at {learning_rate(rates[kind])}" for kind in rates}
    table = [
        {"seed": row["seed"], "untrained": _shares(row["before"])}
        | {heads[kind]: _shares(row[kind]["alive"]) for kind in squeezed}
        | {f"NLL, {head}": number(row[kind]["nll"]) for kind, head in heads.items()}
        for row in rows
    ]
    means = {kind: number(float(np.mean([row[kind]["nll"] for row in rows]))) for kind in rates}
    return {
        "heads_record": "depth_heads/record.json",
        "heads_steps": record["steps"],
        "heads_rare": int(rare.sum()),
        "heads_channels": rare.size,
        "heads_rare_percent": 100 * RARE,
        "heads_dead": markdown(dead),
        "heads": markdown(table),
        "heads_count": len(rows),
        "heads_starved": " and ".join(f"in {starved[k]} trained at {learning_rate(rates[k])}" for k in squeezed),
        "heads_nll": " and ".join(means[kind] for kind in squeezed),
        "heads_direct_nll": means["direct"],
    }


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{share:.3f}" for share in values)


def _recipe_values(record: Record | None) -> Values:
    """Return what studies/depth_recipe.py tried, as the validation pairs scored it."""
    if record is None:
        return {}
    tried: dict[tuple[Any, ...], Trials] = {}
    for row in record["rows"]:
        tried.setdefault(tuple(row[key] for key in ("candidate", "method", "steps", "cut")), []).append(row)
    table = [
        {"candidate": candidate, "method": method, "steps": steps, "pixels cut": cut, "networks": len(rows)}
        | {score.upper(): spread(trial_values(rows, score), 3) for score in ("nll", "rmse")}
        for (candidate, method, steps, cut), rows in tried.items()
    ]
    return {"recipe_record": "depth_recipe/record.json", "recipes": markdown(table)}


def _earlier_values(record: Record, earlier: Record | None) -> Values:
    """Return the evidential networks at the learning rate of the others beside those of the run."""
    models = [model for model in earlier["results"] if record["results"].get(model)] if earlier else []
    if earlier is None or "evidential" not in models:
        return {}
    values: Values = {"earlier_record": "depth_earlier/record.json"}
    rows: Rows = []
    for when, each in (("earlier", earlier), ("now", record)):
        for model in models:
            found = np.array([network["best_score"] for trial in each["networks"][model] for network in trial], float)
            rate, trials = each["plan"]["groups"][model]["learning_rate"], each["results"][model]
            row = {"networks": model, "": when, "learning rate": learning_rate(rate)}
            row["validation NLL"] = spread(found, 3)
            rows.append(row | {f"test {s.upper()}": spread(trial_values(trials, s), 3) for s in ("rmse", "nll")})
            if model == "evidential":
                values[f"nll_{when}"] = number(float(found.mean()))
    return values | {"earlier": markdown(rows)}


def _speed_values(record: Record | None) -> Values:
    """Return what benchmarks/bench_depth.py measured."""
    if record is None:
        return {}
    rates, (height, width) = record["images a second"], record["size"]
    steps = [
        {"training step": name, "images a second": f"{rate:,.0f}", "ours to it": f"{rates['ours'] / rate:.2f}"}
        for name, rate in rates.items()
    ]
    passes = [{"forward pass": name, "evidential to plain": f"{r:.3f}"} for name, r in record["forward"].items()]
    return {
        "speed_record": "bench_depth/record.json",
        "speed_device": record["environment"]["device"]["name"],
        "speed_batch": record["batch"],
        "speed_size": f"{width}×{height}",
        "speed_steps": markdown(steps),
        "speed_passes": markdown(passes),
    }
