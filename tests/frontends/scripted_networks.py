"""Define networks for TorchScript, which reads their source: no annotations from the future."""

import torch


class Switch(torch.nn.Module):
    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2 if rate == 16000 else x * 3
        return y


class Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.last
        self.last = x[0, :1]
        return y
