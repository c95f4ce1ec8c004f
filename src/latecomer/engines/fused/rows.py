"""Functions of arrays that all have a leading dimension of rows, one a client, and how `vmap` maps them."""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels, or None where Triton is not installed (it comes with PyTorch's CUDA builds)."""
    return importlib.import_module("latecomer.engines.kernels") if importlib.util.find_spec("triton") else None


class Rows(torch.autograd.Function):
    """Mapping it only makes more rows. Unless it says otherwise, it keeps all its inputs for the way back."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        rows = [
            (value.movedim(dim, 0) if dim is not None else value.expand(info.batch_size, *value.shape)).flatten(0, 1)
            if isinstance(value, Tensor)
            else value
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        out = cls.apply(*rows)  # type: ignore[no-untyped-call]
        if isinstance(out, tuple):
            return tuple(part.unflatten(0, (info.batch_size, -1)) for part in out), (0,) * len(out)
        return out.unflatten(0, (info.batch_size, -1)), 0
