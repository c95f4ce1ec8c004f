"""The part of `join` that needs torch: newcomers that train, alone or in turns with the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from .. import tree
from ..clients import Clients
from ..engines.home import entropy
from ..engines.loop import Loop
from ..errors import LatecomerError, ServerError
from ..tally import Tally
from ..tensorfile import pack, unpack
from . import recipe
from .join import Server, names_in, weights_file
from .trained import EVERYBODY, Trained


def model_by_training(
    server: Server, facts: Mapping[str, Any], x: Any, y: Any, held_out: tuple[Any, Any] | None
) -> bytes:
    """A newcomer's weights file, by the rule `train` or `fit`."""
    alone = facts["rule"] == "train"
    try:
        state = tree.unflatten(load(server.file(facts, "state.safetensors"))) if alone else {}
        experiment = recipe.experiment(facts["recipe"], seed=int(facts["seed"]))
        method, form = recipe.made_for(experiment, facts["recipe"]["task"])
        told = Path(facts["run"]), facts["checkpoint"], [facts["round"]], np.array(facts.get("start", ()), np.float32)
    except ServerError:
        raise
    except (
        *(KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, MemoryError),
        *(SafetensorError, LatecomerError),
    ) as error:
        raise ServerError(f"The recipe of the bundle at {server.url} cannot be followed: {error}.") from error
    run, checkpoint, rounds, v = told
    trained = Trained(run, experiment, method, form, [state], checkpoint, rounds)
    if alone:
        leaves = tree.flatten(trained.personalise(x, y, held_out=held_out).weights)
        return weights_file(facts, {name: leaf.numpy() for name, leaf in leaves.items()})[0]
    federation, _ = trained.alone(x, y, held_out=held_out)
    engine = Tally(Loop(method, [federation], "cpu", entropy), [method], [federation])
    clients, fit = Clients(engine, torch.tensor([len(federation) - 1]), EVERYBODY, scratch=0), cast(Any, method)
    moments = dict[str, NDArray[Any]]()
    for turn in clients.turns(fit.novel_rounds):
        params = tree.map(lambda leaf: leaf[None], tree.unflatten(load(server.model(v))))
        with torch.no_grad():
            change = tree.flatten(turn.run(fit.fit, each={"params": params}).each)
        flat = np.concatenate([change[name].numpy().ravel() for name in names_in(facts["header"])])
        body = pack({"v": v, "change": flat, **moments})
        moments = unpack(server.ask("POST", "/v1/descriptors", body, "application/octet-stream"))
        v = moments.pop("v")
    return server.model(v)
