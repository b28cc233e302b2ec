"""The record of a depth run as tables and figures."""

from pathlib import Path
from typing import Any

__all__ = ["write_results"]


def write_results(record: dict[str, Any], out: Path) -> list[Path]:
    """To be."""
    return []
