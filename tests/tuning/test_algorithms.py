"""Test the choice of algorithms: by kernels, in the whole network, and by operation counts without measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvmflow.backends.cpu import CpuBackend
from tvmflow.backends.registry import backend_named
from tvmflow.config.stage_params import TuneParams
from tvmflow.ir.relax.emit import constant
from tvmflow.ir.tir.workloads import Workload
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.winograd_choice import (
    LARGE_WEIGHTS,
    Alternative,
    choose_by_cost,
    choose_by_kernel_time,
    choose_by_network_time,
    describe_tiles,
    find_alternatives,
    weight_values,
)

LARGE, SMALL = "1x32x7x7x16 32x32x3x3x16x16 p1,1,1,1", "1x4x56x56x16 4x4x3x3x16x16 p1,1,1,1"


def _packed(
    block: int,
    *convolutions: tuple[int, int, int],
    dtype: str = "float32",
    dilation: int = 1,
    out_dtype: str = "float32",
) -> Any:
    """Return a packed module of 3x3 convolutions, (channels, output channels, size) each."""
    inputs = [
        relax.Var(f"x{at}", relax.TensorType((1, ic, size, size), dtype))
        for at, (ic, _, size) in enumerate(convolutions)
    ]
    draw, builder = np.random.default_rng(0), relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            found = [
                builder.emit(
                    relax.op.nn.conv2d(
                        x,
                        constant(draw.standard_normal((oc, ic, 3, 3)), dtype),
                        padding=dilation,
                        dilation=dilation,
                        out_dtype=out_dtype,
                    )
                )
                for x, (ic, oc, _) in zip(inputs, convolutions, strict=True)
            ]
            output = builder.emit_output(relax.Tuple(found))
        builder.emit_func_output(output)
    return PackChannels(block)(builder.get())


def _backend(mcpu: str, triple: str) -> CpuBackend:
    return CpuBackend(ResolvedTarget("llvm", mcpu, triple, (), 1, "cc"))


def test_without_a_measurement_arm64_takes_the_way_of_fewest_multiplications() -> None:
    packed = _packed(8, (64, 64, 28), (8, 8, 8), (256, 256, 14), (64, 64, 2), (64, 64, 14), (512, 512, 7), (64, 64, 56))
    arm, bound = _backend("cortex-a76", "aarch64-linux-gnu"), {"float32": 1e-4}
    chosen = {key.split()[0]: m for key, m in choose_by_cost(packed, arm, bound).items()}
    # an image of 2x2 is one tile of F(2x2); weights are loaded whatever their number, once
    assert chosen == {
        "1x8x28x28x8": 4,
        "1x1x8x8x8": 4,
        "1x32x14x14x8": 4,
        "1x8x2x2x8": 2,
        "1x8x14x14x8": 4,
        "1x64x7x7x8": 4,
        "1x8x56x56x8": 6,
    }
    rows = describe_tiles(packed, arm, choose_by_cost(packed, arm, bound))
    assert [row["tile"] for row in rows] == list(chosen.values()), "one row per layer"
    assert all(1e-7 < row["error"] <= 1e-4 for row in rows)
    assert set(choose_by_cost(packed, arm, {"float32": 4e-6}).values()) <= {2}
    assert choose_by_cost(packed, arm, {"float32": 1e-9}) == choose_by_cost(packed, arm, {}) == {}


def test_float16_takes_it_on_arm64_alone_within_the_bound_of_the_type_that_is_summed() -> None:
    layers = (64, 64, 28), (512, 512, 7), (64, 64, 2)
    half = _packed(8, *layers, dtype="float16", out_dtype="float16")
    wide = _packed(8, *layers, dtype="float16")
    arm, bounds = _backend("cortex-a76", "aarch64-linux-gnu"), TuneParams().winograd_bounds
    by_half, by_single = choose_by_cost(half, arm, bounds), choose_by_cost(wide, arm, bounds)
    assert list(by_half.values()) == list(by_single.values()) == [4, 4, 2]
    assert all(key.endswith(" float16") for key in by_half) and all(key.endswith("16_acc32") for key in by_single)
    (_, error, _), (_, exact, _) = (
        [row["error"] for row in describe_tiles(packed, arm, chosen)]
        for packed, chosen in ((half, by_half), (wide, by_single))
    )
    assert 3e-2 < error <= bounds["float16"] and 1e-5 < exact <= bounds["float32"], "sums of 512 channels"
    assert set(choose_by_cost(half, arm, {"float16": 3e-2}).values()) == {2}
    assert choose_by_cost(half, arm, {"float32": 1e-4}) == choose_by_cost(wide, arm, {"float16": 1e-1}) == {}
    assert choose_by_cost(half, _backend("cortex-a72", "aarch64-linux-gnu"), bounds) == {}, "no sums in float16"
    x86 = _backend("znver4", "x86_64-linux-gnu")
    assert choose_by_cost(half, x86, bounds) == choose_by_cost(wide, x86, bounds) == {}
    assert find_alternatives(half, x86, [], bounds) == []


def test_without_a_measurement_x86_counts_loads_of_weights_too() -> None:
    packed = _packed(16, (64, 64, 28), (256, 256, 14), (512, 512, 7), (16, 16, 8))
    for name, block in (("znver4", packed), ("haswell", packed)):
        chosen = {
            key.split()[0]: m
            for key, m in choose_by_cost(block, _backend(name, "x86_64-linux-gnu"), {"float32": 1e-4}).items()
        }
        # each weight of an image of 14x14 serves 16 tiles of F(4x4), each of 7x7 four
        assert chosen == {"1x4x28x28x16": 4, "1x16x14x14x16": 2, "1x32x7x7x16": 2, "1x1x8x8x16": 4}
    assert choose_by_cost(packed, _backend("nehalem", "x86_64-linux-gnu"), {"float32": 1e-4}) == {}
    many = _backend("znver4", "x86_64-linux-gnu")
    many = type(many)(replace(many.target, threads=16))  # which multiply more beside the same memory
    chosen = {key.split()[0]: m for key, m in choose_by_cost(packed, many, {"float32": 1e-4}).items()}
    assert chosen == {"1x4x28x28x16": 4, "1x1x8x8x16": 4}


def test_dilated_convolutions_take_it_on_cpus_where_caches_hold_all_tiles_within_each_other() -> None:
    bound, gpu = {"float32": 1e-4}, {"software": True, "kind": "generic"}
    for dilation, expected in ((1, {4}), (2, {4}), (4, {4}), (5, set())):
        cpu = _backend("znver4", "x86_64-linux-gnu")
        assert set(choose_by_cost(_packed(16, (64, 64, 28), dilation=dilation), cpu, bound).values()) == expected
        target = ResolvedTarget("vulkan", "znver4", "x86_64-linux-gnu", (), 1, "cc", gpu)
        chosen = choose_by_cost(_packed(4, (64, 64, 28), dilation=dilation), backend_named("vulkan")(target), bound)
        assert bool(chosen) == (dilation == 1)


@pytest.mark.parametrize(("name", "expected"), [("znver4", {2}), ("sapphirerapids", set()), ("haswell", set())])
def test_bfloat16_takes_it_where_an_instruction_sums_pairs_and_none_tiles(name: str, expected: set[int]) -> None:
    backend = _backend(name, "x86_64-linux-gnu")
    packed = _packed(16, (64, 64, 28), dtype="bfloat16")
    assert set(choose_by_cost(packed, backend, {"float32": 1e-4, "bfloat16": 4e-2}).values()) == expected


def test_without_a_measurement_gpus_in_software_take_it_where_there_are_tiles_enough() -> None:
    packed, bound = _packed(4, (64, 64, 28), (256, 256, 14), (64, 64, 7)), {"float32": 1e-4}
    for api in ("opencl", "vulkan"):
        backend = backend_named(api)
        target = ResolvedTarget(api, "znver4", "x86_64-linux-gnu", (), 1, "cc", {"software": True, "kind": "generic"})
        chosen = {key.split()[0]: m for key, m in choose_by_cost(packed, backend(target), bound).items()}
        assert chosen == {"1x16x28x28x4": 4, "1x64x14x14x4": 2}
        assert (
            choose_by_cost(packed, backend(replace(target, options={"software": False, "kind": "mali"})), bound) == {}
        )


def _kernel(name: str, calls: int = 1) -> Workload:
    return Workload(name, name, calls, None)


def _times(**seconds: float) -> dict[str, TuningRecord]:
    return {
        name: TuningRecord(name, name, "t", {}, None, (value,), OK, "device", {}, "now")
        for name, value in seconds.items()
    }


def _alternatives(key: str) -> list[Alternative]:
    return [Alternative(key, m, (_kernel("direct", 2),), (_kernel(f"f{m}", 2),)) for m in (2, 4)]


def test_the_faster_kernels_win_and_what_was_not_measured_never_does() -> None:
    found = _alternatives(SMALL)
    assert choose_by_kernel_time(found, _times(direct=3.0, f2=2.0, f4=1.0)) == {SMALL: 4}
    assert choose_by_kernel_time(found, _times(direct=3.0, f2=2.0)) == {SMALL: 2}
    assert choose_by_kernel_time(found, _times(direct=1.0, f2=2.0, f4=3.0)) == {}
    assert choose_by_kernel_time(found, _times(f2=2.0, f4=1.0)) == {}


def test_large_weights_are_settled_in_the_whole_network() -> None:
    best = _times(direct=3.0, f2=2.0, f4=1.0)
    whole = {0: 10.0, 2: 8.0, 4: 12.0}  # F(4x4) is slower there: its weights come from memory
    asked: list[int] = []

    def speedup(now: dict[str, int], other: dict[str, int]) -> float:
        asked.append(other.get(LARGE, 0))
        return whole[now.get(LARGE, 0)] / whole[other.get(LARGE, 0)]

    assert choose_by_network_time(_alternatives(LARGE), {LARGE: 4}, best, speedup) == {LARGE: 2}
    assert asked == [0, 2]
    assert choose_by_network_time(_alternatives(LARGE), {LARGE: 4}, best, speedup, lambda: False) == {LARGE: 4}, (
        "no time left"
    )
    assert asked == [0, 2]
    equal = {0: 8.1, 2: 8.0, 4: 7.99}
    asked.clear()
    whole.update(equal)
    assert choose_by_network_time(_alternatives(LARGE), {LARGE: 4}, best, speedup) == {LARGE: 2}, (
        "as fast with fewer weights"
    )
    assert choose_by_network_time(_alternatives(LARGE), {LARGE: 2}, best, speedup) == {LARGE: 2}, (
        "more weights for less than noise"
    )


def test_what_counting_chose_for_large_weights_is_where_the_search_may_start() -> None:
    other = LARGE.replace("32x7x7", "32x14x14")
    candidates = [*_alternatives(LARGE), *_alternatives(other), *_alternatives(SMALL)]
    # F(4x4) is faster alone; in the network each is slower, and only both together are seen to be faster without
    asked: list[tuple[dict[str, int], dict[str, int]]] = []

    def speedup(now: dict[str, int], after: dict[str, int]) -> float:
        asked.append((now, after))
        return 1.2 if after == by_cost | {SMALL: 4} else 0.9

    chosen, best = dict.fromkeys((LARGE, other, SMALL), 4), _times(direct=3.0, f2=2.0, f4=1.0)
    by_cost = {LARGE: 2, other: 2}
    assert choose_by_network_time(candidates, chosen, best, speedup, by_cost=by_cost) == by_cost | {SMALL: 4}
    assert asked[0] == (chosen, by_cost | {SMALL: 4})
    assert choose_by_network_time(candidates, chosen, best, lambda *_: 0.9, by_cost={}) == chosen
    without_f2 = _times(direct=3.0, f4=1.0)
    assert choose_by_network_time(candidates, chosen, without_f2, lambda *_: 0.9, by_cost=by_cost) == chosen, (
        "never what was not measured"
    )


def test_small_weights_and_unmeasured_kernels_are_not_compared() -> None:
    def never(_now: dict[str, int], _other: dict[str, int]) -> float:
        raise AssertionError("compared")

    assert weight_values(SMALL) < LARGE_WEIGHTS <= weight_values(LARGE)
    assert choose_by_network_time(_alternatives(SMALL), {SMALL: 4}, _times(direct=3.0, f2=2.0, f4=1.0), never) == {
        SMALL: 4
    }
    assert choose_by_network_time(_alternatives(LARGE), {}, _times(direct=3.0), never) == {}
