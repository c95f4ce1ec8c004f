"""Arithmetic for the hand-worked rounds, written in NumPy and independently of the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from latecomer.data import Federation
from latecomer.nets.net import Net
from latecomer.task import Task

Array = Any


def linear_task(inputs: int, dtype: torch.dtype = torch.float64) -> Task:
    """One linear layer, two classes."""
    return Task(Net(lambda: nn.Linear(inputs, 2)), (inputs,), 2, dtype)


def owners(x: Any, y: Any, rows: Sequence[Sequence[int]], members: int) -> Federation:
    """Clients that own these rows; what they are tested on is what they train on."""
    return Federation.from_arrays(
        np.array(x, np.float64), np.array(y), train=rows, val=rows, test=rows, members=members, classes=2
    )


def slope(theta: Array, x: Any, y: Any) -> Array:
    """The gradient of the mean cross-entropy of softmax(weight x + bias): (probabilities - one-hot label), times the
    inputs. `theta` is a layer's weight, row by row, and then its bias; so is the gradient.
    """
    x, y = np.array(x, float), np.array(y)
    scores = x @ theta[:-2].reshape(2, -1).T + theta[-2:]
    likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    wrong = (likely - np.eye(2)[y]) / len(y)
    return np.concatenate([(wrong.T @ x).ravel(), wrong.sum(0)])


def descend(
    theta: Array,
    x: Array,
    y: Array,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    decay: float = 0.0,
    clip: float = 0.0,
) -> Array:
    """Steps of SGD on all examples at once."""
    velocity = np.zeros_like(theta)
    for _ in range(steps):
        down = slope(theta, x, y)
        velocity = momentum * velocity + down * shortening(down, clip) + decay * theta
        theta = theta - lr * velocity
    return theta


def shortening(vector: Array, clip: float) -> float:
    """What a gradient is multiplied with so that it is no longer than `clip` (torch adds the same millionth)."""
    return min(1.0, clip / (np.sqrt((vector**2).sum()) + 1e-6)) if clip else 1.0


def flat(params: dict[str, torch.Tensor]) -> Array:
    """A linear layer's weights as `descend` takes them (and as a hypernetwork emits them)."""
    return np.concatenate([params["weight"].flatten(-2).double().numpy(), params["bias"].double().numpy()], -1)


def layer(theta: Array) -> dict[str, torch.Tensor]:
    """The way back."""
    return {"weight": tensor(theta[:-2].reshape(2, -1)), "bias": tensor(theta[-2:])}


def tensor(values: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(np.array(values), dtype=dtype)
