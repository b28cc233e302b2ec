"""docs/results/depth.md, written from the record of ``evidentia reproduce depth``.

    python -m evidentia.reproduce.depth.page docs/results/depth docs/results/depth.md

What is missing is said to be missing. Where the maps lie beside the record, tables and figures are made anew as well.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evidentia.files import write_text
from evidentia.record import find_record, read_record
from evidentia.report.tables import markdown
from evidentia.reproduce.depth import tables as results
from evidentia.reproduce.depth.figures import values_of, where
from evidentia.reproduce.depth.findings import ALIVE, PAPERS, met, number, rate_of, starved, statements
from evidentia.reproduce.depth.run import Plan, quick_plan
from evidentia.reproduce.depth.scores import BLOCKS

__all__ = ["main", "page"]

Record = dict[str, Any]
MISSING = "Not run yet."
RARE = 0.01  # share of pixels up to which a channel is called rare
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
TRAINED = (
    "Seconds are medians; the best step is the one whose weights were kept, by its validation score: the NLL, of least "
    "squares and at the paper's settings the RMSE."
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
    "studies/depth_unfamiliar.py`). AUROC of the mean over the first blocks, {seeds} networks:"
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

TRIED = (
    "Scored on validation pairs alone ([record]({folder}/record.json), `python studies/depth_recipe.py`); means, "
    "least and greatest. «Nearer»: what a crop enlarges has its disparities enlarged as well; where no pixels are cut, "
    "images have their white frame. All but the learning rate was chosen for evidential networks and is shared."
)
CHANGED = (
    "The rate was first chosen on images with their frame, then anew without, for each loss: to change where the "
    "validation score over three seeds is better by 0.03 in NLL or 0.003 in RMSE than that of the networks at 0.001 "
    "(«Training», and earlier below). Only evidential networks did. By then the test pairs had been asked about the "
    "earlier ones ([record]({folder}/record.json)), so that both answers are here. On a GPU two runs with one seed "
    "differ about as much as two seeds do:"
)
AGAIN = "Trained again at the rate that was chosen, the validation NLL of evidential networks is {}."
HEADS = (
    "The paper's head squeezes 32 channels through four and a ReLU before the four maps: the share of validation "
    "pixels at which each of the four is positive, and the best validation NLL within {steps:,} steps, beside that of "
    "the direct head ([record]({folder}/record.json), `python studies/depth_heads.py`). A channel that is positive "
    "at no pixel has no gradient and does not come back; with one left, the four maps are functions of one number, "
    "with none they are constant. What the four are made of is never negative, so that one can have one sign at nearly "
    "all pixels: untrained, {rare} of {all} are positive at no more than {percent:g} % of them."
)


def page(folder: Path) -> str:
    """The whole page."""
    beside = folder.parent
    title = "# Depth from one image, images from elsewhere, attacked images"
    note = "<!-- written by python -m evidentia.reproduce.depth.page; edit that, not this -->"
    record = find_record(folder)
    if record is None:
        return "\n\n".join((title, note, MISSING)) + "\n"
    on = f"On {where(record)}"
    pairs = sum(record["data"][part] for part in ("train", "validation", "test"))
    sections = {
        "What it shows": ["\n".join(f"- {line}" for line in statements(record, beside))],
        "Table S1": [
            f"{on}; errors in 1/m, ± a standard error over trials; times are medians, of all models in one go, on CUDA "
            "of captured passes.",
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
        "Which blocks, and the white frame of NYU": _from(beside / "depth_unfamiliar", _unfamiliar),
        "The paper's head": _from(beside / "depth_heads", _heads),
        "Figures 6 and S6: attacked images": [
            *_table(f"{on}, means over trials. {ATTACKED}", results.attack_rows(record)),
            *_figures(folder, "6", "s6"),
        ],
        "Figures S4 and S5: single trials": _figures(folder, "s4", "s5"),
        "Figure S7: aleatoric deviations": _figures(folder, "s7"),
        "How the recipe was chosen": [
            *_from(beside / "depth_recipe", _recipe),
            *_from(beside / "depth_earlier", partial(_earlier, record)),
        ],
        "Training": _table(TRAINED, _training(record)),
        "Speed": _from(beside / "bench_depth", _speed),
        "Credits": _credits(record["data"]),
    }
    parts = [title, note, *_opening(record, folder.name)]
    parts += [part for heading, section in sections.items() if section for part in (f"## {heading}", *section)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(record: Record, folder: str) -> list[str]:
    data, recipe, environment = record["data"], record["plan"]["recipe"], record["environment"]
    settings, varied = recipe["settings"], {k: v for k, v in (recipe["augmentation"] or {}).items() if v}
    flags = (" --quick" if record["plan"]["quick"] else "") + ("" if data["synthetic"] else " --data DATA")
    groups, usual = record["plan"]["groups"], settings["learning_rate"]
    paper, rate = groups[PAPERS], groups["evidential"]["learning_rate"]
    slower = "" if rate == usual else f", evidential networks at {rate_of(rate)}"
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
        f"{rate_of(usual)}{slower} ({settings['schedule']}), {settings['precision']}; images varied by "
        + (", ".join(name if value is True else f"{name} {value}" for name, value in varied.items()) or "nothing")
        + f". Every {settings['evaluate_every']:,} steps the validation pairs may choose the weights, by "
        f"{recipe['select'].upper()} (least squares and the paper's settings: by RMSE). The paper's settings are Adam "
        f"at {rate_of(paper['learning_rate'])} ({paper['schedule']}), λ = 0.1, {paper['steps']:,} steps, its own "
        "head, images not varied. Network i of trial t has seed 1000 t + i.",
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


def _from(folder: Path, tell: Callable[[Record, str], list[str]]) -> list[str]:
    """What another program recorded beside this run; nothing if it has not run."""
    found = find_record(folder)
    return tell(found, folder.name) if found else []


def _recipe(record: Record, name: str) -> list[str]:
    """What studies/depth_recipe.py tried, as the validation pairs saw it."""
    rows: dict[tuple[Any, ...], list[Record]] = {}
    for row in record["rows"]:
        rows.setdefault(tuple(row[key] for key in ("candidate", "method", "steps", "cut")), []).append(row)
    tried = []
    for (candidate, method, steps, cut), found in rows.items():
        line = {"candidate": candidate, "method": method, "steps": steps, "pixels cut": cut, "networks": len(found)}
        tried.append(line | {s.upper(): results.spread(values_of(found, s), 3) for s in ("nll", "rmse")})
    return _table(TRIED.format(folder=name), tried)


def _earlier(record: Record, before: Record, name: str) -> list[str]:
    """The evidential networks at the rate of the others: which of the two the test pairs would have preferred."""
    models = [model for model in before["results"] if record["results"].get(model)]
    rows, scores = [], {}
    for when, each in (("earlier", before), ("now", record)):
        for model in models:
            found = np.array([network["best_score"] for trial in each["networks"][model] for network in trial], float)
            rate, trials = each["plan"]["groups"][model]["learning_rate"], each["results"][model]
            row = {"networks": model, "": when, "learning rate": rate_of(rate)}
            row["validation NLL"] = results.spread(found, 3)
            rows.append(row | {f"test {s.upper()}": results.spread(values_of(trials, s), 3) for s in ("rmse", "nll")})
            scores[when, model] = found.mean()
    if "evidential" not in models:
        return []
    better = scores["now", "evidential"] < scores["earlier", "evidential"]
    again = AGAIN.format("better" if better else "no better: three seeds are not enough to tell")
    return [*_table(CHANGED.format(folder=name), rows), again]


def _unfamiliar(record: Record, name: str) -> list[str]:
    """What studies/depth_unfamiliar.py found."""
    networks, frame = list(record["blocks"].values()), record["frame"]
    first: dict[str, Any] = {}
    for kind, words in (("logarithms", ""), ("features", ", without logarithms")):
        by_shift = {shift: np.mean([found[kind][shift] for found in networks], axis=0) for shift in networks[0][kind]}
        first |= by_shift if kind == "logarithms" else {}
        first[f"mean{words}"] = np.mean(list(by_shift.values()), axis=0)
    blocks = [
        {"shift": shift} | {f"first {n + 1}": number(value) for n, value in enumerate(values)}
        for shift, values in first.items()
    ]
    frames = [{"images": words} | {s: number(v) for s, v in scores.items()} for words, scores in frame.items()]
    rule = BLOCKS_RULE.format(folder=name, seeds=len(networks))
    return [*_table(rule, blocks), *_table(FRAME_RULE, frames), FRAME_END]


def _heads(record: Record, name: str) -> list[str]:
    """What studies/depth_heads.py found."""
    rows, rates = record["rows"], record["rates"]
    rare = np.array([row["before"] for row in rows]) <= RARE
    words = [HEADS.format(folder=name, steps=record["steps"], rare=rare.sum(), all=rare.size, percent=100 * RARE)]
    squeezed = [kind for kind in rates if kind != "direct"]
    for kind in squeezed:
        dead = np.array([row[kind]["alive"] for row in rows]) <= ALIVE
        words.append(
            f"Trained at {rate_of(rates[kind])}, {dead.sum()} are dead, {(dead & rare).sum()} of these among those, "
            f"and {starved(rows, kind)} of {len(rows)} networks have one live channel or none."
        )
    names = {kind: f"{kind.removesuffix(', slower')} at {rate_of(rates[kind])}" for kind in rates}
    table = [
        {"seed": row["seed"], "untrained": _shares(row["before"])}
        | {names[kind]: _shares(row[kind]["alive"]) for kind in squeezed}
        | {f"NLL, {name}": number(row[kind]["nll"]) for kind, name in names.items()}
        for row in rows
    ]
    return _table(" ".join(words), table)


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{share:.3f}" for share in values)


def _speed(record: Record, name: str) -> list[str]:
    """What benchmarks/bench_depth.py found."""
    rates, forward = record["images a second"], record["forward"]
    ours, (height, width) = rates["ours"], record["size"]
    steps = [
        {"training step": name, "images a second": f"{rate:,.0f}", "ours to it": f"{ours / rate:.2f}"}
        for name, rate in rates.items()
    ]
    words = (
        f"On {record['environment']['device']['name']}, {record['batch']} images of {width}×{height} a step, by "
        f"`python benchmarks/bench_depth.py` ([record]({name}/record.json)). The goals, at least {RATE:,} "
        f"images a second and {FASTER} times the plain float32 step, are {met(ours >= RATE)} and "
        f"{met(ours >= FASTER * rates['plain float32'])}."
    )
    passes = [{"forward pass": name, "evidential to plain": f"{ratio:.3f}"} for name, ratio in forward.items()]
    goal = f"An answer with both variances, the two networks in turn. The goal, at most {COST}, is "
    return [*_table(words, steps), *_table(f"{goal}{met(max(forward.values()) <= COST)}:", passes)]


def _credits(data: dict[str, Any]) -> list[str]:
    named = [f"{name} ({CREDITS[name]})" for name in (data["name"], data["outside"]) if name in CREDITS]
    return [f"Photographs in the figures: {', '.join(named)}. None comes with this library."] if named else []


def _training(record: Record) -> list[dict[str, Any]]:
    rows = []
    for group, trials in record["networks"].items():
        networks = [network for trial in trials for network in trial]
        best = [network["best_step"] for network in networks]
        seconds = float(np.median([network["seconds"] for network in networks]))
        told, scores = record["plan"]["groups"][group], np.array([n["best_score"] for n in networks], float)
        row = {"networks": group, "trained": len(networks), "seconds each": seconds}
        row |= {"learning rate": rate_of(told["learning_rate"]), "steps": f"{told['steps']:,}"}
        row |= {"best step": f"{min(best):,} to {max(best):,}", "its validation score": results.spread(scores, 3)}
        rows.append(row | {"diverged": sum(network["diverged"] for network in networks)})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, and where there are maps the tables and figures too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if (options.record / "maps").is_dir():
        results.write_results(read_record(options.record), options.record)
    write_text(options.out, page(options.record))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
