"""Scheduled kernels, passes and IR files against the plain definition: same answers, whatever the schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax, s_tir, tirx

from tvmflow.building.ir_files import load_module, numpy_dtype, save_module
from tvmflow.building.library import LocalRunner, build_scheduled, compile_lowered
from tvmflow.building.lower import lower
from tvmflow.frontends.exported import ExportedModel
from tvmflow.passes.concatenate_in_place import ConcatenateInPlace
from tvmflow.passes.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.fold_constants import FoldConstants
from tvmflow.passes.legalize_convolutions import convolution_keys, tileable_width
from tvmflow.passes.pack_channels import PackChannels, packed_convolutions
from tvmflow.passes.schedule_kernels import ScheduleKernels, replay
from tvmflow.passes.winograd import TILES, winograd_error
from tvmflow.quantization.emit import constant
from tvmflow.quantization.mixed import MixedPrecision, to_mixed
from tvmflow.sources.torch_networks import build
from tvmflow.targets.machine import machine_of
from tvmflow.targets.resolve import ResolvedTarget, host_target
from tvmflow.tuning.exchange import every_form, export_metaschedule, import_metaschedule
from tvmflow.tuning.plain import plain
from tvmflow.tuning.records import TuningRecord
from tvmflow.tuning.templates import Knobs, Template, scheduled, template_for
from tvmflow.tuning.traces import trace_json
from tvmflow.tuning.workloads import Workload, count_calls, extract_workloads, workload_key

MACHINE = machine_of(host_target())
BOUND = 1e-5  # float32 sums of at most some hundred terms in another order, relative to the largest answer


def _imported(module: torch.nn.Module, shape: tuple[int, ...]) -> tuple[Any, ExportedModel]:
    model = ExportedModel(module.eval(), "input", shape)
    return FoldBatchNorm()(FoldConstants()(model.to_relax())), model


def _error(answers: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    return float(np.abs(answers - reference).max() / np.abs(reference).max())


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    channels=st.sampled_from([(3, 16), (16, 16), (16, 48), (32, 8), (24, 24)]), kernel=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]), size=st.integers(5, 15), grouped=st.booleans(), residual=st.booleans(),
)  # fmt: skip
def test_any_convolution_packed_and_scheduled_equals_torch(
    channels: tuple[int, int], kernel: int, stride: int, size: int, grouped: bool, residual: bool
) -> None:
    torch.manual_seed(0)
    first, second = channels

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Conv2d(first, second, kernel, stride, kernel // 2)
            self.n = torch.nn.BatchNorm2d(second)
            self.b = torch.nn.Conv2d(second, second, 3, padding=1, groups=second if grouped else 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.n(self.a(x)))
            z = self.b(y)
            return torch.relu(z + y if residual else z).flatten(1)

    shape = (1, first, size, size)
    module, model = _imported(Net(), shape)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    packed = PackChannels(16)(module)
    assert _error(LocalRunner(packed, host_target()).run(x), model.run(x)) < BOUND


@pytest.mark.parametrize(
    ("form", "winograd", "bound"),
    [
        ("float32", 0, BOUND),
        ("float32", 2, 10 * BOUND),
        ("float32", 4, 10 * BOUND),
        ("bfloat16", 0, 2e-2),
        ("bfloat16", 2, 4e-2),
    ],
)
def test_candidates_of_every_template_keep_the_answer(form: str, winograd: int, bound: float) -> None:
    module, model = _imported(build("digits_cnn", 3), (1, 1, 8, 8))
    if form != "float32":
        module = to_mixed(module, MixedPrecision(form, "float32", ("conv2d", "matmul"), ("mean",)))
    x = np.random.default_rng(1).standard_normal((1, 1, 8, 8), dtype=np.float32)
    reference, target = model.run(x), host_target().tvm_target()
    packed = PackChannels(16)(module)
    lowered = lower(packed, target, winograd={key: winograd for key in convolution_keys(packed)} if winograd else None)
    workloads = extract_workloads(lowered)
    found = {w.key: template_for(w.function, MACHINE) for w in workloads}
    assert ("winograd" in {f[0].name for f in found.values() if f}) == bool(winograd)
    most = max(len(f[1]) for f in found.values() if f)
    assert most >= 8
    for index in range(0, most, max(most // 6, 1)):
        best: dict[str, Any] = {}
        for workload in workloads:
            pair = found[workload.key]
            assert pair is not None, workload.name
            template, candidates = pair
            try:
                schedule = scheduled(workload.function, template, candidates[index % len(candidates)])
            except s_tir.ScheduleError:
                continue  # an illegal candidate is allowed, a wrong one is not
            best[workload.key] = {"trace": trace_json(schedule)}
        assert len(best) >= len(workloads) - 1
        step = ScheduleKernels(best, MACHINE)
        executable = compile_lowered(step(lowered), target)
        assert sum(choice.how == "record" for choice in step.choices) == len(best)
        assert _error(run(executable, x), reference) < bound


def test_every_schedule_of_a_concatenation_keeps_the_answer() -> None:
    shape = (1, 3, 5, 6, 16)
    lowered = lower(
        _of_one_operator(lambda x: relax.op.concat([x, relax.op.negative(x)], 1), shape), host_target().tvm_target()
    )
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (workload,) = extract_workloads(lowered)
    covered = template_for(workload.function, MACHINE)
    assert covered is not None
    assert {knobs["rows_first"] for knobs in covered[1]} == {0, 1}
    for answer in _answers_of_every_schedule(lowered, workload, *covered, x):
        assert np.array_equal(answer, np.concatenate([x, -x], 1))


def _pooled(*parts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.max_pool2d(torch.cat(parts, 1), 2)


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda x, y, z: _pooled(x, y), 0),
        (lambda x, y, z: _pooled(torch.cat([x, y], 1), z), 0),  # a part of a part
        (lambda x, y, z: _pooled(x, y) + _pooled(y, z), 1),  # a value lies in one place
        (lambda x, y, z: _pooled(x, x), 1),
        (lambda x, y, z: _pooled(x, y, z)[:, :32] + torch.nn.functional.max_pool2d(x, 2), 0),  # read as a part, too
    ],
    ids=["two", "nested", "twice", "same", "read"],
)
def test_what_is_joined_is_written_in_place(make: Callable[..., torch.Tensor], copies: int) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.c = (torch.nn.Conv2d(3, 32, 3, padding=1) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return make(self.a(x), torch.relu(self.b(x)), self.c(x)).flatten(1)

    shape = (1, 3, 9, 9)
    module, model = _imported(Net(), shape)
    target = host_target().tvm_target()
    step = ScheduleKernels({}, MACHINE)
    scheduled_module = step(lower(PackChannels(16)(module), target))
    calls = [c for name, c in count_calls(scheduled_module).items() if name.startswith("concatenate")]
    assert sum(calls) == sum(choice.kernel.startswith("concatenate") for choice in step.choices) == copies
    machine = relax.VirtualMachine(compile_lowered(scheduled_module, target), tvm.cpu())
    for seed in (0, 1):  # the second time in memory that has been used
        x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        assert _error(machine["main"](tvm.runtime.tensor(x)).numpy(), model.run(x)) < BOUND


def test_what_the_network_returns_is_not_joined_in_place() -> None:
    def joined(x: Any) -> Any:
        return relax.op.concat(
            [
                relax.op.nn.max_pool2d(x, (1, 1), layout="NCHW16c"),
                relax.op.nn.max_pool2d(x, (3, 3), padding=1, layout="NCHW16c"),
            ],
            1,
        )

    lowered = lower(_of_one_operator(joined, (1, 4, 5, 6, 16)), host_target().tvm_target())
    assert ConcatenateInPlace()(lowered).same_as(lowered)


def _answers_of_every_schedule(
    lowered: Any, workload: Workload, template: Template, candidates: list[Knobs], x: np.ndarray[Any, Any]
) -> Iterator[np.ndarray[Any, Any]]:
    """Run a module of one kernel under each of its candidates."""
    for knobs in candidates:
        best = {workload.key: {"trace": trace_json(scheduled(workload.function, template, knobs))}}
        yield run(compile_lowered(ScheduleKernels(best, MACHINE)(lowered), host_target().tvm_target()), x)


@pytest.mark.parametrize(
    "options", [{"mode": "nearest"}, {"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}]
)
def test_a_resize_stays_on_packed_channels(options: dict[str, Any]) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(3, 24, 3), torch.nn.Conv2d(24, 16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            larger = torch.nn.functional.interpolate(torch.relu(self.a(x)), size=(17, 26), **options)
            return self.b(larger).mean((2, 3))

    torch.manual_seed(0)
    module, model = _imported(Net(), (1, 3, 11, 15))
    x = np.random.default_rng(0).standard_normal((1, 3, 11, 15), dtype=np.float32)
    packed = PackChannels(16)(module)
    names = [workload.name for workload in extract_workloads(lower(packed, host_target().tvm_target()))]
    assert "resize2d 1x2x17x26x16" in names
    assert not any("transpose" in name for name in names)
    assert _error(LocalRunner(packed, host_target()).run(x), model.run(x)) < BOUND


@pytest.mark.parametrize("winograd", [0, 2])
def test_the_plain_kernels_that_schedules_are_compared_with_are_right(winograd: int) -> None:
    module, model = _imported(build("digits_cnn", 3), (1, 1, 8, 8))
    packed, target = PackChannels(16)(module), host_target().tvm_target()
    lowered = lower(packed, target, winograd=dict.fromkeys(convolution_keys(packed), winograd) if winograd else None)
    for name, function in lowered.functions.items():
        if isinstance(function, tirx.PrimFunc):
            spread = plain(function)
            assert "T.parallel" in spread.script()
            lowered[name] = spread
    x = np.random.default_rng(1).standard_normal((1, 1, 8, 8), dtype=np.float32)
    assert _error(run(compile_lowered(lowered, target), x), model.run(x)) < (10 if winograd else 1) * BOUND


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([(8, 8), (14, 14), (7, 7), (9, 13)]),
    channels=st.sampled_from([16, 48]),
    m=st.sampled_from(TILES),
)
def test_winograd_equals_torch_at_any_size(size: tuple[int, int], channels: int, m: int) -> None:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Conv2d(16, channels, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten())
    module, model = _imported(net, (1, 16, *size))
    packed = PackChannels(16)(module)
    (key,) = convolution_keys(packed)
    executable, choices = build_scheduled(packed, host_target(), {}, winograd={key: m})
    assert "winograd" in {choice.template for choice in choices}
    x = np.random.default_rng(0).standard_normal((1, 16, *size), dtype=np.float32)
    assert _error(run(executable, x), model.run(x)) < 10 * BOUND


@pytest.mark.parametrize(
    ("channels", "kernel", "stride"), [((16, 16), 3, 1), ((16, 32), 1, 1), ((3, 16), 3, 2), ((16, 16), 3, 2)]
)
def test_widths_without_tiles_are_computed_wider_and_cut(channels: tuple[int, int], kernel: int, stride: int) -> None:
    torch.manual_seed(2)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(*channels, kernel, stride, kernel // 2),
        torch.nn.ReLU(),
        torch.nn.AvgPool2d(3, 1),
        torch.nn.Flatten(),
    )
    shape = (1, channels[0], 5, 71 * stride)
    module, model = _imported(net, shape)
    assert tileable_width(71) == 72 and tileable_width(149) == 150 and tileable_width(56) == 56
    lowered = lower(PackChannels(16)(module), host_target().tvm_target())
    assert "crop" in str(lowered)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    assert _error(LocalRunner(PackChannels(16)(module), host_target()).run(x), model.run(x)) < BOUND


@pytest.mark.parametrize(
    ("mcpu", "mtriple", "data", "instruction"),
    [
        ("znver4", "x86_64-linux-gnu", "uint8", "vpdpbusd"),
        ("cortex-a76", "aarch64-linux-gnu", "int8", "sdot"),
        ("neoverse-v1", "aarch64-linux-gnu", "uint8", "usdot"),
        ("znver4", "x86_64-linux-gnu", "bfloat16", "vdpbf16ps"),
        ("sapphirerapids", "x86_64-linux-gnu", "uint8", "tdpbusd"),
        ("sapphirerapids", "x86_64-linux-gnu", "int8", "tdpbssd"),
        ("graniterapids", "x86_64-linux-gnu", "bfloat16", "tdpbf16ps"),
        ("neoverse-v1", "aarch64-linux-gnu", "bfloat16", "bfdot"),
    ],
)
def test_neighbours_are_multiplied_by_the_instruction_of_the_target(
    mcpu: str, mtriple: str, data: str, instruction: str
) -> None:
    """For targets that are not at hand the code is looked at; where this machine has the instruction, tests run it."""
    target = ResolvedTarget("llvm", mcpu, mtriple, (), 2, "g++")
    x = relax.Var("x", relax.TensorType((1, 2, 8, 8, 16), data))
    low, total = ("bfloat16", "float32") if data == "bfloat16" else ("int8", "int32")
    weight = constant(np.ones((2, 2, 3, 3, 16, 16), np.float32).astype(numpy_dtype(low)), low)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = relax.op.nn.conv2d(
                x, weight, padding=1, data_layout="NCHW16c", kernel_layout="OIHW16i16o", out_layout="NCHW16c",
                out_dtype=total,
            )  # fmt: skip
            out = builder.emit_output(conv)
        builder.emit_func_output(out)
    (workload,) = extract_workloads(lower(builder.get(), target.tvm_target()))
    found = template_for(workload.function, machine_of(target))
    assert found is not None and (found[1][0].get("dot") or found[1][0].get("tiles"))
    schedule = scheduled(workload.function, found[0], found[1][0])
    with target.tvm_target() as tvm_target:
        built = tvm.compile(tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}), tvm_target)
    assert f"\t{instruction}" in built.mod.inspect_source("asm")


@pytest.mark.parametrize("length", [1, 5, 6, 7, 8, 11, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_bfloat16_rounds_to_nearest_ties_to_even(length: int, mcpu: str) -> None:
    """Ties are half of all values; -0, the largest and infinity are there too, in vectors of many widths."""
    target = host_target() if mcpu == "host" else ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++")
    executable = build_scheduled(_cast_to_bfloat16(length), target, {})[0]
    bits = np.random.default_rng(length).integers(0x00800000, 0x7F000000, (3, length), dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFF0000 | 0x8000
    x = bits.view(np.float32) * np.where(bits & 1, -1, 1).astype(np.float32)
    x[0, :1], x[1, :1], x[2, :1] = -0.0, np.finfo(np.float32).max, -np.inf
    found = run(executable, x)
    assert np.array_equal(found.view(np.uint16), x.astype(numpy_dtype("bfloat16")).view(np.uint16))


@pytest.mark.parametrize(
    ("mcpu", "mtriple", "instruction"),
    [("znver4", "x86_64-linux-gnu", "cvtneps2bf16"), ("neoverse-v1", "aarch64-linux-gnu", "bfcvtn")],
)
def test_bfloat16_is_rounded_by_the_instruction_of_the_target(mcpu: str, mtriple: str, instruction: str) -> None:
    executable, _ = build_scheduled(_cast_to_bfloat16(96), ResolvedTarget("llvm", mcpu, mtriple, (), 2, "g++"), {})
    code = "".join(m.inspect_source("asm") for m in [executable.mod, *executable.mod.imports] if m.kind == "llvm")
    assert instruction in code


def _cast_to_bfloat16(length: int) -> Any:
    return _of_one_operator(lambda x: relax.op.astype(x, "bfloat16"), (3, length))


def _of_one_operator(operator: Callable[[Any], Any], shape: tuple[int, ...]) -> Any:
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(operator(x))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("length", [1, 6, 20, 96])
@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3"])
def test_exp_is_right_to_one_unit_in_the_last_place(length: int, mcpu: str) -> None:
    """From where it is 0 to where it is infinite, and of what is no number."""
    target = host_target() if mcpu == "host" else ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++")
    executable = build_scheduled(_of_one_operator(relax.op.exp, (64, length)), target, {})[0]
    x = np.random.default_rng(length).uniform(-106, 90, (64, length)).astype(np.float32)
    x[:8, 0] = 0.0, -0.0, np.inf, -np.inf, np.nan, 88.722, 88.723, -103.97
    found = run(executable, x)
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(x))
    limited = np.isfinite(rounded)
    assert np.array_equal(found[np.isinf(rounded)], rounded[np.isinf(rounded)])
    assert (np.abs(found[limited] - wanted[limited]) <= np.spacing(rounded[limited])).all()


@pytest.mark.parametrize(("mcpu", "mtriple"), [("znver4", "x86_64-linux-gnu"), ("cortex-a72", "aarch64-linux-gnu")])
@pytest.mark.parametrize(
    "operator", [relax.op.exp, relax.op.sigmoid, relax.op.tanh, relax.op.nn.silu, relax.op.nn.softmax]
)
def test_no_exp_is_a_call_for_single_values(operator: Callable[[Any], Any], mcpu: str, mtriple: str) -> None:
    target = ResolvedTarget("llvm", mcpu, mtriple, (), 2, "g++")
    executable = build_scheduled(_of_one_operator(operator, (4, 96)), target, {})[0]
    code = "".join(m.inspect_source("asm") for m in [executable.mod, *executable.mod.imports] if m.kind == "llvm")
    assert not re.search(r"\b(expf?|tanhf?)\b", code)


def _layer_norm(x: Any) -> Any:
    scale, shift = (constant(np.full(x.ty.shape[-1].value, value, np.float32), "float32") for value in (1.5, 0.5))
    return relax.op.nn.layer_norm(x, scale, shift, axes=[-1])


@pytest.mark.parametrize("shape", [(5, 96), (1, 1000), (2, 21, 6, 8), (3, 7)])
@pytest.mark.parametrize(
    ("operator", "same"),
    [
        (lambda x: relax.op.nn.softmax(x, -1), lambda x: torch.softmax(x, -1)),
        (lambda x: relax.op.nn.softmax(x, 1), lambda x: torch.softmax(x, 1)),
        (lambda x: relax.op.nn.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
        (_layer_norm, lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]) * 1.5 + 0.5),
        (lambda x: relax.op.mean(x, [-1]), lambda x: x.mean(-1)),
        (lambda x: relax.op.max(x, [-2, -1]), lambda x: x.amax((-2, -1))),
        (lambda x: relax.op.argmax(x, -1), lambda x: x.argmax(-1)),
    ],
    ids=["softmax", "softmax_1", "log_softmax", "layer_norm", "mean", "max", "argmax"],
)
def test_every_schedule_of_rows_keeps_the_answer(
    operator: Callable[[Any], Any], same: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    lowered = lower(_of_one_operator(operator, shape), host_target().tvm_target())
    (workload,) = extract_workloads(lowered)
    covered = template_for(workload.function, MACHINE)
    assert covered is not None
    assert covered[0].name == "rows"
    for answer in _answers_of_every_schedule(lowered, workload, *covered, x):
        assert _error(answer, same(torch.from_numpy(x)).numpy()) < BOUND


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("m", [0, 2, 4])
@pytest.mark.parametrize("reader", ["pool", "convolution"])
def test_a_padding_behind_a_convolution_is_written(kernel: int, m: int, reader: str) -> None:
    """The library is run twice on memory that is not new, so that nothing is right by chance."""
    torch.manual_seed(3)
    last: torch.nn.Module = torch.nn.MaxPool2d(3, 2) if reader == "pool" else torch.nn.Conv2d(32, 16, 3, 2)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, kernel, padding=kernel // 2), torch.nn.ReLU(), torch.nn.ZeroPad2d((0, 1, 0, 1)), last,
        torch.nn.Flatten(),
    )  # fmt: skip
    shape = (1, 16, 28, 28)
    module, model = _imported(net, shape)
    packed = PackChannels(16)(module)
    winograd = {key: m for key in convolution_keys(packed)} if m else {}
    executable, _ = build_scheduled(packed, host_target(), {}, winograd=winograd)
    for seed in (0, 1):
        x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        assert _error(run(executable, 100 * x), model.run(100 * x)) < 10 * BOUND


def test_winograd_errors_grow_with_the_tile_and_are_measured() -> None:
    weight = np.random.default_rng(0).standard_normal((2, 4, 3, 3, 16, 16)).astype(np.float32)
    small, large = winograd_error(weight, 2), winograd_error(weight, 4)
    assert 1e-8 < small < large < 1e-4


def run(executable: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy())


def test_a_trace_of_another_kernel_is_refused_and_the_default_is_used() -> None:
    lowered = lower(PackChannels(16)(_imported(build("digits_cnn", 3), (1, 1, 8, 8))[0]), host_target().tvm_target())
    conv, pool = (
        next(w for w in extract_workloads(lowered) if w.name.startswith(name))
        for name in ("conv2d_nchwc", "max_pool2d")
    )
    found = template_for(conv.function, MACHINE)
    assert found is not None
    trace = trace_json(scheduled(conv.function, found[0], found[1][0]))
    replay(conv.function, trace)
    with pytest.raises(Exception):  # noqa: B017  (TVM raises its own types here; that it does not pass is the point)
        replay(pool.function, trace)
    step = ScheduleKernels({pool.key: {"trace": trace}}, MACHINE)
    step(lowered)
    assert {c.how for c in step.choices} == {"default"}


def test_workload_keys_tell_kernels_apart_and_names_do_not_matter() -> None:
    def keys(padding: int, dilation: int, channels: int) -> set[str]:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(16, channels, 3, padding=padding, dilation=dilation), torch.nn.Flatten()
        )
        lowered = lower(_imported(net, (1, 16, 8, 8))[0], host_target().tvm_target())
        return {w.key for w in extract_workloads(lowered) if "conv" in w.name}

    plain, dilated, wide = keys(1, 1, 16), keys(2, 2, 16), keys(1, 1, 32)
    assert len(plain | dilated | wide) == 3 and plain == keys(1, 1, 16)


def test_packing_is_exact_about_what_it_packs() -> None:
    module, _ = _imported(build("digits_cnn", 3), (1, 1, 8, 8))
    assert packed_convolutions(PackChannels(16)(module)) == (
        4,
        4,
    )  # three convolutions, and the dense layer as one of a single pixel


def test_kernels_of_every_form_go_to_metaschedule_and_come_back(tmp_path: Path) -> None:
    target = host_target()
    module = PackChannels(16)(_imported(build("digits_cnn", 3), (1, 1, 8, 8))[0])
    best = {}
    for workload in every_form(module, target):
        found = template_for(workload.function, MACHINE)
        assert found is not None
        trace = trace_json(scheduled(workload.function, found[0], found[1][0]))
        best[workload.key] = TuningRecord(
            workload.key, workload.name, found[0].name, found[1][0], trace, (1e-3,), "ok", "here", {}, "now"
        )
    assert len([r for r in best.values() if r.template == "winograd"]) >= 2 * len(convolution_keys(module)) > 0
    assert export_metaschedule(every_form(module, target), best, target, tmp_path) == len(best)
    back = {record.workload: record for record in import_metaschedule(tmp_path, "here")}
    assert back.keys() == best.keys() and all(back[key].trace for key in back)


def test_ir_files_give_the_same_module_back(tmp_path: Path) -> None:
    module, _ = _imported(build("digits_cnn", 3), (1, 1, 8, 8))
    save_module(module, tmp_path)
    tvm.ir.assert_structural_equal(load_module(tmp_path), module)
    first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    save_module(load_module(tmp_path), tmp_path)
    assert first == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


def test_keras_and_torch_import_to_few_operators() -> None:
    """No batch norm, no transpose and no reshape of weights is left for the device."""
    from tvmflow.sources.keras_networks import build as build_keras

    model = ExportedModel(build_keras("digits_cnn", 1).eval(), "input", (1, 1, 8, 8))
    module = FoldBatchNorm()(FoldConstants()(model.to_relax()))
    text = module.script(show_meta=False)
    assert "batch_norm" not in text and "permute_dims" not in text and "rsqrt" not in text
    x = np.random.default_rng(0).standard_normal((1, 1, 8, 8), dtype=np.float32)
    assert _error(LocalRunner(module, host_target()).run(x), model.run(x)) < BOUND


def test_workload_key_does_not_depend_on_the_functions_name() -> None:
    lowered = lower(_imported(build("digits_cnn", 3), (1, 1, 8, 8))[0], host_target().tvm_target())
    workload = extract_workloads(lowered)[0]
    assert workload_key(workload.function.with_attr("global_symbol", "another")) == workload.key
