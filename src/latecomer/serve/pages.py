"""The page and its files, from a table that is made when the server starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response

from .problems import Problem, documented

FOLDER = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'; "
    "style-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
VENDORED = ("ort",)  # onnxruntime-web's files begin so; they change with its version alone
WITHOUT = b"<!doctype html><title>latecomer</title><p>This server has no page; its API is at /openapi.json.\n"


@dataclass(frozen=True)
class File:
    body: bytes
    media: str
    cache: str


def table(folder: Path = FOLDER) -> dict[str, File]:
    """Every file of the page by its name."""
    found = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and path.suffix in MEDIA:
            cache = "public, max-age=31536000, immutable" if path.name.startswith(VENDORED) else "no-cache"
            found[path.name] = File(path.read_bytes(), MEDIA[path.suffix], cache)
    return found


def routes(files: dict[str, File]) -> APIRouter:
    router = APIRouter(default_response_class=Response)
    index = files.get("index.html", File(WITHOUT, MEDIA[".html"], "no-cache"))
    html: dict[str, Any] = {"description": "the page", "content": {"text/html": {"schema": {"type": "string"}}}}
    any_file = {"description": "the file", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}

    @router.get("/", responses=documented() | {200: html})
    async def page() -> Response:
        """The page for people."""
        return served(index)

    @router.get("/assets/{name}", responses=documented(404) | {200: any_file})
    async def asset(name: str) -> Response:
        """A file of the page."""
        if name not in files:
            raise Problem(404, "The page has no such file.")
        return served(files[name])

    return router


def served(file: File) -> Response:
    return Response(file.body, 200, {"Content-Security-Policy": POLICY, "Cache-Control": file.cache}, file.media)
