"""The page of results: what records add up to, and what becomes of files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console import Command
from latecomer.errors import RunError
from latecomer.study import results, results_page
from latecomer.study.recipe import Recipe


def cell(row: str, score: float, day: int, **other: Any) -> dict[str, Any]:
    started = f"2026-01-{day:02d}T00:00:00"
    known = {
        "machine": "M",
        "commit": f"c{day}",
        "started": started,
        "seconds": 10 * day,
        "gain": {"unseen.accuracy": None},
    }
    scores = {"scores": {"unseen.accuracy": [score, 1.0]}, "paper": {"unseen.accuracy": [90.0, None]}}
    return {"row": row, "column": "", **known, **scores, **other}


def told(*cells: dict[str, Any], claims: bool = False) -> dict[str, Any]:
    claim = {
        "claim": "unseen.accuracy: a > b",
        "verdict": "holds",
        "difference": "+1.0 [+0.5, +1.5]",
        "over": "clients",
    }
    known = {
        "recipe": "x/table-1",
        "title": "T",
        "paper": "P",
        "about": "",
        "quick": False,
        "metrics": ["unseen.accuracy"],
    }
    return {**known, "cells": list(cells), "claims": [claim] if claims else []}


def test_later_cells_replace_earlier_ones_in_either_order() -> None:
    old = results.Record(told(cell("a", 80, 1), cell("b", 70, 1), claims=True))
    new = results.Record(told(cell("a", 85.5, 2)))
    both = results.merged(old, new)
    assert both == results.merged(new, old)
    assert {one["row"]: one["commit"] for one in both.cells} == {"a": "c2", "b": "c1"}
    assert both.told["claims"] == [], "nobody compared the new a with the old b"
    assert results.merged(old, old).told["claims"] == old.told["claims"]


def test_runs_that_are_summarised_again_are_told_by_the_last_summary() -> None:
    """A cell of the one and a cell of the other would leave no claim about the two."""
    old = results.Record(told(cell("a", 80.1, 1), cell("b", 70.2, 1), claims=True))
    new = results.Record(told(cell("a", 80.05, 1), cell("b", 70.21, 1), claims=True))
    for first, last in ((old, new), (new, old)):
        both = results.merged(first, last)
        assert (both.cells, both.told["claims"]) == (last.cells, last.told["claims"])


def test_a_gain_over_a_simple_row_that_was_measured_again_is_no_more() -> None:
    gain = {"unseen.accuracy": "+15.5 [+14.0, +17.0]"}
    both = told(cell("local", 70, 1), cell("a", 85.5, 2, gain=gain)) | {"simple": {"": "local"}}
    again = told(cell("local", 71, 3)) | {"simple": {"": "local"}}
    other = told(cell("local", 60, 1) | {"column": "x"}) | {"simple": {"x": "local"}}
    assert results.merged(results.Record(both), results.Record(both)).cells[1]["gain"] == gain
    more = results.merged(results.Record(both), results.Record(other))
    assert more.told["simple"] == {"": "local", "x": "local"}
    assert {(one["row"], one["column"]): one["gain"] for one in more.cells}["a", ""] == gain
    for pair in ((both, again), (again, both)):
        merged = results.merged(*map(results.Record, pair))
        assert {one["row"]: one["gain"] for one in merged.cells}["a"] == {"unseen.accuracy": None}


def test_simple_rows_that_were_measured_apart_are_no_baseline() -> None:
    """Validation data chose local among the one's rows; whoever measures fedavg alone makes it nobody's baseline."""
    gain = {"unseen.accuracy": "+15.5 [+14.0, +17.0]"}
    more = {"unseen.accuracy": "+25.5 [+24.0, +27.0]"}
    one = results.Record(told(cell("local", 70, 1), cell("a", 85.5, 1, gain=gain)) | {"simple": {"": "local"}})
    other = results.Record(told(cell("fedavg", 60, 2), cell("b", 85.5, 2, gain=more)) | {"simple": {"": "fedavg"}})
    for pair in ((one, other), (other, one)):
        merged = results.merged(*pair)
        assert "simple" not in merged.told
        assert all(found["gain"] == {"unseen.accuracy": None} for found in merged.cells)
    whole = told(*one.cells, *other.cells) | {"simple": {"": "local"}}
    assert results.merged(other, results.Record(whole)).told["simple"] == {"": "local"}, "it knows both"


def test_a_figure_of_a_run_that_was_measured_again_is_no_more(tmp_path: Path) -> None:
    analysis = {"title": "F", "columns": ["k"], "rows": [[1]], "notes": ["k: a > b: holds (2 and 1)"]}
    (tmp_path / "summary.json").write_text(
        json.dumps(told(cell("a", 80, 1), cell("b", 70, 1)) | {"analysis": analysis})
    )
    (tmp_path / "figure.svg").write_text("<svg/>")
    both, folder = results.read(tmp_path / "summary.json"), tmp_path / "records"
    kept, _ = results.keep([both], folder)
    assert kept[0].figure is not None
    kept, _ = results.keep([results.Record(told(cell("b", 70, 1)))], folder)
    assert kept[0].figure is not None, "all that it is of are as they were"
    assert kept[0].told["analysis"] == analysis | {"asked": "None"}
    more = results.merged(both, results.Record(told(cell("c", 60, 2))))
    assert (more.figure, "analysis" in more.told) == (None, False), "it is not of c"
    kept, _ = results.keep([results.Record(told(cell("a", 60, 2)))], folder)
    assert (kept[0].figure, "analysis" in kept[0].told) == (None, False)
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    part = results.Record(told(cell("a", 60, 2)) | {"analysis": analysis})
    assert "analysis" not in results.merged(both, part).told, "it has not seen b"
    whole = results.Record(told(cell("a", 60, 2), cell("b", 70, 1)) | {"analysis": analysis})
    assert results.merged(both, whole).told["analysis"] == analysis


def test_what_a_recipe_has_no_more_is_not_kept(tmp_path: Path) -> None:
    asked = {cell.row: cell.fingerprint for cell in Recipe.find("pfedhn/table-4").cells(True) if cell.column == "10"}

    def record(*rows: str, when: int) -> results.Record:
        cells = [cell(row, 80, when, column="10", settings=asked.get(row)) for row in rows]
        metrics = {"scores": {"seen.pooled": [80.0, 1.0]}, "paper": {}, "gain": {}}
        said = [f"seen.pooled: {row}@10 > fedavg@10" for row in rows]
        claims = [{"claim": text, "verdict": "holds", "difference": "+1.0", "over": "seeds"} for text in said]
        words = {"recipe": "pfedhn/table-4", "quick": True, "title": f"as of {when}", "about": "", "claims": claims}
        return results.Record(told(*(one | metrics for one in cells)) | words)

    results.keep([record("pfedhn", "fedavg", "gone", when=1)], tmp_path)
    (now,), _ = results.keep([record("pfedme", when=2)], tmp_path)
    assert sorted(one["row"] for one in now.cells) == ["fedavg", "pfedhn", "pfedme"]
    assert [claim["claim"] for claim in now.told["claims"]] == ["seen.pooled: pfedhn@10 > fedavg@10"]
    assert now.told["title"] == Recipe.find("pfedhn/table-4").title
    assert sorted(now.told["absent"]) == ["fedavg@50", "pfedhn@50", "pfedme@50"]
    assert "**Not there: fedavg@50, pfedme@50, pfedhn@50.**" in results_page.page([now], Path("results.md"))


def test_what_was_measured_with_other_settings_is_not_kept(tmp_path: Path) -> None:
    """One table is of one recipe: who changes its rounds does not set old rows beside new ones."""
    asked = {cell.row: cell.fingerprint for cell in Recipe.find("pfedhn/table-4").cells(True) if cell.column == "10"}

    def record(when: int, **rows: str | None) -> results.Record:
        gain = {"gain": {"seen.pooled": "+1.0"}, "scores": {"seen.pooled": [80.0, 1.0]}, "paper": {}}
        cells = [cell(row, 80, when, column="10") | gain | ({"settings": s} if s else {}) for row, s in rows.items()]
        claim = {"claim": "seen.pooled: pfedhn@10 > fedavg@10", "verdict": "holds", "difference": "+1", "over": "seeds"}
        words = {"recipe": "pfedhn/table-4", "quick": True, "claims": [claim], "leaders": ["pfedhn"]}
        words |= {"simple": {"10": "fedavg"}}
        return results.Record(told(*cells) | words)

    kept, notes = results.keep([record(1, pfedhn=asked["pfedhn"], fedavg=asked["fedavg"])], tmp_path / "a")
    assert (kept[0].told["leaders"], notes) == (["pfedhn"], [])
    assert kept[0].cells[0]["gain"] == {"seen.pooled": "+1.0"}
    old = record(1, pfedhn=asked["pfedhn"], fedavg="another", pfedme=None)
    results.keep([old], tmp_path / "b")
    (tmp_path / "b" / f"{old.name}.json").write_text(results.laid_out(old.told))
    for (now, *_), said, rows in (
        (*results.keep([old], tmp_path / "c"), ["pfedhn"]),
        (*results.keep([record(2, pfedme=asked["pfedme"])], tmp_path / "b"), ["pfedhn", "pfedme"]),
    ):
        assert sorted(one["row"] for one in now.cells) == rows
        assert said == [
            "pfedhn-table-4-quick: left out, as measured with other settings than the recipe has now, or nobody knows "
            "with which: fedavg@10, pfedme@10."
        ], "of the old pfedme nobody knows with which"
        assert (now.told["claims"], now.told["leaders"], "simple" in now.told) == ([], [], False)
        assert all(one["gain"] == {"seen.pooled": None} for one in now.cells)
    gone = record(1, fedavg="another")
    (tmp_path / "c" / f"{gone.name}.json").write_text(results.laid_out(gone.told))
    assert results.keep([gone], tmp_path / "c")[0] == []
    assert [*(tmp_path / "c").iterdir()] == [], "nothing is left of it"


def test_a_figure_and_papers_numbers_are_as_the_recipe_has_them_now(tmp_path: Path) -> None:
    recipe = Recipe.find("knnper/figure-1")
    table = {"title": "F", "columns": [], "rows": [], "notes": ["pooled: k=1 > k=0: holds (2.0 and 1.0)"]}
    cells = [
        cell(one.row, 80, 1, column=one.column, settings=one.fingerprint)
        | {"gain": {}, "scores": {}, "paper": {"unseen.pooled": [12.3, None]}}
        for one in recipe.cells()
    ]
    for asked, there in ((recipe.analysis_asked(quick=False), True), ("another", False), (None, False)):
        old = told(*cells) | {"recipe": recipe.name, "analysis": table | {"asked": asked}}
        (now,), _ = results.keep([results.Record(old)], tmp_path / str(asked))
        assert ("analysis" in now.told) is there
        assert all(one["paper"]["unseen.pooled"] == [None, None] for one in now.cells), "it has none, but a picture"


def test_whose_settings_were_searched_is_said() -> None:
    for flags, said in (
        ((True, True), "Settings were searched: `latecomer tune --recipe`."),
        ((True, False), "Settings were searched, those of b not: `latecomer tune --recipe`."),
        ((False, False), "Settings were not searched."),
    ):
        pair = [cell(row, 80, 1, searched=flag) for row, flag in zip("ab", flags, strict=True)]
        assert said in results_page.page([results.Record(told(*pair))], Path("results.md"))
    nobody = results_page.page([results.Record(told(cell("a", 80, 1)))], Path("results.md"))
    assert "ere searched" not in nobody, "there is no search"


def test_the_page_by_hand() -> None:
    text = results_page.page(
        [results.Record(told(cell("a", 85.5, 2), cell("b", 70, 1), claims=True))], Path("results.md")
    )
    assert "| a | 85.5 ± 1.0 | 90.0 | \N{MINUS SIGN}4.5 | 20 |" in text
    assert "| b | 70.0 ± 1.0 | 90.0 | \N{MINUS SIGN}20.0 | 10 |" in text
    assert "- b: M, 2026-01-01, commit c1." in text
    assert "| claim | unseen.accuracy |\n| --- | ---: |\n| a > b | holds +1.0 [+0.5, +1.5] |\n" in text
    assert "Intervals are over clients." in text
    assert "| P | 1 | 0 of 2 | 0 |" in text.replace("| T |", "| P |"), "a title without a paper's name is its own"
    assert "    latecomer reproduce x/table-1\n" in text
    assert "All 2 runs together took 30 seconds." in text


def test_of_a_quick_version_the_page_has_what_is_claimed_and_no_scores() -> None:
    quick = told(cell("a", 85.5, 2), cell("b", 70, 1), claims=True) | {"quick": True}
    full = told(cell("a", 85.5, 2))
    text = results_page.page([results.Record(quick), results.Record(full)], Path("results.md"))
    assert "| [T](#x-table-1) | `x/table-1` | 1 | 20 | 0 of 1 |  |  |  |" in text
    assert "| [T](#x-table-1-quick) | `x/table-1` | 2 | 30 | 1 | 0 | 0 |" in text
    heading = '### <a id="x-table-1-quick"></a>x/table-1 --quick'
    assert text.index(heading) > text.index("## Quick versions") > text.index("| a | 85.5")
    assert "| a > b | holds +1.0 [+0.5, +1.5] |" in text
    assert "70.0" not in text


def test_a_number_that_an_analysis_has_not_is_an_empty_cell() -> None:
    analysis = {"title": "A", "columns": ["k", "accuracy", "std"], "rows": [[1, 0.123456, None]], "notes": []}
    text = results_page.page([results.Record(told(cell("a", 80, 1)) | {"analysis": analysis})], Path("results.md"))
    assert "| 1 | 0.1235 |  |\n" in text


def test_columns_of_a_paper_are_columns() -> None:
    near = {"paper": {"unseen.accuracy": [86.4, 2.0]}}
    cells = [cell(row, 85.5, 2, column=column) | near for row in "ab" for column in ("10", "50")]
    record = results.Record(told(*cells[:3]))
    text = results_page.page([record], Path("results.md"))
    assert "| row | 10 | paper | difference | 50 | paper | difference |\n" in text
    ours = f"85.5 ± 1.0 | 86.4 ± 2.0 | {chr(0x2212)}0.9"
    assert f"| a | {ours} | {ours} |\n| b | {ours} |  |  |  |\n" in text
    assert "| row | 10 | 50 |\n| --- | ---: | ---: |\n| a | 20 | 20 |\n| b | 20 |  |\n" in text
    assert "| 3 of 3 |" in text


def test_claims_of_figures_are_a_table_and_recipes_that_say_the_same_count_once() -> None:
    notes = ["k: a=1 > a=0: holds (9.0 and 8.0)", "k: a=2 > a=1: does not hold (7.0 and 9.0)", "Else: a note."]
    analysis = {"title": "", "columns": ["a"], "rows": [], "notes": notes}
    one = told(cell("a", 80, 1)) | {"quick": True, "analysis": analysis}
    text = results_page.page([results.Record(one | {"recipe": f"x/figure-{k}"}) for k in (10, 2)], Path("results.md"))
    assert "| T | 0 |  | 2 | 1 | 1 | 0 |" in text
    assert "| [T](#x-figure-2-quick) | `x/figure-2`<br>`x/figure-10` | 2 | 20 | 1 | 1 | 0 |" in text
    assert "| k: a=1 > a=0 | holds | 9.0 and 8.0 |\n| k: a=2 > a=1 | **does not hold** | 7.0 and 9.0 |\n" in text
    assert "- Else: a note." in text
    assert text.count("###") == 1


def test_who_leads_is_said_of_runs_that_were_compared() -> None:
    old = results.Record(told(cell("a", 80, 1), cell("b", 70, 1)) | {"leaders": ["unseen.accuracy: a has most."]})
    for quick in (False, True):
        text = results_page.page([results.Record(old.told | {"quick": quick})], Path("results.md"))
        assert "- unseen.accuracy: a has most.\n" in text
    again = results.Record(told(cell("a", 60, 2), cell("b", 70, 2)) | {"leaders": ["unseen.accuracy: b has most."]})
    assert results.merged(old, again).told["leaders"] == ["unseen.accuracy: b has most."]
    part = results.Record(told(cell("a", 60, 2)) | {"leaders": ["unseen.accuracy: a has most."]})
    assert results.merged(old, part).told["leaders"] == [], "nobody compared the new a with the old b"


def test_a_comparison_has_bytes_and_gains_side_by_side() -> None:
    simple = cell("local", 70, 1, bytes={"down": 0, "up": 0})
    other = cell("a", 85.5, 2, bytes={"down": 30000, "up": 1234567}, gain={"unseen.accuracy": "+15.5 [+14.0, +17.0]"})
    page = results_page.page([results.Record({**told(simple, other), "simple": {"": "local"}})], Path("results.md"))
    assert "| a | 85.5 ± 1.0 | 30.0 | 1,234.6 | 20 |" in page
    assert "**More than local**" in page
    assert "| a | +15.5 [+14.0, +17.0] |" in page
    assert "| local |  |" in page


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"recipe": NaN}', '{"recipe": "x"}', json.dumps(told({"row": "a"}))]
)
def test_what_is_no_summary_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"x\.json is (no|not) "):
        results.read(path)


def test_the_command_records_and_writes_the_rest(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs/good").mkdir(parents=True)
    (tmp_path / "runs/bad").mkdir()
    good = [cell("a", 80, 1, searched=False)]
    (tmp_path / "runs/good/summary.json").write_text(json.dumps(told(*good)))
    (tmp_path / "runs/bad/summary.json").write_text("{")
    page, folder = tmp_path / "results.md", tmp_path / "kept"
    ended = command("results", tmp_path / "runs", "--record", folder, "-o", page)
    assert ended.code == 2
    assert "bad/summary.json is not JSON" in ended.err
    record = (folder / "x-table-1.json").read_text()
    assert json.loads(record)["cells"] == good
    assert [line for line in record.splitlines() if '"row": "a"' in line and line.endswith("}")], "a cell is a line"
    first = page.read_bytes()
    assert command("results", folder, "-o", page).code == 0
    assert page.read_bytes() == first, "the same records, the same page"
