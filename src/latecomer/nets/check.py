"""Refuse a client model that breaks the rules of a client step, in a sentence that names the offending layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import grad, vmap

from .. import tree
from ..errors import LatecomerError, ModelError
from ..task import Batch, Task
from ..tree import Tree

ROWS, EXAMPLES = 2, 2


def check_task(task: Task) -> None:
    """Train two tiny clients for one step under `vmap`, the way every engine may."""
    for name, layer in task.model.skeleton.named_modules():
        if getattr(layer, "track_running_stats", False):
            raise ModelError(
                f"Layer {name!r} ({type(layer).__name__}) keeps running statistics, which a client step cannot; "
                "use GroupNorm, or set track_running_stats=False."
            )
    entered = _Entered(task.model.skeleton)
    try:
        for weights in [task.model.fresh(torch.Generator().manual_seed(0)), *_in_sizes(task)]:
            _dry_run(task, weights)
    except LatecomerError:
        raise
    except Exception as error:  # whatever the user's forward raises, it becomes a sentence about the layer
        first = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
        raise ModelError(f"{entered} breaks the rules for client models (pure, no randomness): {first}.") from error
    finally:
        entered.remove()


def _in_sizes(task: Task) -> list[Tree]:
    """Weights of every size, to see that the one forward pass serves them all."""
    return [{name: torch.zeros(shape) for name, shape in shapes.items()} for shapes in task.sizes.values()]


def _dry_run(task: Task, weights: Tree) -> None:
    rows = tree.map(lambda leaf: leaf.expand(ROWS, *leaf.shape), weights)
    batch = Batch(task.blank(EXAMPLES), torch.zeros(EXAMPLES, dtype=torch.long), torch.ones(EXAMPLES, dtype=torch.bool))
    logits = vmap(lambda params: task.logits(params, batch.x), randomness="error")(rows)
    if logits.shape != (ROWS, EXAMPLES, task.classes):
        raise ModelError(
            f"The model returns shape {tuple(logits.shape[1:])} for {EXAMPLES} examples; "
            f"it must be ({EXAMPLES}, {task.classes}), one score a class."
        )
    vmap(grad(lambda params: task.loss(params, batch)), randomness="error")(rows)


class _Entered:
    """Remembers the layer that was entered last."""

    def __init__(self, skeleton: nn.Module) -> None:
        self.last = "The model"
        self.hooks = [
            layer.register_forward_pre_hook(self._hook(name)) for name, layer in skeleton.named_modules() if name
        ]

    def _hook(self, name: str) -> Any:
        def enter(layer: nn.Module, _inputs: Any) -> None:
            self.last = f"Layer {name!r} ({type(layer).__name__})"

        return enter

    def __str__(self) -> str:
        return self.last

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()
