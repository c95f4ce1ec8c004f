"""The page: its readers of files under node, and the whole way in Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent
ARRAYS = {
    "x": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "y": np.array([-1, 5], np.int64),
    "small": np.array([[1, -2]], np.int32),
    "real": np.array([0.5, -1.25, 3e5], np.float32),
    "double": np.array(0.125),
    "flag": np.array([True, False]),
}


def write_formats(folder: Path) -> None:
    """What numpy and safetensors make of the arrays, and files that must be refused, with a word of the sentence."""
    np.savez(folder / "stored.npz", **ARRAYS)
    np.savez_compressed(folder / "deflated.npz", **ARRAYS)
    with zipfile.ZipFile(folder / "long.npz", "w") as archive:
        archive.comment = b"with a comment"
        for name, array in ARRAYS.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, version=(2, 0))
    expected = {name: [str(a.dtype), list(a.shape), [float(v) for v in a.ravel()]] for name, a in ARRAYS.items()}
    (folder / "expected.json").write_text(json.dumps(expected))
    save_file(ARRAYS, folder / "some.safetensors")

    refused = {"half.npz": "<f2", "turned.npz": "column by column", "text.npz": "<U1", "swapped.npz": ">i4"}
    np.savez(folder / "half.npz", x=np.zeros(2, np.float16))
    np.savez(folder / "turned.npz", x=np.zeros((2, 3)).T)
    np.savez(folder / "text.npz", x=np.array(["a"]))
    np.savez(folder / "swapped.npz", x=np.zeros(2, ">i4"))
    whole = (folder / "stored.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "changed.npz").write_bytes(whole.replace(ARRAYS["x"].tobytes(), bytes(24)))
    with zipfile.ZipFile(folder / "other.npz", "w") as archive:
        archive.writestr("x.npy", "no array at all")
    with zipfile.ZipFile(folder / "bzip.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", "")
    refused |= {"cut.npz": "cut short", "changed.npz": "damaged", "other.npz": "no array", "bzip.npz": "cannot read"}
    (folder / "refused.json").write_text(json.dumps(refused))


@pytest.mark.skipif(shutil.which("node") is None, reason="The page's modules are not tested: there is no node here.")
def test_the_formats_that_the_page_reads_and_writes(tmp_path: Path) -> None:
    write_formats(tmp_path)
    command = ["node", "--test", *map(str, (HERE / "page").glob("*.test.mjs"))]
    ended = subprocess.run(
        command, env={**os.environ, "FILES": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    again = load_file(tmp_path / "again.safetensors")
    assert {name: (a.dtype, a.tolist()) for name, a in again.items()} == {
        name: (a.dtype, a.tolist()) for name, a in ARRAYS.items()
    }
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "model.onnx": b"\1\2\3",
            "naïve.txt": b"",
        }
