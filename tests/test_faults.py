"""What a kill, an interrupt or a second writer does to models and estimators, with real processes."""

import signal
import time

import pytest

import howsure as hs
from faults import processes
from howsure.files import locked, write_whole


def test_kill_in_save_leaves_the_old_model_or_the_new_one():
    tried, failed = processes.kills_in_save(8)
    assert tried == 8
    assert not failed


def test_writers_and_readers_of_one_folder_do_not_disturb_each_other():
    tried, failed = processes.writers(2, seconds=1.5)
    assert tried > 20
    assert not failed


def test_interrupt_of_fit_leaves_the_estimator_as_it_was():
    tried, failed = processes.interrupts_of_fit(2)
    assert tried == 2
    assert not failed


def test_interrupt_ends_a_cross_validation():
    program = """
        import numpy as np, howsure as hs
        from sklearn.model_selection import cross_val_score
        X, y = np.random.default_rng(0).random((60, 2)), np.arange(60.0)
        print("ready", flush=True)
        cross_val_score(hs.EvidentialRegressor(members=1, hidden=(8,), steps=1_000_000), X, y, cv=5)
    """
    process = processes.start(program)
    process.stdout.readline()
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert process.returncode == -signal.SIGINT


# Files and locks ----------------------------------------------------------------------------------------------------


def test_only_files_of_killed_writers_are_removed(tmp_path):
    path = tmp_path / "table.csv"
    (tmp_path / ".table.csv.01234567.scratch").mkdir()
    (tmp_path / ".table.csv.01234567.scratch" / "part").write_text("half")
    (tmp_path / "table.csv.part").write_text("mine")
    alive = []

    def slowly(file):
        file.write(b"first")
        write_whole(path, lambda f: f.write(b"second"))  # another writer comes and goes
        alive.extend(tmp_path.glob(".table.csv.*.scratch"))

    write_whole(path, slowly)
    assert len(alive) == 1
    assert path.read_bytes() == b"first"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["table.csv", "table.csv.part"]


def test_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "there" / "file.txt")
    write_whole(tmp_path / "link.txt", lambda file: file.write(b"text"))
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "there" / "file.txt").read_bytes() == b"text"


def test_lock_excludes_threads_too(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(hs.InputError, match=tmp_path.name),
        locked(tmp_path, wait=False),
    ):
        pass
    with locked(tmp_path, wait=False):
        pass
