"""Around every request: limits, time, security headers, one line of log. It sees no data and no keys."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .limits import whose
from .problems import Problem, later
from .service import Service

log = logging.getLogger("latecomer.serve")

NOTHING = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"content-security-policy": NOTHING.encode(),  # the page has its own
    b"cache-control": b"no-store",
}
GONE = 499  # in the log: the client did not wait for its answer
FOR_A_YEAR = (b"strict-transport-security", b"max-age=31536000")


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.headers = dict([*HEADERS.items(), *([FOR_A_YEAR] if service.settings.secure else [])])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service, started, status = self.service, time.perf_counter(), 0

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                own = [(name, value) for name, value in self.headers.items() if name not in given]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        service.under_way += 1
        try:
            async with asyncio.timeout(service.settings.seconds):
                self._admit(scope)
                await self.app(scope, receive, dressed)
        except ClientDisconnect:
            status = GONE
        except Exception as error:
            await self._fail(error, scope, receive, dressed, begun=bool(status))
        finally:
            service.under_way -= 1
            self._note(scope, status, time.perf_counter() - started)

    def _admit(self, scope: Scope) -> None:
        if self.service.stopping:
            raise later("This server is stopping; another one will answer.")
        address = scope["client"][0] if scope.get("client") else ""
        if wait := self.service.addresses.take(whose(address), time.monotonic()):
            raise later("This address sends too many requests.", wait, 429)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, send: Send, begun: bool) -> None:
        if isinstance(error, TimeoutError):
            error = later(f"This took longer than {self.service.settings.seconds:g} seconds.")
        elif not isinstance(error, Problem):  # a fault of ours; its words may have data in them, its place has not
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error("%s at %s:%s", type(error).__name__, place.filename, place.lineno)
            error = Problem(500, "The server failed at this request; its log says where.")
        if not begun:
            await error.response()(scope, receive, send)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path, method = template(scope), scope["method"] if scope["method"] in METHODS else "OTHER"
        self.service.metrics.count(method, path, status, seconds)
        log.info("%s %s %s %.1f ms %s", method, path, status, 1000 * seconds, scope.get("latecomer.key", "-"))


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def template(scope: Scope) -> str:
    """The path as the routes have it, so that nobody writes into the log or into the metrics what he likes."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "unknown"
