"""Compare signals, deconvolutions, large dilations, resizes, and pixels that become rows in random networks with
PyTorch in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.frontends.onnx import frontend as onnx
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision

_FLOAT32, _BFLOAT16 = 1e-5, 5e-2  # errors by rounding sums, and by rounding each layer to 8 bits


def operators_of(network: nn.Module, shape: tuple[int, ...], dtype: str = "float32") -> list[str]:
    """Return the operators of a network as it is packed, after its outputs were compared."""
    module = canonicalize(ExportedModel(network.eval(), (TensorSpec("x", shape),)).to_relax())
    if dtype != "float32":
        module = to_mixed_precision(module, MixedPrecision(dtype, "float32", ("conv2d", "matmul"), ("mean",)))
    packed, _ = host_backend().pack(module, None)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(network.double()(torch.from_numpy(x).double()))
    for ours, theirs in zip(LocalRunner(packed, host_backend()).run(x), expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        bound = _FLOAT32 if dtype == "float32" else _BFLOAT16
        assert np.abs(ours - theirs.numpy()).max() < bound * np.abs(theirs.numpy()).max()
    return [step.op.removeprefix("relax.") for step in read_graph(packed).steps]


class Signals(nn.Module):
    """An encoder as those for speech are: convolutions, norms, pools and joins over (N, C, L), then dense layers over
    (N, L, C).
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        wide, narrow = (int(draw.choice([3, 16, 20, 32])) for _ in range(2))
        size, stride, step = (int(draw.integers(1, most)) for most in (6, 4, 3))
        self.first = nn.Conv1d(6, wide, size, stride, padding=int(draw.integers(0, 3)), dilation=step)
        self.norm, self.each = nn.BatchNorm1d(wide), nn.Conv1d(wide, wide, 3, padding=1, groups=wide)
        self.pool = [nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(2), nn.Identity(), nn.MaxPool1d(2, ceil_mode=True)][seed % 4]
        self.wider = nn.ConvTranspose1d(2 * wide, narrow, size + 1, stride, output_padding=int(draw.integers(stride)))
        self.shift, self.head = nn.Parameter(torch.randn(wide, 1)), nn.Linear(narrow, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = nn.functional.gelu(self.norm(self.first(x)))
        y = self.pool(y + torch.sigmoid(self.each(y)) * self.shift)
        z = self.wider(torch.cat([y, y.relu()], 1))
        return self.head(z.transpose(1, 2)), z, y.mean(-1)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(6))
def test_signals_are_images(seed: int) -> None:
    found = operators_of(Signals(seed), (1 + seed // 3, 6, 40))
    assert not {name for name in found if "1d" in name} and "nn.conv2d_transpose" not in found


class Columns(Signals):
    """The same over images of one column, as exporters of TensorFlow and networks for audio write signals."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        for name, layer in list(self.named_modules()):
            if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
                setattr(self, name, _as_column(layer))
        self.norm, self.before = nn.BatchNorm2d(self.first.out_channels), nn.ZeroPad2d((0, 0, seed % 3, 2))
        self.pool = [nn.MaxPool2d((3, 1), (2, 1), (1, 0)), nn.AvgPool2d((2, 1)), nn.Identity()][seed % 3]

    def forward(self, x: torch.Tensor) -> Any:
        y = nn.functional.gelu(self.norm(self.first(self.before(x[..., None]))))
        y = self.pool(y + torch.sigmoid(self.each(y)) * self.shift[..., None])
        z = self.wider(torch.cat([y, y.relu()], 1))
        return self.head(z[..., 0].transpose(1, 2)), z, y.mean(2)


def _as_column(layer: Any) -> nn.Module:
    """Return a 1-D convolution as one of images of one column, with the same weights."""
    options = {name: (getattr(layer, name)[0], 1) for name in ("stride", "dilation")}
    options["padding"] = (layer.padding[0], 0)
    if isinstance(layer, nn.ConvTranspose1d):
        options["output_padding"] = (layer.output_padding[0], 0)
    kind = nn.ConvTranspose2d if isinstance(layer, nn.ConvTranspose1d) else nn.Conv2d
    sizes = (layer.in_channels, layer.out_channels, (layer.kernel_size[0], 1))
    made = kind(*sizes, groups=layer.groups, **options)
    made.load_state_dict(
        {name: value[..., None] if value.ndim == 3 else value for name, value in layer.state_dict().items()}
    )
    return made


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(6))
def test_images_of_one_column_are_rows(seed: int) -> None:
    shape = (1 + seed // 3, 6, 40)
    module = canonicalize(ExportedModel(Columns(seed).eval(), (TensorSpec("x", shape),)).to_relax())
    convolved = [step for step in read_graph(module).steps if step.op.startswith("relax.nn.conv2d")]
    assert len(convolved) == 3 and all(step.shape[2] == 1 for step in convolved)
    operators_of(Columns(seed), shape)


@pytest.mark.parametrize("network", [Signals(1), nn.Conv1d(6, 24, 3, padding=12, dilation=12)])
def test_signals_in_sixteen_bits(network: nn.Module) -> None:
    assert "nn.conv2d" in operators_of(network, (1, 6, 14), "bfloat16")


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(8))
def test_deconvolutions_are_convolutions(seed: int) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    size, stride = ([int(draw.integers(1, most)) for _ in "hw"] for most in (6, 4))
    padding = [int(draw.integers(extent)) for extent in size]
    behind = [int(draw.integers(step)) for step in stride]
    inputs, outputs = (int(draw.choice([2, 16, 20])) for _ in "io")
    network = nn.Sequential(nn.ConvTranspose2d(inputs, outputs, size, stride, padding, behind), nn.ReLU())
    assert "nn.conv2d_transpose" not in operators_of(network, (1 + seed % 2, inputs, 7, 6))


def test_deconvolutions_in_groups_stay_as_they_are() -> None:
    assert "nn.conv2d_transpose" in operators_of(nn.ConvTranspose2d(8, 8, 3, 2, groups=2), (1, 8, 5, 6))


def test_dilated_deconvolutions_are_convolutions() -> None:
    assert "nn.conv2d_transpose" not in operators_of(nn.ConvTranspose2d(8, 8, 3, 2, dilation=2), (1, 8, 5, 6))


class Pixels(nn.Module):
    """A block of ConvNeXt, whose dense layers have channels last, then patches as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.each = nn.Conv2d(3, 32, 2, 2), nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.scale, self.last = nn.Parameter(torch.randn(32, 1, 1)), nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        z = self.down(nn.functional.gelu(self.up(self.norm(self.each(y).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)
        made: torch.Tensor = self.last((y + self.scale * z).flatten(2).transpose(1, 2))
        return made


@pytest.mark.parametrize("size", [(16, 20), (34, 34)])
def test_pixels_become_rows_where_they_lie(size: tuple[int, int]) -> None:
    assert operators_of(Pixels(), (1, 3, *size)).count("permute_dims") == 1  # of the output


def test_pixels_of_onnx_become_rows_too(tmp_path: Path) -> None:
    """Its dense layers are products of matrices over four axes, then sums."""
    specs = one_input("x", (1, 3, 16, 20))
    ExportedModel(Pixels().eval(), specs).to_onnx(tmp_path / "model.onnx")
    model = onnx.load(tmp_path, SourceDescription("onnx", None, "model.onnx", specs))
    packed, _ = host_backend().pack(canonicalize(model.to_relax()), None)
    assert [step.op for step in read_graph(packed).steps].count("relax.permute_dims") == 1
    x = np.random.default_rng(0).standard_normal(specs[0].shape, dtype=np.float32)
    expected = model.run(x)[0]
    assert np.abs(LocalRunner(packed, host_backend()).run(x)[0] - expected).max() < _FLOAT32 * np.abs(expected).max()


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(6))
def test_windows_that_see_little_are_taken_apart(seed: int) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    size = [int(draw.integers(5, 9)) for _ in "hw"]
    dilation = [int(draw.integers(extent - 2, extent)) for extent in size]
    padding = [step + int(draw.integers(2)) for step in dilation]
    network = nn.Sequential(nn.Conv2d(20, 24, 3, padding=padding, dilation=dilation), nn.ReLU(), nn.Conv2d(24, 5, 1))
    assert operators_of(network, (1, 20, *size)).count("nn.conv2d") == 1 + 9


@pytest.mark.few(3)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("size", "made"), [((5, 7), (13, 20)), ((6, 6), (12, 12)), ((9, 8), (4, 8)), ((1, 3), (4, 1))])
def test_resizes_have_pytorchs_outputs(size: tuple[int, int], made: tuple[int, int], corners: bool) -> None:
    """Between convolutions on packed channels, and as an output of the network."""
    torch.manual_seed(0)
    larger = nn.Upsample(made, mode="bilinear", align_corners=corners)
    operators_of(nn.Sequential(nn.Conv2d(3, 20, 1), larger, nn.Conv2d(20, 5, 1), larger), (2, 3, *size))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("made", [(13, 20), (5, 20), (13, 7), (3, 9)])
def test_resizes_of_rounded_values_are_rounded_once(dtype: str, made: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 32, 5, 7).to(getattr(torch, dtype))
    builder = relax.BlockBuilder()
    value = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [value]):
        with builder.dataflow():
            small = builder.emit(relax.op.astype(value, dtype))
            larger = builder.emit(
                relax.op.image.resize2d(small, made, None, "NCHW", "linear", "half_pixel", "round", -0.5)
            )
            out = builder.emit_output(relax.op.astype(larger, "float32"))
        builder.emit_func_output(out)
    names = [workload.name for workload in extract_workloads(lower(builder.get(), host_backend()))]
    assert [name for name in names if "resize" in name] and not [name for name in names if "resize2d" in name]
    [ours] = LocalRunner(builder.get(), host_backend()).run(x.float().numpy())
    exact = nn.functional.interpolate(x.double(), made, mode="bilinear").numpy()
    half_a_step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert (np.abs(ours - exact) <= 1.01 * half_a_step * np.abs(exact) + 1e-6).all()


class Means(nn.Module):
    """Means over the pixels of images, with and without the axes of these, then dense layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(width)
        self.first, self.head = nn.Conv2d(3, width, 3), nn.Linear(width, 40)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.first(x))
        mean, total = y.mean((2, 3)), y.sum((2, 3))
        return self.head(mean) + self.head(total), mean, y * y.mean((2, 3), keepdim=True)


@pytest.mark.parametrize(("batch", "width"), [(1, 20), (2, 20), (3, 48), (7, 16)])
def test_means_over_the_pixels_of_several_images(batch: int, width: int) -> None:
    assert "nn.conv2d" in operators_of(Means(width), (batch, 3, 7, 6))
