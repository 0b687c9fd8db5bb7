"""Define the network that params.yaml names as `network.py:build`."""

from __future__ import annotations

from torch import nn


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return nn.functional.relu(x + self.second(nn.functional.relu(self.first(x))))


def build() -> nn.Module:
    """Return the network for (N, 1, 8, 8) images of digits, without weights."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        Residual(32),
        nn.MaxPool2d(2),
        Residual(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
