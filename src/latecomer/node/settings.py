"""The settings of a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import methods
from ..data.split import SIZES
from ..errors import SettingError, UnknownName
from ..settings import setting


@dataclass(frozen=True, kw_only=True)
class Stay:
    """How a node takes part, and what its owner agrees to."""

    superlink: str = setting("", "HOST:PORT of the SuperLink's Fleet API")
    root_certificates: str = setting("", "file of the authority whose certificate the SuperLink has; empty: any known")
    insecure: bool = setting(False, "without TLS, for tests on one machine: whoever listens can read everything")
    key: str = setting("", "file of this node's private key, ECDSA; empty: one of its own, where nodes may register")
    data: str = setting("", ".npz with the client's examples x, labels y, and what it holds out: x_val, x_test, ...")
    state: str = setting("", "folder for what must survive; empty: beside the data, named after it")
    out: str = setting("", "folder for the personal models that it is given; empty: models, within --state")
    client: int = setting(-1, "the number that it would like to have; -1: any", low=-1, high=10**7)
    budget: str = setting("M", "S, M or L: the size of model that it can afford, where a training has several")
    report_scores: bool = setting(False, "tell how many held-out examples a model gets right")
    threads: int = setting(0, "processor threads; 0: as PyTorch chooses", low=0, high=1024)
    allow: tuple[str, ...] = setting((), "methods that it takes part in; empty: all")

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is done."""
        for name in ("superlink", "data"):
            if not getattr(self, name):
                raise SettingError(f"--{name} is needed; --help says more.")
        host, colon, port = self.superlink.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
            raise SettingError(f"--superlink must be HOST:PORT; got {self.superlink!r}.")
        if self.insecure and self.root_certificates:
            raise SettingError("--root-certificates is for TLS, which --insecure does without; give one of them.")
        if self.budget not in SIZES:
            raise UnknownName("size", self.budget, SIZES)
        for name in self.allow:
            methods.get(name)

    @property
    def desk(self) -> Path:
        return Path(self.state) if self.state else Path(self.data).with_suffix(".node")

    @property
    def models(self) -> Path:
        return Path(self.out) if self.out else self.desk / "models"
