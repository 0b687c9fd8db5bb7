"""Test which layers CLML, Qualcomm's library for Adreno, could compute, and which stay with tvmflow's kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmflow.backends.registry import backend_for
from tvmflow.config.params import TargetEntry
from tvmflow.gpu_codegen.clml import describe_clml, find_clml_layers
from tvmflow.ir.relax.graph import read_graph
from tvmflow.support.errors import ToolchainError

CHANNELS = 8


class _Operators:
    """Operators on images of eight channels, as a network's code writes them one behind the other."""

    def __init__(self, dtype: str) -> None:
        from tvm import relax

        self.dtype, self.builder, self.op = dtype, relax.BlockBuilder(), relax.op

    def constant(self, *shape: int) -> Any:
        from tvm import relax

        return relax.const(np.ones(shape, self.dtype))

    def bias(self, x: Any, *shape: int) -> Any:
        return self.add(x, self.constant(*shape) if shape else self.constant(1, CHANNELS, 1, 1))

    def conv(self, x: Any, groups: int = 1, out_dtype: str | None = None, weights: Any = None) -> Any:
        held = self.constant(CHANNELS, CHANNELS // groups, 3, 3) if weights is None else weights
        return self.emit(self.op.nn.conv2d(x, held, padding=1, groups=groups, out_dtype=out_dtype or self.dtype))

    def pool(self, x: Any, kind: str, **options: Any) -> Any:
        return self.emit(getattr(self.op.nn, f"{kind}_pool2d")(x, (3, 3), (2, 2), **options))

    def add(self, x: Any, y: Any) -> Any:
        return self.emit(self.op.add(x, y))

    def relu(self, x: Any) -> Any:
        return self.emit(self.op.nn.relu(x))

    def clip(self, x: Any, low: float, high: float) -> Any:
        return self.emit(self.op.clip(x, low, high))

    def as_type(self, x: Any, dtype: str) -> Any:
        return self.emit(self.op.astype(x, dtype))

    def emit(self, value: Any) -> Any:
        return self.builder.emit(value)


Body = Callable[[_Operators, Any], Any]


def _module(body: Body, dtype: str = "float32", batch: int = 1) -> Any:
    from tvm import relax

    operators, x = _Operators(dtype), relax.Var("x", relax.TensorType((batch, CHANNELS, 12, 12), dtype))
    with operators.builder.function("main", [x]):
        with operators.builder.dataflow():
            found = body(operators, x)
            names = found if isinstance(found, tuple) else (found,)
            outputs = [operators.builder.emit_output(one) for one in names]
        operators.builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return operators.builder.get()


def _layers(body: Body, dtype: str = "float32", batch: int = 1) -> list[tuple[str, int]]:
    """Return kind and number of operators of each layer."""
    return [(layer.kind, len(layer.steps)) for layer in find_clml_layers(read_graph(_module(body, dtype, batch)))]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bias_and_activation_are_part_of_a_convolution(dtype: str) -> None:
    assert _layers(lambda o, x: o.relu(o.bias(o.conv(x))), dtype) == [("convolution", 3)]
    assert _layers(lambda o, x: o.clip(o.bias(o.conv(x, CHANNELS)), 0, 6), dtype) == [("depthwise convolution", 3)]
    assert _layers(lambda o, x: o.relu(o.conv(x)), dtype) == [("convolution", 2)]


def test_what_is_read_elsewhere_or_is_not_the_same_stays_outside() -> None:
    def read_twice(o: _Operators, x: Any) -> Any:
        sums = o.bias(o.conv(x))
        return o.add(o.relu(sums), sums)

    def put_out(o: _Operators, x: Any) -> Any:
        sums = o.conv(x)
        return o.relu(sums), sums

    assert _layers(read_twice) == [("convolution", 2), ("activation", 1), ("addition", 1)]
    assert _layers(put_out) == [("convolution", 1), ("activation", 1)]
    assert _layers(lambda o, x: o.clip(o.conv(x), 0, 4)) == [("convolution", 1)]
    assert _layers(lambda o, x: o.bias(o.conv(x), 1, 1, 12, 12)) == [("convolution", 1)]
    assert _layers(lambda o, x: o.relu(x)) == []


def test_convolutions_of_other_kinds_stay_with_our_kernels() -> None:
    assert _layers(lambda o, x: o.bias(o.conv(x, 2))) == []
    assert _layers(lambda o, x: o.conv(x, weights=o.relu(o.constant(CHANNELS, CHANNELS, 3, 3)))) == []
    assert _layers(lambda o, x: o.conv(x, out_dtype="int32"), "int8") == []


def test_sums_in_float32_of_float16_are_rounded_within_the_layer() -> None:
    def rounded(o: _Operators, x: Any) -> Any:
        return o.as_type(o.relu(o.conv(x, out_dtype="float32")), "float16")

    assert _layers(rounded, "float16") == [("convolution", 3)]
    assert _layers(lambda o, x: o.relu(o.conv(x, out_dtype="float32")), "float16") == []


def test_pools_are_those_that_mean_one_thing() -> None:
    assert _layers(lambda o, x: o.pool(o.pool(x, "max", padding=1), "avg")) == [("max pool", 1), ("average pool", 1)]
    for options in ({"ceil_mode": True}, {"dilation": (2, 2)}):
        assert _layers(lambda o, x: o.pool(x, "max", **options)) == []  # noqa: B023 (called at once)
    assert _layers(lambda o, x: o.pool(x, "avg", padding=1)) == []


def test_additions_are_of_single_images_of_one_size() -> None:
    assert _layers(lambda o, x: o.add(x, o.relu(x))) == [("addition", 1)]
    assert _layers(lambda o, x: o.add(x, o.relu(x)), batch=2) == []
    assert _layers(lambda o, x: o.add(x, o.emit(o.op.mean(x, [2, 3], keepdims=True)))) == [("average pool", 1)]
    assert _layers(lambda o, x: o.add(x, x)) == []


def test_heads_and_activations_behind_a_layer() -> None:
    def head(o: _Operators, x: Any) -> Any:
        rows = o.emit(o.op.mean(o.conv(x), [2, 3]))
        scores = o.emit(o.op.add(o.emit(o.op.matmul(rows, o.constant(CHANNELS, 5))), o.constant(5)))
        return o.emit(o.op.nn.softmax(scores))

    assert _layers(head) == [("convolution", 1), ("average pool", 1), ("dense", 2), ("softmax", 1)]
    assert _layers(head, batch=2) == [("convolution", 1)]
    assert _layers(lambda o, x: o.relu(o.add(x, o.relu(x)))) == [("addition", 1), ("activation", 1)]
    assert _layers(lambda o, x: o.emit(o.op.exp(o.relu(o.emit(o.op.exp(x)))))) == []
    assert _layers(lambda o, x: o.emit(o.op.mean(x, [1, 2]))) == []
    without_bias = _layers(lambda o, x: o.emit(o.op.matmul(o.emit(o.op.mean(x, [2, 3])), o.constant(CHANNELS, 5))))
    assert without_bias == [("average pool", 1)]


def test_what_is_said_of_a_network() -> None:
    module = _module(lambda o, x: o.emit(o.op.nn.softmax(o.relu(o.bias(o.conv(x))))))
    assert describe_clml(read_graph(module)) == "3 of 4 operators (convolution: 1)"


def _options(sdk: Path) -> dict[str, Any]:
    return {"kind": "opencl", "mcpu": "host", "threads": 1, "opencl": {"kind": "adreno", "clml_sdk": str(sdk)}}


def _target(sdk: Path) -> Any:
    entry = {**_options(sdk), "device": {"transport": "adb", "key": "phone"}}
    return backend_for(TargetEntry.model_validate(entry))


def test_without_the_sdk_one_error_says_what_to_get(tmp_path: Path) -> None:
    with pytest.raises(
        ToolchainError, match=r"(?s)has no CL/cl_qcom_ml_ops.h.*OpenCL ML SDK.* get the SDK from Qualcomm"
    ):
        _target(tmp_path / "nowhere").check_tools()
    sdk = tmp_path / "sdk" / "inc" / "CL"
    sdk.mkdir(parents=True)
    (sdk / "cl_qcom_ml_ops.h").write_text("")
    with pytest.raises(ToolchainError, match=r"(?s)which includes CL/cl.h, but not that.*opencl-c-headers"):
        _target(tmp_path / "sdk").check_tools()
    (sdk / "cl.h").write_text("")
    _target(tmp_path / "sdk").check_tools()


def test_other_headers_make_another_library(tmp_path: Path) -> None:
    sdk = tmp_path / "CL"
    sdk.mkdir()
    (sdk / "cl_qcom_ml_ops.h").write_text("")
    (sdk / "cl.h").write_text("")
    first = _target(tmp_path).target
    (sdk / "cl_qcom_ml_ops.h").write_text("#define CL_QCOM_ML_OPS_H_MAJOR_VERSION 5\n")
    assert _target(tmp_path).target != first == replace(first, options=dict(first.options))
