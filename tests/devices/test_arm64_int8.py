"""Test the ends of int8 layers on arm64 under qemu: what the code multiplies and narrows by, and the bits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.config.stage_params import Int8Params
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8


class Joined(torch.nn.Module):
    """A batch norm behind a concat of unlike ranges, and a residual sum."""

    def __init__(self, largest: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.wide = torch.nn.Conv2d(3, 16, 3, 1, 1), torch.nn.Conv2d(16, 16, 1)
        self.norm, self.last = torch.nn.BatchNorm2d(32), torch.nn.Conv2d(32, 32, 1)
        torch.nn.init.normal_(self.norm.weight)
        torch.nn.init.normal_(self.norm.bias)
        with torch.no_grad():
            self.wide.weight *= 20
            self.norm.weight[5] = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = torch.clamp(self.norm(torch.cat([x, self.wide(x)], 1)), 0, 100)
        return (self.last(y) + y).mean((2, 3))


@pytest.mark.parametrize(("activations", "largest"), [("int8", 1.0), ("uint8", 1.0), ("int8", 1e4)])
def test_norms_and_sums_take_factors_of_16_bits(
    activations: str, largest: float, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """A factor that would leave the others too few bits is multiplied in 64."""
    shape = (1, 3, 7, 9)
    module = canonicalize(ExportedModel(Joined(largest).eval(), one_input("x", shape)).to_relax())
    x = np.random.default_rng(0).standard_normal((4, *shape[1:]), dtype=np.float32)
    quantized, _ = quantize_int8(module, x, None, Int8Params(activations=activations, max_drop=None))
    backend = backend_of(target("cortex-a76"))
    scheduled = build_scheduled(backend.pack(quantized, None)[0], backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    multiply = "umlal|smlal" if activations == "uint8" else "smlal"
    [name] = [choice.name for choice in scheduled.kernels if "concatenate" in choice.name]
    assert "look_up" not in name  # nothing is scaled once more before it is joined
    norm = "".join(re.findall(rf"^\S*{name}\S*:\n(.*?)\.Lfunc_end", code, re.MULTILINE | re.DOTALL))
    if largest == 1.0:
        assert re.search(rf"\t({multiply})2?\t", norm) and re.search(r"\tsqshrn2?\t", norm)
        assert "sqshrn" in code.replace(norm, "")
    else:
        assert "sqshrn" not in norm
    found = ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a76", [x[:1]])
    expected = run_all(read_graph(quantized), [x[:1]])[0]
    assert np.array_equal(np.frombuffer(found, np.float32).reshape(expected.shape), expected)


@pytest.mark.parametrize("largest", [3e4, 1e5])
def test_sums_that_fit_16_bits_are_not_saturated_twice(
    largest: float, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """Of the larger sums some are beyond 16 bits, so that they would change their signs."""
    draw = np.random.default_rng(1)
    weight = draw.choice(np.array([-127, 127], np.int8), (16, 24, 1, 1))
    offset, factor = draw.integers(-99, 99, (1, 16, 1, 1)), np.full((1, 16, 1, 1), largest / (24 * 127 * 128 + 99))
    x = relax.Var("x", relax.TensorType((1, 24, 5, 6), "int8"))
    builder, op = relax.BlockBuilder(), relax.op
    with builder.function("main", [x]):
        with builder.dataflow():
            total = op.add(op.nn.conv2d(x, constant(weight, "int8"), out_dtype="int32"), constant(offset, "int32"))
            scaled = op.round(op.multiply(op.astype(total, "float32"), constant(factor, "float32")))
            found = op.astype(op.clip(op.add(scaled, constant(7.0, "float32")), -128.0, 127.0), "int8")
            output = builder.emit_output(builder.emit(found))
        builder.emit_func_output(output)
    module, backend = builder.get(), backend_of(target("cortex-a76"))
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert bool(re.search(r"sqxtn2?\tv\d+\.[48]h, v\d+\.4s", code)) == (largest > 32768)
    assert largest > 32768 or re.search(r"\tuzp1\t", code)
    assert len(re.findall(r"APP\n\tldp\tq\d+, q\d+, \[x\d+\]", code)) >= 5  # a bias for each pixel of a tile
    given = (np.sign(weight[0, :, 0, 0])[None, :, None, None] * draw.integers(99, 128, (1, 24, 5, 6))).astype(np.int8)
    found = ran(linked(tmp_path, scheduled, 1, backend), runner, emulated, "cortex-a76", [given])
    expected = run_all(read_graph(module), [given])[0]
    assert np.array_equal(np.frombuffer(found, np.int8).reshape(expected.shape), expected)
