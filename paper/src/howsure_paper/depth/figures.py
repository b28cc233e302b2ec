"""The figures of a depth run, from its record and the maps that lie beside it; what is missing is left out."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from howsure_paper.arrays import Arrays, read_arrays
from howsure_paper.depth.plan import SHOWN_EPSILONS
from howsure_paper.depth.tables import number, signed
from howsure_paper.depth.trials import (
    Array,
    Trials,
    attack_values,
    data_name,
    shown_score,
    studied_models,
    trial_mean,
    trial_values,
)
from howsure_paper.figures import COLOURS, add_axes, import_matplotlib, legend, legend_below, new_figure, save
from howsure_paper.paper import DEPTH_CALIBRATION
from howsure_paper.protocol import Record

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure, SubFigure

__all__ = ["FIGURES", "MAPPED", "MAPS", "write_figures"]

Sides = tuple[Array, Array, float]  # entropies inside and outside, AUROC
FIGURES = ("4_maps", "4_cutoff", "4_calibration", "5", "6", "s4", "s5", "s6", "s7")
MAPS = "maps"  # folder with the maps of each studied model, beside the record
MAPPED = (  # the models whose maps Fig. 4 shows
    "evidential",
    "gaussian",
    "ensemble of likelihoods, 5",
    "dropout of likelihoods, 10",
    "ensemble, 5",
    "dropout, 10",
)
DISPARITY, ERROR, DEVIATION = "viridis", "magma", "cividis"
UNIT = "1/m"
LESS_TEST, LESS_CLEAN = (f"entropy less median of {images} images, nats" for images in ("test", "clean"))
SIDES = {"test images": COLOURS["epistemic"], "images from elsewhere": COLOURS["aleatoric"]}
# kind of curve → labels of the axes, and its two versions: key in the record → name
CURVES = {
    "cutoff": (
        ("confidence level (share dropped)", f"error of the rest, {UNIT}"),
        {"mae": "mean absolute error", "rmse": "RMSE"},
    ),
    "calibration": (
        ("expected share below quantile", "observed share"),
        {"authors": "authors' rule", "predictive": "predictive distribution"},
    ),
}


def write_figures(record: Record, out: Path) -> list[Path]:
    """Draw every figure that the record, and the maps beside it, have results for; return the paths."""
    if not studied_models(record):
        return []
    paths = _draw_maps(record, out)
    for kind, name in (("cutoff", "figure_s4"), ("calibration", "figure_s5")):
        paths += [*_draw_mean_curves(record, out, kind), *_draw_single_trials(record, out, kind, name)]
    for draw in (_draw_unfamiliar, _draw_attack, _draw_attacked_models, _draw_aleatoric):
        paths += draw(record, out)
    return paths


def _shown_score(trials: Trials) -> str:
    return shown_score(trials[0]["unfamiliar"])


def _pooled(trials: Trials, path: tuple[str | int, ...], zero: tuple[str | int, ...]) -> Array:
    """Return the finite values of all trials together, each trial's less the median of its values at ``zero``."""
    parts = [np.empty(0)]
    for trial in trials:
        values, at_zero = trial_values([trial], *path).ravel(), trial_values([trial], *zero).ravel()
        if np.isfinite(at_zero).any():
            parts.append(values[np.isfinite(values)] - np.median(at_zero[np.isfinite(at_zero)]))
    return np.concatenate(parts)


# Drawing --------------------------------------------------------------------------------------------------------------


def _style(name: str) -> dict[str, Any]:
    """Return the colour of the model's family and the line of its variant."""
    families = {"evidential": "epistemic", "ensemble": "total", "dropout": "aleatoric", "gaussian": "other"}
    family = next((f for f in families if name.startswith(f)), "gaussian")
    variant = "head" in name or (family in ("ensemble", "dropout") and "likelihoods" not in name)
    return {"color": COLOURS[families[family]], "ls": "--" if variant else ":" if "settings" in name else "-"}


def _finish(figure: "Figure", record: Record, out: Path, name: str, title: str) -> list[Path]:
    figure.suptitle(f"{title} · {data_name(record)}", fontsize=11)
    return save(figure, out, name)


def _set_labels(ax: Any, title: str, x: str = "", y: str = "") -> None:
    ax.set_title(title, fontsize=8)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)


def _figure_in_parts(heights: Sequence[float]) -> tuple["Figure", list[Any]]:
    """Return a wide figure, and its parts, which lie one under the other."""
    figure = import_matplotlib("matplotlib.figure").Figure(figsize=(11, sum(heights) + 0.4), layout="constrained")
    return figure, list(np.ravel(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)))


def _panels(part: "Figure | SubFigure", names: Sequence[str], x: str, y: str) -> list[Any]:
    """Return a panel for each model, four in a row, with equal limits and with labels at the edges."""
    columns = min(4, len(names))
    axes = add_axes(part, -(-len(names) // columns), columns, sharex=True, sharey=True)
    for k, ax in enumerate(axes.flat):
        ax.set_visible(k < len(names))
        lowest = k + columns >= len(names)  # of its column
        _set_labels(ax, names[k] if k < len(names) else "", x if lowest else "", "" if k % columns else y)
        ax.tick_params(labelbottom=lowest)
    return list(axes.flat[: len(names)])


def _panel_figure(names: Sequence[str], x: str, y: str, height: float = 2.4) -> tuple["Figure", list[Any]]:
    size = (max(2.7 * min(4, len(names)), 6.0), height * -(-len(names) // 4) + 0.8)
    figure = import_matplotlib("matplotlib.figure").Figure(figsize=size, layout="constrained")
    return figure, _panels(figure, names, x, y)


def _draw_picture(ax: Any, values: Any, colors: str | None = None, scale: "Normalize | None" = None) -> Any:
    """Draw an image, or a map on a scale; pixels without a value are grey."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    shades = import_matplotlib().colormaps[colors].with_extremes(bad=COLOURS["range"]) if colors else None
    return ax.imshow(values, cmap=shades, norm=scale, interpolation="nearest")


def _scale(*maps: Any, log: bool = False) -> "Normalize":
    """Return one scale of colours for all maps, up to the value that one pixel in a hundred exceeds."""
    colors = import_matplotlib("matplotlib.colors")
    values = np.concatenate([np.ravel(m) for m in maps])
    low, high = np.quantile(values[np.isfinite(values)], (0.01, 0.99)) if np.isfinite(values).any() else (0.0, 1.0)
    high = max(float(high), 1e-6)
    scale: Normalize = (
        colors.LogNorm(min(max(float(low), high / 100), high / 2), high) if log else colors.Normalize(0, high)
    )
    return scale


def _draw_colour_bar(part: Any, picture: Any, axes: Any, label: str, side: str = "right") -> None:
    logarithmic = isinstance(picture.norm, import_matplotlib("matplotlib.colors").LogNorm)
    options: dict[str, Any] = {"fraction": 0.02, "pad": 0.01} if side == "right" else {"fraction": 0.04, "pad": 0.02}
    if logarithmic:
        options |= {"ticks": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0], "format": "{x:g}"}
    extend = "both" if logarithmic else "max"
    bar = part.colorbar(picture, ax=list(np.ravel(axes)), location=side, extend=extend, **options)
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7)
    bar.set_label(label, fontsize=8)


def _draw_mean_line(ax: Any, x: Array, curves: Array, name: str, label: str) -> None:
    """Draw the mean over trials, and a band of ± a standard error where there are several."""
    mean = curves.mean(0)
    ax.plot(x, mean, lw=1.5, label=label, **_style(name))
    if len(curves) > 1:
        error = curves.std(0, ddof=1) / len(curves) ** 0.5
        ax.fill_between(x, mean - error, mean + error, color=_style(name)["color"], alpha=0.15, lw=0)


# Figures 4, S4 and S5 -------------------------------------------------------------------------------------------------


def _draw_maps(record: Record, out: Path) -> list[Path]:
    """Draw a few test images with each model's prediction, error and deviation."""
    shown = {name: maps for name in MAPPED if (maps := read_arrays(out / MAPS, name))}
    if not shown:
        return []
    first = next(iter(shown.values()))
    errors = {name: np.abs(maps["mean"] - first["truth"]) for name, maps in shown.items()}
    doubt = {name: maps.get("epistemic", maps["aleatoric"]) for name, maps in shown.items()}
    scales = (_scale(first["truth"]), _scale(*errors.values()), _scale(*doubt.values(), log=True))
    labels = (f"disparity, {UNIT}", f"|error|, {UNIT}", f"epistemic\ndeviation, {UNIT}")
    count, columns = len(first["image"]), 1 + len(shown)
    figure, axes = new_figure(3 * count, columns, (max(1.6 * columns + 0.9, 6.0), 4.3 * count + 0.5))
    figure.set_layout_engine("compressed")
    for k, block in enumerate(np.split(axes, count)):
        _draw_picture(block[0, 0], first["image"][k])
        _draw_picture(block[1, 0], first["truth"][k], DISPARITY, scales[0])
        for ax, title in zip(block[:, 0], (f"test image {k + 1}", "truth", ""), strict=True):
            _set_labels(ax, title)
        for column, (name, maps) in enumerate(shown.items(), start=1):
            each = ((maps["mean"], DISPARITY), (errors[name], ERROR), (doubt[name], DEVIATION))
            rows = zip(block[:, column], each, scales, strict=True)
            pictures = [_draw_picture(ax, values[k], colors, scale) for ax, (values, colors), scale in rows]
            _set_labels(block[0, column], textwrap.fill(name, 16))
            _set_labels(block[1, column], f"RMSE {np.sqrt(np.nanmean(errors[name][k] ** 2)):.3f}")
            _set_labels(block[2, column], "" if "epistemic" in maps else "aleatoric (no epistemic)")
        for row, picture, label in zip(block, pictures, labels, strict=True):
            _draw_colour_bar(figure, picture, row, label)
        block[2, 0].axis("off")
    return _finish(figure, record, out, "figure_4_maps", "Predictions, errors and deviations, first trial")


def _curve(trial: dict[str, Any], kind: str, version: str) -> tuple[Array, Array]:
    """Return x and y of one of the two versions of a curve."""
    if kind == "cutoff":
        share, error = (np.array(trial[kind][key], dtype=float) for key in ("share", version))
        return 1 - share, error
    observed = np.array(trial[kind][version]["observed"], dtype=float)
    return np.linspace(0, 1, len(observed)), observed


def _draw_mean_curves(record: Record, out: Path, kind: str) -> list[Path]:
    """Draw the two versions of a curve, one panel each, with all models."""
    (x, y), versions = CURVES[kind]
    figure, axes = new_figure(1, 2, (9, 4.6 if kind == "cutoff" else 6.2), sharex=True, sharey=True)
    for ax, (version, title) in zip(axes[0], versions.items(), strict=True):
        for name, trials in studied_models(record).items():
            positions, curves = zip(*(_curve(trial, kind, version) for trial in trials), strict=True)
            _draw_mean_line(ax, positions[0], np.stack(curves), name, _curve_label(kind, name, trials))
        if kind == "cutoff":
            base = record["mean of training"][version]
            ax.axhline(base, color=COLOURS["data"], lw=1, label="mean of training, all pixels")
        else:
            ax.plot([0, 1], [0, 1], color=COLOURS["truth"], lw=1)
            ax.set_aspect("equal")
        _set_labels(ax, title + (", as the authors" if version == "mae" else ""), x, y)
    rule = "mean distance from the diagonal: authors' rule (normal, epistemic deviation), predictive distribution"
    legend_below(figure, axes[0, 0], 3 if kind == "cutoff" else 2, None if kind == "cutoff" else rule)
    title = "Error without the pixels of largest epistemic deviation" if kind == "cutoff" else "Calibration"
    return _finish(figure, record, out, f"figure_4_{kind}", f"{title}, mean ± standard error over trials")


def _curve_label(kind: str, name: str, trials: Trials) -> str:
    if kind == "cutoff":
        return name + _ranked_by(trials)
    ours = [number(trial_mean(trials, kind, rule, "error")) for rule in ("authors", "predictive")]
    paper = f" (paper {DEPTH_CALIBRATION[name]})" if name in DEPTH_CALIBRATION else ""
    return f"{name}: {ours[0]}{paper}{_ranked_by(trials)}, {ours[1]}"


def _ranked_by(trials: Trials) -> str:
    """Return a note for models without an epistemic deviation, whose pixels are ranked by the aleatoric one."""
    return "" if _shown_score(trials) == "epistemic entropy" else " (by aleatoric)"


def _draw_single_trials(record: Record, out: Path, kind: str, name: str) -> list[Path]:
    """Draw both versions of a curve, a panel for each model and a colour for each trial."""
    models, (labels, versions) = studied_models(record), CURVES[kind]
    names = [f"{model}{_ranked_by(trials)}" for model, trials in models.items()]
    figure, axes = _panel_figure(names, *labels, 2.4 if kind == "cutoff" else 2.7)
    for ax, trials in zip(axes, models.values(), strict=True):
        for k, trial in enumerate(trials):
            shade = import_matplotlib().colormaps["viridis"](0.85 * k / max(len(trials) - 1, 1))
            for version, line in zip(versions, ("-", "--"), strict=True):
                ax.plot(*_curve(trial, kind, version), line, color=shade, lw=1.2)
        if kind == "calibration":
            ax.plot([0, 1], [0, 1], color=COLOURS["truth"], lw=0.8)
            ax.set_aspect("equal")
    for label, line in zip(versions.values(), ("-", "--"), strict=True):
        axes[0].plot([], [], line, color=COLOURS["data"], label=label)
    legend_below(figure, axes[0], 2)
    title = "Error against confidence" if kind == "cutoff" else "Calibration"
    return _finish(figure, record, out, name, f"{title}, a colour for each trial")


# Figure 5 -------------------------------------------------------------------------------------------------------------


def _draw_unfamiliar(record: Record, out: Path) -> list[Path]:
    """Draw the epistemic entropy of test images and of images from elsewhere, and some of these images."""
    path, models = ("unfamiliar", "epistemic entropy"), {}
    for name, trials in studied_models(record).items():
        inside, outside = (_pooled(trials, (*path, side), (*path, "inside")) for side in ("inside", "outside"))
        if len(inside) and len(outside):
            models[name] = inside, outside, float(trial_values(trials, *path, "auroc").mean())
    if not models:
        return []
    maps, elsewhere = read_arrays(out / MAPS, "evidential"), record["data"]["outside"]
    figure, parts = _figure_in_parts([2.3 * -(-len(models) // 4) + 0.4, 3.0] + ([2.7] if maps else []))
    _draw_entropy_cdfs(parts[0], models)
    _draw_entropy_boxes(parts[1], models)
    if maps:
        _draw_samples(parts[2], maps, elsewhere)
    return _finish(figure, record, out, "figure_5", f"Images from elsewhere ({elsewhere}), all trials together")


def _draw_entropy_cdfs(part: "SubFigure", models: dict[str, Sides]) -> None:
    names = [f"{name}\nAUROC {area:.2f}" for name, (_, _, area) in models.items()]
    axes = _panels(part, names, LESS_TEST, "share of images")
    for ax, (name, sides) in zip(axes, models.items(), strict=True):
        for values, label, line in zip(sides[:2], SIDES, ("-", "--"), strict=True):
            ax.ecdf(values, color=_style(name)["color"], ls=line, lw=1.5, label=label)
    legend_below(part, axes[0], 2)


def _draw_entropy_boxes(part: "SubFigure", models: dict[str, Sides]) -> None:
    left, right = add_axes(part, 1, 2, width_ratios=(2.4, 1))[0]
    name = "evidential" if "evidential" in models else next(iter(models))
    edges = np.histogram_bin_edges(np.concatenate(models[name][:2]), 20)
    style = {"showfliers": False, "patch_artist": True, "medianprops": {"color": COLOURS["truth"]}}
    for side, (label, color) in enumerate(SIDES.items()):
        positions = np.arange(len(models)) + 0.4 * side - 0.2
        entropies = [each[side] for each in models.values()]
        drawn = left.boxplot(entropies, positions=positions, widths=0.32, whis=(5, 95), **style)
        for box in drawn["boxes"]:
            box.set(facecolor=color, alpha=0.6)
        drawn["boxes"][0].set_label(label)
        right.hist(models[name][side], edges, density=True, color=color, alpha=0.6)
    left.set_xticks(range(len(models)), [textwrap.fill(model, 16) for model in models], fontsize=7)
    right.set_yticks([])
    right.locator_params(axis="x", nbins=5)
    legend(left)
    _set_labels(left, "quartiles; whiskers: 5 % to 95 %", "", LESS_TEST)
    _set_labels(right, f"{name}, AUROC {models[name][2]:.2f}", LESS_TEST, "density")


def _draw_samples(part: "SubFigure", maps: Arrays, elsewhere: str) -> None:
    count = len(maps["image"])
    axes, scale = add_axes(part, 2, 2 * count), _scale(maps["epistemic"], maps["outside_epistemic"])
    for k in range(2 * count):
        prefix = "" if k < count else "outside_"
        _draw_picture(axes[0, k], maps[f"{prefix}image"][k % count])
        _set_labels(axes[0, k], "test image" if k < count else elsewhere)
        picture = _draw_picture(axes[1, k], maps[f"{prefix}epistemic"][k % count], DEVIATION, scale)
    _draw_colour_bar(part, picture, axes, f"evidential: epistemic deviation, {UNIT}")


# Figures 6 and S6 -----------------------------------------------------------------------------------------------------


def _draw_attack(record: Record, out: Path) -> list[Path]:
    """Draw error and entropy against ε, and the evidential model's maps of an attacked image."""
    models, maps = studied_models(record), read_arrays(out / MAPS, "evidential")
    figure, parts = _figure_in_parts([4.3] + ([6.6] if maps else []))
    left, middle, right = add_axes(parts[0], 1, 3)[0]
    for name, trials in models.items():
        score, epsilons = _shown_score(trials), attack_values(trials, "epsilon")[0]
        errors, doubts = attack_values(trials, "rmse"), attack_values(trials, "scores", score, "mean")
        doubts = doubts - doubts[:, :1]
        more = signed(100 * (errors[:, -1].mean() / errors[:, 0].mean() - 1), 1, " %")
        label = f"{name}: RMSE {more}, {score} {signed(doubts[:, -1].mean(), 2)}"
        _draw_mean_line(left, epsilons, errors, name, label)
        _draw_mean_line(middle, epsilons, doubts, name, name)
        for ax in (left, middle):
            ax.set_xticks(epsilons[::2])
    if "evidential" in models:
        _draw_attacked_cdfs(right, models["evidential"])
        legend(right)
    right.locator_params(axis="x", nbins=5)
    _set_labels(left, "RMSE", "ε", UNIT)
    _set_labels(middle, "entropy of an image, change from ε = 0", "ε", "nats")
    _set_labels(right, "evidential, all trials together", LESS_CLEAN, "share of images")
    legend_below(parts[0], left, 2)
    if maps:
        _draw_attacked_maps(parts[1], maps)
    return _finish(figure, record, out, "figure_6", "Test images attacked along the sign of the gradient (FGSM)")


def _draw_attacked_cdfs(ax: Any, trials: Trials) -> None:
    """Draw the distribution of the entropies of all images at every other ε."""
    steps, drawn = trials[0]["attack"], ("scores", _shown_score(trials), "images")
    for k in range(0, len(steps), 2):
        values = _pooled(trials, ("attack", k, *drawn), ("attack", 0, *drawn))
        if len(values):
            color = import_matplotlib().colormaps["viridis"](0.9 * k / max(len(steps) - 1, 1))
            ax.ecdf(values, color=color, lw=1.5, label=f"ε = {steps[k]['epsilon']:g}")


def _draw_attacked_maps(part: "SubFigure", maps: Arrays) -> None:
    errors, doubt = np.abs(maps["attacked_mean"] - maps["truth"][0]), maps["attacked_epistemic"]
    axes = add_axes(part, len(errors), 4)
    columns = (
        ("prediction", maps["attacked_mean"], DISPARITY, _scale(maps["truth"])),
        ("absolute error, to the truth of the clean image", errors, ERROR, _scale(errors)),
        ("epistemic deviation", doubt, DEVIATION, _scale(doubt)),
    )
    for k, epsilon in enumerate(SHOWN_EPSILONS[: len(errors)]):
        _draw_picture(axes[k, 0], maps["attacked_image"][k])
        _set_labels(axes[k, 0], "" if k else "image", "", f"ε = {epsilon:g}")
    for column, (title, values, colors, scale) in enumerate(columns, start=1):
        pictures = [_draw_picture(ax, each, colors, scale) for ax, each in zip(axes[:, column], values, strict=True)]
        _set_labels(axes[0, column], title)
        _draw_colour_bar(part, pictures[0], axes[:, column], UNIT, "bottom")


def _draw_attacked_models(record: Record, out: Path) -> list[Path]:
    models = studied_models(record)
    names = [f"{name}\n{_shown_score(trials)}" for name, trials in models.items()]
    figure, axes = _panel_figure(names, LESS_CLEAN, "share of images")
    for ax, trials in zip(axes, models.values(), strict=True):
        _draw_attacked_cdfs(ax, trials)
    legend_below(figure, axes[0], 5)
    return _finish(figure, record, out, "figure_s6", "Entropy of attacked images, all trials together")


# Figure S7 ------------------------------------------------------------------------------------------------------------


def _draw_aleatoric(record: Record, out: Path) -> list[Path]:
    """Draw the aleatoric deviations of the evidential model and of the Gaussian one for the same images."""
    evidential, gaussian = (read_arrays(out / MAPS, name) for name in ("evidential", "gaussian"))
    if evidential is None or gaussian is None:
        return []
    ours, theirs = evidential["aleatoric"], gaussian["aleatoric"]
    figure, axes = new_figure(3, len(ours), (2.6 * len(ours) + 1.0, 6.9))
    figure.set_layout_engine("compressed")
    scale = _scale(ours, theirs)
    for k, column in enumerate(axes.T):
        _draw_picture(column[0], evidential["image"][k])
        _draw_picture(column[1], ours[k], DEVIATION, scale)
        picture = _draw_picture(column[2], theirs[k], DEVIATION, scale)
        if ours[k].std() > 0 and theirs[k].std() > 0:
            correlation = np.corrcoef(ours[k].flat, theirs[k].flat)[0, 1]
            _set_labels(column[2], "", f"correlation {number(correlation, 2)}")
    for ax, label in zip(axes[:, 0], ("image", "evidential", "gaussian likelihood"), strict=True):
        ax.set_ylabel(label, fontsize=8)
    _draw_colour_bar(figure, picture, axes, f"aleatoric deviation, {UNIT}")
    return _finish(figure, record, out, "figure_s7", "Aleatoric deviations, first trial")
