"""Define networks that keep values between runs, in files and as factories of a user's own file."""

import torch
from torch import nn


class Counter(nn.Module):
    shape = (1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 2
        return x * self.count


class Ring(nn.Module):
    shape = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.arange(6.0).reshape(1, 6))
        self.register_buffer("scale", torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.ring = torch.cat([self.ring[:, 1:], x], 1)
        return {"mean": (self.ring * self.scale).mean(1, keepdim=True)}


class RingInPlace(nn.Module):
    shape = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ring[:, :-1] = self.ring[:, 1:].clone()
        self.ring[:, -1:] = x
        return self.ring.relu_().sum(1, keepdim=True)


class _Keys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 8, 4), persistent=False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.dense, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, self.position, self.dense(x))
        self.position.add_(1)
        return torch.softmax(self.norm(self.keys) @ x.transpose(1, 2), 1)


class Cache(nn.Module):
    """A cache of keys beside a norm in evaluation mode, whose statistics stay."""

    shape = (1, 1, 4)

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Keys()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class SliceCache(nn.Module):
    shape = (2, 2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(2, 6, 4))
        self.register_buffer("mask", torch.zeros(2, 6, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.values[:, :4] = self.values[:, 2:].clone()
        self.values[:, 4:] = x
        self.mask = torch.cat([self.mask[:, 2:], x[:, :, 0] > 0], 1)
        return self.values.masked_fill(~self.mask[:, :, None], 0).sum(1)


class Recurrent(nn.Module):
    shape = (1, 3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 5, batch_first=True)
        self.register_buffer("hidden", torch.zeros(1, 1, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.layer(x, self.hidden)
        return y


class Half(nn.Module):
    shape = (1, 4)
    dtype = torch.float16

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((1, 4), 0.5, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.last
        self.last = y * 0.75
        return y


class Nested(nn.Module):
    """Values that code of inner modules assigns, one of them in a plain attribute."""

    shape = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Ring(), torch.tensor([[0.25]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x * 2)["mean"] - self.last
        self.last = x
        return y


class Norm(nn.Module):
    """A norm whose statistics stay in evaluation mode, and a table that stays."""

    shape = (2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.table = nn.BatchNorm1d(4), torch.arange(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + self.table


class Numbers(nn.Module):
    shape = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.last = 0, torch.zeros(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x * self.runs


class Grows(nn.Module):
    shape = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, x], 1)
        return self.past.sum(1, keepdim=True)
