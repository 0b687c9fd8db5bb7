"""Compare fused attention with float64, as frameworks write it, for any number of queries, keys, heads and channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.differential.kernels import BOUND, HOST, error_of
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import LocalRunner, build_scheduled, make_runner
from tvmflow.codegen.lower import lower
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import extract_workloads, multiplied
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision

Array = np.ndarray[Any, Any]
_LENGTHS = (1, 7, 16, 49, 50, 101, 197)


@dataclass(frozen=True)
class Case:
    """mask: '' for none, 'added' for any numbers, 'rows' for keys that nobody may see, 'all' where the first row sees
    none.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    mask: str
    projected: bool


class Net(torch.nn.Module):
    """Attention between two sequences, of and before dense layers and a norm where `projected`, of the inputs
    themselves else.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, channels = case, case.heads * case.depth
        self.q, self.kv = torch.nn.Linear(channels, channels), torch.nn.Linear(channels, 2 * channels)
        self.out, self.norm = torch.nn.Linear(channels, channels), torch.nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, (k, v) = (self.q(x), self.kv(y).chunk(2, dim=-1)) if self.case.projected else (x, (y, y * 0.5))
        q, k, v = (z.unflatten(-1, (self.case.heads, self.case.depth)).transpose(1, 2) for z in (q, k, v))
        bias = None if not self.case.mask else mask
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        return self.norm(x + self.out(mixed)) if self.case.projected else mixed


def inputs_of(case: Case, seed: int = 0) -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(seed)
    channels = case.heads * case.depth
    x, y = (draw.standard_normal((case.batch, rows, channels), np.float32) for rows in (case.queries, case.keys))
    mask = np.zeros((case.batch, 1, 1 if case.mask == "rows" else case.queries, case.keys), np.float32)
    if case.mask == "added":
        mask = draw.standard_normal(mask.shape, np.float32)
    elif case.mask:
        mask[..., case.keys // 2 + 1 :] = -np.inf
    if case.mask == "all":
        mask[:, :, 0] = -np.inf
    return x, y, mask


def imported(case: Case) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(1)
    net = Net(case).eval()
    specs = tuple(TensorSpec(name, value.shape, "float32") for name, value in zip("xym", inputs_of(case), strict=True))
    return canonicalize(ExportedModel(net, specs).to_relax()), net


def reference(net: torch.nn.Module, inputs: tuple[Array, ...]) -> Array:
    with torch.no_grad():
        return np.asarray(net.double()(*(torch.from_numpy(value).double() for value in inputs)).numpy())


def kernels(module: Any, backend: CpuBackend) -> list[str]:
    return [workload.name.split()[0] for workload in extract_workloads(lower(backend.pack(module, None)[0], backend))]


def case_of(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    batch, queries, keys = (int(draw.choice(values)) for values in ((1, 1, 2), _LENGTHS, _LENGTHS))
    depth, mask = int(draw.choice((8, 20, 32, 64, 80))), str(draw.choice(("", "added", "rows", "all")))
    return Case(batch, int(draw.integers(1, 6)), queries, keys, depth, mask, bool(draw.integers(4)))


@pytest.mark.parametrize("case", [case_of(seed) for seed in range(7)], ids=str)
def test_any_attention_is_one_kernel_and_equals_float64(case: Case) -> None:
    module, net = imported(case)
    inputs = inputs_of(case)
    names = kernels(module, HOST)
    assert "attention" in names
    assert not [name for name in names if "softmax" in name]
    runner = LocalRunner(HOST.pack(module, None)[0], HOST)
    assert error_of(runner.run(*inputs)[0], reference(net, inputs)) < BOUND


class Einsums(torch.nn.Module):
    """Windowed attention as MaxViT writes it: sums over named axes, a bias for each head."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bghid,bghjd->bghij", q, k * 0.25) + bias
        return torch.einsum("bghij,bghjd->bghid", torch.softmax(scores, dim=-1), k)


def test_attention_by_einsum_is_one_kernel() -> None:
    draw = np.random.default_rng(5)
    shapes = ((1, 3, 2, 49, 16), (1, 3, 2, 49, 16), (1, 2, 49, 49))
    inputs = tuple(draw.standard_normal(shape, np.float32) for shape in shapes)
    specs = tuple(TensorSpec(name, shape, "float32") for name, shape in zip("qkb", shapes, strict=True))
    module = canonicalize(ExportedModel(Einsums().eval(), specs).to_relax())
    names = kernels(module, HOST)
    assert "attention" in names and "batched_product" not in names
    assert error_of(LocalRunner(HOST.pack(module, None)[0], HOST).run(*inputs)[0], reference(Einsums(), inputs)) < BOUND


class Flipped(torch.nn.Module):
    """Attention between channels-first images as EfficientViT and LeViT's descendants write it: values by the
    transposed weights.
    """

    def forward(self, q: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q.flatten(2).transpose(-2, -1) @ (q.flatten(2) * 0.3) + bias, dim=-1)
        return (v.flatten(2) @ weights.transpose(-2, -1)).unflatten(2, v.shape[2:]) * 2.0


@pytest.mark.parametrize(("size", "depth", "width"), [((7, 7), 16, 20), ((3, 5), 7, 8)])
def test_attention_by_transposed_weights_is_one_kernel(size: tuple[int, int], depth: int, width: int) -> None:
    draw = np.random.default_rng(6)
    shapes = ((2, depth, *size), (2, width, *size), (size[0] * size[1],) * 2)
    inputs = tuple(draw.standard_normal(shape, np.float32) for shape in shapes)
    specs = tuple(TensorSpec(name, shape, "float32") for name, shape in zip("qvb", shapes, strict=True))
    module = canonicalize(ExportedModel(Flipped().eval(), specs).to_relax())
    names = kernels(module, HOST)
    assert "attention" in names and not [name for name in names if "softmax" in name or "batched" in name]
    assert error_of(LocalRunner(HOST.pack(module, None)[0], HOST).run(*inputs)[0], reference(Flipped(), inputs)) < BOUND


class Steps(torch.nn.Module):
    """Cosine attention as Swin V2 writes it, and what else scores may be multiplied by and added to, in any order: the
    next input, or a number without axes.
    """

    def __init__(self, steps: tuple[tuple[str, bool], ...]) -> None:
        super().__init__()
        self.steps, self.number = steps, torch.nn.Parameter(torch.tensor(1.7))

    def forward(self, q: torch.Tensor, k: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
        scores, left = q @ k.transpose(-2, -1), iter(inputs)
        for operator, of_input in self.steps:
            operand = next(left) if of_input else self.number
            scores = scores * operand if operator == "*" else operand + scores
        return torch.softmax(scores, dim=-1) @ k


@pytest.mark.parametrize("seed", range(8))
def test_scores_may_be_multiplied_and_added_to_in_any_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    batch, heads, queries, keys, depth = (int(draw.integers(1, most)) for most in (4, 4, 70, 70, 34))
    ends = ((heads, 1, 1), (heads, queries, keys), (1, 1, keys), (batch, 1, queries, 1), ())
    steps = [("*" if draw.integers(2) else "+", ends[draw.integers(5)]) for _ in range(int(draw.integers(1, 4)))]
    shapes = ((batch, heads, queries, depth), (batch, heads, keys, depth), *(end for _, end in steps if end))
    inputs = tuple(draw.standard_normal(shape, np.float32) * (1 if at < 2 else 3) for at, shape in enumerate(shapes))
    specs = tuple(TensorSpec(f"i{at}", shape, "float32") for at, shape in enumerate(shapes))
    net = Steps(tuple((operator, bool(end)) for operator, end in steps)).eval()
    module = canonicalize(ExportedModel(net, specs).to_relax())
    names = kernels(module, HOST)
    assert "attention" in names and not [name for name in names if "softmax" in name or "batched" in name]
    assert error_of(LocalRunner(HOST.pack(module, None)[0], HOST).run(*inputs)[0], reference(net, inputs)) < BOUND


class Squares(torch.nn.Module):
    """A softmax of what is no product, but reads itself twice in each of many steps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x
        for _ in range(40):
            scores = scores * scores
        return torch.softmax(scores, dim=-1) @ x


def test_a_long_chain_of_squares_is_read_once() -> None:
    x = np.random.default_rng(0).uniform(0.99, 1.0, (1, 2, 5, 5)).astype(np.float32)
    module = canonicalize(ExportedModel(Squares(), (TensorSpec("x", x.shape, "float32"),)).to_relax())
    runner = LocalRunner(HOST.pack(module, None)[0], HOST)
    assert error_of(runner.run(x)[0], reference(Squares(), (x,))) < BOUND


class Product(torch.nn.Module):
    """A product of two inputs, of which the second comes transposed, with what is computed from its sums."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.matmul(a.unflatten(-2, (-1, 1)).flatten(-3, -2), b.transpose(-1, -2)) * 0.3 + 1.0)


@pytest.mark.parametrize(
    ("batch", "rows", "depth", "columns"),
    [((3,), 197, 33, 197), ((2, 3), 7, 20, 101), ((), 50, 64, 577), ((4,), 1, 80, 16), ((2,), 49, 1, 1)],
)
def test_any_product_of_matrices_is_one_kernel_and_equals_float64(
    batch: tuple[int, ...], rows: int, depth: int, columns: int
) -> None:
    draw = np.random.default_rng(3)
    inputs = tuple(draw.standard_normal((*batch, extent, depth), np.float32) for extent in (rows, columns))
    specs = tuple(TensorSpec(name, value.shape, "float32") for name, value in zip("ab", inputs, strict=True))
    module = canonicalize(ExportedModel(Product().eval(), specs).to_relax())
    scheduled = build_scheduled(HOST.pack(module, None)[0], HOST, {})
    assert "batched_product" in [choice.template for choice in scheduled.kernels]
    assert all(choice.schedule == "default" for choice in scheduled.kernels)
    found = make_runner(scheduled.executable)(inputs)[0]
    assert error_of(found, reference(Product(), inputs)) < BOUND


@pytest.mark.few(3)
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 1e-2), ("float16", 5e-3)])
@pytest.mark.parametrize(
    "case",
    [Case(1, 2, 50, 49, 32, "added", True), Case(2, 3, 101, 197, 20, "rows", True), Case(1, 2, 7, 33, 7, "all", True)],
    ids=str,
)
def test_attention_of_rounded_values_is_one_kernel(case: Case, dtype: str, bound: float) -> None:
    module, net = imported(case)
    mixed = to_mixed_precision(module, MixedPrecision(dtype, "float32", ("conv2d", "matmul"), ("softmax",)))
    workloads = extract_workloads(lower(HOST.pack(mixed, None)[0], HOST))
    (found_kernel,) = [one for one in workloads if one.name.startswith("attention")]
    in_pairs = dtype == "bfloat16" and "avx512bf16" in HOST.cpu_features().dots
    assert multiplied(found_kernel.function) == ("bfloat16" if in_pairs else "float32")
    found = LocalRunner(HOST.pack(mixed, None)[0], HOST).run(*inputs_of(case))[0]
    assert error_of(found.astype(np.float64), reference(net, inputs_of(case))) < bound


class Decomposed(torch.nn.Module):
    """Scores seen as rows and columns of both images where their positions are added, as MViT and SAM do; or where the
    softmax is taken.
    """

    def __init__(self, softmax_of_columns: bool) -> None:
        super().__init__()
        self.softmax_of_columns = softmax_of_columns

    def forward(self, q: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        scores = (q * 0.25) @ k.transpose(-2, -1)
        placed = scores.view(2, 3, 4, 5, 2, 7) + rows[..., None] + columns[..., None, :]
        if self.softmax_of_columns:
            return placed.softmax(-1).view(scores.shape) @ k
        return placed.view(scores.shape).softmax(-1) @ k


@pytest.mark.parametrize("softmax_of_columns", [False, True])
def test_scores_in_another_view_are_what_they_are(softmax_of_columns: bool) -> None:
    draw = np.random.default_rng(7)
    shapes = ((2, 3, 20, 16), (2, 3, 14, 16), (2, 3, 4, 5, 2), (2, 3, 4, 5, 7))
    inputs = tuple(draw.standard_normal(shape, np.float32) for shape in shapes)
    specs = tuple(TensorSpec(name, shape, "float32") for name, shape in zip("qkrc", shapes, strict=True))
    network = Decomposed(softmax_of_columns).eval()
    module = canonicalize(ExportedModel(network, specs).to_relax())
    assert ("attention" in kernels(module, HOST)) is not softmax_of_columns
    assert error_of(LocalRunner(HOST.pack(module, None)[0], HOST).run(*inputs)[0], reference(network, inputs)) < BOUND
