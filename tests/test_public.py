"""The public door, and the examples that go through it."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import latecomer

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_all_is_what_is_visible() -> None:
    assert sorted(latecomer.__all__) == sorted({*latecomer._WHERE, "__version__"})
    assert dir(latecomer) == sorted(latecomer.__all__)
    for name in latecomer.__all__:
        assert getattr(latecomer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = latecomer.nonsense


def public() -> Iterator[tuple[str, Any]]:
    """Every public class, function and module, and every public method of the classes."""
    found = {name: getattr(latecomer, name) for name in latecomer.__all__}
    beside = runpy.run_path(str(ROOT / "docs" / "reference.py"))["BESIDE"]
    found |= {name: importlib.import_module(f"latecomer.{name}") for name in beside}
    for name, thing in [*found.items()]:
        if inspect.ismodule(thing):
            inside = {inner: part for inner, part in vars(thing).items() if not inner.startswith("_")}
            own = {inner: part for inner, part in inside.items() if getattr(part, "__module__", "") == thing.__name__}
            found |= {f"{name}.{inner}": part for inner, part in own.items() if callable(part)}
    for name, thing in found.items():
        if inspect.ismodule(thing) or inspect.isroutine(thing) or inspect.isclass(thing):
            yield name, thing
        for inner in vars(thing) if inspect.isclass(thing) else ():
            part = getattr(thing, inner)
            if not inner.startswith("_") and (inspect.isroutine(part) or isinstance(part, property)):
                yield f"{name}.{inner}", part


def test_public_names_say_what_they_are() -> None:
    silent = [name for name, thing in public() if not says(thing)]
    assert silent == []


def says(thing: Any) -> bool:
    """Whether there is a docstring that somebody wrote; a dataclass has its signature for one otherwise."""
    text = inspect.getdoc(thing) or ""
    return bool(text) and not re.match(rf"{getattr(thing, '__name__', '')}\(", text)


def test_a_name_that_says_nothing_is_found() -> None:
    def silent() -> None: ...

    assert says(says)
    assert not says(silent)
    assert not says(dataclasses.make_dataclass("Silent", ["x"]))


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, latecomer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_learn(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    result = module.main(rounds=20)
    chance = 50.0 if path.stem == "own_data" else 20.0
    assert result["seen"]["accuracy"] > chance + 10
    assert 0 < result["unseen"]["accuracy"] <= 100
    if path.stem == "own_model":
        assert "Layer '3' (Dropout)" in capsys.readouterr().out
