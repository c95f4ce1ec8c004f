"""The Open Inference Protocol, version 2, as KServe, Triton and Seldon speak it: descriptors in, weights out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from .. import __version__
from .bodies import Inference, numbers, parsed, read
from .edition import Wish
from .problems import Problem, documented
from .service import Service
from .v1 import BUNDLE, makes_models

NAME = "latecomer"  # of the one model that there is
MOST = 16  # descriptors in one request: their weights are written in decimals
JSON: dict[str, Any] = {
    "description": "as the protocol has it",
    "content": {"application/json": {"schema": {"type": "object"}}},
}


def routes(service: Service, allowed: Any) -> APIRouter:
    """`allowed(scope)` is what a route depends on, and gives the name of the key."""
    router = APIRouter(prefix="/v2", default_response_class=Response)
    fetches, asks = allowed("encoder"), allowed("models")

    @router.get("", responses=documented() | {200: JSON})
    async def server() -> Response:
        """What this server is."""
        return told({"name": "latecomer", "version": __version__, "extensions": []})

    @router.get("/health/live", responses=documented() | {200: JSON})
    async def live() -> Response:
        """Whether it is up."""
        return told({"live": True})

    @router.get("/health/ready", responses=documented() | {200: JSON})
    async def ready() -> Response:
        """Whether it takes requests; while it stops, it says 503."""
        return told({"ready": True})

    @router.get("/models/{name}", responses=documented(401, 403, 404) | {200: JSON})
    async def metadata(name: str, who: str = fetches) -> Response:
        """What the model takes and gives."""
        check(name)
        bundle = service.edition.bundle
        tensors = {"descriptor": bundle.descriptor, "weights": bundle.weights}
        (given,), (got,) = (
            [{"name": key, "datatype": "FP32", "shape": [-1, tensors[key]]}] for key in ("descriptor", "weights")
        )
        return told(
            {"name": NAME, "versions": [bundle.version], "platform": "latecomer", "inputs": [given], "outputs": [got]}
        )

    @router.get("/models/{name}/ready", responses=documented(401, 403, 404) | {200: JSON})
    async def model_ready(name: str, who: str = fetches) -> Response:
        """Whether the model takes requests."""
        check(name)
        return told({"name": NAME, "ready": True})

    @router.post("/models/{name}/infer", responses=documented(401, 403, 404, 413, 415, 422) | {200: JSON})
    async def infer(request: Request, name: str, who: str = asks) -> Response:
        """Weights for some descriptors."""
        check(name)
        edition = service.edition
        makes_models(edition)
        size = edition.bundle.descriptor
        body = parsed(Inference, await read(request, "application/json", most_bytes(size)))
        rows, width = body.inputs[0].shape
        if width != size or not 1 <= rows <= MOST:
            raise Problem(422, f"The shape of the input must be [n, {size}], n from 1 to {MOST}.")
        values = numbers(flat(body.inputs[0].data), rows * size, "The input").reshape(rows, size)
        found = await asyncio.gather(*(service.batcher.ask(edition.rows, Wish(row, who)) for row in values))
        text = await asyncio.to_thread(written, body.id, edition.version, np.stack(found))
        return Response(text, 200, {BUNDLE: edition.version}, "application/json")

    return router


def check(name: str) -> None:
    if name != NAME:
        raise Problem(404, f"There is one model here, and it is called {NAME!r}.")


def told(values: dict[str, Any]) -> Response:
    return Response(json.dumps(values), 200, media_type="application/json")


def most_bytes(size: int) -> int:
    return 4096 + 64 * size * MOST


def flat(data: list[Any]) -> list[float]:
    """The protocol lets rows be nested."""
    return [number for row in data for number in row] if data and isinstance(data[0], list) else data


def written(id_: str, version: str, weights: Any) -> str:
    output = {"name": "weights", "datatype": "FP32", "shape": list(weights.shape), "data": weights.ravel().tolist()}
    told_ = {"model_name": NAME, "model_version": version, "outputs": [output]}
    return json.dumps(told_ | ({"id": id_} if id_ else {}))
