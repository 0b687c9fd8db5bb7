"""Compare scheduled kernels with unscheduled ones: equal outputs for every schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax, s_tir, tirx

from tests.conftest import examples
from tests.differential.kernels import BOUND, HOST, error_of, imported, of_one_operator, outputs_of_every_schedule, run
from tests.traces import Traced
from tvmflow.codegen.compile import LocalRunner, build_scheduled, compile_lowered
from tvmflow.codegen.lower import lower
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.tir.workloads import count_calls, extract_workloads
from tvmflow.passes.fuse.concatenate_in_place import ConcatInPlace
from tvmflow.passes.kernel.apply_schedules import ApplySchedules
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.legalize.padded_image import tileable_width
from tvmflow.passes.legalize.winograd import TILES, winograd_error
from tvmflow.quantization.mixed_precision import MixedPrecision, to_mixed_precision
from tvmflow.schedules.registry import apply_template
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.tuning.measure.reference_kernel import schedule_reference
from tvmflow.tuning.records.traces import trace_json


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    channels=st.sampled_from([(3, 16), (16, 16), (16, 48), (32, 8), (24, 24)]),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    size=st.integers(5, 15),
    grouped=st.booleans(),
    residual=st.booleans(),
)
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
    module, model = imported(Net(), shape)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    packed = PackChannels(16)(module)
    assert error_of(LocalRunner(packed, HOST).run(x)[0], model.run(x)[0]) < BOUND


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("dtype", "winograd", "bound"),
    [
        ("float32", 0, BOUND),
        ("float32", 2, 10 * BOUND),
        ("float32", 4, 10 * BOUND),
        ("bfloat16", 0, 2e-2),
        ("bfloat16", 2, 4e-2),
    ],
)
def test_candidates_of_every_template_keep_the_output(dtype: str, winograd: int, bound: float) -> None:
    module, model = imported(build("digits_cnn", 3), (1, 1, 8, 8))
    if dtype != "float32":
        module = to_mixed_precision(module, MixedPrecision(dtype, "float32", ("conv2d", "matmul"), ("mean",)))
    x = np.random.default_rng(1).standard_normal((1, 1, 8, 8), dtype=np.float32)
    reference, target = model.run(x)[0], HOST
    packed = PackChannels(16)(module)
    lowered = lower(
        packed, target, winograd={key: winograd for key in list_convolution_keys(packed)} if winograd else None
    )
    workloads = extract_workloads(lowered)
    matches = {w.key: HOST.template_for(w.function) for w in workloads}
    multiplies = dtype == "float32" or "avx512bf16" in target.cpu_features().dots
    assert ("winograd" in {f[0].name for f in matches.values() if f}) == (bool(winograd) and multiplies)
    most = max(len(f[1]) for f in matches.values() if f)
    assert most >= 8
    for index in range(0, most, max(most // 6, 1)):
        best: dict[str, Traced] = {}
        for workload in workloads:
            pair = matches[workload.key]
            assert pair is not None, workload.name
            template, candidates = pair
            try:
                schedule = apply_template(workload.function, template, candidates[index % len(candidates)])
            except s_tir.ScheduleError:
                continue  # an illegal candidate is allowed, a wrong one is not
            best[workload.key] = Traced(trace_json(schedule))
        assert len(best) >= len(workloads) - 1
        step = ApplySchedules(best, HOST.template_for)
        executable = compile_lowered(step(lowered), target)
        assert sum(choice.schedule == "record" for choice in step.kernels) == len(best)
        assert error_of(run(executable, x), reference) < bound


@pytest.mark.parametrize(("batch", "parts"), [(1, 2), (1, 5), (2, 3)])
def test_every_schedule_of_a_concatenation_keeps_the_output(batch: int, parts: int) -> None:
    shape = (batch, 3, 5, 6, 16)
    factors = [float((-1) ** at * (at + 1)) for at in range(parts)]

    def joined(x: Any) -> Any:
        scaled = [relax.op.multiply(x, relax.const(factor, "float32")) for factor in factors]
        return relax.op.clip(relax.op.concat(scaled, 1), -1.5, 1.5)

    lowered = lower(of_one_operator(joined, shape), HOST)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (workload,) = extract_workloads(lowered)
    covered = HOST.template_for(workload.function)
    assert covered is not None and covered[1][0].get("joined")
    assert {knobs["rows_first"] for knobs in covered[1]} == {0, 1}
    expected = np.concatenate([x * np.float32(factor) for factor in factors], 1).clip(-1.5, 1.5)
    for output in outputs_of_every_schedule(lowered, workload, *covered, x):
        assert np.array_equal(output, expected)


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
    module, model = imported(Net(), shape)
    target = HOST
    step = ApplySchedules({}, HOST.template_for)
    scheduled_module = step(lower(PackChannels(16)(module), target))
    calls = [c for name, c in count_calls(scheduled_module).items() if name.startswith("concatenate")]
    assert sum(calls) == sum(choice.name.startswith("concatenate") for choice in step.kernels) == copies
    machine = relax.VirtualMachine(compile_lowered(scheduled_module, target), tvm.cpu())
    for seed in (0, 1):  # the second time in memory that has been used
        x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        assert error_of(machine["main"](tvm.runtime.tensor(x)).numpy(), model.run(x)[0]) < BOUND


@pytest.mark.parametrize(("groups", "kernel"), [(1, 3), (1, 1), (32, 3)])
def test_a_padding_of_any_value_is_made_by_the_convolution(groups: int, kernel: int) -> None:
    """The zero point of integers is what they are padded with; a kernel that only pads would read and write the image
    once more.
    """
    draw = np.random.default_rng(groups + kernel)
    x = draw.integers(-128, 128, (2, 32, 7, 9)).astype(np.int8)
    weight = draw.integers(-127, 128, (32, 32 // groups, kernel, kernel)).astype(np.int8)
    given = relax.Var("x", relax.TensorType(x.shape, "int8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [given]):
        with builder.dataflow():
            first = builder.emit(
                relax.op.nn.conv2d(given, constant(np.eye(32)[:, :, None, None], "int8"), out_dtype="int32")
            )
            clipped = builder.emit(relax.op.clip(first, -100, 127))
            padded = builder.emit(
                relax.op.nn.pad(relax.op.astype(clipped, "int8"), [0, 0, 0, 0, 1, 2, 0, 1], pad_value=-77.0)
            )
            out = builder.emit_output(
                relax.op.nn.conv2d(padded, constant(weight, "int8"), groups=groups, out_dtype="int32")
            )
        builder.emit_func_output(out)
    module = builder.get()
    packed = PackChannels(16)(module)
    names = [workload.name for workload in extract_workloads(lower(packed, HOST))]
    assert not any("pad" in name for name in names), names
    expected = run_graph(read_graph(module), x)
    found = LocalRunner(packed, HOST).run(x)[0]
    assert found.shape == (2, 32, 11 - kernel, 11 - kernel) and np.array_equal(found, expected)


def test_what_the_network_returns_is_not_joined_in_place() -> None:
    def joined(x: Any) -> Any:
        return relax.op.concat(
            [
                relax.op.nn.max_pool2d(x, (1, 1), layout="NCHW16c"),
                relax.op.nn.max_pool2d(x, (3, 3), padding=1, layout="NCHW16c"),
            ],
            1,
        )

    lowered = lower(of_one_operator(joined, (1, 4, 5, 6, 16)), HOST)
    assert ConcatInPlace()(lowered).same_as(lowered)


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
    module, model = imported(Net(), (1, 3, 11, 15))
    x = np.random.default_rng(0).standard_normal((1, 3, 11, 15), dtype=np.float32)
    packed = PackChannels(16)(module)
    names = [workload.name for workload in extract_workloads(lower(packed, HOST))]
    assert [name for name in names if "resize" in name][-1].endswith(" 1x2x17x26x16")
    assert not any("transpose" in name for name in names)
    assert error_of(LocalRunner(packed, HOST).run(x)[0], model.run(x)[0]) < BOUND


@pytest.mark.parametrize("winograd", [0, 2])
def test_the_plain_kernels_that_schedules_are_compared_with_are_right(winograd: int) -> None:
    module, model = imported(build("digits_cnn", 3), (1, 1, 8, 8))
    packed, target = PackChannels(16)(module), HOST
    lowered = lower(
        packed, target, winograd=dict.fromkeys(list_convolution_keys(packed), winograd) if winograd else None
    )
    for name, function in lowered.functions.items():
        if isinstance(function, tirx.PrimFunc):
            spread = schedule_reference(function)
            assert "T.parallel" in spread.script()
            lowered[name] = spread
    x = np.random.default_rng(1).standard_normal((1, 1, 8, 8), dtype=np.float32)
    assert error_of(run(compile_lowered(lowered, target), x), model.run(x)[0]) < (10 if winograd else 1) * BOUND


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    size=st.sampled_from([(8, 8), (14, 14), (7, 7), (9, 13)]),
    channels=st.sampled_from([16, 48]),
    m=st.sampled_from(TILES),
    dilation=st.sampled_from([1, 2, 3]),
    padding=st.sampled_from([0, 1, 2]),
)
def test_winograd_equals_torch_at_any_size(
    size: tuple[int, int], channels: int, m: int, dilation: int, padding: int
) -> None:
    torch.manual_seed(1)
    layer = torch.nn.Conv2d(16, channels, 3, padding=max(padding, dilation - 1), dilation=dilation)
    net = torch.nn.Sequential(layer, torch.nn.ReLU(), torch.nn.Flatten())
    module, model = imported(net, (1, 16, *size))
    packed = PackChannels(16)(module)
    (key,) = list_convolution_keys(packed)
    executable, choices, *_ = build_scheduled(packed, HOST, {}, winograd={key: m})
    assert "winograd" in {choice.template for choice in choices}
    x = np.random.default_rng(0).standard_normal((1, 16, *size), dtype=np.float32)
    assert error_of(run(executable, x), model.run(x)[0]) < 10 * BOUND


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
    module, model = imported(net, shape)
    assert tileable_width(71) == 72 and tileable_width(149) == 150 and tileable_width(56) == 56
    lowered = lower(PackChannels(16)(module), HOST)
    assert "crop" in str(lowered)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    assert error_of(LocalRunner(PackChannels(16)(module), HOST).run(x)[0], model.run(x)[0]) < BOUND


def _layer_norm(x: Any) -> Any:
    scale, shift = (constant(np.full(x.ty.shape[-1].value, value, np.float32), "float32") for value in (1.5, 0.5))
    return relax.op.nn.layer_norm(x, scale, shift, axes=[-1])


@pytest.mark.few(7)
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
def test_every_schedule_of_rows_keeps_the_output(
    operator: Callable[[Any], Any], same: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    lowered = lower(of_one_operator(operator, shape), HOST)
    (workload,) = extract_workloads(lowered)
    covered = HOST.template_for(workload.function)
    assert covered is not None
    assert covered[0].name == "rows"
    for output in outputs_of_every_schedule(lowered, workload, *covered, x):
        assert error_of(output, same(torch.from_numpy(x)).numpy()) < BOUND


@pytest.mark.few(4)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("m", [0, 2, 4])
@pytest.mark.parametrize("reader", ["pool", "convolution"])
def test_a_padding_behind_a_convolution_is_written(kernel: int, m: int, reader: str) -> None:
    """The library is run twice on memory that is not new, so that nothing is right by chance."""
    torch.manual_seed(3)
    last: torch.nn.Module = torch.nn.MaxPool2d(3, 2) if reader == "pool" else torch.nn.Conv2d(32, 16, 3, 2)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, kernel, padding=kernel // 2),
        torch.nn.ReLU(),
        torch.nn.ZeroPad2d((0, 1, 0, 1)),
        last,
        torch.nn.Flatten(),
    )
    shape = (1, 16, 28, 28)
    module, model = imported(net, shape)
    packed = PackChannels(16)(module)
    winograd = {key: m for key in list_convolution_keys(packed)} if m else {}
    executable, *_ = build_scheduled(packed, HOST, {}, winograd=winograd)
    for seed in (0, 1):
        x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        assert error_of(run(executable, 100 * x), model.run(100 * x)[0]) < 10 * BOUND


def test_winograd_errors_grow_with_the_tile_and_are_measured() -> None:
    weight = np.random.default_rng(0).standard_normal((2, 4, 3, 3, 16, 16)).astype(np.float32)
    errors = [winograd_error(weight, m) for m in TILES]
    assert 1e-7 < errors[0] < errors[1] < errors[2] < 1e-4
