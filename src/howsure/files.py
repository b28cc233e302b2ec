"""Write files whole or not at all, and lock folders so that one writer at a time changes them."""

import contextlib
import errno
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from howsure.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: writers do not exclude each other there, and the last one wins
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "listed",
    "locked",
    "new_folder",
    "read_plain",
    "scratch_folder",
    "write_text",
    "write_whole",
]


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, whatever the locale, whole or not at all."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as :func:`opening_whole` does: after a kill or on a full disk the old file is still there."""
    with opening_whole(path) as file:
        write(file)


@contextlib.contextmanager
def opening_whole(path: Path, replace: bool = True) -> Iterator[BinaryIO]:
    """Yield an open file in a hidden folder, and move it to its final place when the block ends without an error.

    A link is followed, as ``open`` does. Files left by killed writers are removed.

    Raises:
        FileExistsError: if ``replace`` is False and the file is there when the block ends.
        InputError: if there is something else than a plain file, such as a folder or a device.
    """
    path = _resolved(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a plain file, and is not replaced; name another one")
    with scratch_folder(path) as scratch:
        part = scratch / "part"
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _rename(part, path, replace)


def _resolved(path: Path) -> Path:
    """Return the path behind all links."""
    try:
        return path.resolve()
    except (RuntimeError, ValueError) as error:  # a link to itself, or a name with a zero in it
        raise InputError(f"{str(path)!r} cannot be the name of a file ({error})") from error


def _rename(part: Path, path: Path, replace: bool) -> None:
    """Give a file its final name; unless ``replace``, raise FileExistsError if another one has it."""
    if replace:
        part.replace(path)
        return
    try:
        path.hardlink_to(part)  # unlike a rename, never over another file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.replace(path)


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Create the folder if need be and exclude all other writers of it, threads and processes, until the block ends.

    The lock is the operating system's and ends with its process, so that a killed writer leaves none behind. Yields
    False where there are no locks (Windows, some network file systems): then writers do not exclude each other.

    Raises:
        InputError: if the path is not a folder, or if ``wait`` is False and someone else is writing there.
    """
    if fcntl is None:  # Windows cannot open a folder
        _make_folder(folder)
        yield False
        return
    handle, held = _open_locked(folder, wait)
    try:
        yield held
    finally:
        os.close(handle)


def _open_locked(folder: Path, wait: bool) -> tuple[int, bool]:
    """Open and lock a folder; return its handle, and whether it is locked.

    If the folder is removed before it is opened, or while this waits for the lock, it is created anew.
    """
    while True:
        _make_folder(folder)
        try:
            handle, held = os.open(folder, os.O_RDONLY), True
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            message = f"another process is writing to {folder}; wait until it ends, or choose another folder"
            raise InputError(message) from None
        except OSError:  # some network file systems
            held = False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle, held
        os.close(handle)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder} cannot be a folder: {error.filename} is a file or a dangling link") from error
    except ValueError as error:  # a name with a zero in it
        raise InputError(f"{str(folder)!r} cannot be the name of a folder ({error})") from error


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield a new hidden folder next to ``path``, and remove it and folders of killed processes at the end."""
    path = _resolved(path)
    _make_folder(path.parent)
    name = path.name[:60]  # so that the hidden name is no longer than a file system allows
    for left in path.parent.glob(f".{glob.escape(name)}.????????.scratch"):
        with contextlib.suppress(OSError, InputError), locked(left, wait=False) as held:  # raises if its owner lives
            if held:
                shutil.rmtree(left)
    scratch = path.with_name(f".{name}.{secrets.token_hex(4)}.scratch")
    with locked(scratch):
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def new_folder(path: Path, check_old: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield an empty folder next to ``path`` that becomes ``path`` at the end, with all its files or not at all.

    A link is followed.

    Args:
        path: of the folder.
        check_old: called with a folder that is there and not empty, now and at the end; raises unless that folder may
            be replaced. None replaces no folder.

    Raises:
        InputError: if there is something at ``path``, other than an empty folder or one that may be replaced.
    """
    path = _resolved(path)
    _refuse_existing(path, check_old)
    with scratch_folder(path) as scratch:
        whole = scratch / "whole"
        whole.mkdir()
        yield whole
        _refuse_existing(path, check_old)
        try:
            if not (path.is_dir() and any(path.iterdir())):
                whole.rename(path)
            else:
                _replace_folder(whole, path, scratch / "old")  # which is removed with the scratch folder
        except OSError as error:  # someone else was quicker
            raise InputError(f"{path} cannot be written: {error.strerror}; choose another name") from error


def _refuse_existing(path: Path, check_old: Callable[[Path], None] | None) -> None:
    """Raise unless nothing, an empty folder, or one that may be replaced is at this path."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if check_old is None or not path.is_dir():
        raise InputError(f"{path} exists already; remove it or choose another name")
    check_old(path)


def _replace_folder(new: Path, old: Path, aside: Path) -> None:
    """Move the old folder aside and give its name to the new one, or leave both if that fails."""
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise


def read_plain(path: Path) -> bytes:
    """Return the content of a regular file. Nothing else is read, because a pipe would block the reader.

    Raises:
        FileNotFoundError: if there is none.
        InputError: if it is not a regular file, or a link to itself.
    """
    if not stat.S_ISREG(_resolved(path).stat().st_mode):
        raise InputError(f"{path} is not a file")
    return path.read_bytes()


def listed(names: list[str], most: int = 5) -> str:
    """Return the first few names as a phrase for an error message.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    rest = len(names) - most
    return ", ".join(map(repr, names[:most])) + (f" and {rest} more" if rest > 0 else "")
