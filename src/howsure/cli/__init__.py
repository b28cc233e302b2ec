"""The command line: ``howsure COMMAND``, one file per command."""

import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module

__all__ = ["INTERRUPTED", "interrupted", "main", "run_program"]

INTERRUPTED = 130  # exit code after Ctrl-C, as shells report it
SECONDS_TO_END = 0.25  # after Ctrl-C
interrupted = threading.Event()  # set by Ctrl-C, which compiled code may turn into another exception


def main() -> None:
    """Run the command line."""
    run_program("howsure", "howsure.cli.app")


def run_program(program: str, module: str, after_interrupt: str = "") -> None:
    """Run the function ``run`` of a module as a shell program, or print the missing packages.

    Args:
        program: name of the program, for messages.
        module: module to import after the packages of the extra ``cli`` were found.
        after_interrupt: advice that is printed after an interrupt.
    """
    farewell = f"{program}: interrupted{after_interrupt and '; ' + after_interrupt}"
    said = _end_soon_after_interrupt(farewell)
    try:
        try:
            import rich  # noqa: F401
            import typer  # noqa: F401
        except ModuleNotFoundError:
            from howsure.errors import install_hint

            print(f"{program}: the command line needs typer and rich: {install_hint('cli')}", file=sys.stderr)
            sys.exit(2)
        import_module(module).run()
    except KeyboardInterrupt:
        said.set()
        print(farewell, file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)  # the interpreter would take seconds to free its memory


def _end_soon_after_interrupt(farewell: str) -> threading.Event:
    """Start a thread that ends the process if Ctrl-C does not; return an event to set after the last message.

    Python raises KeyboardInterrupt when the main thread returns from compiled code, which may be seconds later. Files
    are written next to their places and renamed, so that an end at any moment leaves no half of one.
    """
    said = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)  # written to even while compiled code runs

    def watch(_open: socket.socket = writer) -> None:
        while signal.SIGINT not in reader.recv(1):
            pass
        interrupted.set()
        time.sleep(SECONDS_TO_END)
        if not said.is_set():
            print(farewell, file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()
    return said
