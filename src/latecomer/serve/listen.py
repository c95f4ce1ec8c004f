"""uvicorn around the application: connections that are watched, signals, TLS."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import SettingError
from .app import make
from .problems import later
from .service import Service

log = logging.getLogger("latecomer.serve")


HEADER = 32 * 1024  # bytes
BODY = later("There are too many connections.").body()
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


class Server(uvicorn.Server):
    """It stops when what is under way is answered, and answers 503 to whoever comes meanwhile."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self.service, self.announce = service, announce
        self.last = 0.0  # when it has to be over

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            name = f"[{host}]" if ":" in host else host
            self.announce(f"{'https' if self.config.ssl else 'http'}://{name}:{port}")
            if hasattr(signal, "SIGHUP"):
                self.listen_to_hangup()

    def listen_to_hangup(self) -> None:
        """SIGHUP: look for a new bundle, new keys, a new certificate."""
        loop, looking = asyncio.get_running_loop(), set()

        def look() -> None:
            task = loop.create_task(asyncio.to_thread(self.refresh))
            looking.add(task)
            task.add_done_callback(looking.discard)

        try:
            loop.add_signal_handler(signal.SIGHUP, look)
        except (ValueError, RuntimeError):  # only a process's first thread hears signals
            log.info("this server is not in its process's main thread, so it hears no SIGHUP")

    def refresh(self) -> None:
        self.service.refresh(anyway=True)
        s = self.service.settings
        if self.config.ssl is not None:
            try:
                self.config.ssl.load_cert_chain(s.certificate, s.private_key)
            except (OSError, ssl.SSLError) as error:
                log.error("the certificate stays as it was: %s", error)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.stopping:  # asked twice
            self.should_exit = self.force_exit = True
        self.service.stopping = True
        self.last = time.monotonic() + self.service.settings.seconds

    async def on_tick(self, counter: int) -> bool:
        if self.service.stopping and (not self.service.under_way or time.monotonic() > self.last):
            self.should_exit = True
        return await super().on_tick(counter)


def watched(most: int, seconds: float) -> type[H11Protocol]:
    """Connections, of which there are not too many, and each of which gets an answer done every so often.

    uvicorn would wait for ever for the rest of a header, and for a reader that does not read.
    """

    class Watched(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.alarm = self.loop.call_later(seconds, transport.abort)
            if len(self.connections) > most:
                transport.write(FULL)
                transport.close()

        def on_response_complete(self) -> None:
            self.alarm.cancel()
            self.alarm = self.loop.call_later(seconds, self.transport.abort)
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self.alarm.cancel()
            super().connection_lost(exc)

    return Watched


def configure(service: Service) -> uvicorn.Config:
    """h11 alone: it has a limit for the size of a header, which httptools has not."""
    s = service.settings
    try:
        config = uvicorn.Config(
            make(service),
            host=s.host,
            port=s.port,
            http=watched(s.connections, 2 * s.seconds),
            h11_max_incomplete_event_size=HEADER,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(s.trusted_proxy),
            forwarded_allow_ips=s.trusted_proxy or None,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=int(s.seconds),
            ssl_certfile=s.certificate or None,
            ssl_keyfile=s.private_key or None,
        )
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"--certificate and --private-key cannot be used: {error}.") from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def listen(service: Service, announce: Callable[[str], None]) -> None:
    """Serve until a signal says that it is enough; `announce` is told the address."""
    Server(configure(service), service, announce).run()
