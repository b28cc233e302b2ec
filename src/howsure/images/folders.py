"""Read a user's own images: a folder or zip of images, or of pairs of an image and a map of targets.

A file need not be trusted: nothing is unpacked, and its size is checked before memory is taken.
"""

import contextlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError, import_extra
from howsure.files import listed
from howsure.io.bounded import check_size, read_bytes, read_member, reading

__all__ = [
    "BILINEAR",
    "IMAGE_SUFFIXES",
    "MAX_SET",
    "Files",
    "check_complete",
    "check_unknown",
    "files_by_key",
    "import_vision",
    "load_images",
    "load_pairs",
    "open_files",
    "read_image",
    "read_rgb",
    "stack_pairs",
]

BILINEAR = 2  # one of Pillow's resampling filters
IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"))
_TARGET_SUFFIXES = frozenset((".npy", ".png", ".bmp", ".tif", ".tiff", ".pgm"))  # the lossless ones
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # Pillow goes by the content, not by the suffix

# Larger files are a mistake or an attack: a file of a few bytes can declare any size.
MAX_FILE = 1 << 28  # bytes of one image, packed or not
MAX_IMAGE = 1 << 26  # pixels of one image
MAX_SET = 1 << 34  # bytes of all images, or of all targets, in memory

Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class Files:
    """The files of an open folder or zip.

    Attributes:
        path: of the folder or zip.
        names: relative to it, with slashes, sorted; hidden files are left out.
        read: returns the content of the file of a name, if that has at most a number of bytes.
    """

    path: Path
    names: list[str]
    read: Callable[[str, int], bytes]


def load_images(path: str | Path, size: tuple[int, int] = (128, 160)) -> NDArray[np.uint8]:
    """Return images of any size and kind in a folder or zip, in the order of their names, as (N, *size, 3).

    Each is resized until it covers ``size`` (height, width) and cut on both sides alike; transparency is ignored.
    """
    sides = tuple(size) if isinstance(size, Sequence) else ()
    if len(sides) != 2 or not all(isinstance(n, Integral) and n > 0 for n in sides):
        raise InputError(f"size must be a height and a width, two whole numbers from 1 on, got {size!r}")
    fit = import_vision("PIL.ImageOps").fit
    with open_files(Path(path)) as files:
        images = [name for name in files.names if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]
        if not images:
            raise InputError(f"{path} holds no images; known are {', '.join(sorted(IMAGE_SUFFIXES))}")
        shape = (len(images), *sides, 3)
        check_size(f"{path}: {len(images)} images of {sides[1]}×{sides[0]} pixels", math.prod(shape), MAX_SET)
        result = np.empty(shape, np.uint8)
        for k, name in enumerate(images):
            result[k] = fit(read_rgb(files, name), sides[::-1], method=BILINEAR)
    return result


def load_pairs(
    folder: str | Path, unknown: float | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.float32], list[str]]:
    """Return the images, the maps of targets and the names of a folder or zip of pairs.

    The folder has an ``image/`` and a ``target/`` with one file each of the same name, such as ``image/0001.jpg`` and
    ``target/0001.npy``. All of them must have one height and width.

    An image may be of any kind: grey, palette, transparent and 16-bit images become 8-bit RGB. A target is a NumPy
    array (H, W) or (H, W, 1) of integers or floats, or a grey image (PNG, TIFF) of 8, 16 or 32 bits, whose values are
    taken as they are.

    Args:
        folder: that holds ``image/`` and ``target/``, or a zip of it.
        unknown: a value of the targets that means "not known", as the 0 of depth cameras. NaN always does.

    Returns:
        The images (N, H, W, 3) as uint8, the maps (N, H, W) as float32 with NaN where the target is unknown, and the N
        names without ``image/`` and suffix, sorted.

    Raises:
        InputError: if a file is missing, cannot be read or does not fit the others; it names the file.
    """
    check_unknown(unknown)
    marker = None if unknown is None else float(unknown)
    with open_files(Path(folder)) as files:
        root = _find_root(files)
        image = files_by_key(files, root, "image", "image/0001.png", _without_suffix, "frame {}")
        target = files_by_key(files, root, "target", "target/0001.npy", _without_suffix, "frame {}", _TARGET_SUFFIXES)
        check_complete(files.path, {"image": image, "target": target}, "frame {}")
        names = sorted(image)
        pairs = [(image[name], target[name]) for name in names]
        images, maps = stack_pairs(files, pairs, lambda name: _read_target(files, name, marker))
    if np.isnan(maps).all():
        values = "NaN" if unknown is None else f"NaN or {unknown}"
        raise InputError(f"{folder}: no target has a known value, all are {values}")
    return images, maps, names


def check_unknown(unknown: Any) -> None:
    """Raise unless this is a number that can mark unknown targets, or None."""
    if unknown is not None and (isinstance(unknown, bool) or not isinstance(unknown, Real)):
        raise InputError(f"unknown must be the number that marks unknown targets, such as 0, or None, got {unknown!r}")


def _find_root(files: Files) -> str:
    """Return the folder that holds image/ and target/: "", or the only one such as "mine/" where a zip has one more."""
    parts = [name.split("/") for name in files.names]
    if any(part[0] in ("image", "target") for part in parts):
        return ""
    roots = sorted({f"{part[0]}/" for part in parts if len(part) > 2 and part[1] in ("image", "target")})
    if len(roots) > 1:
        raise InputError(f"{files.path} holds several sets of pairs, in {listed(roots)}; give one of them alone")
    return roots[0] if roots else ""


def _without_suffix(name: PurePosixPath) -> str:
    return str(name.with_suffix(""))


def files_by_key(
    files: Files,
    root: str,
    part: str,
    example: str,
    key: Callable[[PurePosixPath], Key | None],
    title: str,
    suffixes: frozenset[str] = IMAGE_SUFFIXES,
) -> dict[Key, str]:
    """Return the names of the files in one sub-folder by their key, such as a frame's number.

    Args:
        files: the folder or zip.
        root: the folder inside it, "" or with a slash at its end.
        part: the sub-folder of root, and the name of its files in errors.
        example: the name of such a file.
        key: returns the key of a file by its name inside the sub-folder; None leaves it out.
        title: the name of a key in errors, such as "frame {}".
        suffixes: of the files that count, in lower case.
    """
    found: dict[Key, str] = {}
    start = f"{root}{part}/"
    for name in files.names:
        inside = PurePosixPath(name.removeprefix(start))
        if not name.startswith(start) or inside.suffix.lower() not in suffixes:
            continue
        own = key(inside)
        if own is None:
            continue
        other = found.setdefault(own, name)
        if other != name:
            raise InputError(f"{files.path}: {title.format(own)} has two {part} files, {other} and {name}; remove one")
    if not found:
        raise InputError(f"{files.path} holds no {part}; files such as {example} are needed")
    return found


def check_complete(path: Path, groups: dict[str, dict[Key, Any]], title: str) -> None:
    """Raise unless every group has the same keys; ``title`` names a key in the error, such as "frame {}"."""
    every = {key for group in groups.values() for key in group}
    for what, group in groups.items():
        lacking = sorted(every.difference(group))
        if lacking:
            raise InputError(f"{path}: {title.format(lacking[0])} has no {what}; add it, or drop the frame")


def stack_pairs(
    files: Files, pairs: list[tuple[str, str]], read_target: Callable[[str], NDArray[np.float32]]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return images (N, H, W, 3) and maps (N, H, W) of pairs of file names; ``read_target`` reads one map by its name.

    All must have one height and width.
    """
    first = pairs[0][0]
    for k, (name, target) in enumerate(pairs):
        image = np.asarray(read_rgb(files, name))
        if k == 0:
            size = height, width = image.shape[:2]
            frames = f"{files.path}: {len(pairs)} frames of {width}×{height} pixels"
            check_size(frames, len(pairs) * height * width * 7, MAX_SET)  # three bytes of colour, four of target
            images, maps = np.empty((len(pairs), *size, 3), np.uint8), np.empty((len(pairs), *size), np.float32)
        _check_alike(files.path, name, image, first, size)
        values = read_target(target)
        _check_alike(files.path, target, values, name, size)
        images[k], maps[k] = image, values
    return images, maps


def _check_alike(path: Path, name: str, array: NDArray[Any], other: str, size: tuple[int, ...]) -> None:
    """Raise unless an array has the height and width of another file."""
    if array.shape[:2] != size:
        (h, w), (height, width) = array.shape[:2], size
        raise InputError(f"{path}: {name} is {w}×{h}, {other} is {width}×{height}; resize them to one size")


def _read_target(files: Files, name: str, unknown: float | None) -> NDArray[np.float32]:
    """Return a map of targets (H, W), with NaN where they are unknown."""
    where = f"{files.path}: {name}"
    if name.lower().endswith(".npy"):
        values = _parse_npy(files.read(name, MAX_FILE), where)
    else:
        image = read_image(files, name)
        if image.mode not in ("L", "F") and not image.mode.startswith("I"):
            raise InputError(
                f"{where} has the mode {image.mode}, of colours, transparency or a palette, but a target is one number "
                "per pixel; save it as grey PNG or TIFF with 8, 16 or 32 bits, or as .npy"
            )
        values = np.asarray(image)
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and rejected
        result = values.astype(np.float32)
    if unknown is not None:
        result[values == unknown] = np.nan
    infinite = np.argwhere(np.isinf(result))
    if len(infinite):
        row, column = infinite[0]
        raise InputError(
            f"{where} has {len(infinite)} infinite value{'' if len(infinite) == 1 else 's'} (first in row {row}, "
            f"column {column}), or too large for float32; write NaN where a target is unknown"
        )
    return result


def _parse_npy(content: bytes, where: str) -> NDArray[Any]:
    """Return the array (H, W) of a .npy file; after checking its header, which can declare any size and type."""
    file = io.BytesIO(content)
    with reading(where):
        version = np.lib.format.read_magic(file)
        # later versions are for names of fields that are not Latin
        parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = parse(file)
    if dtype.kind not in "iuf" or len(shape) not in (2, 3) or shape[2:] not in ((), (1,)) or 0 in shape:
        raise InputError(f"{where} must be an array (H, W) or (H, W, 1) of integers or floats, got {dtype} {shape}")
    _check_pixels(where, shape[1], shape[0])
    declared, held = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if declared != held:
        raise InputError(f"{where} cannot be read, truncated? It has {held:,} of {declared:,} bytes")
    values = np.frombuffer(content, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C").reshape(shape[:2])


@contextlib.contextmanager
def open_files(path: Path) -> Iterator[Files]:
    """Open a folder or a zip for reading its files, hidden ones left out."""
    if path.is_dir():
        names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        yield Files(path, _visible(names), lambda name, most: read_bytes(path / name, most))
        return
    if not path.is_file():
        raise InputError(f"{path} does not exist: expected a folder or a zip file")
    with reading(path):
        archive = zipfile.ZipFile(path)
    with archive:
        yield Files(path, _visible(archive.namelist()), lambda name, most: read_member(archive, name, most))


def _visible(names: list[str]) -> list[str]:
    """Return the names of files, each once, sorted; those with a part such as .git, .. or __MACOSX are left out."""
    parts = {name: name.split("/") for name in names if name and not name.endswith("/")}
    return sorted(name for name, each in parts.items() if not any(p.startswith((".", "__MACOSX")) for p in each))


def import_vision(module: str) -> Any:
    """Return a module of Pillow or h5py, which only images need and which are therefore an extra."""
    return import_extra(module, "vision")


def read_image(files: Files, name: str) -> Any:
    """Return a Pillow image, rotated as its metadata requests. The size is checked before a pixel is decoded."""
    where = f"{files.path}: {name}"
    with reading(where):
        image = import_vision("PIL.Image").open(io.BytesIO(files.read(name, MAX_FILE)), formats=_FORMATS)
        _check_pixels(where, image.width, image.height)
        return import_vision("PIL.ImageOps").exif_transpose(image)


def _check_pixels(where: str, width: int, height: int) -> None:
    if width * height > MAX_IMAGE:
        size = f"{width}×{height} pixels"
        raise InputError(f"{where} declares {size}, more than {MAX_IMAGE:,} in all; make it smaller")


def read_rgb(files: Files, name: str) -> Any:
    """Return a grey, palette, transparent, 16-bit or colour image as a Pillow image of 8-bit RGB."""
    image = read_image(files, name)
    if image.mode == "F":
        raise InputError(f"{files.path}: {name} holds floating-point numbers; save it with 8 or 16 bits")
    with reading(f"{files.path}: {name}"):
        if image.mode.startswith("I"):
            grey = np.clip(np.asarray(image), 0, 65535) // 257
            return import_vision("PIL.Image").fromarray(grey.astype(np.uint8)).convert("RGB")
        return image.convert("RGBA" if image.mode in ("P", "PA") else image.mode).convert("RGB")
