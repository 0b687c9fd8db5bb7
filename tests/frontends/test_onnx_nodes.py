"""Run ONNX's node tests through import, packing, build and run: a sample in `make test`, all in `make test-all`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.conformance.__main__ import run_all
from bench.conformance.onnx_coverage import coverage
from bench.conformance.onnx_nodes import NodeTests
from bench.conformance.onnx_table import page
from tests.conftest import REPOSITORY
from tvmflow.frontends.onnx.converters import BODIES, CONVERTERS, REFUSALS
from tvmflow.frontends.onnx.tvm_converters import CORRECT

# One small test of each kind of converter, by module of onnx.backend.test.case.node.
SAMPLE = {
    "isinf": "test_isinf_positive",
    "clip": "test_clip_min_greater_than_max",
    "mod": "test_mod_mixed_sign_float32",
    "pow": "test_pow_types_float32_int64",
    "bitshift": "test_bitshift_right_uint8",
    "reducemax": "test_reduce_max_empty_set",
    "onehot": "test_onehot_negative_indices",
    "pad": "test_constant_pad_axes",
    "resize": "test_resize_upsample_scales_nearest_axes_3_2",
    "convtranspose": "test_convtranspose_output_shape",
    "maxpool": "test_maxpool_with_argmax_2d_precomputed_pads",
    "roialign": "test_roialign_aligned_true",
    "convinteger": "test_convinteger_with_padding",
    "qlinearconv": "test_qlinearconv",
    "dequantizelinear": "test_dequantizelinear_blocked",
    "dft": "test_dft_inverse",
    "layernormalization": "test_layer_normalization_2d_axis0",
    "constant": "test_constant",
    "affinegrid": "test_affine_grid_2d",
    "det": "test_det_2d",
}


def test_node_tests_of_the_sample_pass() -> None:
    tests = NodeTests.of_modules(SAMPLE)
    found = {name: tests.judge(name) for name in SAMPLE.values()}
    assert {name: verdict for name, verdict in found.items() if verdict.result != "passed"} == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("constants", [False, True])
def test_no_node_test_is_wrong_or_ends_in_a_raw_error(constants: bool) -> None:
    tests = NodeTests.all()
    names = [name for name in tests.names() if not tests.uncounted(name)]
    verdicts = run_all(tests, names, constants, workers=2)
    bad = {name: verdict for name, verdict in verdicts.items() if verdict.result not in ("passed", "refused")}
    assert bad == {}
    assert sum(verdict.result == "passed" for verdict in verdicts.values()) >= 0.95 * len(names)


def test_the_page_of_operators_is_the_generated_one() -> None:
    assert (REPOSITORY / Path("docs/onnx_operators.md")).read_text(encoding="utf-8") == page()


def test_every_operator_has_one_way() -> None:
    assert not CONVERTERS.keys() & (BODIES | REFUSALS.keys()) and not BODIES & REFUSALS.keys()
    assert not {("", op) for op in CORRECT} & (CONVERTERS.keys() | BODIES | REFUSALS.keys())
    assert [row for row in coverage() if row.reason == "no converter"] == []
