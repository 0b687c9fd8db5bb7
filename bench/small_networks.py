"""Define ten networks that take less than 1 ms, with seeded weights, where passing work between threads dominates."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from bench.zoo import Entry, with_statistics
from tvmflow.frontends.source_model import one_input
from tvmflow.sources.networks.torch_zoo import NETWORKS

_SEED = 3


def _layers(*widths: int) -> nn.Module:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


def _separable(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [*_convolution(inputs, inputs, 3, stride, inputs), *_convolution(inputs, outputs, 1)]


def _head(channels: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def _keywords() -> nn.Module:
    """Build the separable convolutions for (N, 1, 49, 10) features of speech (Zhang et al. 2017)."""
    return nn.Sequential(
        nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *(layer for _ in range(4) for layer in _separable(64, 64)),
        *_head(64, 12),
    )


def _mobilenet_quarter() -> nn.Module:
    """Build MobileNetV1 of a quarter of the channels, for (N, 3, 96, 96) images."""
    blocks = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    blocks += [(128, 128, 1)] * 5 + [(128, 256, 2), (256, 256, 1)]
    middle = [layer for block in blocks for layer in _separable(*block)]
    return nn.Sequential(*_convolution(3, 8, 3, 2), *middle, *_head(256, 2))


class _Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(inputs, outputs, 3, stride), *_convolution(outputs, outputs, 3)[:-1])
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def _resnet8() -> nn.Module:
    blocks = (_Residual(16, 16, 1), _Residual(16, 32, 2), _Residual(32, 64, 2))
    return nn.Sequential(*_convolution(3, 16, 3), *blocks, *_head(64, 10))


def _waves() -> nn.Module:
    """Build four 1-D convolutions for (N, 1, 2048) samples of a sound."""

    def one(inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, outputs, size, stride, size // 2), nn.ReLU()]

    body = (*one(1, 16, 15, 4), *one(16, 32, 9, 4), *one(32, 32, 5, 2), *one(32, 64, 3, 2))
    return nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 5))


def _encoder(width: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def _entry(make: Callable[[], nn.Module], *shape: int) -> Entry:
    def settled() -> nn.Module:
        return with_statistics(make, shape)

    return Entry(settled, one_input("x", (1, *shape)))


SMALL: dict[str, Entry] = {
    "digits": _entry(NETWORKS["digits_cnn"], 1, 8, 8),
    "digits_depthwise": _entry(NETWORKS["digits_depthwise"], 1, 8, 8),
    "layers_128": _entry(lambda: _layers(64, 128, 128, 10), 64),
    "autoencoder": _entry(lambda: _layers(640, 128, 128, 128, 8, 128, 128, 128, 640), 640),
    "keywords": _entry(_keywords, 1, 49, 10),
    "resnet8": _entry(_resnet8, 3, 32, 32),
    "mobilenet_quarter": _entry(_mobilenet_quarter, 3, 96, 96),
    "waves": _entry(_waves, 1, 2048),
    "encoder_64": _entry(lambda: _encoder(64, 2), 16, 64),
    "encoder_128": _entry(lambda: _encoder(128, 2), 32, 128),
}
