"""Pairs of image and depth (NYU Depth v2 of Silberman et al. 2012), and images alone to be surprised by.

The target is disparity, 1/metres clipped to [0, 1], as in the paper. Frames of one scene look alike, so that sets are
divided by :func:`split_scenes`, never by frame. A data folder holds ``nyu_v2_160x128.zip`` and ``camvid_160x128.zip``;
it is an argument, or the environment variable ``EVIDENTIA_DATA``.
"""

import contextlib
import csv
import importlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evidentia.data.folder import need_data
from evidentia.data.splits import Rows
from evidentia.errors import InputError

__all__ = ["DepthSet", "Missing", "camvid", "fill_depth", "load_images", "load_nyu", "nyu", "split_scenes"]

Missing = Literal["mask", "fill"]
_SIZE = (128, 160)
_BILINEAR, _BOX = 2, 4  # Pillow's resampling filters
_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"))


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
    """NYU Depth v2 in any of the forms it is found in.

    - zip or folder: ``image/0000.jpg``, ``depth/0000.png`` (16 bit, millimetres), ``index.csv`` with a column ``scene``
    - ``nyu_depth_v2_labeled.mat`` of its authors, resized to 160×128
    - the HDF5 files of the authors of Deep Evidential Regression (``image``, ``depth``: disparity as a byte)

    Depth that is zero, negative, NaN or infinite is missing: NaN with ``missing="mask"``, or with ``"fill"`` taken
    from the neighbours of similar grey (:func:`fill_depth`).
    """
    path = Path(path)
    if missing not in ("mask", "fill"):
        raise InputError(f"missing must be mask or fill, got {missing!r}")
    return (_load_hdf5 if path.suffix.lower() in (".mat", ".h5", ".hdf5") else _load_pairs)(path, missing)


def load_images(path: str | Path, size: tuple[int, int] = _SIZE) -> NDArray[np.uint8]:
    """Images of any size and kind in a folder or zip, in the order of their names, as (N, *size, 3).

    Each is resized until it covers ``size`` (height, width) and cut on both sides alike; transparency is ignored.
    """
    fit = _vision("PIL.ImageOps").fit
    with _files(Path(path)) as (names, read):
        images = [name for name in names if PurePosixPath(name).suffix.lower() in _SUFFIXES]
        if not images:
            raise InputError(f"{path} holds no images; known are {', '.join(sorted(_SUFFIXES))}")
        result = np.empty((len(images), *size, 3), np.uint8)
        for k, name in enumerate(images):
            result[k] = fit(_rgb(read, name, path), size[::-1], method=_BILINEAR)
    return result


def split_scenes(scene: ArrayLike, shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0) -> tuple[Rows, Rows, Rows]:
    """Indices of training, validation and test frames: whole scenes at random, as near to the shares as they allow.

    >>> train, validation, test = split_scenes(list("aabbccddee"), (0.6, 0.2, 0.2))
    >>> len(train), len(validation), len(test)
    (6, 2, 2)
    """
    labels = np.asarray(scene)
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
        with _reading(f"{path}: {index}"):
            rows = _read_index(read(index).decode("utf-8-sig"), f"{path}: {index}")
        pairs = _pair(names, index.removesuffix("index.csv"), set(rows), path)
        for name, depth in pairs:
            image.append(np.asarray(_rgb(read, name, path)))
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
    """Scene and official split (or "") by frame number."""
    reader = csv.DictReader(io.StringIO(content))
    if "scene" not in (reader.fieldnames or ()):
        raise InputError(f"{where} lacks the column scene, it has {reader.fieldnames}; without it no fair split")
    rows: dict[int, tuple[str, str]] = {}
    for k, row in enumerate(reader):
        frame = row.get("file_index0") or str(k)
        if not frame.isdecimal() or int(frame) in rows or not row["scene"]:
            raise InputError(f"{where}, line {k + 2}: each frame needs a number of its own and a scene, got {row}")
        rows[int(frame)] = row["scene"], row.get("official_split") or row.get("split") or ""
    return rows


def _pair(names: list[str], root: str, rows: set[int], path: Path) -> list[tuple[str, str]]:
    """The image and depth files of each frame, by number; every one has both, and a row of the index."""
    found: dict[str, dict[int, str]] = {}
    for part, example in (("image", "image/0000.jpg"), ("depth", "depth/0000.png")):
        inside = [PurePosixPath(name) for name in names if name.startswith(f"{root}{part}/")]
        found[part] = {int(n.stem): str(n) for n in inside if n.stem.isdecimal() and n.suffix.lower() in _SUFFIXES}
        if not found[part]:
            raise InputError(f"{path} holds no {part}; files such as {example} are needed")
    for what, group in (*found.items(), ("row in index.csv", rows)):
        lacking = sorted(rows.union(*found.values()).difference(group))
        if lacking:
            raise InputError(f"{path}: frame {lacking[0]:04d} has no {what}; add it, or drop the frame")
    return [(found["image"][number], found["depth"][number]) for number in sorted(rows)]


def _load_hdf5(path: Path, missing: Missing) -> DepthSet:
    with _reading(path), _vision("h5py").File(path) as file:
        if "image" in file and "depth" in file:
            return _load_bytes(file["image"], file["depth"], path)
        if "images" in file and "depths" in file and "scenes" in file:
            return _load_labelled(file, path, missing)
        found = ", ".join(file) or "nothing"
    raise InputError(f"{path} holds {found}; needed are images, depths, scenes (labelled NYU .mat) or image, depth")


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
    images, depths, scenes = file["images"], file["depths"], file["scenes"][()].ravel()
    count, plane = len(scenes), images.shape[2:]
    if images.shape != (count, 3, *plane) or images.dtype != np.uint8 or depths.shape != (count, *plane):
        got = f"images {images.dtype} {images.shape}, depths {depths.shape}, {count} scenes"
        raise InputError(f"{path}: needed are images (N, 3, W, H) of bytes, depths (N, W, H) and N scenes, got {got}")
    image, disparity = np.empty((count, *_SIZE, 3), np.uint8), np.empty((count, *_SIZE), np.float32)
    for k in range(count):
        image[k] = _resize(images[k].T, _BILINEAR)
        metres = _with_gaps(depths[k].T)
        share = _resize((~np.isnan(metres)).astype(np.float32), _BOX)
        mean = _resize(np.nan_to_num(metres), _BOX) / np.maximum(share, 0.5)
        disparity[k] = _disparity(np.where(share >= 0.5, mean, 0), image[k], missing, f"{path}: frame {k}")
    names = np.array(["".join(map(chr, file[reference][()].ravel())) for reference in scenes])
    return DepthSet("NYU Depth v2", image, disparity, names)


def _resize(array: NDArray[Any], method: int) -> NDArray[Any]:
    return np.asarray(_vision("PIL.Image").fromarray(np.ascontiguousarray(array)).resize(_SIZE[::-1], method))


def _with_gaps(metres: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.where(np.isfinite(metres) & (metres > 0), metres, np.nan).astype(np.float32)


def _disparity(metres: NDArray[np.floating], image: NDArray[np.uint8], missing: str, where: str) -> NDArray[np.float32]:
    depth = _with_gaps(metres)
    if np.isnan(depth).all():
        raise InputError(f"{where} has no depth at any pixel; remove the frame")
    return np.minimum(1 / (fill_depth(depth, image) if missing == "fill" else depth), 1)


@contextlib.contextmanager
def _files(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """The sorted names and a reader of the files of a folder or a zip, hidden ones left out."""
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        yield _visible(names), lambda name: (path / name).read_bytes()
        return
    if not path.is_file():
        raise InputError(f"{path} does not exist; a folder or a zip is needed")
    with _reading(path):
        archive = zipfile.ZipFile(path)
    with archive:
        yield _visible(archive.namelist()), archive.read


def _visible(names: list[str]) -> list[str]:
    return sorted(n for n in names if n[-1] != "/" and not any(p.startswith((".", "__MACOSX")) for p in n.split("/")))


@contextlib.contextmanager
def _reading(where: object) -> Iterator[None]:
    """What zipfile, zlib, Pillow and h5py raise for broken files, as one error that names the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, EOFError, SyntaxError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{where} cannot be read, truncated or corrupt? ({error})") from error


def _vision(module: str) -> Any:
    """Pillow and h5py are needed here only, and so they are an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module.split('.')[0]} is not installed: pip install evidentia[vision]") from error


def _decode(read: Callable[[str], bytes], name: str, path: str | Path) -> Any:
    with _reading(f"{path}: {name}"):
        image = _vision("PIL.Image").open(io.BytesIO(read(name)))
        return _vision("PIL.ImageOps").exif_transpose(image)


def _rgb(read: Callable[[str], bytes], name: str, path: str | Path) -> Any:
    """Grey, palette, transparent and 16-bit images as 8-bit RGB."""
    image = _decode(read, name, path)
    if image.mode == "F":
        raise InputError(f"{path}: {name} holds floating-point numbers; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        grey = np.clip(np.asarray(image), 0, 65535) // 257
        return _vision("PIL.Image").fromarray(grey.astype(np.uint8)).convert("RGB")
    return image.convert("RGBA" if image.mode in ("P", "PA") else image.mode).convert("RGB")
