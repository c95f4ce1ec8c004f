"""On the server: whether a reply is one. Whatever is not raises a sentence, before any of it is used."""

from __future__ import annotations

import math

import numpy as np
from flwr.app import RecordDict

from ... import tree
from ...errors import ProtocolError
from ...evaluate import MOST_EXAMPLES
from ...steps import listed
from ...tree import Tree
from .wire import arrays_of, blob_of, paths, tensor, unflattened

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Kind and shape of every leaf of a reply, by its path."""

PREFACE, LINE = 64, 256  # bytes that a blob may have besides its numbers: in all, and for each leaf besides its name


def layout(reply: Tree) -> Layout:
    return {path: (str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)) for path, leaf in paths(reply)}


def size(wanted: Layout) -> int:
    """Bytes of the numbers in a reply."""
    return sum(math.prod(shape) * np.dtype(kind).itemsize for kind, shape in wanted.values())


def room(wanted: Layout) -> int:
    """Bytes that a blob with such a reply can have. JSON may need six letters for one of a name."""
    return size(wanted) + PREFACE + sum(LINE + 6 * len(path) for path in wanted)


def read(content: RecordDict, wanted: Layout, counted: bool) -> tuple[Tree, float]:
    """The reply and its weight: the number of labelled examples where they are `counted`, else one.

    Leaves go by name and come out in the order of the layout. No blob is read that has more bytes than it should.
    """
    records = {"body", "metrics"} if counted else {"body"}
    if set(content) != records:
        raise ProtocolError(f"It consists of {listed(set(content))} and should of {listed(records)}.")
    found = arrays_of(blob_of(content["body"], room(wanted)), room(wanted) - size(wanted))
    if found.keys() != wanted.keys():
        strange = sorted(found.keys() ^ wanted.keys())[0]
        raise ProtocolError(f"It {'lacks' if strange in wanted else 'has an unknown'} {strange[:100]!r}.")
    for path, (kind, shape) in wanted.items():
        array = found[path]
        if (str(array.dtype), array.shape) != (kind, shape):
            raise ProtocolError(f"{path!r} is {array.dtype} of shape {array.shape} and not {kind} of {shape}.")
    values = unflattened({path: tensor(found[path]) for path in wanted})
    if not bool(tree.finite(values)):
        raise ProtocolError("It is not finite.")
    return values, _weight(content) if counted else 1.0


def _weight(content: RecordDict) -> float:
    metrics = dict(content.metric_records.get("metrics", {}))
    weight = metrics.get("weight")
    if metrics.keys() != {"weight"} or isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ProtocolError("Its metrics are not one number, the weight.")
    if not 0 <= weight <= MOST_EXAMPLES:  # NaN is neither
        raise ProtocolError(f"Its weight is {weight} and must be from 0 to {MOST_EXAMPLES}.")
    return float(weight)
