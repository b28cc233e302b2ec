"""Generated blocks of documentation, and the command that compares and rewrites them."""

import re
from pathlib import Path

import pytest

import howsure as hs
from howsure_paper import cli
from howsure_paper.quoted import BLOCKS, check_pages, write_pages
from howsure_paper.quoted.blocks import table
from program import shell

ROOT = Path(__file__).parents[2]

PAGE = """\
# Page

<!-- generated: scores -->

| set | NLL |
|---|---|
| yacht | 0.12 |

<!-- end -->

Of all sets, <!-- generated: share -->9 of 9 are
better<!-- end --> than before.
"""


def made_blocks(nll="0.12", count=9):
    return {"scores": lambda _: table("set | NLL", [["yacht", nll]]), "share": lambda _: f"{count} of 9 are better"}


@pytest.fixture
def root(tmp_path):
    """A repository with one page."""
    (tmp_path / "paper" / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    return tmp_path


def test_generated_blocks_of_the_repository_match_the_records():
    changes = check_pages(ROOT, BLOCKS)
    assert changes.differences == []
    assert changes.errors == []


def test_page_that_matches_has_no_changes(root):
    assert check_pages(root, made_blocks()) == ({}, [], [])


def test_stale_number_is_reported_with_its_page_block_and_diff(root):
    changes = check_pages(root, made_blocks(nll="0.13", count=8))
    scores, share = (difference.splitlines() for difference in changes.differences)
    assert scores[0] == "--- README.md: scores"
    assert scores[-2:] == ["-| yacht | 0.12 |", "+| yacht | 0.13 |"]
    assert share[-3:] == ["-9 of 9 are", "-better", "+8 of 9 are better"]
    assert (root / "README.md").read_text() == PAGE


def test_writing_replaces_stale_blocks_and_nothing_else(root):
    blocks = made_blocks(nll="0.13", count=8)
    assert len(write_pages(root, blocks).differences) == 2
    expected = PAGE.replace("0.12", "0.13").replace("9 of 9 are\nbetter", "8 of 9 are better")
    assert (root / "README.md").read_text() == expected
    assert check_pages(root, blocks) == ({}, [], [])


def test_table_without_blank_lines_around_it_differs(root):
    (root / "README.md").write_text(PAGE.replace("-->\n\n|", "-->\n|"))
    write_pages(root, made_blocks())
    assert (root / "README.md").read_text() == PAGE


def test_unknown_block_is_an_error_and_stays(root):
    (root / "README.md").write_text(f"{PAGE}\nAnd <!-- generated: speed -->8 times<!-- end --> as fast.\n")
    changes = write_pages(root, made_blocks(count=8))
    (error,) = changes.errors
    assert error.startswith("README.md: ")
    assert "'speed'" in error
    assert "8 of 9 are better" in (root / "README.md").read_text()
    assert "-->8 times<!--" in (root / "README.md").read_text()


@pytest.mark.parametrize("rest", ["", "\n<!-- generated: share -->9 of 9 are better<!-- end -->"])
def test_unclosed_block_is_an_error_and_stays(root, rest):
    text = f"Here <!-- generated: scores --> and no end.{rest}"
    (root / "README.md").write_text(text)
    errors = write_pages(root, made_blocks(nll="0.13")).errors
    assert any(error.startswith("README.md: ") and "'scores'" in error for error in errors)
    assert (root / "README.md").read_text() == text


def test_block_that_no_page_has_is_an_error(root):
    (error,) = check_pages(root, made_blocks() | {"speed": str}).errors
    assert "'speed'" in error


def test_text_after_a_comment_at_the_start_of_a_line_is_an_error(root):
    """Markdown takes such a line for HTML, and shows its links and stars as they are written."""
    (root / "README.md").write_text(PAGE.replace("Of all sets, ", ""))
    (error,) = check_pages(root, made_blocks()).errors
    assert error.startswith("README.md: ")
    assert "'<!-- generated: share" in error


def test_folder_without_records_raises(tmp_path):
    with pytest.raises(hs.InputError, match=tmp_path.name):
        check_pages(tmp_path, BLOCKS)


def test_command_exits_with_1_if_a_block_differs(root, capsys, monkeypatch):
    monkeypatch.setattr(cli, "BLOCKS", made_blocks(count=8))
    said = shell(capsys, "quote", str(root), "--check")
    assert said.code == 1
    assert "--- README.md: share" in said.out
    assert re.findall(r"\d+", said.out.splitlines()[-1]) == ["1", "2", "0"]
    assert (root / "README.md").read_text() == PAGE
    assert shell(capsys, "quote", str(root)).code == 0
    assert shell(capsys, "quote", str(root), "--check").code == 0


def test_command_exits_with_1_after_an_error(root, capsys, monkeypatch):
    monkeypatch.setattr(cli, "BLOCKS", made_blocks() | {"speed": str})
    assert [shell(capsys, "quote", str(root), *check).code for check in ((), ("--check",))] == [1, 1]
