"""The command line: ``howsure VERB``, one file per verb."""

import sys
from importlib import import_module

__all__ = ["INTERRUPTED", "main", "run_program"]

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
        print(f"{program}: interrupted{after_interrupt and '; ' + after_interrupt}", file=sys.stderr)
        sys.exit(INTERRUPTED)
