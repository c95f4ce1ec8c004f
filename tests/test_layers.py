"""Who may import whom. The rules are data; docs/tour.md draws them."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

# From the top of the house to the bottom. A layer may import itself and what is below it, never what is above.
LAYERS: dict[str, tuple[str, ...]] = {
    "command line": ("cli", "__main__"),
    "runs": ("runs", "handover", "deploy", "node", "serve", "study", "report"),
    "training": ("train", "sweep"),
    "engines": ("engines",),
    "core": (
        *("tree", "task", "method", "clients", "replies", "learn", "optim", "rounds", "evaluate", "faults", "privacy"),
        *("schedule", "steps", "settings", "plan", "checks", "cohorts", "tally", "robust", "processors"),
        *("secure", "methods", "nets", "data"),
    ),
    "operations": ("ops",),
    "ground": ("errors", "private", "tensorfile", "__version__"),  # imports nothing of ours
}

# Packages that have one place each, where they may be missing.
PLACES: dict[str, str] = {
    "triton": "ops",
    "flwr": "engines.flower",
    "ray": "engines.ray",
    "flwr_datasets": "data",
    "datasets": "data",
    "dp_accounting": "privacy",
    "faiss": "ops.search",
    "rich": "cli",
    "fastapi": "serve",
    "uvicorn": "serve",
    "starlette": "serve",
    "pydantic": "serve",
    "onnx": "handover",
    "onnxscript": "handover",
    "onnxruntime": "handover",
    "plotly": "report",
    "matplotlib": "study.draw",
    "cycler": "study.draw",
    "optuna": "study.tune",
    "tensorboard": "runs.track",
    "mlflow": "runs.track",
}

# What asks for a device or for a transform: tokens, so that comments and strings may speak of them.
DEVICES: tuple[tuple[str, ...], ...] = (
    ("is_cuda",),
    ("device", ".", "type"),
    ("mapped", "("),
    ("kernels_for",),
    ("torch", ".", "cuda"),
    ("_functorch",),
    ("functorch",),
)
MAY_ASK = ("ops", "engines", "private")

# Imports upward that only a type checker follows. Allowed, but each has to be meant.
TYPES_ONLY: dict[tuple[str, str], str] = {
    ("engines.vector", "train"): "an engine may offer a shorter way through a training's rounds",
    ("engines.capture.rounds", "train"): "and this is that way",
}


@dataclass(frozen=True)
class Import:
    """One import in a module of latecomer; both named without `latecomer.`, what is not ours by its full name."""

    module: str
    target: str
    ours: bool
    for_types: bool


@cache
def sources() -> dict[str, str]:
    """The text of every module by its name, without `latecomer.`; the door itself has none."""
    found = {}
    for path in sorted((SOURCE / "latecomer").rglob("*.py")):
        parts = path.relative_to(SOURCE / "latecomer").with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text(encoding="utf-8")
    return found


def imports(texts: Mapping[str, str]) -> Iterator[Import]:
    """Every import in these modules, also by `need("package", ...)`; what is imported from a module is that module."""
    known = {*sources(), *(name for names in LAYERS.values() for name in names)}
    packages = {module.rpartition(".")[0] for module in sources()}
    for module, text in texts.items():
        home = module if module in packages else module.rpartition(".")[0]
        tree = ast.parse(text)
        types = {id(node) for test in ast.walk(tree) if is_for_types(test) for node in ast.walk(test)}
        for node in ast.walk(tree):
            for ours, target in targets(node, home):
                while ours and target not in known and "." in target:
                    target = target.rpartition(".")[0]
                yield Import(module, target, ours, id(node) in types)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def targets(node: ast.AST, home: str) -> Iterator[tuple[bool, str]]:
    """What one line imports: whether it is ours, and its name."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level:
        base = home.split(".")[: len(home.split(".")) + 1 - node.level] if home else []
        names = [".".join(["latecomer", *base, *filter(None, [node.module]), alias.name]) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("need", "import_module")):
        names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    for name in names:
        first, _, rest = name.partition(".")
        yield (True, rest) if first == "latecomer" else (False, name)


def layer(module: str) -> int:
    """How far below the roof a module is."""
    first = module.partition(".")[0]
    for depth, names in enumerate(LAYERS.values()):
        if first in names:
            return depth
    raise AssertionError(f"latecomer.{module} has no layer; say in LAYERS which")


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(f"{place}.")


def upward(texts: Mapping[str, str]) -> set[tuple[str, str, bool]]:
    """Imports of something above: who, what, and whether for types alone."""
    return {
        (one.module, one.target, one.for_types)
        for one in imports(texts)
        if one.ours and one.module and layer(one.target) < layer(one.module)
    }


def misplaced(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Imports of packages outside their place."""
    return {
        (one.module, package)
        for one in imports(texts)
        if not one.ours
        and (package := one.target.partition(".")[0]) in PLACES
        and not within(one.module, PLACES[package])
    }


def between_methods(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Methods that import methods."""
    return {
        (one.module, one.target)
        for one in imports(texts)
        if one.ours and within(one.module, "methods") and one.target.startswith("methods.")
    }


def devices(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Questions about devices and transforms outside the rooms that may ask."""
    found = set()
    for module, text in texts.items():
        if any(within(module, place) for place in MAY_ASK):
            continue
        skipped = (tokenize.COMMENT, tokenize.STRING, tokenize.NL, tokenize.NEWLINE)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        words = [token.string for token in tokens if token.type not in skipped]
        for phrase in DEVICES:
            if any(tuple(words[k : k + len(phrase)]) == phrase for k in range(len(words))):
                found.add((module, "".join(phrase)))
    return found


def underscored(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Private names of PyTorch outside private.py."""
    found = {
        (one.module, one.target)
        for one in imports(texts)
        if one.target.startswith("torch.") and not one.ours and "._" in one.target
    }
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if name == "_schema":
                found.add((module, name))
            elif name.startswith("_") and not name.startswith("__") and ast.unparse(node).startswith("torch."):
                found.add((module, ast.unparse(node)))
    return {(module, name) for module, name in found if module != "private"}


def broken(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """All that breaks a rule: (module, what it imports or says)."""
    above = {(module, target) for module, target, for_types in upward(texts) if not for_types}
    return above | misplaced(texts) | between_methods(texts) | devices(texts) | underscored(texts)


def test_nothing_breaks_the_rules() -> None:
    assert sorted(broken(sources())) == []


def test_imports_upward_for_types_are_listed() -> None:
    assert {(module, target) for module, target, for_types in upward(sources()) if for_types} == set(TYPES_ONLY)


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        ("tree", "from .engines.vector import Vector", "engines.vector"),
        ("tree", "def f():\n    from . import train", "train"),
        ("tree", "import latecomer.runs.run", "runs.run"),
        ("nets.models", "from ..cli import screen", "cli.screen"),
        ("engines.loop", "from ..train import Training", "train"),
        ("engines.flower.app", "from ...sweep import lockstep", "sweep.lockstep"),
        ("ops.linear", "from ..tree import flatten", "tree"),
        ("errors", "from .ops import mapping", "ops.mapping"),
        ("runs.run", "from ..cli.screen import out", "cli.screen"),
        ("methods.ditto", "from .fedavg import FedAvg", "methods.fedavg"),
        ("methods.ditto", "from . import fedavg", "methods.fedavg"),
        ("engines.vector", "import triton.language as tl", "triton"),
        ("clients", "from flwr.app import Message", "flwr"),
        ("clients", 'flwr = need("flwr.app", "flower")', "flwr"),
        ("nets.net", "import faiss", "faiss"),
        ("optim", "fast = x.is_cuda", "is_cuda"),
        ("optim", "fast = x.device.type == 'cuda'", "device.type"),
        ("optim", "fast = mapped(x)", "mapped("),
        ("optim", "fast = kernels_for(x)", "kernels_for"),
        ("train", "torch.cuda.synchronize()", "torch.cuda"),
        ("tree", "from torch._C import _functorch", "_functorch"),
        ("engines.loop", "from torch._C import _functorch", "torch._C._functorch"),
        ("engines.loop", "torch._foreach_mul(x, y)", "torch._foreach_mul"),
        ("engines.loop", "operation._schema.is_mutable", "_schema"),
    ],
)
def test_a_broken_rule_is_found(module: str, text: str, says: str) -> None:
    assert (module, says) in broken({module: text})


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tree", "# x.is_cuda, torch.cuda and device.type\nsays = 'mapped(x)'\nx.device\nremapped(x)"),
        ("tree", "from .ops import linear\nfrom .errors import DataError\nimport torch\ntorch.__version__"),
        ("engines.vector", "from ..ops import linear\nx.is_cuda or torch.cuda.is_available()"),
        ("ops.linear", "import triton\nfrom ..private import functorch"),
        ("cli.run", "from ..runs import host\nfrom rich.table import Table"),
        ("methods.ditto", "from .. import tree\nfrom ..method import Method"),
        ("clients", "if TYPE_CHECKING:\n    from .train import Plan"),
    ],
)
def test_what_keeps_the_rules_is_left_alone(module: str, text: str) -> None:
    assert broken({module: text}) == set()


def test_a_module_without_a_layer_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"latecomer\.attic has no layer"):
        upward({"attic": "from . import tree"})
