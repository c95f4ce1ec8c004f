"""The FastAPI application: who may come in, the routes, and an OpenAPI document that is true of the present bundle."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from .. import __version__
from . import metrics, pages, v1, v2
from .bodies import Covered, Described, Inference
from .edition import SAFETENSORS
from .guard import Guard
from .problems import Problem, documented, tell
from .service import Service

BEARER = HTTPBearer(auto_error=False, description="a key, made by `latecomer keys new`")


def make(service: Service) -> Guard:
    """The application, ready for uvicorn."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    # /docs would load its scripts from elsewhere.
    app = FastAPI(title="latecomer", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    for kind in (Problem, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, tell)
    allowed = entrance(service)
    reads = allowed("metrics")
    for router in (v1.routes(service, allowed), v2.routes(service, allowed), pages.routes(pages.table())):
        app.router.routes.extend(router.routes)  # flat: a router within a router is looked through at every request

    plain = {"description": "the metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", response_class=Response, responses=documented(401, 403) | {200: plain})
    async def prometheus(who: str = reads) -> Response:
        """Counts and times for Prometheus."""
        return Response(service.metrics.text(gauges(service)), 200, media_type=metrics.MEDIA)

    told: dict[str, dict[str, Any]] = {}  # by bundle; it takes so long that anybody could keep the server busy with it

    def openapi() -> dict[str, Any]:
        if (version := service.edition.version) not in told:
            told.clear()
            told[version] = document(app, service)
        return told[version]

    app.openapi = openapi  # type: ignore[method-assign]
    return Guard(app, service)


def entrance(service: Service) -> Any:
    """What a route depends on to know whose request it is; without keys nobody is asked."""

    def allowed(scope: str) -> Any:
        async def known(
            request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
        ) -> str:
            name = service.admit(given.credentials if given else None, scope)
            request.scope["latecomer.key"] = name
            return name

        async def anybody() -> str:
            return service.admit(None, scope)

        return Depends(known if service.keys is not None else anybody)

    return allowed


def gauges(service: Service) -> dict[str, tuple[str, str, float]]:
    """What the metrics say beside requests."""
    bundle, batcher, shelf = service.edition.bundle, service.batcher, service.shelf
    named = f'latecomer_bundle_info{{version="{bundle.version}",rule="{bundle.rule}"}}'
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        named: ("gauge", "The bundle that is served.", 1),
        "latecomer_takeovers_total": ("counter", "New bundles taken over.", shelf.taken_over),
        "latecomer_refused_bundles_total": ("counter", "New bundles that could not be served.", shelf.refused),
        "latecomer_passes_total": ("counter", "Passes made.", batcher.passes),
        "latecomer_answers_total": ("counter", "Requests answered by passes.", batcher.items),
        "latecomer_waiting": ("gauge", "Requests that wait for a pass.", len(batcher.queue)),
        "latecomer_under_way": ("gauge", "Requests that are not answered yet.", service.under_way),
        "latecomer_peak_memory_bytes": ("gauge", "Most memory that the process ever had.", peak),
    }


def document(app: FastAPI, service: Service) -> dict[str, Any]:
    """OpenAPI, with the sizes of the bundle that is served now."""
    bundle = service.edition.bundle
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    described, covered = Described.model_json_schema(), Covered.model_json_schema()
    for body in (described, covered):
        body["properties"]["descriptor"] |= {"minItems": bundle.descriptor, "maxItems": bundle.descriptor}
    inference = Inference.model_json_schema(ref_template="#/components/schemas/{model}")
    found.setdefault("components", {}).setdefault("schemas", {}).update(inference.pop("$defs"))
    binary = {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}
    bodies: dict[str, Any] = {
        "/v1/models": {"application/json": {"schema": described}},
        "/v1/coverage": {"application/json": {"schema": covered}},
        "/v1/descriptors": binary,
        "/v2/models/{name}/infer": {"application/json": {"schema": inference}},
    }
    for path, content in bodies.items():
        operation = found["paths"][path]["post"]
        operation["requestBody"] = {"required": True, "content": content}
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "header":
                parameter["schema"] = {"type": "string", "enum": [bundle.version]}
    return found
