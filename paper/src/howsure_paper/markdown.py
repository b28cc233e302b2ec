"""A Markdown page as one self-contained HTML file: tables, and figures embedded."""

import base64
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from howsure.errors import InputError
from howsure.files import write_text
from howsure.report.html import check_free, page_environment, render

__all__ = ["markdown_reader", "write_markdown_page"]

KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".svg": "image/svg+xml"}


def write_markdown_page(text: str, folder: Path, path: Path, *, replace: bool = False) -> Path:
    """Write a Markdown text as one HTML file with its figures in it, whole or not at all, and return the file's path.

    HTML in the text is shown as it is written, comments are left out. Links to other files stay links.

    Args:
        text: Markdown, with tables.
        folder: that paths of figures are relative to.
        path: of the file.
        replace: whether a file that is no such page is replaced.

    Raises:
        InputError: if a figure is missing or of an unknown kind, the file is someone else's, or a package is missing.
    """
    check_free(path, replace, "move it away, or name another file")
    environment = page_environment("howsure_paper")
    reader = markdown_reader()
    tokens = reader.parse(re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL))
    _embed_figures(tokens, folder)
    body = reader.renderer.render(tokens, reader.options, {})
    heading = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    title = re.sub(r"[`*_]", "", heading[1]) if heading else path.stem
    from markupsafe import Markup  # comes with jinja2

    write_text(path, render(environment, "markdown.html.j2", {"title": title, "body": Markup(body)}))
    return path


def markdown_reader() -> Any:
    """Return what reads Markdown with tables, and shows HTML in it as it is written; raise if it is not installed."""
    page_environment()
    try:
        from markdown_it import MarkdownIt
    except ModuleNotFoundError as error:
        raise InputError("pages in HTML need markdown-it-py: pip install markdown-it-py") from error
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _embed_figures(tokens: list[Any], folder: Path) -> None:
    """Replace the path of every figure by its content."""
    for token in tokens:
        if token.children:
            _embed_figures(token.children, folder)
        if token.type == "image":
            path = folder / unquote(str(token.attrs["src"]))
            kind = KINDS.get(path.suffix.lower())
            if kind is None or not path.is_file():
                raise InputError(
                    f"the page shows {path}, which is no figure that can be read; run the experiment again"
                )
            token.attrs["src"] = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
