"""Folders that appear whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from howsure.errors import InputError
from howsure.files import new_folder, opening_whole, scratch_folder

# prints its folder when it has written into it, and then waits to be killed
WRITER = """
import sys, time
from pathlib import Path
from howsure.files import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "a").write_text("half")
    print(folder, flush=True)
    time.sleep(60)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_at_the_end(tmp_path):
    path = tmp_path / "deep" / "out"
    with new_folder(path) as folder:
        (folder / "a").write_text("1")
        assert not path.exists()
    assert names(tmp_path / "deep") == ["out"]
    assert (path / "a").read_text() == "1"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_folder_is_not_there_after_an_error(tmp_path, error):
    def fail():
        with new_folder(tmp_path / "out") as folder:
            (folder / "a").write_text("1")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == []


def test_empty_folder_may_be_there_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with new_folder(out) as folder:
        (folder / "a").write_text("1")
    with pytest.raises(InputError), new_folder(out):
        pass
    with pytest.raises(InputError), new_folder(out / "a"):
        pass
    assert names(tmp_path) == ["out"]
    assert names(out) == ["a"]


def test_folder_is_replaced_if_its_owner_allows(tmp_path):
    def check_old(folder):
        if "mine" in names(folder):
            raise InputError("mine is not yours")

    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_text("1")
    with new_folder(out, check_old) as folder:
        (folder / "b").write_text("2")
        assert names(out) == ["a"]
    assert names(out) == ["b"]
    (out / "mine").write_text("3")
    with pytest.raises(InputError, match="yours"), new_folder(out, check_old):
        pass
    assert names(out) == ["b", "mine"]
    assert names(tmp_path) == ["out"]


def test_folder_that_changes_meanwhile_is_checked_again(tmp_path):
    out = tmp_path / "out"
    asked = []

    def check_old(folder):
        asked.append(names(folder))
        if asked[-1] != ["a"]:
            raise InputError("something else")

    def write():
        with new_folder(out, check_old) as folder:
            (folder / "b").write_text("2")
            (out / "mine").write_text("3")

    out.mkdir()
    (out / "a").write_text("1")
    with pytest.raises(InputError):
        write()
    assert asked == [["a"], ["a", "mine"]]
    assert names(out) == ["a", "mine"]
    assert names(tmp_path) == ["out"]


def test_file_created_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "out"

    def write():
        with new_folder(out):
            out.write_text("another's")

    with pytest.raises(InputError):
        write()
    assert out.read_text() == "another's"
    assert names(tmp_path) == ["out"]


def test_only_folders_of_killed_processes_are_removed(tmp_path):
    out = tmp_path / "out[1]"  # a name that is a pattern, too
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, out], stdout=subprocess.PIPE, text=True) for _ in "ab"]
    try:
        folders = [writer.stdout.readline().strip() for writer in writers]
        assert len({*folders}) == 2
        writers[0].kill()
        writers[0].wait()
        assert not out.exists()
        with scratch_folder(out) as scratch:
            assert names(scratch) == []
            assert names(tmp_path) == sorted([scratch.name, folders[1].split("/")[-2]])
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


def test_device_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path(os.devnull), pipe, tmp_path):
        with pytest.raises(InputError), opening_whole(path):
            pass
    assert Path(os.devnull).is_char_device()
