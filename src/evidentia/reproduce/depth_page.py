"""docs/results/depth.md, written from the record of ``evidentia reproduce depth``.

    python -m evidentia.reproduce.depth_page docs/results/depth docs/results/depth.md

What is missing is said to be missing. Where the maps lie beside the record, tables and figures are made anew as well.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidentia.record import read_record
from evidentia.report.tables import markdown
from evidentia.reproduce import depth_results as results
from evidentia.reproduce.depth import GROUPS, Plan, quick_plan
from evidentia.reproduce.depth_figures import mean_of, signed, studied, values_of, where
from evidentia.reproduce.depth_scores import BLOCKS
from evidentia.reproduce.paper import TABLE_S1

__all__ = ["main", "page"]

Record = dict[str, Any]
MISSING = "Not run yet."
ALIVE = 1e-3  # share of pixels from which on a channel is not called dead
RARE = 0.01  # share of pixels up to which a channel is called rare
SKILL, NLL, FEATURES = 0.15, -0.38, 0.95  # goals: share below the mean of training, likelihood, AUROC of the features
RATE, FASTER, COST = 4000, 4, 1.05  # goals: images a second, times the plain step, evidential pass to a plain one
DEFINITIONS = (
    "The NLL is that of the predictive distribution: Student's t for evidential models, a normal for the Gaussian one, "
    "an equal mixture of normals for ensembles and dropout of likelihoods. Ensembles and dropout of least squares have "
    "no deviation of their own: theirs is an equal mixture of normals with one deviation, chosen on validation images. "
    "The authors' dropout has 1/τ (0.009) added to its NLL."
)
RANKED = (
    "Pixels are ranked, and by the authors' rule calibrated (normal quantiles), by the epistemic deviation; the "
    "Gaussian model has none, and its aleatoric one stands in. Calibration error: mean distance of the curve from the "
    "diagonal. AUSE and AURG, of the RMSE: the area between the cutoff curve and the one of the true errors (0 is "
    "best), and between it and that of a random order (larger is better)."
)
ATTACKED = (
    "Each image is moved once, by ε along the sign of the gradient of its squared error. The AUROC is that of telling "
    "attacked images from clean ones by the score."
)
DIFFERENCES = (
    "**Not the paper's task.** The paper has about 27,000 frames of video, which the released code splits by frame, so "
    "that neighbours of test frames are trained on. Here are {pairs:,} labelled pairs, split by scene: fewer images, "
    "none from a test room, so errors are larger for every method. The paper's ± (left out) is not explained. Compare "
    "our rows with each other, and with the mean of the training maps."
)
CREDITS = {
    "NYU Depth v2": "Silberman, Hoiem, Kohli and Fergus, 2012",
    "CamVid": "Brostow, Fauqueur and Cipolla, 2009; CC BY-NC 4.0",
}
FEATURES_RULE = (
    "The feature distance above is the Mahalanobis distance of the logarithms of pooled encoder features from those of "
    f"the training images, the mean over the first {BLOCKS} blocks, each in units of its spread over the validation "
    "images. Block by block, AUROC:"
)
BLOCKS_RULE = (
    "This was chosen by shifts that were made up for it: validation images, changed as the rows say, parts "
    "of two photographs and rendered streets ([record]({folder}/record.json), `python "
    "benchmarks/depth_unfamiliar.py`). AUROC of the mean over the first blocks, {seeds} networks:"
)
FRAME_RULE = (
    "The labelled images of NYU Depth v2 have a white frame, two pixels wide at 160×128; images from elsewhere have "
    "none. A network that is trained on them takes its absence for unfamiliarity. AUROC of one network trained on "
    "images with their frame, for CamVid as it is, then without that difference, then for the frame alone:"
)
FRAME_END = (
    "So with the frame a high AUROC says little about rooms and streets, and everywhere else on this page the outer "
    "pixels are cut from all images. What else differs between two cameras (lens, colours, noise) remains, and "
    "helps any score."
)


def page(folder: Path) -> str:
    """The whole page."""
    beside = folder.parent
    title = "# Depth from one image, images from elsewhere, attacked images"
    note = "<!-- written by python -m evidentia.reproduce.depth_page; edit that, not this -->"
    if not (folder / "record.json").exists():
        return "\n\n".join((title, note, MISSING)) + "\n"
    record = read_record(folder)
    on = f"On {where(record)}"
    pairs = sum(record["data"][part] for part in ("train", "validation", "test"))
    sections = {
        "What it shows": ["\n".join(f"- {line}" for line in _statements(record, beside))],
        "Table S1": [
            f"{on}; errors in 1/m, ± a standard error over trials; times are medians, on CUDA of captured passes.",
            markdown(results.table_s1_rows(record)),
            "" if record["data"]["synthetic"] else DIFFERENCES.format(pairs=pairs),
            DEFINITIONS,
        ],
        "Figure 4: errors and epistemic deviations": [
            *_table(f"{on}, means over trials. {RANKED}", results.doubt_rows(record)),
            *_figures(folder, "4_maps", "4_cutoff", "4_calibration"),
        ],
        "Figure 5: images from elsewhere": [
            *_table(f"{on} against {record['data']['outside']}: AUROC.", results.unfamiliar_rows(record)),
            *_table(FEATURES_RULE, results.block_rows(record)),
            *_figures(folder, "5"),
        ],
        "Which blocks, and the white frame of NYU": _unfamiliar(beside / "depth_unfamiliar"),
        "The paper's head": _heads(beside / "depth_heads"),
        "Figures 6 and S6: attacked images": [
            *_table(f"{on}, means over trials. {ATTACKED}", results.attack_rows(record)),
            *_figures(folder, "6", "s6"),
        ],
        "Figures S4 and S5: single trials": _figures(folder, "s4", "s5"),
        "Figure S7: aleatoric deviations": _figures(folder, "s7"),
        "How the recipe was chosen": _recipe(beside / "depth_recipe"),
        "Training": _table("Seconds are medians; the best step is the one whose weights were kept.", _training(record)),
        "Speed": _speed(beside / "bench_depth"),
        "Credits": _credits(record["data"]),
    }
    parts = [title, note, *_opening(record, folder.name)]
    parts += [part for heading, section in sections.items() if section for part in (f"## {heading}", *section)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(record: Record, folder: str) -> list[str]:
    data, recipe, environment = record["data"], record["plan"]["recipe"], record["environment"]
    settings, varied = recipe["settings"], {k: v for k, v in (recipe["augmentation"] or {}).items() if v}
    flags = (" --quick" if record["plan"]["quick"] else "") + ("" if data["synthetic"] else " --data DATA")
    warning = "**Synthetic rooms:** rendered, not photographed. The goals below were set for NYU Depth v2."
    return [
        warning if data["synthetic"] else "",
        f"{where(record)}: {data['train']:,} training, {data['validation']:,} validation and {data['test']:,} test "
        f"pairs, split by scene with seed {record['plan']['split_seed']}; from elsewhere {data['outside images']:,} "
        f"images, {data['outside']}. {data['note']}".strip()
        + (f" From each side of every image {data['cut']} pixels are cut." if data["cut"] else ""),
        f"Made on {environment['device']['name']} with torch {environment['packages']['torch']} by",
        f"    evidentia reproduce depth{flags} --out docs/results/{folder}",
        f"([record]({folder}/record.json)). Recipe: U-Net of {recipe['blocks']} blocks, {recipe['width']} channels in "
        f"the first, {recipe['head']} head; {settings['steps']:,} steps of {recipe['batch_size']} images, Adam at "
        f"{settings['learning_rate']:g} ({settings['schedule']}), {settings['precision']}; images varied by "
        + (", ".join(name if value is True else f"{name} {value}" for name, value in varied.items()) or "nothing")
        + f". Every {settings['evaluate_every']:,} steps the validation pairs may choose the weights, by "
        f"{recipe['select'].upper()} (least squares and the paper's settings: by RMSE). The paper's settings are Adam "
        "at 5e-5, λ = 0.1, 60,000 steps, its own head, images not varied. Network i of trial t has seed 1000 t + i.",
        _missing(record),
    ]


def _missing(record: Record) -> str:
    plan = quick_plan() if record["plan"]["quick"] else Plan()
    lacking = []
    for group in map(plan.group, plan.groups):
        wanted = group.trials or plan.trials
        found = {model: len(record["results"].get(model, [])) for model in group.models}
        lacking += [f"{model} ({count} of {wanted} trials)" for model, count in found.items() if count < wanted]
    return f"Not run yet: {'; '.join(lacking)}." if lacking else ""


def _figures(folder: Path, *names: str) -> list[str]:
    drawn = {n: f"{folder.name}/figure_{n}.png" for n in names if (folder / f"figure_{n}.png").exists()}
    return [f"![Figure {n[0].upper()}{n[1:].replace('_', ', ')}]({link})" for n, link in drawn.items()] or [MISSING]


def _table(caption: str, rows: list[dict[str, Any]]) -> list[str]:
    return [caption, markdown(rows)] if rows else [MISSING]


def _recipe(folder: Path) -> list[str]:
    """The candidates of benchmarks/depth_recipe.py, as the validation pairs saw them."""
    if not (folder / "record.json").exists():
        return []
    tried = read_record(folder)["rows"]
    rows = [
        {"candidate": row["candidate"], "steps": row["steps"], "seed": row["seed"], "pixels cut": row["cut"]}
        | {"NLL": _number(row["nll"]), "RMSE": _number(row["rmse"], 4), "best step": row["best_step"]}
        for row in tried
    ]
    words = (
        f"Evidential networks, scored on validation pairs alone ([record]({folder.name}/record.json), "
        "`python benchmarks/depth_recipe.py`). «Nearer»: what a crop enlarges has its disparities enlarged as well; "
        "where no pixels are cut, images have their white frame. All methods share the recipe; it was not chosen for "
        "the others."
    )
    return _table(words, rows)


def _unfamiliar(folder: Path) -> list[str]:
    """What benchmarks/depth_unfamiliar.py found."""
    if not (folder / "record.json").exists():
        return []
    record = read_record(folder)
    networks, frame = list(record["blocks"].values()), record["frame"]
    first: dict[str, Any] = {}
    for kind, words in (("logarithms", ""), ("features", ", without logarithms")):
        by_shift = {shift: np.mean([found[kind][shift] for found in networks], axis=0) for shift in networks[0][kind]}
        first |= by_shift if kind == "logarithms" else {}
        first[f"mean{words}"] = np.mean(list(by_shift.values()), axis=0)
    blocks = [
        {"shift": shift} | {f"first {n + 1}": _number(value) for n, value in enumerate(values)}
        for shift, values in first.items()
    ]
    frames = [{"images": words} | {s: _number(v) for s, v in scores.items()} for words, scores in frame.items()]
    rule = BLOCKS_RULE.format(folder=folder.name, seeds=len(networks))
    return [*_table(rule, blocks), *_table(FRAME_RULE, frames), FRAME_END]


def _heads(folder: Path) -> list[str]:
    """What benchmarks/depth_heads.py found."""
    if not (folder / "record.json").exists():
        return []
    record = read_record(folder)
    rows, found = record["rows"], []
    for row in rows:
        shares = {when: ", ".join(f"{share:.3f}" for share in row[when]) for when in ("before", "after")}
        line = {"seed": row["seed"], "before training": shares["before"], "after": shares["after"]}
        line |= {"alive": _alive(row["after"])}
        found.append(line | {f"NLL, {head}": _number(row[head]["nll"]) for head in ("paper", "direct")})
    before, after = (np.array([row[when] for row in rows]) for when in ("before", "after"))
    rare, dead = before <= RARE, after <= ALIVE
    words = (
        f"The paper's head squeezes 32 channels through four and a ReLU before the four maps: the share of validation "
        f"pixels at which each of the four is positive, and the best validation NLL within {record['steps']:,} steps, "
        f"beside that of the direct head ([record]({folder.name}/record.json), `python benchmarks/depth_heads.py`). "
        f"What it squeezes is never negative, so a channel's sign hardly depends on the pixel: untrained, {rare.sum()} "
        f"of {rare.size} channels are positive at no more than 1 % of the pixels; trained, {dead.sum()} are dead, "
        f"{(dead & rare).sum()} of them among those. One live channel or none is left in "
        f"{((~dead).sum(1) <= 1).sum()} of {len(rows)} networks; then the four maps are functions of one number."
    )
    return _table(words, found)


def _speed(folder: Path) -> list[str]:
    """What benchmarks/bench_depth.py found."""
    if not (folder / "record.json").exists():
        return []
    record = read_record(folder)
    rates, forward = record["images a second"], record["forward"]
    ours, (height, width) = rates["ours"], record["size"]
    steps = [
        {"training step": name, "images a second": f"{rate:,.0f}", "ours to it": f"{ours / rate:.2f}"}
        for name, rate in rates.items()
    ]
    words = (
        f"On {record['environment']['device']['name']}, {record['batch']} images of {width}×{height} a step, by "
        f"`python benchmarks/bench_depth.py` ([record]({folder.name}/record.json)). The goals, at least {RATE:,} "
        f"images a second and {FASTER} times the plain float32 step, are {_met(ours >= RATE)} and "
        f"{_met(ours >= FASTER * rates['plain float32'])}."
    )
    passes = [{"forward pass": name, "evidential to plain": f"{ratio:.3f}"} for name, ratio in forward.items()]
    goal = f"An answer with both variances, the two networks in turn. The goal, at most {COST}, is "
    return [*_table(words, steps), *_table(f"{goal}{_met(max(forward.values()) <= COST)}:", passes)]


def _credits(data: dict[str, Any]) -> list[str]:
    named = [f"{name} ({CREDITS[name]})" for name in (data["name"], data["outside"]) if name in CREDITS]
    return [f"Photographs in the figures: {', '.join(named)}. None comes with this library."] if named else []


def _training(record: Record) -> list[dict[str, Any]]:
    rows = []
    for group, trials in record["networks"].items():
        networks = [network for trial in trials for network in trial]
        steps, best = record["plan"]["recipe"]["settings"]["steps"], [network["best_step"] for network in networks]
        if group in GROUPS and "settings" in GROUPS[group].changes and not record["plan"]["quick"]:
            steps = GROUPS[group].changes["settings"].steps
        seconds = float(np.median([network["seconds"] for network in networks]))
        row = {"networks": group, "trained": len(networks), "seconds each": seconds}
        row |= {"best step": f"{min(best):,} to {max(best):,}", "of": f"{steps:,}"}
        rows.append(row | {"diverged": sum(network["diverged"] for network in networks)})
    return rows


# What it shows --------------------------------------------------------------------------------------------------------


def _statements(record: Record, beside: Path) -> list[str]:
    """What was reached and what was not, in words."""
    if not record["results"].get("evidential"):
        return ["The evidential model has not been run yet."]
    lines = [*_errors(record), *_better(record)]
    if "evidential" in studied(record):
        lines += [*_outside(record, beside / "depth_unfamiliar"), *_attacked(record)]
    return [*lines, _head(record)]


def _errors(record: Record) -> list[str]:
    trials, base = record["results"]["evidential"], record["mean of training"]["rmse"]
    rmse, nll = values_of(trials, "rmse").mean(), values_of(trials, "nll").mean()
    below = 1 - rmse / base
    return [
        f"**Skill.** The default recipe's test RMSE, {_number(rmse)}, is {abs(100 * below):.1f} % "
        f"{'below' if below >= 0 else 'above'} that of the per-pixel mean of the training maps, {_number(base)}. The "
        f"goal, at least {100 * SKILL:.0f} % below, is {_met(below >= SKILL)}.",
        f"**Likelihood.** Its test NLL is {_number(nll)}. The goal, at most {_number(NLL, 2)}, is {_met(nll <= NLL)}; "
        f"the paper has {_number(TABLE_S1['evidential'].nll)} on its own data.",
        *_at_papers_settings(record),
    ]


def _at_papers_settings(record: Record) -> list[str]:
    name, base = "evidential, paper's settings", record["mean of training"]["rmse"]
    if not (trials := record["results"].get(name)):
        return []
    rmse, nll = values_of(trials, "rmse").mean(), values_of(trials, "nll").mean()
    best = ", ".join(f"{network['best_step']:,}" for trial in record["networks"][name] for network in trial)
    return [
        f"**The paper's settings** give RMSE {_number(rmse)} ({signed(100 * (rmse / base - 1), 1, ' %')} to the mean "
        f"of the training maps) and NLL {_number(nll)} here; the best step is {best} of 60,000."
    ]


def _better(record: Record) -> list[str]:
    """Who does better than the evidential model, score by score."""
    scores: dict[str, tuple[str, ...]] = {"NLL": ("nll",), "RMSE": ("rmse",)}
    scores["Calibration error, predictive distribution"] = ("calibration", "predictive", "error")
    scores["Calibration error, authors' rule"] = ("calibration", "authors", "error")
    lines = []
    for words, path in scores.items():
        found = {name: mean_of(trials, *path) for name, trials in record["results"].items()}
        means = {name: mean for name, mean in found.items() if mean is not None and np.isfinite(mean)}
        ours = means.pop("evidential", None)
        if ours is not None and means:
            best, least = min(means.items(), key=lambda pair: pair[1])
            better = sum(value < ours for value in means.values())
            lines.append(
                f"**{words}**, means over trials: evidential {_number(ours)}, best of the others {_number(least)} "
                f"({best}); {better} of {len(means)} others do better."
            )
    return lines


def _outside(record: Record, unfamiliar: Path) -> list[str]:
    models = studied(record)
    ours = models["evidential"]
    scores = {score: values_of(ours, "unfamiliar", score, "auroc") for score in ours[0]["unfamiliar"]}
    areas = {name: mean_of(trials, "unfamiliar", "epistemic entropy", "auroc") for name, trials in models.items()}
    others = {name: area for name, area in areas.items() if area is not None and not name.startswith("evidential")}
    mine = scores["epistemic entropy"]
    lines = [
        f"**{record['data']['outside']}** against test images, AUROC of the evidential model: "
        + "; ".join(f"{score}: {results.spread(values)}" for score, values in scores.items())
        + ". The paper finds that evidential models «capture increased uncertainty on OOD data on par with epistemic "
        "uncertainty estimation baselines». Increased: the epistemic entropy does better than chance in "
        f"{(mine > 0.5).sum()} of {len(mine)} trials. On par: its mean, {_number(mine.mean(), 2)}, is at least that of "
        f"{sum(mine.mean() >= area for area in others.values())} of {len(others)} baselines"
        + (f" ({'; '.join(f'{name}: {_number(area, 2)}' for name, area in others.items())})." if others else ".")
    ]
    for score in (score for score in scores if score.startswith("feature distance")):
        met = _met(bool(scores[score].mean() >= FEATURES))
        line = f"**{score.capitalize()}**, AUROC: {results.spread(scores[score], 3)}."
        lines.append(f"{line} The goal, a mean of at least {FEATURES}, is {met}.{_with_frame(unfamiliar, score)}")
    return lines


def _with_frame(folder: Path, score: str) -> str:
    """What the score would have been had the frame been left on."""
    if not (folder / "record.json").exists():
        return ""
    (as_it_is, *others, alone) = (scores[score] for scores in read_record(folder)["frame"].values())
    return (
        f" With the white frame of NYU left on, a network has {_number(as_it_is)}; but also {_number(alone)} for rooms "
        f"without it, and {' or '.join(map(_number, others))} once both sides have a frame or neither has (below)."
    )


def _attacked(record: Record) -> list[str]:
    base, *rows = results.attack_rows(record)
    mine = next((row for row in rows if row["model"] == "evidential"), None)
    if mine is None:
        return []
    small, far = (column.removeprefix("rises by, ") for column in mine if column.startswith("rises by, "))
    trials = studied(record)["evidential"]
    before, after = (values_of(trials, "attack", k, "scores", mine["score"], "mean") for k in (0, -1))
    rising = sum(not row[f"entropy rises by, {far}"].startswith("−") for row in rows)
    told = f", AUROC {_number(area, 2)}" if (area := mine[f"AUROC, {far}"]) is not None else ""
    return [
        f"**Attack.** At {small} the evidential RMSE has changed by {mine[f'rises by, {small}']}, its mean "
        f"{mine['score']} by {mine[f'entropy rises by, {small}']} nats; at {far} by {mine[f'rises by, {far}']}, to "
        f"{_number(mine[f'RMSE, {far}'])} (mean of the training maps: {_number(base['RMSE, ε = 0'])}), and "
        f"{mine[f'entropy rises by, {far}']} nats (up in {(after > before).sum()} of {len(trials)} trials{told}). In "
        f"the paper uncertainty rises steadily with ε. At {far} the mean entropy is up for {rising} of {len(rows)} "
        "models."
    ]


def _head(record: Record) -> str:
    """Whether the paper's head is worse, and whether its four maps follow one number."""
    ours, theirs = (record["results"].get(name) for name in ("evidential", "evidential, paper's head"))
    if not theirs:
        return "**The paper's head** has not been run yet."
    means = {s.upper(): (values_of(theirs, s).mean(), values_of(ours, s).mean()) for s in ("rmse", "nll")}
    worse = " and ".join(score for score, (a, b) in means.items() if not a <= b)
    words = ", ".join(f"{score} {_number(a)} against {_number(b)}" for score, (a, b) in means.items())
    same = [f"{sum(map(_one_number, trials))} of {len(trials)}" for trials in (theirs, ours)]
    alive = [str(_alive(t["alive channels"])) for t in theirs if "alive channels" in t]
    return (
        f"**The paper's head** (32 channels through 4 with a ReLU) against the direct one: {words}: "
        f"{f'worse in {worse}' if worse else 'not worse'}. All scores have the same AUROC, as if the four maps "
        f"followed one number, in {same[0]} trials (direct: {same[1]})."
        + (f" Of its four channels {', '.join(alive)} (trial by trial) are not dead on test images." if alive else "")
    )


def _alive(shares: Sequence[float]) -> int:
    return sum(share > ALIVE for share in shares)


def _one_number(trial: dict[str, Any]) -> bool:
    areas = [v["auroc"] for name, v in trial.get("unfamiliar", {}).items() if not name.startswith("feature")]
    return len(areas) > 1 and max(areas) - min(areas) < 0.005


def _number(value: float, digits: int = 3) -> str:
    return signed(value, digits, plus=False)


def _met(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, and where there are maps the tables and figures too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if (options.record / "maps").is_dir():
        results.write_results(read_record(options.record), options.record)
    options.out.write_text(page(options.record), encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
