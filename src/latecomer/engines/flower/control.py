"""On the operator's machine: registers nodes, hands an app to a SuperLink, follows its run, and stops it.

What `flwr supernode register`, `run`, `log`, `ls` and `stop` ask a SuperLink for, without a process and a file each.
"""

from __future__ import annotations

import hashlib
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from ...errors import LinkError, SettingError

PAUSE = 0.5  # seconds between two looks at a run that is about to end


class Control:
    """A SuperLink, as whoever runs something on it sees it."""

    def __init__(self, address: str, certificates: Path | None) -> None:
        """Without `certificates` to trust, nothing is encrypted."""
        self.address = address
        try:
            trusted = None if certificates is None else certificates.read_bytes()
            self.client = ControlHttpClient.from_server_address(
                address, certificates is None, trusted, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
            )
        except (ssl.SSLError, ValueError) as error:
            raise SettingError(
                f"--root-certificates {certificates} cannot be used: it holds no certificate."
            ) from error
        except OSError as error:
            raise SettingError(f"--root-certificates {certificates} cannot be used: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def register(self, key: Path) -> int:
        """Let the node in that has the private half of this public key; the number that it will have."""
        try:
            public = load_ssh_public_key(key.read_bytes())
        except OSError as error:
            raise SettingError(f"The key {key} cannot be read: {error.strerror}.") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SettingError(f"{key} holds no public key as OpenSSH writes it.") from error
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise SettingError(f"The key in {key} must be ECDSA; ssh-keygen -t ecdsa -b 384 makes one.")
        with self._talking():
            return int(self.client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public))).node_id)

    def start(self, app: Path, settings: Mapping[str, Any]) -> int:
        """Hand over an app; the number of its run."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Flower, by what it is built on
                content = build_fab_from_disk(app)
        except (OSError, ValueError) as error:
            raise SettingError(f"{app} is no Flower app: {error}.") from error
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings)))
        with self._talking():
            return int(self.client.StartRun(request).run_id)

    def lines(self, run: int) -> Iterator[str]:
        """What the server of a run prints, line by line, until the run ends."""
        rest = ""
        with self._talking():
            for part in self.client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=0.0)):
                *whole, rest = (rest + part.log_output).split("\n")
                yield from whole
        if rest:
            yield rest

    def outcome(self, run: int) -> str:
        """Wait for the end of a run: why it failed, or nothing where all is well."""
        while True:
            with self._talking():
                status = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
            if status.status == Status.FINISHED:
                break
            time.sleep(PAUSE)
        return "" if status.sub_status == SubStatus.COMPLETED else str(status.details or status.sub_status)

    def stop(self, run: int) -> None:
        with self._talking():
            self.client.StopRun(StopRunRequest(run_id=run))

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Whatever keeps a SuperLink from answering is one sentence."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            told = FlowerError.from_json(error.response.text)
            raise LinkError(f"The SuperLink at {self.address} refused: {told or error}.") from error
        except (httpx.HTTPError, ssl.SSLError, OSError, ValueError) as error:
            raise LinkError(f"There is no SuperLink to talk to at {self.address}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """In a few words; what TLS does not like, in its own."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"its certificate is not one that --root-certificates vouches for ({text.rpartition(': ')[2]})"
    return text.removeprefix("[").rstrip(".")
