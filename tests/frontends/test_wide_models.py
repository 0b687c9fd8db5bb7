"""Test several inputs and outputs, integer inputs and outputs of any shape, from file to compiled library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.wide_models import OUTPUTS, described, samples_for
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.config.stage_params import Int8Params, MixedOperators
from tvmflow.evaluation.agreement import check_golden, compare_all, worst_of
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, run_in_batches
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.support.errors import ModelFileError


@pytest.mark.few(3)
@pytest.mark.parametrize("framework", ["onnx", "torch"])
@pytest.mark.parametrize("name", ["text", "segmenter", "two"])
def test_a_wide_model_computes_what_its_framework_does(name: str, framework: str, tmp_path: Path) -> None:
    source, inputs = load_source(tmp_path, described(name, framework, tmp_path)), samples_for(name).inputs
    assert len(source.output_names()) == len(OUTPUTS[name])
    assert framework != "onnx" or source.output_names() == OUTPUTS[name]
    reference = run_in_batches(source, inputs, 1)
    module = canonicalize(source.to_relax())
    for form in (module, PackChannels(8)(module)):
        agreement = check_golden("build", run_in_batches(LocalRunner(form, host_backend()), inputs, 1), reference, 5e-4)
        assert agreement.samples == 6
    assert len(reference) == len(OUTPUTS[name])
    if name == "segmenter":
        assert agreement.pixel_agreement == 1.0 and agreement.top1_agreement is None


@pytest.mark.parametrize("framework", ["onnx", "torch"])
def test_inputs_are_found_by_name(framework: str, tmp_path: Path) -> None:
    """In params.yaml the mask may come first; what is called otherwise is refused."""
    swapped = described("text", framework, tmp_path, ("mask", "ids"))
    source, inputs = load_source(tmp_path, swapped), samples_for("text").inputs[::-1]
    runner = LocalRunner(canonicalize(source.to_relax()), host_backend())
    reference = run_in_batches(source, inputs, 1)
    check_golden("build", run_in_batches(runner, inputs, 1), reference, 5e-4)
    (plain,) = run_in_batches(load_source(tmp_path, described("text", framework, tmp_path)), inputs[::-1], 1)
    assert np.array_equal(plain, reference[0])
    other = SourceDescription(
        framework, None, swapped.weights_file, (swapped.inputs[0], TensorSpec("words", (1, 7), "int64"))
    )
    with pytest.raises(ModelFileError, match="has the inputs ids, mask"):
        load_source(tmp_path, other).to_relax()


@pytest.mark.few(3)
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["text", "segmenter", "two"])
def test_every_precision_takes_a_wide_model(name: str, precision: str, tmp_path: Path) -> None:
    source, samples = load_source(tmp_path, described(name, "onnx", tmp_path)), samples_for(name, 8)
    options: MixedOperators | Int8Params = MixedOperators(low=("conv2d", "matmul"), high=("softmax", "sum"))
    if precision == "int8":
        options = Int8Params(max_drop=0.0)
    module, report = to_precision(
        canonicalize(source.to_relax()), precision, PrecisionRequest(options, samples, lambda *_: None)
    )
    outputs = run_in_batches(LocalRunner(module, host_backend()), samples.inputs, 1)
    worst = worst_of(compare_all(outputs, run_in_batches(source, samples.inputs, 1)))
    assert worst.sqnr_db > 15
    if precision == "int8":
        assert any(layer["dtype"] != "float32" for layer in report["layers"])
        assert (report["goal_met"] is None) == (name == "segmenter")  # no classes, no accuracy to keep


def test_a_lookup_stays_in_float_and_inside_of_its_table(tmp_path: Path) -> None:
    source, samples = load_source(tmp_path, described("text", "onnx", tmp_path)), samples_for("text", 8)
    module, _ = quantize_int8(canonicalize(source.to_relax()), samples.inputs, None, Int8Params(max_drop=None))
    assert 'mode="clip"' in module.script() and 'mode="fast"' not in module.script()
    runner = LocalRunner(module, host_backend())
    wild = np.full((1, 7), 10**6, np.int64)
    assert np.isfinite(runner.run(wild, samples.inputs[1][:1])[0]).all()
