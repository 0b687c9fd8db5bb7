"""Test inverses, determinants and factorizations of PyTorch, and networks with complex weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frontends.test_torch_semantics import Functions, check, check_network
from tvmflow.frontends.pytorch.files import load_program
from tvmflow.support.errors import UnsupportedOperatorError

MATRICES: Functions = {
    "inverse": lambda a, b: torch.linalg.inv(a),
    "determinant": lambda a, b: torch.linalg.det(a),
    "logarithm of a determinant": lambda a, b: torch.cat(torch.linalg.slogdet(a)),
    "solve": torch.linalg.solve,
    "solve a vector": lambda a, b: torch.linalg.solve(a[0], b[0, :, 0]),
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "cholesky": lambda a, b: torch.linalg.cholesky(a @ a.mT + torch.eye(3)),
    "cholesky of the upper half": lambda a, b: torch.linalg.cholesky(a @ a.mT + torch.eye(3), upper=True),
    "solve by cholesky": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mT + torch.eye(3))),
    "invert by cholesky": lambda a, b: torch.cholesky_inverse(torch.linalg.cholesky(a @ a.mT + torch.eye(3))),
    "lower triangle": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
    "upper triangle": lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, unitriangular=True),
    "triangle from the right": lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=True, left=False),
    "transposed triangle": lambda a, b: torch.triangular_solve(b, a, upper=True, transpose=True)[0],
    "quantiles": lambda a, b: torch.special.ndtri(torch.sigmoid(a)),
    "leaky by the mean slope": lambda a, b: torch.nn.functional.rrelu(b),
}


@pytest.mark.parametrize("names", [["inverse", "determinant"], list(MATRICES)[2:]], ids=["few", "others"])
def test_matrices(names: list[str]) -> None:
    """Of the two matrices one has zeros on its diagonal: its rows must be exchanged."""
    a = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(3)
    a[1] = a[1][[2, 0, 1]]
    a[1, 0, 0] = 0.0
    a[1].diagonal()[1:] += 1.0
    few = {name: MATRICES[name] for name in names}
    check(few, a, torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(1)), in_numpy=True)


@pytest.mark.parametrize("shape", [(1, 1), (0, 0), (0, 3, 3)], ids=str)
def test_matrices_of_one_element_or_none(shape: tuple[int, ...]) -> None:
    functions: Functions = {
        "logarithm": torch.logdet,
        "determinant": torch.linalg.det,
        "inverse": torch.linalg.inv,
        "triangle": lambda a: torch.linalg.solve_triangular(a, a, upper=True),
    }
    check(functions, torch.full(shape, 3.0))


class Spectral(torch.nn.Module):
    """A Fourier layer: complex weights multiply the low frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 3, 3, dtype=torch.cfloat))
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        low = torch.fft.rfft(x)
        made = torch.zeros(x.shape[0], 3, low.shape[-1], dtype=torch.cfloat)
        made[..., :3] = torch.einsum("nix,iox->nox", low[..., :3], self.weight.conj()) * self.turn
        return (torch.fft.irfft(made, n=x.shape[-1]),)


def test_complex_weights() -> None:
    torch.manual_seed(0)
    network = Spectral().eval()
    x = torch.randn(2, 2, 10)
    weight = network.weight.detach().clone()
    check_network(network, ["spectral"], x, in_numpy=True)
    assert network.weight.is_complex() and torch.equal(network.weight, weight)  # the source is left alone


class Chosen(torch.nn.Module):
    def __init__(self, by_mask: bool) -> None:
        super().__init__()
        self.by_mask = by_mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0] * 2 if self.by_mask else x[torch.nonzero(x[:, 0])[:, 0]]


@pytest.mark.parametrize(("by_mask", "named"), [(True, r"x\[mask\]"), (False, "nonzero.default")])
def test_sizes_by_values_are_named(by_mask: bool, named: str, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Chosen(by_mask), (torch.randn(5, 3),)), tmp_path / "model.pt2")
    with pytest.raises(UnsupportedOperatorError, match=f"depend on values.*{named}"):
        load_program(tmp_path / "model.pt2")
