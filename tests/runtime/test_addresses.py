"""Test inputs and outputs at any address: between pages that cannot be accessed, with identical outputs, without a copy
where the header promises none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.golden.networks import NETWORKS as GOLDEN
from tests.ir.indexed import CASES as INDEXED
from tests.ir.indexed import module_of
from tests.runtime.test_network import _network
from tests.runtime.test_sizes import _library
from tests.sized_models import Encoder, Images
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.bucket_tables import SizedOutputs
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.image_tables import ImageInput
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.config.buckets import Axis, Sizes
from tvmflow.config.model_params import Preprocess
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import State, TensorSpec
from tvmflow.ir.tvm_compat import return_type
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.sources.data.preprocessing import recipe_for, value_table
from tvmflow.toolchain.compilers import Command

BACKEND, GCC = host_backend(), Command(("gcc",))
IMAGE = (1, 3, 32, 48)
Inputs = tuple[tuple[tuple[int, ...], str], ...]


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _floats(*shapes: tuple[int, ...]) -> Inputs:
    return tuple((shape, "float32") for shape in shapes)


WEIGHTS = {shape: _draw(*shape) for shape in ((64, 32), (32, 48), (24, 33), (14, 24), (35, 16))}
# What a network does to its inputs first.
BEGINNINGS: dict[str, tuple[Callable[..., Any], Inputs]] = {
    "a first convolution": (nn.Conv2d(3, 32, 3, 2, 1), _floats(IMAGE)),
    "a convolution without padding": (nn.Conv2d(3, 16, 2), _floats(IMAGE)),
    "packed channels": (nn.Conv2d(32, 16, 1), _floats((1, 32, 20, 20))),
    "depthwise": (nn.Conv2d(32, 32, 3, 1, 1, groups=32), _floats((1, 32, 20, 20))),
    "a transposed convolution": (nn.ConvTranspose2d(16, 8, 2, 2), _floats((1, 16, 9, 7))),
    "a dense layer": (nn.Linear(96, 40), _floats((7, 96))),
    "rows of another shape": (nn.Sequential(nn.Flatten(0, 1), nn.Linear(64, 40)), _floats((100, 1, 64))),
    "products": (lambda x: torch.relu(x @ WEIGHTS[64, 32]) @ WEIGHTS[32, 48], _floats((2, 16, 64))),
    "a product from the left": (lambda x: torch.tanh(WEIGHTS[24, 33] @ x), _floats((3, 33, 20))),
    "a product of two inputs": (torch.matmul, _floats((2, 48, 32), (2, 32, 64))),
    "one input by another in other shapes": (
        lambda x, y: x.reshape(4, 12, 24) @ y.reshape(4, 24, 8),
        _floats((2, 24, 24), (96, 8)),
    ),
    "another shape": (lambda x: torch.flatten(x, 1) * 2 + 1, _floats(IMAGE)),
    "another shape, then a convolution": (
        nn.Sequential(nn.Unflatten(1, (16, 6, 8)), nn.Conv2d(16, 16, 3)),
        _floats((1, 768)),
    ),
    "shape after shape": (lambda x: x.reshape(6, 40).unsqueeze(1).reshape(2, 3, 40).exp(), _floats((240,))),
    "axes in another order": (lambda x: torch.relu(x.permute(0, 2, 1)), _floats((3, 21, 19))),
    "axes of one element": (lambda x: torch.sigmoid(x.transpose(0, 1)), _floats((1, 37, 8))),
    "slices": (lambda x: (x[:, 1:9].exp(), x[:, 3::2] + 1), _floats((5, 30))),
    "one beside another": (lambda x, y: torch.relu(torch.cat([x, y], 1)), _floats((1, 16, 9, 9), (1, 5, 9, 9))),
    "another shape beside another": (lambda x, y: torch.cat([x.reshape(8, 9), y]).exp(), _floats((72,), (3, 9))),
    "elements": (lambda x, y: (x + y).exp(), _floats((3, 70), (70,))),
    "a norm of rows": (nn.LayerNorm(64), _floats((2, 9, 64))),
    "sums": (lambda x: (x.mean((2, 3)), x.amax(1)), _floats((1, 24, 11, 13))),
    "a pool": (nn.MaxPool2d(2), _floats(IMAGE)),
    "an average of packed channels": (nn.AvgPool2d(3, 2, 1), _floats((1, 16, 14, 14))),
    "a resize": (nn.Upsample(scale_factor=2, mode="bilinear"), _floats((1, 3, 10, 9))),
    "attention": (F.scaled_dot_product_attention, _floats(*[(1, 2, 33, 32)] * 3)),
    "a recurrent layer": (nn.GRU(24, 16, batch_first=True), _floats((1, 5, 24))),
    "a lookup": (nn.Embedding(50, 24), (((1, 33), "int64"),)),
    "a mask": (lambda x, mask: torch.where(mask, x, -x), (((3, 70), "float32"), ((3, 70), "bool"))),
    "halves": (lambda x: torch.relu(x.reshape(9, 14).float() @ WEIGHTS[14, 24]).half(), (((126,), "float16"),)),
    "a sum of halves": (lambda x, y: torch.relu(x + y), (((3, 75), "float16"), ((3, 75), "float16"))),
    "bytes": (lambda x: (x.reshape(6, 35).float() / 255) @ WEIGHTS[35, 16], (((2, 105), "uint8"),)),
    "an input twice": (lambda x: F.softmax(x, -1) + x.exp(), _floats((5, 200))),
    "an input as it is": (lambda x: (x, x + 1), _floats((5, 200))),
    "an input in another shape": (lambda x: (x.reshape(8, 25), x.reshape(25, 8).exp()), _floats((5, 40))),
}
# Those that one network of make test has; the others are variants of them.
SAMPLE = (
    "a first convolution",
    "products",
    "shape after shape",
    "another shape beside another",
    "a mask",
    "halves",
    "bytes",
    "an input in another shape",
)


class _Beside(nn.Module):
    """Parts that share nothing: takes the inputs of all, returns the outputs of all."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.parts = [BEGINNINGS[name] for name in names]
        self.layers = nn.ModuleList([part for part, _ in self.parts if isinstance(part, nn.Module)])
        self.specs = tuple(TensorSpec(f"x{at}", *one) for at, one in enumerate(i for _, own in self.parts for i in own))

    def forward(self, *inputs: Any) -> Any:
        rest, found = list(inputs), []
        for part, own in self.parts:
            made = part(*[rest.pop(0) for _ in own])
            found += made if isinstance(made, tuple) else [made]
        return tuple(found)


@pytest.fixture(scope="module")
def run_everywhere(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Return a function that runs a library at all addresses, in a process that may crash; with an argument, on inputs
    that are no indices.
    """
    program, source = tmp_path_factory.mktemp("addresses") / "addresses", Path(__file__).parent / "addresses" / "main.c"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME / 'include'}", "-pthread"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(program), "-ldl"], check=True)

    def run(library: Path, *words: str) -> None:
        done = subprocess.run([program, library, *words], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def _write(packed: Any, path: Path, winograd: dict[str, int] | None = None) -> Path:
    scheduled = build_scheduled(packed, BACKEND, {}, winograd=winograd)
    made = getattr(return_type(scheduled.module["main"]), "fields", (None,))
    write_network(path, scheduled, _network(scheduled.module, tuple(f"y{at}" for at in range(len(made)))), GCC)
    return path


def _check(names: tuple[str, ...], run_everywhere: Callable[[Path], None], folder: Path) -> None:
    torch.manual_seed(0)
    network = _Beside(names).eval()
    module = canonicalize(ExportedModel(network, network.specs).to_relax())
    run_everywhere(_write(BACKEND.pack(module, None)[0], folder / "network.so"))


def test_every_address_gives_the_same_bits(run_everywhere: Callable[[Path], None], tmp_path: Path) -> None:
    _check(SAMPLE, run_everywhere, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", BEGINNINGS)
def test_every_beginning_at_every_address(name: str, run_everywhere: Callable[[Path], None], tmp_path: Path) -> None:
    _check((name,), run_everywhere, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_networks_at_every_address(name: str, run_everywhere: Callable[[Path], None], tmp_path: Path) -> None:
    make, tiles = GOLDEN[name]
    packed = BACKEND.pack(make(), None)[0]
    winograd = dict.fromkeys(list_convolution_keys(packed), tiles) if tiles else None
    run_everywhere(_write(packed, tmp_path / "network.so", winograd))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["text", "images"])
def test_every_bucket_at_every_address(model: str, run_everywhere: Callable[[Path], None], tmp_path: Path) -> None:
    if model == "text":
        sizes = Sizes(("length",), ((16, 40),), (Axis(0, 1, 0), Axis(1, 1, 0)), (3, 0))
        specs = (TensorSpec("ids", (1, 40), "int64"), TensorSpec("mask", (1, 40), "int64"))
        _library(Encoder(), specs, SizedOutputs(sizes, (Axis(0, 1, 0),)), ("states", "first"), tmp_path / "network.so")
    else:
        sizes = Sizes(("batch",), ((1, 4),), (Axis(0, 0, 0),), (0,))
        sized = SizedOutputs(sizes, (Axis(0, 0, 0),))
        _library(Images(), (TensorSpec("x", (4, 3, 16, 16)),), sized, ("scores",), tmp_path / "network.so")
    run_everywhere(tmp_path / "network.so")


@pytest.mark.slow
@pytest.mark.parametrize("width", [48, 50])
def test_an_image_that_is_rounded_to_bytes(width: int, run_everywhere: Callable[[Path], None], tmp_path: Path) -> None:
    """The input and the pixels."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 8, 1))
    spec = TensorSpec("x", (1, 3, 32, width))
    module = canonicalize(ExportedModel(network.eval(), (spec,)).to_relax())
    samples = np.random.default_rng(0).standard_normal((4, 3, 32, width), dtype=np.float32)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    scheduled = build_scheduled(BACKEND.pack(quantized, None)[0], BACKEND, {})
    how = Preprocess.model_validate({"preset": "torchvision"})
    image = ImageInput(recipe_for([spec.shape], how), value_table(3, how, "float32"))
    described = Network("any@host:int8", (spec,), ("y",), 2, image=image)
    write_network(tmp_path / "network.so", scheduled, described, GCC)
    run_everywhere(tmp_path / "network.so")


class _Step(nn.Module):
    """Integers in a step of a stream: what it returns second is its second input of the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Any, h: Any) -> Any:
        y = F.relu(self.first(x) + h)
        return y.mean((2, 3)), F.relu(self.second(y))


@pytest.mark.slow
@pytest.mark.parametrize("width", [9, 16])
def test_an_int8_network_with_a_state(width: int, run_everywhere: Callable[[Path], None], tmp_path: Path) -> None:
    torch.manual_seed(0)
    specs = (TensorSpec("x", (1, 3, 8, width)), TensorSpec("h", (1, 16, 8, width)))
    module = canonicalize(ExportedModel(_Step().eval(), specs).to_relax())
    draw = np.random.default_rng(0).standard_normal
    samples = tuple(draw((4, *spec.shape[1:]), dtype=np.float32) for spec in specs)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    scheduled = build_scheduled(BACKEND.pack(quantized, None)[0], BACKEND, {})
    described = Network("any@host:int8", specs, ("y", "hn"), 2, states=(State("h", "hn"),))
    write_network(tmp_path / "network.so", scheduled, described, GCC)
    run_everywhere(tmp_path / "network.so")


def _check_indices(names: tuple[str, ...], run_everywhere: Callable[..., None], folder: Path) -> None:
    module = canonicalize(module_of(*(INDEXED[name] for name in names)))
    library = _write(BACKEND.pack(module, None)[0], folder / "network.so")
    run_everywhere(library)
    run_everywhere(library, "hostile")


def test_no_index_leaves_its_tensor(run_everywhere: Callable[..., None], tmp_path: Path) -> None:
    _check_indices(("take", "gather_nd", "scatter_elements", "scatter_nd of rows"), run_everywhere, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", INDEXED)
def test_no_operator_leaves_its_tensors(name: str, run_everywhere: Callable[..., None], tmp_path: Path) -> None:
    _check_indices((name,), run_everywhere, tmp_path)
