"""Test that lookup tables of int8 functions equal their definition, for vectors of any length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm.s_tir
from tvm import relax, te, tirx

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.int8_lookup_tables import Int8LookupTables
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.targets.cpu_features import looks_up_bytes

needs_permutations = pytest.mark.skipif(
    not looks_up_bytes(host_backend().tvm_target()), reason="this processor has no AVX512-VBMI"
)
ACTIVATIONS = {
    "silu": torch.nn.SiLU(),
    "hardswish": torch.nn.Hardswish(),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU(approximate="tanh"),
    "tanh": torch.nn.Tanh(),
    "sigmoid": torch.nn.Sigmoid(),
    "elu": torch.nn.ELU(),
}


class Excited(torch.nn.Module):
    """An inverted residual with squeeze-and-excite, whose depthwise convolution is read as an integer and as a
    float.
    """

    def __init__(self, activation: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv = torch.nn.Conv2d
        self.wide, self.deep, self.narrow = conv(3, 24, 3), conv(24, 24, 3, padding=1, groups=24), conv(24, 10, 1)
        self.less, self.more, self.activation = conv(24, 8, 1), conv(8, 24, 1), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.deep(self.activation(self.wide(x))))
        gate = self.activation(self.less(y.mean((2, 3), keepdim=True)))
        return self.narrow(y * torch.sigmoid(self.more(gate)))


def _quantized(network: torch.nn.Module, activations: str, samples: np.ndarray[Any, Any]) -> Any:
    model = ExportedModel(network.eval(), one_input("input", (1, *samples.shape[1:])))
    return quantize_int8(
        canonicalize(model.to_relax()), samples, None, Int8Params(activations=activations, max_drop=None)
    )[0]


def _lookups(module: Any) -> int:
    kernels = lower(module, host_backend())
    return sum(str(function).count("look_up_byte_512(") for function in kernels.functions.values())


def _cases() -> list[Any]:
    """Return (activation, dtype): one dtype of each, and both of the first; the others are for `make test-all`."""
    quick = [("silu", "int8"), *((name, ("uint8", "int8")[at % 2]) for at, name in enumerate(ACTIVATIONS))]
    every = [(name, dtype) for name in ACTIVATIONS for dtype in ("uint8", "int8")]
    return [pytest.param(*one, marks=() if one in quick else pytest.mark.slow) for one in every]


@needs_permutations
@pytest.mark.parametrize(("activation", "activations"), _cases())
def test_activations_are_looked_up_and_equal_the_definition(activation: str, activations: str) -> None:
    samples = np.random.default_rng(0).standard_normal((6, 3, 13, 11), dtype=np.float32)
    module = _quantized(Excited(ACTIVATIONS[activation]), activations, samples)
    expected = run_graph(read_graph(module), samples[:1])
    packed = PackChannels(16)(module)
    for form in (module, packed) if activation == "silu" else (packed,):  # images as they come, in vectors of channels
        assert _lookups(form) == 3
        assert np.array_equal(LocalRunner(form, host_backend()).run(samples[:1])[0], expected)


def test_what_layers_and_steps_read_is_one_byte() -> None:
    samples = np.random.default_rng(0).standard_normal((6, 3, 13, 11), dtype=np.float32)
    graph = read_graph(_quantized(Excited(torch.nn.SiLU()), "uint8", samples))
    stored = [
        step
        for step in graph.steps
        if step.op == "relax.astype" and step.dtype == "uint8" and step.shape == (1, 24, 11, 9)
    ]
    means = [step for step in graph.steps if step.op == "relax.sum"]
    assert len(stored) == 5 and means and means[0].dtype == "int32"  # two sums, two activations, the scaled image


def test_an_output_is_not_rounded_for_the_layers_that_read_it() -> None:
    class Net(Excited):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            y = self.activation(self.deep(self.activation(self.wide(x))))
            return self.narrow(y * y.mean((2, 3), keepdim=True)), y

    samples = np.random.default_rng(0).standard_normal((6, 3, 13, 11), dtype=np.float32)
    graph = read_graph(_quantized(Net(torch.nn.SiLU()), "uint8", samples))
    (output,) = (step for step in graph.steps if step.name == graph.outputs[1])
    assert output.op == "relax.multiply" and len(output.refs) == 2, "x * sigmoid(x), not a byte by its scale"


@needs_permutations
@pytest.mark.parametrize("lanes", [1, 2, 8, 12, 16, 24, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_vectors_of_any_length_are_looked_up(dtype: str, lanes: int) -> None:
    table = np.random.default_rng(lanes).integers(0, 256, 256).astype(np.uint8)
    given = te.placeholder((lanes * 40,), dtype, name="given")
    digits = tvm.ir.StringImm(table.tobytes().hex())
    found = te.compute(
        given.shape, lambda i: tirx.call_intrin(dtype, "tvmflow.look_up_byte_512", given[i], digits), name="found"
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([given, found]))
    (loop,) = schedule.get_loops(schedule.get_sblock("found"))
    schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    library = tvm.compile(schedule.mod, host_backend().tvm_target())
    x = np.random.default_rng(0).integers(0, 256, lanes * 40).astype(np.uint8)
    output = tvm.runtime.tensor(np.zeros_like(x).view(dtype))
    library(tvm.runtime.tensor(x.view(dtype)), output)
    assert np.array_equal(output.numpy().view(np.uint8), table[x])


@needs_permutations
def test_a_value_in_between_that_others_read_is_computed() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Conv2d(3, 16, 1), torch.nn.Conv2d(16, 4, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.tanh(self.first(x))
            return self.last(y * torch.exp(y)), y

    samples = np.random.default_rng(0).standard_normal((6, 3, 5, 5), dtype=np.float32)
    module = _quantized(Net(), "uint8", samples)
    with host_backend().tvm_target():
        assert "look_up" not in str(Int8LookupTables()(module))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_constant_mask_beside_bytes(share: float) -> None:
    """Of one value or of both: booleans have no difference."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = torch.nn.Conv2d(3, 16, 1), torch.nn.Conv2d(16, 4, 1)
            self.register_buffer("mask", torch.rand(1, 1, 5, 5) < share)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.where(self.mask, torch.tanh(self.first(x)), 0.5))

    samples = np.random.default_rng(0).standard_normal((6, 3, 5, 5), dtype=np.float32)
    module = _quantized(Net(), "uint8", samples)
    expected = run_graph(read_graph(module), samples[:1])
    assert np.array_equal(LocalRunner(module, host_backend()).run(samples[:1])[0], expected)


def test_sums_of_bytes_through_a_deep_network_end() -> None:
    """Each is computed of the one before: whoever followed all of them would run out of stack."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((1, 32), "uint8")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            value = x
            for _ in range(250):
                wide = relax.op.add(relax.op.astype(value, "int32"), relax.op.astype(y, "int32"))
                value = builder.emit(relax.op.astype(relax.op.clip(wide, 0, 255), "uint8"))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    with tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}):
        assert "look_up" not in str(Int8LookupTables()(builder.get()))
