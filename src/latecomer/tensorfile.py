"""safetensors with numpy alone, for whoever has no torch: a header in JSON, then the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {
    f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "fiu" for size in (1, 2, 4, 8) if kind + str(size) != "f1"
}
KINDS |= {"BOOL": "|b1", "C64": "<c8"}
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}


LONGEST = 10**8  # bytes of a header, as in safetensors itself: JSON takes many times its length in memory
AXES = 64  # of a tensor, as in numpy; the product of a million numbers would take hours


class TensorFileError(ValueError):
    """Bytes that are no safetensors file."""


def unpack(body: bytes, longest: int = LONGEST) -> dict[str, NDArray[Any]]:
    """The tensors of a file, by name; they share its memory. The file may come from anywhere.

    `longest` is how many bytes its header may have.
    """
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise TensorFileError("its header is cut off")
    if length > longest:
        raise TensorFileError(f"its header has {length} bytes, and {longest} are enough")
    try:
        header = json.loads(body[8 : 8 + length])
        header.pop("__metadata__", None)
        found, end = {}, 0
        for name, told in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            kind, shape, (first, last) = np.dtype(KINDS[told["dtype"]]), tuple(told["shape"]), told["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, first, last))
            if not whole or len(shape) > AXES or first != end or last - first != kind.itemsize * math.prod(shape):
                raise TensorFileError(f"the place of tensor {name[:50]!r} is wrong")
            found[name] = np.frombuffer(body, kind, math.prod(shape), 8 + length + first).reshape(shape)
            end = last
    except TensorFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise TensorFileError("its header is damaged") from error
    if 8 + length + end != len(body):
        raise TensorFileError("it has not as many numbers as its header says")
    return found


def pack(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A file of these tensors, in this order."""
    header, parts, end = {}, [], 0
    for name, tensor in tensors.items():
        part = np.ascontiguousarray(tensor).tobytes()
        place = [end, end := end + len(part)]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        parts.append(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
