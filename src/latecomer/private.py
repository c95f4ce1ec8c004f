"""Names of PyTorch that begin with an underscore: all that latecomer uses, so that a new PyTorch is tried in one place.

Each stands here because PyTorch has no public name for it. The bounds on torch in pyproject.toml are versions in which
all of them were seen to work; tests/test_layers.py keeps them out of other files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch as functorch  # which transforms are at work: vmap alone tells nobody that it maps
from torch.overrides import _get_current_function_mode_stack as function_modes  # `with torch.device(...)` is one
from torch.utils._python_dispatch import TorchDispatchMode  # to see every operation; documented, in a private module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten  # any nest of arguments as a list, and back

copy_all = torch._foreach_copy_  # one kernel that fills the inputs of a graph
cdist = torch.ops.aten._cdist_forward.default  # what torch.cdist is when a graph is made of it


def schema(operation: Any) -> Any:
    """What an operation says of itself: its arguments, which of them it writes to, and what its results share."""
    return operation._schema


__all__ = [
    "TorchDispatchMode",
    "TreeSpec",
    "cdist",
    "copy_all",
    "dispatch_modes",
    "function_modes",
    "functorch",
    "schema",
    "tree_flatten",
    "tree_unflatten",
]
