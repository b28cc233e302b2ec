"""The data sets of the benchmarks: the cubic toy and the UCI sets."""

import contextlib
import functools
import hashlib
import http.server
import os
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import howsure as hs
from howsure_paper.datasets import uci
from howsure_paper.datasets.cubic import cubic

DATA = Path(os.environ.get("HOWSURE_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "uci").is_dir(), reason="no data folder; set HOWSURE_DATA")


def test_cubic():
    x, y = cubic(100_000, seed=1)
    assert x.shape == (100_000, 1)
    assert (x.min(), x.max()) == (-4, 4)
    assert np.std(y - x[:, 0] ** 3) == pytest.approx(3, rel=0.01)
    assert np.array_equal(cubic(seed=3)[1], cubic(seed=3)[1])


# UCI ----------------------------------------------------------------------------------------------------------------


def check_partition(split, n):
    train, test = split
    assert sorted([*train, *test]) == list(range(n))
    assert len(train)
    assert len(test)


@needs_data
@pytest.mark.parametrize("name", uci.SETS)
def test_standard_splits_are_partitions(name):
    table = uci.load(name, DATA)
    entry = uci.SETS[name]
    assert table.x.shape[0] == table.y.shape[0] == entry.rows
    assert len(table.splits) == entry.splits
    for split in table.splits:
        check_partition(split, entry.rows)
    assert np.isfinite(table.x).all()
    assert np.isfinite(table.y).all()


@needs_data
def test_targets_are_the_standard_ones():
    assert uci.load("energy", DATA).y[0] == 15.55  # heating, not cooling
    naval = uci.load("naval", DATA)
    assert naval.x.shape[1] == 16
    assert naval.y.min() == pytest.approx(0.95)  # compressor decay


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A tiny set with the layout of the real ones, served over HTTP from this machine."""
    source = tmp_path / "origin" / "tiny" / "data"
    source.mkdir(parents=True)
    files = {
        "data.txt": "1 2 3\n4 5 6\n7 8 9\n",
        "index_features.txt": "0\n1\n",
        "index_target.txt": "2\n",
        "index_train_0.txt": "0.0e+00\n2.0e+00\n",
        "index_test_0.txt": "1\n",
    }
    for file, text in files.items():
        (source / file).write_text(text)
    entry = uci._Set("tiny", 3, 1, "", "")
    # as the shell's `sha256sum index_features.txt index_target.txt … | sha256sum`
    lines = "".join(f"{hashlib.sha256(files[f].encode()).hexdigest()}  {f}\n" for f in entry.index_files)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    entry = replace(entry, data_sha256=hashlib.sha256(files["data.txt"].encode()).hexdigest(), index_sha256=digest)
    monkeypatch.setattr(uci, "SETS", {"tiny": entry})
    with serving(functools.partial(_Quiet, directory=str(tmp_path / "origin"))) as origin:
        yield source, origin, tmp_path / "data"


@contextlib.contextmanager
def serving(handler):
    """A server on this machine, stopped at the end."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def left_behind(data):
    """Every file and folder there is."""
    return sorted(str(p.relative_to(data.parent)) for p in data.parent.rglob("*") if "origin" not in p.parts)


def test_set_is_fetched_checked_and_read(made_up, monkeypatch):
    _, origin, data = made_up
    folder = uci.download("tiny", data, origin)
    assert folder == data / "uci" / "tiny"
    table = uci.load("tiny", data)
    assert table.x.tolist() == [[1, 2], [4, 5], [7, 8]]
    assert table.y.tolist() == [3, 6, 9]
    assert [part.tolist() for part in table.splits[0]] == [[0, 2], [1]]
    monkeypatch.setenv("HOWSURE_DATA", str(data))
    assert uci.load("tiny").y.tolist() == [3, 6, 9]
    (folder / "data.txt").unlink()
    uci.download("tiny", data, origin)  # completes a folder that lost a file
    assert uci.load("tiny", data).y.tolist() == [3, 6, 9]


def test_server_that_sends_slowly_is_left(made_up, monkeypatch):
    """Each byte comes in time, and the whole never."""
    left = threading.Event()

    class Slow(_Quiet):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            with contextlib.suppress(OSError):
                while not left.wait(0.05):
                    self.wfile.write(b"1")
                    self.wfile.flush()

    _, _, data = made_up
    monkeypatch.setattr(uci, "MAX_SECONDS", 0.5)
    with serving(Slow) as origin:
        with pytest.raises(hs.InputError) as caught:
            uci.download("tiny", data, origin)
        left.set()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert left_behind(data) == []


def test_changed_file_raises_and_leaves_nothing(made_up):
    source, origin, data = made_up
    (source / "data.txt").write_text("1 2 3\n4 5 6\n7 8 8\n")
    with pytest.raises(hs.InputError, match=r"data\.txt"):
        uci.download("tiny", data, origin)
    assert not (data / "uci" / "tiny").exists()


def test_truncated_file_on_disk_raises(made_up):
    _, origin, data = made_up
    folder = uci.download("tiny", data, origin)
    (folder / "index_test_0.txt").write_text("")
    with pytest.raises(hs.InputError):
        uci.load("tiny", data)


def test_row_moved_to_the_next_file_is_noticed(made_up):
    """The bytes of all files one after the other are the same, but a row for testing became one for training."""
    _, origin, data = made_up
    folder = uci.download("tiny", data, origin)
    train, test = folder / "index_train_0.txt", folder / "index_test_0.txt"
    both = train.read_text() + test.read_text()
    train.write_text("0.0e+00\n")
    test.write_text("2.0e+00\n1\n")
    assert train.read_text() + test.read_text() == both
    with pytest.raises(hs.InputError):
        uci.load("tiny", data)


def respond(answer):
    """A server's handler that writes these bytes to every request."""

    class Handler(_Quiet):
        def do_GET(self):
            self.wfile.write(answer)
            self.close_connection = True

    return Handler


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X" * 70_000 + b"\r\n\r\n",  # LineTooLong
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n1 2 3\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n1 2 3\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n1 2 3\n",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[bad/\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n",
    ],
)
def test_errors_of_a_server(made_up, answer):
    _, _, data = made_up
    with (
        serving(respond(answer)) as origin,
        pytest.raises(hs.InputError, match=r"/tiny/data/data\.txt"),
    ):
        uci.download("tiny", data, origin)
    assert left_behind(data) == []


def test_endless_response_raises(made_up, monkeypatch):
    _, _, data = made_up
    monkeypatch.setattr(uci, "LARGEST", 1000)

    class Endless(_Quiet):
        def do_GET(self):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    self.wfile.write(b"1 2 3\n" * 1000)
            self.close_connection = True

    with serving(Endless) as origin, pytest.raises(hs.InputError, match=r"\b1,000\b"):
        uci.download("tiny", data, origin)
    assert left_behind(data) == []
    (data / "uci" / "tiny").mkdir(parents=True)
    for file in ("data.txt", *uci.SETS["tiny"].index_files):
        (data / "uci" / "tiny" / file).write_bytes(bytes(1001))
    with pytest.raises(hs.InputError, match=r"data\.txt"):
        uci.load("tiny", data)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["headers", "content"])
def test_transfer_in_small_pieces_ends_in_time(made_up, monkeypatch, start):
    _, _, data = made_up
    monkeypatch.setattr(uci, "MAX_SECONDS", 0.5)
    stopped = threading.Event()

    class Slow(_Quiet):
        def do_GET(self):
            with contextlib.suppress(OSError):
                self.wfile.write(start)
                while not stopped.wait(0.05):  # every read is quick
                    self.wfile.write(b"1")
            self.close_connection = True

    with serving(Slow) as origin:
        with pytest.raises(hs.InputError, match=r"\b0\.5 s"):
            uci.download("tiny", data, origin)
        stopped.set()
    assert left_behind(data) == []


def test_all_files_of_a_set_share_the_time(made_up, monkeypatch):
    _, _, data = made_up
    monkeypatch.setattr(uci, "MAX_SECONDS", 0.5)
    source = made_up[0]

    class Late(_Quiet):
        def do_GET(self):
            threading.Event().wait(0.2)
            content = (source / self.path.rpartition("/")[2]).read_bytes()
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + content)
            self.close_connection = True

    with serving(Late) as origin, pytest.raises(hs.InputError, match=r"\b0\.5 s"):
        uci.download("tiny", data, origin)


@pytest.mark.parametrize("origin", ["ftp//x", "nothing://x", "http://127.0.0.1:1", "http://[bad", "file:///nowhere"])
def test_origins_that_cannot_be_reached(made_up, origin):
    _, _, data = made_up
    with pytest.raises(hs.InputError):
        uci.download("tiny", data, origin)
    assert left_behind(data) == []


def test_existing_files_stay_unchanged(made_up):
    _, origin, data = made_up
    folder = data / "uci" / "tiny"
    (folder / "index_target.txt").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "data.txt").write_text("not the set's")
    before = left_behind(data)
    with pytest.raises(hs.InputError, match=r"index_target\.txt"):
        uci.download("tiny", data, origin)
    assert left_behind(data) == before
    assert (folder / "data.txt").read_text() == "not the set's"
    (folder / "index_target.txt").rmdir()
    uci.download("tiny", data, origin)
    assert uci.load("tiny", data).y.tolist() == [3, 6, 9]
    assert (folder / "notes.txt").read_text() == "mine"
    (data.parent / "other").write_text("a file")
    with pytest.raises(hs.InputError):
        uci.download("tiny", data.parent / "other", origin)
    assert (data.parent / "other").read_text() == "a file"


def test_failure_while_writing_leaves_nothing(made_up, monkeypatch):
    _, origin, data = made_up

    def full(self, *arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(hs.InputError):
        uci.download("tiny", data, origin)
    assert left_behind(data) == []


# The spreadsheet of Energy ------------------------------------------------------------------------------------------

SPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LAUGHS = "".join(f"<!ENTITY a{k} '{f'&a{k - 1};' * 10 if k else 'ha'}'>" for k in range(10))


def sheet(rows):
    cells = "".join("<row>" + "".join(f"<c><v>{v}</v></c>" for v in row) + "</row>" for row in rows)
    return f"<?xml version='1.0'?><worksheet xmlns='{SPACE}'><sheetData>{cells}</sheetData></worksheet>".encode()


def write_book(path, content, name="xl/worksheets/sheet1.xml", **options):
    with zipfile.ZipFile(path, "w") as book:
        book.writestr(name, content, **options)
    return path


@pytest.fixture
def energy():
    table = np.round(np.random.default_rng(0).uniform(1, 9, (5, 10)), 2)
    return table, [[f"column {k}" for k in range(10)], *table.tolist()]


def test_cooling_load_is_the_last_column(energy, tmp_path):
    table, rows = energy
    path = write_book(tmp_path / "e.xlsx", sheet([*rows, [""] * 3]), compress_type=zipfile.ZIP_DEFLATED)
    assert uci._cooling(path, table[:, :8], table[:, 8]) == pytest.approx(table[:, 9])


@pytest.mark.parametrize(
    "make",
    [
        lambda p, _: p.write_bytes(b"not a zip"),
        lambda p, _: write_book(p, b"<a>"),
        lambda p, _: write_book(p, b"", "other.xml"),
        lambda p, rows: write_book(p, sheet([*rows[:3], ["n/a"] * 10])),
        lambda p, _: write_book(p, f"<!DOCTYPE x [{LAUGHS}]><x>&a9;</x>".encode()),
        lambda p, _: write_book(p, f"<!DOCTYPE x [{LAUGHS}]><x>&a9;</x>".encode("utf-16")),
        lambda p, _: write_book(p, bytes(2_000_000), compress_type=zipfile.ZIP_DEFLATED),
        lambda p, _: write_book(p, bytes(10), compress_type=zipfile.ZIP_LZMA),
    ],
)
def test_spreadsheets_that_are_something_else(energy, tmp_path, monkeypatch, make):
    monkeypatch.setattr(uci, "LARGEST", 1_000_000)
    table, rows = energy
    make(tmp_path / "e.xlsx", rows)
    with pytest.raises(hs.InputError, match=r"e\.xlsx"):
        uci._cooling(tmp_path / "e.xlsx", table[:, :8], table[:, 8])


@needs_data
def test_real_cooling_load():
    assert uci.load("energy", DATA, target="published").y[0] == 21.33


def test_without_a_network_the_message_names_the_file(made_up):
    source, origin, data = made_up
    with pytest.raises(hs.InputError, match=r"data\.txt"):
        uci.load("tiny", data)
    (source / "index_target.txt").unlink()
    with pytest.raises(hs.InputError, match=r"index_target\.txt"):
        uci.download("tiny", data, origin)


def test_unknown_sets_and_folders(monkeypatch):
    monkeypatch.delenv("HOWSURE_DATA", raising=False)
    with pytest.raises(hs.InputError, match="'iris'"):
        uci.load("iris")
    with pytest.raises(hs.InputError, match="HOWSURE_DATA"):
        uci.load("yacht")
