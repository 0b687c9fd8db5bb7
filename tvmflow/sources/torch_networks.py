"""PyTorch networks by name: ours, and `torchvision/NAME`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tvmflow.errors import UnknownNameError


def _digits_cnn() -> nn.Module:
    """Build three 3x3 convolutions and a classifier for (N, 1, 8, 8) images of ten digits; 30 k weights."""

    def conv(channels_in: int, channels_out: int) -> list[nn.Module]:
        layer = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(channels_out), nn.ReLU()]

    return nn.Sequential(
        *conv(1, 32), *conv(32, 32), nn.MaxPool2d(2), *conv(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {"digits_cnn": _digits_cnn}


def _declare_missing_operators() -> Any:
    """Declare the two operators whose library torchvision's wheel cannot load beside a CPU-only torch."""
    library = torch.library.Library("torchvision", "DEF")
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        try:
            library.define(schema)
        except RuntimeError:
            pass  # torchvision's own library did load
    return library


_declared: list[Any] = []


def torchvision_models() -> Any:
    """Return torchvision.models, importable also where torchvision's operators are not."""
    if not _declared:
        _declared.append(_declare_missing_operators())
    import torchvision.models as models

    return models


def build(name: str, seed: int | None = None) -> nn.Module:
    """Return a network in evaluation mode, with weights made from `seed`. Raises UnknownNameError."""
    torch.manual_seed(0 if seed is None else seed)
    if name in NETWORKS:
        return NETWORKS[name]().eval()
    match = re.fullmatch(r"torchvision/([a-z0-9_]+)", name)
    models = torchvision_models() if match else None
    if match is None or models is None or match[1] not in models.list_models(module=models):
        legal = [
            *NETWORKS,
            *(f"torchvision/{n}" for n in torchvision_models().list_models(module=torchvision_models())),
        ]
        raise UnknownNameError(f"no torch network {name!r}", legal=legal)
    return _settle(models.get_model(match[1], weights=None)).eval()


def _settle(network: nn.Module) -> nn.Module:
    """Give batch norms the statistics of something seen, so that seeded networks keep their signal in range."""
    with torch.no_grad():
        for module in network.modules():
            if (
                isinstance(module, nn.BatchNorm2d)
                and module.running_mean is not None
                and module.running_var is not None
            ):
                module.running_mean.normal_(0.0, 0.1)
                module.running_var.uniform_(0.8, 1.2)
    return network
