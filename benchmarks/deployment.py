"""A deployment on loopback, as tests and benchmarks start it: a SuperLink with TLS and node keys, and nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import latecomer
from latecomer.engines.flower.control import Control

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
}
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def certificates(folder: Path, host: str = "127.0.0.1") -> None:
    """ca.crt, server.pem and server.key, for a week."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in ("ca", "server")}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")]) for name in keys}
    for name, file in (("ca", "ca.crt"), ("server", "server.pem")):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[name])
            .issuer_name(names["ca"])
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=7))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        )
        if name == "server":
            own = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")])
            builder = builder.add_extension(own, critical=False)
        signed = builder.sign(keys["ca"], hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        keys["server"].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def node_key(path: Path) -> None:
    """A private key of a node, and its public half beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


@dataclass
class Site:
    """A folder with certificates and keys, and the processes that were started in it."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "FLWR_HOME": str(self.folder / "flwr"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(latecomer.__file__).parent.parent),
        }
        return {**os.environ, **QUIET, **own}

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        """A process in a group of its own, so that what it starts ends with it; its words go to NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*map(str, words)],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def superlink(self, *words: object) -> None:
        """Until it listens."""
        tls = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        own = ("--port", self.port, "--enable-supernode-auth", "--disable-runtime-dependency-installation")
        process = self.start("superlink", BIN / "flower-superlink", *tls, *own, *words)
        for _ in range(600):
            with socket.socket() as knock:
                if not knock.connect_ex(("127.0.0.1", self.port)):
                    return
            assert process.poll() is None, self.log("superlink")
            time.sleep(0.1)
        raise AssertionError(self.log("superlink"))

    def register(self, *names: str) -> None:
        """Node keys, made and made known."""
        with Control(self.address, self.folder / "ca.crt") as control:
            for name in names:
                node_key(self.folder / name)
                control.register(self.folder / f"{name}.pub")

    def node(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        """A resident node of latecomer's, with a key, data and a folder of its name."""
        link = ("--superlink", self.address, "--root-certificates", "ca.crt", "--key", name, "--data", f"{name}.npz")
        return self.start(name, sys.executable, "-m", "latecomer", "node", *link, "--threads", 1, *words)

    def await_log(self, name: str, text: str, seconds: float = 120) -> None:
        """Until a process has said something."""
        end = time.monotonic() + seconds
        while text not in self.log(name):
            assert time.monotonic() < end, f"{name} never said {text!r}: {self.log(name)[-3000:]}"
            time.sleep(0.1)

    def latecomer(self, *words: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "latecomer", *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Nothing that was started in it is left behind."""
    certificates(folder)
    found = Site(folder)
    try:
        yield found
    finally:
        for process in reversed(found.processes):
            end(process, signal.SIGTERM)
        for process in reversed(found.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                end(process, signal.SIGKILL)
                process.wait()


def end(process: subprocess.Popen[bytes], number: int) -> None:
    """A process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
