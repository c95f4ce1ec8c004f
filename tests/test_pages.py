"""Pages stay true: what they name is there, their programs run, and what they quote stands in the source."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / "docs" / f"{name}.md" for name in ("tour", "glossary", "data", "faults", "security")),
]
PLACES = [ROOT / "src" / "latecomer", ROOT, ROOT / "src" / "latecomer" / "engines" / "capture", ROOT / "benchmarks"]
BLOCKS = [
    pytest.param(dedent(block), id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S))
]


@cache
def quotable() -> list[str]:
    """What may be quoted, without indentation and empty lines."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    return [bare(path.read_text("utf-8")) for path in files]


def bare(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))
    words = {word for span in spans for word in span.split() if re.fullmatch(r"[\w./-]+(\.py|\.md|/)", word)}
    made = {"checkpoint/", "runs/"}  # by a run
    gone = [word for word in words - made if not any((place / word).exists() for place in PLACES)]
    assert sorted(gone) == []


@pytest.mark.parametrize("block", BLOCKS)
def test_code_in_pages_runs_or_is_quoted(block: str) -> None:
    if re.match(r"(from|import) ", block):
        exec(compile(re.sub(r"\brounds=\d+", "rounds=2", block), "a page", "exec"), {"__name__": "a page"})
    else:
        assert any(bare(block) in text for text in quotable())
