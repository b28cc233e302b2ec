"""``python -m howsure_paper``."""

from howsure_paper.cli import main

main()
