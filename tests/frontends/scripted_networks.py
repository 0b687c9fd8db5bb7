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


class Speech(torch.nn.Module):
    """Flags and tensors that a first run sets, as streaming networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Remembers()
        self.context = torch.zeros(0)
        self.last_rate = 0
        self.register_buffer("runs", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("weight", torch.tensor([[1.0, 2.0]]))

    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        if self.last_rate != 0 and self.last_rate != rate:
            self.context = torch.zeros(0)
        if len(self.context) == 0:
            self.context = torch.zeros(x.shape[0], 2)
        self.runs += 1
        y = self.inner(torch.cat([self.context, x], 1)) * self.runs
        self.context = x[:, -2:] * self.weight
        self.last_rate = rate
        return y


class Lists(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.past = [torch.zeros(1, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past.append(x)
        return self.past[-2] + x


class Decides(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if bool(self.last.sum() > 0):
            y = x * 2
        self.last = x
        return y
