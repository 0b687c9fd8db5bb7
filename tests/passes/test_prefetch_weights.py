"""Test weight prefetching: the lines requested, the kernels affected, and unchanged outputs."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import tvm

from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import compile_module
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import DEFAULT_MIXED
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.tir.workloads import Workload, extract_workloads, operations
from tvmflow.passes.kernel.prefetch_weights import prefetch_weights
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.schedules.registry import TEMPLATES, Knobs, apply_template, template_for
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.progress import silent
from tvmflow.targets.resolve import Processor, host_target
from tvmflow.tuning.measure.kernel_bench import inputs_of

_LINE_BYTES = 64


def _backend(mcpu: str = "znver4", triple: str = "x86_64-linux-gnu") -> CpuBackend:
    processor = Processor(mcpu, triple, ())
    return CpuBackend(replace(host_target(), threads=2, **vars(processor)))


def _dense(rows: int, inputs: int, outputs: int, backend: CpuBackend) -> Workload:
    network = torch.nn.Sequential(torch.nn.Linear(inputs, outputs), torch.nn.ReLU(), torch.nn.Linear(outputs, 16))
    model = ExportedModel(network.eval(), one_input("x", (1, rows, inputs)))
    packed, _ = backend.pack(canonicalize(model.to_relax()), None)
    return max(extract_workloads(lower(packed, backend)), key=lambda found: operations(found.function))


def _convolution(size: int, inputs: int, outputs: int, images: int, backend: CpuBackend) -> Workload:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(16, inputs, 1), torch.nn.ReLU(), torch.nn.Conv2d(inputs, outputs, 1), torch.nn.ReLU()
    )
    model = ExportedModel(network.eval(), one_input("x", (images, 16, size, size)))
    packed, _ = backend.pack(canonicalize(model.to_relax()), None)
    return max(extract_workloads(lower(packed, backend)), key=lambda found: operations(found.function))


def _first(workload: Workload, backend: CpuBackend) -> tuple[Any, Knobs]:
    found = template_for(workload.function, backend.cpu_features(), TEMPLATES)
    assert found is not None
    template, candidates = found
    return apply_template(workload.function, template, candidates[0]).mod, candidates[0]


class _Script:
    """Stands for T in the text of a kernel: numbers stay numbers, calls are kept."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], int]] = []

    int64 = int32 = staticmethod(int)

    @staticmethod
    def Cast(_dtype: str, value: int) -> int:
        return value

    @staticmethod
    def address_of(indices: tuple[int, ...]) -> tuple[int, ...]:
        return indices

    def call_extern(self, _dtype: str, name: str, place: tuple[int, ...], offset: int) -> None:
        assert name == "tvmflow_prefetch"
        self.calls.append((place, offset))


class _Weights:
    def __getitem__(self, indices: tuple[int, ...]) -> tuple[int, ...]:
        return indices


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["dense", "rows of one image", "rows of two images"])
def test_the_lines_of_the_next_blocks_of_channels_are_asked_for_once(kind: str) -> None:
    backend = _backend()
    workload = (
        _dense(50, 512, 768, backend) if kind == "dense" else _convolution(14, 384, 768, 1 + ("two" in kind), backend)
    )
    module, knobs = _first(workload, backend)
    assert knobs["prefetch"] >= 1
    text = prefetch_weights(module).script(show_meta=False)
    calls = re.findall(r"^ *(T\.call_extern\(\"int32\", \"tvmflow_prefetch\".*)$", text, re.MULTILINE)
    # the loops around the calls, outermost first
    before, loops = text[: text.index(calls[0]) + 1].splitlines(), []
    depth = len(before[-1]) - len(before[-1].lstrip())
    for line in reversed(before[:-1]):
        indent = len(line) - len(line.lstrip())
        if indent < depth and (
            loop := re.match(r" *for (.+) in (?:T\.parallel|T\.serial|T\.grid|range)\((.*)\):", line)
        ):
            sizes = [int(size) for size in re.findall(r"T\.int64\((\d+)\)", loop[2])]
            loops.append(list(zip(loop[1].split(", "), sizes, strict=False)))
            depth = indent
        elif indent < depth and line.strip():
            depth = indent
    named = [pair for loop in reversed(loops) for pair in loop]
    buffer = re.search(r"address_of\((\w+)\[", calls[0])
    assert buffer is not None
    panels: dict[tuple[Any, int], list[int]] = {}
    shape = [int(extent) for extent in _weights(workload).shape]
    panel_bytes = 4 * knobs["c_tile"] * int(np.prod(shape[1:]))
    for values in itertools.product(*(range(size) for _, size in named)):
        names = dict(zip((name for name, _ in named), values, strict=True))
        script = _Script()
        for call in calls:
            eval(call, {"T": script, buffer[1]: _Weights(), **names})  # noqa: S307 (text of our own module)
        share = values[: 2 if knobs["rows_first"] else 1]
        for place, offset in script.calls:
            assert not any(place[1:]) and offset % _LINE_BYTES == 0
            panels.setdefault((share, place[0]), []).append(offset // _LINE_BYTES)
    for (share, first), lines in panels.items():
        block = share[-1] if knobs["rows_first"] else share[0] // knobs["prefetch"]
        assert first == (block + 1) * knobs["c_tile"] % shape[0]
        needed = panel_bytes // _LINE_BYTES
        assert sorted(lines)[:needed] == list(range(needed))  # each once, and what fills the last share up
        assert len(lines) < 2 * needed


def _weights(workload: Workload) -> Any:
    """Return the buffer of a convolution's weights: the only one of six axes."""
    buffers = [parameter for parameter in workload.function.params if len(parameter.shape) == 6]
    return buffers[0]


def test_small_weights_images_of_many_tiles_and_other_processors_ask_for_nothing() -> None:
    backend, arm = _backend(), _backend("cortex-a76", "aarch64-linux-gnu")
    assert "prefetch" not in _first(_dense(50, 64, 128, backend), backend)[1]
    assert "prefetch" not in _first(_convolution(56, 256, 512, 1, backend), backend)[1]
    assert "prefetch" not in _first(_dense(50, 512, 768, arm), arm)[1]
    assert "prefetch" in _first(_dense(50, 512, 768, backend), backend)[1]


def test_outputs_stay_and_the_instruction_is_there() -> None:
    backend = CpuBackend(replace(host_target(), threads=2))
    workload = _dense(50, 512, 768, backend)
    found = template_for(workload.function, backend.cpu_features(), TEMPLATES)
    assert found is not None
    template, candidates = found
    if "prefetch" not in candidates[0]:
        pytest.skip("needs an x86 processor with AVX2")
    outputs, assembly = [], []
    for knobs in ({**candidates[0], "prefetch": 0}, candidates[0]):
        function = apply_template(workload.function, template, knobs).mod["main"].with_attr("global_symbol", "main")
        library = compile_module(tvm.IRModule({"main": function}), backend)
        arrays = [tvm.runtime.tensor(array) for array in inputs_of(workload)]
        library["main"](*arrays)
        outputs.append(arrays[-1].numpy())
        assembly.append(library.mod.inspect_source("asm"))
    assert np.array_equal(*outputs) and np.ptp(outputs[0]) > 0
    assert ["prefetch" in text for text in assembly] == [False, True]


@pytest.mark.parametrize("inputs", [768, 1024])
def test_a_kernel_that_prefetches_and_rounds_has_the_functions_of_both(inputs: int) -> None:
    """Both come as LLVM's text at the same block; with one of them alone the library would not link."""
    backend = _backend()
    network = torch.nn.Sequential(torch.nn.Linear(inputs, 768), torch.nn.GELU(), torch.nn.Linear(768, 16))
    model = ExportedModel(network.eval(), one_input("x", (1, 198, inputs)))
    request = PrecisionRequest(DEFAULT_MIXED, Samples(()), silent)
    packed, _ = backend.pack(to_precision(canonicalize(model.to_relax()), "bfloat16", request)[0], None)
    both = 0
    for workload in extract_workloads(lower(packed, backend)):
        kernel = _first(workload, backend)[0]["main"].with_attr("global_symbol", "main")
        text = str(compile_module(tvm.IRModule({"main": kernel}), backend).mod.inspect_source("ll"))
        assert not re.search(r"declare [^@]*@tvmflow_", text)
        both += "llvm.prefetch" in text and "x bfloat>" in text
    assert both
