"""``python -m howsure.cli``, for a source tree that is not installed."""

from howsure.cli import main

main()
