"""Test workload keys, traces, packing, MetaSchedule databases and IR files: kernels are distinguished, stored,
restored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import te

from tests.differential.kernels import BOUND, HOST, error_of, imported
from tests.traces import Traced
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.serialization import load_module, save_module
from tvmflow.ir.tir.blocks import new_schedule
from tvmflow.ir.tir.workloads import extract_workloads, workload_key
from tvmflow.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.canonicalize.fold_constants import FoldConstants
from tvmflow.passes.kernel.apply_schedules import ApplySchedules, replay
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import count_packed_convolutions, list_convolution_keys
from tvmflow.schedules.registry import apply_template
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.tuning.records.metaschedule import export_metaschedule, extract_all_variants, import_metaschedule
from tvmflow.tuning.records.record import TuningRecord
from tvmflow.tuning.records.traces import trace_json


def test_a_trace_of_another_kernel_is_refused_and_the_default_is_used() -> None:
    lowered = lower(PackChannels(16)(imported(build("digits_cnn", 3), (1, 1, 8, 8))[0]), HOST)
    conv, pool = (
        next(w for w in extract_workloads(lowered) if w.name.startswith(name))
        for name in ("conv2d_nchwc", "max_pool2d")
    )
    match = HOST.template_for(conv.function)
    assert match is not None
    trace = trace_json(apply_template(conv.function, match[0], match[1][0]))
    replay(conv.function, trace)
    with pytest.raises(Exception):  # noqa: B017  (TVM raises its own types here; that it does not pass is the point)
        replay(pool.function, trace)
    step = ApplySchedules({pool.key: Traced(trace)}, HOST.template_for)
    step(lowered)
    assert {c.schedule for c in step.kernels} == {"default"}


@pytest.mark.parametrize(("block", "kind"), [("double", "write"), ("add", "read")])
def test_a_trace_that_hides_what_a_block_uses_is_refused(block: str, kind: str) -> None:
    """Buffers between blocks are made as small as what is declared: the code would leave them."""
    x = te.placeholder((8, 8), name="x")
    double = te.compute((8, 8), lambda i, j: x[i, j] * 2, name="double")
    function = te.create_prim_func([x, te.compute((8, 8), lambda i, j: double[i, j] + 1, name="add")])
    schedule = new_schedule(function)
    replay(function, trace_json(schedule))
    schedule.unsafe_hide_buffer_access(schedule.get_sblock(block, "main"), kind, [0])
    with pytest.raises(ValueError, match=f"block {block} does not declare that it uses double"):
        replay(function, trace_json(schedule))


def test_workload_keys_tell_kernels_apart_and_names_do_not_matter() -> None:
    def keys(padding: int, dilation: int, channels: int) -> set[str]:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(16, channels, 3, padding=padding, dilation=dilation), torch.nn.Flatten()
        )
        lowered = lower(imported(net, (1, 16, 8, 8))[0], HOST)
        return {w.key for w in extract_workloads(lowered) if "conv" in w.name}

    plain, dilated, wide = keys(1, 1, 16), keys(2, 2, 16), keys(1, 1, 32)
    assert len(plain | dilated | wide) == 3 and plain == keys(1, 1, 16)


def test_packing_is_exact_about_what_it_packs() -> None:
    module, _ = imported(build("digits_cnn", 3), (1, 1, 8, 8))
    assert count_packed_convolutions(PackChannels(16)(module)) == (
        4,
        4,
    )  # three convolutions, and the dense layer as one of a single pixel


def test_kernels_of_every_variant_go_to_metaschedule_and_come_back(tmp_path: Path) -> None:
    target = HOST
    module = PackChannels(16)(imported(build("digits_cnn", 3), (1, 1, 8, 8))[0])
    best = {}
    for workload in extract_all_variants(module, target):
        match = HOST.template_for(workload.function)
        assert match is not None
        trace = trace_json(apply_template(workload.function, match[0], match[1][0]))
        best[workload.key] = TuningRecord(
            workload.key, workload.name, match[0].name, match[1][0], trace, (1e-3,), "ok", "here", {}, "now"
        )
    assert len([r for r in best.values() if r.template == "winograd"]) >= 2 * len(list_convolution_keys(module)) > 0
    assert export_metaschedule(extract_all_variants(module, target), best, target, tmp_path) == len(best)
    back = {record.workload: record for record in import_metaschedule(tmp_path, "here")}
    assert back.keys() == best.keys() and all(back[key].trace for key in back)


def test_ir_files_give_the_same_module_back(tmp_path: Path) -> None:
    module, _ = imported(build("digits_cnn", 3), (1, 1, 8, 8))
    save_module(module, tmp_path)
    tvm.ir.assert_structural_equal(load_module(tmp_path), module)
    first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    save_module(load_module(tmp_path), tmp_path)
    assert first == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


def test_keras_and_torch_import_to_few_operators() -> None:
    """No batch norm, no transpose and no reshape of weights is left for the device."""
    from tvmflow.sources.networks.keras_zoo import build as build_keras

    model = ExportedModel(build_keras("digits_cnn", 1).eval(), one_input("input", (1, 1, 8, 8)))
    module = FoldBatchNorm()(FoldConstants()(model.to_relax()))
    text = module.script(show_meta=False)
    assert "batch_norm" not in text and "permute_dims" not in text and "rsqrt" not in text
    x = np.random.default_rng(0).standard_normal((1, 1, 8, 8), dtype=np.float32)
    assert error_of(LocalRunner(module, HOST).run(x)[0], model.run(x)[0]) < BOUND


def test_workload_key_does_not_depend_on_the_functions_name() -> None:
    lowered = lower(imported(build("digits_cnn", 3), (1, 1, 8, 8))[0], HOST)
    workload = extract_workloads(lowered)[0]
    assert workload_key(workload.function.with_attr("global_symbol", "another")) == workload.key
