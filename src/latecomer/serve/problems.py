"""What goes wrong, as `application/problem+json` (RFC 9457): one sentence, and never a word of the request's data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

MEDIA = "application/problem+json"


class Problem(Exception):
    """An answer that says what was wrong with a request."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, MEDIA)

    def body(self) -> bytes:
        title = HTTPStatus(self.status).phrase
        return json.dumps(
            {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        ).encode()


def later(detail: str, seconds: float = 1, status: int = 503) -> Problem:
    """Come again in so many seconds."""
    return Problem(status, detail, {"Retry-After": str(max(1, math.ceil(seconds)))})


async def tell(request: Request, problem: Exception) -> Response:
    """The answer for what a route raised."""
    if isinstance(problem, Problem):
        return problem.response()
    if isinstance(problem, RequestValidationError):
        return Problem(422, "A parameter of the path, the query or the header is not what it should be.").response()
    if isinstance(problem, HTTPException):  # no such path, or no such method on it
        sentences = {404: "There is nothing at this path.", 405: "This path does not take this method."}
        detail = sentences.get(problem.status_code, HTTPStatus(problem.status_code).phrase + ".")
        return Problem(problem.status_code, detail, problem.headers).response()
    return Problem(500, "The server failed at this request; its log says where.").response()


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "one sentence for a person"},
    },
}

MEANINGS = {
    401: "no key, or a wrong or expired one",
    403: "the key may not do this, or has spent its privacy budget",
    404: "this bundle has no such thing",
    406: "no such format",
    409: "the server has taken over another bundle",
    413: "the body is too large",
    415: "the body is of another type",
    422: "the body does not say what it should",
    429: "too many requests",
    503: "too much to do, or stopping",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems that a route may answer with, for OpenAPI; every route may be asked too often, or when stopping."""
    return {
        status: {"description": MEANINGS[status], "content": {MEDIA: {"schema": SCHEMA}}}
        for status in sorted({*statuses, 429, 503})
    }
