"""Trees: nested dicts of tensors, the only thing that crosses between server and client.

Every function returns a new tree and leaves its arguments alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .ops.sums import extremes

Tree: TypeAlias = dict[str, Any]
"""A nested dict whose leaves are tensors. (`Any`, because mypy cannot infer through a recursive alias.)"""


def map(function: Callable[..., Tensor], *trees: Tree) -> Tree:  # noqa: A001  (tree.map is the name everybody knows)
    """Apply `function` leaf by leaf to trees of one shape."""
    first = trees[0]
    return {
        key: map(function, *(tree[key] for tree in trees))
        if isinstance(value, dict)
        else function(*(tree[key] for tree in trees))
        for key, value in first.items()
    }


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """A flat dict; the path to a leaf is joined by slashes."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """The inverse of `flatten`."""
    tree: Tree = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in the order of `flatten`."""
    return list(flatten(tree).values())


def pick(tree: Tree, names: Collection[str]) -> Tree:
    """The branches of these names."""
    return {name: value for name, value in tree.items() if name in names}


def without(tree: Tree, names: Collection[str]) -> Tree:
    """All branches but those of these names."""
    return {name: value for name, value in tree.items() if name not in names}


def row(tree: Tree, k: Any) -> Tree:
    """Row (or rows, or slice) `k` of every leaf."""
    return map(lambda leaf: leaf[k], tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one shape become rows of one tree."""
    return map(lambda *rows: torch.stack(rows), *trees)


def concatenate(trees: Sequence[Tree]) -> Tree:
    """Trees of rows become one tree of rows."""
    return trees[0] if len(trees) == 1 else map(lambda *rows: torch.cat(rows), *trees)


def add(a: Tree, b: Tree) -> Tree:
    """The sum, leaf by leaf: a model and the change that a round made of replies, say."""
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """The difference, leaf by leaf: what a client's training has changed, say."""
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    """Every leaf times a number."""
    return map(lambda leaf: leaf * factor, tree)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """Leaves of `a` where the condition holds, else of `b`; a vector condition chooses row by row."""
    return map(lambda x, y: torch.where(align(condition, x), x, y), a, b)


def align(vector: Tensor, leaf: Tensor) -> Tensor:
    """`vector`, reshaped so that it broadcasts over the trailing dimensions of `leaf`."""
    return vector.reshape(vector.shape + (1,) * (leaf.ndim - vector.ndim))


def nbytes(tree: Tree) -> int:
    """How many bytes its numbers take on a wire, as the ledger counts them."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def to(tree: Tree, device: torch.device) -> Tree:
    """The same tree on a device."""
    return map(lambda leaf: leaf.to(device), tree)


def digest(tree: Tree) -> str:
    """SHA-256 of names, shapes and bits, whatever the order of names: equal where two trees are. On the CPU."""
    known = hashlib.sha256()
    for name, leaf in sorted(flatten(tree).items()):
        known.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
        known.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return known.hexdigest()


def detach(tree: Tree) -> Tree:
    """The same numbers, through which no gradient flows."""
    return map(lambda leaf: leaf.detach(), tree)


def finite(tree: Tree, rows: bool = False) -> Tensor:
    """Whether every number is finite: of the whole tree, or row by row."""
    plain = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in leaves(tree)]
    floats = [leaf for leaf in plain if leaf.is_floating_point() and leaf.numel()]
    if not floats:
        count = leaves(tree)[0].shape[:1] if rows and leaves(tree) else ()
        return torch.ones(count, dtype=torch.bool)
    flat = [leaf.reshape(len(leaf) if rows else 1, -1) for leaf in floats]
    ends = [end for leaf in flat for end in extremes(leaf)]  # NaN is both
    found = torch.stack(ends).isfinite().all(0)
    return found if rows else found[0]


def ravel(tree: Tree, like: Tree | None = None) -> Tensor:
    """All leaves end to end (in the order of `like`), as one vector: optimisers work on this, in few operations."""
    flat = flatten(tree)
    parts = [flat[path].reshape(-1) for path in (flat if like is None else flatten(like))]
    return torch.cat(parts) if parts else torch.zeros(0)


def unravel(vector: Tensor, like: Tree) -> Tree:
    """The inverse of `ravel`, for a tree of the shapes of `like`. Leaves are views."""
    flat = flatten(like)
    parts = vector.split([leaf.numel() for leaf in flat.values()])
    return unflatten({path: part.view(leaf.shape) for (path, leaf), part in zip(flat.items(), parts, strict=True)})
