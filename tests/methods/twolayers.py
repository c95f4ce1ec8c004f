"""A network of two layers, a body and a head, in NumPy and independently of the library."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import nn

from latecomer.data import Federation
from latecomer.engines.home import Homes, PackedHome
from latecomer.nets.net import Net
from latecomer.task import Task

Array = Any
Layers = dict[str, Array]

BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
START: Layers = {
    "0.weight": np.array([[0.3, -0.2], [0.1, 0.5]]),
    "0.bias": np.array([-0.4, 0.2]),
    "2.weight": np.array([[0.6, -0.7], [0.2, 0.4]]),
    "2.bias": np.array([0.1, -0.3]),
}


def task() -> Task:
    return Task(Net(lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))), (2,), 2, torch.float64)


def scores(layers: Layers, x: Array) -> Array:
    return np.tanh(x @ layers["0.weight"].T + layers["0.bias"]) @ layers["2.weight"].T + layers["2.bias"]


def descend(layers: Layers, x: Any, y: Any, steps: int, lr: float, only: Collection[str] = BODY + HEAD) -> Layers:
    """Steps of SGD on all examples at once; weights that are not named in `only` stay as they are."""
    x, y = np.array(x), np.array(y)
    for _ in range(steps):
        seen = np.tanh(x @ layers["0.weight"].T + layers["0.bias"])
        likely = np.exp(scores(layers, x))
        wrong = (likely / likely.sum(1, keepdims=True) - np.eye(2)[y]) / len(y)
        back = wrong @ layers["2.weight"] * (1 - seen**2)  # the slope of tanh is 1 - tanh^2
        slopes = {"0.weight": back.T @ x, "0.bias": back.sum(0), "2.weight": wrong.T @ seen, "2.bias": wrong.sum(0)}
        layers = {name: value - lr * slopes[name] * (name in only) for name, value in layers.items()}
    return layers


def part(layers: Layers, names: Collection[str]) -> Layers:
    return {name: layers[name] for name in names}


def tensors(layers: Layers) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in layers.items()}


def close(found: dict[str, torch.Tensor], wanted: Layers) -> None:
    """The same weights, by name."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value, atol=1e-12, err_msg=name)


def home(federation: Federation, client: int, memory: dict[str, Any]) -> PackedHome:
    """A client as its steps see it."""
    homes = Homes([federation], torch.device("cpu"), torch.float64)
    return PackedHome(homes, homes.client_rows(0, torch.tensor([client]))[0], torch.tensor(0), memory)
