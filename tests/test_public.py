"""The public door, and the examples that go through it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import latecomer

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_all_is_what_is_visible() -> None:
    assert sorted(latecomer.__all__) == sorted({*latecomer._WHERE, "__version__"})
    assert dir(latecomer) == sorted(latecomer.__all__)
    for name in latecomer.__all__:
        assert getattr(latecomer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = latecomer.nonsense


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
