"""Pages made of a Markdown template, which holds all prose, and of values that are computed from records."""

import re
from collections.abc import Mapping
from importlib.resources import files
from string import Template

from howsure_paper.tables import as_text

__all__ = ["fill_template", "read_template"]


def read_template(package: str, name: str = "page.md") -> str:
    """Return the text of a template that lies in a package, for example in ``howsure_paper.uci``."""
    return (files(package) / name).read_text(encoding="utf-8")


def fill_template(template: str, values: Mapping[str, object]) -> str:
    r"""Return a template with every ``$name`` replaced by the value of that name, shown as in a table.

    A paragraph that names a value which is absent, None or empty is left out, and then every heading with nothing under
    it.

    >>> page = "# Errors\n\nRMSE $rmse.\n\nNLL $nll.\n\n## Speed\n\n$speed\n"
    >>> fill_template(page, {"rmse": 0.1, "nll": None})
    '# Errors\n\nRMSE 0.1.\n'
    """
    paragraphs = [Template(paragraph.strip("\n")) for paragraph in re.split(r"\n{2,}", template)]
    filled = [
        paragraph.substitute({name: as_text(values[name]) for name in paragraph.get_identifiers()})
        for paragraph in paragraphs
        if not any(values.get(name) in (None, "") for name in paragraph.get_identifiers())
    ]
    return "\n\n".join(_without_empty_sections(filled)) + "\n"


def _without_empty_sections(paragraphs: list[str]) -> list[str]:
    """Return the paragraphs without the headings that are followed by no text of their own section."""
    kept: list[str] = []
    for paragraph in reversed(paragraphs):
        level = _heading_level(paragraph)
        below = _heading_level(kept[-1]) if kept else 1  # the end of the page closes every section
        if level == 0 or below == 0 or below > level:
            kept.append(paragraph)
    return kept[::-1]


def _heading_level(paragraph: str) -> int:
    """Return 1 for «# …», 2 for «## …», and 0 for what is no heading."""
    found = re.match(r"(#+) ", paragraph)
    return len(found[1]) if found else 0
