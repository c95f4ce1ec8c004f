"""ONNX graphs of functions of data and weights. The weights are not in a graph: they lie in a safetensors file beside
it, so that one graph does for every client.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import tree
from ..data import Form
from ..errors import BundleError, need
from ..method import Method
from ..private import cdist
from ..tree import Tree
from .layout import Layout

MOST = 1000  # operations: torch takes minutes to export more, as of a network that is unrolled over a sequence
LARGE = 256  # bytes from which on a constant lies beside the graph
Function = Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]
"""From data and weights, both by name, to what comes of them."""


class Watch(TorchFunctionMode):
    """Counts what is called of torch, and notices whether gradients are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.trains = 0, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        self.trains |= torch.is_grad_enabled()
        return function(*args, **(kwargs or {}))


class _Module(nn.Module):
    def __init__(self, function: Function, data: Collection[str], weights: Collection[str]) -> None:
        super().__init__()
        self.function, self.names, self.parts = function, list(data), list(weights)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        data, weights = tensors[: len(self.names)], tensors[len(self.names) :]
        named = dict(zip(self.names, data, strict=True)), dict(zip(self.parts, weights, strict=True))
        return tuple(self.function(*named).values())


def graph(
    function: Function,
    data: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    free: Mapping[str, Mapping[int, str]],
    least: Mapping[str, int],
) -> Any:
    """The graph of a function, a `ModelProto` whose inputs are the data, and the weights that it looks at.

    `data` and `weights` are examples; `free` names the dimensions that may have another size, by input, and `least`
    says how small they may be.
    """
    need("onnxscript", "export")
    onnx = need("onnx", "export")
    names = [*data, *weights]
    with torch.no_grad(), Watch() as watch:
        outputs = list(function(dict(data), dict(weights)))
    if watch.calls > MOST:
        raise BundleError(
            f"torch would take minutes to make an ONNX graph of its {watch.calls:,} operations, all of them unrolled."
        )
    letters = {letter for places in free.values() for letter in places.values()}
    sizes = {letter: torch.export.Dim(letter, min=least.get(letter, 1)) for letter in letters}
    shapes = tuple({place: sizes[letter] for place, letter in free.get(name, {}).items()} for name in names)
    with _quietly(), torch.no_grad():
        try:
            program = torch.onnx.export(
                _Module(function, data, weights),
                (*data.values(), *weights.values()),
                dynamo=True,
                verbose=False,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(shapes,),
                custom_translation_table={cdist: _distances},
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise BundleError(f"torch cannot make an ONNX graph of it: {_reason(error)}.") from error
    assert program  # with dynamo there is one
    model: Any = program.model_proto
    found = {one.name: one.type.tensor_type.shape.dim for one in model.graph.input}
    for name, places in free.items():
        for place in places:
            if name in found and not found[name][place].dim_param:
                raise BundleError(f"torch froze the size of {name!r} at {found[name][place].dim_value} in a graph.")
    _strip(model)
    for one in [one for one in model.graph.input if one.name in weights.keys() - used(model)]:
        model.graph.input.remove(one)
    onnx.checker.check_model(model)
    return model


def constants(model: Any) -> dict[str, Tensor]:
    """The large constants of a graph, which become inputs of it."""
    onnx = need("onnx", "export")
    found = {}
    for one in [one for one in model.graph.initializer if len(one.raw_data) >= LARGE]:
        found[one.name] = torch.from_numpy(onnx.numpy_helper.to_array(one).copy())
        model.graph.initializer.remove(one)
    return found


def used(model: Any) -> set[str]:
    """The names that a graph's operations look at."""
    return {name for node in model.graph.node for name in node.input}


def beside(model: Any, layout: Layout, place: str) -> None:
    """Let the leaves of a layout, inputs so far, lie in the safetensors file `place` that has this layout."""
    onnx, wanted = need("onnx", "export"), used(model)
    inputs = {one.name: one for one in model.graph.input}
    for name, start, size in layout.places():
        if name not in wanted:
            continue
        if name in inputs:
            model.graph.input.remove(inputs[name])
        dtype, shape = layout.leaves[name]
        one = model.graph.initializer.add()
        one.name, one.data_type = name, onnx.helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=dtype).numpy().dtype)
        one.dims.extend(shape)
        one.data_location = onnx.TensorProto.EXTERNAL
        told = {"location": place, "offset": len(layout.header) + start, "length": size}
        for key, value in told.items():
            one.external_data.add(key=key, value=str(value))


def alone(model: Any, file: bytes) -> bytes:
    """A graph with the numbers of the file that its weights lie in: a stand-alone .onnx."""
    onnx = need("onnx", "export")
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for one in whole.graph.initializer:
        if one.data_location == onnx.TensorProto.EXTERNAL:
            told = {entry.key: entry.value for entry in one.external_data}
            start = int(told["offset"])
            one.raw_data = file[start : start + int(told["length"])]
            del one.external_data[:]
            one.data_location = onnx.TensorProto.DEFAULT
    found: bytes = whole.SerializeToString(deterministic=True)
    return found


def model(method: Method, form: Form, weights: Tree) -> bytes:
    """A client's model as a stand-alone .onnx, from examples as they are stored to logits."""
    flat = tree.flatten(weights)
    made = graph(
        lambda data, leaves: {"logits": method.logits(tree.unflatten(leaves), form.prepare(data["x"])).float()},
        {"x": made_up(form, 6)},
        flat,
        {"x": {0: "n"}},
        {},
    )
    layout = Layout(flat)
    beside(made, layout, "model.safetensors")
    return alone(made, layout.file(flat))


def made_up(form: Form, count: int) -> Tensor:
    """Examples as they are stored, that nobody has."""
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, form.dtype)
    if dtype.is_floating_point:
        return torch.randn(count, *form.stored, generator=generator).to(dtype)
    high = 256 if form.images else 2 if dtype == torch.bool else form.classes
    return torch.randint(high, (count, *form.stored), generator=generator).to(dtype)


def read(text: bytes) -> Any:
    """A graph from its file."""
    return need("onnx", "export").ModelProto.FromString(text)


def _distances(a: Any, b: Any, p: float, compute_mode: int | None) -> Any:
    """Euclidean distances by differences, which ONNX has no operation for: [n, width] and [m, width] to [n, m]."""
    op = need("onnxscript", "export").opset18
    gaps = op.Sub(op.Unsqueeze(a, [1]), op.Unsqueeze(b, [0]))
    return op.ReduceL2(gaps, [2], keepdims=0)


def _reason(error: Exception) -> str:
    """Why torch gave up, in a few words."""
    text = str(error.__cause__ or error).strip()
    missing = re.search(r"translating node .*target=torch\.ops\.([\w.]+)\.\w+\]", text)
    return f"ONNX has nothing like {missing[1]}" if missing else text.split("\n")[0].rstrip(".")


@contextmanager
def _quietly() -> Iterator[None]:
    """torch's exporter warns of itself, and tells its progress."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _strip(model: Any) -> None:
    """Without where in our files everything came from."""
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    del model.graph.value_info[:]
