"""``python -m evidentia.cli``, for a source tree that is not installed."""

from evidentia.cli import main

main()
