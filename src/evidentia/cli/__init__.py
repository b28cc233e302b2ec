"""The command line: ``evidentia VERB``, one file per verb."""

import contextlib
import os
import signal
import sys
from typing import Any

__all__ = ["INTERRUPTED", "end_interrupted", "main"]

REFUSED = 2  # something about the input or the machine
INTERRUPTED = 130  # as a shell says of a program that Ctrl-C ended


def main() -> None:
    """Run the command line, or say what to install for it."""
    # while modules are imported there is nothing to clean up, and an exception could get lost in a library
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in jobs that ignore interrupts
    if usual:
        signal.signal(signal.SIGINT, end_interrupted)
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print("evidentia: the command line needs typer and rich: pip install evidentia[cli]", file=sys.stderr)
        sys.exit(2)
    from evidentia.cli.app import run

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # in the moment before the last line
        end_interrupted()
    except SystemExit as end:
        if end.code == REFUSED:
            _end_at_once(REFUSED)
        raise


def _end_at_once(code: int) -> None:
    """End the process without Python's own way out, after all is written and cleaned up.

    A file that was refused may still be read ahead by a thread of Arrow, which aborts if it finds Python half gone.
    """
    with contextlib.suppress(OSError, ValueError):
        print(end="", flush=True)
        print(end="", file=sys.stderr, flush=True)
    os._exit(code)


def end_interrupted(*_: Any) -> None:
    """End the process at once, with one line and exit code 130; a handler of signals."""
    resumes = "; the same command goes on where it was" if sys.argv[1:2] == ["reproduce"] else ""
    with contextlib.suppress(OSError, ValueError):  # where streams are closed there is nothing to say
        print(f"evidentia: interrupted{resumes}", file=sys.stderr, flush=True)
        print(end="", flush=True)
    # Python ends by the signal, not with this code, if the interrupt came while it evaluated a text as code
    os._exit(INTERRUPTED)
