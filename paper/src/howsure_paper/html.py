"""The page of an experiment as one HTML file, with its figures in it."""

from pathlib import Path

from howsure.errors import InputError
from howsure_paper.registry import page_text

__all__ = ["check_html_page", "write_html_page"]


def check_html_page(folder: Path) -> None:
    """Raise if the page of a run could not be written, before the run takes hours."""
    from howsure.report.html import check_free
    from howsure_paper.markdown import markdown_reader

    check_free(_beside(folder), False, "move it away, or name another folder with --out")
    markdown_reader()


def _beside(folder: Path) -> Path:
    folder = folder.resolve()
    return folder.with_name(f"{folder.name}.html")


def write_html_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the runs in a folder as one HTML file, and return the file's path.

    Tables and figures must be there, as a run or `write_page` leaves them.

    Args:
        folder: of a run, or with the folders of several runs of one experiment.
        out: the file; ``FOLDER.html`` beside the folder by default.

    Raises:
        InputError: if the folder holds no run, a figure is missing, or the file is someone else's.
    """
    from howsure_paper.markdown import write_markdown_page  # jinja2 is imported when a page is written

    folder = folder.resolve()
    path = _beside(folder) if out is None else out
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path} is the name of no page; it ends in .html")
    return write_markdown_page(page_text(folder), folder.parent, path)
