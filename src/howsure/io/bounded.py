"""Read files that may be broken or hostile: sizes are known before memory is taken, and errors name the file."""

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from howsure.errors import InputError

__all__ = ["check_size", "read_bytes", "read_member", "reading"]

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile inflates the others whole, whatever size they declare


@contextlib.contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn whatever the block raises while it reads a foreign format into one error that names the file.

    Readers of images, archives and HDF5 raise many kinds of errors for broken files, which cannot be listed.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{where} cannot be read: it needs more memory than there is") from error
    except Exception as error:
        raise InputError(f"{where} cannot be read, truncated or corrupt? ({error})") from error


def check_size(where: object, size: int, most: int) -> None:
    """Raise if something is, or declares to be, larger than ``most`` bytes."""
    if size > most:
        raise InputError(
            f"{where}: {size:,} bytes are more than the {most:,} that are read here; is it the right file?"
        )


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file, or raise if it has more than ``most`` bytes."""
    with reading(path), path.open("rb") as file:
        content = file.read(most + 1)
        if len(content) > most:
            check_size(path, max(path.stat().st_size, len(content)), most)
    return content


def read_member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return the content of a member of a zip, or raise if it declares more than ``most`` bytes.

    More than it declares is never read: the stream behind a declared size may inflate to anything.
    """
    where = f"{archive.filename}: {name}"
    with reading(where):
        member = archive.getinfo(name)
        check_size(where, member.file_size, most)
        if member.flag_bits & 1:
            raise InputError(f"{where} is encrypted; unpack the zip, and give the folder")
        if member.compress_type not in _METHODS:
            raise InputError(f"{where} is compressed by a method other than deflate; pack the zip anew")
        with archive.open(member) as file:
            content = file.read(member.file_size + 1)
    if len(content) != member.file_size:
        raise InputError(f"{where} cannot be read, truncated? It has {len(content):,} of {member.file_size:,} bytes")
    return content
