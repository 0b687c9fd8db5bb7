"""Build small networks with several inputs or outputs, as PyTorch modules and as ONNX and .pt2 files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.sources.data.datasets import RandomInput, Samples, random_inputs

WORDS, LENGTH = 50, 7


class TextClassifier(nn.Module):
    """ids, mask (N, LENGTH) int64 -> scores (N, 4): embedding, one head of attention, mean over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(WORDS, 16), nn.Linear(16, 48)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        q, k, v = self.attention(x).chunk(3, dim=-1)
        real = mask.to(torch.float32)
        scores = q @ k.transpose(1, 2) / 4 + (real.unsqueeze(1) - 1) * 1e4
        y = torch.softmax(scores, dim=-1) @ v
        y = (y * real.unsqueeze(2)).sum(1) / real.sum(1, keepdim=True)
        return self.head(y)  # type: ignore[no-any-return]


class Segmenter(nn.Module):
    """image (N, 3, 16, 16) -> a map of scores (N, 5, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU())
        self.scores = nn.Conv2d(16, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(self.scores(self.down(image)), scale_factor=2.0, mode="nearest")


class TwoOutputs(nn.Module):
    """image (N, 3, 8, 8) -> scores (N, 6) and an embedding (N, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(12, 6)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(image)
        return self.head(features), features


def _inputs(name: str, batch: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    if name == "text":
        ids = torch.randint(0, WORDS, (batch, LENGTH), generator=generator)
        lengths = torch.randint(1, LENGTH + 1, (batch, 1), generator=generator)
        return ids, (torch.arange(LENGTH) < lengths).to(torch.int64)
    return (torch.randn((batch, 3, *((16, 16) if name == "segmenter" else (8, 8))), generator=generator),)


INPUTS = {"text": ("ids", "mask"), "segmenter": ("image",), "two": ("image",)}
OUTPUTS = {"text": ("scores",), "segmenter": ("map",), "two": ("scores", "features")}
SPECS: dict[str, dict[str, Any]] = {
    "text": {
        "ids": {"shape": [1, LENGTH], "dtype": "int64", "high": WORDS},
        "mask": {"shape": [1, LENGTH], "dtype": "int64", "high": 2},
    },
    "segmenter": {"image": {"shape": [1, 3, 16, 16]}},
    "two": {"image": {"shape": [1, 3, 8, 8]}},
}


def network(name: str) -> nn.Module:
    """Return a network with fixed weights, in evaluation mode."""
    torch.manual_seed(3)
    return {"text": TextClassifier, "segmenter": Segmenter, "two": TwoOutputs}[name]().eval()


def write(name: str, framework: str, folder: Path) -> Path:
    """Write model.onnx or model.pt2 into a folder."""
    module, example = network(name), _inputs(name, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, example)
        if framework == "torch":
            torch.export.save(program, folder / "model.pt2")
            return folder / "model.pt2"
        torch.onnx.export(
            program,
            (),
            folder / "model.onnx",
            input_names=list(INPUTS[name]),
            output_names=list(OUTPUTS[name]),
            external_data=False,
            verbose=False,
        )
    return folder / "model.onnx"


def described(name: str, framework: str, folder: Path, order: tuple[str, ...] = ()) -> SourceDescription:
    """Write a model file into a folder and return how params.yaml would describe it. order: of its inputs, as in SPECS
    without.
    """
    path = write(name, framework, folder)
    specs = {
        key: TensorSpec(key, tuple(spec["shape"]), spec.get("dtype", "float32")) for key, spec in SPECS[name].items()
    }
    return SourceDescription(framework, None, path.name, tuple(specs[key] for key in order or specs))


def samples_for(name: str, count: int = 6) -> Samples:
    """Return seeded values of every input."""
    wanted = [
        RandomInput(tuple(s["shape"][1:]), s.get("dtype", "float32"), None, s.get("high")) for s in SPECS[name].values()
    ]
    return random_inputs(count, wanted, 0)
