"""The load of one SuperLink: a simulation of its requests, and a real one on loopback that confirms it.

    python benchmarks/superlink.py measure [--nodes 4,16,64] [--sizes 10000,500000] [--exchanges 5] [--database]
    python benchmarks/superlink.py predict [--request 8] [--poll 4] [--byte 2] [--scan 5] ...

`measure` starts a `flower-superlink` with TLS and node keys, and nodes whose loop and requests are those of
`latecomer node` but which send random bytes back. What a request costs is taken from the smallest number of nodes, by
the processor time of the SuperLink's process; the simulation then says how long an exchange takes with the others, and
both stand side by side. `predict` says what costs like these mean for many nodes.

The simulation knows: one SuperLink (a process that does one thing at a time), nodes that look for messages less and
less often, signs of life, every object of a message as a request of its own, and a server that pushes, polls and pulls
like `engines/flower/link.py`. It does not know: networks (loopback has none to speak of), lost requests, and disks.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BEAT_LOST = 5.0  # seconds after which Flower's client gives up a sign of life
LANES = 2  # requests that a process has on the way at once, when it pulls or pushes objects
TOO_EARLY = 1.0  # seconds before a server asks again for an object that is not there yet; a node waits for 0.02


# the simulation


@dataclass(frozen=True)
class Cost:
    """Seconds of a processor."""

    request: float = 0.008  # of the SuperLink, for a request that stores or hands out something
    poll: float = 0.004  # for one that finds nothing, and for a sign of life
    byte: float = 2e-9  # for a byte that passes
    scan: float = 5e-6  # for every message in flight, at each look of a node: it searches them all
    node: float = 0.004  # of a node's process, for a request
    server: float = 0.004  # of the server's process, for a request

    def times(self, factor: float) -> Cost:
        """On a machine that others use too."""
        return Cost(**{name: value * factor for name, value in vars(self).items()})


@dataclass(frozen=True)
class Load:
    """What a SuperLink has to do."""

    nodes: int
    cohort: int = 0  # nodes that are asked in an exchange; 0: all
    down: int = 500_000  # bytes of a message
    up: int = 500_000  # and of a reply
    shared: bool = True  # all get the same bytes, which are then uploaded once
    shortest: float = 0.1  # seconds between two looks of a node; the pause grows as long as nothing comes
    longest: float = 3.0
    slower: float = 1.3
    beat: float = 10.0  # seconds between two signs of life of a node
    thinking: float = 0.0  # seconds that a client computes
    workers: int = 1  # requests that a SuperLink can work on at once; Flower's is one process
    one_machine: bool = False  # all nodes are threads of one process, as in `measure`


@dataclass
class Outcome:
    """What the simulation saw."""

    seconds: list[float] = field(default_factory=list)  # of each exchange
    requests: Counter[str] = field(default_factory=Counter)  # in these exchanges
    busy: float = 0.0  # share of the time that the SuperLink worked
    waited: float = 0.0  # longest that a request stood in the queue

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Process = Generator[Any, None, None]
"""Yields seconds to wait; or a station and the seconds that it works; or processes, to wait until all are done."""


class Station:
    """Works on so many things at once, first come first served."""

    def __init__(self, workers: int = 1) -> None:
        self.free = [0.0] * workers  # when each worker is
        self.busy = self.waited = 0.0

    def take(self, now: float, seconds: float) -> float:
        """When it will be done, if it comes now."""
        start = max(now, self.free[0])
        heapq.heapreplace(self.free, start + seconds)
        self.busy += seconds
        self.waited = max(self.waited, start - now)
        return start + seconds


class Clock:
    """Lets processes go on in the order of their time."""

    def __init__(self) -> None:
        self.now, self.count = 0.0, 0
        self.agenda: list[tuple[float, int, Process]] = []
        self.parents: dict[int, list[Any]] = {}  # of a process: who waits for it, and for how many still

    def start(self, process: Process, after: float = 0.0) -> None:
        self.count += 1
        heapq.heappush(self.agenda, (self.now + after, self.count, process))

    def run(self, until: Process) -> None:
        """Until this process ends."""
        self.start(until)
        while True:
            self.now, _, process = heapq.heappop(self.agenda)
            try:
                todo = next(process)
            except StopIteration:
                if process is until:
                    return
                if waiting := self.parents.pop(id(process), None):
                    waiting[1] -= 1
                    if not waiting[1]:
                        self.start(waiting[0])
                continue
            if isinstance(todo, float):
                self.start(process, todo)
            elif isinstance(todo, tuple):
                station, seconds = todo
                self.start(process, station.take(self.now, seconds) - self.now)
            else:
                waiting = [process, len(todo)]
                for child in todo:
                    self.parents[id(child)] = waiting
                    self.start(child)


class Simulation:
    """A SuperLink, its nodes, and a server that asks them."""

    def __init__(self, load: Load, cost: Cost, seed: int = 0) -> None:
        self.load, self.cost, self.random = load, cost, random.Random(seed)
        self.clock, self.link, self.server = Clock(), Station(load.workers), Station()
        self.machines = [Station()] * load.nodes if load.one_machine else [Station() for _ in range(load.nodes)]
        self.inbox: dict[int, list[float]] = {}  # by node: seconds since when all of its message can be fetched
        self.stored = 0  # messages that the SuperLink keeps: until the server has seen a reply
        self.replies: list[int] = []  # nodes whose reply can be seen
        self.whole: set[int] = set()  # nodes whose reply was uploaded to the end
        self.requests: Counter[str] = Counter()

    def run(self, exchanges: int) -> Outcome:
        """One exchange after another, the first of which does not count: everybody was idle before it."""
        for node in range(self.load.nodes):
            self.clock.start(self._node(node), self.random.uniform(0, self.load.longest))
            self.clock.start(self._beat(node), self.random.uniform(0, self.load.beat))
        outcome = Outcome()
        self.clock.run(self._exchange())
        self.requests.clear()
        began, self.link.busy, self.link.waited = self.clock.now, 0.0, 0.0
        for _ in range(exchanges):
            start = self.clock.now
            self.clock.run(self._exchange())
            outcome.seconds.append(self.clock.now - start)
        outcome.requests = self.requests
        outcome.busy = self.link.busy / (self.clock.now - began) / self.load.workers
        outcome.waited = self.link.waited
        return outcome

    # requests

    def _request(self, asking: Station, own: float, size: int = 0, kind: str = "request", messages: int = 0) -> Process:
        self.requests[kind] += 1
        yield asking, own
        yield self.link, getattr(self.cost, kind) + size * self.cost.byte + messages * self.cost.scan

    def _objects(self, asking: Station, own: float, sizes: Iterable[int]) -> Process:
        """Side by side in a few lanes."""
        queue = iter(sizes)

        def lane() -> Process:
            for size in queue:
                yield from self._request(asking, own, size)

        yield [lane() for _ in range(LANES)]

    # a node

    def _beat(self, node: int) -> Process:
        while True:
            yield from self._request(self.machines[node], self.cost.node, kind="poll")
            yield self.load.beat

    def _node(self, node: int) -> Process:
        load, machine, own = self.load, self.machines[node], self.cost.node
        pause = load.longest
        while True:
            yield from self._request(machine, own, kind="poll", messages=self.stored)
            if not self.inbox.get(node):
                yield pause
                pause = min(pause * load.slower, load.longest)
                continue
            ready = self.inbox[node]
            yield from self._early(ready, machine, own, 0.02)
            yield from self._objects(machine, own, [0, 0, 0, load.down])  # message, record, header, body
            yield from self._request(machine, own)  # confirmed
            if load.thinking:
                yield load.thinking
            yield from self._request(machine, own)  # the reply is announced
            del self.inbox[node]
            self.replies.append(node)
            yield from self._objects(machine, own, [0, 0, 0, load.up])  # message, record, weight, body
            self.whole.add(node)
            pause = load.shortest

    def _early(self, ready: list[float], asking: Station, own: float, pause: float) -> Process:
        """Ask for objects until they are there."""
        while ready[0] > self.clock.now:
            yield from self._request(asking, own)
            yield pause * self.random.uniform(0.8, 1.2)
            pause *= 2

    # the server

    def _exchange(self) -> Process:
        load, own = self.load, self.cost.server
        cohort = self.random.sample(range(load.nodes), load.cohort or load.nodes)
        yield from self._request(self.server, own * len(cohort))  # what is announced costs the server its packing
        for node in cohort:
            self.inbox[node] = [float("inf")]
        self.stored += len(cohort)
        queue = enumerate(cohort)

        def upload() -> Process:
            for k, node in queue:
                for size in [0, 0, 0] + [load.down] * (k == 0 or not load.shared):
                    yield from self._request(self.server, own, size)
                self.inbox[node][0] = self.clock.now

        yield [upload() for _ in range(LANES)]
        left, pause = len(cohort), 0.1
        while left:
            yield pause
            pause = min(pause * 1.3, 1.0)
            yield from self._request(self.server, own, kind="poll", messages=2 * left)
            found, self.replies = self.replies, []
            self.stored -= len(found)
            for node in found:
                wait = TOO_EARLY
                while node not in self.whole:
                    yield from self._request(self.server, own)
                    yield wait * self.random.uniform(0.8, 1.2)
                    wait *= 2
                self.whole.remove(node)
                yield from self._objects(self.server, own, [0, 0, 0, load.up])
                yield from self._request(self.server, own)
                left, pause = left - 1, 0.1


def simulate(load: Load, cost: Cost, exchanges: int = 5) -> Outcome:
    return Simulation(load, cost).run(exchanges)


def idle(load: Load, cost: Cost) -> float:
    """The share of its time that a SuperLink needs for nodes which have nothing to do; from 1 on it has no other."""
    each = cost.poll / load.longest + cost.poll / load.beat
    return load.nodes * each / load.workers


def most_nodes(load: Load, cost: Cost, seconds: float) -> int:
    """The largest number of nodes with which an exchange takes at most so long; the cohort stays as it is."""

    def quick(nodes: int) -> bool:
        many = replace(load, nodes=nodes)
        return idle(many, cost) < 1 and simulate(many, cost, 3).median <= seconds

    low, high = load.cohort, 2 * load.cohort
    if not quick(low):
        return 0
    while quick(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if quick(middle) else (low, middle)
    return low


# a real one


ABOUT = """[project]
name = "load"
version = "1.0.0"
description = "asks nodes for bytes"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "latecomer"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
stage = ""
"""

APP = """import sys

sys.path.insert(0, {here!r})
from flwr.clientapp import ClientApp
from latecomer.engines.flower.link import server_app
from superlink import ask

server = server_app(ask)
client = ClientApp()
"""

SCANNED = 200  # messages that lie unread while it is measured what a look at them costs
BURST = 200  # looks


@dataclass(frozen=True)
class Stage:
    """What the server of a run is told to do."""

    nodes: int  # to wait for
    sizes: tuple[int, ...]  # of messages, one after another
    exchanges: int  # of each size
    link: int  # number of the SuperLink's process
    crowd: int  # and of the nodes'
    folder: str


@dataclass(frozen=True)
class Seen:
    """What was measured of some exchanges."""

    nodes: int
    size: int
    seconds: list[float]  # of each exchange
    link: float  # seconds that processes worked, in all of them
    crowd: float
    server: float
    polls: int  # requests that the SuperLink answered
    requests: int
    asked: int  # of both, by the server


def ask(link: Any, config: Mapping[str, Any]) -> None:
    """The server of a run: does what its stage says, and tells what it saw."""
    from flwr.app import ConfigRecord, Message, RecordDict

    from latecomer.deploy.news import tell
    from latecomer.engines.flower.wire import body

    stage = Stage(**json.loads(str(config["stage"])))
    folder = Path(stage.folder)

    def messages(nodes: Sequence[int], size: int, tag: int) -> list[Message]:
        blob = body(os.urandom(size))
        headers = (ConfigRecord({"client": k, "tag": tag}) for k in range(len(nodes)))
        contents = (RecordDict({"header": header, "body": blob}) for header in headers)
        return [
            Message(content, dst_node_id=node, message_type="query.echo")
            for node, content in zip(nodes, contents, strict=True)
        ]

    client = link.grid._runtime_client
    mine = Asked(client, "_unary_unary", lambda how: how["path"])

    def spent() -> list[float]:
        asked = [a + b for a, b in zip(mine.counts(), Asked.read(folder), strict=True)]
        return [worked(stage.link), worked(stage.crowd), time.process_time(), *asked, sum(mine.counts())]

    while len(nodes := link.present()) < stage.nodes:
        time.sleep(0.2)
    if not stage.sizes:  # somebody wants to see messages that nobody takes
        link.grid.push_messages(messages([int((folder / "deaf").read_text())] * SCANNED, 1, 0))
        (folder / "pushed").touch()
        while not (folder / "enough").exists():
            time.sleep(0.1)
        return
    for size in stage.sizes:
        seconds = []
        for tag in range(stage.exchanges + 1):
            if tag == 1:  # the first finds everybody asleep, and does not count
                before = spent()
            sent, began = messages(nodes, size, tag), time.monotonic()
            replies = list(link.send_and_receive(sent, timeout=600.0))
            if len(replies) != len(nodes) or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"{len(replies)} of {len(nodes)} nodes answered.")
            seconds.append(time.monotonic() - began)
        used = [late - early for early, late in zip(before, spent(), strict=True)]
        tell(seen=[stage.nodes, size, seconds[1:], *used])


def worked(process: int) -> float:
    """Seconds of a processor that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Asked:
    """Counts requests where they are made: the SuperLink's log leaves out those that come often."""

    def __init__(self, client: Any, verb: str, name: Callable[[Any], str]) -> None:
        self.seen: Counter[str] = Counter()
        call = getattr(client, verb)

        def counted(*words: Any, **more: Any) -> Any:
            told = name(more or words).lower().replace("-", "")
            self.seen["poll" if told.endswith(("pullmessages", "heartbeat")) else "request"] += 1
            return call(*words, **more)

        setattr(client, verb, counted)

    def counts(self) -> list[int]:
        return [self.seen["poll"], self.seen["request"]]

    @staticmethod
    def write(folder: Path, all_of_them: Sequence[Asked]) -> None:
        """What nodes have asked until now, for the server to read."""
        sums = [sum(one) for one in zip(*(asked.counts() for asked in all_of_them), strict=True)]
        (folder / "draft").write_text(json.dumps(sums))
        (folder / "draft").replace(folder / "asked")

    @staticmethod
    def read(folder: Path) -> list[int]:
        found: list[int] = json.loads((folder / "asked").read_text())
        return found


def crowd(address: str, folder: Path, count: int) -> None:
    """So many nodes in this process, until it is told to end."""
    from flwr.app import Message, MetricRecord, RecordDict

    from latecomer.engines.flower.fleet import Letter, Parcel
    from latecomer.engines.flower.wire import blob_of, body
    from latecomer.node.settings import Stay
    from latecomer.node.stay import Node

    lock = threading.Lock()  # Flower keeps who replies in a place that all threads share

    class Echo(Node):
        """Answers with as many bytes as it was sent."""

        def _answer(self, letter: Letter) -> Parcel:
            with lock:
                message = letter.open(self.node)
                blob = os.urandom(len(blob_of(message.content["body"])))
                content = RecordDict({"body": body(blob), "metrics": MetricRecord({"weight": 1.0})})
                return Parcel.of(letter, Message(content, reply_to=message), 0.0)

    def settings(number: int) -> Stay:
        own = {"key": str(folder / f"key{number}"), "state": str(folder / f"state{number}")}
        trusted = str(folder / "ca.crt")
        return Stay(superlink=address, root_certificates=trusted, data=str(folder / "mine.npz"), **own)

    nodes = [Echo(settings(number)) for number in range(count)]
    asked = [Asked(node.fleet, "_call", lambda words: str(words[0])) for node in nodes]
    signal.signal(signal.SIGTERM, lambda *_: [node.stop() for node in nodes])
    threads = [threading.Thread(target=node.run) for node in nodes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        Asked.write(folder, asked)
        time.sleep(0.2)


class Bench:
    """A SuperLink on this machine, and who talks to it."""

    def __init__(self, site: Any, most: int, *words: object) -> None:
        import numpy as np

        from latecomer.engines.flower.control import Control

        self.site, self.folder = site, site.folder
        (self.folder / "app").mkdir()
        (self.folder / "app" / "pyproject.toml").write_text(ABOUT)
        (self.folder / "app" / "app.py").write_text(APP.format(here=str(Path(__file__).parent)))
        np.savez(self.folder / "mine.npz", x=np.zeros((2, 3), np.float32), y=np.arange(2))
        site.superlink(*words)
        site.register(*(f"key{number}" for number in range(most)))
        self.control = Control(site.address, self.folder / "ca.crt")

    def run(self, nodes: int, sizes: Sequence[int], exchanges: int) -> Iterator[Seen]:
        """Exchanges with so many nodes."""
        from deployment import end
        from latecomer.deploy.news import heard

        process = self.site.start(
            f"nodes{nodes}", sys.executable, __file__, "nodes", self.site.address, self.folder, nodes
        )
        try:
            yield from (
                Seen(*news["seen"])
                for line in self.lines(self.start(nodes, sizes, exchanges, process.pid))
                if "seen" in (news := heard(line))
            )
        finally:
            end(process, 15)
            process.wait(60)

    def start(self, nodes: int, sizes: Sequence[int], exchanges: int, crowd: int) -> int:
        stage = Stage(nodes, tuple(sizes), exchanges, self.site.processes[0].pid, crowd, str(self.folder))
        return self.control.start(self.folder / "app", {"stage": json.dumps(vars(stage))})

    def lines(self, run: int) -> Iterator[str]:
        yield from self.control.lines(run)
        if failed := self.control.outcome(run):
            raise RuntimeError(f"The run failed: {failed}\n{self.site.log('superlink')[-2000:]}")

    def looks(self) -> tuple[float, float, float]:
        """Seconds of the SuperLink for a look that finds nothing; of the node for asking; and of the SuperLink for each
        message in flight.
        """
        from latecomer.engines.flower.fleet import Fleet
        from latecomer.engines.flower.keys import read_key

        link = self.site.processes[0].pid
        fleets = [
            Fleet(self.site.address, self.folder / "ca.crt", read_key(self.folder / f"key{number}"), False)
            for number in range(2)
        ]
        eager, deaf = [fleet.activate(None) for fleet in fleets]

        def burst() -> tuple[float, float]:
            before = worked(link), time.process_time()
            for _ in range(BURST):
                fleets[0].receive(eager)
            return (worked(link) - before[0]) / BURST, (time.process_time() - before[1]) / BURST

        fleets[0].receive(eager)
        empty, own = burst()
        (self.folder / "deaf").write_text(str(deaf))
        run = self.start(2, (), 0, link)
        while not (self.folder / "pushed").exists():
            time.sleep(0.1)
            for fleet, node in zip(fleets, (eager, deaf), strict=True):
                fleet.beat(node)
        full, _ = burst()
        (self.folder / "enough").touch()
        list(self.lines(run))
        for fleet, node in zip(fleets, (eager, deaf), strict=True):
            fleet.deactivate(node)
            fleet.close()
        return empty, own, max(0.0, full - empty) / SCANNED


def fit(poll: float, scan: float, small: Seen, large: Seen) -> Cost:
    """What requests cost, by what the smallest number of nodes took with two sizes of messages."""
    passed = (1 + 3 * small.nodes) * len(small.seconds)  # bodies: one up to the SuperLink, the others down, up, down
    request = (small.link - small.polls * poll) / small.requests
    spent = large.link - large.polls * poll - large.requests * request
    return Cost(
        request=request,
        poll=poll,
        scan=scan,
        byte=max(0.0, spent) / passed / (large.size - small.size),
        node=small.crowd / (small.polls + small.requests - small.asked),
        server=small.server / small.asked,
    )


def crowding(cost: Cost, seen: Seen) -> float:
    """How many times as long everything takes as a processor needs for it, by how long some exchanges took."""
    low, high, took = 0.5, 50.0, statistics.median(seen.seconds)
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        longer = predicted(cost.times(middle), seen).median > took
        low, high = (low, middle) if longer else (middle, high)
    return low


def predicted(cost: Cost, seen: Seen) -> Outcome:
    load = Load(nodes=seen.nodes, down=seen.size, up=seen.size, one_machine=True)
    return simulate(load, cost, max(5, len(seen.seconds)))


def measure(options: argparse.Namespace) -> None:
    from common import where
    from deployment import site

    counts, sizes = sorted(map(int, options.nodes.split(","))), sorted(map(int, options.sizes.split(",")))
    print(where())
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as here:
        bench = Bench(here, counts[-1], *(("--database", "superlink.db") if options.database else ()))
        poll, asking, scan = bench.looks()
        print(f"a look that finds nothing: {1000 * poll:.2f} ms of the SuperLink, {1000 * asking:.2f} of the node")
        seen = []
        for count in counts:
            seen += bench.run(count, sizes, options.exchanges)
            print(f"{count} nodes measured; load {os.getloadavg()[0]:.1f}", flush=True)
    cost = fit(poll, scan, seen[0], seen[len(sizes) - 1])
    factor = crowding(cost, seen[0])
    print(
        f"processor time, fitted to {counts[0]} nodes: --request {1000 * cost.request:.2f} "
        f"--poll {1000 * cost.poll:.2f} --byte {1e9 * cost.byte:.2f} --scan {1e6 * cost.scan:.2f} "
        f"--node {1000 * cost.node:.2f} --server {1000 * cost.server:.2f}; the clock, by the first line: x {factor:.2f}"
    )
    print("                  seconds an exchange (least to most)   requests            seconds of the SuperLink")
    print(" nodes     bytes  measured          predicted  ratio   measured predicted  measured predicted  ratio")
    for one in seen:
        told, took = predicted(cost.times(factor), one), statistics.median(one.seconds)
        times, asked = len(one.seconds), (one.polls + one.requests) / len(one.seconds)
        wanted = sum(told.requests.values()) / len(told.seconds)
        worked, work = one.link / times, told.busy * sum(told.seconds) / len(told.seconds) / factor
        print(
            f"{one.nodes:6} {one.size:9,}  {took:6.2f} ({min(one.seconds):.2f} to {max(one.seconds):.2f}) "
            f"{told.median:9.2f} {told.median / took:6.2f} {asked:10.0f} {wanted:9.0f} {worked:9.2f} {work:9.2f} "
            f"{work / worked:6.2f}",
            flush=True,
        )


def predict(options: argparse.Namespace) -> None:
    names = {"request": 1e-3, "poll": 1e-3, "byte": 1e-9, "scan": 1e-6, "node": 1e-3, "server": 1e-3}
    cost = Cost(**{name: getattr(options, name) * unit for name, unit in names.items()})
    print(cost)
    wire = {"down": options.size, "up": options.size}
    print(f"all nodes in every exchange, {options.size:,} bytes each way: seconds, busy, longest queue")
    for nodes in (4, 10, 30, 100, 300):
        show(Load(nodes=nodes, **wire), cost)
    for longest, beat in RHYTHMS:
        print(f"50 nodes of many, which look every {longest:g} s and give a sign of life every {beat:g} s")
        for nodes in (100, 300, 1000, 3000, 10_000, 30_000):
            show(Load(nodes=nodes, cohort=50, longest=longest, beat=beat, **wire), cost)
    print("most nodes with which an exchange takes at most 10, 30, 60, 300 s")
    for longest, beat in RHYTHMS[:2]:
        for cohort in (10, 50):
            load = Load(nodes=0, cohort=cohort, longest=longest, beat=beat, **wire)
            most = ", ".join(f"{most_nodes(load, cost, seconds):,}" for seconds in (10, 30, 60, 300))
            print(f"  {cohort} nodes asked, which look every {longest:g} s: {most}", flush=True)


RHYTHMS = (3.0, 10.0), (30.0, 30.0), (300.0, 600.0)
"""Seconds between looks, and between signs of life: as a node has them, and what could be."""


def show(load: Load, cost: Cost) -> None:
    if (share := idle(load, cost)) >= 1:
        print(f"{load.nodes:8,} needs {share:.1f} SuperLinks for looks and signs of life alone")
        return
    told = simulate(load, cost, 3)
    lost = "  signs of life are lost" if told.waited > BEAT_LOST else ""
    print(f"{load.nodes:8,} {told.median:9.2f} s {told.busy:6.2f} {told.waited:8.2f} s{lost}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["nodes"]:
        address, folder, count = sys.argv[2:]
        crowd(address, Path(folder), int(count))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing which was started is left behind
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    real = parts.add_parser("measure")
    real.add_argument("--nodes", default="4,16,64")
    real.add_argument("--sizes", default="10000,500000")
    real.add_argument("--exchanges", type=int, default=5)
    real.add_argument("--database", action="store_true", help="the SuperLink keeps its state in a file of SQLite")
    told = parts.add_parser("predict")
    for name, unit in (("request", 8.0), ("poll", 4.0), ("byte", 2.0), ("scan", 5.0), ("node", 4.0), ("server", 4.0)):
        told.add_argument(f"--{name}", type=float, default=unit)
    told.add_argument("--size", type=int, default=500_000)
    options = parser.parse_args()
    (measure if options.part == "measure" else predict)(options)


if __name__ == "__main__":
    main()
