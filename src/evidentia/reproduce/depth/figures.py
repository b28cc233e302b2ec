"""The figures of a depth run, from its record and the maps that lie beside it; what is missing is left out."""

import functools
import operator
import re
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from evidentia.errors import InputError
from evidentia.report.figures import COLOURS, legend, new_figure, save
from evidentia.reproduce.depth.scores import doubt_of
from evidentia.reproduce.paper import DEPTH_CALIBRATION

__all__ = [
    "DRAWN_EPSILONS",
    "against",
    "drawn_score",
    "file_name",
    "maps_file",
    "mean_of",
    "signed",
    "studied",
    "values_of",
    "where",
    "write_figures",
]

Array = NDArray[np.float64]
Trials = list[dict[str, Any]]
Sides = tuple[Array, Array, float]  # entropies inside and outside, AUROC
MAPPED = (
    "evidential",
    "gaussian",
    "ensemble of likelihoods, 5",
    "dropout of likelihoods, 10",
    "ensemble, 5",
    "dropout, 10",
)
DRAWN_EPSILONS = (0.0, 0.02, 0.04)  # of the attacked images among the maps
DISPARITY, ERROR, DEVIATION = "viridis", "magma", "cividis"
UNIT = "1/m"
LESS_TEST, LESS_CLEAN = (f"entropy less median of {images} images, nats" for images in ("test", "clean"))
SIDES = {"test images": COLOURS["epistemic"], "images from elsewhere": COLOURS["aleatoric"]}
# kind → labels of the axes, and what is drawn in two ways
CURVES = {
    "cutoff": (("confidence level (share dropped)", f"error of the rest, {UNIT}"), ("mean absolute error", "RMSE")),
    "calibration": (("expected share below quantile", "observed share"), ("authors' rule", "predictive distribution")),
}


def write_figures(record: dict[str, Any], out: Path) -> list[Path]:
    """All that can be drawn from what is there."""
    if not studied(record):
        return []
    paths = _maps(record, out)
    for kind, name in (("cutoff", "figure_s4"), ("calibration", "figure_s5")):
        paths += [*_mean_curves(record, out, kind), *_single_trials(record, out, kind, name)]
    return [p for draw in (_unfamiliar, _attack, _attacked_models, _aleatoric) for p in draw(record, out)] + paths


# Reading a record -----------------------------------------------------------------------------------------------------


def where(record: dict[str, Any]) -> str:
    """What the images are; synthetic rooms are always called so."""
    return "synthetic rooms" if record["data"]["synthetic"] else str(record["data"]["name"])


def studied(record: dict[str, Any]) -> dict[str, Trials]:
    """The models that were looked at from every side; of the others there are only errors."""
    return {name: trials for name, trials in record["results"].items() if trials and "cutoff" in trials[0]}


def drawn_score(trials: Trials) -> str:
    """Which of a model's scores the figures show."""
    return doubt_of(trials[0]["unfamiliar"])


def values_of(trials: Trials, *path: str | int) -> Array:
    """What is at the end of a path of keys, for each trial that has it; NaN where it was not finite."""
    found = []
    for trial in trials:
        try:
            found.append(functools.reduce(operator.getitem, path, trial))  # type: ignore[arg-type]
        except (KeyError, IndexError):
            continue
    return np.array(found, dtype=float)


def against(trials: Trials, *path: str | int) -> Array:
    """What the attack made of a value, trials × ε."""
    return np.stack([values_of(trial["attack"], *path) for trial in trials])


def mean_of(trials: Trials, *path: str | int) -> float | None:
    """Over the trials that have it; None if none has."""
    values = values_of(trials, *path)
    return float(values.mean()) if len(values) else None


def signed(value: float | None, digits: int, unit: str = "", plus: bool = True) -> str:
    """With a true minus and a unit, and unless told otherwise with a plus."""
    if value is None or not np.isfinite(value):
        return "–" if value is None else "diverged"
    return f"{round(value, digits) + 0.0:{'+' if plus else ''}.{digits}f}{unit}".replace("-", "−")


def file_name(name: str) -> str:
    """A model's or group's name as part of a path."""
    return re.sub(r"[\W_]+", "_", name)


def maps_file(name: str) -> str:
    """Where the maps of a model lie."""
    return f"{file_name(name)}.npz"


def _maps_of(out: Path, name: str) -> dict[str, Any] | None:
    path = out / "maps" / maps_file(name)
    if not path.exists():
        return None
    try:
        with np.load(path) as file:
            maps = {key: file[key] for key in file.files}
    except (ValueError, LookupError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}); delete it to draw without it") from error
    return {key: m.astype(np.float32) if m.dtype == np.float16 else m for key, m in maps.items()}


def _pooled(trials: Trials, path: tuple[str | int, ...], zero: tuple[str | int, ...]) -> Array:
    """The finite values of all trials together, each trial's less the median of its values at ``zero``."""
    parts = [np.empty(0)]
    for trial in trials:
        values, at_zero = values_of([trial], *path).ravel(), values_of([trial], *zero).ravel()
        if np.isfinite(at_zero).any():
            parts.append(values[np.isfinite(values)] - np.median(at_zero[np.isfinite(at_zero)]))
    return np.concatenate(parts)


# Drawing --------------------------------------------------------------------------------------------------------------


def _style(name: str) -> dict[str, Any]:
    """A colour for each family of models, and another line for its variants."""
    families = {"evidential": "epistemic", "ensemble": "total", "dropout": "aleatoric", "gaussian": "other"}
    family = next((f for f in families if name.startswith(f)), "gaussian")
    variant = "head" in name or (family in ("ensemble", "dropout") and "likelihoods" not in name)
    return {"color": COLOURS[families[family]], "ls": "--" if variant else ":" if "settings" in name else "-"}


def _finish(figure: Figure, record: dict[str, Any], out: Path, name: str, title: str) -> list[Path]:
    figure.suptitle(f"{title} · {where(record)}", fontsize=11)
    return save(figure, out, name)


def _label(ax: Any, title: str, x: str = "", y: str = "") -> None:
    ax.set_title(title, fontsize=8)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)


def _parts(heights: Sequence[float]) -> tuple[Figure, list[Any]]:
    """A wide figure in several parts, one under the other."""
    figure = Figure(figsize=(11, sum(heights) + 0.4), layout="constrained")
    return figure, list(np.ravel(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)))


def _axes(part: Figure | SubFigure, rows: int, columns: int, **options: Any) -> Any:
    axes = part.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return axes


def _panels(part: Figure | SubFigure, names: Sequence[str], x: str, y: str) -> list[Any]:
    """A panel for each model, four in a row, with the same limits and with labels at the edges."""
    columns = min(4, len(names))
    axes = _axes(part, -(-len(names) // columns), columns, sharex=True, sharey=True)
    for k, ax in enumerate(axes.flat):
        ax.set_visible(k < len(names))
        lowest = k + columns >= len(names)  # of its column
        _label(ax, names[k] if k < len(names) else "", x if lowest else "", "" if k % columns else y)
        ax.tick_params(labelbottom=lowest)
    return list(axes.flat[: len(names)])


def _panel_figure(names: Sequence[str], x: str, y: str, height: float = 2.4) -> tuple[Figure, list[Any]]:
    size = (max(2.7 * min(4, len(names)), 6.0), height * -(-len(names) // 4) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    return figure, _panels(figure, names, x, y)


def _legend_below(part: Any, ax: Any, columns: int, title: str | None = None) -> None:
    handles, labels = ax.get_legend_handles_labels()
    options = {"title": title, "title_fontsize": 8, "frameon": False, "fontsize": 8}
    part.legend(handles, labels, loc="outside lower center", ncols=columns, **options)


def _picture(ax: Any, values: Any, colours: str | None = None, scale: Normalize | None = None) -> Any:
    """An image, or a map on a scale; what is not known is grey."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    shades = mpl.colormaps[colours].with_extremes(bad=COLOURS["range"]) if colours else None
    return ax.imshow(values, cmap=shades, norm=scale, interpolation="nearest")


def _scale(*maps: Any, log: bool = False) -> Normalize:
    """One scale for all of them, up to what one pixel in a hundred exceeds."""
    values = np.concatenate([np.ravel(m) for m in maps])
    low, high = np.quantile(values[np.isfinite(values)], (0.01, 0.99)) if np.isfinite(values).any() else (0.0, 1.0)
    high = max(float(high), 1e-6)
    return LogNorm(min(max(float(low), high / 100), high / 2), high) if log else Normalize(0, high)


def _bar(part: Any, picture: Any, axes: Any, label: str, place: str = "right") -> None:
    options: dict[str, Any] = {"fraction": 0.02, "pad": 0.01} if place == "right" else {"fraction": 0.04, "pad": 0.02}
    if isinstance(picture.norm, LogNorm):
        options |= {"ticks": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0], "format": "{x:g}"}
    extend = "both" if isinstance(picture.norm, LogNorm) else "max"
    bar = part.colorbar(picture, ax=list(np.ravel(axes)), location=place, extend=extend, **options)
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=7)
    bar.set_label(label, fontsize=8)


def _mean_line(ax: Any, x: Array, curves: Array, name: str, label: str) -> None:
    """The mean over trials, and a band of ± a standard error where there are several."""
    mean = curves.mean(0)
    ax.plot(x, mean, lw=1.5, label=label, **_style(name))
    if len(curves) > 1:
        error = curves.std(0, ddof=1) / len(curves) ** 0.5
        ax.fill_between(x, mean - error, mean + error, color=_style(name)["color"], alpha=0.15, lw=0)


# Figures 4, S4 and S5 -------------------------------------------------------------------------------------------------


def _maps(record: dict[str, Any], out: Path) -> list[Path]:
    """Some test images: what each model predicts, how far it is off, and how doubtful it is."""
    shown = {name: maps for name in MAPPED if (maps := _maps_of(out, name))}
    if not shown:
        return []
    first = next(iter(shown.values()))
    wrong = {name: np.abs(maps["mean"] - first["truth"]) for name, maps in shown.items()}
    doubt = {name: maps.get("epistemic", maps["aleatoric"]) for name, maps in shown.items()}
    scales = (_scale(first["truth"]), _scale(*wrong.values()), _scale(*doubt.values(), log=True))
    labels = (f"disparity, {UNIT}", f"|error|, {UNIT}", f"epistemic\ndeviation, {UNIT}")
    count, columns = len(first["image"]), 1 + len(shown)
    figure, axes = new_figure(3 * count, columns, (max(1.6 * columns + 0.9, 6.0), 4.3 * count + 0.5))
    figure.set_layout_engine("compressed")
    for k, block in enumerate(np.split(axes, count)):
        _picture(block[0, 0], first["image"][k])
        _picture(block[1, 0], first["truth"][k], DISPARITY, scales[0])
        for ax, title in zip(block[:, 0], (f"test image {k + 1}", "truth", ""), strict=True):
            _label(ax, title)
        for column, (name, maps) in enumerate(shown.items(), start=1):
            each = ((maps["mean"], DISPARITY), (wrong[name], ERROR), (doubt[name], DEVIATION))
            rows = zip(block[:, column], each, scales, strict=True)
            pictures = [_picture(ax, values[k], colours, scale) for ax, (values, colours), scale in rows]
            _label(block[0, column], textwrap.fill(name, 16))
            _label(block[1, column], f"RMSE {np.sqrt(np.nanmean(wrong[name][k] ** 2)):.3f}")
            _label(block[2, column], "" if "epistemic" in maps else "aleatoric (no epistemic)")
        for row, picture, label in zip(block, pictures, labels, strict=True):
            _bar(figure, picture, row, label)
        block[2, 0].axis("off")
    return _finish(figure, record, out, "figure_4_maps", "Predictions, errors and deviations, first trial")


def _curve(trial: dict[str, Any], kind: str, way: int) -> tuple[Array, Array]:
    if kind == "cutoff":
        share, error = (np.array(trial[kind][key], dtype=float) for key in ("share", ("mae", "rmse")[way]))
        return 1 - share, error
    observed = np.array(trial[kind][("authors", "predictive")[way]]["observed"], dtype=float)
    return np.linspace(0, 1, len(observed)), observed


def _mean_curves(record: dict[str, Any], out: Path, kind: str) -> list[Path]:
    """Two panels with all models: errors of what is left, or calibration by the authors' rule and by the predictive."""
    (x, y), ways = CURVES[kind]
    figure, axes = new_figure(1, 2, (9, 4.6 if kind == "cutoff" else 6.2), sharex=True, sharey=True)
    for way, ax in enumerate(axes[0]):
        for name, trials in studied(record).items():
            places, curves = zip(*(_curve(trial, kind, way) for trial in trials), strict=True)
            _mean_line(ax, places[0], np.stack(curves), name, _curve_label(kind, name, trials))
        if kind == "cutoff":
            base = record["mean of training"][("mae", "rmse")[way]]
            ax.axhline(base, color=COLOURS["data"], lw=1, label="mean of training, all pixels")
        else:
            ax.plot([0, 1], [0, 1], color=COLOURS["truth"], lw=1)
            ax.set_aspect("equal")
        _label(ax, ways[way] + (", as the authors" if ways[way] == "mean absolute error" else ""), x, y)
    words = "mean distance from the diagonal: authors' rule (normal, epistemic deviation), predictive distribution"
    _legend_below(figure, axes[0, 0], 3 if kind == "cutoff" else 2, None if kind == "cutoff" else words)
    title = "Error without the pixels of largest epistemic deviation" if kind == "cutoff" else "Calibration"
    return _finish(figure, record, out, f"figure_4_{kind}", f"{title}, mean ± standard error over trials")


def _curve_label(kind: str, name: str, trials: Trials) -> str:
    if kind == "cutoff":
        return name + _by(trials)
    ours = [signed(mean_of(trials, kind, rule, "error"), 3, plus=False) for rule in ("authors", "predictive")]
    paper = f" (paper {DEPTH_CALIBRATION[name]})" if name in DEPTH_CALIBRATION else ""
    return f"{name}: {ours[0]}{paper}{_by(trials)}, {ours[1]}"


def _by(trials: Trials) -> str:
    return "" if drawn_score(trials) == "epistemic entropy" else " (by aleatoric)"


def _single_trials(record: dict[str, Any], out: Path, kind: str, name: str) -> list[Path]:
    """The same curves, a panel for each model and a colour for each trial."""
    models, (labels, ways) = studied(record), CURVES[kind]
    names = [f"{model}{_by(trials)}" for model, trials in models.items()]
    figure, axes = _panel_figure(names, *labels, 2.4 if kind == "cutoff" else 2.7)
    for ax, trials in zip(axes, models.values(), strict=True):
        for k, trial in enumerate(trials):
            for way, line in enumerate(("-", "--")):
                shade = mpl.colormaps["viridis"](0.85 * k / max(len(trials) - 1, 1))
                ax.plot(*_curve(trial, kind, way), line, color=shade, lw=1.2)
        if kind == "calibration":
            ax.plot([0, 1], [0, 1], color=COLOURS["truth"], lw=0.8)
            ax.set_aspect("equal")
    for line, label in zip(("-", "--"), ways, strict=True):
        axes[0].plot([], [], line, color=COLOURS["data"], label=label)
    _legend_below(figure, axes[0], 2)
    title = "Error against confidence" if kind == "cutoff" else "Calibration"
    return _finish(figure, record, out, name, f"{title}, a colour for each trial")


# Figure 5 -------------------------------------------------------------------------------------------------------------


def _unfamiliar(record: dict[str, Any], out: Path) -> list[Path]:
    """Epistemic entropy of test images and of images from elsewhere, and what they look like."""
    path, models = ("unfamiliar", "epistemic entropy"), {}
    for name, trials in studied(record).items():
        inside, outside = (_pooled(trials, (*path, side), (*path, "inside")) for side in ("inside", "outside"))
        if len(inside) and len(outside):
            models[name] = inside, outside, float(values_of(trials, *path, "auroc").mean())
    if not models:
        return []
    maps, elsewhere = _maps_of(out, "evidential"), record["data"]["outside"]
    figure, parts = _parts([2.3 * -(-len(models) // 4) + 0.4, 3.0] + ([2.7] if maps else []))
    _entropy_cdfs(parts[0], models)
    _entropy_boxes(parts[1], models)
    if maps:
        _samples(parts[2], maps, elsewhere)
    return _finish(figure, record, out, "figure_5", f"Images from elsewhere ({elsewhere}), all trials together")


def _entropy_cdfs(part: SubFigure, models: dict[str, Sides]) -> None:
    names = [f"{name}\nAUROC {area:.2f}" for name, (_, _, area) in models.items()]
    axes = _panels(part, names, LESS_TEST, "share of images")
    for ax, (name, sides) in zip(axes, models.items(), strict=True):
        for values, label, line in zip(sides[:2], SIDES, ("-", "--"), strict=True):
            ax.ecdf(values, color=_style(name)["color"], ls=line, lw=1.5, label=label)
    _legend_below(part, axes[0], 2)


def _entropy_boxes(part: SubFigure, models: dict[str, Sides]) -> None:
    left, right = _axes(part, 1, 2, width_ratios=(2.4, 1))[0]
    name = "evidential" if "evidential" in models else next(iter(models))
    edges = np.histogram_bin_edges(np.concatenate(models[name][:2]), 20)
    look = {"showfliers": False, "patch_artist": True, "medianprops": {"color": COLOURS["truth"]}}
    for side, (label, colour) in enumerate(SIDES.items()):
        places = np.arange(len(models)) + 0.4 * side - 0.2
        drawn = left.boxplot([m[side] for m in models.values()], positions=places, widths=0.32, whis=(5, 95), **look)
        for box in drawn["boxes"]:
            box.set(facecolor=colour, alpha=0.6)
        drawn["boxes"][0].set_label(label)
        right.hist(models[name][side], edges, density=True, color=colour, alpha=0.6)
    left.set_xticks(range(len(models)), [textwrap.fill(model, 16) for model in models], fontsize=7)
    right.set_yticks([])
    right.locator_params(axis="x", nbins=5)
    legend(left)
    _label(left, "quartiles; whiskers: 5 % to 95 %", "", LESS_TEST)
    _label(right, f"{name}, AUROC {models[name][2]:.2f}", LESS_TEST, "density")


def _samples(part: SubFigure, maps: dict[str, Any], elsewhere: str) -> None:
    count = len(maps["image"])
    axes, scale = _axes(part, 2, 2 * count), _scale(maps["epistemic"], maps["outside_epistemic"])
    for k in range(2 * count):
        prefix = "" if k < count else "outside_"
        _picture(axes[0, k], maps[f"{prefix}image"][k % count])
        _label(axes[0, k], "test image" if k < count else elsewhere)
        picture = _picture(axes[1, k], maps[f"{prefix}epistemic"][k % count], DEVIATION, scale)
    _bar(part, picture, axes, f"evidential: epistemic deviation, {UNIT}")


# Figures 6 and S6 -----------------------------------------------------------------------------------------------------


def _attack(record: dict[str, Any], out: Path) -> list[Path]:
    """Error and entropy against ε, and what the evidential model makes of an attacked image."""
    models, maps = studied(record), _maps_of(out, "evidential")
    figure, parts = _parts([4.3] + ([6.6] if maps else []))
    left, middle, right = _axes(parts[0], 1, 3)[0]
    for name, trials in models.items():
        score, epsilons = drawn_score(trials), against(trials, "epsilon")[0]
        errors, doubts = against(trials, "rmse"), against(trials, "scores", score, "mean")
        doubts = doubts - doubts[:, :1]
        more = signed(100 * (errors[:, -1].mean() / errors[:, 0].mean() - 1), 1, " %")
        label = f"{name}: RMSE {more}, {score} {signed(doubts[:, -1].mean(), 2)}"
        _mean_line(left, epsilons, errors, name, label)
        _mean_line(middle, epsilons, doubts, name, name)
        for ax in (left, middle):
            ax.set_xticks(epsilons[::2])
    if "evidential" in models:
        _attacked_cdfs(right, models["evidential"])
        legend(right)
    right.locator_params(axis="x", nbins=5)
    _label(left, "RMSE", "ε", UNIT)
    _label(middle, "entropy of an image, change from ε = 0", "ε", "nats")
    _label(right, "evidential, all trials together", LESS_CLEAN, "share of images")
    _legend_below(parts[0], left, 2)
    if maps:
        _attacked_maps(parts[1], maps)
    return _finish(figure, record, out, "figure_6", "Test images attacked along the sign of the gradient (FGSM)")


def _attacked_cdfs(ax: Any, trials: Trials) -> None:
    """The entropies of all images at every other ε."""
    steps, drawn = trials[0]["attack"], ("scores", drawn_score(trials), "images")
    for k in range(0, len(steps), 2):
        values = _pooled(trials, ("attack", k, *drawn), ("attack", 0, *drawn))
        if len(values):
            colour = mpl.colormaps["viridis"](0.9 * k / max(len(steps) - 1, 1))
            ax.ecdf(values, color=colour, lw=1.5, label=f"ε = {steps[k]['epsilon']:g}")


def _attacked_maps(part: SubFigure, maps: dict[str, Any]) -> None:
    wrong, doubt = np.abs(maps["attacked_mean"] - maps["truth"][0]), maps["attacked_epistemic"]
    axes = _axes(part, len(wrong), 4)
    columns = (
        ("prediction", maps["attacked_mean"], DISPARITY, _scale(maps["truth"])),
        ("absolute error, to the truth of the clean image", wrong, ERROR, _scale(wrong)),
        ("epistemic deviation", doubt, DEVIATION, _scale(doubt)),
    )
    for k, epsilon in enumerate(DRAWN_EPSILONS[: len(wrong)]):
        _picture(axes[k, 0], maps["attacked_image"][k])
        _label(axes[k, 0], "" if k else "image", "", f"ε = {epsilon:g}")
    for column, (title, values, colours, scale) in enumerate(columns, start=1):
        pictures = [_picture(ax, each, colours, scale) for ax, each in zip(axes[:, column], values, strict=True)]
        _label(axes[0, column], title)
        _bar(part, pictures[0], axes[:, column], UNIT, "bottom")


def _attacked_models(record: dict[str, Any], out: Path) -> list[Path]:
    models = studied(record)
    names = [f"{name}\n{drawn_score(trials)}" for name, trials in models.items()]
    figure, axes = _panel_figure(names, LESS_CLEAN, "share of images")
    for ax, trials in zip(axes, models.values(), strict=True):
        _attacked_cdfs(ax, trials)
    _legend_below(figure, axes[0], 5)
    return _finish(figure, record, out, "figure_s6", "Entropy of attacked images, all trials together")


# Figure S7 ------------------------------------------------------------------------------------------------------------


def _aleatoric(record: dict[str, Any], out: Path) -> list[Path]:
    """Aleatoric deviations of the evidential model and of the Gaussian one, on the same images."""
    evidential, gaussian = (_maps_of(out, name) for name in ("evidential", "gaussian"))
    if evidential is None or gaussian is None:
        return []
    ours, theirs = evidential["aleatoric"], gaussian["aleatoric"]
    figure, axes = new_figure(3, len(ours), (2.6 * len(ours) + 1.0, 6.9))
    figure.set_layout_engine("compressed")
    scale = _scale(ours, theirs)
    for k, column in enumerate(axes.T):
        _picture(column[0], evidential["image"][k])
        _picture(column[1], ours[k], DEVIATION, scale)
        picture = _picture(column[2], theirs[k], DEVIATION, scale)
        if ours[k].std() > 0 and theirs[k].std() > 0:
            alike = np.corrcoef(ours[k].flat, theirs[k].flat)[0, 1]
            _label(column[2], "", f"correlation {signed(alike, 2, plus=False)}")
    for ax, label in zip(axes[:, 0], ("image", "evidential", "gaussian likelihood"), strict=True):
        ax.set_ylabel(label, fontsize=8)
    _bar(figure, picture, axes, f"aleatoric deviation, {UNIT}")
    return _finish(figure, record, out, "figure_s7", "Aleatoric deviations, first trial")
