"""The page of results, as Markdown: a function of records alone, so the same records make the same page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .results import Record, label
from .results_tables import (
    NONE,
    VERDICTS,
    claims_table,
    compared,
    duration,
    figure_claims,
    near,
    plain,
    scores_tables,
    split,
    table,
)

MANY = 80  # rows of an analysis; a longer table is for its file, not for the page
HEAD = """# Results

Made by `latecomer results`, never by hand: every number is a run's. First stands what was measured in full, beside the
papers' numbers; then what the quick versions say of the papers' claims.
"""
FULL = """## In full

Scores are means over seeds ± their standard deviation, in percent. A difference to the paper is ours less the paper's;
one to the best simple row, which validation data choose, is of the same clients, pair by pair, with Student's 95 %
interval: over seeds where there are five or more, otherwise over clients, of whom every seed's count as much. Clients
of a seed share one training, so the latter says nothing about another training. Scores over all examples, bottom
deciles and gaps are no means of clients, and their intervals always over seeds. An interval of a gain or of a claim
stands for itself; one in a sentence about who has most says of how many it is one, for which it is widened. Kilobytes
are to and from a client in a round, seconds those of all seeds together.
"""
NOTHING = "No table or figure has been measured in full yet.\n"
QUICK = """## Quick versions

`--quick` takes minutes on two cores: small data in the place of the paper's, few rounds, settings that were hardly
searched. It says whether what a paper claims holds there, and none of its numbers is to be held against a paper's. A
claim about runs comes with a difference in points and its 95 % interval, over pairs of clients, which leaves out how
training itself varies, or over seeds; where it contains zero, nothing can be told. Each interval stands for itself: of
twenty claims about what is equal, one is told by chance. A claim about a figure comes with its two numbers, and only
which of them is larger is looked at, however near they are. Recipes that differ only in the paper's data say the same
on small data, and stand and count as one.
"""


def page(records: Sequence[Record], at: Path) -> str:
    """The page, which will be at this place: links to figures start there."""
    ordered = sorted(records, key=_order)
    full = [record for record in ordered if not record.told["quick"]]
    quick = _alike(record for record in ordered if record.told["quick"])
    parts = [HEAD, *glance(full, quick), FULL]
    parts += overview([[record] for record in full]) if full else [NOTHING]
    parts += [section(record, at) for record in full]
    if quick:
        parts += [QUICK, *overview(quick), *(quickly(group) for group in quick if _says(group[0]))]
    total = sum(cell["seconds"] or 0 for record in records for cell in record.cells)
    count = sum(len(record.cells) for record in records)
    parts.append(f"All {count} runs together took {duration(total)}.\n")
    return "\n".join(parts)


def glance(full: Sequence[Record], quick: Sequence[Sequence[Record]]) -> list[str]:
    """A line for every paper: how much of it was run, and what came of it."""
    rows = []
    for name in sorted({_system(record) for record in [*full, *(group[0] for group in quick)]}, key=_last):
        mine = [record for record in full if _system(record) == name]
        groups = [group for group in quick if _system(group[0]) == name]
        found = [near(record.told["metrics"], record.cells) for record in mine]
        close = _of(sum(one[0] for one in found), sum(one[1] for one in found))
        counts = _counts([verdict for group in groups for verdict in _verdicts(group[0])])
        rows.append([name, str(len(mine)), close, str(sum(map(len, groups))), *counts])
    heading = ["", "in full", "within a point of the paper, or better", "quick"]
    said = "Recipes that were run; numbers near the paper's are of those in full, claims of the quick versions.\n"
    return [*table([*heading, *VERDICTS], rows), "", said]


def overview(groups: Sequence[Sequence[Record]]) -> list[str]:
    """A line for recipes that say the same: how much was run, and what became of what the paper claims."""
    quick = bool(groups and groups[0][0].told["quick"])
    rows = []
    for group in groups:
        record = group[0]
        seconds = sum(cell["seconds"] or 0 for one in group for cell in one.cells)
        title = plain(record.told["title"])
        linked = f"[{title}](#{_anchor(record)})" if not quick or _says(record) else title
        close, known = near(record.told["metrics"], record.cells)
        names = "<br>".join(f"`{plain(one.told['recipe'])}`" for one in group)
        runs, absent = (sum(len(one.told.get(key, [])) for one in group) for key in ("cells", "absent"))
        rows.append(
            [
                linked,
                names,
                f"{runs} of {runs + absent}" if absent else str(runs),
                f"{seconds:,.0f}",
                *_counts(_verdicts(record)),
            ]
        )
        if not quick:
            rows[-1].insert(4, _of(close, known))
    heading = ["table or figure", "recipe", "runs", "seconds", *["within a point, or better"] * (not quick), *VERDICTS]
    return [*table(heading, rows, made=2), ""]


def section(record: Record, at: Path) -> str:
    """One recipe, in full."""
    told, cells, title = record.told, record.cells, plain(record.told["title"])
    lines = [_heading(record, title), "", f"    latecomer reproduce {_command(record)}", ""]
    lines += [f"{plain(told['paper'])}.", ""] if told["paper"] else []
    for paragraph in filter(None, map(plain, told["about"].split("\n\n"))):
        lines += [f"> {paragraph}", ""]
    if any(gain for cell in cells for gain in cell["gain"].values()):
        lines += compared(told, cells)
    else:
        lines += scores_tables(told["metrics"], cells)
    lines += [*leaders, ""] if (leaders := _leaders(told)) else []
    lines += ["**What the paper claims**", "", *claims_table(told["claims"], cells)] if told["claims"] else []
    lines += _analysis(told.get("analysis"))
    if record.figure is not None:
        link = Path(os.path.relpath(record.figure.resolve(), at.resolve().parent)).as_posix()
        lines += [f"![{title}]({quote(link)})", ""]
    return "\n".join([*lines, *_ends(record), *_searched(cells)]) + "\n"


def quickly(group: Sequence[Record]) -> str:
    """Of a quick version only what it is there for: whether what the paper claims holds, and who is first."""
    record = group[0]
    titles = "; ".join(plain(one.told["title"]) for one in group)
    lines = [_heading(record, _command(record)), "", f"{titles}.", "", *_ends(record), ""]
    lines += [plain(record.told["about"]), ""] if record.told["about"] else []
    lines += [*leaders, ""] if (leaders := _leaders(record.told)) else []
    lines += claims_table(record.told["claims"], record.cells)
    return "\n".join([*lines, *figure_claims(_notes(record))])


def _says(record: Record) -> bool:
    """Whether a quick version says more than what it took."""
    return bool(_verdicts(record) or _leaders(record.told))


def _leaders(told: Mapping[str, Any]) -> list[str]:
    return [f"- {plain(sentence)}" for sentence in told.get("leaders", [])]


def _heading(record: Record, text: str) -> str:
    """With a name to lead to: from words, every reader of Markdown makes another one."""
    return f'### <a id="{_anchor(record)}"></a>{text}'


def _anchor(record: Record) -> str:
    return re.sub(r"[^\w.-]", "-", record.name)


def _command(record: Record) -> str:
    """A recipe as `latecomer reproduce` takes it."""
    return f"{record.told['recipe']}{' --quick' if record.told['quick'] else ''}"


def _order(record: Record) -> tuple[Any, ...]:
    """Table 2 before Table 10, and what is no table of a paper at the end."""
    parts = re.split(r"(\d+)", record.told["recipe"])
    return not record.told["paper"], [int(part) if part.isdigit() else part for part in parts]


def _system(record: Record) -> str:
    """Whose paper it is: titles begin with it."""
    return plain(record.told["title"]).split(",")[0] if record.told["paper"] else OWN


OWN = "Comparisons of our own"


def _last(name: str) -> tuple[bool, str]:
    return name == OWN, name.casefold()


def _alike(records: Iterable[Record]) -> list[list[Record]]:
    """Recipes of one paper that say the very same, number for number: their small data are the same."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        said = f"{_system(record)} {record.told['claims']} {_notes(record)}"
        groups.setdefault(said if _verdicts(record) else record.name, []).append(record)
    return list(groups.values())


def _notes(record: Record) -> list[str]:
    """What an analysis says, of claims and else."""
    found = record.told.get("analysis")
    return list(found["notes"]) if found else []


def _verdicts(record: Record) -> list[str]:
    found = [claim["verdict"] for claim in record.told["claims"]]
    return [*found, *(verdict for _, verdict, _ in map(split, _notes(record)) if verdict)]


def _of(some: int, every: int) -> str:
    return f"{some} of {every}" if every else NONE


def _counts(verdicts: Sequence[str]) -> list[str]:
    return [str(verdicts.count(word)) for word in VERDICTS] if verdicts else [NONE] * len(VERDICTS)


def _ends(record: Record) -> list[str]:
    """Where a recipe's numbers come from, what they took, and what is not there."""
    cells, absent = record.cells, record.told.get("absent", [])
    count = f"{len(cells)} run{'s' * (len(cells) != 1)}"
    spent = f"{count}, {duration(sum(cell['seconds'] or 0 for cell in cells))}"
    origins = [plain(sentence) for sentence in _origins(cells)]
    if absent:
        origins.append(f"**Not there: {plain(', '.join(absent))}.**")
    if len(origins) == 1:
        return [f"{spent}; {origins[0]}"]
    return [f"{spent}.", "", *(f"- {sentence}" for sentence in origins)]


def _searched(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whose settings a search has found, where there is one."""
    found = {known: [label(cell) for cell in cells if cell.get("searched") is known] for known in (True, False)}
    if not found[True]:
        return ["", "Settings were not searched."] * bool(found[False])
    others = f", those of {plain(', '.join(found[False]))} not" if found[False] else ""
    return ["", f"Settings were searched{others}: `latecomer tune --recipe`."]


def _origins(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """On which machine, when and by which commit, and which cells, if not all."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        day = (cell.get("started") or "")[:10] or "an unknown day"
        key = (day, cell.get("machine") or "an unknown machine", cell.get("commit") or "unknown")
        groups.setdefault(key, []).append(cell)
    sentences = []
    for (day, machine, commit), mine in sorted(groups.items()):
        which = "" if len(groups) == 1 else f"{', '.join(label(cell) for cell in mine)}: "
        sentences.append(f"{which}{machine}, {day}, commit {commit}.")
    return sentences


def _word(value: Any) -> str:
    """A cell of an analysis, whose file has nothing in the place of NaN: the spread of a single seed, say."""
    return f"{value:.4g}" if isinstance(value, float) else NONE if value is None else str(value)


def _analysis(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    lines = figure_claims(found["notes"])
    if len(found["rows"]) > MANY:
        return lines
    body = [[_word(part) for part in row] for row in found["rows"]]
    return [f"**{plain(found['title'])}**", "", *table(found["columns"], body), "", *lines]
