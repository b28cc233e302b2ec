"""The program ``howsure-paper``, also as ``python -m howsure_paper``."""

from howsure.cli import run_program

__all__ = ["main"]


def main() -> None:
    """Run ``howsure-paper``.

    This module imports nothing large. An interrupt while torch is imported therefore ends with one line and exit code
    130, and a missing package is named in one line.
    """
    run_program("howsure-paper", "howsure_paper.cli", "the same command goes on where it was")


if __name__ == "__main__":
    main()
