"""Compare random one-convolution regions on random VTA designs, in both modes, with numpy and the formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.differential.vta_cases import BOARD, CONFIG, check_region, image, layer_values, random_conv, total
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.compiler import MODES, Mode, compile_region, conv_workloads
from tvmflow.vta.compiler.conv_tiling import Tile, count_moved_bytes, count_multiplications, layout_of
from tvmflow.vta.compiler.tile_search import TileRecord
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import Conv, Region, Sum, Tail, run_region
from tvmflow.vta.machine.counters import count
from tvmflow.vta.machine.lint import lint

DESIGNS = [
    VtaConfig(log_block=2, log_uop_buff_size=12, log_inp_buff_size=inp, log_wgt_buff_size=wgt, log_acc_buff_size=acc)
    for inp, wgt, acc in ((12, 13, 14), (13, 12, 13), (11, 14, 15))
]
"""Blocks of 4; inputs 2^10, 2^11, 2^9 vectors; weights 2^9, 2^8, 2^10 blocks; accumulators 2^10, 2^9, 2^11 vectors."""


@st.composite
def tails(draw: st.DrawFn, channels: int) -> Tail:
    chance = np.random.default_rng(draw(st.integers(0, 99)))
    bias = draw(st.sampled_from([None, 1 << 3, 1 << 12]))
    vector = None if bias is None else chance.integers(-bias, bias, channels).astype(np.int32)
    right = draw(st.integers(-1, 17))
    half = 1 << (right - 1) if right > 0 and draw(st.booleans()) else 0
    low, high = draw(st.sampled_from([(0, 127), (-127, 127), (-128, 127), (0, 90), (-20, 30), (5, 100)]))
    return Tail(vector, draw(st.integers(0, 2)), half, right, low, high, draw(st.booleans()))


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool = False) -> Region:
    """A convolution of up to 12 channels; every size, stride and padding of rows independent of that of columns."""
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    strides = [draw(st.integers(1, min(3, k) if transposed else 3)) for k in kernel]
    padding = [draw(st.integers(0, kernel[side % 2] - 1)) for side in range(4)]
    extra = [draw(st.integers(0, s - 1)) if transposed else 0 for s in strides]
    size = [draw(st.integers(1 if transposed else max(1, kernel[i] - padding[i] - padding[i + 2]), 12)) for i in (0, 1)]
    groups = draw(st.sampled_from([1, 1, 2, 3, 5]))
    inputs, outputs = groups * draw(st.integers(1, 12 // groups)), groups * draw(st.integers(1, 12 // groups))
    shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    weight = image((*shape, *kernel), draw(st.integers(0, 9)))
    conv = Conv(
        "c",
        "x",
        weight,
        draw(tails(outputs)),
        (strides[0], strides[1]),
        (padding[0], padding[1], padding[2], padding[3]),
        groups,
        transposed,
        (extra[0], extra[1]),
    )
    if min(conv.shape_of((1, inputs, size[0], size[1]))) < 1:
        conv = replace(conv, padding=(0, 0, 0, 0))
    return Region({"x": (draw(st.integers(1, 2)), inputs, size[0], size[1])}, (conv,), ("c",))


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(DESIGNS), convolutions())
def test_random_convolutions_equal_numpy_and_move_no_more_than_the_reference(config: VtaConfig, region: Region) -> None:
    reference, optimized = (total(check_region(config, region, mode)) for mode in ("reference", "optimized"))
    assert optimized.five_bytes <= reference.five_bytes
    assert optimized.dram_nbytes <= reference.dram_nbytes


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(DESIGNS), convolutions(transposed=True))
def test_random_transposed_convolutions_equal_numpy(config: VtaConfig, region: Region) -> None:
    optimized, conv = total(check_region(config, region)), region.operators[0]
    if isinstance(conv, Conv) and max(conv.strides) > 1:
        with pytest.raises(ProgramError, match="transposed convolution with a stride in reference mode"):
            check_region(config, region, "reference")
    else:
        assert optimized.five_bytes <= total(check_region(config, region, "reference")).five_bytes


@st.composite
def cuts(draw: st.DrawFn) -> tuple[VtaConfig, Region, str, Tile]:
    """A random convolution, alone or with a fused sum, and any tile that fits."""
    config, region = draw(st.sampled_from(DESIGNS)), draw(convolutions(draw(st.booleans())))
    if draw(st.booleans()):
        add = Sum("s", ("c", "y"), (0, 1), Tail(None, 0, 1, 1))
        region = Region({**region.inputs, "y": region.shapes()["c"]}, (*region.operators, add), ("s",))
    ((key, (_, job)),) = conv_workloads(config, region).items()
    g = job.geometry
    sizes = (
        draw(st.integers(1, -(-g.rows.out // g.rows.dst))) * g.rows.dst,
        draw(st.integers(1, -(-g.columns.out // g.columns.dst))) * g.columns.dst,
        draw(st.integers(1, g.co_group)),
        draw(st.integers(1, g.ci_group)),
    )
    slots = (draw(st.integers(1, 12)), draw(st.integers(1, 12)), draw(st.integers(1, 3)))
    rolling = draw(st.booleans()) and not g.rows.is_sparse
    tile = Tile(*sizes, *slots, rolling, draw(st.booleans()))
    assume(layout_of(config, job, tile) is not None)
    return config, region, key, tile


@settings(max_examples=examples(80), deadline=None)
@given(cuts())
def test_any_tile_that_fits_is_exact_and_costs_what_the_formula_says(cut: tuple[VtaConfig, Region, str, Tile]) -> None:
    config, region, key, tile = cut
    ((_, job),) = conv_workloads(config, region).values()
    program = compile_region(config, region, "optimized", {key: TileRecord(key, config.name, tile, 0, 0, 0)})
    apart = len(region.operators) > 1 and job.residual is None  # a sum behind a tail that wraps is not fused
    assert lint(program, replace(BOARD, wide_shifts=True, acc_8bit=apart)) == []
    inputs = {name: image(shape, 3) for name, shape in region.inputs.items()}
    expected = run_region(region, inputs)
    for value, values in layer_values(program, inputs, region.shapes()).items():
        assert np.array_equal(values, expected[value])
    counters, copies = (
        count(config, program.launches[0].instructions),
        math.prod(program.outputs[0].shape[:4]) if job.residual is not None else 0,
    )
    assert counters.gemm_counter == count_multiplications(job.geometry, tile) + copies
    assert counters.five_bytes - counters.uop_load_nbytes == count_moved_bytes(config, job, tile)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strides", [(1, 2), (3, 1), (2, 3)])
def test_rows_and_columns_have_strides_of_their_own(strides: tuple[int, int], mode: Mode) -> None:
    conv = replace(random_conv("c", "x", (32, 32), 3), strides=strides)
    check_region(CONFIG, Region({"x": (1, 32, 13, 17)}, (conv,), ("c",)), mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_transposed_convolution_without_a_stride_turns_its_taps(mode: Mode) -> None:
    conv = replace(random_conv("c", "x", (16, 16), 3), transposed=True)
    check_region(CONFIG, Region({"x": (1, 16, 9, 11)}, (conv,), ("c",)), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tail", [Tail(None, 0, 8, 4, saturates=False), Tail(None, 0, 8, 4, 0, 127, saturates=False)])
def test_a_tail_that_does_not_saturate_wraps(tail: Tail, mode: Mode) -> None:
    conv = replace(random_conv("c", "x", (16, 16), 3), tail=tail)
    check_region(CONFIG, Region({"x": (1, 16, 8, 8)}, (conv,), ("c",)), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kernel", "size"), [(3, (2, 2)), (3, (1, 1)), (3, (2, 9)), (3, (9, 1)), (5, (3, 2)), (7, (3, 3))]
)
def test_images_smaller_than_the_kernel(kernel: int, size: tuple[int, int], mode: Mode) -> None:
    region = Region({"x": (1, 32, *size)}, (random_conv("c", "x", (32, 48), kernel),), ("c",))
    check_region(CONFIG, region, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [16, 48])
def test_a_kernel_as_large_as_the_image(channels: int, mode: Mode) -> None:
    conv = replace(random_conv("c", "x", (16, channels), 5), padding=(0, 0, 0, 0))
    check_region(CONFIG, Region({"x": (1, 16, 5, 5)}, (conv,), ("c",)), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("right", [15, 16, 17])
@pytest.mark.parametrize("low", [0, -127])
def test_a_rounding_that_no_immediate_holds_goes_into_the_bias(low: int, right: int, mode: Mode) -> None:
    conv = random_conv("c", "x", (16, 16), 3)
    for bias in (None, np.arange(16, dtype=np.int32) << 14):
        tail = Tail(bias, 3, 1 << (right - 1), right, low)
        check_region(CONFIG, Region({"x": (1, 16, 6, 6)}, (replace(conv, tail=tail),), ("c",)), mode)
