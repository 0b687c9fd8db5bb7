"""Compare VTA convolutions of both modes with numpy, and their counters with the formulas."""

from __future__ import annotations

import pytest

from tests.differential.vta_cases import (
    BOARD,
    CONFIG,
    check_region,
    image,
    random_conv,
    resnet18,
    total,
)
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.compiler import MODES, check_operator, compile_region, conv_workloads, search_tiles
from tvmflow.vta.compiler.conv_tiling import count_moved_bytes, count_multiplications
from tvmflow.vta.compiler.convolution import geometry
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.program import Program
from tvmflow.vta.isa.region import Conv, Region, Tail
from tvmflow.vta.machine.counters import count, estimate
from tvmflow.vta.machine.lint import lint

# -- ResNet-18 --------------------------------------------------------------------------------------------------------


def test_reference_mode_has_the_published_counters() -> None:
    program = check_region(CONFIG, resnet18(), "reference")
    counters = total(program)
    assert (counters.inp_load_nbytes, counters.wgt_load_nbytes, counters.acc_load_nbytes) == (
        5_549_568,
        12_763_136,
        6_051_840,
    )
    assert (counters.uop_load_nbytes, counters.out_store_nbytes) == (22_864, 2_433_536)
    assert (counters.gemm_counter, counters.alu_counter) == (6_623_232, 699_328)


def test_optimized_mode_moves_less_and_is_exact_at_every_layer() -> None:
    program = check_region(CONFIG, resnet18(), "optimized")
    counters = total(program)
    assert counters.five_bytes <= 16_500_000  # the reference: 26,820,944
    assert counters.alu_counter <= 514_304
    assert lint(program, BOARD) == []  # nothing that only a simulator can do
    reference = compile_region(CONFIG, resnet18(), "reference")
    cycles = [sum(estimate(CONFIG, launch).total for launch in p.launches) for p in (program, reference)]
    assert cycles[0] < cycles[1]


# -- operators --------------------------------------------------------------------------------------------------------

RESNET_CONVS = [
    (56, 64, 64, 3, 1),
    (56, 64, 128, 3, 2),
    (56, 64, 128, 1, 2),
    (28, 128, 128, 3, 1),
    (28, 128, 256, 3, 2),
    (28, 128, 256, 1, 2),
    (14, 256, 256, 3, 1),
    (14, 256, 512, 3, 2),
    (14, 256, 512, 1, 2),
    (7, 512, 512, 3, 1),
    # of ResNet-50's bottlenecks
    (56, 64, 64, 1, 1),
    (56, 64, 256, 1, 1),
    (56, 256, 64, 1, 1),
    (56, 256, 128, 1, 1),
    (56, 256, 128, 1, 2),
    (56, 128, 128, 3, 2),
    (28, 128, 512, 1, 1),
    (28, 512, 128, 1, 1),
    (56, 256, 512, 1, 2),
    (28, 512, 256, 1, 1),
    (28, 512, 256, 1, 2),
    (28, 256, 256, 3, 2),
    (14, 256, 1024, 1, 1),
    (14, 1024, 256, 1, 1),
    (28, 512, 1024, 1, 2),
    (14, 1024, 512, 1, 1),
    (14, 1024, 512, 1, 2),
    (14, 512, 512, 3, 2),
    (7, 512, 2048, 1, 1),
    (7, 2048, 512, 1, 1),
    (14, 1024, 2048, 1, 2),
]
MOBILENET_G = [
    (112, 32, 2, 1),
    (112, 64, 4, 2),
    (56, 128, 8, 1),
    (56, 128, 8, 2),
    (28, 256, 16, 1),
    (28, 256, 16, 2),
    (14, 512, 32, 1),
    (14, 512, 32, 2),
    (7, 1024, 64, 1),
]


def formula_equals_counters(config: VtaConfig, region: Region, program: Program) -> None:
    records = search_tiles(config, region)
    for key, (name, job) in conv_workloads(config, region).items():
        launch = next(launch for launch in program.launches if launch.name == name)
        counters, tile = count(config, launch.instructions), records[key].tile
        assert tile is not None
        copies = counters.gemm_counter - count_multiplications(job.geometry, tile)
        plane = job.geometry.n * job.geometry.co * job.geometry.rows.out * job.geometry.columns.out
        assert copies == (plane if job.residual is not None else 0)
        assert counters.five_bytes - counters.uop_load_nbytes == count_moved_bytes(config, job, tile)


@pytest.mark.few(6)
@pytest.mark.parametrize(("size", "inputs", "outputs", "kernel", "stride"), RESNET_CONVS)
def test_convolutions_of_resnet(size: int, inputs: int, outputs: int, kernel: int, stride: int) -> None:
    region = Region({"x": (1, inputs, size, size)}, (random_conv("c", "x", (inputs, outputs), kernel, stride),), ("c",))
    formula_equals_counters(CONFIG, region, check_region(CONFIG, region))


@pytest.mark.few(4)
@pytest.mark.parametrize(("size", "channels", "groups", "stride"), MOBILENET_G)
def test_grouped_convolutions(size: int, channels: int, groups: int, stride: int) -> None:
    conv = random_conv("c", "x", (channels, channels), 3, stride, groups=groups)
    region = Region({"x": (1, channels, size, size)}, (conv,), ("c",))
    formula_equals_counters(CONFIG, region, check_region(CONFIG, region))
    check_region(CONFIG, region, "reference")


@pytest.mark.parametrize(("channels", "groups"), [(32, 32), (48, 12), (24, 3), (64, 8), (72, 72), (240, 10)])
def test_depthwise_and_narrow_groups(channels: int, groups: int) -> None:
    conv = random_conv("c", "x", (channels, channels), 3, groups=groups)
    check_region(CONFIG, Region({"x": (1, channels, 14, 14)}, (conv,), ("c",)))


def test_groups_that_fill_no_block_are_refused() -> None:
    conv = random_conv("c", "x", (120, 120), 3, groups=3)
    with pytest.raises(ProgramError, match="3 groups of 40"):
        check_operator(CONFIG, conv, (1, 120, 8, 8))


@pytest.mark.parametrize("channels", [96, 128, 200])
def test_depthwise_on_wide_blocks(channels: int) -> None:
    config = VtaConfig(log_block=6, log_inp_buff_size=16, log_acc_buff_size=18)
    conv = random_conv("c", "x", (channels, channels), 3, groups=channels)
    for mode in MODES:
        check_region(config, Region({"x": (1, channels, 9, 9)}, (conv,), ("c",)), mode)


@pytest.mark.parametrize(("size", "inputs", "outputs"), [(4, 1024, 512), (8, 512, 256), (16, 256, 128)])
def test_transposed_convolutions_of_dcgan(size: int, inputs: int, outputs: int) -> None:
    weight = image((inputs, outputs, 4, 4), 3)
    conv = Conv("c", "x", weight, Tail(None, 0, 1 << 9, 10, -127, 127), (2, 2), (1, 1, 1, 1), transposed=True)
    region = Region({"x": (1, inputs, size, size)}, (conv,), ("c",))
    formula_equals_counters(CONFIG, region, check_region(CONFIG, region))


@pytest.mark.parametrize(("kernel", "stride", "pad", "extra"), [(3, 2, 1, 1), (2, 2, 0, 0), (5, 3, 2, 0), (3, 1, 1, 0)])
def test_other_transposed_convolutions(kernel: int, stride: int, pad: int, extra: int) -> None:
    weight = image((16, 32, kernel, kernel), 3)
    conv = Conv(
        "c",
        "x",
        weight,
        Tail(None, 0, 8, 4),
        (stride, stride),
        (pad,) * 4,
        transposed=True,
        output_padding=(extra, extra),
    )
    check_region(CONFIG, Region({"x": (1, 16, 9, 7)}, (conv,), ("c",)))


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(128, 128, 128), (16, 512, 1008)])
def test_dense_layers(batch: int, inputs: int, outputs: int) -> None:
    region = Region({"x": (batch, inputs, 1, 1)}, (random_conv("c", "x", (inputs, outputs), 1),), ("c",))
    counters = total(check_region(CONFIG, region))
    assert counters.gemm_counter == batch * (inputs // 16) * (outputs // 16)


def test_a_phase_without_taps_is_refused() -> None:
    conv = Conv("c", "x", image((16, 16, 1, 1)), Tail(), (2, 2), (0,) * 4, transposed=True)
    with pytest.raises(ProgramError, match="stride beyond the kernel"):
        geometry(CONFIG, conv, (1, 16, 4, 4))
