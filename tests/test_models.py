"""Client models: their sizes, and the sentences with which a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import toys
from latecomer.errors import DataError, ModelError, SettingError, UnknownName
from latecomer.experiment import make_task
from latecomer.nets.check import check
from latecomer.nets.models import CNN, MLP, LeNet, builder, in_size
from latecomer.nets.net import Net
from latecomer.settings import SIZES
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


@pytest.mark.parametrize("model", [LeNet, CNN, MLP])
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
@pytest.mark.parametrize(("model", "name"), [(LeNet, "lenet"), (CNN, "cnn")])
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
        "mlp": ("head.weight", "head.bias"),
    }


@pytest.mark.parametrize(("model", "shape"), [(LeNet, (3, 32, 32)), (LeNet, SHAPE), (CNN, SHAPE), (MLP, SHAPE)])
def test_one_forward_pass_serves_a_model_in_all_sizes(model: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    nets = {size: Net(lambda size=size: in_size(model, size)(shape, 7)) for size in SIZES}
    usual, largest = Net(lambda: model(shape, 7)), nets["L"]
    assert nets["M"].shapes == usual.shapes
    assert nets["S"].size < nets["M"].size < nets["L"].size
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    for net in nets.values():
        weights = net.fresh(torch.Generator().manual_seed(1))
        assert torch.equal(largest(weights, x), net(weights, x))


def test_the_papers_lenets_in_three_sizes() -> None:
    """Filters in the first convolution, twice as many in the second, then 120 and 84."""
    for size, filters in zip("SML", (8, 16, 32), strict=True):
        first, second = 3 * 25 * filters + filters, 25 * filters * 2 * filters + 2 * filters
        linear = 25 * 2 * filters * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10
        assert Net(lambda size=size: in_size(LeNet, size)((3, 32, 32), 10)).size == first + second + linear


def test_a_model_that_comes_in_one_size_is_refused() -> None:
    with pytest.raises(SettingError, match="The model Nested comes in one size only, not in 'S'; leave --budgets out"):
        in_size(Nested, "S")
    with pytest.raises(SettingError, match="LeNet comes in the sizes S, M, L only, not in 'XL'"):
        in_size(LeNet, "XL")


class Stubborn(nn.Module):
    """Comes in two widths, but its forward pass knows one of them by heart."""

    widths = {"S": 4, "L": 8}

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.hidden, self.head = nn.Linear(64, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x.flatten(1)).view(-1, self.width))


def test_a_forward_pass_that_serves_one_size_is_refused() -> None:
    with pytest.raises(ModelError, match="breaks the rules for client models"):
        make_task(toys.federation(), Stubborn, ["S", "L"])
    assert make_task(toys.federation(), Stubborn, ["L"]).sizes.keys() == {"L"}
    task = make_task(toys.federation(), MLP, ["L", "S"])
    assert task.model.shapes == task.sizes["L"]
    assert task.sizes["S"]["hidden.weight"] == (50, 64)
