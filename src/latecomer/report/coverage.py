"""Whom the gate of a run covers: it needs the data and validators of the run, so it is asked only where wanted."""

from __future__ import annotations

from ..study.finished import Finished


def judged(run: Finished) -> dict[int, bool]:
    """Of every latecomer of the first seed, whether the members' models cover it; see docs/gate.md."""
    import torch  # here, because a page without a gate need not wait for it

    from ..handover import survey
    from ..handover.trained import load

    trained = load(run.path)
    method, state, federation = trained.method, trained.states[0], trained.federations[0]
    gate = survey.fitted(method, state, federation)
    late = torch.arange(federation.first_late, len(federation))
    signatures, _ = survey.signatures_of(method, state, federation, late)
    return {int(k): gate.judge(one).covered for k, one in zip(late, signatures, strict=True)}
