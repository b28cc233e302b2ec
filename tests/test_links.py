"""Relative links of the Markdown pages lead to files and headings that exist, and pages name modules that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPER = next(ROOT.glob("*/src/howsure_paper"), None)  # the source distribution has no second package
PACKAGES = {"The library": ROOT / "src" / "howsure", "The paper": PAPER}


def pages() -> list[Path]:
    """Return the Markdown pages of the repository, without the templates of pages in the second package."""
    if PAPER is None:
        return []
    folders = [ROOT / "docs", ROOT / "benchmarks", PAPER.parents[1]]
    found = [page for folder in folders for page in folder.rglob("*.md") if PAPER not in page.parents]
    return sorted([*ROOT.glob("*.md"), *found])


pytestmark = pytest.mark.skipif(PAPER is None, reason="links lead to the second package, which is not here")


def without_code(text: str) -> str:
    """Return Markdown without its code blocks and without code in lines."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes for the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def modules_in_table(heading: str) -> list[str]:
    """Return the modules and packages that a table of CONTRIBUTING.md describes, packages with a slash at the end."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split(f"### {heading}\n\n")[1].split("\n\n")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    found = []
    for first, second in cells:
        names = re.findall(r"`([\w/]+(?:\.py|/))`", first)
        found += names
        if len(names) == 1 and names[0].endswith("/"):  # the second cell describes modules of this package
            found += [names[0] + name for name in re.findall(r"`(\w+\.py)`", second)]
    return found


@pytest.mark.parametrize("heading", PACKAGES)
def test_contributing_describes_every_module(heading):
    described, folder = modules_in_table(heading), PACKAGES[heading]
    assert [name for name in described if not (folder / name).exists()] == []
    modules = {path.name for path in folder.glob("*.py") if not path.name.startswith("_")}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert sorted((modules | packages) - set(described)) == []
