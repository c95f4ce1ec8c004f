"""On the client: its own records in `context.state`. However many messages come, there are never more than these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ...errors import ProtocolError
from ...steps import listed, phase_of
from ...tree import Tree
from .wire import Header, pack, unpack

Body = ConfigRecord | ArrayRecord

MEMORY, BEFORE, ROUND = "memory", "memory-before", "memory-round"  # as it is; as it was before which round
SCRATCH, NUMBER = "scratch", "scratch-number"
PAGE, TURN = "page", "turn"  # what came in a round or an evaluation, and in the latest turn within an evaluation
OWN = -1  # an evaluation's own round; it may have turns, which are rounds of other numbers, and comes back to its own


@dataclass(frozen=True)
class Traffic:
    """Bytes of a round's or an evaluation's messages, to this client and from it, and the steps it was asked for."""

    down: int
    up: int
    steps: tuple[str, ...]


class Notes:
    """A client's memory, an evaluation's scribbles, and what this round has sent, asked for and been answered."""

    def __init__(self, state: RecordDict, header: Header) -> None:
        self.state, self.header = state, header
        self.page = self._open()

    def memory(self, blank: Tree) -> Tree:
        """The memory; in an evaluation that has scribbled over it, those scribbles."""
        number, scratch = self.state.config_records.get(NUMBER), self.header.scratch
        here = SCRATCH if scratch is not None and number is not None and number["scratch"] == scratch else MEMORY
        return unpack(self.state[here]) if here in self.state else blank

    def remember(self, memory: Tree) -> None:
        if not memory:
            return
        if self.header.scratch is None:
            self.state[MEMORY] = pack(memory)
        else:
            self.state[SCRATCH], self.state[NUMBER] = pack(memory), ConfigRecord({"scratch": self.header.scratch})

    def recall(self) -> Tree:
        """What the server need not send again."""
        held: Tree = {}
        for step in self._texts("answered") if self.header.recall else ():
            if (place := self.place("sent", step)) in self.state:
                held |= unpack(self.state[place])["shared"]
        if missing := set(self.header.recall) - held.keys():
            raise ProtocolError(f"This client does not hold {', '.join(sorted(missing))} in round {self.header.round}.")
        return {name: held[name] for name in self.header.recall}

    def kept(self, step: str, fingerprint: str) -> Body | None:
        """The reply to the very same message, if it has come before; to another one there is none.

        So a message that comes twice, from a server that was killed, say, tells nobody more than it did at first.
        """
        answered, asked = self._texts("answered"), self._texts("asked")
        if step not in answered:
            return None
        place = self.place("reply", step)
        if asked[answered.index(step)] != fingerprint or place not in self.state:
            raise ProtocolError(f"This client has answered {listed([step])} already in round {self.header.round}.")
        reply: Body = self.state[place]  # type: ignore[assignment]
        return reply

    @property
    def traffic(self) -> Traffic:
        page: Any = self.state.config_records[PAGE]
        return Traffic(page["down"], page["up"], tuple(page["steps"]))

    def answer(self, step: str, fingerprint: str, sent: Body | None, down: int) -> None:
        """Write down that a step is answered, before it is: whoever asks again would learn from errors, too.

        `sent` is what was sent, where some of it can be recalled, and `down` how many bytes of numbers it was.
        """
        self._count("down", down, step)
        page = self.state.config_records[self.page]
        page["answered"], page["asked"] = [*self._texts("answered"), step], [*self._texts("asked"), fingerprint]
        if sent is not None:
            self.state[self.place("sent", step)] = sent

    def keep(self, step: str, reply: Body, up: int) -> None:
        """The reply, of so many bytes of numbers."""
        self._count("up", up)
        self.state[self.place("reply", step)] = reply

    def _count(self, way: str, size: int, *steps: str) -> None:
        """Turns of an evaluation are counted with it."""
        page: Any = self.state.config_records[PAGE]
        page[way] += size
        page["steps"] = list(dict.fromkeys([*page["steps"], *steps]))

    def place(self, what: str, step: str) -> str:
        """The name of a record that is kept until the round, evaluation or turn is over."""
        return f"{self.page}-{what}-{step}"

    def _texts(self, column: str) -> Sequence[str]:
        return [str(name) for name in self.state.config_records[self.page][column]]  # type: ignore[union-attr]

    def _open(self) -> str:
        """The page of this message. A new round, evaluation or turn takes the place of the one before."""
        header = self.header
        occasion = f"round {header.round}" if header.scratch is None else f"evaluation {header.scratch}"
        if self._turned(PAGE, occasion):
            self._turned(TURN, "")
            if phase_of(header.round, header.scratch) == "round":
                self._begin_round()
        if header.scratch is None or header.round == OWN:
            return PAGE
        self._turned(TURN, f"round {header.round}")
        return TURN

    def _begin_round(self) -> None:
        """A round that a server asks for again, as it was killed in it, begins with the memory as it was before it."""
        last = self.state.config_records.get(ROUND)
        again = last is not None and self.header.round <= int(last["round"])  # type: ignore[arg-type]
        source, target = (BEFORE, MEMORY) if again else (MEMORY, BEFORE)
        self.state.pop(target, None)
        if source in self.state:
            self.state[target] = self.state[source]
        if not again:
            self.state[ROUND] = ConfigRecord({"round": self.header.round})

    def _turned(self, page: str, title: str) -> bool:
        before = self.state.config_records.get(page)
        if before is not None and before["title"] == title:
            return False
        for name in [name for name in self.state if name.startswith(f"{page}-")]:
            del self.state[name]
        self.state[page] = ConfigRecord({"title": title, "answered": [], "asked": [], "steps": [], "down": 0, "up": 0})
        return True
