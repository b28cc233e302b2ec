import datetime
import errno
import os
import signal
import subprocess
import sys
import threading
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import howsure as hs
from howsure.io import read_file, writing

ENDINGS = (".csv", ".csv.gz", ".parquet", ".pq", ".arrow", ".feather")
FRAME = pd.DataFrame(
    {
        "name": ["Ulm", 'a "b", c\nd', None],
        "größe": [0.1, np.nan, 1e-300],
        "count": [1, 2**60, -3],
        "unfamiliar": [True, False, True],
    }
)


def write_and(path, then, **options):
    """Write a frame, and raise an error or call a function before the end."""
    with writing(path, **options) as write:
        write(FRAME)
        if not callable(then) or isinstance(then, type):
            raise then
        then()


def write_table(path, *frames, **options):
    with writing(path, **options) as write:
        for frame in frames:
            write(frame)


@pytest.mark.parametrize("ending", ENDINGS)
def test_written_frames_are_read_again(tmp_path, ending):
    path = tmp_path / f"new folder/out{ending}"
    write_table(path, FRAME, FRAME.iloc[:1], FRAME.set_index("name").reset_index())
    expected = pd.concat([FRAME, FRAME.iloc[:1], FRAME], ignore_index=True)
    pd.testing.assert_frame_equal(read_file(path), expected.convert_dtypes().astype(read_file(path).dtypes))
    assert read_file(path)["größe"].tolist()[::2][0] == 0.1
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_file_is_not_there_before_its_end(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    with writing(path) as write:
        for _ in range(3):
            write(FRAME)
            assert not path.exists()
    assert len(read_file(path)) == 9


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("mine"), FileExistsError("mine"), ValueError, SystemExit])
def test_error_leaves_the_old_file(tmp_path, ending, error):
    path = tmp_path / f"out{ending}"
    for before in (None, b"mine"):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(error if isinstance(error, type) else type(error)) as caught:
            write_and(path, error, replace=True)
        assert not isinstance(caught.value, hs.InputError)
        assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [before])


def test_file_that_is_there_is_replaced_only_on_request(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("mine")
    with pytest.raises(hs.InputError):
        write_table(path, FRAME)
    assert path.read_text() == "mine"
    write_table(path, FRAME, replace=True)
    assert len(read_file(path)) == 3


def test_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "out.parquet"
    with pytest.raises(hs.InputError, match=r"out\.parquet"):
        write_and(path, lambda: path.write_text("theirs"))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out.parquet", "theirs")]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("folder.csv", "pipe.csv", "file/out.csv", "out.xlsx", "out", "zero\0.csv", "n" * 300 + ".csv"):
        for replace in (False, True):
            with pytest.raises(hs.InputError) as caught:
                write_table(tmp_path / name, FRAME, replace=replace)
            assert str(tmp_path / name) in caught.value.message


def test_frames_that_do_not_fit(tmp_path):
    path = tmp_path / "out.parquet"
    with pytest.raises(hs.InputError):
        write_table(path, FRAME, FRAME.rename(columns={"count": "x"}))
    with pytest.raises(hs.InputError):
        write_table(path, pd.DataFrame({"x": [1]}), pd.DataFrame({"x": ["a"]}))
    with pytest.raises(hs.InputError, match=r"out\.parquet"):
        write_table(path)
    with pytest.raises(hs.InputError):
        write_table(path, pd.DataFrame([[1, 2]], columns=["x", "x"]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".arrow"])
def test_columns_of_all_kinds(tmp_path, ending):
    frame = pd.DataFrame(
        {
            "nothing": [None, None],
            "decimal": [Decimal("1.10"), None],
            "day": [datetime.date(2020, 1, 2), None],
            "moment": pd.to_datetime(["2020-01-02 03:04:05.678", None], utc=True),
            "mixed": [1, "a"],
            "whole": pd.array([2**62 + 1, None], "Int64"),
            "town": pd.Categorical(["Ulm", None]),
            7: [1.0, 2.0],
        }
    )
    later = frame.assign(nothing=["now", "text"])
    write_table(tmp_path / f"out{ending}", frame, later)
    again = read_file(tmp_path / f"out{ending}")
    assert list(again) == [*map(str, frame.columns)]
    assert again["nothing"].tolist()[2:] == ["now", "text"]
    assert str(again["decimal"][0]) in ("1.1", "1.10")
    assert str(again["day"][0]) == "2020-01-02"
    assert pd.Timestamp(again["moment"][0]) == frame["moment"][0]
    assert again["mixed"].tolist()[:2] == ["1", "a"]
    assert again["whole"][0] == 2**62 + 1
    assert again["town"][0] == "Ulm"
    assert again["7"].tolist() == [1, 2, 1, 2]


def test_full_disk_is_one_sentence(tmp_path):
    limit = 20_000  # bytes, after which nothing can be written
    script = f"""
import resource, signal
import numpy as np, pandas as pd
from howsure.io import writing
from howsure.errors import InputError
import pyarrow.csv, pyarrow.parquet
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
frame = pd.DataFrame({{"x": np.random.default_rng(0).random(70_000)}})
for ending in {ENDINGS}:
    try:
        with writing({str(tmp_path)!r} + "/out" + ending) as write:
            write(frame)
            write(frame)
    except InputError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    assert [line.startswith(str(tmp_path)) for line in done.stdout.splitlines()] == [True] * len(ENDINGS)
    assert not list(tmp_path.iterdir())


def test_killed_writer_leaves_no_file_and_the_next_one_cleans_up(tmp_path):
    path = tmp_path / "out.parquet"
    script = f"""
import numpy as np, pandas as pd
from howsure.io import writing
with writing({str(path)!r}) as write:
    while True:
        write(pd.DataFrame({{"x": np.arange(100_000)}}))
        print("written", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not path.exists()
    assert [p.suffix for p in tmp_path.iterdir()] == [".scratch"]
    write_table(path, FRAME)
    assert [p.name for p in tmp_path.iterdir()] == ["out.parquet"]


def test_writers_in_threads(tmp_path):
    errors = []

    def work(k):
        try:
            for _ in range(5):
                write_table(tmp_path / "out.csv", pd.DataFrame({"x": [k] * 500}), replace=True)
                assert read_file(tmp_path / "out.csv")["x"].nunique() == 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


def test_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    write_table(tmp_path / "out.csv", FRAME)
    assert len(read_file(tmp_path / "out.csv")) == 3
    with pytest.raises(hs.InputError, match=r"new\.csv"):
        write_and(tmp_path / "new.csv", lambda: (tmp_path / "new.csv").write_text("theirs"))
    assert (tmp_path / "new.csv").read_text() == "theirs"
