"""On the client: its own records in `context.state`. However many messages come, there are never more than these."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from ...errors import ProtocolError
from ...steps import listed
from ...tree import Tree
from .wire import Header, pack, unpack

MEMORY, SCRATCH, NUMBER = "memory", "scratch", "scratch-number"
PAGE, TURN = "page", "turn"  # what came in a round or an evaluation, and in the latest turn within an evaluation
HELD = {PAGE: "page-held", TURN: "turn-held"}
OWN = -1  # an evaluation's own round; it may have turns, which are rounds of other numbers, and comes back to its own


class Notes:
    """A client's memory, an evaluation's scribbles, and what this round has sent and asked for."""

    def __init__(self, state: RecordDict, header: Header) -> None:
        self.state, self.header = state, header
        self.page = self._open()

    def memory(self, blank: Tree) -> Tree:
        """The memory; in an evaluation that has scribbled over it, those scribbles."""
        number, scratch = self.state.config_records.get(NUMBER), self.header.scratch
        here = SCRATCH if scratch is not None and number is not None and number["scratch"] == scratch else MEMORY
        return unpack(self.state.array_records[here]) if here in self.state else blank

    def remember(self, memory: Tree) -> None:
        if not memory:
            return
        if self.header.scratch is None:
            self.state[MEMORY] = pack(memory)
        else:
            self.state[SCRATCH], self.state[NUMBER] = pack(memory), ConfigRecord({"scratch": self.header.scratch})

    def recall(self) -> Tree:
        """What the server need not send again."""
        held = self._held()
        if missing := set(self.header.recall) - held.keys():
            raise ProtocolError(f"This client does not hold {', '.join(sorted(missing))} in round {self.header.round}.")
        return {name: held[name] for name in self.header.recall}

    def answer(self, step: str, shared: ArrayRecord) -> None:
        """Write down that a step is answered, before it is: whoever asks again would learn from errors, too."""
        page = self.state.config_records[self.page]
        answered = [str(name) for name in page["answered"]]  # type: ignore[union-attr]
        if step in answered:
            raise ProtocolError(f"This client has answered {listed([step])} already in round {self.header.round}.")
        page["answered"] = [*answered, step]
        if shared:
            held = self._held()
            self.state[HELD[self.page]] = pack(held | unpack(shared)) if held else shared

    def _held(self) -> Tree:
        return unpack(self.state.array_records.get(HELD[self.page], ArrayRecord()))

    def _open(self) -> str:
        """The page of this message. A new round, evaluation or turn takes the place of the one before."""
        header = self.header
        occasion = f"round {header.round}" if header.scratch is None else f"evaluation {header.scratch}"
        if self._turned(PAGE, occasion):
            self._turned(TURN, "")
        if header.scratch is None or header.round == OWN:
            return PAGE
        self._turned(TURN, f"round {header.round}")
        return TURN

    def _turned(self, page: str, title: str) -> bool:
        before = self.state.config_records.get(page)
        if before is not None and before["title"] == title:
            return False
        self.state[page] = ConfigRecord({"title": title, "answered": []})
        self.state.pop(HELD[page], None)
        return True
