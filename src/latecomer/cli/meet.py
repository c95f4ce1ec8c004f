"""latecomer meet: a finished run meets clients that it has never seen."""

from __future__ import annotations

import time
from pathlib import Path

from ..runs.files import check_name
from ..settings import settings_of
from . import flags, screen
from .drive import scores
from .show import lines

USAGE = """Usage: latecomer meet RUN [--setting value ...]

The servers of a finished run, one a seed, meet new clients and are not trained again. What is not given is as in the
run; without any setting the run's own latecomers come once more. The result is written to a folder like a run's.
"""


def main(words: list[str]) -> int:
    run, words = flags.subject(words, "latecomer meet RUN")
    with screen.working("Meeting"):
        from ..data import Split
        from ..handover.meet import Meeting, meet, settings_text, split_settings
        from ..handover.trained import load
        from ..settings import parse

        given = flags.read(
            words, {*settings_of(Meeting)} | split_settings(), flags.switches(Meeting) | {"unseen_labelled"}
        )
        asked = parse(Meeting, {name: value for name, value in given.items() if name in settings_of(Meeting)})
        split = {name: value for name, value in given.items() if name not in settings_of(Meeting)}
        trained = load(run)
        whom = Path(asked.data or trained.experiment.settings.data).stem
        if asked.name:
            check_name(asked.name)
        name = asked.name or f"{trained.path.name}-meets-{whom}-{time.strftime('%Y%m%d-%H%M%S')}"
        met = meet(trained, asked, **split)
        typed = {key: getattr(parse(Split, split), key) for key in split}
        place = met.save(Path(asked.out) / name, settings_text(trained, asked, typed), another=not asked.name)
    for note in dict.fromkeys(note for federation in met.federations for note in federation.notes):
        screen.err(f"Note: {note}")
    count = sum(len(federation) - federation.first_late for federation in met.federations)
    screen.out(f"{trained.name} of {trained.path} met {count} clients of {met.result['data']}")
    screen.out(scores(met.result))
    print(place)
    return 0


def explain(words: list[str]) -> None:
    from ..data.split import Split
    from ..handover.meet import Meeting, split_settings

    print(USAGE)
    screen.section("Settings of a meeting", lines(Meeting, {}))
    rest = [line for line in lines(Split, {}) if line[0][2:].replace("-", "_") in split_settings()]
    screen.section(
        "How the examples fall to the new clients; the defaults are the run's", [(a, "", c) for a, _, c in rest]
    )
