"""The report: its numbers worked out by hand, what it makes of bad folders, and the page in Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import browser
from browser import Browser, until
from latecomer.cli import main
from latecomer.errors import DataError, MissingExtra, UnknownName
from latecomer.report import figures, write
from latecomer.report.figures import drawn, own_traits
from latecomer.report.sections import gather
from latecomer.report.tables import Best, costs, scores, settings
from latecomer.study.finished import Finished

COLUMNS = "seed,client,accuracy,own_classes,name,seen,role,labelled,rotation,train_examples,test_examples,classes"


def fabricate(
    path: Path, shift: float = 0, *, clients: int = 4, name: str = "", splits: str = "a", method: str = "fedavg"
) -> Path:
    """A finished run: the last half of its clients comes late, and the last of all is of a kind of its own."""
    path.mkdir(parents=True)
    lines = [COLUMNS]
    for k in range(clients):
        late, turned = 2 * k >= clients, 90 if k == clients - 1 else 0
        score = round(10 * (k % 5) + shift * (1 + k % 2 / 15), 3)  # of every other client a little more
        facts = f"{not late},{'latecomer' if late else 'member'},True,{turned},20,10,{k % 2}:12 {2 + k % 2}:8"
        lines.append(f"0,{k},{score:g},{score + 40:g},{name},{facts}")
    (path / "clients.csv").write_text("\n".join(lines) + "\n")
    (path / "settings.toml").write_text(
        f"[run]\nmethod = '{method}'\nname = '{path.name}'\nlr_schedule = 'constant'\nsplit = '{splits}'\n"
        f"[method]\nlr = {0.1 + shift}\n"
        f"[about]\nsplits = ['{splits}']\n"
    )
    sent = {"bytes": {"down": 3_000_000, "up": 1_000_000}, "bytes_per_client_round": {"down": 3000, "up": 1000}}
    told = {"method": method, "data": "digits", "rounds": 20, "seeds": [0], "selected_rounds": [20], "seconds": 2.5}
    (path / "result.json").write_text(json.dumps(told | sent))
    groups = {"seen": {"accuracy": 5.0 + shift, "own_classes": 45.0}, "unseen": {"accuracy": 6.0, "own_classes": 7.0}}
    each = [{"seed": 0, **groups}]
    metrics = [{"round": at, "seconds": at / 8, "runs": each} for at in (10, 20)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return path


def test_the_tables_by_hand(tmp_path: Path) -> None:
    runs = [fabricate(tmp_path / "one"), fabricate(tmp_path / "two", 3)]
    (section,), notes = gather(runs, None)
    assert notes == []
    assert section.title == "digits: 2 members, 2 latecomers; seed 0"
    told = dict(scores(section).bodies)
    # Members score 0 and 10, latecomers 20 and 30; the other run 3 and 3.2 points more: 3.1, and 12.706 * 0.1 aside.
    same = "+3.1 [+1.8, +4.4] *"
    assert told["Members"] == [
        ["one", "5.0", "0.0", "baseline", "45.0", "40.0", "baseline"],
        ["two", "8.1", "3.0", same, "48.1", "43.0", same],
    ]
    assert told["Latecomers"][1] == ["two", "28.1", "23.0", same, "68.1", "63.0", same]
    assert told["Latecomers whose kind no member has"][1] == ["two", "33.2", "33.2", "+3.2", "73.2", "73.2", "+3.2"]
    assert costs(section).bodies[0][1][0] == ["one", "fedavg", "20", "20", "3.0", "1.0", "4.0", "2.5"]
    (differing,), shared = settings(section.runs, section.names)
    assert differing.bodies == [("Method", [["lr", "0.1", "3.1"]])]
    assert ("Run", [["method", "fedavg"], ["lr_schedule", "constant"], ["split", "a"]]) in shared.bodies
    bold = [cell for _, rows in scores(section).bodies for row in rows for cell in row if isinstance(cell, Best)]
    assert bold == ["8.1", "48.1", "28.1", "68.1", "33.2", "73.2"]


def test_settings_that_few_runs_have_are_a_line_each(tmp_path: Path) -> None:
    one, two = (Finished.read(fabricate(tmp_path / name)) for name in ("one", "two"))
    two.own.update(k=3, blends=[0, 1])
    (alone,), shared = settings([one, two], ["one", "two"])
    assert alone.bodies == [("", [["two", "k = 3; blends = 0, 1"]])]
    assert ("Method", [["lr", "0.1"]]) in shared.bodies
    assert settings([two], ["two"])[0] == [], "of one run nothing is said to be its own"


def test_one_run_alone_and_a_client_in_lines(tmp_path: Path) -> None:
    (section,), _ = gather([fabricate(tmp_path / "one", clients=6)], None)
    assert section.title == "digits: 3 members, 3 latecomers; seed 0"
    assert dict(scores(section).bodies)["Members"] == [["one", "10.0", "0.0", "50.0", "40.0"]]
    data, _ = drawn(section)
    # Latecomers 3 and 4 have the classes of a member, and 5 is turned.
    assert data["map"]["marks"] == [0, 0, 0, 1, 1, 2]
    assert data["map"]["clients"][5] == "client 5\nrotation 90\nexamples: 20 training, 10 test\nclasses: 1 (12), 3 (8)"
    place = data["map"]["places"][0]
    assert "no descriptors" in place["source"]
    assert place["own"] is None
    assert (
        own_traits({"client": 1, "rotation": 0, "val_examples": 3, "lambda": 0.5, "sigma": float("nan")})
        == "lambda 0.5"
    )


def test_a_mean_of_fewer_clients_says_so_and_is_not_the_best(tmp_path: Path) -> None:
    runs = [fabricate(tmp_path / "one"), fabricate(tmp_path / "two", 3)]
    lines = (runs[1] / "clients.csv").read_text().replace("0,0,3,43,", "0,0,nan,,")
    (runs[1] / "clients.csv").write_text(lines)
    (section,), _ = gather(runs, None)
    one, two = dict(scores(section).bodies)["Members"]
    assert (one[1], two[1], two[3]) == ("5.0", "13.2 of 1", "+3.2")
    assert isinstance(one[1], Best)
    assert not isinstance(two[1], Best)


def test_differences_by_hand(tmp_path: Path) -> None:
    runs = [fabricate(tmp_path / "one"), fabricate(tmp_path / "two", 3)]
    (section,), _ = gather(runs, None)
    told = [run["differences"] for run in drawn(section)[0]["runs"]]
    assert told[1]["seen"]["accuracy"] == [3.1, 1.829, 4.371, "2 clients"]
    assert told[1]["unlike"]["accuracy"] == [3.2, None, None, "1 client"]


def test_whom_a_gate_covers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (section,), _ = gather([fabricate(tmp_path / "one"), fabricate(tmp_path / "two", 3)], None)

    def verdicts(run: Finished) -> dict[int, bool]:
        if run.path.name == "two":
            raise DataError("no validators.")
        return {2: False, 3: True}

    monkeypatch.setattr(figures, "judged", verdicts)
    data, notes = drawn(section, gate=True)
    assert data["map"]["marks"] == [0, 0, 1, 2]  # by kind
    assert [place.get("judged") for place in data["map"]["places"]] == [[0, 0, 2, 1], None]
    assert notes == ["two has no gate, so its map shows kinds: no validators."]


def test_a_distribution_is_of_scores_that_clients_have(tmp_path: Path) -> None:
    run = Finished.read(fabricate(tmp_path / "run", clients=24))  # twelve members: three of 0 and 10, two of 20 to 40
    found = figures.quantiles(run, "seen", "accuracy")
    assert {*found} == {0, 10, 20, 30, 40}
    assert (found[0], found[25], found[26], found[50], found[51], found[100]) == (0, 0, 10, 10, 20, 40)
    assert run.measure("seen.bottom_decile") == [found[10]]


def test_a_plane_has_no_direction_that_is_rounding() -> None:
    line = np.outer(np.linspace(0, 1, 7), [0.1, 0.2, 0.3])
    plane, explained = figures.pca(line)
    assert not plane[:, 1].any()
    assert explained == pytest.approx(1)
    assert not figures.pca(np.ones((3, 2)))[0].any()


def test_another_baseline(tmp_path: Path) -> None:
    runs = [fabricate(tmp_path / "one"), fabricate(tmp_path / "two", 3)]
    (section,), _ = gather(runs, runs[1])
    assert dict(scores(section).bodies)["Members"][0][3] == "\N{MINUS SIGN}3.1 [\N{MINUS SIGN}4.4, \N{MINUS SIGN}1.8] *"
    with pytest.raises(UnknownName, match="run for a baseline"):
        gather(runs[:1], runs[1])


def test_other_splits_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [fabricate(tmp_path / "one"), fabricate(tmp_path / "two", 3, splits="b")]
    sections, notes = gather(runs, None)
    assert [section.names for section in sections] == [["one"], ["two"]]
    assert "kept apart: one; two. They differ in: split." in notes[0]
    page = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "-o", str(page)]) == 0
    assert "kept apart" in capsys.readouterr().err
    assert "kept apart" in page.read_text()


def test_what_runs_are_called_stays_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = fabricate(tmp_path / "\u202e<script>alert(2)<", name=f"{evil}</script><script>alert(3)</script>", method=evil)
    sections, notes = gather([run], None)
    page, _ = write.compose(sections, notes, "")
    assert "<img" not in page
    assert "\u202e" not in page
    assert "\\u202e" not in page
    assert "<script>alert" not in page
    assert page.count("</script>") == 4


def test_bad_runs_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, open_ended = fabricate(tmp_path / "good"), fabricate(tmp_path / "unfinished")
    (open_ended / "result.json").unlink()
    damaged = fabricate(tmp_path / "damaged")
    (damaged / "metrics.jsonl").write_text('{"round": 1}\n')
    empty = fabricate(tmp_path / "empty")
    (empty / "clients.csv").write_text(COLUMNS + "\n")
    page = tmp_path / "page.html"
    assert main(["report", str(good), str(open_ended), str(damaged), str(empty), "-o", str(page)]) == 0
    told = capsys.readouterr().err
    assert "clients.csv has no client of seed 0" in told
    assert "not finished" in told
    assert "line 1 of metrics.jsonl" in told
    assert "not finished" in page.read_text()
    assert main(["report", str(damaged), "-o", str(tmp_path / "none.html")]) == 2
    assert not (tmp_path / "none.html").exists()


def test_bad_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = fabricate(tmp_path / "first")
    for words, says in (
        ([str(tmp_path / "frist")], "did you mean"),
        ([], "Say which runs"),
        ([str(run), "--outptu", "x"], "--outptu"),
        ([str(run), "-o", str(tmp_path / "no" / "page.html")], "cannot be written: No such file"),
        ([str(run), "-o", str(tmp_path)], "is a folder"),
    ):
        assert main(["report", *words]) == 2
        told = capsys.readouterr().err
        assert says.removeprefix("--") in told
        assert told.count("\n") == 1

    def lacking(module: str, extra: str) -> None:
        raise MissingExtra(f"pip install 'latecomer[{extra}]'")

    monkeypatch.setattr(write, "need", lacking)
    assert main(["report", str(run)]) == 2
    assert "latecomer[report]" in capsys.readouterr().err


def test_six_runs_of_a_thousand_clients_are_small(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    runs = [fabricate(tmp_path / f"run-{k}", k, clients=1000) for k in range(6)]
    write.report(runs, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 10e6


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if lacking := browser.missing():
        pytest.skip(f"The report is not tried in a browser; missing: {lacking}.")
    opened = Browser(tmp_path_factory.mktemp("browser"), "--window-size=1200,900")
    yield opened
    opened.close()


@pytest.fixture
def page(window: Browser, tmp_path: Path) -> Path:
    """Two runs of 40 clients, as the browser shows them."""
    pytest.importorskip("plotly")
    runs = [fabricate(tmp_path / name, k, clients=40, name="<b>Ann</b>") for k, name in enumerate(("one", "two"))]
    path = tmp_path / "page.html"
    write.report(runs, path)
    window.requests(), window.complaints()
    window.open(f"file://{path}")
    until(lambda: window.script("return document.querySelectorAll('.plot .main-svg').length >= 6"), "the figures")
    return path


def test_a_mouse_over_a_client_shows_it_and_nothing_is_fetched(window: Browser, page: Path) -> None:
    assert window.text(".curves figcaption").startswith("Latecomers, among all classes")
    assert "20 \N{MULTIPLICATION SIGN} member" in window.text(".map figcaption")
    place = window.script(
        "const plot = document.querySelector('.map .plot'); plot.scrollIntoView({ block: 'center' });"
        "const box = plot.querySelectorAll('.points path')[0].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2];"
    )
    window.point(*place)
    shown = until(lambda: window.script("return document.querySelector('.map .hoverlayer').textContent"), "a hover")
    assert "(<b>Ann</b>)" in shown
    assert "member" in shown
    assert "score" in shown
    assert window.complaints() == []
    assert {address for _, address, _ in window.requests()} == {f"file://{page}"}


def test_the_page_by_keyboard(window: Browser, page: Path) -> None:
    order = []
    for _ in range(60):
        window.press("Tab")
        order.append(window.script("return document.activeElement.closest('figure')?.className ?? ''"))
        if order[-1] == "map":
            break
    reached = [*dict.fromkeys(filter(None, order))]
    assert reached == ["differences", "curves", "spread", "bytes", "seconds", "map"]
    assert window.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.press("ArrowRight")
    said = window.script("return document.getElementById('said').textContent")
    assert said.startswith("client 0 (<b>Ann</b>), member, rotation 0")
    assert "score 0.0 %" in said
    window.press("ArrowDown")
    assert "latecomer, covered" in window.script("return document.getElementById('said').textContent")
    window.press("Tab")
    window.press("Enter")
    rows = "return document.querySelectorAll('.map tbody tr').length"
    until(lambda: window.script(rows) == 40, "a table of the clients")
    label = window.script("return document.querySelector('.differences .plot').getAttribute('aria-label')")
    assert re.search(r"two: \+1\.0 points, 95 % interval \+1\.0 to \+1\.[01], over 20 clients", label)


def test_light_and_dark(window: Browser, page: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('.curves .xtick text').style.fill"
    seen = []
    for scheme in ("light", "dark"):
        window.prefer(scheme)
        pressed = f"return document.getElementById('theme').ariaPressed === '{str(scheme == 'dark').lower()}'"
        until(lambda pressed=pressed: window.script(pressed), scheme)
        seen.append((window.script(ground), window.script(ink)))
    window.click("#theme")
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]
    assert (window.script(ground), window.script(ink)) == seen[0]
    assert window.complaints() == []
