"""What `latecomer serve` can be told."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from ..errors import SettingError
from ..settings import setting


@dataclass(frozen=True)
class Serving:
    """The settings of a server."""

    host: str = setting("127.0.0.1", "address to listen on; any but this machine's own needs TLS and keys")
    port: int = setting(8000, "port to listen on; 0: any that is free", low=0, high=65535)
    keys: str = setting("", "file of API keys, made by `latecomer keys`; empty: nobody needs one")
    certificate: str = setting("", "TLS certificate chain (PEM); read again on SIGHUP")
    private_key: str = setting("", "private key of the certificate (PEM)")
    insecure: bool = setting(False, "listen on a public address without TLS or without keys")
    trusted_proxy: str = setting("", "address of a reverse proxy, whose X-Forwarded-For is believed")
    ledger: str = setting("", "file that keeps what each key has spent of its privacy budget")
    batch: int = setting(64, "largest number of descriptors in one pass of the hypernetwork", low=1, high=4096)
    waiting: int = setting(512, "largest number of requests that wait for a pass; more are told to come again", low=1)
    rate: float = setting(50.0, "requests a second that an address, and a key, may go on sending", above=0)
    burst: int = setting(200, "requests that an address, and a key, may send at once", low=1)
    connections: int = setting(512, "largest number of open connections", low=1)
    seconds: float = setting(60.0, "longest time for a request, from its first byte to its answer", above=0)
    threads: int = setting(
        2, "threads of a pass; 0: as PyTorch likes (with others the last bits of a model may be others)", low=0
    )
    look_every: float = setting(2.0, "seconds between looks for a new bundle or new keys", above=0)

    def check(self) -> None:
        """A sentence where these settings would be unsafe together."""
        if bool(self.certificate) != bool(self.private_key):
            raise SettingError("--certificate and --private-key go together; one of them is missing.")
        lacking = [name for name, given in (("TLS", self.certificate), ("keys", self.keys)) if not given]
        if lacking and not self.insecure and not is_own(self.host):
            raise SettingError(
                f"{self.host} can be reached by others, and the server has no {' and no '.join(lacking)}; "
                "give --certificate, --private-key and --keys, or say --insecure."
            )

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        return bool(self.certificate)


def is_own(host: str) -> bool:
    """Whether only this machine can reach what listens at `host`."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host or "0.0.0.0", None)}
    except (OSError, UnicodeError) as error:
        raise SettingError(f"--host {host!r} is no address of this machine: {error}.") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
