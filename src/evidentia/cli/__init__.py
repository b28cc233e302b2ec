"""The command line: ``evidentia VERB``, one file per verb."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print("evidentia: the command line needs typer and rich: pip install evidentia[cli]", file=sys.stderr)
        sys.exit(2)
    try:
        from evidentia.cli.app import run
    except KeyboardInterrupt:  # in the second or two that this takes
        print("evidentia: interrupted", file=sys.stderr, flush=True)
        os._exit(130)
    run()
