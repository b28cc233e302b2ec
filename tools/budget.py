"""Count the code lines of each package, without docstrings, blank lines and comments, and compare them with a ceiling.

A code line is a line that holds at least one token of code. Lines of docstrings are not code, however they are quoted.

    python tools/budget.py            # the table
    python tools/budget.py --check    # exit code 1 if a ceiling is broken
"""

import argparse
import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
TEMPLATES = (".html", ".css", ".js", ".md", ".j2", ".svg")
PACKAGE_CEILING = 17_000  # code lines of src/howsure; the plan ends at 14,500
OTHER_CEILINGS = {"paper/src": 5_900, "paper/studies": 2_300, "tools": 550, "templates": 1_000}


class Count(NamedTuple):
    """Lines of a file or package."""

    code: int
    docstrings: int
    total: int


def docstring_lines(source: str) -> set[int]:
    """Return the line numbers of all docstrings in a module."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def count(path: Path) -> Count:
    """Count the lines of one Python file."""
    source = path.read_text()
    docstrings = docstring_lines(source)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return Count(len(code - docstrings), len(docstrings), source.count("\n"))


def total(paths: list[Path]) -> Count:
    """Add up the lines of several Python files."""
    counts = [count(path) for path in paths]
    return Count(*(sum(numbers) for numbers in zip(*counts, strict=True))) if counts else Count(0, 0, 0)


def by_package(folder: Path) -> dict[str, Count]:
    """Return the lines of each module or package directly below a folder."""
    entries = sorted(p for p in folder.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py"))))
    return {e.name: total([e] if e.is_file() else sorted(e.rglob("*.py"))) for e in entries}


def template_lines() -> int:
    """Count the non-blank lines of templates that ship with either distribution."""
    files = [p for source in ("src", "paper/src") for p in (ROOT / source).rglob("*") if p.suffix in TEMPLATES]
    return sum(1 for path in files for line in path.read_text().splitlines() if line.strip())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with code 1 if a ceiling is broken")
    arguments = parser.parse_args()
    print(f"{'package':<24}{'code':>8}{'docstrings':>12}{'lines':>8}")
    packages = by_package(ROOT / "src" / "howsure")
    for name, lines in packages.items():
        print(f"{name:<24}{lines.code:>8,}{lines.docstrings:>12,}{lines.total:>8,}")
    found = {"src/howsure": sum(lines.code for lines in packages.values())}
    for folder in ("paper/src", "paper/studies", "tools"):
        found[folder] = total(sorted((ROOT / folder).rglob("*.py"))).code
    found["templates"] = template_lines()
    found["tests"] = total(sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "paper/tests").rglob("*.py")])).code
    ceilings = {"src/howsure": PACKAGE_CEILING} | OTHER_CEILINGS
    print()
    for name, code in found.items():
        ceiling = f" of {ceilings[name]:,}" if name in ceilings else ""
        print(f"{name:<24}{code:>8,}{ceiling}")
    broken = [name for name, ceiling in ceilings.items() if found[name] > ceiling]
    if broken:
        print(f"over the ceiling: {', '.join(broken)}")
    if arguments.check and broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
