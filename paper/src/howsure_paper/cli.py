"""``howsure-paper NAME``: a sub-command for each experiment of the paper, made from its plan."""

import contextlib
import inspect
import io
import math
import sys
import time
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from howsure.cli import console
from howsure.cli.app import run_app
from howsure.errors import InputError
from howsure_paper import fetch
from howsure_paper.html import check_html_page, write_html_page
from howsure_paper.protocol import Context, Experiment, Option
from howsure_paper.quoted import BLOCKS, check_pages, write_pages
from howsure_paper.registry import EXPERIMENTS, write_page

__all__ = ["app", "run"]

app = typer.Typer(
    name="howsure-paper",
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Repeat the experiments of the paper. A run writes a record, tables and figures to a folder.\n\n"
    "Example: howsure-paper cubic --out out/cubic",
    no_args_is_help=True,
)

app.add_typer(fetch.app, name="data")

Out = Annotated[Path | None, typer.Option(help="Folder for the results (default: out/paper/NAME).")]
Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or mps.")]
Html = Annotated[
    bool, typer.Option("--html", help="Also write the page of the run as one HTML file next to its folder.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Run a small version, to check that everything works. Do not quote its results.")
]
RESULTS = Path("out/paper")


# Sub-commands made from plans -----------------------------------------------------------------------------------------


def _command(experiment: Experiment) -> Callable[..., None]:
    """Return the function of a sub-command; its options are those of all experiments, and the fields of the plan."""
    options = _plan_options(experiment.plan)

    def command(
        out: Path | None = None,
        device: str = "auto",
        quick: bool = False,
        data: Path | None = None,
        html: bool = False,
        quiet: bool = False,
        **given: Any,
    ) -> None:
        chosen = {name: _value(options[name], text) for name, text in given.items()}
        plan = experiment.plan(**{name: value for name, value in chosen.items() if value is not None})
        if quick and experiment.quick is not None:
            plan = experiment.quick(plan)
        _run(experiment, plan, Context(out or RESULTS / experiment.folder_of(plan), device, data, not quiet), html)

    parameters = []
    if experiment.data_help is not None:
        data_option = Annotated[Path | None, typer.Option(help=experiment.data_help)]
        parameters.append(_parameter("data", data_option, None))
    parameters += [_parameter("out", Out, None), _parameter("html", Html, False)]
    parameters.append(_parameter("quiet", console.Quiet, False))
    if experiment.quick is not None:
        parameters += [_parameter("device", Device, "auto"), _parameter("quick", Quick, False)]
    parameters += [_plan_parameter(name, option) for name, option in options.items()]
    command.__doc__ = f"{experiment.summary}\n\nExample: {experiment.example}"
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


class _PlanOption(typing.NamedTuple):
    """A field of a plan as an option of the sub-command."""

    flag: str
    default: Any
    kind: Any  # the type of the field, or of its items if it is a tuple; None is allowed where the default is None
    is_tuple: bool
    settings: Option


def _plan_options(plan: type) -> dict[str, _PlanOption]:
    """Return the fields of a plan that are options, by name."""
    hints = typing.get_type_hints(plan)
    options = {}
    for field in fields(plan):
        if "option" in field.metadata:
            kind = hints[field.name]
            if isinstance(kind, types.UnionType):
                (kind,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
            is_tuple = typing.get_origin(kind) is tuple
            kind = typing.get_args(kind)[0] if is_tuple else kind
            flag = "--" + field.name.replace("_", "-")
            options[field.name] = _PlanOption(flag, field.default, kind, is_tuple, field.metadata["option"])
    return options


def _plan_parameter(name: str, option: _PlanOption) -> inspect.Parameter:
    settings: dict[str, Any] = {"help": option.settings.help}
    default, kind = option.default, option.kind
    if option.is_tuple:  # text, divided by _value; the help says what is taken if there is none
        default, kind = None, str
    elif kind in (int, float):
        settings |= {"min": option.settings.minimum, "max": option.settings.maximum}
    if default is None:
        kind = kind | None
    names = () if kind is bool else (option.flag,)  # typer makes --search and --no-search
    return _parameter(name, Annotated[kind, typer.Option(*names, **settings)], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(option: _PlanOption, given: Any) -> Any:
    """Return the value of a field of the plan; None if none was given."""
    if not option.is_tuple or given is None:
        return given
    items = tuple(item.strip() for item in given.split(option.settings.separator))
    return items if option.kind is str else _numbers(option, items, given)


def _numbers(option: _PlanOption, items: Sequence[str], given: str) -> tuple[float, ...]:
    """Return the items as numbers of the option's kind, int or float."""
    least = -math.inf if option.settings.minimum is None else option.settings.minimum
    most = math.inf if option.settings.maximum is None else option.settings.maximum
    with contextlib.suppress(ValueError):
        values = tuple(map(option.kind, items))
        if all(math.isfinite(value) and least <= value <= most for value in values):
            return values
    words = "whole numbers" if option.kind is int else "numbers"
    example = ",".join(map(str, option.default))
    raise InputError(
        f"{option.flag} takes {words} from {least:,} to {most:,} with commas, as in {example}, not {given!r}"
    )


def _run(experiment: Experiment, plan: Any, context: Context, html: bool = False) -> None:
    """Run an experiment, and print its tables and what was written; with ``html``, write its page as well."""
    if html:
        check_html_page(context.out)
    started = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr if context.progress else io.StringIO()):  # of progress, not of results
        paths = experiment.work.run(plan, context)
    for path in paths:
        if path.suffix == ".md":
            print("\n" + path.read_text(encoding="utf-8"))
    print(f"{len(paths)} files in {paths[0].parent}, {time.perf_counter() - started:.0f} s:")
    print("  " + ", ".join(path.name for path in paths))
    if html:
        print(f"page: {write_html_page(context.out)}")


for _experiment in EXPERIMENTS.values():
    app.command(name=_experiment.name)(_command(_experiment))


# Sub-commands for several experiments ---------------------------------------------------------------------------------


@app.command(name="all")
def everything(
    data: Annotated[Path | None, typer.Option(help=EXPERIMENTS["uci"].data_help)] = None,
    out: Out = None,
    device: Device = "auto",
    quick: Quick = False,
    html: Html = False,
    quiet: console.Quiet = False,
) -> None:
    """Run all experiments above, each in its own folder. --quick needs no data and ten minutes of compute.

    Example: howsure-paper all --quick --out out/quick
    """
    folder = out or RESULTS / ("quick" if quick else "all")
    for experiment in EXPERIMENTS.values():
        for plan in experiment.plans(quick):
            _run(experiment, plan, Context(folder / experiment.folder_of(plan), device, data, not quiet), html)
    if quick:
        print(
            "Left out: the nine UCI sets (diabetes, of scikit-learn, stood in for them), NYU Depth v2 and CamVid "
            "(synthetic rooms and streets did), the search of λ and of the dropout rate, and most of the training. "
            "Run without --quick, with --data, for those."
        )


@app.command()
def page(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of several runs of one experiment.")],
    out: Annotated[Path | None, typer.Option(help="File of the page (default: FOLDER.md, next to the folder).")] = None,
    html: Annotated[bool, typer.Option("--html", help="Also write the page as one HTML file next to it.")] = False,
    _quiet: console.Quiet = False,  # there is nothing but results
) -> None:
    """Write the page, tables and figures of a run from its record.

    Example: howsure-paper page out/paper/cubic
    """
    written, *others = write_page(folder, out)
    print(f"wrote {written} and {len(others)} tables and figures")
    if html:
        print(f"wrote {write_html_page(folder, written.with_suffix('.html'))}")


@app.command()
def quote(
    folder: Annotated[Path, typer.Argument(help="Folder of a checkout of the repository.")] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with code 1 if a block differs.")
    ] = False,
    _quiet: console.Quiet = False,  # there is nothing but results
) -> None:
    """Write the numbers of the committed records into the generated blocks of the documentation.

    Example: howsure-paper quote --check
    """
    changes = check_pages(folder, BLOCKS) if check else write_pages(folder, BLOCKS)
    for text in (*changes.differences, *changes.errors):
        print(text)
    count, verb = len(changes.differences), "differ from" if check else "rewritten from"
    print(f"{count} of {len(BLOCKS)} blocks {verb} the records, {len(changes.errors)} errors")
    if changes.errors or (check and changes.differences):
        raise typer.Exit(1)


def run() -> NoReturn:
    """Run the command line."""
    run_app(app, "howsure-paper")
