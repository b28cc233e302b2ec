"""The command line: ``howsure VERB``, one file per verb."""

import contextlib
import os
import signal
import sys
from functools import partial
from importlib import import_module
from typing import Any

__all__ = ["INTERRUPTED", "REFUSED", "end_interrupted", "main", "run_program"]

REFUSED = 2  # exit code for an error of the input or the machine
INTERRUPTED = 130  # exit code after Ctrl-C, as shells report it


def main() -> None:
    """Run the command line."""
    run_program("howsure", "howsure.cli.app")


def run_program(program: str, module: str, after_interrupt: str = "") -> None:
    """Run the function ``run`` of a module as a shell program, or print what to install for it.

    Args:
        program: name of the program, for messages.
        module: module to import after the packages of the extra ``cli`` were found.
        after_interrupt: advice that is printed after an interrupt.
    """
    end = partial(end_interrupted, program, after_interrupt)
    # while modules are imported there is nothing to clean up, and an exception could get lost in a library
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in jobs that ignore interrupts
    if usual:
        signal.signal(signal.SIGINT, end)
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        from howsure.errors import install_hint

        print(f"{program}: the command line needs typer and rich: {install_hint('cli')}", file=sys.stderr)
        sys.exit(REFUSED)
    run = import_module(module).run
    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:  # in the moment before the last line
        code = INTERRUPTED
    except SystemExit as stop:
        if stop.code == REFUSED:
            _end_at_once(REFUSED)
        raise
    if code == INTERRUPTED:
        end()


def _end_at_once(code: int) -> None:
    """End the process without Python's own way out, after all is written and cleaned up.

    A file that was refused may still be read ahead by a thread of Arrow, which aborts if it finds Python half gone.
    """
    with contextlib.suppress(OSError, ValueError):
        print(end="", flush=True)
        print(end="", file=sys.stderr, flush=True)
    os._exit(code)


def end_interrupted(program: str = "howsure", advice: str = "", *_: Any) -> None:
    """End the process at once, with one line and exit code 130; with two arguments bound, a signal handler."""
    with contextlib.suppress(OSError, ValueError):  # where streams are closed there is nothing to say
        print(f"{program}: interrupted{advice and '; ' + advice}", file=sys.stderr, flush=True)
        print(end="", flush=True)
    # Python ends by the signal, not with this code, if the interrupt came while it evaluated a text as code
    os._exit(INTERRUPTED)
