"""Deep networks for images, with GroupNorm: a client step keeps no running statistics, and batches are small."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.norm import Norm
from .shape import image

SMALL = 64  # pixels; below, the first layers do not shrink the image

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # of ResNet18: channels, stride of the first of two blocks

BOTTLENECKS = (  # of MobileNet-v2, its table 2: expansion, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def normalise(channels: int, relu: bool = False) -> Norm:
    """Groups of at least 8 channels, so that a single pixel can still be normalised; at most 32, Wu and He's number."""
    return Norm(min(32, channels // 8), channels, relu)


class ResNet18(nn.Module):
    """ResNet18 (He et al. 2016) with GroupNorm; below 64 pixels it begins with a 3x3 convolution and no pooling."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, height, width = image(shape, "resnet18")
        small = min(height, width) < SMALL
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(channels, 64, 7, 2, 3, bias=False),
            normalise(64, relu=True),
            nn.Identity(),  # holds its place, so that parameters keep their names
            nn.Identity() if small else nn.MaxPool2d(3, 2, 1),
        )
        blocks, before = [], 64
        for after, stride in STAGES:
            blocks += [Residual(before, after, stride), Residual(after, after, 1)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((-2, -1)))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two 3x3 convolutions, and what they are added to: the input, or a projection of it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            normalise(after, relu=True),
            nn.Identity(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            normalise(after, relu=True),
        )
        same = before == after and stride == 1
        project = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), normalise(after))
        self.short = nn.Identity() if same else project

    def forward(self, x: Tensor) -> Tensor:
        *before, last = self.path
        y = x
        for layer in before:
            y = layer(y)
        return last(y, self.short(x))  # type: ignore[no-any-return]


class MobileNet(nn.Module):
    """MobileNet-v2 (Sandler et al. 2018) with GroupNorm and no dropout; below 64 pixels its first stride is 1."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, height, width = image(shape, "mobilenet")
        blocks: list[nn.Module] = [_convolve(channels, 32, 3, 1 if min(height, width) < SMALL else 2)]
        before = 32
        for expansion, after, count, stride in BOTTLENECKS:
            for k in range(count):
                blocks.append(Bottleneck(before, after, expansion, stride if k == 0 else 1))
                before = after
        self.blocks = nn.Sequential(*blocks, _convolve(before, 1280, 1, 1))
        self.head = nn.Linear(1280, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean((-2, -1)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """Widen, convolve every channel by itself, narrow; the input is added where the shapes allow it."""

    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = before * expansion
        self.path = nn.Sequential(
            *([] if expansion == 1 else [_convolve(before, wide, 1, 1)]),
            _convolve(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, after, 1, bias=False),
            normalise(after),
        )
        self.short = before == after and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)
        return x + y if self.short else y


def _convolve(before: int, after: int, side: int, stride: int, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, normalise(after), nn.ReLU6())
