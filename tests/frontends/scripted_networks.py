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


class Sizes(torch.nn.Module):
    """Loops, lists and branches by sizes and flags, a fused layer that PyTorch may take, and a given list of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
        self.normalize = True

    def forward(self, x: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
        steps = torch.jit.annotate(list[torch.Tensor], [])
        for at in range(x.shape[1]):
            steps.append(x[:, at] * (at + 1))
        y = torch.stack(steps, 1)
        while y.shape[1] < 8:
            y = torch.cat([y, y], 1)
        for block in self.blocks:
            y = torch.relu(block(y))
        if self.normalize and y.dim() == 3:
            y = y - y.mean(-1, keepdim=True)
        return self.attention(y, y, y)[0] + (torch.tensor([7, 9, 11, 13]) // divisor)


class Chooses(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x + 1
        return x - 1


class Rejects(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 7)
