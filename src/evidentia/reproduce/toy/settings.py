"""What the three experiments on y = x³ share: the paper's settings, the grid that is shown, and the numbers."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidentia import metrics
from evidentia.datasets.cubic import cubic
from evidentia.fitting import Fitted, fit, hold_out
from evidentia.methods import Method, Network, Recipe
from evidentia.prediction import Prediction
from evidentia.record import environment, run_folder, write_record
from evidentia.report.figures import COLOURS
from evidentia.training import Settings, resolve_device

__all__ = ["GRID", "SHOWN", "TRAINED", "Options", "Toy", "dress", "experiment", "numbers", "train_toy", "write"]

TRAINED, SHOWN = 4.0, 6.0
UNFINISHED = "unfinished"
GRID = np.linspace(-SHOWN, SHOWN, 601)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Where to, and on what."""

    out: Path = Path("out")
    device: str = "auto"
    quick: bool = False
    progress: bool = True


@dataclass(frozen=True)
class Toy:
    """The settings of Sec. S2.1.1. Neither x nor y is standardised, as in the authors' code: λ has the unit 1/y."""

    rows: int = 1000
    noise: float = 3.0
    hidden: tuple[int, ...] = (100, 100, 100)
    learning_rate: float = 5e-3
    iterations: int = 5000
    batch_size: int = 128
    weight: float = 0.01
    samples: int = 5  # of dropout and Bayes by backprop, and members of the ensemble
    dropout: float = 0.05
    seeds: int = 5  # the first is drawn, all are in the table

    @property
    def recipe(self) -> Recipe:
        """Adam at a constant rate, and the last weights."""
        settings = Settings(
            steps=self.iterations,
            learning_rate=self.learning_rate,
            warmup=0.0,
            schedule="constant",
            clip=None,
            evaluate_every=max(1, self.iterations // 20),
            checkpoint_every=5,
        )
        return Recipe(Network(self.hidden, "relu"), settings, self.batch_size)


def experiment(name: str) -> Callable[[Callable[..., list[Path]]], Callable[..., list[Path]]]:
    """Decorate a function ``run(options, …)``, so that device and folder are refused before any training."""

    def decorate(run: Callable[..., list[Path]]) -> Callable[..., list[Path]]:
        @functools.wraps(run)
        def claimed(options: Options, *arguments: Any, **more: Any) -> list[Path]:
            resolve_device(options.device)
            with run_folder(options.out, name):
                return run(options, *arguments, **more)

        return claimed

    return decorate


def train_toy(
    name: str,
    method: Method,
    toy: Toy,
    seeds: Sequence[int],
    options: Options,
    data: tuple[Array, Array] | None = None,
) -> Fitted:
    """One network per seed, all on the same data. What a killed run had done is found by name and settings."""
    x, y = data or cubic(toy.rows, toy.noise, TRAINED, seed=0)
    key = hashlib.sha256(repr((name, toy, list(seeds))).encode()).hexdigest()[:16]
    return fit(
        method,
        x,
        y,
        hold_out(np.arange(len(x)), list(seeds), share=0),
        recipe=toy.recipe,
        standardise=False,
        device=options.device,
        checkpoint=options.out / UNFINISHED / f"{key}.ckpt",
        progress=options.progress,
    )


def numbers(answer: Callable[[Array], Prediction], toy: Toy) -> dict[str, float | None]:
    """What a model says inside and outside the training range, against what is so."""
    fresh_x, fresh_y = cubic(2000, toy.noise, TRAINED, seed=12_345)
    inside = answer(fresh_x)
    out_x = np.concatenate([np.linspace(-SHOWN, -TRAINED - 0.5, 200), np.linspace(TRAINED + 0.5, SHOWN, 200)])
    outside = answer(out_x[:, None])
    within, beyond = inside.epistemic_std, outside.epistemic_std
    return {
        "rmse_inside": float(np.sqrt(np.mean((inside.mean - fresh_x[:, 0] ** 3) ** 2))),
        "rmse_outside": float(np.sqrt(np.mean((outside.mean - out_x**3) ** 2))),
        "nll_inside": metrics.nll(inside, fresh_y),
        "coverage_90_inside": metrics.coverage(inside, fresh_y),
        "total_inside": float(np.median(inside.std)),
        "aleatoric_inside": None if inside.aleatoric_std is None else float(np.median(inside.aleatoric_std)),
        "epistemic_inside": float(np.median(within)) if within is not None else None,
        "epistemic_outside": float(np.median(beyond)) if beyond is not None else None,
        "auroc_epistemic": None if within is None or beyond is None else metrics.auroc(within, beyond),
    }


def dress(ax: Any, data: tuple[Array, Array] | None = None, limit: float = 150.0) -> None:
    """The frame of a panel: training range, data and truth, with the same limits everywhere."""
    ax.axvspan(-TRAINED, TRAINED, color=COLOURS["range"], zorder=0, label="training range")
    if data is not None:
        ax.plot(
            data[0][::4, 0], data[1][::4], ".", color=COLOURS["data"], ms=1.5, label="training data", rasterized=True
        )
    ax.plot(GRID, GRID**3, "--", color=COLOURS["truth"], lw=1, label="x³")
    ax.set(xlim=(-SHOWN, SHOWN), ylim=(-limit, limit))


def write(name: str, toy: Toy, options: Options, **contents: Any) -> Path:
    """The record of a finished run; what it kept in order to be continued goes."""
    record = {
        "run": name,
        "environment": environment(resolve_device(options.device)),
        "settings": asdict(toy),
        "quick": options.quick,
        **contents,
    }
    path = write_record(options.out, record)
    for checkpoint in (options.out / UNFINISHED).glob("*.ckpt"):
        checkpoint.unlink()
    with contextlib.suppress(OSError):  # it is not there, or someone keeps other files in it
        (options.out / UNFINISHED).rmdir()
    return path
