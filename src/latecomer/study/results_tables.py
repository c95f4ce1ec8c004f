"""The tables of the page of results, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

NONE = ""  # in a cell of a table
VERDICTS = ("holds", "does not hold", "cannot be told")
VERDICT = re.compile(rf"(.*): ({'|'.join(VERDICTS)})([^:\n]*)", re.DOTALL)  # what is said of a figure's claim
CLAIM = re.compile(r"(\S+): (.+ > .+)", re.DOTALL)  # of runs: a metric, and which is above which
POINT = 1.0  # as near to a paper's number as counts as repeated


def scores_tables(metrics: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of every metric: a row of the paper's is a row, and each of its columns has ours, the paper's and the
    difference; then seconds."""
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    rows = {cell["row"]: {one["column"]: one for one in cells if one["row"] == cell["row"]} for cell in cells}
    lines = []
    for metric in metrics:
        heading, body = ["row"], {name: [name] for name in rows}
        for column in columns:
            mine = {name: row.get(column, {}) for name, row in rows.items()}
            paper = any(_pair(cell, "paper", metric)[0] is not None for cell in mine.values())
            heading += [column if len(columns) > 1 else "ours", *["paper", "difference"] * paper]
            for name, cell in mine.items():
                ours, theirs = _pair(cell, "scores", metric), _pair(cell, "paper", metric)
                body[name] += [_both(ours), *[_both(theirs), _signed(ours[0], theirs[0])] * paper]
        if len(columns) == 1:
            heading.append("seconds")
            for name, row in rows.items():
                body[name].append(_seconds(row[columns[0]]["seconds"]))
        lines += [f"**{plain(metric)}**", "", *table(heading, list(body.values())), ""]
    if len(columns) > 1:
        spent = [
            [name, *(_seconds(row.get(column, {}).get("seconds")) for column in columns)] for name, row in rows.items()
        ]
        lines += ["**seconds**", "", *table(["row", *columns], spent), ""]
    return lines


def near(metrics: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many numbers are within a point of the paper's, or better, and how many the paper has."""
    every = [(cell, metric) for cell in cells for metric in metrics]
    pairs = [(_pair(cell, "scores", metric)[0], _pair(cell, "paper", metric)[0]) for cell, metric in every]
    known = [(ours, theirs) for ours, theirs in pairs if theirs is not None]
    return sum(ours is not None and ours >= theirs - POINT for ours, theirs in known), len(known)


def compared(told: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """All metrics side by side, with what training took; then what each row is better by than the best simple one."""
    metrics, columns = told["metrics"], any(cell["column"] for cell in cells)
    heading = ["row", *["column"] * columns, *metrics]
    scores, gains = [], []
    for cell in cells:
        names = [cell["row"], *[cell["column"]] * columns]
        scored = [_both(_pair(cell, "scores", metric)) for metric in metrics]
        scores.append([*names, *scored, *_sent(cell), _seconds(cell["seconds"])])
        gains.append([*names, *(cell["gain"].get(metric) or NONE for metric in metrics)])
    simple = told.get("simple", {})
    best = ", ".join(f"{row} ({column})" if column else row for column, row in simple.items()) or "the best simple row"
    costs = ["kB down", "kB up", "seconds"]
    return [*table([*heading, *costs], scores), "", f"**More than {plain(best)}**", "", *table(heading, gains), ""]


def claims_table(claims: Sequence[Mapping[str, str]], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which is claimed to be above which, a line each, and in every metric whether it is so."""
    if not claims:
        return []
    columns = {cell["column"] for cell in cells}
    only = f"@{next(iter(columns))}" if len(columns) == 1 else None  # that it has one column need not be said each time
    several = len({claim["over"] for claim in claims}) > 1
    found: dict[str, dict[str, str]] = {}
    for claim in claims:
        match = CLAIM.fullmatch(claim["claim"])
        metric, pair = match.groups() if match else (NONE, claim["claim"])
        if only and all(side.endswith(only) for side in pair.split(" > ")):
            pair = " > ".join(side.removesuffix(only) for side in pair.split(" > "))
        over = f" (over {claim['over']})" if several and claim["over"] != "clients" else ""
        found.setdefault(pair, {})[metric] = f"{_verdict(claim['verdict'])} {claim['difference']}{over}"
    metrics = list(dict.fromkeys(metric for row in found.values() for metric in row))
    rows = [[pair, *(row.get(metric, NONE) for metric in metrics)] for pair, row in found.items()]
    over = "clients, or over seeds where it says so" if several else plain(claims[0]["over"])
    return [*table(["claim", *metrics], rows), "", f"Intervals are over {over}.", ""]


def figure_claims(notes: Sequence[str]) -> list[str]:
    """What an analysis says of a figure's claims, as a table; the rest of what it says as it stands."""
    said = [split(note) for note in notes]
    rows = [[claim, _verdict(verdict), rest] for claim, verdict, rest in said if verdict]
    lines = [f"- {plain(claim)}" for claim, verdict, _ in said if not verdict]
    return [*table(["claim", "", "numbers"], rows), ""] * bool(rows) + [*lines, ""] * bool(lines)


def split(note: str) -> tuple[str, str, str]:
    """A sentence about a claim in three: the claim, the verdict, the numbers; of any other the last two are empty."""
    match = VERDICT.fullmatch(note)
    return (match[1], match[2], match[3].strip(" (),")) if match else (note, "", "")


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], made: int = 0) -> list[str]:
    """Lines of Markdown. The first cells of rows, so many as were made here, are Markdown already."""
    lines = ["| " + " | ".join(map(_cell, heading)) + " |"]
    lines.append("| " + " | ".join(["---"] * max(made, 1) + ["---:"] * (len(heading) - max(made, 1))) + " |")
    lines += ["| " + " | ".join([*row[:made], *map(_cell, row[made:])]) + " |" for row in rows]
    return lines


def _cell(text: str) -> str:
    return plain(text).replace("|", "\\|")


def plain(text: Any) -> str:
    """On one line, and no HTML and no link, whatever a record says."""
    return " ".join(str(text).split()).replace("<", "&lt;").replace("](", "]\\(").replace("]:", "]\\:")


def _verdict(word: str) -> str:
    """What does not hold is what a reader must not miss."""
    return f"**{word}**" if word == VERDICTS[1] else word


def _pair(cell: Mapping[str, Any], part: str, metric: str) -> tuple[float | None, float | None]:
    value = cell.get(part, {}).get(metric)
    return (value[0], value[1]) if value else (None, None)


def _both(pair: tuple[float | None, float | None]) -> str:
    mean, spread = pair
    if mean is None:
        return NONE
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"


def _signed(ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return NONE
    return f"{ours - theirs:+.1f}".replace("-", "\N{MINUS SIGN}")


def _sent(cell: Mapping[str, Any]) -> list[str]:
    """Kilobytes to and from a client in a round."""
    sent = cell.get("bytes") or {}
    return [f"{sent[way] / 1000:,.1f}" if way in sent else NONE for way in ("down", "up")]


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """As somebody says it."""
    return f"{seconds:,.0f} seconds" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"
