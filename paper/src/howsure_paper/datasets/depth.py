"""Read pairs of image and depth (NYU Depth v2 of Silberman et al. 2012), and images from elsewhere (CamVid).

The target is disparity, 1/metres clipped to [0, 1], as in the paper. Frames of one scene look alike, so that sets are
divided by :func:`split_scenes`, never by frame. A data folder holds ``nyu_v2_160x128.zip`` and ``camvid_160x128.zip``;
it is an argument, or the environment variable ``HOWSURE_DATA``.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure.errors import InputError
from howsure.images.folders import (
    BILINEAR,
    MAX_SET,
    Files,
    check_complete,
    files_by_key,
    import_vision,
    load_images,
    open_files,
    read_image,
    stack_pairs,
)
from howsure.io.bounded import check_size, reading
from howsure.tables.splits import Indices
from howsure_paper.datasets.folder import need_data

__all__ = ["DepthSet", "camvid", "load_images", "load_nyu", "nyu", "split_scenes"]

_SIZE = (128, 160)
_BOX = 4  # one of Pillow's resampling filters
_FRAME = "frame {:04d}"

# What is larger than these is a mistake or an attack: a file of a few bytes can declare any size.
LARGEST_INDEX = 1 << 24  # bytes of index.csv
DEFLATED = 1100  # times smaller is the most that deflate can make something


@dataclass(frozen=True)
class DepthSet:
    """Frames of image and depth.

    Attributes:
        name: of the set.
        image: (N, H, W, 3).
        disparity: (N, H, W), NaN where depth is missing.
        scene: of each frame; frames of one scene look alike.
        synthetic: whether the frames were computed.
        official: the set's own split of each frame, if it comes with one.
        note: what a reader of results should know.
    """

    name: str
    image: NDArray[np.uint8]
    disparity: NDArray[np.float32]
    scene: NDArray[np.str_]
    synthetic: bool = False
    official: NDArray[np.str_] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.image.shape != (*self.disparity.shape, 3) or self.scene.shape != self.disparity.shape[:1]:
            shapes = f"image {self.image.shape}, disparity {self.disparity.shape}, scene {self.scene.shape}"
            raise InputError(f"{self.name}: shapes (N, H, W, 3), (N, H, W), (N,) are needed, got {shapes}")

    def __len__(self) -> int:
        return len(self.scene)

    def select(self, indices: ArrayLike) -> "DepthSet":
        """Return the frames at these indices, in their order."""
        rows = np.asarray(indices)
        kept = {name: getattr(self, name)[rows] for name in ("image", "disparity", "scene")}
        return replace(self, official=None if self.official is None else self.official[rows], **kept)


def nyu(data: str | Path | None = None) -> DepthSet:
    """Return the labelled pairs of NYU Depth v2 at 160×128, from ``nyu_v2_160x128.zip`` of a data folder."""
    return load_nyu(need_data(data) / "nyu_v2_160x128.zip")


def camvid(data: str | Path | None = None) -> NDArray[np.uint8]:
    """Return outdoor frames (CamVid), the out-of-distribution set, from ``camvid_160x128.zip`` of a data folder."""
    return load_images(need_data(data) / "camvid_160x128.zip")


def load_nyu(path: str | Path) -> DepthSet:
    """Return NYU Depth v2 from a file or folder in one of its forms.

    - zip or folder: ``image/0000.jpg``, ``depth/0000.png`` (16 bit, millimetres), ``index.csv`` with a column ``scene``
    - ``nyu_depth_v2_labeled.mat`` of its authors, resized to 160×128
    - the HDF5 files of the authors of Deep Evidential Regression (``image``, ``depth``: disparity as a byte)

    The disparity is NaN where depth is zero, negative, NaN or infinite.

    A file need not be trusted: nothing is unpacked, sizes are checked before memory is taken, and HDF5 that keeps its
    values in other files is refused.
    """
    path = Path(path)
    return (_load_hdf5 if path.suffix.lower() in (".mat", ".h5", ".hdf5") else _load_frames)(path)


def split_scenes(
    scene: ArrayLike, shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> tuple[Indices, Indices, Indices]:
    """Return the indices of training, validation and test frames: whole scenes at random, close to the shares.

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


def _load_frames(path: Path) -> DepthSet:
    """Return the set in a folder or zip laid out as image/, depth/, index.csv, perhaps inside one more folder."""
    with open_files(path) as files:
        index = min((name for name in files.names if PurePosixPath(name).name == "index.csv"), key=len, default=None)
        if index is None:
            raise InputError(f"{path} has no index.csv, which names the scene of each frame; without it no fair split")
        with reading(f"{path}: {index}"):
            rows = _read_index(files.read(index, LARGEST_INDEX).decode("utf-8-sig"), f"{path}: {index}")
        root = index.removesuffix("index.csv")
        image = files_by_key(files, root, "image", "image/0000.jpg", _frame_number, _FRAME)
        depth = files_by_key(files, root, "depth", "depth/0000.png", _frame_number, _FRAME)
        check_complete(path, {"image": image, "depth": depth, "row in index.csv": rows}, _FRAME)
        numbers = sorted(rows)
        pairs = [(image[number], depth[number]) for number in numbers]
        images, disparity = stack_pairs(files, pairs, lambda name: _read_disparity(files, name))
    scene, official = zip(*(rows[number] for number in numbers), strict=True)
    known = np.array(official) if all(official) else None
    return DepthSet("NYU Depth v2", images, disparity, np.array(scene), official=known)


def _read_disparity(files: Files, name: str) -> NDArray[np.float32]:
    """Return the disparity of a depth image in millimetres."""
    millimetres = read_image(files, name)
    if not millimetres.mode.startswith("I"):
        raise InputError(f"{files.path}: {name} must be 16-bit grey, in millimetres, not of mode {millimetres.mode}")
    return _disparity(np.asarray(millimetres) / 1000, f"{files.path}: {name}")


def _read_index(content: str, where: str) -> dict[int, tuple[str, str]]:
    """Return scene and official split (or "") by frame number."""
    reader = csv.DictReader(io.StringIO(content))
    if "scene" not in (reader.fieldnames or ()):
        raise InputError(
            f"{where} lacks the column scene, it has {reader.fieldnames}; without it no fair split", column="scene"
        )
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


def _frame_number(name: PurePosixPath) -> int | None:
    return int(name.stem) if _is_number(name.stem) else None


def _load_hdf5(path: Path) -> DepthSet:
    """Return the set in the .mat of NYU's authors, or in the HDF5 file of the paper's."""
    with reading(path), import_vision("h5py").File(path, "r") as file:
        names = set(file)  # of links, which are not followed
        if {"image", "depth"} <= names:
            return _load_bytes(_own_dataset(file, "image", path), _own_dataset(file, "depth", path), path)
        if {"images", "depths", "scenes"} <= names:
            return _load_labelled(file, path)
        found = ", ".join(sorted(names)) or "nothing"
    raise InputError(f"{path} holds {found}; needed are images, depths, scenes (labelled NYU .mat) or image, depth")


def _own_dataset(file: Any, name: str, path: Path) -> Any:
    """Return a data set that lies in this file itself: through links, HDF5 can read any file of this machine."""
    if not isinstance(file.get(name, getlink=True), import_vision("h5py").HardLink):
        raise InputError(f"{path}: {name} lies in another file, or may; copy its values into this one")
    return _check_dataset(file[name], name, path)


def _check_dataset(dataset: Any, name: str, path: Path) -> Any:
    """Return a data set, or raise unless its values lie in its file, as many as it declares, and fit into memory."""
    if not isinstance(dataset, import_vision("h5py").Dataset) or dataset.dtype.kind not in "uifO":
        raise InputError(f"{path}: {name} is not an array of numbers")
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{path}: {name} lies in another file, or may; copy its values into this one")
    item = dataset.dtype.itemsize
    largest = max(dataset.size, math.prod(dataset.chunks or ())) * item  # a chunk is read whole
    check_size(f"{path}: {name}", largest, MAX_SET)
    stored = dataset.id.get_storage_size()
    if largest > DEFLATED * stored:  # what was never written reads as zeros
        raise InputError(f"{path}: {name} declares {largest:,} bytes of values but holds {stored:,}; is it incomplete?")
    return dataset


def _load_bytes(image: Any, depth: Any, path: Path) -> DepthSet:
    """Return the set in an HDF5 file of the paper's authors: disparity = byte / 255, no scenes and nothing missing."""
    pixels = image.shape[:3]
    fitting = image.shape == (*pixels, 3) and depth.shape in (pixels, (*pixels, 1))
    if not fitting or image.dtype != np.uint8 or depth.dtype != np.uint8:
        got = f"image {image.dtype} {image.shape}, depth {depth.dtype} {depth.shape}"
        raise InputError(f"{path}: needed are image (N, H, W, 3) and depth (N, H, W) of bytes (uint8), got {got}")
    disparity = depth[()].reshape(pixels) / np.float32(255)
    scene = np.array([f"frame {k}" for k in range(len(image))])
    note = "no scenes in the file: each frame counts as its own, so that a split by scene is one by frame"
    return DepthSet("NYU Depth v2 (authors' HDF5)", image[()], disparity, scene, note=note)


def _load_labelled(file: Any, path: Path) -> DepthSet:
    """Return the set in the official .mat, whose axes are reversed.

    A depth of the resized frame is the mean of the known pixels that it covers, NaN where fewer than half are known.
    """
    images, depths, cells = (_own_dataset(file, name, path) for name in ("images", "depths", "scenes"))
    if import_vision("h5py").check_ref_dtype(cells.dtype) is not import_vision("h5py").Reference:
        raise InputError(f"{path}: scenes must be references to text, as MATLAB writes a cell array")
    scenes = cells[()].ravel()
    count, plane = len(scenes), images.shape[2:]
    if images.shape != (count, 3, *plane) or images.dtype != np.uint8 or depths.shape != (count, *plane):
        got = f"images {images.dtype} {images.shape}, depths {depths.shape}, {count} scenes"
        raise InputError(f"{path}: needed are images (N, 3, W, H) of bytes, depths (N, W, H) and N scenes, got {got}")
    check_size(f"{path}: {count} frames of {_SIZE[1]}×{_SIZE[0]} pixels", count * math.prod(_SIZE) * 7, MAX_SET)
    names = np.array([_text(file[reference], f"scene {k}", path) for k, reference in enumerate(scenes)])
    image, disparity = np.empty((count, *_SIZE, 3), np.uint8), np.empty((count, *_SIZE), np.float32)
    for k in range(count):
        image[k] = _resize(images[k].T, BILINEAR)
        metres = _with_gaps(depths[k].T)
        share = _resize((~np.isnan(metres)).astype(np.float32), _BOX)
        mean = _resize(np.nan_to_num(metres), _BOX) / np.maximum(share, 0.5)
        disparity[k] = _disparity(np.where(share >= 0.5, mean, 0), f"{path}: frame {k}")
    return DepthSet("NYU Depth v2", image, disparity, names)


def _text(codes: Any, name: str, path: Path) -> str:
    """Return text that MATLAB wrote as an array of character codes."""
    if _check_dataset(codes, name, path).dtype.kind not in "ui" or codes.size > 1000:
        raise InputError(f"{path}: {name} must be a name, as an array of at most 1000 character codes")
    return "".join(map(chr, codes[()].ravel()))


def _resize(array: NDArray[Any], method: int) -> NDArray[Any]:
    return np.asarray(import_vision("PIL.Image").fromarray(np.ascontiguousarray(array)).resize(_SIZE[::-1], method))


def _with_gaps(metres: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return depth as float32, NaN where it is missing."""
    return np.where(np.isfinite(metres) & (metres > 0), metres, np.nan).astype(np.float32)


def _disparity(metres: NDArray[np.floating], where: str) -> NDArray[np.float32]:
    """Return 1/metres, at most 1, or raise if all of it is missing."""
    depth = _with_gaps(metres)
    if np.isnan(depth).all():
        raise InputError(f"{where} has no depth at any pixel; remove the frame")
    return np.minimum(1 / depth, 1)
