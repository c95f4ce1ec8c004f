"""One file of HTML that a browser shows without asking anybody for anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ..errors import RunError, need
from ..runs.files import Replacing
from .figures import drawn
from .sections import Section, gather
from .tables import GROUPS, Best, Table, costs, scores, settings

PAGE = Path(__file__).parent / "page"
FIGURES = {
    "differences": "Differences to the baseline",
    "curves": "Learning curves",
    "spread": "Distribution over the clients",
    "bytes": "Accuracy against bytes",
    "seconds": "Accuracy against seconds",
    "map": "Map of the clients",
}

LONG = 100  # characters of a heading
TURNS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
"""Characters that turn the direction of what follows them, beyond the name that they stand in."""
ALIKE, ALONE = "The runs differ in no setting.", "There is one run, so nothing differs."


def report(paths: Sequence[Path], output: Path, baseline: Path | None = None, *, gate: bool = False) -> list[str]:
    """Write the page about these runs; returns sentences about what is missing or kept apart.

    With `gate`, maps show whom the gates of runs with validators cover, for which their data are needed.
    """
    plotly: str = need("plotly.offline", "report").get_plotlyjs()
    if output.is_dir():
        raise RunError(f"{output} is a folder; say which file to write: -o {output / 'report.html'}")
    sections, notes = gather(paths, baseline)
    page, missing = compose(sections, notes, plotly, gate)
    try:
        with Replacing(output) as target:
            target.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror}.") from error
    return [*notes, *missing]


def compose(
    sections: Sequence[Section], notes: Sequence[str], plotly: str, gate: bool = False
) -> tuple[str, list[str]]:
    """The page, and why maps or verdicts are missing from it."""
    figures, missing, parts = [], [], []
    for place, section in enumerate(sections):
        data, lacking = drawn(section, gate)
        figures.append(data)
        missing += lacking
        parts.append(part(section, place, lacking))
    runs = [run for section in sections for run in section.runs]
    names = [name for section in sections for name in section.names]
    differing, shared = settings(runs, names)
    template = Template((PAGE / "report.html").read_text(encoding="utf-8"))
    words = {
        "title": escape(heading(names)),
        "style": (PAGE / "style.css").read_text(encoding="utf-8"),
        "notes": "".join(f'<p class="note">{escape(note)}</p>' for note in notes),
        "parts": "".join(parts),
        "settings": "".join(map(table, differing)) or f"<p>{ALIKE if len(runs) > 1 else ALONE}</p>",
        "shared": table(shared),
        "data": embedded(figures),
        "figures": (PAGE / "figures.js").read_text(encoding="utf-8"),
        "script": (PAGE / "report.js").read_text(encoding="utf-8"),
    }
    return template.substitute({key: text.translate(TURNS) for key, text in words.items()}, plotly=plotly), missing


def heading(names: Sequence[str]) -> str:
    """What a page of these runs is called."""
    whole = ", ".join(names)
    if len(whole) <= LONG:
        return whole
    return f"{len(names)} runs" if len(names) > 1 else f"{whole[:LONG]}…"


def part(section: Section, place: int, notes: Sequence[str]) -> str:
    """A section: its tables, what to choose, and places for its figures, which the script fills."""
    groups = [group for group in GROUPS if any(run.scores(group) for run in section.runs)]
    start = "unseen" if "unseen" in groups else ""
    kept = [k for k, run in enumerate(section.runs) if (run.path / "descriptors" / "selected.safetensors").is_file()]
    described = kept[0] if kept else 0
    controls = [
        choice("group", "Scores of", {group: GROUPS[group].lower() for group in groups}, start),
        choice("among", "counted", {"accuracy": "among all classes", "own_classes": "among own classes"}),
        choice("against", "Curves against", {"rounds": "rounds", "seconds": "seconds", "megabytes": "megabytes"}),
        choice("run", "Map of", {str(k): name for k, name in enumerate(section.names)}, str(described)),
    ]
    drawings = "".join(
        f'<figure class="{key}"><h4>{title}</h4><div class="plot" tabindex="0" role="application" '
        f'aria-roledescription="figure" aria-label="{title}" aria-describedby="{key}-{place}"></div>'
        f'<figcaption id="{key}-{place}"></figcaption><details><summary>{title} as a table</summary>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{title}, table"></div></details></figure>'
        for key, title in FIGURES.items()
    )
    return (
        f'<section class="part" data-part="{place}" aria-labelledby="part-{place}">'
        f'<h2 id="part-{place}">{escape(section.title)}</h2>'
        f"<h3>Scores</h3>{table(scores(section))}<h3>Costs</h3>{table(costs(section))}<h3>Figures</h3>"
        f"{''.join(f'<p class=note>{escape(note)}</p>' for note in notes)}"
        f'<div class="controls" role="group" aria-label="What the figures show">{"".join(controls)}</div>'
        '<p class="hint">With a figure in focus, arrow keys go from point to point and Escape leaves; '
        "a run's name shows or hides it.</p>"
        '<div class="legend" role="group" aria-label="Runs that the figures show"></div>'
        f'<div class="figures">{drawings}</div></section>'
    )


def choice(name: str, label: str, options: dict[str, str], start: str = "") -> str:
    told = "".join(
        f'<option value="{escape(value)}"{" selected" * (value == start)}>{escape(text)}</option>'
        for value, text in options.items()
    )
    return f'<label>{label} <select name="{name}">{told}</select></label>'


def table(told: Table) -> str:
    """HTML, with a caption, and headings that say what they head."""
    spans = "".join(
        f'<th scope="colgroup" colspan="{width}">{escape(text)}</th>' if text else f'<td colspan="{width}"></td>'
        for text, width in told.spans
    )
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in told.columns)
    bodies = []
    for heading, rows in told.bodies:
        lines = [f'<tr><th scope="row">{escape(row[0])}</th>{_cells(row[1:])}</tr>' for row in rows]
        if heading:
            lines.insert(0, f'<tr><th scope="rowgroup" colspan="{len(told.columns)}">{escape(heading)}</th></tr>')
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    head = f"<thead>{f'<tr>{spans}</tr>' if spans else ''}<tr>{heads}</tr></thead>"
    caption = f"<caption>{escape(told.caption)}</caption>"
    label = escape(told.caption.split(":")[0])
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}">'
        f"<table>{caption}{head}{''.join(bodies)}</table></div>"
    )


def _cells(row: Sequence[str]) -> str:
    return "".join(f"<td{' class=best' * isinstance(cell, Best)}>{escape(cell)}</td>" for cell in row)


def embedded(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever runs are called."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
