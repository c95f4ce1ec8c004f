"""Client models: their sizes, and the sentences with which a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from latecomer.errors import DataError, ModelError, UnknownName
from latecomer.nets.check import check
from latecomer.nets.models import CNN, CNN64, MLP, LeNet, builder
from latecomer.nets.net import Net
from latecomer.task import Task

SHAPE = (1, 8, 8)


def task(build: Callable[[], nn.Module], shape: tuple[int, ...] = SHAPE, classes: int = 10) -> Task:
    return Task(Net(build), shape, classes)


def flat(*layers: nn.Module, outputs: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), *layers, nn.Linear(6, outputs))


# sizes


@pytest.mark.parametrize(("classes", "weights"), [(10, 121_182), (100, 128_832)])
def test_the_papers_lenet(classes: int, weights: int) -> None:
    assert Net(lambda: LeNet((3, 32, 32), classes)).size == weights


def test_other_sizes() -> None:
    assert Net(lambda: MLP((1, 8, 8), 10)).size == 64 * 100 + 100 + 100 * 10 + 10
    assert Net(lambda: CNN((1, 28, 28), 10)).size == 1_663_370  # McMahan et al. 2017, section 3
    assert Net(lambda: CNN64((3, 32, 32), 10)).size == 2_432 + 51_264 + 25 * 64 * 64 + 64 + 64 * 10 + 10 == 156_810


@pytest.mark.parametrize("model", [LeNet, CNN, CNN64, MLP])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 20), (2, 15, 17), (1, 4, 4)])
def test_models_pass_the_check_at_every_shape(model: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    check(task(lambda: model(shape, 7), shape, 7))


def test_which_model_is_taken() -> None:
    assert builder("auto", (3, 32, 32)) is LeNet
    assert builder("auto", (1, 8, 8)) is MLP
    assert builder("auto", (20,)) is MLP
    assert builder("cnn", (1, 8, 8)) is CNN
    with pytest.raises(UnknownName, match="did you mean 'lenet'"):
        builder("lennet", (1, 8, 8))


@pytest.mark.parametrize("shape", [(20,), (1, 3, 8), (8, 8)])
@pytest.mark.parametrize(("model", "name"), [(LeNet, "lenet"), (CNN, "cnn"), (CNN64, "cnn64")])
def test_what_is_no_image_is_refused(model: Callable[..., nn.Module], name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=f"'{name}' takes images"):
        model(shape, 10)


# refusals


def test_dropout_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"Layer '2' \(Dropout\) breaks the rules"):
        check(task(lambda: flat(nn.Dropout(0.5))))


def test_running_statistics_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"Layer '2' \(BatchNorm1d\) keeps running statistics.*GroupNorm"):
        check(task(lambda: flat(nn.BatchNorm1d(6))))


def test_batch_statistics_and_groups_are_accepted() -> None:
    check(task(lambda: flat(nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh())))
    check(task(lambda: flat(nn.GroupNorm(2, 6))))


@pytest.mark.parametrize("outputs", [9, 11])
def test_a_wrong_number_of_scores_is_refused(outputs: int) -> None:
    with pytest.raises(ModelError, match=rf"returns shape \(2, {outputs}\) for 2 examples; it must be \(2, 10\)"):
        check(task(lambda: flat(outputs=outputs)))


def test_a_layer_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"Layer '1' \(Linear\) breaks the rules"):
        check(task(lambda: flat(), shape=(1, 8, 9)))


class Peeks(nn.Module):
    """A layer that looks at a number and decides."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = flat(Peeks())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


def test_a_decision_on_data_is_refused_by_the_full_name_of_the_layer() -> None:
    with pytest.raises(ModelError, match=r"Layer 'body.2' \(Peeks\) breaks the rules"):
        check(task(Nested))


def test_a_check_leaves_no_hooks_behind() -> None:
    one = task(lambda: flat(nn.Dropout(0.5)))
    with pytest.raises(ModelError):
        check(one)
    assert not any(module._forward_pre_hooks for module in one.model.skeleton.modules())


# a network as a function of its weights


def test_weights_are_arguments() -> None:
    net = Net(lambda: MLP(SHAPE, 10))
    assert {weight.device.type for weight in net.skeleton.parameters()} == {"meta"}
    first, second, again = (net.fresh(torch.Generator().manual_seed(seed)) for seed in (1, 2, 1))
    x = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(first, x), net(again, x))
    assert not torch.equal(net(first, x), net(second, x))


def test_drawing_weights_does_not_touch_the_global_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Net(lambda: MLP(SHAPE, 10)).fresh(torch.Generator().manual_seed(1))
    assert torch.equal(torch.rand(3), expected)


class Shifted(nn.Module):
    """A network with a constant besides its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = flat()
        self.register_buffer("shift", torch.arange(10.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shift


def test_constants_come_along_and_are_no_weights() -> None:
    net = Net(Shifted)
    assert "shift" not in net.shapes
    zeros = {name: torch.zeros(shape) for name, shape in net.shapes.items()}
    assert net(zeros, torch.ones(1, *SHAPE))[0].tolist() == list(range(10))
    check(task(Shifted))


def test_the_head_is_the_last_layer() -> None:
    from latecomer.nets.models import MODELS

    shape = (3, 32, 32)
    heads = {name: Task(Net(lambda build=build: build(shape, 7)), shape, 7).head for name, build in MODELS.items()}
    assert heads == {
        "lenet": ("fc3.weight", "fc3.bias"),
        "cnn": ("layers.9.weight", "layers.9.bias"),
        "cnn64": ("layers.5.weight", "layers.5.bias"),
        "mlp": ("head.weight", "head.bias"),
    }


# the same with another last layer


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
        self.end = nn.ModuleDict({"head": nn.Linear(6, 10, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        return self.end["head"](self.body(x).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "head"),
    [
        (lambda: LeNet((1, 28, 28), 10), {"fc3.weight": (256, 84), "fc3.bias": (256,)}),
        (Branched, {"end.head.weight": (256, 6)}),
        (lambda: nn.Linear(64, 10), {"weight": (256, 64), "bias": (256,)}),
    ],
)
def test_a_widened_model_differs_in_its_last_layer_only(
    build: Callable[[], nn.Module], head: dict[str, object]
) -> None:
    shape = (64,) if isinstance(build(), nn.Linear) else (1, 28, 28) if isinstance(build(), LeNet) else SHAPE
    plain = task(build, shape)
    wide = plain.widened(256)
    assert {name: tuple(wide.shapes[name]) for name in plain.head} == head
    assert {k: v for k, v in wide.shapes.items() if k not in head} == {
        k: v for k, v in plain.model.shapes.items() if k not in head
    }
    fresh = wide.fresh(torch.Generator().manual_seed(0))
    assert wide(fresh, torch.ones(3, *shape)).shape == (3, 256)
    assert {name: weight.shape for name, weight in fresh.items()} == wide.shapes


class Backwards(nn.Module):
    """Its last layer is made first."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 10)
        self.first = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1))[:, :10])  # type: ignore[no-any-return]


def test_a_model_whose_last_layer_cannot_be_replaced_is_refused() -> None:
    normed = task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.LayerNorm(10)))
    with pytest.raises(ModelError, match=r"last layer, '2', is of type LayerNorm; only a Linear"):
        normed.widened(256)
    with pytest.raises(ModelError, match=r"returns shape \(2, 10\) for 2 examples; its last layer must be the one"):
        task(Backwards).widened(256)


class Fixed(nn.Module):
    """It insists on ten outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) + torch.ones(10, device=x.device)  # type: ignore[no-any-return]


def test_a_model_that_insists_on_its_outputs_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot have 256 outputs"):
        task(Fixed).widened(256)
