"""Build small networks with dynamic sizes, a text encoder and an image network, as modules and as files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

TOKENS, WIDTH = 50, 64


class Encoder(nn.Module):
    """Two layers of a text encoder; returns the states of all tokens, and of the first alone. heeds: the mask is no
    mere input.
    """

    def __init__(self, heeds: bool = True) -> None:
        super().__init__()
        self.heeds = heeds
        torch.manual_seed(1)
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Linear(WIDTH, 3 * WIDTH),
                    nn.Linear(WIDTH, 2 * WIDTH),
                    nn.Linear(2 * WIDTH, WIDTH),
                    nn.LayerNorm(WIDTH),
                ]
            )
            for _ in range(2)
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = ids.shape[1]
        y = self.tokens(ids) + self.places.weight[:length]
        hidden = (1.0 - mask[:, None, None, :].float()) * (-1e9 if self.heeds else -1e-9)
        for layer in self.layers:
            qkv, up, down, norm = layer  # type: ignore[misc]
            q, k, v = (part.reshape(1, length, 4, -1).transpose(1, 2) for part in qkv(norm(y)).chunk(3, -1))
            mixed = torch.softmax(q @ k.transpose(-1, -2) / 4 + hidden, -1) @ v
            y = y + mixed.transpose(1, 2).reshape(1, length, WIDTH)
            y = y + down(nn.functional.gelu(up(y)))
        return y, y[:, 0]


class Images(nn.Module):
    """image (N, 3, 16, 16) -> scores (N, 16)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(64 * 4 * 4, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image))  # type: ignore[no-any-return]


ENCODER: dict[str, Any] = {
    "inputs": {
        "ids": {"shape": [1, "length"], "dtype": "int64", "high": TOKENS, "pad": 3},
        "mask": {"shape": [1, "length"], "dtype": "int64", "high": 2},
    },
    "buckets": {"length": [16, 40]},
    "task": "embedding",
}
IMAGES: dict[str, Any] = {"inputs": {"image": {"shape": ["batch", 3, 16, 16]}}, "buckets": {"batch": [1, 4]}}


def write_encoder(folder: Path, heeds: bool = True) -> Path:
    """Write model.onnx, whose length is open."""
    example = (torch.zeros((1, 7), dtype=torch.int64), torch.ones((1, 7), dtype=torch.int64))
    length = torch.export.Dim("length", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Encoder(heeds).eval(), example, dynamic_shapes=({1: length}, {1: length}))
        torch.onnx.export(
            program,
            (),
            folder / "model.onnx",
            input_names=["ids", "mask"],
            output_names=["states", "first"],
            external_data=False,
            verbose=False,
        )
    return folder / "model.onnx"


def write_images(folder: Path) -> Path:
    """Write model.pt2, whose batch is open."""
    batch = torch.export.Dim("batch", min=1, max=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Images().eval(), (torch.ones((2, 3, 16, 16)),), dynamic_shapes=({0: batch},))
        torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2"
