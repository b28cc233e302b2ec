"""What a depth run shows, in sentences that follow from its record: what is reached, what is missed, who is better."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidentia.record import find_record
from evidentia.reproduce.depth import tables as results
from evidentia.reproduce.depth.figures import mean_of, signed, studied, values_of
from evidentia.reproduce.paper import TABLE_S1

__all__ = ["ALIVE", "PAPERS", "alive", "met", "number", "rate_of", "starved", "statements"]

Record = dict[str, Any]
PAPERS = "evidential, paper's settings"
ALIVE = 1e-3  # share of pixels from which on a channel is not called dead
SKILL, NLL, FEATURES = 0.15, -0.38, 0.95  # goals: share below the mean of training, likelihood, AUROC of the features


def statements(record: Record, beside: Path) -> list[str]:
    """What was reached and what was not, in words."""
    if not record["results"].get("evidential"):
        return ["The evidential model has not been run yet."]
    lines = [*_errors(record), *_better(record), *_cost(record)]
    if "evidential" in studied(record):
        lines += [*_outside(record, beside / "depth_unfamiliar"), _attacked(record)]
    return [*lines, _head(record) + _heads(beside / "depth_heads")]


def _errors(record: Record) -> list[str]:
    trials, base = record["results"]["evidential"], record["mean of training"]["rmse"]
    rmse, nll = values_of(trials, "rmse").mean(), values_of(trials, "nll").mean()
    below = 1 - rmse / base
    return [
        f"**Skill.** The default recipe's test RMSE, {number(rmse)}, is {abs(100 * below):.1f} % "
        f"{'below' if below >= 0 else 'above'} that of the per-pixel mean of the training maps, {number(base)}. The "
        f"goal, at least {100 * SKILL:.0f} % below, is {met(below >= SKILL)}.",
        f"**Likelihood.** Its test NLL is {number(nll)}. The goal, at most {number(NLL, 2)}, is {met(nll <= NLL)}; "
        f"the paper has {number(TABLE_S1['evidential'].nll)} on its own data.",
        *_at_papers_settings(record),
    ]


def _at_papers_settings(record: Record) -> list[str]:
    base = record["mean of training"]["rmse"]
    if not (trials := record["results"].get(PAPERS)):
        return []
    rmse, nll = values_of(trials, "rmse").mean(), values_of(trials, "nll").mean()
    steps = record["plan"]["groups"][PAPERS]["steps"]
    best = ", ".join(f"{network['best_step']:,}" for trial in record["networks"][PAPERS] for network in trial)
    return [
        f"**The paper's settings** give RMSE {number(rmse)} ({signed(100 * (rmse / base - 1), 1, ' %')} to the mean "
        f"of the training maps) and NLL {number(nll)} here; the best step is {best} of {steps:,}."
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
                f"**{words}**, means over trials: evidential {number(ours)}, best of the others {number(least)} "
                f"({best}); {better} of {len(means)} others do better."
            )
    return lines


def _cost(record: Record) -> list[str]:
    """The time of an evidential answer to that of the plain network's, and others' to it."""
    seconds = record["seconds"]
    if not {"evidential", "plain"} <= set(seconds):
        return []
    counts = sorted(seconds["evidential"], key=int, reverse=True)
    ratios = {n: seconds["evidential"][n] / seconds["plain"][n] for n in counts}
    words = [f"{ratio:.2f} for {n} image{'s' if int(n) > 1 else ''}" for n, ratio in ratios.items()]
    most, several = counts[0], [name for name in ("ensemble, 5", "dropout, 10") if name in seconds]
    others = [f"{name}: {seconds[name][most] / seconds['evidential'][most]:.1f}" for name in several]
    return [
        f"**Cost.** Mean and variance of every pixel, captured but not compiled: evidential to plain U-Net "
        f"{', '.join(words)}" + (f"; to evidential, {most} images: {'; '.join(others)}." if others else ".")
    ]


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
        f"{(mine > 0.5).sum()} of {len(mine)} trials. On par: its mean, {number(mine.mean(), 2)}, is at least that of "
        f"{sum(mine.mean() >= area for area in others.values())} of {len(others)} baselines"
        + (f" ({'; '.join(f'{name}: {number(area, 2)}' for name, area in others.items())})." if others else ".")
    ]
    lines += _by_recipe(models)
    for score in (score for score in scores if score.startswith("feature distance")):
        verdict = met(bool(scores[score].mean() >= FEATURES))
        line = f"**{score.capitalize()}**, AUROC: {results.spread(scores[score], 3)}."
        lines.append(f"{line} The goal, a mean of at least {FEATURES}, is {verdict}.{_with_frame(unfamiliar, score)}")
    return lines


def _by_recipe(models: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The score that changes most from one evidential model to the next."""
    ours = {name: trials for name, trials in models.items() if name.startswith("evidential")}
    if len(ours) < 2:
        return []
    scores = [score for score in models["evidential"][0]["unfamiliar"] if not score.startswith("feature")]
    areas = {s: {n: values_of(trials, "unfamiliar", s, "auroc") for n, trials in ours.items()} for s in scores}
    widest = max(scores, key=lambda s: float(np.nan_to_num(np.ptp([area.mean() for area in areas[s].values()]))))
    told = "; ".join(f"{name}: {results.spread(area)}" for name, area in areas[widest].items())
    return [
        f"**Recipe, not only method**: from one evidential model to the next, «{widest}» changes most, AUROC {told}."
    ]


def _with_frame(folder: Path, score: str) -> str:
    """What the score would have been had the frame been left on."""
    if not (record := find_record(folder)):
        return ""
    (as_it_is, *others, alone) = (scores[score] for scores in record["frame"].values())
    return (
        f" With the white frame of NYU left on, a network has {number(as_it_is)}; but also {number(alone)} for rooms "
        f"without it, and {' or '.join(map(number, others))} once both sides have a frame or neither has (below)."
    )


def _attacked(record: Record) -> str:
    base, *rows = results.attack_rows(record)
    (mine,) = (row for row in rows if row["model"] == "evidential")
    small, far = (column.removeprefix("rises by, ") for column in mine if column.startswith("rises by, "))
    trials = studied(record)["evidential"]
    before, after = (values_of(trials, "attack", k, "scores", mine["score"], "mean") for k in (0, -1))
    rising = sum(row[f"entropy rises by, {far}"].startswith("+") for row in rows)
    told = f", AUROC {number(area, 2)}" if (area := mine[f"AUROC, {far}"]) is not None else ""
    return (
        f"**Attack.** At {small} the evidential RMSE has changed by {mine[f'rises by, {small}']}, its mean "
        f"{mine['score']} by {mine[f'entropy rises by, {small}']} nats; at {far} by {mine[f'rises by, {far}']}, to "
        f"{number(mine[f'RMSE, {far}'])} (mean of the training maps: {number(base['RMSE, ε = 0'])}), and "
        f"{mine[f'entropy rises by, {far}']} nats (up in {(after > before).sum()} of {len(trials)} trials{told}). In "
        f"the paper uncertainty rises steadily with ε. At {far} the mean entropy is up for {rising} of {len(rows)} "
        "models."
    )


def _head(record: Record) -> str:
    """Whether the paper's head is worse, and whether its four maps follow one number."""
    ours, theirs = (record["results"].get(name) for name in ("evidential", "evidential, paper's head"))
    if not theirs:
        return "**The paper's head** has not been run yet."
    means = {s.upper(): (values_of(theirs, s).mean(), values_of(ours, s).mean()) for s in ("rmse", "nll")}
    worse = " and ".join(score for score, (a, b) in means.items() if not round(a, 3) <= round(b, 3))
    words = ", ".join(f"{score} {number(a)} against {number(b)}" for score, (a, b) in means.items())
    same = [f"{sum(map(_one_number, trials))} of {len(trials)}" for trials in (theirs, ours)]
    living = [str(alive(t["alive channels"])) for t in theirs if "alive channels" in t]
    return (
        f"**The paper's head** (32 channels through 4 with a ReLU) against the direct one: {words}: "
        f"{f'worse in {worse}' if worse else 'not worse'}. All scores have the same AUROC, as if the four maps "
        f"followed one number, in {same[0]} trials (direct: {same[1]})."
        + (f" Of its four channels {', '.join(living)} (trial by trial) are not dead on test images." if living else "")
    )


def _heads(folder: Path) -> str:
    """What studies/depth_heads.py found of more networks."""
    if not (record := find_record(folder)):
        return ""
    rows, rates = record["rows"], record["rates"]
    kinds = [kind for kind in rates if kind != "direct"]
    told = " and ".join(f"in {starved(rows, kind)} trained at {rate_of(rates[kind])}" for kind in kinds)
    means = {kind: float(np.mean([row[kind]["nll"] for row in rows])) for kind in rates}
    return (
        f" Of {len(rows)} more seeds (below) one live channel or none is left {told}; mean validation NLL "
        f"{' and '.join(number(means[kind]) for kind in kinds)}, of the direct head {number(means['direct'])}."
    )


def starved(rows: Sequence[Record], kind: str) -> int:
    """In how many networks one channel lives, or none."""
    return sum(alive(row[kind]["alive"]) <= 1 for row in rows)


def alive(shares: Sequence[float]) -> int:
    """How many channels are positive at more than hardly any pixel."""
    return sum(share > ALIVE for share in shares)


def _one_number(trial: dict[str, Any]) -> bool:
    areas = [v["auroc"] for name, v in trial.get("unfamiliar", {}).items() if not name.startswith("feature")]
    return len(areas) > 1 and max(areas) - min(areas) < 0.005


def number(value: float, digits: int = 3) -> str:
    """With a true minus."""
    return signed(value, digits, plus=False)


def rate_of(value: float) -> str:
    """A learning rate: 0.001, and 5e-5 rather than 5e-05."""
    return f"{value:g}".replace("e-0", "e-")


def met(reached: bool) -> str:
    """Whether a goal is, as a word that is hard to overlook if not."""
    return "reached" if reached else "**missed**"
