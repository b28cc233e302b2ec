"""Pairs of image and depth (NYU Depth v2 of Silberman et al. 2012), and images alone to be surprised by.

The target is disparity, 1/metres clipped to [0, 1], as in the paper. Frames of one scene look alike, so that sets are
divided by :func:`split_scenes`, never by frame. A data folder holds ``nyu_v2_160x128.zip`` and ``camvid_160x128.zip``;
it is an argument, or the environment variable ``EVIDENTIA_DATA``.
"""

import contextlib
import csv
import importlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evidentia.data.bounded import check_size, read_file, read_member, reading
from evidentia.data.splits import Rows
from evidentia.datasets.folder import need_data
from evidentia.errors import InputError

__all__ = ["DepthSet", "Missing", "camvid", "fill_depth", "load_images", "load_nyu", "nyu", "split_scenes"]

Missing = Literal["mask", "fill"]
_SIZE = (128, 160)
_BILINEAR, _BOX = 2, 4  # Pillow's resampling filters
_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"))
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # Pillow goes by the content, not by the suffix

# What is larger than these is a mistake or an attack: a file of a few bytes can declare any size.
LARGEST_FILE = 1 << 28  # bytes of one image, packed or not
LARGEST_INDEX = 1 << 24  # bytes of index.csv
LARGEST_IMAGE = 1 << 26  # pixels of one image
LARGEST_SET = 1 << 34  # bytes of all images, or of all depths, in memory
DEFLATED = 1100  # times smaller is the most that deflate can make something


@dataclass(frozen=True)
class DepthSet:
    """Images (N, H, W, 3), disparities (N, H, W) with NaN where depth is missing, and the scene of each frame."""

    name: str
    image: NDArray[np.uint8]
    disparity: NDArray[np.float32]
    scene: NDArray[np.str_]
    synthetic: bool = False
    official: NDArray[np.str_] | None = None  # the set's own split of each frame, where it comes with one
    note: str = ""

    def __post_init__(self) -> None:
        if self.image.shape != (*self.disparity.shape, 3) or self.scene.shape != self.disparity.shape[:1]:
            shapes = f"image {self.image.shape}, disparity {self.disparity.shape}, scene {self.scene.shape}"
            raise InputError(f"{self.name}: shapes (N, H, W, 3), (N, H, W), (N,) are needed, got {shapes}")

    def __len__(self) -> int:
        return len(self.scene)

    def select(self, indices: ArrayLike) -> "DepthSet":
        """The frames at these indices, in their order."""
        rows = np.asarray(indices)
        kept = {name: getattr(self, name)[rows] for name in ("image", "disparity", "scene")}
        return replace(self, official=None if self.official is None else self.official[rows], **kept)


def nyu(data: str | Path | None = None, missing: Missing = "mask") -> DepthSet:
    """The labelled pairs of NYU Depth v2 at 160×128, from ``nyu_v2_160x128.zip`` of a data folder."""
    return load_nyu(need_data(data) / "nyu_v2_160x128.zip", missing)


def camvid(data: str | Path | None = None) -> NDArray[np.uint8]:
    """Outdoor driving frames (CamVid), the out-of-distribution set, from ``camvid_160x128.zip`` of a data folder."""
    return load_images(need_data(data) / "camvid_160x128.zip")


def load_nyu(path: str | Path, missing: Missing = "mask") -> DepthSet:
    """Return NYU Depth v2, in any of the forms it is found in.

    - zip or folder: ``image/0000.jpg``, ``depth/0000.png`` (16 bit, millimetres), ``index.csv`` with a column ``scene``
    - ``nyu_depth_v2_labeled.mat`` of its authors, resized to 160×128
    - the HDF5 files of the authors of Deep Evidential Regression (``image``, ``depth``: disparity as a byte)

    Depth that is zero, negative, NaN or infinite is missing: NaN with ``missing="mask"``, or with ``"fill"`` taken
    from the neighbours of similar grey (:func:`fill_depth`).

    A file need not be trusted: nothing is unpacked, sizes are checked before memory is taken, and HDF5 that keeps its
    values in other files is refused.
    """
    path = Path(path)
    if missing not in ("mask", "fill"):
        raise InputError(f"missing must be mask or fill, got {missing!r}")
    return (_load_hdf5 if path.suffix.lower() in (".mat", ".h5", ".hdf5") else _load_pairs)(path, missing)


def load_images(path: str | Path, size: tuple[int, int] = _SIZE) -> NDArray[np.uint8]:
    """Return images of any size and kind in a folder or zip, in the order of their names, as (N, *size, 3).

    Each is resized until it covers ``size`` (height, width) and cut on both sides alike; transparency is ignored.
    """
    sides = tuple(size) if isinstance(size, Sequence) else ()
    if len(sides) != 2 or not all(isinstance(n, Integral) and n > 0 for n in sides):
        raise InputError(f"size must be a height and a width, two whole numbers from 1 on, got {size!r}")
    fit = _vision("PIL.ImageOps").fit
    with _files(Path(path)) as (names, read):
        images = [name for name in names if PurePosixPath(name).suffix.lower() in _SUFFIXES]
        if not images:
            raise InputError(f"{path} holds no images; known are {', '.join(sorted(_SUFFIXES))}")
        shape = (len(images), *sides, 3)
        check_size(f"{path}: {len(images)} images of {sides[1]}×{sides[0]} pixels", math.prod(shape), LARGEST_SET)
        result = np.empty(shape, np.uint8)
        for k, name in enumerate(images):
            result[k] = fit(_rgb(read, name, path), sides[::-1], method=_BILINEAR)
    return result


def split_scenes(scene: ArrayLike, shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0) -> tuple[Rows, Rows, Rows]:
    """Indices of training, validation and test frames: whole scenes at random, as near to the shares as they allow.

    >>> train, validation, test = split_scenes(list("aabbccddee"), (0.6, 0.2, 0.2))
    >>> len(train), len(validation), len(test)
    (6, 2, 2)
    """
    labels = np.asarray(scene)
    unnamed = int(np.sum(labels != labels))  # NaN is not equal to itself
    if unnamed:
        raise InputError(f"{unnamed} of {len(labels)} frames have no scene: NaN; name one for each")
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"shares must be three positive numbers that add up to 1, got {tuple(shares)}")
    names, counts = np.unique(labels, return_counts=True)
    if len(names) < 3:
        few = "one scene only" if len(names) == 1 else f"{len(names)} scenes"
        raise InputError(f"{few}: a split by scene needs at least 3, for training, validation and test")
    order = np.random.default_rng(seed).permutation(len(names))
    reached = np.cumsum(counts[order]) / len(labels)
    first, second = (1 + int(np.argmin(abs(reached - goal))) for goal in (shares[0], shares[0] + shares[1]))
    first = min(first, len(names) - 2)
    second = min(max(second, first + 1), len(names) - 1)
    parts = [names[part] for part in np.split(order, [first, second])]
    train, validation, test = (np.flatnonzero(np.isin(labels, part)) for part in parts)
    return train, validation, test


def fill_depth(metres: NDArray[np.floating], image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Depth (H, W) with its gaps filled by colorization (Levin, Lischinski and Weiss 2004); what is known stays.

    A missing pixel r is the weighted mean of its neighbours s in the 3×3 window, with w_rs ∝ exp(−(Y_r − Y_s)²/2σ_r²)
    for grey Y and its variance σ_r² in the window: one sparse linear system for all of them.
    """
    from scipy.sparse import csr_array, eye_array
    from scipy.sparse.linalg import spsolve

    result = _with_gaps(metres)
    known = ~np.isnan(result)
    if not known.any():
        raise InputError("no pixel has a depth, so that there is nothing to fill from")
    if known.all():
        return result
    height, width = result.shape
    grey = (image @ np.array([0.299, 0.587, 0.114]) / 255).ravel()
    index = np.pad(np.arange(grey.size).reshape(height, width), 1, constant_values=-1)
    window = np.stack([index[a : a + height, b : b + width][~known] for a in range(3) for b in range(3)], axis=1)
    inside, window = window >= 0, np.maximum(window, 0)
    variance = np.maximum(np.var(grey[window], axis=1, where=inside, keepdims=True), 1e-6)
    weight = inside * np.exp(-((grey[window] - grey[window[:, 4:5]]) ** 2) / (2 * variance))
    weight[:, 4] = 0  # the pixel itself
    weight /= weight.sum(axis=1, keepdims=True)
    rows = np.repeat(np.arange(len(window)), 9)
    mean = csr_array((weight.ravel(), (rows, window.ravel())), shape=(len(window), grey.size))
    system = eye_array(len(window)) - mean[:, np.flatnonzero(~known)]
    result[~known] = spsolve(system.tocsc(), mean[:, np.flatnonzero(known)] @ result[known])
    return result


def _load_pairs(path: Path, missing: Missing) -> DepthSet:
    """From a folder or zip laid out as image/, depth/, index.csv, perhaps inside one more folder."""
    image, disparity = [], []
    with _files(path) as (names, read):
        index = min((name for name in names if PurePosixPath(name).name == "index.csv"), key=len, default=None)
        if index is None:
            raise InputError(f"{path} has no index.csv, which names the scene of each frame; without it no fair split")
        with reading(f"{path}: {index}"):
            rows = _read_index(read(index, LARGEST_INDEX).decode("utf-8-sig"), f"{path}: {index}")
        pairs = _pair(names, index.removesuffix("index.csv"), set(rows), path)
        for name, depth in pairs:
            image.append(np.asarray(_rgb(read, name, path)))
            if len(image) == 1:  # the others must be alike
                height, width = image[0].shape[:2]
                frames = f"{path}: {len(pairs)} frames of {width}×{height} pixels"
                check_size(frames, len(pairs) * height * width * 7, LARGEST_SET)  # three bytes of colour, four of depth
            millimetres = _decode(read, depth, path)
            if not millimetres.mode.startswith("I"):
                raise InputError(f"{path}: {depth} must be 16-bit grey, in millimetres, not of mode {millimetres.mode}")
            metres = np.asarray(millimetres) / 1000
            for what, array in ((name, image[-1]), (depth, metres)):
                if array.shape[:2] != image[0].shape[:2]:
                    (h, w), (height, width) = array.shape[:2], image[0].shape[:2]
                    raise InputError(f"{path}: {what} is {w}×{h}, {pairs[0][0]} is {width}×{height}; make them alike")
            disparity.append(_disparity(metres, image[-1], missing, f"{path}: {depth}"))
    scene, official = zip(*(rows[number] for number in sorted(rows)), strict=True)
    known = np.array(official) if all(official) else None
    return DepthSet("NYU Depth v2", np.stack(image), np.stack(disparity), np.array(scene), official=known)


def _read_index(content: str, where: str) -> dict[int, tuple[str, str]]:
    """Return scene and official split (or "") by frame number."""
    reader = csv.DictReader(io.StringIO(content))
    if "scene" not in (reader.fieldnames or ()):
        raise InputError(f"{where} lacks the column scene, it has {reader.fieldnames}; without it no fair split")
    rows: dict[int, tuple[str, str]] = {}
    for k, row in enumerate(reader):
        frame = row.get("file_index0") or str(k)
        if not _is_number(frame) or int(frame) in rows or not row["scene"]:
            got = str(row)[:200]
            raise InputError(f"{where}, line {k + 2}: each frame needs a number of its own and a scene, got {got}")
        rows[int(frame)] = row["scene"], row.get("official_split") or row.get("split") or ""
    return rows


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 10  # Python refuses to convert thousands of digits


def _pair(names: list[str], root: str, rows: set[int], path: Path) -> list[tuple[str, str]]:
    """Return the image and depth file of each frame, by number; every one has both, and a row of the index."""
    found: dict[str, dict[int, str]] = {}
    for part, example in (("image", "image/0000.jpg"), ("depth", "depth/0000.png")):
        inside = [PurePosixPath(name) for name in names if name.startswith(f"{root}{part}/")]
        found[part] = {}
        for name in inside:
            if not _is_number(name.stem) or name.suffix.lower() not in _SUFFIXES:
                continue
            other = found[part].setdefault(int(name.stem), str(name))
            if other != str(name):
                frame = f"frame {int(name.stem):04d}"
                raise InputError(f"{path}: {frame} has two {part} files, {other} and {name}; remove one")
        if not found[part]:
            raise InputError(f"{path} holds no {part}; files such as {example} are needed")
    for what, group in (*found.items(), ("row in index.csv", rows)):
        lacking = sorted(rows.union(*found.values()).difference(group))
        if lacking:
            raise InputError(f"{path}: frame {lacking[0]:04d} has no {what}; add it, or drop the frame")
    return [(found["image"][number], found["depth"][number]) for number in sorted(rows)]


def _load_hdf5(path: Path, missing: Missing) -> DepthSet:
    with reading(path), _vision("h5py").File(path, "r") as file:
        names = set(file)  # of links, which are not followed
        if {"image", "depth"} <= names:
            return _load_bytes(_own(file, "image", path), _own(file, "depth", path), path)
        if {"images", "depths", "scenes"} <= names:
            return _load_labelled(file, path, missing)
        found = ", ".join(sorted(names)) or "nothing"
    raise InputError(f"{path} holds {found}; needed are images, depths, scenes (labelled NYU .mat) or image, depth")


def _own(file: Any, name: str, path: Path) -> Any:
    """Return a data set of this file that lies in it itself: HDF5 can read any file of this machine through links."""
    if not isinstance(file.get(name, getlink=True), _vision("h5py").HardLink):
        raise InputError(f"{path}: {name} lies in another file, or may; copy its values into this one")
    return _checked(file[name], name, path)


def _checked(dataset: Any, name: str, path: Path) -> Any:
    """Return a data set whose values lie in its file, as many as it declares, and fit into memory."""
    if not isinstance(dataset, _vision("h5py").Dataset) or dataset.dtype.kind not in "uifO":
        raise InputError(f"{path}: {name} is not an array of numbers")
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{path}: {name} lies in another file, or may; copy its values into this one")
    item = dataset.dtype.itemsize
    largest = max(dataset.size, math.prod(dataset.chunks or ())) * item  # a chunk is read whole
    check_size(f"{path}: {name}", largest, LARGEST_SET)
    stored = dataset.id.get_storage_size()
    if largest > DEFLATED * stored:  # what was never written reads as zeros
        raise InputError(f"{path}: {name} declares {largest:,} bytes of values but holds {stored:,}; is it incomplete?")
    return dataset


def _load_bytes(image: Any, depth: Any, path: Path) -> DepthSet:
    """The HDF5 files of the paper's authors: disparity = byte / 255, no scenes and nothing missing."""
    pixels = image.shape[:3]
    fitting = image.shape == (*pixels, 3) and depth.shape in (pixels, (*pixels, 1))
    if not fitting or image.dtype != np.uint8 or depth.dtype != np.uint8:
        got = f"image {image.dtype} {image.shape}, depth {depth.dtype} {depth.shape}"
        raise InputError(f"{path}: needed are image (N, H, W, 3) and depth (N, H, W) of bytes (uint8), got {got}")
    disparity = depth[()].reshape(pixels) / np.float32(255)
    scene = np.array([f"frame {k}" for k in range(len(image))])
    note = "no scenes in the file: each frame counts as its own, so that a split by scene is one by frame"
    return DepthSet("NYU Depth v2 (authors' HDF5)", image[()], disparity, scene, note=note)


def _load_labelled(file: Any, path: Path, missing: Missing) -> DepthSet:
    """The official .mat, whose axes are reversed; a depth is the mean of its known pixels where half of them are."""
    images, depths, cells = (_own(file, name, path) for name in ("images", "depths", "scenes"))
    if _vision("h5py").check_ref_dtype(cells.dtype) is not _vision("h5py").Reference:
        raise InputError(f"{path}: scenes must be references to text, as MATLAB writes a cell array")
    scenes = cells[()].ravel()
    count, plane = len(scenes), images.shape[2:]
    if images.shape != (count, 3, *plane) or images.dtype != np.uint8 or depths.shape != (count, *plane):
        got = f"images {images.dtype} {images.shape}, depths {depths.shape}, {count} scenes"
        raise InputError(f"{path}: needed are images (N, 3, W, H) of bytes, depths (N, W, H) and N scenes, got {got}")
    check_size(f"{path}: {count} frames of {_SIZE[1]}×{_SIZE[0]} pixels", count * math.prod(_SIZE) * 7, LARGEST_SET)
    names = np.array([_text(file[reference], f"scene {k}", path) for k, reference in enumerate(scenes)])
    image, disparity = np.empty((count, *_SIZE, 3), np.uint8), np.empty((count, *_SIZE), np.float32)
    for k in range(count):
        image[k] = _resize(images[k].T, _BILINEAR)
        metres = _with_gaps(depths[k].T)
        share = _resize((~np.isnan(metres)).astype(np.float32), _BOX)
        mean = _resize(np.nan_to_num(metres), _BOX) / np.maximum(share, 0.5)
        disparity[k] = _disparity(np.where(share >= 0.5, mean, 0), image[k], missing, f"{path}: frame {k}")
    return DepthSet("NYU Depth v2", image, disparity, names)


def _text(codes: Any, name: str, path: Path) -> str:
    """Return text that MATLAB wrote as an array of character codes."""
    if _checked(codes, name, path).dtype.kind not in "ui" or codes.size > 1000:
        raise InputError(f"{path}: {name} must be a name, as an array of at most 1000 character codes")
    return "".join(map(chr, codes[()].ravel()))


def _resize(array: NDArray[Any], method: int) -> NDArray[Any]:
    return np.asarray(_vision("PIL.Image").fromarray(np.ascontiguousarray(array)).resize(_SIZE[::-1], method))


def _with_gaps(metres: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.where(np.isfinite(metres) & (metres > 0), metres, np.nan).astype(np.float32)


def _disparity(metres: NDArray[np.floating], image: NDArray[np.uint8], missing: str, where: str) -> NDArray[np.float32]:
    depth = _with_gaps(metres)
    if np.isnan(depth).all():
        raise InputError(f"{where} has no depth at any pixel; remove the frame")
    return np.minimum(1 / (fill_depth(depth, image) if missing == "fill" else depth), 1)


Read = Callable[[str, int], bytes]  # the content of a file of this name, if it is not larger than this


@contextlib.contextmanager
def _files(path: Path) -> Iterator[tuple[list[str], Read]]:
    """Give the sorted names and a reader of the files of a folder or a zip, hidden ones left out."""
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        yield _visible(names), lambda name, most: read_file(path / name, most)
        return
    if not path.is_file():
        raise InputError(f"{path} does not exist; a folder or a zip is needed")
    with reading(path):
        archive = zipfile.ZipFile(path)
    with archive:
        yield _visible(archive.namelist()), lambda name, most: read_member(archive, name, most)


def _visible(names: list[str]) -> list[str]:
    """Return the names of files, each once; those with a part such as .git, .. or __MACOSX are left out."""
    parts = {name: name.split("/") for name in names if name and not name.endswith("/")}
    return sorted(name for name, each in parts.items() if not any(p.startswith((".", "__MACOSX")) for p in each))


def _vision(module: str) -> Any:
    """Return Pillow or h5py, which are needed here only and are therefore an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module.split('.')[0]} is not installed: pip install evidentia[vision]") from error


def _decode(read: Read, name: str, path: str | Path) -> Any:
    """Return an image as it is meant to be seen; its size is known before any pixel is decoded."""
    where = f"{path}: {name}"
    with reading(where):
        image = _vision("PIL.Image").open(io.BytesIO(read(name, LARGEST_FILE)), formats=_FORMATS)
        if image.width * image.height > LARGEST_IMAGE:
            size = f"{image.width}×{image.height} pixels"
            raise InputError(f"{where} declares {size}, more than {LARGEST_IMAGE:,} in all; make it smaller")
        return _vision("PIL.ImageOps").exif_transpose(image)


def _rgb(read: Read, name: str, path: str | Path) -> Any:
    """Return grey, palette, transparent and 16-bit images as 8-bit RGB."""
    image = _decode(read, name, path)
    if image.mode == "F":
        raise InputError(f"{path}: {name} holds floating-point numbers; save it with 8 or 16 bits")
    with reading(f"{path}: {name}"):
        if image.mode.startswith("I"):
            grey = np.clip(np.asarray(image), 0, 65535) // 257
            return _vision("PIL.Image").fromarray(grey.astype(np.uint8)).convert("RGB")
        return image.convert("RGBA" if image.mode in ("P", "PA") else image.mode).convert("RGB")
