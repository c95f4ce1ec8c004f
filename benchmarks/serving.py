"""What `latecomer serve` hands out, and what it survives; every client is a process of its own.

    python benchmarks/serving.py speed        models a second, against one pass a request; a lone request
    python benchmarks/serving.py malformed    10,000 malformed requests: is it up, and does its memory grow?
    python benchmarks/serving.py swap         a new bundle every second, and a restart: is any answer wrong?

The bundle is PeFLL's on random images like CIFAR-10's: LeNet, 121,182 weights, descriptors of 26 numbers, not trained.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

CONNECTIONS, SECONDS, TIMES = 32, 6.0, 3
FREELY = ("--rate", "1e6", "--burst", "1000000")


def bundles(folder: Path) -> list[Path]:
    """Two bundles of the same kind, with different weights."""
    from latecomer.handover.publish import publish
    from latecomer.handover.trained import load
    from latecomer.runs.experiment import Experiment
    from latecomer.runs.run import Run

    rng, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 2000), ("test", 500)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, count)
    np.savez(folder / "images.npz", **arrays)
    settings = {"data": f"npz:{folder}/images.npz", "model": "lenet", "clients": 100, "unseen": 0.2, "rounds": 1}
    settings |= {"cohort": 2, "steps": 1, "out": str(folder), "engine": "loop"}
    for seed in (0, 1):
        Run.begin(Experiment.parse("pefll", {**settings, "seed": seed, "name": f"run{seed}"})).go()
        publish(load(folder / f"run{seed}"), folder / f"bundle{seed}")
    return [folder / "bundle0", folder / "bundle1"]


@contextmanager
def serving(bundle: Path, *words: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of its own process, and its port."""
    command = [sys.executable, "-m", "latecomer", "serve", str(bundle), *FREELY, "--port", str(port), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def request(descriptor: np.ndarray) -> bytes:
    body = json.dumps({"descriptor": [float(number) for number in descriptor]}).encode()
    head = (
        f"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One of many: it asks, reads the whole answer, and asks again."""

    def __init__(self, port: int, rng: np.random.Generator) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rng, self.times = rng, []
        self.ask()

    def ask(self) -> None:
        self.start, self.missing = time.perf_counter(), -1
        self.socket.sendall(request(self.rng.standard_normal(26)))

    def read(self, room: memoryview) -> None:
        count = self.socket.recv_into(room)
        if not count:
            raise ConnectionError("the server hung up")
        if self.missing < 0:  # the header comes first, and whole: it is short
            head, _, rest = bytes(room[:count]).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            self.missing = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]) - len(rest)
        else:
            self.missing -= count
        if not self.missing:
            self.times.append(time.perf_counter() - self.start)
            self.ask()


def load(port: int, connections: int, seconds: float) -> None:
    """Prints how many models came a second, and the median time for one."""
    rng, room, selector = np.random.default_rng(os.getpid()), memoryview(bytearray(2**20)), selectors.DefaultSelector()
    all_of_them = [Connection(port, rng) for _ in range(connections)]
    for one in all_of_them:
        selector.register(one.socket, selectors.EVENT_READ, one)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for key, _ in selector.select():
            key.data.read(room)
    times = [t for one in all_of_them for t in one.times]
    print(json.dumps({"rate": len(times) / (time.perf_counter() - begin), "median": statistics.median(times)}))


def measured(port: int, connections: int, seconds: float = SECONDS) -> dict[str, float]:
    """By a process of its own."""
    words = [sys.executable, __file__, "load", str(port), str(connections), str(seconds)]
    found: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def busy(process: subprocess.Popen[str]) -> float:
    """Seconds that a process has kept cores busy."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def speed(folder: Path) -> None:
    print(f"load of this machine before it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    (bundle, _), found = bundles(folder), {"64": [], "1": []}
    for _ in range(TIMES):
        for batch, results in found.items():
            with serving(bundle, "--batch", batch) as (process, port):
                measured(port, CONNECTIONS, 1.0)
                before = busy(process)
                many = measured(port, CONNECTIONS)
                many["core"] = (busy(process) - before) / (many["rate"] * SECONDS)
                results.append((many, measured(port, 1)))
    for batch, results in found.items():
        rates = [many["rate"] for many, _ in results]
        core = 1000 * statistics.median(many["core"] for many, _ in results)
        many, lone = (1000 * statistics.median(r[k]["median"] for r in results) for k in (0, 1))
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(
            f"batches of {batch:>2}: {statistics.median(rates):.0f} models/s ({spread}) at {CONNECTIONS} connections,"
        )
        print(f"               median {many:.0f} ms; {core:.1f} ms of a core each; a lone request {lone:.1f} ms")
    ratio = statistics.median(a[0]["rate"] / b[0]["rate"] for a, b in zip(*found.values(), strict=True))
    print(f"batching hands out {ratio:.1f} times as many models as one pass a request")


def resident(process: subprocess.Popen[str]) -> float:
    """Megabytes of memory that a process has now."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def malformed_request(rng: random.Random) -> bytes:
    """Wrong in one way or another, or no HTTP at all."""
    numbers = [
        rng.choice(["1", "NaN", "-Infinity", "1e999", '"x"', "[[[[", "null", "{}", "9" * 400]) for _ in range(26)
    ]
    body = rng.choice(
        [
            '{"descriptor": [' + ", ".join(numbers) + "]}",
            '{"descriptor": ' + "[" * rng.randrange(3000),
            json.dumps({"descriptor": [0.5] * rng.randrange(60), rng.choice("ab"): 1}),
            "".join(chr(rng.randrange(1, 0x500)) for _ in range(rng.randrange(2000))),
            "x" * rng.randrange(200_000),
            "",
        ]
    ).encode()
    path = rng.choice(
        [
            *("/v1/models", "/v1/coverage", "/v1/descriptors", "/v2/models/latecomer/infer", "/%ff%00"),
            *("/v1/files/../../etc/passwd", "/v1/files/%2e%2e%2fbundle.json", "/assets/..%2f..%2fapp.py"),
            "/" + "a" * rng.randrange(20_000),
        ]
    )
    length = rng.choice([len(body)] * 6 + [0, 10**15, -1])
    kind = rng.choice(["application/json"] * 4 + ["application/octet-stream", "text/html", "\x01"])
    accept = rng.choice(["*/*", "a;q=\x7f", ",;,;", "application/onnx;q=9"])
    head = f"{rng.choice(['POST'] * 6 + ['GET', 'PUT', 'BREW'])} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: {kind}\r\nAccept: {accept}\r\nContent-Length: {length}\r\n"
    head += rng.choice(
        ["", "", "", "Authorization: Bearer " + "k" * 100 + "\r\n", "X: " + "y" * 40_000 + "\r\n", "\0\r\n"]
    )
    return head.encode("latin1") + b"\r\n" + body if rng.random() < 0.95 else rng.randbytes(500)


def throw(port: int, count: int, seed: int) -> Counter[str]:
    """Malformed requests one after the other; what came back, by status."""
    rng, found = random.Random(seed), Counter()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            try:
                connection.sendall(malformed_request(rng))
                connection.shutdown(socket.SHUT_WR)
                found[connection.recv(16)[9:12].decode() or "closed"] += 1
            except OSError:  # it hung up on us, which is an answer
                found["closed"] += 1
    return found


def malformed(folder: Path) -> None:
    bundle, _ = bundles(folder)
    with serving(bundle) as (process, port):
        throw(port, 1000, 1)
        measured(port, CONNECTIONS, 1.0)
        before = resident(process)
        found = throw(port, 10_000, 2)
        after = resident(process)
        alive = measured(port, 1, 1.0)["rate"] > 0
    print(f"answers: {dict(sorted(found.items()))}; memory before {before:.0f} MB, after {after:.0f} MB; up: {alive}")
    assert not any(status.startswith("5") for status in found), "no fault of the server's"


def swap(folder: Path) -> None:
    """Every answer is compared with what its bundle makes of the descriptor, here."""
    from latecomer.handover.bundle import Bundle

    paths, link = bundles(folder), folder / "now"
    descriptors = np.random.default_rng(1).standard_normal((64, 26)).astype(np.float32)
    right = {}
    for bundle in map(Bundle.open, paths):
        for k, row in enumerate(bundle.generate(descriptors)):
            right[bundle.version, k] = hashlib.sha256(bundle.header + row.tobytes()).hexdigest()
    link.symlink_to(paths[0])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found: Counter[str] = Counter()
    over = threading.Event()

    def client(number: int) -> None:
        connection, k = http.client.HTTPConnection("127.0.0.1", port, timeout=30), number
        while not over.is_set():
            k = (k + 7) % 64
            body = json.dumps({"descriptor": [float(x) for x in descriptors[k]]})
            try:
                connection.request("POST", "/v1/models", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text, version = answer.read(), answer.headers.get("X-Latecomer-Bundle", "")
            except (OSError, http.client.HTTPException) as error:  # it restarts
                found["cut off" if isinstance(error, http.client.IncompleteRead) else "no answer"] += 1
                connection.close()
                time.sleep(0.05)
                continue
            if answer.status == 200:
                same = hashlib.sha256(text).hexdigest() == right[version, k]
                found[f"right, bundle {[v for v, k in right if not k].index(version)}" if same else "WRONG"] += 1
            else:
                found[f"status {answer.status}"] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for round_ in range(3):
        with serving(link, "--look-every", "0.2", port=port) as (process, _):
            if not round_:
                for thread in threads:
                    thread.start()
            for turn in range(6):
                time.sleep(1)
                draft = folder / "next"
                draft.symlink_to(paths[(turn + 1) % 2])
                draft.replace(link)
                if turn % 2:
                    process.send_signal(signal.SIGHUP)
    over.set()
    for thread in threads:
        thread.join()
    print(f"three servers, 18 new bundles: {dict(sorted(found.items()))}")
    assert not found["WRONG"]
    assert not found["cut off"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        with tempfile.TemporaryDirectory() as place:
            {"speed": speed, "malformed": malformed, "swap": swap}[sys.argv[1]](Path(place))
