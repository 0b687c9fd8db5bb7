"""Build PyTorch networks by name: ours, and `torchvision/NAME`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvmflow.sources.networks.seeded_weights import settle
from tvmflow.sources.networks.without_dynamo import without_dynamo
from tvmflow.support.errors import SourceError, UnknownNameError, first_line


def _digits_cnn() -> nn.Module:
    """Build three 3x3 convolutions and a classifier for (N, 1, 8, 8) images of ten digits; 30 k weights."""

    def conv(channels_in: int, channels_out: int) -> list[nn.Module]:
        layer = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(channels_out), nn.ReLU()]

    return nn.Sequential(
        *conv(1, 32),
        *conv(32, 32),
        nn.MaxPool2d(2),
        *conv(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class _InvertedResidual(nn.Module):  # type: ignore[misc]
    """Expand, filter each channel, project; added to its input where shapes allow (Sandler et al. 2018)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = channels_in * expand
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.is_residual = stride == 1 and channels_in == channels_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y if self.is_residual else y


def _digits_depthwise() -> nn.Module:
    """Build a MobileNetV2 for (N, 1, 8, 8) digits whose channel scales differ like those of large trained networks.

    The batch norms before depthwise filters start with factors spread over two orders of magnitude. Training keeps the
    spread, which makes 8 bits per tensor lose accuracy.
    """
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
        _InvertedResidual(16, 16, 1, 4),
        _InvertedResidual(16, 24, 2, 4),
        _InvertedResidual(24, 24, 1, 4),
        _InvertedResidual(24, 32, 2, 4),
        _InvertedResidual(32, 32, 1, 4),
        nn.Conv2d(32, 64, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    for module in network.modules():
        if isinstance(module, _InvertedResidual):
            for norm in (module.body[1], module.body[4]):
                with torch.no_grad():
                    norm.weight.copy_(torch.exp(torch.empty_like(norm.weight).uniform_(-3.0, 1.6)))
    return network


class _Segmenter(nn.Module):  # type: ignore[misc]
    """A segmentation network of torchvision that maps images (N, 3, H, W) to scores (N, classes, H, W), without
    auxiliary outputs.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.network(x)["out"]
        return scores


NETWORKS: dict[str, Callable[[], nn.Module]] = {"digits_cnn": _digits_cnn, "digits_depthwise": _digits_depthwise}


_declared: list[Any] = []  # keeps the library alive, and with it its operators


def _declare_missing_operators() -> None:
    """Declare the two operators whose library torchvision's wheel cannot load beside a CPU-only torch."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def torchvision_models() -> Any:
    """Return torchvision.models, also if torchvision's operators cannot be loaded.

    torchvision is imported first: if its library loads, it defines the operators, and a second definition would abort
    the process.
    """
    with without_dynamo():
        try:
            import torchvision.models as models
        except RuntimeError:
            if _declared:
                raise
            _declare_missing_operators()
            import torchvision.models as models
    return models


FACTORY = re.compile(r"([\w./-]+\.py):([A-Za-z_]\w*)")


def _from_file(match: re.Match[str], folder: Path) -> nn.Module:
    """Call a user's factory `path/to/file.py:function`."""
    path = folder / match[1]
    try:
        specification = importlib.util.spec_from_file_location("user_network", path)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        network = getattr(module, match[2])()
    except Exception as error:  # any error of the user's code
        raise SourceError(
            f"the network factory {match[0]} failed: {type(error).__name__}: {first_line(error)}",
            "a function without arguments",
        ) from error
    if not isinstance(network, nn.Module):
        raise SourceError(f"the network factory {match[0]} returns {type(network).__name__}", "a torch.nn.Module")
    return network.eval()


def build(name: str, seed: int | None = None, folder: Path | None = None) -> nn.Module:
    """Return a network in evaluation mode with seeded weights. Raises UnknownNameError, SourceError. folder: root of
    `file.py:function` names.
    """
    torch.manual_seed(0 if seed is None else seed)
    own = FACTORY.fullmatch(name)
    if own and folder is not None:
        return _from_file(own, folder)
    if name in NETWORKS:
        return NETWORKS[name]().eval()
    match = re.fullmatch(r"torchvision/([a-z0-9_]+)", name)
    models = torchvision_models()
    classifiers, segmenters = models.list_models(module=models), models.list_models(module=models.segmentation)
    if match and match[1] in classifiers:
        return models.get_model(match[1], weights=None).eval()  # type: ignore[no-any-return]
    if match and match[1] in segmenters:
        return _Segmenter(models.get_model(match[1], weights=None, weights_backbone=None)).eval()
    legal = [*NETWORKS, "path/to/file.py:function", *(f"torchvision/{n}" for n in (*classifiers, *segmenters))]
    raise UnknownNameError(f"no torch network {name!r}", legal=legal)


def build_seeded(name: str, seed: int, folder: Path | None = None) -> nn.Module:
    """Return a network in evaluation mode with seeded weights whose outputs vary; a user's network is unchanged. Raises
    like `build`.
    """
    network = build(name, seed, folder)
    if name in NETWORKS:
        settle(network, (1, 8, 8), seed)
    elif not FACTORY.fullmatch(name):
        size = 299 if name == "torchvision/inception_v3" else getattr(network, "image_size", 224)
        settle(network, (3, size, size), seed)
    return network
