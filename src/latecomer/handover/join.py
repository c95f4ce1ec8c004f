"""A client for other programs: its model from a server, by the standard library and numpy.

The encoder and the model are run by onnxruntime; only where a method trains its newcomers, torch is needed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import ipaddress
import json
import os
import random
import re
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from ..data.arrays import hold_out
from ..data.form import Form
from ..errors import DataError, ServerError, SettingError, need
from ..tensorfile import TensorFileError, pack, unpack
from .drafts import drafted

AGAIN = (429, 502, 503, 504)  # answers that may be others a little later
LONGEST = 60.0  # seconds to wait before the next try, whatever a server says
MOST = 2**32  # bytes of an answer
AT_ONCE = 256  # examples that are predicted together
HELD_OUT = 0.2  # share of the labelled examples that is held out where the method chooses by it
VERSION = "X-Latecomer-Bundle"
KEY = re.compile(r"[!-~]*")
NOISE = 2**20  # numbers; no descriptor takes more
DEFAULTS = {"why": {}, "inputs": [], "noise": 0, "descriptor": 0, "header": "{}"}


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _header(value: Any) -> bool:
    return isinstance(value, str) and names_in(value) is not None  # or it raises what `bundle` catches


FACTS: dict[str, Callable[[Any], bool]] = {
    "rule": lambda value: isinstance(value, str),
    "recipe": lambda value: isinstance(value, dict),
    "files": _texts,
    "why": _texts,
    "inputs": lambda value: isinstance(value, list),
    "noise": lambda value: type(value) is int and 0 <= value <= NOISE,
    "descriptor": lambda value: type(value) is int,
    "header": _header,
}
"""What a server tells of its bundle, as far as it is used here, and whether it can be so."""


def join(
    url: str,
    x: Any,
    y: Any = None,
    *,
    key: str = "",
    held_out: tuple[Any, Any] | None = None,
    timeout: float = 60.0,
    retries: int = 5,
) -> Joined:
    """The model of a client that has the examples `x`, with labels `y` or without, from the server at `url`.

    The examples stay here. By most rules a descriptor of them is sent, or nothing; where the method says so, the client
    trains. `held_out` are examples and labels that some methods choose by; where they ask for them and none are given,
    a fifth of the labelled ones is taken. What fails for a moment is tried again `retries` times.
    """
    server = Server(url, key, timeout, retries)
    with contextlib.closing(server.connection):
        try:
            return _join(server, x, y, held_out)
        except BundleChanged:  # between two of our requests; now all of them meet the new one
            return _join(server, x, y, held_out)


@dataclass(frozen=True, eq=False)
class Joined:
    """A client's own model: it predicts, and it can be saved."""

    facts: Mapping[str, Any]  # of the bundle that it comes from
    files: Mapping[str, bytes]  # model.onnx, model.safetensors
    grown: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what of it has the size of the client's data

    @property
    def version(self) -> str:
        """Which bundle it comes from."""
        return str(self.facts["version"])

    @property
    def weights(self) -> dict[str, NDArray[Any]]:
        """By name."""
        return unpack(self.files["model.safetensors"]) | dict(self.grown)

    def logits(self, x: Any) -> NDArray[np.float32]:
        """A row for every example, a column for every class."""
        examples = Form.read(self.facts["recipe"]["task"]).examples(x, "x", "your data")
        parts = [examples[first : first + AT_ONCE] for first in range(0, len(examples), AT_ONCE)]
        return np.concatenate([self._graph.run({**self.grown, "x": part})["logits"] for part in parts])

    def predict(self, x: Any) -> NDArray[np.int64]:
        """The class of every example."""
        guesses: NDArray[np.int64] = self.logits(x).argmax(1)
        return guesses

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """A folder with model.onnx, its weights beside it, and bundle.json; it appears whole or not at all."""
        place = Path(folder)
        grown = {"grown.safetensors": pack(self.grown)} if self.grown else {}
        about = {"bundle.json": json.dumps(dict(self.facts), indent=2).encode() + b"\n"}
        with drafted(place, ServerError) as draft:
            for name, content in {**self.files, **grown, **about}.items():
                (draft / name).write_bytes(content)
        return place

    @cached_property
    def _graph(self) -> Graph:
        return Graph(self.files, "model.onnx")


class Graph:
    """An ONNX graph whose weights lie in the file beside it."""

    def __init__(self, files: Mapping[str, bytes], name: str) -> None:
        runtime: Any = need("onnxruntime", "export")
        self.name = name
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                (Path(folder) / file).write_bytes(content)
            try:  # onnxruntime lets no graph look beyond the folder that it lies in
                self.session = runtime.InferenceSession(Path(folder) / name, providers=["CPUExecutionProvider"])
            except Exception as error:  # onnxruntime's have no ancestor of their own
                raise ServerError(f"{name} is no graph that onnxruntime could load with its weights.") from error

    def run(self, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Its outputs by name; of what is given it takes what it asks for."""
        outputs = [one.name for one in self.session.get_outputs()]
        try:
            found = self.session.run(None, {one.name: given[one.name] for one in self.session.get_inputs()})
        except Exception as error:
            raise ServerError(f"{self.name} does not take these examples, though the bundle says so.") from error
        return dict(zip(outputs, found, strict=True))


class BundleChanged(ServerError):
    """The server has taken over another bundle while we were at it."""


class Server:
    """Requests to one server: tried again where that may help, and checked against their digests."""

    def __init__(self, url: str, key: str, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(f"The server's address must be like https://models.example.org; got {url!r}.")
        if key and parts.scheme == "http" and not _own(parts.hostname):
            raise SettingError(f"A key is not sent to {url} without TLS; use https.")
        if not KEY.fullmatch(key):  # and not a word of it in the sentence
            raise SettingError("A key is one word of printable characters; this one has others, a line's end perhaps.")
        try:
            port = parts.port
        except ValueError as error:
            raise SettingError(f"The port in {url!r} must be a number from 0 to 65535.") from error
        if timeout <= 0 or retries < 0:
            raise SettingError(f"timeout must be above 0 and retries at least 0; got {timeout} and {retries}.")
        self.url, self.key, self.prefix, self.retries = url, key, parts.path.rstrip("/"), retries
        place: Any = {"host": parts.hostname, "port": port, "timeout": timeout}
        self.connection = http.client.HTTPConnection(**place)
        if parts.scheme == "https":
            self.connection = http.client.HTTPSConnection(**place, context=ssl.create_default_context())
        self.version = ""  # of the bundle; all answers must be of one

    def bundle(self) -> dict[str, Any]:
        """What the server tells of its bundle."""
        self.version = ""
        try:
            facts: dict[str, Any] = json.loads(self.ask("GET", "/v1/bundle"))
            self.version = str(facts["version"])
            if not all(fits(facts.get(name, DEFAULTS.get(name))) for name, fits in FACTS.items()):
                raise ValueError("a fact that cannot be")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ServerError(f"{self.url} is no server of latecomer's: it says nothing about a bundle.") from error
        return facts

    def file(self, facts: Mapping[str, Any], name: str) -> bytes:
        """A public file, as its digest in the facts promises it."""
        if f"public/{name}" not in facts["files"]:
            raise ServerError(facts.get("why", {}).get(name) or f"The bundle at {self.url} has no {name}.")
        found = self.ask("GET", f"/v1/files/{name}")
        if hashlib.sha256(found).hexdigest() != facts["files"][f"public/{name}"]:
            raise ServerError(f"{name} from {self.url} is not what the bundle promises: its digest is another.")
        return found

    def model(self, descriptor: Any) -> bytes:
        """A weights file for a descriptor."""
        body = json.dumps({"descriptor": [float(number) for number in descriptor]}).encode()
        return self.ask("POST", "/v1/models", body, "application/json")

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
        """The body of a good answer; what is asked may be asked again, for nothing changes by it."""
        headers = {"Accept": "application/octet-stream, */*;q=0.5"}
        headers |= {"Content-Type": kind} if kind else {}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        headers |= {VERSION: self.version} if self.version else {}
        for left in range(self.retries, -1, -1):
            wait = min(LONGEST, 0.25 * 2 ** (self.retries - left) * (1 + random.random()))
            try:
                self.connection.request(method, self.prefix + path, body or None, headers)
                answer = self.connection.getresponse()
                content = answer.read(MOST + 1)
            except (OSError, http.client.HTTPException) as error:
                self.connection.close()
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise ServerError(f"{self.url} cannot be trusted: {error.verify_message}.") from error
                if not left:
                    raise ServerError(f"{self.url} cannot be reached: {error or type(error).__name__}.") from error
            else:
                if answer.status == 200:
                    return self._checked(path, answer, content)
                if answer.status not in AGAIN or not left:
                    raise _refusal(self.url, answer.status, content)
                wait = min(LONGEST, _seconds(answer.headers.get("Retry-After")) or wait)
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _checked(self, path: str, answer: http.client.HTTPResponse, content: bytes) -> bytes:
        promised, version = answer.headers.get("Repr-Digest"), answer.headers.get(VERSION)
        found = f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"
        if (promised is None and path != "/v1/bundle") or promised not in (None, found):
            raise ServerError(f"What {self.url} sent for {path} is not what it promised: its digest is another.")
        if self.version and version != self.version:
            raise BundleChanged(f"{self.url} has taken over another bundle.")
        return content


def _join(server: Server, x: Any, y: Any, held_out: tuple[Any, Any] | None) -> Joined:
    facts = server.bundle()
    try:
        form = Form.read(facts["recipe"]["task"])
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(f"The bundle at {server.url} does not say what its examples look like.") from error
    rule, data = facts["rule"], _inputs(form, facts, x, y, held_out)
    if facts.get("needs_labels") and not (data["y"] >= 0).any():
        raise DataError(f"{facts.get('method')} at {server.url} needs labels to make a client's model; give y.")
    if rule in ("train", "fit"):
        from .join_training import model_by_training

        weights = model_by_training(server, facts, x, y, held_out)
        return Joined(facts, {"model.onnx": server.file(facts, "model.onnx"), "model.safetensors": weights})
    grown: dict[str, NDArray[Any]] = {}
    if rule == "common":
        weights = server.file(facts, "common.safetensors")
    elif rule in ("describe", "generate"):
        names = [name for name in ("encoder.onnx", "encoder.safetensors") if f"public/{name}" in facts["files"]]
        made = Graph({name: server.file(facts, name) for name in names}, "encoder.onnx").run(data)
        if not all(np.isfinite(one).all() for one in made.values()):
            raise DataError("No model can be made of these examples: what comes of them is not finite.")
        if rule == "describe":
            if "descriptor" not in made or made["descriptor"].shape != (facts.get("descriptor"),):
                raise ServerError(f"The encoder of {server.url} does not give the descriptor that its bundle promises.")
            weights = server.model(made["descriptor"])
        else:
            weights, grown = weights_file(facts, made)
    else:
        raise ServerError(f"The bundle at {server.url} has the rule {rule!r}, which this version does not know.")
    return Joined(facts, {"model.onnx": server.file(facts, "model.onnx"), "model.safetensors": weights}, grown)


def _inputs(
    form: Form, facts: Mapping[str, Any], x: Any, y: Any, held_out: tuple[Any, Any] | None
) -> dict[str, NDArray[Any]]:
    """All that an encoder may ask for; labels that are not known are -1."""
    examples = form.examples(x, "x", "your data")
    labels = form.labels(np.full(len(examples), -1) if y is None else y, len(examples), "y", "your data")
    if held_out is not None:
        held_x = form.examples(held_out[0], "held-out x", "your data")
        held_y = form.labels(held_out[1], len(held_x), "held-out y", "your data")
    else:
        share = HELD_OUT if "held_x" in facts.get("inputs", ()) else 0.0
        apart = hold_out(np.zeros(len(labels), int), labels, share, np.random.default_rng(0)) & (labels >= 0)
        if not (labels[~apart] >= 0).any():
            apart[:] = False  # what the model is made of comes first
        held_x, held_y, examples, labels = examples[apart], labels[apart], examples[~apart], labels[~apart]
    normal = secrets.SystemRandom().gauss  # noise that protects a client must not come from a seed
    noise = np.array([normal(0.0, 1.0) for _ in range(int(facts.get("noise", 0)))])
    given = {"x": examples, "y": labels.astype(np.int32), "held_x": held_x, "held_y": held_y.astype(np.int32)}
    return {**given, "noise": noise}


def weights_file(facts: Mapping[str, Any], made: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """Leaves of a model as a weights file with the bundle's header, and those that have no place in it."""
    header = facts.get("header", "{}").encode()
    try:
        numbers = b"".join(np.ascontiguousarray(made[name]).tobytes() for name in names_in(header.decode()))
        content = len(header).to_bytes(8, "little") + header + numbers
        placed = unpack(content)
    except (TensorFileError, KeyError) as error:
        raise ServerError(f"This model is not of the form that the bundle promises: {error}.") from error
    return content, {name: leaf for name, leaf in made.items() if name not in placed}


def names_in(header: str) -> list[str]:
    """The leaves in a weights file, in their order."""
    return [name for name, _ in sorted(json.loads(header).items(), key=lambda leaf: leaf[1]["data_offsets"])]


def _refusal(url: str, status: int, content: bytes) -> ServerError:
    """What the server's problem says, or that it says nothing."""
    if status == 409:
        return BundleChanged(f"{url} has taken over another bundle.")
    try:
        detail = str(json.loads(content)["detail"])[:500]
    except (KeyError, TypeError, ValueError, RecursionError):
        detail = "it does not say why."
    return ServerError(f"{url} answers {status}: {detail}")


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0


def _own(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
