"""Are latecomers served as members are? Each is compared with its twins: members that have the same classes.

    LATECOMER_DATA=... python benchmarks/twins.py RUN

The best round of a run (of a method that sends every client a model of its own) serves. If latecomers score less than
their twins, but a twin's model does no better on a latecomer's test data than its own, then their tasks are harder,
and nothing was lost on the way from members to latecomers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from common import where
from latecomer import Federation, tree
from latecomer.clients import Clients, Sending
from latecomer.evaluate import Scores
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.train import Training
from runs import restored


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = Folder.open(Path(sys.argv[1]))
    training = restored(Experiment.read(folder.settings, folder.path / "settings.toml"), folder)
    print(where())
    for run in range(len(training.federations)):
        print(compare(training, run), flush=True)


def compare(training: Training, run: int) -> str:
    """One seed, in a line."""
    federation, best = training.federations[run], training.best[run]
    assert best is not None
    members, late = range(federation.members), range(federation.first_late, len(federation))
    ids = torch.tensor([*members, *late])
    sent = training.methods[run].personalise(best.state, Clients(training.engine, ids, -1, run, scratch=1))
    if not isinstance(sent, Sending) or not sent.each or sent.recall:
        raise SystemExit("The method of this run sends no models that one client could lend to another.")
    at = {int(client): row for row, client in enumerate(ids)}

    def score(clients: Sequence[int], lenders: Sequence[int]) -> list[float]:
        """What clients reach with the models of others."""
        each = tree.row(sent.each, torch.tensor([at[lender] for lender in lenders], device=training.engine.device))
        some = Clients(training.engine, torch.tensor(clients), -1, run, scratch=1)
        counts = some.run(training.methods[run].score, shared=sent.shared, each=each).each
        percent: list[float] = Scores(some.ids, counts).accuracy().tolist()
        return percent

    own = dict(zip(ids.tolist(), score(ids.tolist(), ids.tolist()), strict=True))
    kinds = [classes(federation, client) for client in range(len(federation))]
    twins = {client: [member for member in members if kinds[member] == kinds[client]] for client in late}
    pairs = [(client, twin) for client, some in twins.items() for twin in some]
    guest = dict(zip(pairs, score(*zip(*pairs, strict=True)) if pairs else [], strict=True))
    home = [fmean(own[twin] for twin in some) for some in twins.values() if some]
    lent = [fmean(guest[client, twin] for twin in some) for client, some in twins.items() if some]
    parts = [f"seed {federation.seed}: members {fmean(own[c] for c in members):.1f}"]
    parts += [f"latecomers {fmean(own[c] for c in late):.1f}"]
    if home:
        having = fmean(own[c] for c in late if twins[c])
        parts += [f"{len(home)} with twins {having:.1f}, the twins themselves {fmean(home):.1f}"]
        parts += [f"their models on the latecomers' data {fmean(lent):.1f}"]
    if lonely := [own[c] for c in late if not twins[c]]:
        parts += [f"{len(lonely)} without twins {fmean(lonely):.1f}"]
    return "; ".join(parts)


def classes(federation: Federation, client: int) -> set[int]:
    """Those of its training data."""
    rows = federation.rows("train")
    mine = rows.index[rows.start[client] : rows.start[client + 1]].long()
    return set(federation.examples.y[mine].tolist())


if __name__ == "__main__":
    main()
