"""The verbs together, and what happens to errors."""

import os
import sys

import typer

from evidentia import __version__
from evidentia.cli import reproduce
from evidentia.errors import EvidentiaError

__all__ = ["app", "run"]

INTERRUPTED = 130  # as a shell says of a program that Ctrl-C ended

app = typer.Typer(
    name="evidentia",
    help="Calibrated aleatoric and epistemic uncertainty for regression, in one forward pass.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
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
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console that cannot show λ shows a question mark instead
            stream.reconfigure(errors="replace")
    try:
        app()
    except (EvidentiaError, OSError) as error:
        print(f"evidentia: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print("evidentia: interrupted; the same command goes on where it was", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            # Python ends by the signal, not with this code, if the interrupt came while it evaluated a text as code
            os._exit(INTERRUPTED)
        raise
