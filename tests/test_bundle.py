"""Bundles: what is published of a run says what the run says, to whoever has it, and to nobody else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as numbers_in

import toys
from console import Command
from latecomer import methods, tree
from latecomer.data import Form
from latecomer.engines.home import entropy
from latecomer.engines.loop import Loop
from latecomer.errors import BundleError, LatecomerError, ModelError
from latecomer.handover import export, rule
from latecomer.handover.bundle import Bundle, version_of
from latecomer.handover.layout import Layout
from latecomer.handover.personal import Personal
from latecomer.handover.publish import common_model, model_graph, publish
from latecomer.handover.trained import EVERYBODY, Trained
from latecomer.runs.experiment import Experiment

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

EXAMPLES = Path(__file__).parent.parent / "examples" / "device"
FORM = Form("uint8", (8, 8, 1), 10, mean=(0.3,), std=(0.35,))
PRIVATE = {"epsilon": 2.0, "bound": 1.0, "pool": "mean"}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pefll": ("describe", "pefll", {}),
    "odpflhn": ("describe", "odpflhn", {}),
    "odpflhn-private": ("describe", "odpflhn", PRIVATE),
    "pfedhn-shares": ("describe", "pfedhn", {"representation": "class-shares"}),
    "clusteredfl": ("describe", "clusteredfl", {"clusters": 2}),
    "flowdup": ("generate", "flowdup", {}),
    "knnper": ("generate", "knnper", {"sigma": (0.1, 1.0), "blends": (0.3, 0.5)}),
    "knnper-prototypes": ("train", "knnper", {"prototypes": 2, "prototype_steps": 3}),
    "fedavg": ("common", "fedavg", {}),
    "fedavgplus": ("train", "fedavgplus", {}),
    "pfedhn": ("fit", "pfedhn", {"steps": 3, "novel_rounds": 4}),
}


def untrained(name: str, seeds: int = 1, form: Form = FORM, **settings: Any) -> Trained:
    """What `load` would give of a run that has not learned anything."""
    experiment = Experiment.parse(name, {"data": "digits", "rounds": 1, "seeds": seeds, **settings})
    method = experiment.method_for(form, 12, 9)
    states = [method.init(torch.Generator().manual_seed(seed)) for seed in range(seeds)]
    return Trained(Path("runs/x"), experiment, method, form, states, "0" * 64, [1] * seeds)


def examples(count: int, seed: int = 0, classes: int = 3) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as they are stored, brighter from class to class, and their labels."""
    random = np.random.default_rng(seed)
    y = np.arange(count) % classes
    return (random.integers(0, 120, (count, 8, 8, 1)) + 40 * y[:, None, None, None]).astype(np.uint8), y


@dataclass
class Published:
    """A bundle, and the server that it was made of."""

    trained: Trained
    bundle: Bundle

    @property
    def public(self) -> Path:
        return self.bundle.path / "public"


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Published]:
    """Bundles of all cases, each made when it is first asked for."""
    made: dict[str, Published] = {}

    def get(case: str) -> Published:
        if case not in made:
            _, name, settings = CASES[case]
            trained = untrained(name, **settings)
            place = publish(trained, tmp_path_factory.mktemp("bundles") / case)
            made[case] = Published(trained, Bundle.open(place))
        return made[case]

    return get


def encoded(one: Published, **given: Any) -> dict[str, Any]:
    """What the graph that runs on the client makes of its data."""
    session = onnxruntime.InferenceSession(one.public / "encoder.onnx")
    given["y"] = given["y"].astype(np.int32)
    names = [output.name for output in session.get_outputs()]
    wanted = {entry.name: given[entry.name] for entry in session.get_inputs()}
    return dict(zip(names, session.run(None, wanted), strict=True))


def predicted(one: Published, file: bytes, folder: Path, x: Any, rest: dict[str, Any]) -> Any:
    """What the graph of every client's model says with one client's file beside it."""
    shutil.copy(one.public / "model.onnx", folder)
    (folder / "model.safetensors").write_bytes(file)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return session.run(None, {"x": x} | {name: rest[name] for name in one.bundle.found.free})[0]


RULES = {
    "train": "apfl atp ditto fedavgplus fedper fedrep fedtta lgfedavg local perfedavg pfedgp pfedme knnper-prototypes",
    "common": "fedavg fedprox ldfedavg",
    "generate": "flowdup flowdup-dense knnper knnper-fifo",
    "describe": "clusteredfl odpflhn odpflhn-phases pefll pfedhn-fixed",
    "fit": "pfedhn pfedhn-spectral",
}
NO_RULE = {
    "fedu": r"FedU cannot be published: a newcomer trains, and the server's state holds .* \(met, models\)\.",
    "odpflhn-private": "a newcomer draws random batches, which no graph can do",  # --describe-by 4
    "pfedhn-budgets": "its clients have models of several sizes",
    "pfedhn-pc": "its clients keep something of their own while they are fitted",
}


@pytest.mark.parametrize(("name", "expected"), [(n, r) for r, names in RULES.items() for n in names.split()])
def test_the_rule_of_a_method_is_found_by_watching_it(name: str, expected: str) -> None:
    method = toys.method(name)
    state = toys.start(method)
    before = tree.map(torch.clone, state)
    found = rule.find(method, Form("uint8", (8, 8, 1), 10), state, seed=0)
    assert found.name == expected
    assert toys.same(before, state)


@pytest.mark.parametrize("name", NO_RULE)
def test_what_has_no_rule_says_why(name: str) -> None:
    method = toys.method(name)
    with pytest.raises(BundleError, match=NO_RULE[name]):
        rule.find(method, Form("uint8", (8, 8, 1), 10), toys.start(method), seed=0)


def test_every_method_has_a_rule_or_a_reason() -> None:
    assert set(methods.names()) <= {*NO_RULE, *(name for names in RULES.values() for name in names.split())}


@pytest.mark.parametrize("case", CASES)
def test_a_bundle_says_what_torch_says(published: Callable[[str], Published], case: str, tmp_path: Path) -> None:
    one = published(case)
    bundle, trained = one.bundle, one.trained
    assert bundle.rule == CASES[case][0]
    assert (bundle.path / "public" / "state.safetensors").exists() == (bundle.rule == "train")
    assert (bundle.path / "private" / "state.safetensors").exists() == (bundle.rule != "train")
    (x, y), held, (new, _) = examples(17), examples(7, 1), examples(11, 2)  # none as many as when the graphs were made
    given = {"x": x, "y": y, "held_x": held[0], "held_y": held[1].astype(np.int32)}
    given["noise"] = np.random.default_rng(3).normal(size=bundle.facts["noise"])
    if bundle.rule not in ("describe", "generate"):
        own = trained.personalise(x, y, held_out=held)
        weights, rest = tree.flatten(own.weights), {"kind": own.weights.get("kind", torch.zeros(1)).numpy()}
        file = bundle.layout.file(weights)
        np.testing.assert_allclose(predicted(one, file, tmp_path, new, rest), own.logits(new), atol=1e-4)
        return
    made = encoded(one, **given)
    data = {name: torch.from_numpy(given[name]) for name in bundle.found.inputs}
    ours = {name: leaf.numpy() for name, leaf in tree.flatten(bundle.found.encode(data, bundle.found.sent)).items()}
    assert made.keys() == ours.keys()
    for name, leaf in ours.items():
        np.testing.assert_allclose(made[name], leaf, atol=1e-4)
        assert made[name].dtype == leaf.dtype
    if bundle.rule == "describe":
        file, rest = bundle.header + bundle.generate(made["descriptor"][None])[0].tobytes(), {}
    else:
        file = bundle.header + b"".join(made[name].tobytes() for name in bundle.layout.leaves)
        rest = made
    found = predicted(one, file, tmp_path, new, rest)
    if bundle.facts["noise"]:  # a client's noise is its own
        weights = tree.map(torch.from_numpy, tree.unflatten(numbers_in(file)))
        expected = trained.method.logits(weights, FORM.prepare(torch.from_numpy(new))).numpy()
    else:
        expected = trained.personalise(x, y, held_out=held).logits(new)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(predicted(one, file, tmp_path, new[:1], rest), expected[:1], atol=1e-4)


DESCRIBED = [case for case, (name, *_) in CASES.items() if name == "describe"]


@pytest.mark.parametrize("case", DESCRIBED)
def test_a_row_is_a_clients_file_and_does_not_depend_on_others(
    published: Callable[[str], Published], case: str
) -> None:
    one = published(case)
    bundle = one.bundle
    v = np.random.default_rng(0).normal(size=(13, bundle.descriptor)).astype(np.float32)
    rows = bundle.generate(v)
    assert rows.shape == (13, bundle.weights)
    assert all((bundle.generate(v[k : k + count])[0] == rows[k]).all() for k, count in ((0, 1), (5, 3), (12, 1)))
    read = numbers_in(bundle.header + rows[4].tobytes())
    assert {name: leaf.shape for name, leaf in read.items()} == dict(one.trained.method.task.model.shapes)
    new, _ = examples(5)
    session = onnxruntime.InferenceSession(bundle.standalone(rows[4]))
    weights = tree.unflatten({name: torch.from_numpy(leaf) for name, leaf in read.items()})
    expected = one.trained.method.logits(weights, FORM.prepare(torch.from_numpy(new))).numpy()
    np.testing.assert_allclose(session.run(None, {"x": new})[0], expected, atol=1e-4)
    assert bundle.standalone(rows[4].tobytes()) == bundle.standalone(rows[4])


def test_a_descriptor_of_another_size_is_refused(published: Callable[[str], Published]) -> None:
    bundle = published("pfedhn-shares").bundle
    for wrong in (np.zeros((2, 9)), np.zeros(10), np.zeros((0, 10))):
        with pytest.raises(BundleError, match=r"must have shape \[n, 10\]; got"):
            bundle.generate(wrong.astype(np.float32))
    with pytest.raises(BundleError, match="no descriptor is fitted"):
        bundle.refit(np.zeros(10, np.float32), {}, np.zeros(bundle.weights, np.float32))
    with pytest.raises(BundleError, match="no descriptor is sent"):
        published("fedavg").bundle.generate(np.zeros((1, 0), np.float32))


def test_no_example_of_an_exported_encoder_exceeds_its_bound(
    published: Callable[[str], Published], tmp_path: Path
) -> None:
    one = published("odpflhn-private")
    found = one.bundle.found
    huge = tree.unflatten({path: leaf * 1e37 for path, leaf in tree.flatten(found.sent).items()})
    huge = {"encoder": {"phi": huge["encoder"]["phi"], "psi": found.sent["encoder"]["psi"]}}
    shutil.copy(one.public / "encoder.onnx", tmp_path)
    leaves = tree.flatten({"sent": huge})
    (tmp_path / "encoder.safetensors").write_bytes(Layout(leaves).file(leaves))
    x, y = examples(4)
    given = {"x": x, "y": y.astype(np.int32), "noise": np.zeros(found.noise)}
    session = onnxruntime.InferenceSession(tmp_path / "encoder.onnx")
    ours = found.encode({name: torch.from_numpy(value) for name, value in given.items()}, huge)["descriptor"]
    np.testing.assert_allclose(session.run(None, given)[0], ours, atol=1e-4)


def test_an_embedding_is_fitted_by_turns_with_a_server_that_remembers_nothing(
    published: Callable[[str], Published],
) -> None:
    one = published("pfedhn")
    bundle, method = one.bundle, one.trained.method
    (x, y), none = examples(20), (np.zeros((0, 8, 8, 1), np.uint8), np.zeros(0, int))
    federation, _ = one.trained.alone(x, y, held_out=none)
    loop = Loop(method, [federation], "cpu", entropy)
    v, moments = np.array(bundle.facts["start"], np.float32), dict[str, Any]()
    for turn in range(method.novel_rounds):  # type: ignore[attr-defined]
        flat = numbers_in(bundle.header + bundle.generate(v[None])[0].tobytes())
        params = tree.unflatten({name: torch.from_numpy(leaf) for name, leaf in flat.items()})
        home = loop.home(0, len(federation) - 1, EVERYBODY - 1 - turn, 0)
        change = tree.flatten(method.fit(home, params=params))  # type: ignore[attr-defined]
        row = torch.cat([change[name].flatten() for name in bundle.layout.leaves])
        v, moments = bundle.refit(v, moments, row.numpy())
    expected = tree.flatten(one.trained.personalise(x, y, held_out=none).weights)
    found = numbers_in(bundle.header + bundle.generate(v[None])[0].tobytes())
    for name, leaf in expected.items():
        np.testing.assert_allclose(found[name], leaf.numpy(), atol=1e-5)
    with pytest.raises(BundleError, match="a change of 7510"):
        bundle.refit(v, moments, row.numpy()[1:])


def test_the_model_for_all_is_published_where_there_is_one(published: Callable[[str], Published]) -> None:
    for case, has in {"fedavg": True, "fedavgplus": True, "pefll": False, "knnper": False}.items():
        bundle = published(case).bundle
        assert ("common.safetensors" in bundle.public) == has
        assert ("common.safetensors" in bundle.facts["why"]) != has
        assert (common_model(bundle.found, bundle.state) is not None) == has
    told = numbers_in(published("fedavgplus").bundle.public["common.safetensors"].read_bytes())
    state = published("fedavgplus").trained.states[0]["params"]
    assert toys.same(tree.unflatten({name: torch.from_numpy(leaf) for name, leaf in told.items()}), state)


def test_private_files_are_no_public_names(published: Callable[[str], Published]) -> None:
    bundle = published("pefll").bundle
    assert set(bundle.public) == {"encoder.onnx", "encoder.safetensors", "model.onnx"}
    sent = numbers_in(bundle.public["encoder.safetensors"].read_bytes())
    parts = {name.split("/")[1] for name in sent if "/" in name}
    assert parts == {"embed"}  # the hypernetwork stays where it is
    assert (bundle.path / "private").stat().st_mode & 0o077 == 0


@pytest.fixture
def copied(published: Callable[[str], Published], tmp_path: Path) -> Path:
    place = tmp_path / "copy"
    shutil.copytree(published("pefll").bundle.path, place)
    return place


def test_a_graph_stays_what_it_was_when_the_bundle_was_opened(copied: Path) -> None:
    bundle = Bundle.open(copied)
    row = np.zeros(bundle.weights, np.float32)
    expected = bundle.standalone(row)
    again = Bundle.open(copied)
    (copied / "public" / "model.onnx").write_bytes(b"another")
    assert again.standalone(row) == expected


def refused(place: Path, words: str) -> None:
    with pytest.raises(BundleError, match=words) as told:
        Bundle.open(place)
    assert "\n" not in str(told.value)


NAMES = ["public/encoder.onnx", "public/encoder.safetensors", "public/model.onnx", "private/state.safetensors"]


@pytest.mark.parametrize("name", ["bundle.json", *NAMES])
def test_a_flipped_byte_a_link_and_a_lost_file_are_noticed(copied: Path, name: str) -> None:
    path = copied / name
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)
    refused(copied, "is damaged|cannot be read as a bundle")
    path.rename(copied / "elsewhere")
    refused(copied, "cannot be read as a bundle: No such file")
    path.symlink_to(copied / "elsewhere")
    refused(copied, "is not a plain file of a bundle")


def rewrite(place: Path, **changes: Any) -> None:
    facts = json.loads((place / "bundle.json").read_text()) | changes
    facts["version"] = version_of(facts)
    (place / "bundle.json").write_text(json.dumps(facts))


def test_hostile_facts_are_one_sentence(copied: Path) -> None:
    facts = json.loads((copied / "bundle.json").read_text())
    files, recipe = facts["files"], facts["recipe"]
    hostile: list[tuple[dict[str, Any], str]] = [
        ({"format": 2}, "has format 2; this version of latecomer reads 1"),
        ({"files": files | {"public/../../secret": "0"}}, "no part of a bundle"),
        ({"files": files | {"/etc/passwd": "0"}}, "no part of a bundle"),
        ({"files": {}}, "cannot be read as a bundle"),
        ({"files": [1]}, "cannot be read as a bundle"),
        ({"recipe": None}, "cannot be read as a bundle"),
        ({"recipe": recipe | {"method": "fedavg", "settings": {}}}, "cannot be read as a bundle|does not say"),
        ({"recipe": recipe | {"method": "os.system"}}, "There is no method"),
        ({"recipe": recipe | {"settings": {"continue_from": "/etc"}}}, "'continue_from' is no setting of the method"),
        ({"recipe": recipe | {"task": recipe["task"] | {"stored": []}}}, "cannot be read as a bundle"),
        ({"seed": "x"}, "cannot be read as a bundle"),
        ({"weights": 3}, "does not say what its server does"),
        ({"rule": "common"}, "does not say what its server does"),
    ]
    for changes, words in hostile:
        rewrite(copied, **facts | changes)
        refused(copied, words)
    (copied / "bundle.json").write_text("[" * 100_000)
    refused(copied, "cannot be read as a bundle")
    (copied / "bundle.json").write_bytes(b"\xff" * 2**21)
    refused(copied, "is not a plain file of a bundle")
    rewrite_json = json.dumps(facts)
    (copied / "bundle.json").write_text(rewrite_json)
    assert Bundle.open(copied).version == facts["version"]
    (copied / "public").rename(copied / "else")
    (copied / "public").symlink_to(copied / "else")
    refused(copied, "public is not a folder")


def test_what_cannot_be_published_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    for place, trained, words in (
        (tmp_path / "there", untrained("fedavg"), "exists already"),
        (tmp_path / "file" / "b", untrained("fedavg"), "cannot be written"),
        (tmp_path / "b", untrained("fedu"), "cannot be published"),
    ):
        with pytest.raises(BundleError, match=words):
            publish(trained, place)
    with pytest.raises(LatecomerError, match="has no seed 7"):
        publish(untrained("fedavg", seeds=2), tmp_path / "b", seed=7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Layout, "file", fail)
    with pytest.raises(BundleError, match="b cannot be written: No space left on device"):
        publish(untrained("local"), tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_the_command_line_publishes(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "run fedavg --clients 6 --rounds 1 --cohort 2 --seeds 2 --out . --name x"
    assert command(*words.split()).code == 0
    done = command("publish", "x", "-o", "b", "--seed", "1")
    assert (done.code, done.out.splitlines()[-1]) == (0, "b")
    assert done.err.startswith("Note: no encoder.onnx: By the rule 'common'")
    bundle = Bundle.open("b")
    assert (bundle.rule, bundle.facts["seed"], bundle.facts["run"]) == ("common", 1, "x")
    for line, sentence in {
        "publish": "Say what it is about: latecomer publish RUN -o BUNDLE",
        "publish x": "--output is needed",
        "publish x -o b": "b exists already",
        "publish missing -o c": "missing is not a run folder",
        "publish x -o c --seed one": "'one'",
        "publish x -o c --seed 5": "has no seed 5",
        "publish x -o c --rounds 5": "There is no setting 'rounds'; there are: gate, output, seed.",
    }.items():
        done = command(*line.split())
        assert done.code == 2
        assert sentence in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "x"]


def test_a_network_that_is_unrolled_is_not_exported(tmp_path: Path) -> None:
    form = Form("int64", (80,), 30, text=True)
    bundle = Bundle.open(publish(untrained("fedavg", form=form, model="lstm"), tmp_path / "b"))
    assert "torch would take minutes to make an ONNX graph of its" in bundle.facts["why"]["model.onnx"]
    with pytest.raises(BundleError, match="This bundle has no graph of a client's model: torch would take minutes"):
        bundle.standalone(b"")


ALONE = """
import runpy, sys
for name in ("torch", "latecomer", "onnx", "safetensors"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def on_device(program: str, *words: object) -> list[str]:
    """What an example prints where there is neither torch nor latecomer."""
    command = [sys.executable, "-W", "error", "-c", ALONE, str(EXAMPLES / program), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("case", ["knnper", "flowdup", "fedavg", "pefll"])
def test_a_device_without_torch_joins(published: Callable[[str], Published], case: str, tmp_path: Path) -> None:
    one = published(case)
    shutil.copytree(one.bundle.path, tmp_path / "b", ignore=lambda _, names: {"private"} & {*names})
    (x, y), held, (new, _) = examples(17), examples(7, 1), examples(300, 2)
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_val=held[0], y_val=held[1])
    np.savez(tmp_path / "new.npz", x=new)
    words = [tmp_path / "b", tmp_path / "mine.npz", tmp_path / "new.npz"]
    if one.bundle.rule == "describe":
        (line,) = on_device("join.py", *words)
        row = one.bundle.generate(np.array([json.loads(line)["descriptor"]], np.float32))[0]
        (tmp_path / "model.safetensors").write_bytes(one.bundle.header + row.tobytes())
        words.append(tmp_path / "model.safetensors")
    expected = one.trained.personalise(x, y, held_out=held).predict(new)
    assert [*map(int, on_device("join.py", *words))] == expected.tolist()


def test_a_saved_model_predicts_without_torch(tmp_path: Path) -> None:
    model = untrained("knnper").personalise(*examples(17), held_out=examples(7, 1))
    folder = model.save(tmp_path / "m")
    new, _ = examples(300, 2)
    np.savez(tmp_path / "new.npz", x=new)
    assert [*map(int, on_device("predict.py", folder, tmp_path / "new.npz"))] == model.predict(new).tolist()
    assert "onnxruntime.InferenceSession" in (folder / "README.md").read_text()
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"x": new})[0], model.logits(new), atol=1e-4)
    graph = bytearray((folder / "model.onnx").read_bytes())
    graph[-1] ^= 1
    (folder / "model.onnx").write_bytes(graph)
    with pytest.raises(ModelError, match=r"model\.onnx is damaged"):
        Personal.open(folder)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_model_without_a_graph_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = untrained("fedavg").personalise(*examples(9))
    folder = model.save(tmp_path / "m", onnx=wanted)
    why = json.loads((folder / "config.json").read_text())["why"]["model.onnx"]
    assert why == ("This needs the package 'onnxscript'; pip install 'latecomer[export]' brings it." if wanted else
                   "It was not asked for.")  # fmt: skip
    assert not (folder / "model.onnx").exists()
    assert why in (folder / "README.md").read_text()
    assert (Personal.open(folder).logits(examples(3)[0]) == model.logits(examples(3)[0])).all()


@pytest.mark.parametrize("name", ["lenet", "cnn64", "conv4"])  # the larger ones take long: docs/handover.md
def test_models_are_exported(name: str) -> None:
    form = Form("uint8", (16, 16, 3), 10)
    trained = untrained("fedavg", form=form, model=name)
    params, x = trained.states[0]["params"], export.made_up(form, 5)
    session = onnxruntime.InferenceSession(export.model(trained.method, form, params))
    with torch.no_grad():
        expected = trained.method.logits(params, form.prepare(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, atol=1e-4)


def test_graphs_do_not_know_where_they_were_made(published: Callable[[str], Published]) -> None:
    for name in ("encoder.onnx", "model.onnx"):
        text = (published("pefll").public / name).read_bytes()
        assert len(text) < 10_000
        assert b"latecomer" not in text
        assert b".py" not in text


def test_two_exports_are_equal_to_the_byte(published: Callable[[str], Published]) -> None:
    one = published("fedavg")
    again = model_graph(one.bundle.found, one.bundle.found.model).SerializeToString(deterministic=True)
    assert again == (one.public / "model.onnx").read_bytes()
