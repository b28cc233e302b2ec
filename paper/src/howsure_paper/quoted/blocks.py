"""Generated blocks in Markdown pages: how they are found, compared and rewritten."""

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from howsure.errors import InputError
from howsure.files import write_text

__all__ = ["Block", "Changes", "check_pages", "table", "write_pages"]

PAGES = ("README.md", "docs/**/*.md", "paper/README.md", "paper/docs/*.md", "paper/studies/README.md")
RESULTS = "paper/docs/results"
BLOCK = re.compile(r"<!-- generated: (?P<name>.*?) -->(?P<text>(?:(?!<!--).)*)(?P<end><!-- end -->)?", re.DOTALL)
TEXT_AFTER_MARK = re.compile(r"^[ \t>*-]*<!-- (?:generated: .*?|end) -->[ \t]*\S.*", re.MULTILINE)

Block = Callable[[Path], str]  # from the folder of the records to the text of the block


class Changes(NamedTuple):
    """The result of a comparison of pages with records.

    Args:
        pages: the new text of each page that differs.
        differences: a unified diff for each block that differs.
        errors: a line for each block that cannot be compared, and for each block that no page has.
    """

    pages: dict[Path, str]
    differences: list[str]
    errors: list[str]


def check_pages(root: Path, blocks: Mapping[str, Block]) -> Changes:
    """Compare the generated blocks of all pages with the records, and change nothing.

    Args:
        root: folder of the repository.
        blocks: function of each block by name.

    Raises:
        InputError: if the folder has no records, or a record is missing or damaged.
    """
    results = root / RESULTS
    if not results.is_dir():
        raise InputError(f"{results} does not exist; name the folder of a checkout of the repository")
    changes = Changes({}, [], [])
    found: set[str] = set()
    for path in sorted({path for pattern in PAGES for path in root.glob(pattern)}):
        found |= _check_page(path, path.relative_to(root).as_posix(), results, blocks, changes)
    changes.errors.extend(f"no page has the block {name!r}" for name in blocks if name not in found)
    return changes


def write_pages(root: Path, blocks: Mapping[str, Block]) -> Changes:
    """Rewrite the generated blocks that differ from the records, and return the changes.

    A block with an error stays as it is. Args and Raises are those of `check_pages`.
    """
    changes = check_pages(root, blocks)
    for path, text in changes.pages.items():
        write_text(path, text)
    return changes


def _check_page(path: Path, page: str, results: Path, blocks: Mapping[str, Block], changes: Changes) -> set[str]:
    """Add the changes of one page to ``changes``, and return the names of its blocks."""
    before = path.read_text(encoding="utf-8")
    for line in TEXT_AFTER_MARK.findall(before):
        changes.errors.append(f"{page}: a line that starts with a comment has no Markdown: {line.strip()[:60]!r}")
    found = set()

    def replaced(match: re.Match[str]) -> str:
        name, text = match["name"], match["text"]
        found.add(name)
        if name not in blocks:
            changes.errors.append(f"{page}: unknown block {name!r}")
        elif match["end"] is None:
            changes.errors.append(f"{page}: block {name!r} is not closed by <!-- end -->")
        else:
            new = _laid_out(blocks[name](results), text)
            if new != text:
                lines = difflib.unified_diff(
                    text.strip().splitlines(), new.strip().splitlines(), f"{page}: {name}", "records", lineterm=""
                )
                changes.differences.append("\n".join(lines))
            return f"<!-- generated: {name} -->{new}<!-- end -->"
        return match[0]

    after = BLOCK.sub(replaced, before)
    if after != before:
        changes.pages[path] = after
    return found


def _laid_out(new: str, old: str) -> str:
    """Return the new text of a block, with blank lines around a table.

    Line breaks within prose do not matter: if the words are the same, the old text is returned.
    """
    if new.startswith("|"):
        return f"\n\n{new}\n\n"
    if new.split() == old.split():
        return old
    edge = "\n" if old.startswith("\n") else ""
    return f"{edge}{new}{edge}"


def table(header: str, rows: list[list[str]]) -> str:
    """Return a Markdown table; ``header`` has the names of the columns, divided by "|".

    >>> print(table("set | NLL", [["yacht", "0.12"]]))
    | set | NLL |
    |---|---|
    | yacht | 0.12 |
    """
    lines = [f"| {header} |", "|" + "---|" * (header.count("|") + 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
