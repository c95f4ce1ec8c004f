"""The answers of a node on a stock SuperNode of Flower's: `flower-supernode --node-config 'data="mine.npz"' ...`.

Flower starts a process for each message, runs the code that the server ships, and keeps `context.state` for one run and
only while it is up: for whatever must survive, there is `latecomer node`.
"""

from __future__ import annotations

from ..engines.flower.participant import ParticipantApp
from ..errors import SettingError
from ..settings import parse
from .host import Host
from .settings import Stay

NAMES = {"data": "data", "partition-id": "client", "report-scores": "report_scores", "out": "out", "budget": "budget"}
NAMES |= {"allow": "allow"}


def client_app() -> ParticipantApp:
    """For an app of Flower's to name as its ClientApp."""
    return ParticipantApp(host)


def host(config: dict[str, object]) -> Host:
    """Who answers on a node that was started with this `--node-config`."""
    if not config.get("data"):
        raise SettingError("This node was started without data; --node-config 'data=\"mine.npz\"' names them.")
    return Host(parse(Stay, {name: config[key] for key, name in NAMES.items() if key in config}))
