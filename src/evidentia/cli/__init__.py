"""The command line: ``evidentia VERB``, one file per verb."""

from evidentia.cli.app import app, main

__all__ = ["app", "main"]
