"""On the client: its own ledger of what it has released, in `context.state`.

There is one for all that a server may call a run, a round or an evaluation.
"""

from __future__ import annotations

import time

from flwr.app import ConfigRecord, Message, RecordDict

from ...privacy import Ledger, Release

LEDGER = "released"


def charge(state: RecordDict, release: Release | None, message: Message, number: int) -> None:
    """Write down what an answer is about to give away, or refuse where the budget does not allow it.

    Before the answer and not after it: what fails on its way has told something, too.
    """
    if release is not None:
        asked_by = f"node {message.metadata.src_node_id}, run {message.metadata.run_id}"
        write(state, ledger(state).with_one(release, asked_by, number, time.time()))


def ledger(state: RecordDict) -> Ledger:
    """What the client has released so far."""
    return Ledger.of(state.config_records[LEDGER]) if LEDGER in state else Ledger()


def write(state: RecordDict, released: Ledger) -> None:
    """What the client has released, in this training or in another one."""
    if released.entries:
        state[LEDGER] = ConfigRecord({**released.columns()})
