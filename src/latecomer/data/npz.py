"""Reading .npz files, which may come from anywhere: nothing is ever unpickled, and only what is wanted is unpacked."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np

from ..errors import DataError
from .arrays import Arrays, brief, free_memory

ZIP = b"PK"  # how a zip archive begins
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    OSError,
    RuntimeError,
    MemoryError,
    TokenError,
)
"""What reading a truncated, corrupt or hostile .npz raises. (An unsupported compression is a RuntimeError.)"""


def read(path: str, wanted: Callable[[list[str]], Sequence[str]], expected: str) -> Arrays:
    """The arrays that `wanted` chooses from the names in the file, as far as they are there.

    `expected` says what should be in a file that is not there.
    """
    if not Path(path).is_file():
        raise DataError(f"There is no file {path!r}; an .npz with {expected} was expected.")
    try:
        with open(path, "rb") as file:
            start = file.read(len(np.lib.format.MAGIC_PREFIX))
            if start == np.lib.format.MAGIC_PREFIX:
                raise DataError(f"{path!r} holds a single array, not the named arrays of an .npz.")
            if not start.startswith(ZIP):
                raise DataError(f"{path!r} cannot be read as an .npz: it is no zip archive.")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            names = wanted(archive.files)
            _check_memory(archive.zip, names, path)
            entries = {key: archive[key] for key in names if key in archive.files}
        return {key: entry for key, entry in entries.items() if isinstance(entry, np.ndarray)}  # bytes are no array
    except DAMAGE as error:
        raise DataError(
            f"{path!r} cannot be read as an .npz, it may be cut short or damaged ({brief(error)})."
        ) from error


def _check_memory(archive: zipfile.ZipFile, names: Sequence[str], path: str) -> None:
    """Before anything is decompressed: a small file can claim to be larger than any memory."""
    size = sum(entry.file_size for entry in archive.infolist() if entry.filename.removesuffix(".npy") in names)
    if size > (free := free_memory()):
        raise DataError(
            f"The arrays of {path!r} take {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory are free."
        )
