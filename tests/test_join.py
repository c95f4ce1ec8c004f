"""`latecomer.join`: a newcomer gets from a server what it would get from the run itself."""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.server
import ipaddress
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import latecomer
import latecomer.handover.join as joining
from console import environment, start
from latecomer import tensorfile
from latecomer.errors import DataError, ServerError, SettingError
from latecomer.handover.bundle import Bundle
from latecomer.handover.publish import publish
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import Run
from latecomer.serve.keys import Keys
from latecomer.serve.listen import Server, configure
from latecomer.serve.service import Service
from latecomer.serve.settings import Serving

OWN = {"pefll": {"steps": 2}, "pfedhn": {"steps": 2, "novel_rounds": 3}, "flowdup": {}, "fedavgplus": {}, "fedavg": {}}
Opened = Callable[..., tuple[Server, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A tiny run of a method, and its bundle; each is made once."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def run(method: str) -> tuple[Path, Path]:
        if method not in made:
            settings = {"data": "digits", "clients": 8, "unseen": 0.25, "rounds": 1, "cohort": 2, "engine": "loop"}
            own = {**settings, **OWN[method], "out": str(place), "name": method}
            Run.begin(Experiment.parse(method, own)).go()
            made[method] = place / method, publish(latecomer.load(place / method), place / f"{method}-bundle")
        return made[method]

    return run


@pytest.fixture
def opened() -> Iterator[Opened]:
    """A real server in a thread, and its address."""
    started: list[tuple[Server, threading.Thread]] = []

    def serve(bundle: Path, **settings: Any) -> tuple[Server, str]:
        service = Service(bundle, Serving(port=0, **settings), Bundle.open)
        told: list[str] = []
        server = Server(configure(service), service, told.append)
        started.append((server, threading.Thread(target=server.run)))
        started[-1][1].start()
        while not told:
            time.sleep(0.01)
        return server, told[0]

    yield serve
    for server, thread in started:
        server.handle_exit(15, None)
        thread.join(10)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    source = latecomer.data.load("digits")  # type: ignore[attr-defined]
    return np.asarray(source.x_train[:40]), np.asarray(source.y_train[:40])


@pytest.mark.parametrize("method", OWN)
def test_a_newcomer_gets_the_model_that_the_run_would_give_it(
    runs: Callable[[str], tuple[Path, Path]], opened: Opened, digits: tuple[Any, Any], method: str, tmp_path: Path
) -> None:
    run, bundle = runs(method)
    _, url = opened(bundle)
    x, y = digits
    apart = (x[30:], y[30:])
    got = latecomer.join(url, x[:30], y[:30], held_out=apart)
    own = latecomer.load(run).personalise(x[:30], y[:30], held_out=apart)
    assert np.abs(got.logits(x) - own.logits(x)).max() < 1e-4
    assert (got.predict(x) == own.predict(x)).all()
    assert got.version == Bundle.open(bundle).version
    folder = got.save(tmp_path / "mine")
    assert json.loads((folder / "bundle.json").read_text())["version"] == got.version
    assert (folder / "model.safetensors").read_bytes() == got.files["model.safetensors"]
    with pytest.raises(ServerError, match="exists already"):
        got.save(folder)


def certificate(folder: Path) -> tuple[str, str]:
    """Of this machine, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(built.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_the_command_serves_over_tls_to_whoever_has_a_key(
    runs: Callable[[str], tuple[Path, Path]], digits: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, private = certificate(tmp_path)
    keys, text = Keys().new("shop", ["models", "encoder"])
    keys.write(tmp_path / "keys.json")
    words = ["--certificate", cert, "--private-key", private, "--keys", tmp_path / "keys.json"]
    with start(tmp_path, "serve", runs("pefll")[1], "--port", 0, *words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[-1]
        with pytest.raises(ServerError, match="cannot be trusted"):
            latecomer.join(url, *digits, key=text)
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        with pytest.raises(ServerError, match="401: This needs a key"):
            latecomer.join(url, *digits)
        assert latecomer.join(url, *digits, key=text).predict(digits[0]).shape == (40,)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        written = process.stderr.read()
    assert "POST /v1/models 200" in written
    assert " shop\n" in written
    assert text not in written


class Scripted(http.server.BaseHTTPRequestHandler):
    """A server that answers what it is told to, one answer after the other."""

    answers: list[tuple[int, dict[str, str], bytes]] = []
    asked: list[tuple[str, dict[str, str]]] = []

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status, headers, body = self.answers.pop(0)
        if status:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        self.close_connection = True

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[str, list[Any]]]]:
    """`scripted((status, headers, body), ...)`: an address that answers so, and what it was asked."""
    monkeypatch.setattr(joining.time, "sleep", lambda seconds: waited.append(seconds))
    waited: list[float] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()

        def script(*answers: tuple[int, dict[str, str], bytes]) -> tuple[str, list[Any]]:
            Scripted.answers, Scripted.asked = list(answers), []
            return f"http://127.0.0.1:{server.server_port}", waited

        yield script
        server.shutdown()


FACTS = {
    "version": "a",
    "rule": "common",
    "recipe": {"task": {"dtype": "float32", "stored": [2], "classes": 2, "text": False, "mean": [], "std": []}},
    "files": {"public/common.safetensors": "00", "public/model.onnx": "00"},
}
X = np.zeros((3, 2), np.float32)


def told(**other: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(FACTS | other).encode()


def digest_of(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def test_what_fails_for_a_moment_is_tried_again(scripted: Any) -> None:
    problem = json.dumps({"detail": "This key is not known."}).encode()
    url, waited = scripted((429, {"Retry-After": "7"}, b""), (503, {}, b""), (0, {}, b""), (401, {}, problem))
    with pytest.raises(ServerError, match=r"answers 401: This key is not known\."):
        latecomer.join(url, X, key="secret")
    assert waited[0] == 7
    assert 0.25 < waited[1] < waited[2] < 4
    assert Scripted.asked[0][1]["authorization"] == "Bearer secret"


def test_it_gives_up_in_the_end(scripted: Any) -> None:
    url, waited = scripted(*[(503, {"Retry-After": "100000"}, b"")] * 3)
    with pytest.raises(ServerError, match="answers 503"):
        latecomer.join(url, X, retries=2)
    assert waited == [60, 60]
    with pytest.raises(ServerError, match="cannot be reached"):
        latecomer.join("http://127.0.0.1:9", X, retries=1)


def test_what_was_not_promised_is_refused(scripted: Any) -> None:
    for digest in (digest_of(b"good"), digest_of(b"bad")):  # of the answer, and of the file
        url, _ = scripted(told(), (200, {"X-Latecomer-Bundle": "a", "Repr-Digest": digest}, b"bad"))
        with pytest.raises(ServerError, match="digest is another"):
            latecomer.join(url, X)
    url, _ = scripted((200, {}, b"<html>"))
    with pytest.raises(ServerError, match="no server of latecomer's"):
        latecomer.join(url, X)
    url, _ = scripted(told(rule="magic"))
    with pytest.raises(ServerError, match="'magic'"):
        latecomer.join(url, X)


def test_a_new_bundle_halfway_means_to_start_over_once(scripted: Any) -> None:
    other = (200, {"X-Latecomer-Bundle": "b", "Repr-Digest": digest_of(b"x")}, b"x")
    url, _ = scripted(told(), other, told(version="b"), (409, {}, b""))
    with pytest.raises(ServerError, match="taken over another bundle"):
        latecomer.join(url, X)
    assert [path for path, _ in Scripted.asked].count("/v1/bundle") == 2


def test_bad_data_and_addresses_are_one_sentence(scripted: Any) -> None:
    for wrong, words in ((np.zeros((3, 5), np.float32), "trained on"), (X * np.nan, "NaN"), (X[:0], "empty")):
        url, _ = scripted(told())
        with pytest.raises(DataError, match=words):
            latecomer.join(url, wrong)
    url, _ = scripted(told())
    with pytest.raises(DataError, match="the classes are 0 to 1"):
        latecomer.join(url, X, [0, 1, 2])
    url, _ = scripted(told(needs_labels=True, method="pefll"))
    with pytest.raises(DataError, match=r"pefll .* needs labels"):
        latecomer.join(url, X)
    for address, key in (("ftp://x", ""), ("nonsense", ""), ("http://models.example.org", "secret")):
        with pytest.raises(SettingError):
            latecomer.join(address, X, key=key)


def test_a_server_that_makes_no_sense_is_one_sentence(scripted: Any) -> None:
    task = FACTS["recipe"]["task"]  # type: ignore[index]
    senseless: list[dict[str, Any]] = [
        *({"files": None}, {"files": ["public/model.onnx"]}, {"files": {"public/model.onnx": 1}}, {"recipe": []}),
        *({"noise": 10**12}, {"noise": "x"}, {"inputs": None}, {"header": 3}, {"header": "["}, {"header": '{"a": 1}'}),
        *({"rule": ["common"]}, {"why": []}, {"descriptor": None}),
        {"recipe": {"task": task | {"stored": 3}}},
    ]
    for facts in senseless:
        url, _ = scripted(told(**facts))
        with pytest.raises(ServerError):
            latecomer.join(url, X)
    graph = digest_of(b"graph")
    files = {"public/encoder.onnx": hashlib.sha256(b"graph").hexdigest()}
    url, _ = scripted(
        told(rule="describe", files=files), (200, {"X-Latecomer-Bundle": "a", "Repr-Digest": graph}, b"graph")
    )
    with pytest.raises(ServerError, match="no graph"):
        latecomer.join(url, X)
    hostile = {"method": "fedavgplus", "settings": {"continue_from": "/etc"}, "run": {}, "task": task}
    url, _ = scripted(told(rule="fit", recipe=hostile, seed=0))
    with pytest.raises(ServerError, match="'continue_from' is no setting"):
        latecomer.join(url, X)


def test_a_key_with_a_lines_end_is_not_repeated() -> None:
    with pytest.raises(SettingError) as caught:
        latecomer.join("https://models.example.org", X, key="lc-secret\n")
    assert "secret" not in str(caught.value)
    with pytest.raises(SettingError, match="port"):
        latecomer.join("https://models.example.org:x", X)


def test_it_needs_neither_torch_nor_onnxruntime_to_talk() -> None:
    program = "import sys, latecomer; latecomer.join; print({'torch', 'onnxruntime', 'safetensors'} & {*sys.modules})"
    found = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment())
    assert found == "set()\n"


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1])
def test_a_damaged_file_of_tensors(cut: int) -> None:
    whole = tensorfile.pack({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.int64)})
    found = tensorfile.unpack(whole)
    assert (found["a"][1, 2], found["b"], found["b"].shape) == (5, 7, ())
    with pytest.raises(tensorfile.TensorFileError):
        tensorfile.unpack(whole[:cut])


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "{",
        "[" * 5000,
        '{"a": 1}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}',
        '{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [0, 99999999999999999999999], "data_offsets": [0, 0]}}',
        '{"a": {"dtype": "object", "shape": [1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
    ],
)
def test_a_hostile_file_of_tensors(header: str) -> None:
    with pytest.raises(tensorfile.TensorFileError):
        tensorfile.unpack(len(header).to_bytes(8, "little") + header.encode() + b"1234")
