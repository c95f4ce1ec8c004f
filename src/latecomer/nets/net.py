"""Net: a network as a function of its weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..tree import Tree


class Net:
    """A skeleton on the meta device (shapes and forward, never weights) and a way to draw fresh weights."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        with torch.device("meta"):  # eagerly: drawing initial weights inside a client step fails under vmap
            self.skeleton = build()
        self.skeleton.requires_grad_(False)
        self.shapes = {name: weight.shape for name, weight in self.skeleton.named_parameters()}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        self._constants: dict[torch.device, dict[str, Tensor]] = {torch.device("cpu"): self._draw_buffers()}

    def __call__(self, params: Tree, *inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(self.skeleton, (params, self._buffers(inputs[0].device)), inputs)
        return output

    @property
    def last(self) -> str:
        """The name of the last layer."""
        return next(reversed(self.shapes)).rpartition(".")[0]

    def features(self, params: Tree, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What the last layer sees, and what the network returns, in one pass."""
        seen: list[Tensor] = []
        last = self.skeleton.get_submodule(self.last)
        hook = last.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            output = self(params, *inputs)
        finally:
            hook.remove()
        return seen[0], output

    def fresh(self, generator: torch.Generator) -> Tree:
        """Weights as the network's own constructor draws them, on the CPU."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return {name: weight.detach().clone() for name, weight in self.build().named_parameters()}

    def _draw_buffers(self) -> dict[str, Tensor]:
        """Constants that the network holds besides its weights (position codes, say); eagerly, like the skeleton."""
        if not any(True for _ in self.skeleton.buffers()):
            return {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # server and clients build the same
            return dict(self.build().named_buffers())

    def _buffers(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._constants:
            here = self._constants[torch.device("cpu")]
            self._constants[device] = {name: value.to(device) for name, value in here.items()}
        return self._constants[device]
