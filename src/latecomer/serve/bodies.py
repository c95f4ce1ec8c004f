"""What a request may say: its type and size before it is read, then every value of it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .problems import Problem

LARGEST = float(np.finfo(np.float32).max)
Number = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
M = TypeVar("M", bound="Strict")


class Strict(BaseModel):
    """Exact types, and nothing that nobody asked for."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Described(Strict):
    """The body of /v1/models."""

    descriptor: list[Number]


class Covered(Described):
    """The body of /v1/coverage; a gate may ask for one number more, which the client's model gives."""

    entropy: Annotated[Number, Field(ge=0)] | None = None  # mean of its predictions


class Tensor(Strict):
    """An input of the Open Inference Protocol."""

    name: Literal["descriptor"]
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    datatype: Literal["FP32"]
    data: list[Number] | list[list[Number]]
    parameters: dict[str, bool | int | float | str] = {}


class Wanted(Strict):
    """An output of the Open Inference Protocol."""

    name: Literal["weights"]
    parameters: dict[str, bool | int | float | str] = {}


class Inference(Strict):
    """The body of /v2/models/{name}/infer."""

    id: Annotated[str, Field(max_length=256)] = ""
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[Wanted], Field(max_length=1)] = []
    parameters: dict[str, bool | int | float | str] = {}


async def read(request: Request, media: str, most: int) -> bytes:
    """A body of this type and of at most so many bytes; one that says to be larger is not read at all."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media:
        raise Problem(415, f"The body must be {media}.")
    too_large = Problem(413, f"The body is larger than {most} bytes.", {"Connection": "close"})
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def parsed(kind: type[M], body: bytes) -> M:
    """JSON as a model; the parser knows no depth beyond 200."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))[:100]
        raise Problem(422, f"{place or 'The body'}: {first['msg'].rstrip('.')}.") from error


def numbers(values: list[float], size: int, what: str) -> NDArray[np.float32]:
    """Exactly `size` numbers in a row, which are float32 already but for their type."""
    found = np.asarray(values, dtype=np.float32)
    if found.shape != (size,):
        raise Problem(422, f"{what} has {found.size} numbers; this bundle's has {size}.")
    return found
