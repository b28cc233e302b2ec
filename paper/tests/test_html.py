"""Pages of experiments as HTML files: figures are in the file, and HTML of the text is shown as text."""

import base64
import html.parser

import pytest

from howsure.errors import InputError
from howsure_paper.cli import page
from howsure_paper.html import check_html_page, write_html_page
from howsure_paper.markdown import write_markdown_page
from howsure_paper.protocol import Context
from howsure_paper.registry import EXPERIMENTS

VOID = {"meta", "br", "img", "link", "input", "hr"}
MARKDOWN = """<!-- written by a machine -->

# Errors & `rates`

| set | NLL |
|---|---|
| a <b>bold</b> | 0.5 |

<script>alert(1)</script>

![a figure](run/my%20figure.png)

[a link](other.md) and [an evil one](javascript:alert(1))
"""


class Page(html.parser.HTMLParser):
    """The elements and the text of a page; raises if tags do not match."""

    def __init__(self, path):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_markdown_becomes_one_file_with_its_figures(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "my figure.png").write_bytes(b"not really a picture")
    path = write_markdown_page(MARKDOWN, tmp_path, tmp_path / "page.html")
    page = Page(path)
    (image,) = page.all("img")
    assert image["src"] == f"data:image/png;base64,{base64.b64encode(b'not really a picture').decode()}"
    assert image["alt"] == "a figure"
    assert not page.all("script")
    assert not page.all("b")
    assert "<script>alert(1)</script>" in page.text  # shown, not run
    assert "written by a machine" not in page.text
    assert [attrs["href"] for attrs in page.all("a")] == ["other.md"]
    assert len(page.all("td")) == 2
    assert page.text.startswith("Errors & rates Errors & rates")  # the title and the heading


def test_files_of_others_are_not_replaced(tmp_path):
    path = write_markdown_page("# One", tmp_path, tmp_path / "page.html")
    write_markdown_page("# Other", tmp_path, path)
    path.write_text("mine")
    with pytest.raises(InputError):
        write_markdown_page("# One", tmp_path, path)
    assert path.read_text() == "mine"


def test_missing_figure_raises(tmp_path):
    with pytest.raises(InputError, match=r"figure\.png"):
        write_markdown_page(MARKDOWN, tmp_path, tmp_path / "new.html")
    assert not (tmp_path / "new.html").exists()


def test_experiment_writes_its_page(tmp_path, capsys):
    experiment = EXPERIMENTS["distribution"]
    folder = tmp_path / "run"
    check_html_page(folder)
    experiment.work.run(experiment.plan(), Context(folder, "cpu", None, progress=False))
    page(folder, html=True)
    assert "run.html" in capsys.readouterr().out
    made = Page(tmp_path / "run.html")
    assert made.all("img")
    assert all(image["src"].startswith("data:image/png;base64,iVBOR") for image in made.all("img"))
    (tmp_path / "run.html").write_text("mine")
    with pytest.raises(InputError, match="--out"):
        check_html_page(folder)
    with pytest.raises(InputError):
        write_html_page(folder, tmp_path / "page.pdf")
