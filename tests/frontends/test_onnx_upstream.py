"""Check that TVM's converters which tvmflow replaces are still incorrect; a test fails when TVM fixes one.

Then remove our converter, add the operator to `tvm_converters.CORRECT`, and take the row out of docs/frontends.md.
"""

from __future__ import annotations

import pytest

from bench.conformance.onnx_nodes import NodeTests
from tests.conftest import REPOSITORY
from tvmflow.frontends.onnx import tvm_converters
from tvmflow.frontends.onnx.converters import CONVERTERS

# Operator -> module of onnx.backend.test.case.node, and a test in it that TVM's converter fails.
WRONG = {
    "BitShift": ("bitshift", "test_bitshift_right_int8_negative_shift"),
    "ConvTranspose": ("convtranspose", "test_convtranspose_output_shape"),
    "Cosh": ("cosh", "test_cosh"),
    "DequantizeLinear": ("dequantizelinear", "test_dequantizelinear_blocked"),
    "EyeLike": ("eyelike", "test_eyelike_with_dtype"),
    "IsInf": ("isinf", "test_isinf_positive"),
    "LayerNormalization": ("layernormalization", "test_layer_normalization_4d_axis0"),
    "MaxPool": ("maxpool", "test_maxpool_with_argmax_2d_precomputed_pads"),
    "MaxUnpool": ("maxunpool", "test_maxunpool_export_with_output_shape"),
    "Pad": ("pad", "test_constant_pad"),
    "Pow": ("pow", "test_pow_types_float32_int64"),
    "Resize": ("resize", "test_resize_downsample_scales_linear"),
    "RoiAlign": ("roialign", "test_roialign_mode_max"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("op", sorted(WRONG))
def test_the_converter_of_tvm_is_still_wrong(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = WRONG[op]
    tests = NodeTests.of_modules([module])
    monkeypatch.delitem(CONVERTERS, ("", op))
    monkeypatch.setattr(tvm_converters, "CORRECT", tvm_converters.CORRECT | {op})
    assert tests.judge(name).result != "passed"


def test_docs_list_what_is_wrong() -> None:
    page = (REPOSITORY / "docs/frontends.md").read_text(encoding="utf-8")
    assert [op for op in WRONG if f"| {op} |" not in page] == []
