"""Define untuned networks with seeded weights and their inputs: from torchvision, timm and transformers, and two of our
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tvmflow.frontends.source_model import Arrays, TensorSpec, one_input
from tvmflow.sources.networks.seeded_weights import settle
from tvmflow.sources.networks.torch_zoo import build_seeded, torchvision_models
from tvmflow.support.errors import UsageError

_SEED = 3
_TOKENS = 128


@dataclass(frozen=True)
class Entry:
    """make: the network in evaluation mode; inputs: what it takes, in order. highest: of integers, exclusive."""

    make: Callable[[], Any]
    inputs: tuple[TensorSpec, ...]
    highest: int = 2

    def samples(self, seed: int = 0) -> Arrays:
        """Return random inputs: numbers around 0, integers, and masks of all but the last quarter."""
        generator = np.random.default_rng(seed)
        return tuple(self._sample(spec, generator) for spec in self.inputs)

    def _sample(self, spec: TensorSpec, generator: np.random.Generator) -> Any:
        if spec.name == "attention_mask":
            kept = np.arange(spec.shape[-1]) < spec.shape[-1] * 3 // 4
            return np.broadcast_to(kept, spec.shape).astype(spec.dtype)
        if spec.dtype != "float32":
            return generator.integers(0, self.highest, spec.shape, spec.dtype)
        return generator.standard_normal(spec.shape, dtype=np.float32)


class UNet(nn.Module):  # type: ignore[misc]
    """Two convolutions a level, halved by pooling, doubled by deconvolution, joined by concatenation (Ronneberger et
    al. 2015).
    """

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 256, 512), classes: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((3, *channels), channels, strict=False))
        pairs = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(_twice(2 * b, b) for _, b in pairs)
        self.last = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = [self.down[0](x)]
        for level in list(self.down)[1:]:
            seen.append(level(nn.functional.max_pool2d(seen[-1], 2)))
        y = seen.pop()
        for wider, level in zip(self.wider, self.up, strict=True):
            y = level(torch.cat([seen.pop(), wider(y)], 1))
        scores: torch.Tensor = self.last(y)
        return scores


def _twice(inputs: int, outputs: int) -> nn.Module:
    def one(channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(*one(inputs), *one(outputs))


def _silu(inputs: int, outputs: int, size: int = 1, stride: int = 1) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class _Csp(nn.Module):  # type: ignore[misc]
    """Half of the channels go through residual blocks, and all of what they make is joined (YOLOv8's C2f)."""

    def __init__(self, inputs: int, outputs: int, depth: int, residual: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.first, self.residual = _silu(inputs, outputs), residual
        self.blocks = nn.ModuleList(nn.Sequential(_silu(half, half, 3), _silu(half, half, 3)) for _ in range(depth))
        self.last = _silu(outputs + depth * half, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            made = block(parts[-1])
            parts.append(parts[-1] + made if self.residual else made)
        y: torch.Tensor = self.last(torch.cat(parts, 1))
        return y


class Yolo(nn.Module):  # type: ignore[misc]
    """A detector like YOLOv8-n without its post-processing: boxes and classes at three strides."""

    def __init__(self, width: int = 16, classes: int = 80, bins: int = 16) -> None:
        super().__init__()
        a, b, c, d, e = (width * 2**i for i in range(5))
        self.stem = nn.Sequential(
            _silu(3, a, 3, 2), _silu(a, b, 3, 2), _Csp(b, b, 1, True), _silu(b, c, 3, 2), _Csp(c, c, 2, True)
        )
        self.middle = nn.Sequential(_silu(c, d, 3, 2), _Csp(d, d, 2, True))
        self.deep = nn.Sequential(_silu(d, e, 3, 2), _Csp(e, e, 1, True))
        self.squeeze, self.spread = _silu(e, e // 2), _silu(2 * e, e)
        self.up = nn.ModuleList([_Csp(e + d, d, 1, False), _Csp(d + c, c, 1, False)])
        self.halve = nn.ModuleList([_silu(c, c, 3, 2), _silu(d, d, 3, 2)])
        self.down = nn.ModuleList([_Csp(c + d, d, 1, False), _Csp(d + e, e, 1, False)])
        self.boxes = nn.ModuleList(self._head(n, max(b, 4 * bins), 4 * bins) for n in (c, d, e))
        self.classes = nn.ModuleList(self._head(n, max(c, classes), classes) for n in (c, d, e))

    @staticmethod
    def _head(inputs: int, middle: int, outputs: int) -> nn.Module:
        return nn.Sequential(_silu(inputs, middle, 3), _silu(middle, middle, 3), nn.Conv2d(middle, outputs, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        fine = self.stem(x)
        middle = self.middle(fine)
        pooled = [self.squeeze(self.deep(middle))]
        for _ in range(3):
            pooled.append(nn.functional.max_pool2d(pooled[-1], 5, 1, 2))
        deep = self.spread(torch.cat(pooled, 1))
        middle = self.up[0](torch.cat([_doubled(deep), middle], 1))
        fine = self.up[1](torch.cat([_doubled(middle), fine], 1))
        middle = self.down[0](torch.cat([self.halve[0](fine), middle], 1))
        deep = self.down[1](torch.cat([self.halve[1](middle), deep], 1))
        made: dict[str, torch.Tensor] = {}
        for stride, y, boxes, classes in zip((8, 16, 32), (fine, middle, deep), self.boxes, self.classes, strict=True):
            made |= {f"boxes{stride}": boxes(y), f"classes{stride}": classes(y)}
        return made


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")


class _Detector(nn.Module):  # type: ignore[misc]
    """A detector of torchvision as a function of images to classes and boxes of its anchors, before they are chosen
    from.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = network.backbone, network.head

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = self.head(list(self.backbone(x).values()))
        return made


def with_statistics(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """Return a network whose batch norms have the statistics of a batch, so that outputs follow inputs."""
    torch.manual_seed(_SEED)
    network = make()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(2, *shape))
    return network.eval()


def _ssdlite() -> nn.Module:
    detection = torchvision_models().detection
    return _Detector(detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))


def _timm(name: str, size: int) -> nn.Module:
    torchvision_models()  # which timm imports, where its operators may be missing
    import timm

    torch.manual_seed(_SEED)
    network: nn.Module = timm.create_model(name).eval()
    settle(network, (3, size, size), _SEED)
    return timm.utils.model.reparameterize_model(network)  # type: ignore[no-any-return]


def _transformers(name: str, config: str, **settings: Any) -> nn.Module:
    torchvision_models()
    import transformers

    torch.manual_seed(_SEED)
    kind = getattr(transformers, name, None) or getattr(transformers.models.whisper.modeling_whisper, name)
    network: nn.Module = kind(getattr(transformers, config)(**settings)).eval()
    return network


def _image(make: Callable[[], Any], size: int = 224) -> Entry:
    return Entry(make, one_input("x", (1, 3, size, size)))


def network_named(name: str) -> Entry:
    """Return a network of the table, or any other: timm/NAME, torchvision/NAME, each with @SIZE behind it for another
    image than its own (timm) or than 224x224.

    Raises:
        UsageError: No such network.
    """
    kind, _, rest = name.partition("/")
    other, _, size = rest.partition("@")
    if name in NETWORKS:
        return NETWORKS[name]
    if kind == "torchvision" and other:
        return _image(lambda: build_seeded(f"torchvision/{other}", _SEED), int(size or 224))
    if kind == "timm" and other:
        side = int(size or _timm_size(other))
        return _image(lambda: _timm(other, side), side)
    raise UsageError(f"there is no network '{name}'", f"{', '.join(NETWORKS)}, timm/NAME or torchvision/NAME")


def _timm_size(name: str) -> int:
    torchvision_models()
    import timm

    if not timm.is_model(name):
        raise UsageError(f"timm has no network '{name}'", "a name of timm.list_models()")
    return int(timm.get_pretrained_cfg(name).input_size[-1])


def _text(name: str, config: str) -> Entry:
    specs = tuple(TensorSpec(tensor, (1, _TOKENS), "int64") for tensor in ("input_ids", "attention_mask"))
    return Entry(lambda: _transformers(name, config), specs, 30000)


def _decoder(name: str, config: str, **settings: Any) -> Entry:
    """Return a language model that reads 128 tokens and scores the next of each, as when it begins on a prompt."""
    specs = one_input("input_ids", (1, _TOKENS), "int64")
    return Entry(lambda: _transformers(name, config, use_cache=False, **settings), specs, 30000)


_SMALL_LLAMA = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
}

_TORCHVISION = (
    "efficientnet_b0",
    "efficientnet_v2_s",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "mnasnet1_0",
    "shufflenet_v2_x1_0",
    "regnet_y_400mf",
    "resnext50_32x4d",
    "densenet121",
    "googlenet",
    "resnet18",
    "resnet50",
    "squeezenet1_1",
    "vgg16",
    "convnext_tiny",
    "vit_b_16",
    "vit_b_32",
    "swin_t",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
    "fcn_resnet50",
)
_TIMM = {"deit_tiny_patch16_224": 224, "mobilenetv4_conv_small": 224, "mobileone_s0": 224, "mobilevit_s": 256}

NETWORKS: dict[str, Entry] = {
    **{name: _image(lambda name=name: build_seeded(f"torchvision/{name}", _SEED)) for name in _TORCHVISION},  # type: ignore[misc]
    **{name: _image(lambda name=name, size=size: _timm(name, size), size) for name, size in _TIMM.items()},  # type: ignore[misc]
    "unet": _image(lambda: with_statistics(UNet, (3, 256, 256)), 256),
    "yolo": _image(lambda: with_statistics(Yolo, (3, 320, 320)), 320),
    "ssdlite320_mobilenet_v3_large": _image(lambda: with_statistics(_ssdlite, (3, 320, 320)), 320),
    "bert_base": _text("BertModel", "BertConfig"),
    "distilbert": _text("DistilBertModel", "DistilBertConfig"),
    "gpt2": _decoder("GPT2LMHeadModel", "GPT2Config"),
    "llama_small": _decoder("LlamaForCausalLM", "LlamaConfig", **_SMALL_LLAMA),
    "whisper_tiny_encoder": Entry(
        lambda: _transformers("WhisperEncoder", "WhisperConfig"), one_input("input_features", (1, 80, 3000))
    ),
}
