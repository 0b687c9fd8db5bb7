"""Test Winograd's kernels of arm64 under qemu: any size, dilations, few channels, batches, other schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.devices.arm64 import linked, ran, target
from tests.traces import Traced, applied_from
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.legalize.winograd import TILES
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision
from tvmflow.tuning.records.traces import trace_json

# batch, channels, height, width; output channels, padding, dilation
_LAYERS = (
    (2, 8, 7, 5, 8, 1, 1),
    (1, 16, 13, 9, 24, 2, 2),
    (1, 5, 12, 12, 8, 1, 1),
    (1, 8, 3, 19, 5, 0, 1),
    (2, 24, 8, 11, 16, 3, 3),
    (1, 40, 2, 3, 32, 1, 1),
)


# largest error of tiles relative to the spread of the outputs, by precision and tile
_ERRORS = {
    ("float16", 0): 3e-2,
    ("float16", 2): 3e-2,
    ("float16", 4): 1e-1,
    ("float16_acc32", 4): 5e-3,
    ("float16_acc32", 6): 5e-3,
}


def _network() -> Any:
    """Return a network of convolutions with a bias, and activations behind every second one."""
    draw, op = np.random.default_rng(7), relax.op
    variables = [relax.Var(f"x{at}", relax.TensorType(shape[:4], "float32")) for at, shape in enumerate(_LAYERS)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            found = []
            for at, (x, (_, channels, _, _, outs, padding, dilation)) in enumerate(
                zip(variables, _LAYERS, strict=True)
            ):
                weight = constant(draw.standard_normal((outs, channels, 3, 3)), "float32")
                bias = constant(draw.standard_normal((1, outs, 1, 1)), "float32")
                total = op.add(op.nn.conv2d(x, weight, padding=padding, dilation=dilation), bias)
                found.append(builder.emit(op.nn.relu(total) if at % 2 else total))
            output = builder.emit_output(relax.Tuple(found))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize(("m", "schedule"), [*((m, 0) for m in TILES), (4, 7)])
def test_any_layer_equals_the_definition(
    m: int, schedule: int, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """schedule: the index of each kernel's candidate, 0 for the default."""
    module, backend = _network(), backend_of(target("cortex-a76"))
    packed = PackChannels(8)(module)
    keys = list_convolution_keys(packed)
    winograd, best = dict.fromkeys(keys, m), {}
    for kernel in extract_workloads(lower(packed, backend, winograd=winograd)) if schedule else ():
        match = backend.template_for(kernel.function)
        if match and match[0].name == "winograd":
            best[kernel.key] = Traced(trace_json(applied_from(kernel.function, match[0], match[1], schedule)))
    scheduled = build_scheduled(packed, backend, best, winograd=winograd)
    computed = [choice for choice in scheduled.kernels if choice.template == "winograd" or choice.schedule == "record"]
    assert len(computed) == len(keys) >= 4
    given = [np.random.default_rng(at).standard_normal(one[:4], dtype=np.float32) for at, one in enumerate(_LAYERS)]
    path = linked(tmp_path, scheduled, len(_LAYERS), backend)
    found = np.frombuffer(ran(path, runner, emulated, "cortex-a76", given), np.float32)
    assert _largest_error(found, run_all(read_graph(module), given)) <= (1e-5 if m == 2 else 1e-4)


def _largest_error(found: Any, expected: list[Any]) -> float:
    """Return the largest error of outputs relative to the spread of each."""
    assert found.size == sum(one.size for one in expected)
    parts = np.split(found, np.cumsum([one.size for one in expected])[:-1])
    pairs = zip(parts, expected, strict=True)
    return max(float(np.abs(part.reshape(one.shape) - one).max() / one.std()) for part, one in pairs)


@pytest.mark.parametrize(("precision", "m"), _ERRORS)
def test_any_layer_of_float16_is_within_its_error(
    precision: str, m: int, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """m: 0 for direct sums, whose error that of F(2x2) does not exceed."""
    module, backend = _network(), backend_of(target("cortex-a76"))
    rules = MixedPrecision("float16", "float32" if precision == "float16_acc32" else "float16", ("conv2d",), ())
    packed = PackChannels(8)(to_mixed_precision(module, rules))
    keys = list_convolution_keys(packed)
    assert len(keys) >= 4 and all(("acc32" in key) == ("acc32" in precision) for key in keys)
    scheduled = build_scheduled(packed, backend, {}, winograd=dict.fromkeys(keys, m) if m else {})
    computed = [choice for choice in scheduled.kernels if choice.template == "winograd"]
    assert len(computed) == (len(keys) if m else 0)
    given = [np.random.default_rng(at).standard_normal(one[:4], dtype=np.float32) for at, one in enumerate(_LAYERS)]
    path = linked(tmp_path, scheduled, len(_LAYERS), backend)
    found = np.frombuffer(ran(path, runner, emulated, "cortex-a76", given), np.float32)
    error = _largest_error(found, run_all(read_graph(module), given))
    assert 1e-4 < error <= _ERRORS[precision, m]
