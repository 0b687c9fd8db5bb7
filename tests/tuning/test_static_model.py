"""Test the static cost model: loops of assembly as scheduled, bad schedules ranked last, networks without a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden.networks import TARGETS
from tests.scorecards import scorecard
from tests.search_rules import QUICK_RULES
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled, compile_module
from tvmflow.codegen.lower import lower
from tvmflow.config.params import ReleaseParams
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.tir.kernel_schedules import count_coverage
from tvmflow.ir.tir.workloads import Workload, anchor_extents, extract_workloads
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.pipeline import canonicalize
from tvmflow.schedules.registry import Knobs, apply_template
from tvmflow.shipping.gates.cell import judge
from tvmflow.support.progress import silent
from tvmflow.targets.core_timing import core_of
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.cost_model.assembly import find_hot_loops
from tvmflow.tuning.cost_model.static_model import estimate_s
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.search.estimates import estimate_workloads, select_to_compile

SHAPE = (1, 32, 28, 28)


def _network() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(32, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.MaxPool2d(2)
    )
    return ExportedModel(module.eval(), one_input("x", SHAPE)).to_relax()


def _packed(backend: CpuBackend) -> Any:
    return PackChannels(backend.cpu_features().channel_block)(canonicalize(_network()))


def _workloads(backend: CpuBackend) -> list[Workload]:
    return extract_workloads(lower(_packed(backend), backend))


def _assembly(workload: Workload, backend: CpuBackend, knobs: Knobs) -> str:
    import tvm

    match = backend.template_for(workload.function)
    assert match is not None
    function = apply_template(workload.function, match[0], knobs).mod["main"].with_attr("global_symbol", "main")
    return str(compile_module(tvm.IRModule({"main": function}), backend).mod.inspect_source("asm"))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TARGETS)
def test_loops_are_those_of_the_schedule(name: str) -> None:
    backend = CpuBackend(TARGETS[name])
    width = {"znver4": 64, "sapphirerapids": 64, "x86-64-v3": 32}.get(name, 16)
    convolution = max(_workloads(backend), key=lambda w: len(anchor_extents(w.function)))
    match = backend.template_for(convolution.function)
    assert match is not None and match[0].name == "packed_conv"
    for knobs in [k for k in match[1] if not k["unroll"]][:4]:
        [loop, *_] = find_hot_loops(_assembly(convolution, backend, knobs))
        lanes = anchor_extents(convolution.function)[4]
        registers = knobs["c_tile"] * knobs["h_tile"] * knobs["w_tile"] * lanes * 4 // width
        assert loop.width == width and loop.macs == width / 4, knobs
        assert loop.counts["multiply_add"] % registers == 0 and registers <= loop.accumulators <= 2 * registers, knobs
        assert loop.chain * loop.accumulators >= loop.counts["multiply_add"] and (
            registers > 16 or not loop.counts["spill"]
        ), knobs


def test_winograds_first_tiles_are_of_one_row() -> None:
    """2 x 2 tiles of pixels with four blocks of channels took twice the time of one row with two: these weights
    came from a far cache for each tile.
    """
    from torch import nn

    backend = CpuBackend(TARGETS["znver4"])
    model = ExportedModel(nn.Conv2d(512, 512, 3, 1, 1), one_input("x", (1, 512, 28, 28)))
    packed = PackChannels(16)(canonicalize(model.to_relax()))
    chosen = dict.fromkeys(list_convolution_keys(packed), 2)
    workloads = extract_workloads(lower(packed, backend, winograd=chosen))
    matches = [backend.template_for(workload.function) for workload in workloads]
    [candidates] = [match[1] for match in matches if match and match[0].name == "winograd"]
    assert [candidates[0][knob] for knob in ("c_tile", "y_tile", "x_tile")] == [2, 1, 14]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TARGETS)
def test_schedules_that_are_known_to_be_slow_come_last(name: str) -> None:
    backend = CpuBackend(TARGETS[name])
    core = core_of(backend.target)
    convolution = max(_workloads(backend), key=lambda w: len(anchor_extents(w.function)))
    match = backend.template_for(convolution.function)
    assert match is not None
    default = match[1][0]

    def estimate(**changes: int) -> float:
        knobs = {**default, **changes}
        found = estimate_s(convolution.function, match[0].name, knobs, _assembly(convolution, backend, knobs), core, 2)
        assert found is not None and 1e-7 < found < 1.0
        return found

    base = estimate()
    assert estimate(c_tile=1, h_tile=1, w_tile=1, dot=0) > 1.5 * base, "one sum waits for the one before"
    assert estimate(c_tile=4, h_tile=4, w_tile=7, chunk=28, dot=0) > 1.2 * base, "more sums than registers"
    assert estimate(parallel=0) > 1.5 * base, "one of two threads"
    assert estimate(chunk=28, rows_first=1) > 1.5 * base, "all rows on one thread"


def test_kernels_that_the_model_does_not_know_have_no_estimate() -> None:
    backend = CpuBackend(TARGETS["znver4"])
    workload = _workloads(backend)[0]
    core = core_of(backend.target)
    assert estimate_s(workload.function, "rows", {"parallel": 1}, "", core, 2) is None
    assert estimate_s(workload.function, "packed_conv", {"parallel": 1}, "\tret\n", core, 2) is None
    for instruction, products in (("usmmla", 32.0), ("bfmmla", 16.0), ("bfdot", 8.0)):
        [loop] = find_hot_loops(f"\t{instruction}\tv0.4s, v1.16b, v2.16b\n")
        assert loop.macs == products, instruction
    assert find_hot_loops("") == [] and find_hot_loops("nonsense\n\x00\n\t\t\tvfmadd231ps\n") == []


def test_pairs_of_products_count_where_they_are_added() -> None:
    pairs = "\n".join(f"\tvpmaddwd\t(%rdi), %ymm1, %ymm9\n\tvpaddd\t%ymm9, %ymm{at}, %ymm{at}" for at in (2, 3, 2))
    [loop] = find_hot_loops(pairs)
    assert (loop.macs, loop.counts["multiply_add"], loop.accumulators, loop.chain) == (16.0, 3, 2, 2)


@pytest.mark.parametrize("count", [1, 3, 16, 17, 40, 200, 1000])
def test_what_is_compiled_covers_the_candidates(count: int) -> None:
    chosen = select_to_compile(count)
    assert chosen[: min(count, 16)] == list(range(min(count, 16))) and len(chosen) <= 32
    assert len(set(chosen)) == len(chosen) and max(chosen) < count and max(chosen) >= 0.8 * count - 1


@pytest.mark.slow
def test_a_network_without_a_device(tmp_path: Path) -> None:
    backend = CpuBackend(TARGETS["cortex-a72"])  # what is not at hand
    packed = _packed(backend)
    tuning_log = TuningLog(tmp_path / "log.jsonl", backend.kernel_kind, {"tvm": "1"})
    workloads = _workloads(backend)
    best = estimate_workloads(workloads, backend, QUICK_RULES, tuning_log, tmp_path, silent, Budget())
    assert (
        len(best) >= 3 and {record.status for record in best.values()} == {"estimated"} and not tuning_log.path.exists()
    )
    built = build_scheduled(packed, backend, best)
    facts = count_coverage(built.kernels)
    assert facts["coverage"] == 0.0 and facts["kernels_estimated"] >= 3 and facts["kernels_tuned"] == 0
    card = scorecard(accuracy=None, coverage=facts["coverage"], coverage_estimated=1.0)
    [reason] = judge(card, None, None, ReleaseParams())
    assert "measured for 0.0% of its operations and estimated for 100.0%" in reason
    assert not judge(card, None, None, ReleaseParams(count_estimates=True))
