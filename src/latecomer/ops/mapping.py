"""How `vmap` and gradients reach an operation, and what an operation may ask about its inputs.

A kernel works on rows: arrays with a leading dimension of clients, or of runs and clients. `Rows` makes rows of
whatever `vmap` hides, however deep the maps are nested.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..private import functorch

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Triton comes with PyTorch's CUDA builds. Kernels are defined where it is there, and launched on GPUs alone."""
Pair = tuple[int, int]
Number = float | Tensor  # where several runs share a map, a setting may be one number a row


class Rows(torch.autograd.Function):
    """An operation on rows: mapping it only makes more rows. Unless it says otherwise, it saves all its inputs."""

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


class Final(Rows):
    """One that nobody differentiates through."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(*output)


def transformed() -> bool:
    """Whether somebody maps or differentiates what runs now."""
    return functorch.peek_interpreter_stack() is not None


def mapped(tensor: Tensor) -> bool:
    """Whether a tensor has a hidden dimension of `vmap`."""
    while functorch.is_gradtrackingtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return bool(functorch.is_batchedtensor(tensor))


def differentiated(tensor: Tensor) -> bool:
    """Whether somebody takes a gradient through this tensor."""
    return tensor.requires_grad or bool(functorch.is_gradtrackingtensor(tensor))


def varies(weight: Tensor) -> bool:
    """Whether a weight differs from client to client, or will have a gradient that does."""
    return mapped(weight) or differentiated(weight)


def on_gpu(tensor: Tensor) -> bool:
    """Whether kernels can be launched where a tensor is."""
    return tensor.is_cuda and HAS_TRITON


def for_kernels(tensor: Tensor) -> bool:
    """Whether the kernels for rows can take a tensor: float32, mapped over, and on a GPU."""
    return tensor.dtype == torch.float32 and mapped(tensor) and on_gpu(tensor)


def padded_size(shape: Iterable[int]) -> int:
    """How many numbers an array has once its sides are rounded up to powers of two, as a kernel holds it."""
    total = 1
    for side in shape:
        total *= 1 << (side - 1).bit_length()
    return total


def untransformed() -> bool:
    """Whether nobody maps what runs now, and nobody will want its gradient: gradients are off.

    The loop engine runs its steps without gradients. Where they are on, somebody may want ours to have gradients too.
    """
    return not torch.is_grad_enabled() and not transformed()


def pair(value: Any) -> Any:
    """Height and width, where one number stands for both; words ("same") stay words."""
    if isinstance(value, str):
        return value
    return (value, value) if isinstance(value, int) else tuple(value)
