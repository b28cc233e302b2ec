"""The command group, and the exit code of each error."""

import sys
import traceback
from typing import NoReturn

import typer

from howsure import __version__
from howsure.cli import (
    INTERRUPTED,
    console,
    evaluate,
    export,
    fit,
    info,
    interrupted,
    predict,
    report,
)
from howsure.errors import HowsureError

__all__ = ["app", "run", "run_app"]

app = typer.Typer(
    name="howsure",
    help="Calibrated aleatoric and epistemic uncertainty for regression, in one forward pass.\n\n"
    "Example: howsure fit --example -o model",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
)
app.command()(fit.fit)
app.command()(predict.predict)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(export.export)
app.command()(info.info)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Show the version and stop.")
) -> None:
    if version:
        print(f"howsure {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise typer.Exit(2)


def run() -> NoReturn:
    """Run the command line."""
    run_app(app, "howsure")


def run_app(app: typer.Typer, program: str) -> NoReturn:
    """Run a typer application, and end by SystemExit or KeyboardInterrupt.

    An error that the user can act on is one sentence and exit code 2. Any other error has a traceback and exit code 1.
    """
    console.prepare_streams()
    try:
        code = app(standalone_mode=False)  # returns the code of an interrupt, and raises errors of usage
        sys.stdout.flush()  # here, so that a full disk is one sentence
    except (HowsureError, OSError) as error:
        _stop(program, " ".join(str(error).split()))
    except Exception as error:
        _stop_for(program, error)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else 0)


def _stop_for(program: str, error: Exception) -> NoReturn:
    """End with a sentence about a wrong option or a lack of memory, or with a traceback of an unexpected error."""
    if interrupted.is_set():
        raise KeyboardInterrupt from error
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)
        sys.exit(2)
    if hasattr(error, "format_message"):  # of typer, or of click: the command line cannot be read
        _stop(program, f"{' '.join(error.format_message().split())} (--help shows what there is)")
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        _stop(program, "there is not enough memory; take fewer rows or columns, or a machine with more")
    traceback.print_exception(error)
    print(f"{program}: this is an error of howsure, not of your input; please report it", file=sys.stderr)
    sys.exit(1)


def _stop(program: str, sentence: str) -> NoReturn:
    print(f"{program}: {sentence}", file=sys.stderr)
    sys.exit(2)
