"""The first message to a node, and its answer: from data alone, no code, a node makes the method of a training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self, get_type_hints

from flwr.app import ConfigRecord, RecordDict

from ...errors import ProtocolError
from ...evaluate import MOST_EXAMPLES
from .wire import check_name

HELLO, KEEP_MODEL = "hello", "keep_model"  # what nodes answer besides a method's steps
LONGEST = 1_000_000  # letters of settings


@dataclass(frozen=True, kw_only=True)
class _Record:
    @classmethod
    def read(cls, record: ConfigRecord, what: str) -> Self:
        """From a record that may hold anything."""
        kinds = get_type_hints(cls)
        if record.keys() != kinds.keys() or any(type(record[name]) is not kind for name, kind in kinds.items()):
            raise ProtocolError(f"{what} must tell {', '.join(kinds)} and nothing else.")
        return cls(**record)


@dataclass(frozen=True, kw_only=True)
class Hello(_Record):
    """What a server says of a training before anything else."""

    version: str  # of latecomer
    training: str
    method: str  # the name of its class
    settings: str  # a settings.toml, with the tables run, method and task

    def pack(self) -> RecordDict:
        header = {"version": self.version, "training": self.training, "method": self.method}
        return RecordDict({"header": ConfigRecord({**header}), "body": ConfigRecord({"settings": self.settings})})

    @staticmethod
    def unpack(content: RecordDict) -> Hello:
        records = content.config_records
        if set(content) != {"header", "body"} or set(records) != set(content):
            raise ProtocolError("A hello must have a header and a body, and nothing else.")
        hello = Hello.read(ConfigRecord({**records["header"], **records["body"]}), "A hello")
        check_name(hello.training)
        if len(hello.settings) > LONGEST:
            raise ProtocolError(f"A hello has settings of {len(hello.settings)} letters; {LONGEST} are enough.")
        return hello


@dataclass(frozen=True, kw_only=True)
class Welcome(_Record):
    """What a node tells of itself."""

    version: str
    prefers: int  # the number that it would like to have; -1: any
    labelled: bool
    train: int  # examples; of the others none are told by whoever does not report scores
    val: int
    test: int

    def pack(self) -> RecordDict:
        return RecordDict({"body": ConfigRecord({f.name: getattr(self, f.name) for f in fields(self)})})

    @staticmethod
    def unpack(content: RecordDict) -> Welcome:
        record: Any = content.config_records.get("body")
        if set(content) != {"body"} or record is None:
            raise ProtocolError("An answer to a hello must have a body, and nothing else.")
        found = Welcome.read(record, "An answer to a hello")
        counts = found.train, found.val, found.test
        if found.prefers < -1 or min(counts) < 0 or max(counts) > MOST_EXAMPLES:
            raise ProtocolError(f"An answer to a hello counts {counts} examples, or prefers {found.prefers}.")
        return found
