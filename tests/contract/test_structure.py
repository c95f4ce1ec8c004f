"""What every method file and its page look like."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

import toys
from latecomer import learn, method, methods
from latecomer.clients import Clients, Exchange
from latecomer.data import federate, load
from latecomer.engines import make
from latecomer.nets.models import MLP
from latecomer.runs.experiment import make_task
from latecomer.runs.settings import Settings
from latecomer.settings import settings_of
from latecomer.steps import MARK, phases_of, steps

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^bytes per client and round on digits with mlp: down ([\d,]+) up ([\d,]+)$", re.MULTILINE)


def source(name: str) -> str:
    return (ROOT / "src" / "latecomer" / "methods" / f"{name}.py").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")


def test_a_method_fits_into_150_lines(name: str) -> None:
    assert len(source(name).splitlines()) <= 150


def test_a_method_imports_no_other(name: str) -> None:
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, ast.Import):
            assert not any("methods" in alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            siblings = {node.module} if node.module else {alias.name for alias in node.names}
            assert node.level != 1 or not siblings & methods.names().keys()
            assert "methods" not in (node.module or "").split(".")


def test_a_method_shows_its_own_algorithm(name: str) -> None:
    kind = methods.get(name)
    for part in ("init", "round", "personalise", "model"):
        assert vars(kind)[part].__module__ == kind.__module__, f"{part} is shown, not inherited"
    for step in set(steps(kind)) - {"score"}:
        assert phases_of(kind, step) == getattr(vars(kind)[step], MARK), f"{step} is declared in the method's own class"


def test_a_method_inherits_settings_alone(name: str) -> None:
    line = methods.get(name).__mro__[1:]
    mixins = line[: line.index(method.Method)]
    assert [kind.__module__ for kind in mixins] == [method.__name__] * len(mixins)
    for kind in mixins:
        functions = {key for key, part in vars(kind).items() if inspect.isfunction(part)}
        written = {key for key in functions if not key.startswith("__")}
        assert written <= {"build"}, f"{kind.__name__} brings settings, and at most what is made of them"


def test_what_steps_make_of_numbers_is_not_kept(name: str) -> None:
    """So that a copy of a method with another number needs no building."""
    kept = vars(toys.method(name))
    assert not [
        key for key, part in kept.items() if isinstance(part, learn.SGD) and key != "optimiser"
    ]  # the server's may be kept


def test_a_method_says_in_which_room_its_code_runs(name: str) -> None:
    text = source(name)
    assert 0 < text.index("    # on the client\n") < text.index("    # on the server\n")
    assert methods.names()[name].endswith("."), "the first line of the file is a sentence: `latecomer list` shows it"


def test_a_method_has_a_page(name: str) -> None:
    text = page(name)
    assert text.startswith("# ")
    assert "| exchange | down | up |" in text
    assert "## Deviations" in text
    for step in set(steps(methods.get(name))) - {"score"}:
        assert f"`{step}`" in text, "the page says what every step sends"


def test_settings_of_method_and_run_do_not_collide(name: str) -> None:
    assert not settings_of(methods.get(name)).keys() & settings_of(Settings).keys()


def test_every_setting_has_a_meaning_and_a_default(name: str) -> None:
    for key, f in settings_of(methods.get(name)).items():
        assert f.metadata["meaning"].strip(), key
        assert f.default is not None, key


@pytest.fixture(scope="module")
def digits() -> tuple[object, object]:
    federation = federate(load("digits"), partition="classes", clients=20, unseen=0.2, seed=0)
    assert (len(federation), federation.members) == (20, 16)
    return federation, make_task(federation, MLP)


def test_the_page_counts_bytes_as_the_ledger_does(name: str, digits: tuple[object, object]) -> None:
    federation, task = digits
    method = methods.get(name)(task=task, clients=20, members=16)  # type: ignore[arg-type]
    ledger: list[Exchange] = []
    state = method.init(torch.Generator().manual_seed(0))
    engine = make("vector", method, [federation], "cpu")  # type: ignore[list-item]
    method.round(state, Clients(engine, torch.arange(2), 0, ledger=ledger))
    lines = [exchange.line() for exchange in ledger]
    found = LINE.search(page(name))
    assert found, "the page has no line about bytes"
    down, up = (int(number.replace(",", "")) for number in found.groups())
    assert (2 * down, 2 * up) == (sum(line["down"] for line in lines), sum(line["up"] for line in lines))
