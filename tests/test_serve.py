"""The server: what it hands out, whom it refuses, and what it survives."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from console import Command, environment
from fakes import FakeBundle
from latecomer import tensorfile
from latecomer.errors import RunError, SettingError
from latecomer.serve import pages
from latecomer.serve.app import make
from latecomer.serve.batching import Batcher
from latecomer.serve.keys import DAY, Keys
from latecomer.serve.ledger import Ledger
from latecomer.serve.limits import Buckets, whose
from latecomer.serve.listen import Server, configure, listen
from latecomer.serve.problems import Problem
from latecomer.serve.service import Service
from latecomer.serve.settings import Serving
from latecomer.serve.v1 import chosen

DESCRIPTOR = [0.5, -1.0, 2.0]
Served = Callable[..., TestClient]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A client of a server in this process: `served(rate=..., bundle facts=...)`."""
    open_clients: list[TestClient] = []

    def serve(facts: dict[str, Any] | None = None, **settings: Any) -> TestClient:
        path = FakeBundle.make(tmp_path / "bundle", **(facts or {}))
        service = Service(path, Serving(**{"rate": 1e6, "burst": 10**6} | settings), FakeBundle.open)
        client = TestClient(make(service), raise_server_exceptions=False)
        client.service = service  # type: ignore[attr-defined]
        client.__enter__()
        open_clients.append(client)
        return client

    yield serve
    for client in open_clients:
        client.__exit__(None, None, None)


@pytest.fixture
def shop(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A file with one key, and the header that has it."""
    keys, text = Keys().new("shop", ["models", "encoder"])
    keys.write(tmp_path / "keys.json")
    return str(tmp_path / "keys.json"), {"Authorization": f"Bearer {text}"}


def expected(seed: int = 0, descriptor: list[float] = DESCRIPTOR) -> bytes:
    """What the bundle itself makes of a descriptor."""
    facts = {
        "version": "",
        "graphs": [],
        "rule": "describe",
        "descriptor": 3,
        "weights": 50,
        "epsilon": 0,
        "budget": 0,
        "gate": 0,
    }
    bundle = FakeBundle(Path(), facts | {"seed": seed})
    return bundle.header + bundle.generate(np.array([descriptor], np.float32))[0].tobytes()


def is_problem(answer: Any, status: int, words: str = "") -> bool:
    told = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, told["status"]) == (status, status), told
    assert told["detail"].endswith(".")
    assert words in told["detail"], told
    return True


# what is handed out


def test_a_model_comes_with_its_digest_and_its_bundle(served: Served) -> None:
    answer = served().post("/v1/models", json={"descriptor": DESCRIPTOR})
    assert answer.status_code == 200
    assert answer.content == expected()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-latecomer-bundle"] == "version-0"
    digest = base64.b64encode(hashlib.sha256(answer.content).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    weights = tensorfile.unpack(answer.content)["w"]
    assert (weights.shape, weights.dtype) == ((50,), np.float32)


def test_the_format_is_chosen_by_accept(served: Served) -> None:
    client = served()
    answer = client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers={"Accept": "application/onnx"})
    assert (answer.headers["content-type"], answer.content[:4]) == ("application/onnx", b"onnx")
    refused = client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers={"Accept": "image/png"})
    assert is_problem(refused, 406, "application/onnx")


def test_without_a_graph_no_onnx_is_made_and_nothing_spent(served: Served, tmp_path: Path) -> None:
    facts = {"graphs": ["encoder.onnx"], "epsilon": 1.0, "budget": 1.0}
    client = served(facts, ledger=str(tmp_path / "spent"))
    refused = client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers={"Accept": "application/onnx"})
    assert is_problem(refused, 406, "no graph")
    assert client.service.ledger.spent("anybody")[1] == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", "octet-stream"),
        ("*/*", "octet-stream"),
        ("application/*;q=0.1", "octet-stream"),
        ("application/onnx, */*;q=0.5", "onnx"),
        ("APPLICATION/ONNX ; q=0.9, application/octet-stream;q=0.2", "onnx"),
        ("application/onnx;q=0", ""),
        ("application/onnx;q=nan", ""),
        ("text/html", ""),
        (";;,,q=", ""),
    ],
)
def test_accept(accept: str, media: str) -> None:
    if media:
        assert chosen(accept) == f"application/{media}"
    else:
        with pytest.raises(Problem, match="A model comes as"):
            chosen(accept)


def test_facts_and_files_hide_what_is_private(served: Served) -> None:
    client = served()
    facts = client.get("/v1/bundle").json()
    assert (facts["version"], facts["descriptor"], facts["limits"]["body"]) == ("version-0", 3, 4096 + 64 * 3)
    assert "private" not in json.dumps(facts)
    for path in ("/v1/encoder", "/v1/files/encoder.onnx"):
        answer = client.get(path)
        assert (answer.content, answer.headers["x-latecomer-bundle"]) == (b"graph 0", "version-0")
    for name in ("state.safetensors", "..%2Fbundle.json", "%2e%2e/bundle.json", "encoder.onnx%00"):
        assert is_problem(client.get(f"/v1/files/{name}"), 404)


def test_the_open_inference_protocol(served: Served) -> None:
    client = served()
    assert client.get("/v2").json()["name"] == "latecomer"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/latecomer").json()["outputs"] == [
        {"name": "weights", "datatype": "FP32", "shape": [-1, 50]}
    ]
    assert client.get("/v2/models/latecomer/ready").json()["ready"] is True
    assert is_problem(client.get("/v2/models/other"), 404, "'latecomer'")
    for data in (DESCRIPTOR * 2, [DESCRIPTOR] * 2):
        tensor = {"name": "descriptor", "shape": [2, 3], "datatype": "FP32", "data": data}
        told = client.post("/v2/models/latecomer/infer", json={"id": "a", "inputs": [tensor]}).json()
        assert (told["id"], told["model_version"], told["outputs"][0]["shape"]) == ("a", "version-0", [2, 50])
        made = np.array(told["outputs"][0]["data"], np.float32).reshape(2, 50)
        assert made[0].tobytes() == made[1].tobytes() == expected()[-200:]
    wrong = {"name": "descriptor", "shape": [2, 3], "datatype": "FP32", "data": DESCRIPTOR}
    assert is_problem(client.post("/v2/models/latecomer/infer", json={"inputs": [wrong]}), 422, "3 numbers")
    many = wrong | {"shape": [17, 3]}
    assert is_problem(client.post("/v2/models/latecomer/infer", json={"inputs": [many]}), 422, "1 to 16")


def test_coverage_where_there_is_a_gate(served: Served) -> None:
    client = served({"gate": True})
    told = client.post("/v1/coverage", json={"descriptor": DESCRIPTOR}).json()
    assert told == {"covered": True, "distance": 1.5}
    told = client.post("/v1/coverage", json={"descriptor": [0.5, -1.0, 2.0125]}).json()
    assert told["distance"] == 1.5  # one decimal: exact distances from many places would tell where members stand
    told = client.post("/v1/coverage", json={"descriptor": DESCRIPTOR, "entropy": 2.0}).json()
    assert told == {"covered": False, "distance": 3.5}
    wrong = {"descriptor": DESCRIPTOR, "entropy": -1.0}
    assert is_problem(client.post("/v1/coverage", json=wrong), 422, "entropy")
    assert client.get("/v1/bundle").json()["gate"]["places"] == [[0.0, 0.0]] * 4
    assert is_problem(served().post("/v1/coverage", json={"descriptor": DESCRIPTOR}), 404, "no gate")


def test_an_embedding_is_fitted_in_turns(served: Served) -> None:
    client = served({"rule": "fit"})
    octets = {"Content-Type": "application/octet-stream"}
    v, change = np.array(DESCRIPTOR, np.float32), np.ones(50, np.float32)
    body = tensorfile.pack({"v": v, "change": change})
    for turn in (1, 2, 3):
        answer = client.post("/v1/descriptors", content=body, headers=octets)
        found = tensorfile.unpack(answer.content)
        assert (found["v"] == v + turn).all()
        assert found["step"] == turn
        body = tensorfile.pack({**found, "change": change})
    for wrong in (b"", b"\xff" * 40, body[:-1], tensorfile.pack({"v": v}), tensorfile.pack({"v": v, "change": v})):
        assert is_problem(client.post("/v1/descriptors", content=wrong, headers=octets), 422)
    endless = tensorfile.pack({"v": v * np.inf, "change": change})
    assert is_problem(client.post("/v1/descriptors", content=endless, headers=octets), 422, "finite")
    assert is_problem(served().post("/v1/descriptors", content=body, headers=octets), 404, "'describe'")


def test_a_bundle_whose_clients_ask_for_nothing(served: Served) -> None:
    for rule in ("common", "train", "generate"):
        refused = served({"rule": rule}).post("/v1/models", json={"descriptor": DESCRIPTOR})
        assert is_problem(refused, 404, "/v1/files")


# bad input


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"descriptor": [1, 2]}', "2 numbers"),
        ('{"descriptor": [1, 2, NaN]}', "finite"),
        ('{"descriptor": [1, 2, Infinity]}', "finite"),
        ('{"descriptor": [1, 2, 1e39]}', "less than"),
        ('{"descriptor": [1, 2, "3"]}', "number"),
        ('{"descriptor": [1, 2, true]}', "number"),
        ('{"descriptor": [[1, 2, 3]]}', "number"),
        ('{"descriptor": [1, 2, 3], "more": 1}', "more"),
        ('{"descriptor": null}', "array"),
        ("[]", "object"),
        ("", "JSON"),
        ("{", "JSON"),
        ('{"descriptor": ' + "[" * 4000, "JSON"),
        ('{"descriptor": [' + "9" * 4000 + "]}", "finite"),
        ("\ufeff{}", "JSON"),
    ],
)
def test_a_bad_descriptor_is_one_sentence(served: Served, body: str, words: str) -> None:
    client = served()
    answer = client.post("/v1/models", content=body.encode(), headers={"Content-Type": "application/json"})
    assert is_problem(answer, 422, words)
    assert client.post("/v1/models", json={"descriptor": DESCRIPTOR}).content == expected()


def test_what_cannot_be_a_model_is_refused(served: Served) -> None:
    client = served()
    assert is_problem(client.post("/v1/models", json={"descriptor": [3e38, 3e38, 3e38]}), 422, "not finite")


def test_size_and_type_are_looked_at_before_the_body(served: Served) -> None:
    client = served()
    large = b'{"descriptor": [' + b" " * 10_000 + b"1,2,3]}"
    headers = {"Content-Type": "application/json"}
    assert is_problem(client.post("/v1/models", content=large, headers=headers), 413)
    parts = (large[k : k + 1000] for k in range(0, len(large), 1000))  # chunked: no length is told
    assert is_problem(client.post("/v1/models", content=parts, headers=headers), 413)
    assert is_problem(client.post("/v1/models", content=b"{}", headers={"Content-Type": "text/plain"}), 415)


def test_unknown_paths_and_methods_are_problems(served: Served) -> None:
    client = served()
    assert is_problem(client.get("/nowhere"), 404)
    refused = client.get("/v1/models")
    assert is_problem(refused, 405)
    assert refused.headers["allow"] == "POST"
    assert client.get("/docs").status_code == 404


def test_a_fault_of_ours_tells_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the descriptor was 0.5, -1, 2")

    client = served()
    monkeypatch.setattr(client.service.edition.bundle, "generate", fail)  # type: ignore[attr-defined]
    with caplog.at_level(logging.INFO, "latecomer.serve"):
        assert is_problem(client.post("/v1/models", json={"descriptor": DESCRIPTOR}), 500)
    assert "RuntimeError at" in caplog.text
    assert "0.5" not in caplog.text


# keys


def test_keys_open_what_their_scopes_say(served: Served, shop: tuple[str, dict[str, str]]) -> None:
    file, header = shop
    client = served(keys=file)
    for wrong in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": header["Authorization"][:-1] + "?"}):
        refused = client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers=wrong)
        assert is_problem(refused, 401)
        assert refused.headers["www-authenticate"] == "Bearer"
    assert client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers=header).status_code == 200
    assert is_problem(client.get("/metrics", headers=header), 403, "'metrics'")
    for path in ("/v2/health/live", "/openapi.json", "/"):
        assert client.get(path).status_code == 200


def test_a_key_is_rotated_revoked_and_expires(
    served: Served, shop: tuple[str, dict[str, str]], tmp_path: Path, command: Command
) -> None:
    file, old = shop
    client = served(keys=file)

    def status(header: dict[str, str]) -> int:
        client.service.refresh()  # type: ignore[attr-defined]
        return client.get("/v1/bundle", headers=header).status_code

    done = command("keys", "rotate", file, "shop", "--grace", "1")
    assert done.code == 0
    new = {"Authorization": f"Bearer {done.out.strip()}"}
    assert (status(old), status(new)) == (200, 200)
    listed = command("keys", "list", file).out
    assert listed.count("shop") == 2
    assert done.out.strip() not in listed
    assert done.out.strip().rpartition("-")[2] not in Path(file).read_text()
    assert command("keys", "rotate", file, "shop", "--grace", "0").code == 0
    assert (status(old), status(new)) == (401, 401)
    assert is_problem(client.get("/v1/bundle", headers=new), 401, "expired")
    assert command("keys", "new", file, "--name", "other", "--scopes", "metrics", "--days", "2").code == 0
    assert command("keys", "revoke", file, "shop").code == 0
    assert status(new) == 401
    assert [key.name for key in Keys.read(Path(file)).keys] == ["other"]
    assert Path(file).stat().st_mode & 0o777 == 0o600
    Path(file).write_text("{")  # a damaged file changes nothing
    assert status(new) == 401


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Say what to do"),
        (("make", "f"), "no command of keys"),
        (("new",), "takes FILE"),
        (("new", "FILE", "--name", "a b"), "name"),
        (("new", "FILE", "--name", "shop"), "already"),
        (("new", "FILE", "--name", "x", "--scopes", "model"), "did you mean 'models'"),
        (("new", "FILE", "--name", "x", "--days", "-1"), "--days"),
        (("rotate", "FILE", "nobody"), "no key 'nobody'"),
        (("revoke", "FILE"), "takes FILE and NAME"),
        (("list", "missing.json"), "cannot be read"),
        (("list", "BAD"), "no key file"),
    ],
)
def test_what_keys_cannot_do_is_one_sentence(
    shop: tuple[str, dict[str, str]], tmp_path: Path, command: Command, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "bad.json").write_text('{"format": 1, "keys": [{"name": 3}]}')
    before = Path(shop[0]).read_bytes()
    done = command("keys", *({"FILE": shop[0], "BAD": str(tmp_path / "bad.json")}.get(word, word) for word in words))
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert Path(shop[0]).read_bytes() == before


def test_a_key_that_expires() -> None:
    keys, text = Keys().new("shop", ["models"], days=1)
    key = keys.find(text)
    assert key is not None
    assert not key.expired(time.time())
    assert key.expired(time.time() + 2 * DAY)


# limits


def test_buckets_fill_at_their_rate() -> None:
    buckets = Buckets(rate=2.0, burst=3)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b", 0.0) == 0
    assert [buckets.take("a", 0.5) for _ in range(2)] == [0, 0.5]
    assert [buckets.take("a", 1000.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_an_address_of_ipv6_stands_for_its_network() -> None:
    assert whose("2001:db8::1") == whose("2001:db8::ffff:2") != whose("2001:db8:0:1::1")
    assert whose("192.0.2.1") != whose("192.0.2.2")


def test_who_asks_too_often_is_told_when_to_come_again(served: Served, shop: tuple[str, dict[str, str]]) -> None:
    client = served(rate=0.1, burst=2)
    answers = [client.get("/v2") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert is_problem(answers[-1], 429, "address")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 11
    client = served(keys=shop[0], rate=0.1, burst=3)
    client.service.addresses.burst = 100.0  # type: ignore[attr-defined]
    answers = [client.get("/v1/bundle", headers=shop[1]) for _ in range(4)]
    assert is_problem(answers[-1], 429, "key")


def test_a_full_queue_is_told_to_come_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client, begun, go = served(waiting=1), threading.Event(), threading.Event()
    bundle = client.service.edition.bundle  # type: ignore[attr-defined]
    generate = bundle.generate
    monkeypatch.setattr(bundle, "generate", lambda v: begun.set() or (go.wait(10) and generate(v)))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(client.post, "/v1/models", json={"descriptor": DESCRIPTOR})]
        begun.wait(10)
        asked += [pool.submit(client.post, "/v1/models", json={"descriptor": DESCRIPTOR}) for _ in range(7)]
        while sum(one.done() for one in asked) < 6:
            time.sleep(0.01)
        go.set()
    answers = [one.result() for one in asked]
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [503] * 6
    assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 503)


def test_requests_that_wait_share_a_pass(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client, go, sizes = served(), threading.Event(), []
    bundle = client.service.edition.bundle  # type: ignore[attr-defined]
    generate = bundle.generate

    def slowly(v: Any) -> Any:
        sizes.append(len(v))
        go.wait(10)
        return generate(v)

    monkeypatch.setattr(bundle, "generate", slowly)
    wanted = [[float(k), 1.0, 2.0] for k in range(12)]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(client.post, "/v1/models", json={"descriptor": one}) for one in wanted]
        while sum(sizes) + len(client.service.batcher.queue) < 12:  # type: ignore[attr-defined]
            time.sleep(0.01)
        go.set()
    assert [one.result().content for one in asked] == [expected(0, one) for one in wanted]
    assert len(sizes) == 2


def test_a_request_that_takes_too_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = served(seconds=0.05)
    monkeypatch.setattr(client.service.edition.bundle, "generate", lambda v: time.sleep(0.3))  # type: ignore[attr-defined]
    assert is_problem(client.post("/v1/models", json={"descriptor": DESCRIPTOR}), 503, "0.05 seconds")


def test_headers_logs_and_metrics(
    served: Served, shop: tuple[str, dict[str, str]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keys, text = Keys.read(Path(shop[0])).new("watcher", ["metrics"])
    keys.write(Path(shop[0]))
    client = served(keys=shop[0])
    with caplog.at_level(logging.INFO, "latecomer.serve"):
        answer = client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers=shop[1])
        client.get("/secret-path?secret-query=1")
        client.request("SECRET", "/v1/files/secret-name", headers=shop[1])
    lines = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"POST /v1/models 200 \d+\.\d ms shop", lines[0])
    assert lines[1].startswith("GET unknown 404")
    assert not re.search(r"secret|lc-|0\.5,|SECRET", " ".join(lines))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in answer.headers
    told = client.get("/metrics", headers={"Authorization": f"Bearer {text}"})
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'latecomer_requests_total{method="POST",path="/v1/models",status="200"} 1' in told.text
    assert 'latecomer_bundle_info{version="version-0",rule="describe"} 1' in told.text
    assert all(re.fullmatch(r"#.*|[a-z_]+(\{.*\})? \S+", line) for line in told.text.splitlines())


def test_the_page_and_its_files(tmp_path: Path, served: Served) -> None:
    (tmp_path / "index.html").write_text("<p>hello")
    (tmp_path / "ort.wasm").write_bytes(b"\0asm")
    (tmp_path / "notes.py").write_text("secret")
    found = pages.table(tmp_path)
    assert set(found) == {"index.html", "ort.wasm"}
    assert found["ort.wasm"].media == "application/wasm"
    assert "immutable" in found["ort.wasm"].cache
    client = served()
    answer = client.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self' 'wasm-unsafe-eval'" in answer.headers["content-security-policy"]
    assert is_problem(client.get("/assets/nothing.js"), 404)


# a new bundle


def test_a_new_bundle_takes_over_and_a_damaged_one_does_not(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = served()

    def version() -> str:
        client.service.refresh()  # type: ignore[attr-defined]
        answer = client.post("/v1/models", json={"descriptor": DESCRIPTOR})
        assert answer.content == expected(int(answer.headers["x-latecomer-bundle"].rpartition("-")[2]))
        return answer.headers["x-latecomer-bundle"]

    assert version() == "version-0"
    FakeBundle.make(tmp_path / "bundle", seed=1)
    assert version() == "version-1"
    (tmp_path / "bundle" / "bundle.json").write_text("{")
    assert version() == "version-1"
    FakeBundle.make(tmp_path / "bundle", seed=2)
    (tmp_path / "bundle" / "public" / "encoder.onnx").write_text("another")
    assert version() == "version-1"
    assert "was changed while it was read" in caplog.text
    FakeBundle.make(tmp_path / "bundle", seed=3)
    assert version() == "version-3"
    assert client.get("/v1/encoder").content == b"graph 3"


def test_a_bundle_whose_first_pass_fails_is_refused_and_keys_are_still_read(
    tmp_path: Path, shop: tuple[str, dict[str, str]], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served(keys=shop[0])
    FakeBundle.make(tmp_path / "bundle", seed=1)
    Keys().write(tmp_path / "keys.json")
    monkeypatch.setattr(FakeBundle, "generate", lambda *_: torch.zeros(2) @ torch.zeros(3))
    client.service.refresh()  # type: ignore[attr-defined]
    assert client.service.edition.version == "version-0"  # type: ignore[attr-defined]
    assert client.get("/v1/bundle", headers=shop[1]).status_code == 401


def test_looking_around_goes_on_after_a_fault(running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    def refresh(self: Service, anyway: bool = False) -> None:
        looks.append(None)
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "refresh", refresh)
    running(look_every=0.01)
    deadline = time.monotonic() + 5
    while len(looks) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(looks) >= 2


def test_an_encoder_of_another_bundle_is_noticed(served: Served) -> None:
    client = served()
    for name, status in (("version-0", 200), ("version-9", 409)):
        headers = {"X-Latecomer-Bundle": name}
        assert client.post("/v1/models", json={"descriptor": DESCRIPTOR}, headers=headers).status_code == status


def test_a_link_is_followed_to_the_new_bundle(tmp_path: Path) -> None:
    for seed in (0, 1):
        FakeBundle.make(tmp_path / f"b{seed}", seed=seed)
    link = tmp_path / "now"
    link.symlink_to("b0")
    service = Service(link, Serving(), FakeBundle.open)
    other = tmp_path / "other"
    other.symlink_to("b1")
    other.replace(link)
    service.refresh()
    assert service.edition.version == "version-1"


# privacy


def test_what_a_key_spends_is_written_down_and_refused_when_spent(
    served: Served, shop: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    facts, ledger = {"epsilon": 1.0, "budget": 2.0, "gate": True}, str(tmp_path / "ledger")
    client = served(facts, keys=shop[0], ledger=ledger)

    def ask(first: float, path: str = "/v1/models", client: TestClient = client) -> Any:
        return client.post(path, json={"descriptor": [first, 0.0, 0.0]}, headers=shop[1])

    answers, first = [], 0.0
    while (answer := ask(first)).status_code == 200:
        answers.append(answer)
        assert ask(first).content == answer.content, "the same again tells nothing new"
        assert ask(first, "/v1/coverage").status_code == 200
        first += 1
    assert is_problem(answer, 403, "budget of 2")
    bare = {"descriptor": DESCRIPTOR, "entropy": 1.0}
    assert is_problem(client.post("/v1/coverage", json=bare, headers=shop[1]), 422, "no noise")
    assert 3 <= len(answers) <= 4  # answers add up like squares of epsilon
    assert Ledger(tmp_path / "ledger").spent("shop")[1] == len(answers)
    again = served(facts, keys=shop[0], ledger=ledger)
    assert is_problem(ask(99.0, client=again), 403, f"in {len(answers)} answers")
    assert b"descriptor" not in (tmp_path / "ledger").read_bytes().split(b"CREATE")[0]


def test_the_ledger_survives_a_process_that_does_not(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from latecomer.privacy import Release; from latecomer.serve.ledger import Ledger\n"
        "Ledger(pathlib.Path(sys.argv[1])).charge(Release.gaussian(1.0, 1e-5), 'v', [('shop', b'd')])\n"
        "os.kill(os.getpid(), 9)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "ledger")]
    assert subprocess.run(words, env=environment(), check=False).returncode == -9
    assert Ledger(tmp_path / "ledger").spent("shop")[1] == 1


def test_a_bundle_that_costs_privacy_needs_a_ledger(tmp_path: Path) -> None:
    path = FakeBundle.make(tmp_path / "b", epsilon=1.0)
    with pytest.raises(RunError, match="--ledger"):
        Service(path, Serving(), FakeBundle.open)
    (tmp_path / "bad").write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match="cannot be used"):
        Service(path, Serving(ledger=str(tmp_path / "bad")), FakeBundle.open)


def test_nothing_is_handed_out_that_cannot_be_written_down(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served({"epsilon": 1.0}, ledger=str(tmp_path / "ledger"))

    class Full:
        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        def close(self) -> None:
            pass

    monkeypatch.setattr(client.service.ledger, "database", Full())  # type: ignore[attr-defined]
    assert is_problem(client.post("/v1/models", json={"descriptor": DESCRIPTOR}), 503, "nothing is handed out")


# the process


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "no TLS and no keys"),
        ({"host": "::"}, "no TLS and no keys"),
        ({"host": "0.0.0.0", "keys": "k"}, "no TLS;"),
        ({"certificate": "c"}, "go together"),
        ({"host": "no such host.invalid"}, "no address"),
    ],
)
def test_unsafe_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Serving(**settings).check()


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Serving(port=taken.getsockname()[1])
        service = Service(FakeBundle.make(tmp_path / "b"), settings, FakeBundle.open)
        with pytest.raises(SettingError, match="Nothing can listen"):
            listen(service, print)


def test_safe_settings_are_not() -> None:
    for settings in ({"host": "localhost"}, {"host": "0.0.0.0", "insecure": True}, {"host": "::1"}):
        Serving(**settings).check()  # type: ignore[arg-type]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., tuple[Server, int]]]:
    """A real uvicorn in a thread: `running(setting=...)` gives it and its port."""
    started: list[tuple[Server, threading.Thread]] = []

    def run(**settings: Any) -> tuple[Server, int]:
        path = FakeBundle.make(tmp_path / "bundle")
        service = Service(path, Serving(**{"port": 0, "look_every": 0.05} | settings), FakeBundle.open)
        told: list[str] = []
        server = Server(configure(service), service, told.append)
        thread = threading.Thread(target=server.run)
        thread.start()
        started.append((server, thread))
        while not told:
            time.sleep(0.01)
        return server, int(told[0].rpartition(":")[2])

    yield run
    for server, thread in started:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(10)
        assert not thread.is_alive()


def send(port: int, text: str) -> bytes:
    """Bytes in, and all bytes that come back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(text.encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


ASK = "GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_a_connection_that_does_nothing_is_cut(running: Any) -> None:
    _, port = running(seconds=0.2)
    assert send(port, "GET / HTTP/1.1\r\nHost:") == b""
    assert b"200 OK" in send(port, ASK)


def test_too_many_connections_are_sent_away(running: Any) -> None:
    _, port = running(connections=2)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    time.sleep(0.1)
    assert b"503 Service Unavailable" in send(port, "")
    for connection in held:
        connection.close()
    time.sleep(0.1)
    assert b"200 OK" in send(port, ASK)


def test_it_stops_when_what_is_under_way_is_answered(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, port = running()
    bundle, go = server.service.edition.bundle, threading.Event()
    generate = bundle.generate
    monkeypatch.setattr(bundle, "generate", lambda v: go.wait(10) and generate(v))
    body = json.dumps({"descriptor": DESCRIPTOR})
    head = f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(send, port, "POST /v1/models HTTP/1.1\r\nHost: x\r\n" + head + body)
        while not server.service.under_way:
            time.sleep(0.01)
        server.handle_exit(signal.SIGTERM, None)
        time.sleep(0.3)
        refused = send(port, ASK)
        assert b"503 Service Unavailable" in refused
        assert b"retry-after: 1" in refused.lower()
        go.set()
        assert asked.result().endswith(expected())


def test_a_poll_finds_the_new_bundle(running: Any, tmp_path: Path) -> None:
    server, _ = running()
    FakeBundle.make(tmp_path / "bundle", seed=1)
    end = time.monotonic() + 4
    while server.service.edition.version != "version-1" and time.monotonic() < end:
        time.sleep(0.02)
    assert server.service.edition.version == "version-1"


def test_batches_of_other_work_do_not_mix() -> None:
    batcher, seen = Batcher(8, 100), []

    def double(items: list[int]) -> list[Any]:
        seen.append(items)
        return [2 * item for item in items]

    def fail(items: list[int]) -> list[Any]:
        raise ValueError("no")

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(batcher.ask(double if k % 3 else fail, k) for k in range(9)), return_exceptions=True
        )

    found = asyncio.run(ask())
    batcher.stop()
    assert [one for one in found if isinstance(one, int)] == [2 * k for k in range(9) if k % 3]
    assert sum(isinstance(one, ValueError) for one in found) == 3
    assert sum(map(len, seen)) == 6
