"""Which replies go wrong when: a pure function of (seed, round, client, step), the same on every engine.

And what went wrong without being asked for: replies that never came, or that were not finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from . import tree
from .errors import SettingError
from .ops.shuffle import mix, purpose, uniform
from .tree import Tree

Faults = Callable[[Tensor, int, str], Tensor]
"""(ids, round, step) -> for every client what goes wrong, as a place in `KINDS`."""

KINDS = {
    "none": "",
    "drop": "a client is not there, and does nothing",
    "nan": "its reply is not a number",
    "slow": "its reply comes too late",
    "huge": "its reply is a hundred times too large",
    "flip": "its reply points the other way",
}
DROP, NAN, SLOW, HUGE, FLIP = range(1, 6)
FACTORS = (1.0, 1.0, float("nan"), 1.0, 100.0, -1.0)  # by kind: what a reply is multiplied by on its way


def parse(text: str) -> dict[str, float]:
    """`drop=0.3,nan=0.01` as rates, in the order of `KINDS`; a sentence where it is none, or leaves nobody."""
    rates: dict[str, float] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, value = part.partition("=")
        if name not in KINDS or name == "none" or name in rates:
            raise SettingError(f"--faults names each of {', '.join([*KINDS][1:])} at most once; got {name!r}.")
        try:
            rates[name] = float(value)
        except ValueError:
            raise SettingError(f"--faults {name} needs a share of the replies, as {name}=0.1; got {part!r}.") from None
    if not all(0 <= rate <= 1 for rate in rates.values()) or not sum(rates.values()) < 1:
        raise SettingError(f"--faults must be shares of the replies, below 1 all together; got {text!r}.")
    return {name: rates[name] for name in KINDS if rates.get(name)}


def injected(text: str, seed: int) -> Faults | None:
    """The faults of a run: each reply goes wrong with these probabilities. None where that never happens."""
    rates = parse(text)
    if not rates:
        return None
    kinds = torch.tensor([[*KINDS].index(name) for name in rates] + [0])
    ends = torch.tensor([*rates.values()], dtype=torch.float64).cumsum(0)

    def faults(ids: Tensor, number: int, step: str) -> Tensor:
        drawn = uniform(mix(ids, seed, number, purpose(step))).double()
        return kinds[torch.searchsorted(ends, drawn, right=True)]

    return faults


def spoil(each: Tree, heard: Tensor, kinds: Tensor) -> tuple[Tree, Tensor]:
    """Replies, and who was heard, after what happened to them on their way."""
    factor = torch.tensor(FACTORS, device=kinds.device)[kinds]

    def times(leaf: Tensor) -> Tensor:
        return leaf * tree.align(factor, leaf).to(leaf.dtype) if leaf.is_floating_point() else leaf

    return tree.map(times, each), heard & (kinds != SLOW)


def failing_since(lines: Iterable[Mapping[str, Any]], before: int | None = None) -> int | None:
    """The round, the first being 1, since which every round got less than half of the replies that some step asked for.

    `lines` are those of the ledger in order, and `before` is what earlier ones came to. Whoever was dropped was not
    asked; a round that asked nobody changes nothing.
    """
    since = before
    for number, exchanges in groupby(lines, key=lambda line: line["round"]):
        asked: Counter[str] = Counter()
        answered: Counter[str] = Counter()
        for line in exchanges:  # a step may be asked of parts of a cohort, one after the other
            asked[line["step"]] += line["asked"]
            answered[line["step"]] += line["answered"]
        if asked.total():
            failing = any(2 * answered[step] < count for step, count in asked.items())
            since = (since or number + 1) if failing else None
    return since
