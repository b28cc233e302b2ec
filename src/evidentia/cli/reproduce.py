"""``evidentia reproduce NAME``: the experiments of the paper."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evidentia.datasets.folder import find_data
from evidentia.errors import InputError
from evidentia.reproduce.depth import run as depth_experiment
from evidentia.reproduce.toy import cubic as cubic_experiment
from evidentia.reproduce.toy import disentangle as disentangle_experiment
from evidentia.reproduce.toy import distribution as distribution_experiment
from evidentia.reproduce.toy import regularizer as regularizer_experiment
from evidentia.reproduce.toy.settings import Options, Toy
from evidentia.reproduce.uci import run as uci_experiment

__all__ = ["app"]

app = typer.Typer(
    help="Repeat the experiments of the paper: record, tables and figures go to a folder.\n\n"
    "Example: evidentia reproduce cubic --out out/cubic",
    no_args_is_help=True,
)

MOST = 2**32 - 1  # the largest seed that NumPy and torch both take

Out = Annotated[Path | None, typer.Option(help="Folder for the results (default: out/reproduce/NAME).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small and fast, to see that it works; no result to quote.")]
Iterations = Annotated[int | None, typer.Option(help="Training steps (paper: 5000).", min=1, max=10**8)]
LearningRate = Annotated[float | None, typer.Option(help="Of Adam (paper: 0.005).", min=1e-12, max=1e3)]
BatchSize = Annotated[int | None, typer.Option(help="Rows a step (paper: 128).", min=1, max=10**6)]
Hidden = Annotated[str | None, typer.Option(help="Layer sizes (paper: 100,100,100).")]
Weight = Annotated[
    float | None, typer.Option(help="λ, the weight of the evidence penalty (paper: 0.01).", min=0, max=1e9)
]
Noise = Annotated[float | None, typer.Option(help="Standard deviation of the noise (paper: 3).", min=0, max=1e9)]
Seeds = Annotated[int | None, typer.Option(help="Starts; the first is drawn, all are in the table.", min=1, max=1000)]


def _options(name: str, out: Path | None, device: str, quick: bool) -> Options:
    return Options(out or Path("out/reproduce") / name, device, quick)


def _toy(toy: Toy, hidden: str | None, **given: float | int | None) -> Toy:
    """The paper's settings with those that were given."""
    changes: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    if hidden is not None:
        try:
            sizes = tuple(int(size) for size in hidden.split(","))
            if not all(0 < size <= 10_000 for size in sizes):
                raise ValueError
            changes["hidden"] = sizes
        except ValueError:
            raise InputError(
                f"--hidden takes whole numbers from 1 to 10,000 with commas, as in 100,100,100, not {hidden!r}"
            ) from None
    return replace(toy, **changes)  # type: ignore[arg-type]


def _report(work: Callable[[], list[Path]]) -> None:
    started = time.perf_counter()
    paths = work()
    for path in paths:
        if path.suffix == ".md":
            print("\n" + path.read_text(encoding="utf-8"))
    print(f"{len(paths)} files in {paths[0].parent}, {time.perf_counter() - started:.0f} s:")
    print("  " + ", ".join(path.name for path in paths))


@app.command()
def distribution(
    out: Out = None, seed: Annotated[int, typer.Option(help="Of the draws.", min=0, max=MOST)] = 0
) -> None:
    """Fig. 2: evidential distributions, and the likelihoods they stand for."""
    folder = out or Path("out/reproduce/distribution")
    _report(lambda: distribution_experiment.run(folder, seed))


@app.command()
def cubic(
    out: Out = None,
    device: Device = "auto",
    quick: Quick = False,
    weight: Weight = None,
    iterations: Iterations = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    hidden: Hidden = None,
    noise: Noise = None,
    seeds: Seeds = None,
    samples: Annotated[
        int | None, typer.Option(help="Members of the ensemble, draws of others (paper: 5).", min=1, max=1000)
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout rate (authors' code: 0.05).", min=0, max=0.99)] = None,
) -> None:
    """Fig. 3 and S1: both uncertainties of every method on y = x³ + noise.

    Example: evidentia reproduce cubic --weight 0.1 --seeds 10
    """
    toy = _toy(
        Toy(),
        hidden,
        weight=weight,
        iterations=iterations,
        learning_rate=learning_rate,
        batch_size=batch_size,
        noise=noise,
        seeds=seeds,
        samples=samples,
        dropout=dropout,
    )
    _report(lambda: cubic_experiment.run(_options("cubic", out, device, quick), toy))


@app.command()
def regularizer(
    out: Out = None,
    device: Device = "auto",
    quick: Quick = False,
    iterations: Iterations = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    hidden: Hidden = None,
    noise: Noise = None,
    seeds: Seeds = None,
) -> None:
    """Fig. S2: the strength of the penalty, for the error penalty (A) and the KL divergence (B).

    Example: evidentia reproduce regularizer --seeds 3
    """
    toy = _toy(
        Toy(),
        hidden,
        iterations=iterations,
        learning_rate=learning_rate,
        batch_size=batch_size,
        noise=noise,
        seeds=seeds,
    )
    _report(lambda: regularizer_experiment.run(_options("regularizer", out, device, quick), toy))


@app.command()
def disentangle(
    out: Out = None,
    device: Device = "auto",
    quick: Quick = False,
    weight: Weight = None,
    iterations: Iterations = None,
    learning_rate: LearningRate = None,
    batch_size: BatchSize = None,
    hidden: Hidden = None,
    seeds: Seeds = None,
) -> None:
    """Fig. S3: noise that peaks in the middle of the data, and what can be told apart.

    Example: evidentia reproduce disentangle --seeds 8
    """
    toy = _toy(
        disentangle_experiment.SETTINGS,
        hidden,
        weight=weight,
        iterations=iterations,
        learning_rate=learning_rate,
        batch_size=batch_size,
        seeds=seeds,
    )
    _report(lambda: disentangle_experiment.run(_options("disentangle", out, device, quick), toy))


Data = Annotated[
    Path | None, typer.Option(help="Data folder with uci/ in it (default: the environment variable EVIDENTIA_DATA).")
]


@app.command()
def uci(
    data: Data = None,
    out: Out = None,
    device: Device = "auto",
    quick: Quick = False,
    protocol: Annotated[str, typer.Option(help="standard, or published: minima over test batches.")] = "standard",
    targets: Annotated[
        str | None, typer.Option(help="Of energy and naval: standard or published (default: the protocol's).")
    ] = None,
    network: Annotated[str, typer.Option(help="best: the library's; paper: 1×50 ReLU, 40 epochs.")] = "best",
    sets: Annotated[str | None, typer.Option(help="Names with commas, as in yacht,boston (default: all nine).")] = None,
    methods: Annotated[str | None, typer.Option(help="Names with commas (default: all five).")] = None,
    members: Annotated[
        int, typer.Option(help="Networks of a mixture or ensemble, draws of the others.", min=1, max=1000)
    ] = 5,
    search: Annotated[bool, typer.Option(help="Choose λ and the dropout rate on training rows.")] = True,
) -> None:
    """Table 1: five methods on nine sets. A run that was stopped continues where it was.

    Example: evidentia reproduce uci --data DATA --sets yacht,boston --out out/uci
    """
    chosen: dict[str, Any] = {
        k: tuple(v.split(",")) for k, v in (("sets", sets), ("methods", methods)) if v is not None
    }
    chosen |= {"protocol": protocol, "targets": targets, "network": network}
    plan = uci_experiment.Plan(members=members, search=search, **chosen)
    folder = out or Path("out/reproduce") / f"uci_{protocol}_{network}"
    _report(lambda: uci_experiment.run(plan, folder, data, device, quick))


@app.command()
def depth(
    data: Annotated[
        Path | None, typer.Option(help="Folder with nyu_v2_160x128.zip and camvid_160x128.zip (or EVIDENTIA_DATA).")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Other pairs: a zip or folder, nyu_depth_v2_labeled.mat, or the authors' .h5.")
    ] = None,
    outside: Annotated[Path | None, typer.Option(help="Images from elsewhere: a folder or zip.")] = None,
    cut: Annotated[
        int | None,
        typer.Option(
            help=f"Pixels to cut from each side of all images (default: {depth_experiment.FRAME}, the white frame of "
            "NYU; 0 for synthetic rooms)."
        ),
    ] = None,
    out: Out = None,
    device: Device = "auto",
    quick: Quick = False,
    trials: Annotated[int, typer.Option(help="Starts of each method (paper: 3).", min=1, max=1000)] = 3,
    groups: Annotated[
        str | None, typer.Option(help="Which networks, with semicolons, as in 'evidential;gaussian' (default: all).")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help=f"Training steps of a network (default: {depth_experiment.RECIPE.settings.steps})."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split by scenes.", min=0, max=MOST)] = 0,
) -> None:
    """Monocular depth: Table S1, Fig. 4 to 6, S4 to S7. Without data: synthetic rooms and streets.

    Example: evidentia reproduce depth --data DATA --out out/depth
    """
    plan = depth_experiment.quick_plan() if quick else depth_experiment.Plan(trials=trials, split_seed=seed)
    if groups is not None:
        plan = replace(plan, groups=tuple(name.strip() for name in groups.split(";")))
    if steps is not None:
        settings = replace(plan.recipe.settings, steps=steps, evaluate_every=max(1, min(250, steps // 4)))
        plan = replace(plan, recipe=replace(plan.recipe, settings=settings))
    loaded = depth_experiment.load(find_data(data), pairs, outside, seed, quick, cut)
    if loaded.synthetic:
        why = "a quick run" if quick else "no data folder"
        print(f"{why}: synthetic rooms, and synthetic streets as the images from elsewhere")
    _report(lambda: depth_experiment.run(plan, out or Path("out/reproduce/depth"), loaded, device))


@app.command(name="all")
def everything(data: Data = None, out: Out = None, device: Device = "auto", quick: Quick = False) -> None:
    """All of the above, each in a folder of its own. With --quick: five minutes on two cores, without any data.

    Example: evidentia reproduce all --quick --out out/quick
    """
    folder = out or Path("out/reproduce") / ("quick" if quick else "all")
    _report(lambda: distribution_experiment.run(folder / "distribution"))
    toys = {
        "cubic": cubic_experiment.run,
        "regularizer": regularizer_experiment.run,
        "disentangle": disentangle_experiment.run,
    }
    for name, experiment in toys.items():
        options = Options(folder / name, device, quick)
        _report(functools.partial(experiment, options))
    if quick:
        for protocol, network in (("standard", "best"), ("published", "paper")):
            plan = uci_experiment.Plan(sets=("diabetes",), protocol=protocol, network=network)
            where = folder / f"uci_{protocol}_{network}"
            _report(functools.partial(uci_experiment.run, plan, where, data, device, quick=True))
        rooms = depth_experiment.load(quick=True)
        small = depth_experiment.quick_plan()
        _report(lambda: depth_experiment.run(small, folder / "depth", rooms, device))
        print(
            "Left out: the nine UCI sets (diabetes, of scikit-learn, stood in for them), NYU Depth v2 and CamVid "
            "(synthetic rooms and streets did), the search of λ and of the dropout rate, and most of the training. "
            "Run without --quick, with --data, for those."
        )
        return
    for protocol in uci_experiment.PROTOCOLS:
        for network in uci_experiment.NETWORKS:
            plan = uci_experiment.Plan(protocol=protocol, network=network)
            work = functools.partial(uci_experiment.run, plan, folder / f"uci_{protocol}_{network}", data, device)
            _report(work)
    loaded = depth_experiment.load(find_data(data))
    _report(lambda: depth_experiment.run(depth_experiment.Plan(), folder / "depth", loaded, device))
