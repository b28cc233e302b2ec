"""The verbs together, and what happens to errors."""

import sys
import traceback
from typing import NoReturn

import typer

from evidentia import __version__
from evidentia.cli import (
    INTERRUPTED,
    console,
    data,
    end_interrupted,
    evaluate,
    export,
    fit,
    info,
    predict,
    report,
    reproduce,
)
from evidentia.cli.advice import in_shell_words
from evidentia.errors import EvidentiaError

__all__ = ["app", "run"]

app = typer.Typer(
    name="evidentia",
    help="Calibrated aleatoric and epistemic uncertainty for regression, in one forward pass.\n\n"
    "Example: evidentia fit --example -o model",
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
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Show the version and stop.")
) -> None:
    if version:
        print(f"evidentia {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise typer.Exit(2)


def run() -> None:
    """Run; what a user can act on is one sentence and exit code 2, an interrupt exit code 130, the rest a traceback."""
    console.prepare_streams()
    try:
        code = app(standalone_mode=False)  # which returns the code of an interrupt, and raises what a user mistyped
        sys.stdout.flush()  # here, so that a full disk is one sentence
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (EvidentiaError, OSError) as error:
        _stop(in_shell_words(" ".join(str(error).split())))
    except Exception as error:
        _stop_for(error)
    if code == INTERRUPTED:
        end_interrupted()
    sys.exit(code if isinstance(code, int) else 0)


def _stop_for(error: Exception) -> NoReturn:
    """End with a sentence about a wrong option or a lack of memory, or with a traceback of what no one expected."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)
        sys.exit(2)
    if hasattr(error, "format_message"):  # of typer, or of click: the command line cannot be read
        _stop(f"{' '.join(error.format_message().split())} (--help shows what there is)")
    if _is_out_of_memory(error):
        _stop("there is not enough memory; take fewer rows or columns, or a machine with more")
    traceback.print_exception(error)
    print("evidentia: this is an error of evidentia, not of your input; please report it", file=sys.stderr)
    sys.exit(1)


def _stop(sentence: str) -> NoReturn:
    print(f"evidentia: {sentence}", file=sys.stderr)
    sys.exit(2)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, which torch says by a RuntimeError."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error))
