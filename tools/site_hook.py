"""Hooks of the documentation site: pages outside of docs/, formulas as MathML, Sphinx markup in docstrings, llms.txt.

mkdocs calls the functions ``on_*``, and mkdocstrings loads the class `Sphinx`.
"""

import html
import inspect
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Class, Extension, Function, Module, Object
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {  # pages outside of docs/: their place on the site
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "paper/README.md": "paper/README.md",
    "paper/docs/errata.md": "paper/errata.md",
    "paper/docs/reproduce.md": "paper/reproduce.md",
    "paper/docs/shifts.md": "paper/shifts.md",
    "paper/docs/results/depth.md": "paper/results/depth.md",
    "paper/docs/results/uci.md": "paper/results/uci.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
PICTURES = (".png", ".svg", ".jpg", ".webp")


def place_on_site(path: str) -> str | None:
    """Return the place of a file of the repository on the site, or None if it has none."""
    if path in OUTSIDE or path == "README.md":
        return OUTSIDE.get(path, "index.md")
    if path.endswith(PICTURES) and path.startswith("paper/docs/"):
        return "paper/" + path.removeprefix("paper/docs/")
    return path.removeprefix("docs/") if path.startswith("docs/") and "." in posixpath.basename(path) else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/ and the pictures next to them."""
    pictures = [each for each in (ROOT / "paper/docs").rglob("*") if each.suffix in PICTURES]
    files.append(File.generated(config, "reference/shell.md", content=shell_reference()))
    for path in [*OUTSIDE, *(each.relative_to(ROOT).as_posix() for each in pictures)]:
        place = place_on_site(path)
        assert place is not None
        if (ROOT / path).exists():
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def shell_reference() -> str:
    """Return a page with the help and the options of every command of the shell."""
    import typer.main

    from howsure.cli.app import app

    group = typer.main.get_command(app)
    about = "Every command and option, as `--help` shows them. [From the shell](../command-line.md) explains them."
    lines = ["# Shell", "", about]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        text = "\n".join(line.strip() for line in (command.help or "").splitlines())
        lines += ["", f"## howsure {name}", "", text, "", "| option | default | meaning |", "|---|---|---|"]
        for option in command.params:
            names = ", ".join(f"`{each}`" for each in option.opts + option.secondary_opts)
            default = "" if option.default in (None, ..., False) or callable(option.default) else f"`{option.default}`"
            meaning = " ".join((getattr(option, "help", None) or "").split()).replace("|", "\\|")
            shown = names if option.param_type_name == "option" else f"`{option.name.upper()}`"
            lines.append(f"| {shown} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links between files of the repository to their places on the site, or remove them if they have none."""
    source = os.path.relpath(str(page.file.abs_src_path), ROOT).replace(os.sep, "/")
    own_place = place_on_site(source) or page.file.src_uri

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        if re.match(r"\w+:|#", target):
            return found[0]
        path, _, anchor = target.partition("#")
        place = place_on_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if place is None:
            return text
        relative = posixpath.relpath(place, posixpath.dirname(own_place) or ".")
        return f"{mark}[{text}]({relative}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^[ ]*```.*?^[ ]*```[ ]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def on_page_content(content: str, **_: Any) -> str:
    """Replace formulas by MathML, which browsers show without scripts."""

    def formula(found: re.Match[str]) -> str:
        tag, latex = found["tag"], html.unescape(found["latex"]).strip()
        latex = re.sub(r"^\\[(\[]|\\[)\]]$", "", latex).replace(r"\tfrac", r"\frac").replace(r"\lvert", "|")
        latex = latex.replace(r"\rvert", "|").replace(r"\Bigl", "").replace(r"\Bigr", "").replace(r"\Vert", r"\|")
        return str(convert(latex.strip(), display="block" if tag == "div" else "inline"))

    pattern = r'<(?P<tag>span|div) class="arithmatex">(?P<latex>.*?)</(?P=tag)>'
    return re.sub(pattern, formula, content, flags=re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt: the pages of the navigation, with the Markdown of all of them."""
    pages = [(title, place) for section in config.nav or [] for title, place in entries(section)]
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += [f"- [{title}]({place.removesuffix('.md')}.html)" for title, place in pages]
    outside = {place: source for source, place in OUTSIDE.items()}
    for _, place in pages:
        source = ROOT / outside.get(place, f"docs/{place}")
        if source.exists() and not place.startswith("reference/"):
            lines += ["", "-" * 80, f"File: {place}", "", source.read_text(encoding="utf-8").strip()]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def entries(section: Any, title: str = "") -> list[tuple[str, str]]:
    """Return (title, page) of all pages in a part of the navigation."""
    if isinstance(section, str):
        return [(title or section, section)]
    if isinstance(section, list):
        return [entry for part in section for entry in entries(part)]
    return [entry for name, part in section.items() for entry in entries(part, name)]


class Sphinx(Extension):
    """Translate Sphinx roles, formulas and doctests of docstrings to Markdown."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Translate the docstring of a module, class or function."""
        if isinstance(obj, Module | Class | Function) and obj.docstring is not None:
            numpydoc = re.search(r"^[ ]*-{4,}$", obj.docstring.value, re.MULTILINE)  # as scikit-learn's tools expect
            translate = order_sections if numpydoc else to_markdown
            obj.docstring.value = translate(obj.docstring.value)


def order_sections(text: str) -> str:
    """Return a numpydoc docstring with its prose before the sections and its doctests in a section."""
    first, *blocks = inspect.cleandoc(text).split("\n\n")
    prose = [block for block in blocks if block.startswith("See ")]
    examples = [block for block in blocks if block.startswith(">>>")]
    sections = [block for block in blocks if block not in prose + examples]
    if examples:
        sections.append("\n".join(["Examples", "--------", *examples]))
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", "\n\n".join([first, *prose, *sections]))


def to_markdown(text: str) -> str:
    """Return a docstring with roles as code, formulas between dollars, and doctests in fences."""

    def block(found: re.Match[str]) -> str:
        body = " ".join(line.strip() for line in found["body"].splitlines() if line.strip())
        return f"\n{found['indent']}$$\n{found['indent']}{body}\n{found['indent']}$$\n"

    def doctest(found: re.Match[str]) -> str:
        indent = found["indent"]
        return f"\n{indent}```pycon\n{found[0].strip(chr(10))}\n{indent}```\n"

    def arguments(found: re.Match[str]) -> str:
        return "".join(f"{found['indent']}{name}{found['rest']}\n" for name in found["names"].split(", "))

    several = r"^(?P<indent>[ ]+)(?P<names>\w+(?:, \w+)+)(?P<rest>:[ ].*(?:\n(?P=indent)[ ]+.*)*)\n"
    text = re.sub(several, arguments, text, flags=re.MULTILINE)
    math = r"^(?P<indent>[ ]*)\.\. math::(?P<body>.*(?:\n(?:(?P=indent)[ ]+.*|[ ]*(?=\n(?P=indent)[ ]+\S)))*)"
    text = re.sub(math, block, text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", lambda found: f"${' '.join(found[1].split())}$", text)
    text = re.sub(r":\w+:`~?([^`]+)`", lambda found: f"`{found[1].removeprefix('howsure.')}`", text)
    return re.sub(r"^(?P<indent>[ ]*)>>> .*(?:\n[ ]*\S.*)*", doctest, text, flags=re.MULTILINE)
