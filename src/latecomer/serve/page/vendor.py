"""Fetches onnxruntime-web, with which the page runs graphs, from the npm registry: `python vendor.py`, or `make page`.

It is 14 MB, so it is not kept in the repository. The archive's digest is, so nothing else can come in its place.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

ARCHIVE = "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
VENDOR = Path(__file__).parent / "vendor"


def main() -> None:
    """All files, or none: a name appears when its file is whole."""
    if all((VENDOR / name).is_file() for name in FILES):
        return
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=60) as answer:
            packed = answer.read()
    except OSError as error:
        sys.exit(f"{ARCHIVE} cannot be fetched: {error}.")
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != SHA512:
        sys.exit(f"{ARCHIVE} is not what it was: its digest is another.")
    VENDOR.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/dist/{name}")
            assert member is not None, f"{name} is no file"
            draft = VENDOR / f".{name}"
            draft.write_bytes(member.read())
            draft.rename(VENDOR / name)


if __name__ == "__main__":
    main()
