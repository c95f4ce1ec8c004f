"""Client models: the networks that every client gets its own weights for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from ..errors import SettingError, UnknownName
from ..ops.convolution import ConvReLUPool
from ..ops.linear import LinearReLU
from .recurrent import LSTM
from .residual import MobileNet, ResNet18, normalise
from .shape import image as _image


class LeNet(nn.Module):
    """Two convolutions and three linear layers, as in pFedHN and PeFLL. Small images are padded to what it needs.

    `width` is the number of filters of the first convolution; the second has twice as many.
    """

    widths: ClassVar = {"S": 8, "M": 16, "L": 32}  # pFedHN, appendix B

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = widths["M"]) -> None:
        super().__init__()
        channels, *sides = _image(shape, "lenet")
        padding = 2 if min(sides) < 16 else 0  # without padding, a 5x5 filter twice eats images this small
        self.conv1 = ConvReLUPool(channels, width, 5, padding=padding)
        self.conv2 = ConvReLUPool(width, 2 * width, 5, padding=padding)
        shrink = 4 - 2 * padding
        rows, columns = (((side - shrink) // 2 - shrink) // 2 for side in sides)
        self.fc1 = LinearReLU(2 * width * rows * columns, 120)
        self.fc2 = LinearReLU(120, 84)
        self.fc3 = nn.Linear(84, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.after_first(self.conv1(x))

    def after_first(self, x: Tensor) -> Tensor:
        """All layers but the first convolution."""
        return self.fc3(self.fc2(self.fc1(self.conv2(x).flatten(1))))  # type: ignore[no-any-return]


class CNN(nn.Module):
    """The small network of FedAvg (McMahan et al. 2017): two padded 5x5 convolutions, one hidden layer of 512."""

    widths: ClassVar = {"S": 16, "M": 32, "L": 64}  # filters of the first convolution

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = widths["M"]) -> None:
        super().__init__()
        channels, *sides = _image(shape, "cnn")
        self.layers = nn.Sequential(
            ConvReLUPool(channels, width, 5, padding=2),
            ConvReLUPool(width, 2 * width, 5, padding=2),
            nn.Flatten(),
            LinearReLU(2 * width * (sides[0] // 4) * (sides[1] // 4), 512),
            nn.Linear(512, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class CNN64(nn.Module):
    """The small network of FLowDUP's paper: two unpadded 5x5 convolutions, one hidden layer of 64."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, height, width = _image(shape, "cnn64")
        padding = 2 if min(height, width) < 16 else 0  # as in LeNet: small images would be eaten up
        convolutions = [ConvReLUPool(*sides, 5, padding=padding) for sides in ((channels, 32), (32, 64))]
        shrink = 4 - 2 * padding
        rows, columns = (((side - shrink) // 2 - shrink) // 2 for side in (height, width))
        self.layers = nn.Sequential(
            *convolutions, nn.Flatten(), LinearReLU(64 * rows * columns, 64), nn.Linear(64, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Conv4(nn.Module):
    """Four 3x3 convolutions of 64 with GroupNorm and two linear layers, for Omniglot as in pFedHN."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, *sides = _image(shape, "conv4")
        blocks: list[nn.Module] = []
        for before in (channels, 64, 64, 64):
            blocks += [nn.Conv2d(before, 64, 3, padding=1), normalise(64), nn.ReLU()]
            if min(sides) > 1:
                blocks.append(nn.MaxPool2d(2))
                sides = [side // 2 for side in sides]
        self.blocks = nn.Sequential(*blocks, nn.Flatten())
        self.hidden = LinearReLU(64 * sides[0] * sides[1], 120)
        self.head = nn.Linear(120, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.blocks(x)))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """One hidden layer of 100."""

    widths: ClassVar = {"S": 50, "M": 100, "L": 200}  # of the hidden layer

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = widths["M"]) -> None:
        super().__init__()
        inputs = 1
        for side in shape:
            inputs *= side
        self.hidden = LinearReLU(inputs, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1).to(self.hidden.weight.dtype)  # whole numbers too
        return self.head(self.hidden(x))  # type: ignore[no-any-return]


Builder = Callable[[tuple[int, ...], int], nn.Module]
MODELS: dict[str, Builder] = {
    "lenet": LeNet,
    "cnn": CNN,
    "cnn64": CNN64,
    "mlp": MLP,
    "conv4": Conv4,
    "resnet18": ResNet18,
    "mobilenet": MobileNet,
    "lstm": LSTM,
}


def builder(name: str, shape: tuple[int, ...], text: bool = False) -> Builder:
    """A named model's class; `auto`: the papers' LeNet for images, LSTM for text, an MLP for what is too small."""
    if name == "auto" and text:
        return LSTM
    if name == "auto":
        return LeNet if len(shape) == 3 and min(shape[1:]) >= 16 else MLP
    if name not in MODELS:
        raise UnknownName("model", name, [*MODELS, "auto"])
    return MODELS[name]


def in_size(model: Builder, size: str) -> Builder:
    """The same model for clients of this budget: a class says by `widths` how wide it is in each size."""
    widths: dict[str, int] = getattr(model, "widths", {})
    if size not in widths:
        found = f"in the sizes {', '.join(widths)}" if widths else "in one size"
        name = getattr(model, "__name__", "given")
        raise SettingError(f"The model {name} comes {found} only, not in {size!r}; leave --budgets out.")
    wide: Any = model
    return partial(wide, width=widths[size])
