"""Our own paths: the bundle and its files, models, coverage, better embeddings."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Header, Request, Response

from ..tensorfile import TensorFileError, unpack
from .bodies import Covered, Described, numbers, parsed, read
from .edition import MAKES_MODELS, NO_GATE, ONNX, SAFETENSORS, Content, Edition, Turn, Wish
from .problems import Problem, documented
from .service import Service

BUNDLE = "X-Latecomer-Bundle"
VERSION = {"description": "which bundle this comes from", "schema": {"type": "string"}}
DIGEST = {"description": "sha-256 of the body (RFC 9530)", "schema": {"type": "string"}}
QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
BYTES = {"schema": {"type": "string", "format": "binary"}}
Expected = Annotated[str | None, Header(alias=BUNDLE, description="the bundle that the encoder is of")]


def handed_out(*medias: str) -> dict[str, Any]:
    """Content with its digest, for OpenAPI."""
    content = dict.fromkeys(medias, BYTES)
    return {"description": "as asked for", "content": content, "headers": {BUNDLE: VERSION, "Repr-Digest": DIGEST}}


def routes(service: Service, allowed: Any) -> APIRouter:
    """`allowed(scope)` is what a route depends on, and gives the name of the key."""
    router = APIRouter(prefix="/v1", default_response_class=Response)
    fetches, asks = allowed("encoder"), allowed("models")
    told: dict[int | str, Any] = {
        200: {"description": "facts and limits", "content": {"application/json": {"schema": {"type": "object"}}}}
    }

    @router.get("/bundle", responses=documented(401, 403) | told)
    async def bundle(who: str = fetches) -> Response:
        """What there is to know about the bundle, and the limits of this server."""
        edition = service.edition
        return Response(json.dumps(facts(service, edition)), 200, {BUNDLE: edition.version}, "application/json")

    @router.get("/encoder", responses=documented(401, 403, 404) | {200: handed_out(ONNX)})
    async def encoder(request: Request, who: str = fetches) -> Response:
        """The graph that describes a client, to be run by the client."""
        return file(request, service.edition, "encoder.onnx")

    @router.get("/files/{name}", responses=documented(401, 403, 404) | {200: handed_out(ONNX, SAFETENSORS)})
    async def files(request: Request, name: str, who: str = fetches) -> Response:
        """A public file of the bundle, by its name."""
        return file(request, service.edition, name)

    @router.post(
        "/models",
        responses=documented(401, 403, 404, 406, 409, 413, 415, 422) | {200: handed_out(SAFETENSORS, ONNX)},
    )
    async def models(request: Request, expected: Expected = None, who: str = asks) -> Response:
        """A client's own model, from its descriptor."""
        edition = current(service, expected)
        media = chosen(request.headers.get("accept", ""))
        if media == ONNX and "model.onnx" not in edition.files:
            raise Problem(406, f"This bundle has no graph of a model, so it makes no {ONNX}; ask for {SAFETENSORS}.")
        wish = await described(request, edition, who)
        work = edition.models if media == SAFETENSORS else edition.standalone
        return answer(edition, await service.batcher.ask(work, wish))

    @router.post(
        "/coverage",
        responses=documented(401, 403, 404, 409, 413, 415, 422)
        | {200: {"description": "the verdict", "content": {"application/json": {"schema": {"type": "object"}}}}},
    )
    async def coverage(request: Request, expected: Expected = None, who: str = asks) -> Response:
        """How well the members cover a client, from its descriptor."""
        edition = current(service, expected)
        if edition.gate is None:
            raise Problem(404, NO_GATE)
        wish = await described(request, edition, who, Covered)
        if wish.entropy is not None and edition.release is not None:
            raise Problem(422, "Descriptors of this bundle are private, and no noise would protect an entropy.")
        verdict = await service.batcher.ask(edition.verdicts, wish)
        return Response(json.dumps(verdict), 200, {BUNDLE: edition.version}, "application/json")

    @router.post(
        "/descriptors",
        responses=documented(401, 403, 404, 409, 413, 415, 422) | {200: handed_out(SAFETENSORS)},
    )
    async def descriptors(request: Request, expected: Expected = None, who: str = asks) -> Response:
        """A better embedding, from how a client's training changed the model of the last one."""
        edition = current(service, expected)
        if edition.bundle.rule != "fit":
            raise Problem(404, f"The rule of this bundle is {edition.bundle.rule!r}: no embedding is fitted.")
        body = await read(request, SAFETENSORS, fitting_bytes(edition))
        return answer(edition, await service.batcher.ask(edition.refitted, turn(edition, body)))

    return router


def facts(service: Service, edition: Edition) -> dict[str, Any]:
    """bundle.json without what is private, and what this server allows."""
    shown = dict(edition.bundle.facts)
    shown["files"] = {name: digest for name, digest in shown.get("files", {}).items() if name.startswith("public/")}
    shown["needs_labels"] = edition.bundle.method.needs_labels
    s = service.settings
    limits = {"body": body_bytes(edition), "rate": s.rate, "burst": s.burst, "seconds": s.seconds}
    if edition.gate is not None:
        shown["gate"] = {"places": np.round(np.asarray(edition.gate.places, np.float64), 1).tolist()}
    return {**shown, "version": edition.version, "limits": limits}


def file(request: Request, edition: Edition, name: str) -> Response:
    """From a table: no path comes from a request."""
    if name not in edition.files:
        raise Problem(404, f"This bundle has no such file; there are: {', '.join(edition.files)}.")
    return answer(edition, edition.files[name])


def answer(edition: Edition, content: Content) -> Response:
    return Response(content.body, 200, {BUNDLE: edition.version, "Repr-Digest": content.digest}, content.media)


def current(service: Service, expected: str | None) -> Edition:
    """The edition of now, if it is the one that the client's encoder is of."""
    edition = service.edition
    if expected is not None and expected != edition.version:
        raise Problem(409, "This server has taken over another bundle; fetch its encoder, and describe again.")
    return edition


async def described(request: Request, edition: Edition, who: str, kind: type[Described] = Described) -> Wish:
    """The descriptor that a request brings."""
    makes_models(edition)
    body = parsed(kind, await read(request, "application/json", body_bytes(edition)))
    descriptor = numbers(body.descriptor, edition.bundle.descriptor, "The descriptor")
    return Wish(descriptor, who, body.entropy if isinstance(body, Covered) else None)


def makes_models(edition: Edition) -> None:
    rule = edition.bundle.rule
    if rule not in MAKES_MODELS:
        where = "it is /v1/files/common.safetensors" if rule == "common" else "clients make it themselves, of /v1/files"
        raise Problem(404, f"The rule of this bundle is {rule!r}: a model is not asked for here; {where}.")


def body_bytes(edition: Edition) -> int:
    """Enough for the longest way to write a number, and some blanks."""
    return 4096 + 64 * edition.bundle.descriptor


def fitting_bytes(edition: Edition) -> int:
    return 4096 + 4 * (3 * edition.bundle.descriptor + edition.bundle.weights + 1)


def turn(edition: Edition, body: bytes) -> Turn:
    """What a client sends after it has trained: every tensor of the size that it must have."""
    d, w = edition.bundle.descriptor, edition.bundle.weights
    try:
        given = unpack(body)
    except TensorFileError as error:
        raise Problem(422, f"The body is no safetensors file: {error}.") from error
    sizes, moments = {"v": (d,), "change": (w,)}, {"first": (d,), "second": (d,), "step": ()}
    asked = sizes | (moments if given.keys() & moments.keys() else {})
    if {name: (one.dtype, one.shape) for name, one in given.items()} != {
        name: (np.dtype(np.float32), shape) for name, shape in asked.items()
    }:
        raise Problem(
            422,
            f"The body must hold float32 tensors: v [{d}], change [{w}], and after the first turn "
            f"first [{d}], second [{d}] and count [].",
        )
    if not all(np.isfinite(one).all() for one in given.values()):
        raise Problem(422, "The body must hold finite numbers alone.")
    return Turn(given["v"], {name: given[name] for name in moments if name in given}, given["change"])


def chosen(accept: str) -> str:
    """The format that `Accept` likes best (RFC 9110): weights alone, or a graph with its weights."""
    best, liked = 0.0, ""
    for media in (SAFETENSORS, ONNX):
        weight = max((quality(part, media) for part in (accept.strip() or "*/*").split(",")), default=0.0)
        if weight > best:
            best, liked = weight, media
    if not liked:
        raise Problem(406, f"A model comes as {SAFETENSORS} (safetensors) or as {ONNX}.")
    return liked


def quality(part: str, media: str) -> float:
    """How much one range of `Accept` likes a type; what cannot be read likes nothing."""
    name, *parameters = (word.strip().lower() for word in part.split(";"))
    if name not in (media, "application/*", "*/*"):
        return 0.0
    for key, _, value in (parameter.partition("=") for parameter in parameters):
        if key.strip() == "q":
            found = QUALITY.fullmatch(value.strip())
            return float(found[0]) if found else 0.0
    return 1.0
