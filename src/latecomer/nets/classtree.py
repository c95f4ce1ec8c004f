"""A binary tree over the classes a client has: similar classes part late. Shapes are fixed, to map over clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TURNS = 10  # of 2-means; a node has few classes, and they settle sooner


@dataclass(frozen=True)
class Level:
    """One level of a tree, from the view of every class. Nodes of a level have disjoint classes."""

    node: Tensor  # [classes] the node at which a class is
    right: Tensor  # [classes] bool: the side to which it goes from there
    parts: Tensor  # [classes] bool: whether its node has classes on both sides; else there is nothing to decide


def grow(prototypes: Tensor, present: Tensor) -> list[Level]:
    """Split the present classes in two by their prototypes [classes, size], and each side again, down to single ones.

    The number of levels is fixed: as many as a balanced tree over all classes needs. So 2-means has its way unless it
    would put more classes on one side than the levels below can part.
    """
    depth = (len(present) - 1).bit_length()
    node = torch.zeros_like(present, dtype=torch.long)
    levels = []
    for level in range(depth):
        together = (node[:, None] == node) & present[:, None] & present
        right = _halved(prototypes.detach(), together, room=2 ** (depth - 1 - level))
        levels.append(Level(node, right, together.sum(1) > 1))
        node = 2 * node + right
    return levels


def _halved(prototypes: Tensor, together: Tensor, room: int) -> Tensor:
    """Which classes go right, in every node at once; row c of `together` are the classes at the node of c.

    What belongs to a node is read from the row of its first class, so that all its classes agree to the last bit. That
    class goes left.
    """
    leader = together.long().argmax(1)
    count = together.sum(1)
    middle = _mean(prototypes, together)[leader]
    far = _farthest(_squares(middle, prototypes), together)[leader]
    centres = prototypes[far], prototypes[_farthest(_squares(prototypes[far], prototypes), together)[leader]]
    for _ in range(TURNS):
        lean = (prototypes - centres[0]).square().sum(1) - (prototypes - centres[1]).square().sum(1)
        sides = together & (lean <= 0), together & (lean > 0)
        centres = _mean(prototypes, sides[0])[leader], _mean(prototypes, sides[1])[leader]
    index = torch.arange(len(lean), device=lean.device)
    before = (lean < lean[:, None]) | ((lean == lean[:, None]) & (index < index[:, None]))
    least = (count - room).clamp(min=1)
    lefts = sides[0].sum(1).maximum(least).minimum(count - least)
    right = (together & before).sum(1) >= lefts
    return (right ^ right[leader]) & (count > 1)


def _mean(prototypes: Tensor, which: Tensor) -> Tensor:
    share = which.to(prototypes.dtype)
    return share @ prototypes / share.sum(1, keepdim=True).clamp(min=1)


def _squares(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).square().sum(-1)


def _farthest(squares: Tensor, among: Tensor) -> Tensor:
    return torch.where(among, squares, -1.0).argmax(1)
