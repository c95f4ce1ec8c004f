"""Net: a network as a function of its weights."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import ModelError
from ..ops.norm import mend_group_norms
from ..tree import Tree

BUILT = {"skeleton", "shapes", "size", "_constants", "_blank", "_own"}  # what a network has from its `build`


class Net:
    """A skeleton on the meta device (shapes and forward, never weights) and a way to draw fresh weights.

    A call puts the weights into the skeleton and takes them out again, so every thread has a skeleton of its own.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        with torch.device("meta"):  # eagerly: drawing initial weights inside a client step fails under vmap
            self.skeleton = build()
        self.skeleton.requires_grad_(False)
        mend_group_norms(self.skeleton)
        self.shapes = {name: weight.shape for name, weight in self.skeleton.named_parameters()}
        self.size = sum(shape.numel() for shape in self.shapes.values())
        self._constants: dict[torch.device, dict[str, Tensor]] = {torch.device("cpu"): self._draw_buffers()}
        self._blank = copy.deepcopy(self.skeleton)  # never called, so that a thread can copy it at any time
        self._own = threading.local()
        self._own.frame = _Frame(self.skeleton)

    def __call__(self, params: Tree, *inputs: Tensor, also: Iterable[Mapping[str, torch.Size]] = ()) -> Tensor:
        """The network with these weights, which must be all of its own and no others, in its own shapes or `also`."""
        if not _fit(params, self.shapes) and not any(_fit(params, shapes) for shapes in also):
            raise ModelError(_misfit(params, self.shapes))
        return self.frame(params, self.constants(inputs[0].device), inputs)

    def __getstate__(self) -> dict[str, Any]:
        """A network travels as the way to build it."""
        return {name: value for name, value in vars(self).items() if name not in BUILT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        Net.__init__(self, self.build)

    @property
    def frame(self) -> _Frame:
        """This thread's own skeleton."""
        if not hasattr(self._own, "frame"):
            self._own.frame = _Frame(copy.deepcopy(self._blank))
        found: _Frame = self._own.frame
        return found

    @property
    def last(self) -> str:
        """The name of the last layer that has weights."""
        return next(reversed(self.shapes)).rpartition(".")[0]

    def widened(self, outputs: int) -> Net:
        """The same architecture, with a last layer of so many outputs."""
        last = self.skeleton.get_submodule(self.last)
        if not isinstance(last, nn.Linear):
            raise ModelError(
                f"The model's last layer, {self.last!r}, is of type {type(last).__name__}; "
                "only a Linear can be replaced by one with another number of outputs."
            )

        def build() -> nn.Module:
            net, layer = self.build(), nn.Linear(last.in_features, outputs, last.bias is not None)
            if not self.last:  # the model is that layer
                return layer
            parent, _, name = self.last.rpartition(".")
            setattr(net.get_submodule(parent), name, layer)
            return net

        return Net(build)

    def features(self, params: Tree, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What the last layer sees, and what the network returns, in one pass."""
        seen: list[Tensor] = []
        last = self.frame.skeleton.get_submodule(self.last)
        hook = last.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            output = self(params, *inputs)
        finally:
            hook.remove()
        return seen[0], output

    def fresh(self, generator: torch.Generator) -> Tree:
        """Weights as the network's own constructor draws them, on the CPU."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with _drawing(seed):
            return {name: weight.detach().clone() for name, weight in self.build().named_parameters()}

    def _draw_buffers(self) -> dict[str, Tensor]:
        """Constants that the network holds besides its weights (position codes, say); eagerly, like the skeleton."""
        if not any(True for _ in self.skeleton.buffers()):
            return {}
        with _drawing(seed=0):  # server and clients build the same
            return dict(self.build().named_buffers())

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        """What it holds besides its weights, on a device. Moved there within a gradient, they would end with it: so
        engines ask for them before the first step (`Method.settle`).
        """
        if device not in self._constants:
            here = self._constants[torch.device("cpu")]
            self._constants[device] = {name: value.to(device) for name, value in here.items()}
        return self._constants[device]


_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """PyTorch's own generator, which constructors draw from, with a seed. The process has one, so threads wait."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _fit(params: Tree, shapes: Mapping[str, torch.Size]) -> bool:
    """Whether weights have these names and shapes."""
    return params.keys() == shapes.keys() and all(
        getattr(params[name], "shape", None) == shape for name, shape in shapes.items()
    )


def _misfit(params: Tree, shapes: Mapping[str, torch.Size]) -> str:
    """The first weight that does not fit, in a sentence."""
    for name, shape in shapes.items():
        if name not in params:
            return f"A network was given no weight {name!r}; it needs {', '.join(shapes)}."
        found = getattr(params[name], "shape", None)
        if found != shape:
            return f"A network was given a weight {name!r} of shape {_tuple(found)}; it must be {_tuple(shape)}."
    unknown = sorted(params.keys() - shapes.keys())
    return f"A network was given a weight {unknown[0]!r}, which it does not have; it has {', '.join(shapes)}."


def _tuple(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))


class _Frame:
    """A skeleton and the places in it where weights go: `functional_call` finds them anew in every call."""

    def __init__(self, skeleton: nn.Module) -> None:
        self.skeleton = skeleton
        paths = {id(weight): path for path, weight in skeleton.named_parameters()}  # a shared weight has one path
        self.places = [
            (layer._parameters, name, paths[id(weight)], weight)
            for layer in skeleton.modules()
            for name, weight in layer._parameters.items()
            if weight is not None
        ]

    def __call__(self, params: Tree, constants: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        if constants:
            output: Tensor = functional_call(self.skeleton, (params, constants), inputs)
            return output
        for layer, name, path, _ in self.places:
            layer[name] = params[path]
        try:
            output = self.skeleton(*inputs)
        finally:
            for layer, name, _, blank in self.places:
                layer[name] = blank
        return output
