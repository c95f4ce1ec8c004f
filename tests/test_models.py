"""Client models: their sizes, and the sentences with which a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

import toys
from latecomer import Federation, make_task, methods, tree
from latecomer.data.split import SIZES
from latecomer.engines.fitting import activation_bytes
from latecomer.errors import DataError, ModelError, SettingError, UnknownName
from latecomer.nets.check import check_task
from latecomer.nets.embed import ExampleAndLabel
from latecomer.nets.models import CNN, CNN64, LSTM, MLP, MODELS, Conv4, LeNet, MobileNet, ResNet18, builder, in_size
from latecomer.nets.net import Net
from latecomer.nets.recurrent import Recurrent
from latecomer.task import Batch, Task, one_hot
from latecomer.tree import Tree

SHAPE = (1, 8, 8)


def task(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...] = SHAPE,
    classes: int = 10,
    dtype: torch.dtype = torch.float32,
) -> Task:
    return Task(Net(build), shape, classes, dtype)


def flat(*layers: nn.Module, outputs: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), *layers, nn.Linear(6, outputs))


def memory(model: Callable[..., nn.Module], shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """What an engine reckons for one example."""
    of = task(lambda: model(shape, 7), shape, 7, dtype)
    return activation_bytes(methods.get("fedavg")(task=of, clients=2, members=2))


# sizes


@pytest.mark.parametrize(("classes", "weights"), [(10, 121_182), (100, 128_832)])
def test_the_papers_lenet(classes: int, weights: int) -> None:
    assert Net(lambda: LeNet((3, 32, 32), classes)).size == weights


def test_other_sizes() -> None:
    assert Net(lambda: MLP((1, 8, 8), 10)).size == 64 * 100 + 100 + 100 * 10 + 10
    assert Net(lambda: CNN((1, 28, 28), 10)).size == 1_663_370  # McMahan et al. 2017, section 3
    assert Net(lambda: CNN64((3, 32, 32), 10)).size == 2_432 + 51_264 + 25 * 64 * 64 + 64 + 64 * 10 + 10 == 156_810


def test_sizes_of_the_deep_networks() -> None:
    """As published with batch normalisation, which has as many weights; 3x3 instead of 7x7 saves 64 * 3 * 40."""
    assert Net(lambda: ResNet18((3, 224, 224), 1000)).size == 11_689_512
    assert Net(lambda: ResNet18((3, 32, 32), 10)).size == 11_689_512 - 990 * 513 - 64 * 3 * 40
    assert Net(lambda: MobileNet((3, 224, 224), 1000)).size == 3_504_872
    assert Net(lambda: MobileNet((3, 32, 32), 10)).size == 3_504_872 - 990 * 1281
    convolutions = 64 * 9 * (1 + 3 * 64) + 4 * 64 + 4 * 128
    assert Net(lambda: Conv4((1, 28, 28), 55)).size == convolutions + 64 * 120 + 120 + 120 * 55 + 55
    lower, upper = (4 * 256 * (inputs + 256 + 2) for inputs in (8, 256))
    assert Net(lambda: LSTM((80,), 100)).size == 100 * 8 + lower + upper + 256 * 100 + 100


EVERY = [LeNet, CNN, CNN64, MLP, Conv4]
SHAPES = [(1, 8, 8), (3, 32, 32), (1, 28, 20), (2, 15, 17), (1, 4, 4)]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        *((model, shape) for model in EVERY for shape in SHAPES),
        *((model, shape) for model in (ResNet18, MobileNet) for shape in ((2, 15, 17), (1, 4, 4), (1, 64, 66))),
    ],
)
def test_models_pass_the_check_at_every_shape(model: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    check_task(task(lambda: model(shape, 7), shape, 7))


def test_large_images_meet_a_stem_that_shrinks_them() -> None:
    for model in (ResNet18, MobileNet):
        small, large = (memory(model, (3, side, side)) for side in (32, 64))
        assert large < 2 * small, "twice the side is four times the pixels, but the first stride takes most of it back"


def test_which_model_is_taken() -> None:
    assert builder("auto", (3, 32, 32)) is LeNet
    assert builder("auto", (80,), text=True) is LSTM
    assert builder("auto", (1, 8, 8)) is MLP
    assert builder("auto", (20,)) is MLP
    assert builder("cnn", (1, 8, 8)) is CNN
    with pytest.raises(UnknownName, match="did you mean 'lenet'"):
        builder("lennet", (1, 8, 8))


@pytest.mark.parametrize("shape", [(20,), (1, 3, 8), (8, 8)])
@pytest.mark.parametrize("name", ["lenet", "cnn", "cnn64", "conv4", "resnet18", "mobilenet"])
def test_what_is_no_image_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=f"'{name}' takes images"):
        MODELS[name](shape, 10)


# many clients at once


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 6), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU()])
def test_clients_that_share_a_model_map_over_images_with_channels_last(layer: nn.Module) -> None:
    """What an engine does on a CPU when it evaluates a model that all clients share."""
    net = Net(lambda: nn.Sequential(nn.Conv2d(3, 6, 3), layer, nn.Flatten(), nn.Linear(6 * 36, 10)))
    params = net.fresh(torch.Generator().manual_seed(0))
    x = torch.rand(4, 5, 8, 8, 3, generator=torch.Generator().manual_seed(0)).movedim(-1, -3)
    together = vmap(lambda own: net(params, own), randomness="error")(x)
    torch.testing.assert_close(together, torch.stack([net(params, own.contiguous()) for own in x]))


@pytest.mark.parametrize("name", ["conv4", "resnet18", "mobilenet", "lstm"])
def test_gradients_of_mapped_clients_are_those_of_each(name: str) -> None:
    shape, classes = ((6,), 5) if name == "lstm" else ((2, 8, 8), 5)
    one = task(lambda: MODELS[name](shape, classes), shape, classes, torch.int64 if name == "lstm" else torch.float32)
    draw = torch.Generator().manual_seed(0)
    clients = [tree.map(lambda leaf: leaf.double(), one.model.fresh(draw)) for _ in range(3)]
    x = torch.randint(classes, (3, 4, *shape), generator=draw)
    batch = Batch(
        x if name == "lstm" else x.double() + torch.rand(x.shape, generator=draw),
        torch.randint(classes, (3, 4), generator=draw),
        torch.ones(3, 4, dtype=torch.bool),
    )

    def slope(params: tree.Tree, x: Tensor, y: Tensor, real: Tensor) -> tree.Tree:
        return grad(one.loss)(params, Batch(x, y, real))  # type: ignore[no-any-return]

    together = vmap(slope, randomness="error")(tree.stack(clients), batch.x, batch.y, batch.real)
    for k, params in enumerate(clients):
        alone = slope(params, batch.x[k], batch.y[k], batch.real[k])
        assert toys.gap(tree.row(together, k), alone) < 1e-9
    assert all(float(leaf.abs().max()) > 0 for leaf in tree.leaves(together)), "every weight matters"


# text


def torchs_own(layers: list[Recurrent]) -> nn.LSTM:
    """torch's LSTM with the same weights."""
    own = nn.LSTM(layers[0].inward.in_features, 256, len(layers), batch_first=True)
    for k, layer in enumerate(layers):
        for name, part in (("ih", layer.inward), ("hh", layer.onward)):
            getattr(own, f"weight_{name}_l{k}").data.copy_(part.weight)
            getattr(own, f"bias_{name}_l{k}").data.copy_(part.bias)
    return own


def test_the_lstm_computes_what_torchs_own_does() -> None:
    torch.manual_seed(0)
    model = LSTM((9,), 12)
    own = torchs_own([model.lower, model.upper])
    x = torch.randint(12, (3, 9))
    states, (hidden, cell) = own(model.embedding(x))
    expected = model.head(torch.cat([*cell, *hidden], -1))
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(expected, nn.functional.linear(states[:, -1], model.head.weight, model.head.bias))
    model(x).logsumexp(-1).sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    own(model.embedding(x))[0][:, -1].matmul(model.head.weight.t()).add(model.head.bias).logsumexp(-1).sum().backward()
    for name, weight in own.named_parameters():
        layer, part = ("lower", "upper")[int(name[-1])], "inward" if "_ih_" in name else "onward"
        torch.testing.assert_close(found[f"{layer}.{part}.{name.split('_')[0]}"], weight.grad)
    torch.testing.assert_close(found["embedding.weight"], model.embedding.weight.grad)


def test_the_lstm_is_drawn_as_torchs_own() -> None:
    torch.manual_seed(0)
    layer = Recurrent(8, 256)
    for weight in layer.parameters():
        assert 0.9 / 16 < float(weight.detach().abs().max()) <= 1 / 16


def test_features_are_those_that_knnper_compares() -> None:
    x = torch.randint(12, (3, 9), generator=torch.Generator().manual_seed(0))
    for name, shape, width in (("lstm", (9,), 1024), ("mobilenet", (3, 8, 8), 1280), ("resnet18", (3, 8, 8), 512)):
        net = Net(lambda name=name, shape=shape: MODELS[name](shape, 12))
        params = net.fresh(torch.Generator().manual_seed(0))
        given = x if name == "lstm" else torch.zeros(3, *shape)
        features, logits = net.features(params, given)
        assert features.shape == (3, width)
        assert torch.equal(logits, net(params, given))


def test_torchs_own_lstm_is_refused_by_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)
            self.head = nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match=r"Layer 'rnn' \(LSTM\) breaks the rules"):
        check_task(task(Own, (6, 3)))


def test_texts_are_sequences() -> None:
    with pytest.raises(DataError, match=r"'lstm' takes sequences of characters; an example here has shape \(1, 8, 8\)"):
        LSTM((1, 8, 8), 10)


def sequences(dtype: str, top: int) -> Federation:
    x = (np.arange(60).reshape(6, 10) % (top + 1)).astype(dtype)
    return Federation.from_arrays(x, np.arange(6) % 5, train=[[0, 1, 2]], test=[[3, 4, 5]], classes=5)


def test_text_is_told_by_its_numbers() -> None:
    assert sequences("int8", 4).examples.text
    assert sequences("int64", 4).examples.text
    assert not sequences("int64", 5).examples.text
    assert not sequences("float32", 4).examples.text
    assert make_task(sequences("int8", 4), LSTM).dtype == torch.int64
    for wrong in (sequences("int64", 5), sequences("float32", 4)):
        with pytest.raises(DataError, match="reads sequences of whole numbers from 0 to 4, one for each class"):
            make_task(wrong, LSTM)
    assert make_task(sequences("int64", 5), MLP).dtype == torch.int64, "an MLP takes whole numbers too"


def test_memory_is_reckoned_for_every_step_of_a_sequence() -> None:
    short, long = (memory(LSTM, (length,), torch.int64) for length in (10, 80))
    assert 7.5 < long / short < 8.5


# refusals


def test_dropout_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"Layer '2' \(Dropout\) breaks the rules"):
        check_task(task(lambda: flat(nn.Dropout(0.5))))


def test_running_statistics_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"Layer '2' \(BatchNorm1d\) keeps running statistics.*GroupNorm"):
        check_task(task(lambda: flat(nn.BatchNorm1d(6))))


def test_batch_statistics_and_groups_are_accepted() -> None:
    check_task(task(lambda: flat(nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh())))
    check_task(task(lambda: flat(nn.GroupNorm(2, 6))))


def test_a_refused_layer_deep_inside_is_found() -> None:
    def build(layer: nn.Module) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            model = ResNet18((1, 8, 8), 10)
            model.blocks[3].path[1] = layer
            return model

        return made

    with pytest.raises(ModelError, match=r"Layer 'blocks\.3\.path\.1' \(BatchNorm2d\) keeps running statistics"):
        check_task(task(build(nn.BatchNorm2d(128))))
    with pytest.raises(ModelError, match=r"Layer 'blocks\.3\.path\.1' \(Dropout2d\) breaks the rules"):
        check_task(task(build(nn.Dropout2d(0.1))))


@pytest.mark.parametrize("outputs", [9, 11])
def test_a_wrong_number_of_scores_is_refused(outputs: int) -> None:
    with pytest.raises(ModelError, match=rf"returns shape \(2, {outputs}\) for 2 examples; it must be \(2, 10\)"):
        check_task(task(lambda: flat(outputs=outputs)))


def test_a_layer_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"Layer '1' \(Linear\) breaks the rules"):
        check_task(task(lambda: flat(), shape=(1, 8, 9)))


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
        check_task(task(Nested))


def test_a_check_leaves_no_hooks_behind() -> None:
    one = task(lambda: flat(nn.Dropout(0.5)))
    with pytest.raises(ModelError):
        check_task(one)
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
    check_task(task(Shifted))


def test_the_head_is_the_last_layer() -> None:
    shapes = {name: (80,) if name == "lstm" else (3, 32, 32) for name in MODELS}
    heads = {name: task(lambda name=name: MODELS[name](shapes[name], 7), shapes[name], 7).head for name in MODELS}
    assert heads == {
        "lenet": ("fc3.weight", "fc3.bias"),
        "cnn": ("layers.4.weight", "layers.4.bias"),
        "cnn64": ("layers.4.weight", "layers.4.bias"),
        **dict.fromkeys(("mlp", "conv4", "resnet18", "mobilenet", "lstm"), ("head.weight", "head.bias")),
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


# in several sizes


@pytest.mark.parametrize(("model", "shape"), [(LeNet, (3, 32, 32)), (LeNet, SHAPE), (CNN, SHAPE), (MLP, SHAPE)])
def test_one_forward_pass_serves_a_model_in_all_sizes(model: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    nets = {size: Net(lambda size=size: in_size(model, size)(shape, 7)) for size in SIZES}
    usual, largest = Net(lambda: model(shape, 7)), nets["L"]
    assert nets["M"].shapes == usual.shapes
    assert nets["S"].size < nets["M"].size < nets["L"].size
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    for net in nets.values():
        weights = net.fresh(torch.Generator().manual_seed(1))
        assert torch.equal(largest(weights, x, also=[net.shapes]), net(weights, x))


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
    alone = make_task(toys.federation(), Stubborn, ["S"])  # everybody's: there is nothing to tell apart
    assert alone.model.shapes["hidden.weight"] == (4, 64)
    assert not alone.sizes
    task = make_task(toys.federation(), MLP, ["L", "S"])
    assert task.model.shapes == task.sizes["L"]
    assert task.sizes["S"]["hidden.weight"] == (50, 64)


def test_threads_do_not_meet_in_a_network() -> None:
    """A call puts weights into a skeleton, so two threads need two."""
    net = toys.task().model
    x = torch.randn(4, 1, 8, 8)
    weights = [net.fresh(torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected = [net(each, x) for each in weights]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            found = list(pool.map(lambda each: net.features(each, x)[1], weights))
            assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))


def test_a_weight_in_two_places_is_one_weight() -> None:
    def build() -> nn.Module:
        first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        second.weight = first.weight
        return nn.Sequential(first, second)

    net = Net(build)
    assert [*net.shapes] == ["0.weight"]
    assert net({"0.weight": 2 * torch.eye(3)}, torch.ones(1, 3)).tolist() == [[4.0] * 3]


def test_threads_draw_their_own_weights() -> None:
    """Constructors draw from a generator that the whole process has in common."""
    net = Net(lambda: LeNet((3, 32, 32), 10))

    def drawn(seed: int) -> Tree:
        return net.fresh(torch.Generator().manual_seed(seed))

    alone = [drawn(seed) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(drawn, range(24)))
    assert all(toys.same(a, b) for a, b in zip(alone, together, strict=True))


# embedding networks


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 17, 20)])
def test_labels_are_planes_behind_the_channels(shape: tuple[int, ...]) -> None:
    """What a plane adds is worked out once a class; by the definition, it is an input like any other."""
    net, wide = ExampleAndLabel(shape, 4, 5), Net(lambda: LeNet((shape[0] + 4, *shape[1:]), 5))
    params = {name: weight.double() for name, weight in net.fresh(torch.Generator().manual_seed(0)).items()}
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(1)).double()
    y = torch.tensor([0, 3, 3, 1, -1, 2])  # one is unknown

    def planes(params: Tree) -> Tensor:
        return wide(params, torch.cat([x, one_hot(y, 4)[:, :, None, None].expand(-1, -1, *shape[1:])], 1))

    def ours(params: Tree) -> Tensor:
        return net.embed(params, Batch(x, y, torch.ones(6, dtype=torch.bool)))

    assert wide.shapes == net.shapes
    torch.testing.assert_close(ours(params), planes(params))
    found, expected = (grad(lambda params, f=f: f(params).square().sum())(params) for f in (ours, planes))
    for name in params:
        torch.testing.assert_close(found[name], expected[name])


def test_labels_follow_an_example_that_is_no_image() -> None:
    net, wide = ExampleAndLabel((7,), 3, 5), Net(lambda: MLP((10,), 5))
    params, x, y = net.fresh(torch.Generator().manual_seed(0)), torch.randn(4, 7), torch.tensor([0, 2, -1, 1])
    found = net.embed(params, Batch(x, y, torch.ones(4, dtype=torch.bool)))
    torch.testing.assert_close(found, wide(params, torch.cat([x, one_hot(y, 3)], 1)))
