"""Tables of numbers: one that is wider than the screen is cut into several, and none of its numbers is."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

Column = tuple[str, list[str]]
"""A heading, and what stands under it."""


def pages(names: list[Column], blocks: Sequence[list[Column]], room: int) -> list[list[Column]]:
    """Columns that fit beside each other, those of a block on one page; each page begins with the names of the rows."""

    def width(columns: Sequence[Column]) -> int:
        return sum(3 + max(len(word) for word in (*head.split("\n"), *words)) for head, words in columns)  # with gaps

    found = [list(names)]
    for block in blocks:
        if len(found[-1]) > len(names) and width([*found[-1], *block]) > room:
            found.append(list(names))
        found[-1] += block
    return found


def grid(columns: Sequence[Column], names: int = 1) -> Table:
    """A table without lines between columns; the first ones, which are names, are folded where nothing else helps."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=False)
    for place, (head, _) in enumerate(columns):
        name = place < names
        table.add_column(head, justify="left" if name else "right", no_wrap=not name, overflow="fold")
    for row in zip(*(words for _, words in columns), strict=True):
        table.add_row(*row)
    return table
