"""VTA: the fast simulator against the definition, programs against numpy, counters against their formulas."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmflow.errors import ProgramError
from tvmflow.vta.compiler import MODES, Mode, as_computed, check_operator, compile_region, conv_workloads, search_tiles
from tvmflow.vta.config import Memory, VtaConfig
from tvmflow.vta.convolution import geometry
from tvmflow.vta.counters import Counters, count, estimate
from tvmflow.vta.execution import in_order, run_launch
from tvmflow.vta.interpreter import Interpreter
from tvmflow.vta.isa import Alu, AluOp, Finish, Flags, Gemm, Instruction, Mem, encode_uops
from tvmflow.vta.lint import DeviceRules, lint
from tvmflow.vta.program import PAGE, Dram, Launch, LaunchBuilder, Loops, Program, check_row_hazard, pages
from tvmflow.vta.region import Conv, MaxPool, Region, Sum, Tail, region_from, region_to_blob, run_region
from tvmflow.vta.region import from_blob as read_blob
from tvmflow.vta.runtime import dram_of, layer_values, program_from, program_to_blob
from tvmflow.vta.simulator import Simulator
from tvmflow.vta.tiles import nbytes

Array = np.ndarray[Any, Any]
CONFIG = VtaConfig()
TINY = VtaConfig(log_block=2, log_uop_buff_size=7, log_inp_buff_size=7, log_wgt_buff_size=8, log_acc_buff_size=9)
"""Blocks of 4, 32 micro-ops, 32 vectors, 16 weight blocks, 32 accumulators."""
BOARD = DeviceRules(mul=False, acc_8bit=False, wide_shifts=False, stores_unprocessed=False, row_hazards=False)
ORDERS = ("load-eager", "compute-first", "store-first", "random:1", "random:2")


def random_conv(
    name: str,
    data: str,
    channels: tuple[int, int],
    kernel: int,
    stride: int = 1,
    relu: bool = True,
    groups: int = 1,
    seed: int = 0,
) -> Conv:
    chance = np.random.default_rng(seed + 7)
    weight = chance.integers(-128, 128, (channels[1], channels[0] // groups, kernel, kernel), dtype=np.int8)
    bias = chance.integers(-(2**14), 2**14, channels[1]).astype(np.int32)
    return Conv(
        name, data, weight, Tail(bias, 0, 1 << 9, 10, 0 if relu else -127, 127), (stride, stride), (kernel // 2,) * 4, groups
    )  # fmt: skip


def resnet18() -> Region:
    """Everything between the max pool and the global pool of ResNet-18, with random weights."""
    operators: list[Any] = []
    value, channels = "x", 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride, name = (2 if stage and not block else 1), f"s{stage}b{block}"
            operators.append(random_conv(f"{name}c1", value, (channels, width), 3, stride, seed=stage))
            operators.append(random_conv(f"{name}c2", f"{name}c1", (width, width), 3, relu=False, seed=stage + 10))
            shortcut = value
            if stride == 2:
                operators.append(random_conv(f"{name}d", value, (channels, width), 1, 2, relu=False, seed=stage + 20))
                shortcut = f"{name}d"
            operators.append(Sum(f"{name}a", (f"{name}c2", shortcut), (0, 0), Tail(low=0)))
            value, channels = f"{name}a", width
    return Region({"x": (1, 64, 56, 56)}, tuple(operators), (value,))


def total(program: Program) -> Counters:
    return sum((count(program.config, launch.instructions) for launch in program.launches), Counters())


def image(shape: tuple[int, ...], seed: int = 0, low: int = -128) -> Array:
    return np.random.default_rng(seed).integers(low, 128, shape, dtype=np.int8)


def check_region(config: VtaConfig, region: Region, mode: Mode = "optimized") -> Program:
    """Compile, lint, run, and compare every layer with its definition, bit for bit. Returns the program."""
    program = compile_region(config, region, mode)
    assert lint(program) == []
    inputs = {name: image(shape) for name, shape in region.inputs.items()}
    expected = run_region(as_computed(region, mode), inputs)
    for name, value in layer_values(program, inputs, region.shapes()).items():
        assert np.array_equal(value, expected[name]), name
    return program


# -- ResNet-18 --------------------------------------------------------------------------------------------------------


def test_reference_mode_has_the_published_counters() -> None:
    program = check_region(CONFIG, resnet18(), "reference")
    found = total(program)
    assert (found.inp_load_nbytes, found.wgt_load_nbytes, found.acc_load_nbytes) == (5_549_568, 12_763_136, 6_051_840)
    assert (found.uop_load_nbytes, found.out_store_nbytes) == (22_864, 2_433_536)
    assert (found.gemm_counter, found.alu_counter) == (6_623_232, 699_328)


def test_optimized_mode_moves_less_and_is_exact_at_every_layer() -> None:
    program = check_region(CONFIG, resnet18(), "optimized")
    found = total(program)
    assert found.five_bytes <= 16_500_000  # the reference: 26,820,944
    assert found.alu_counter <= 514_304
    assert lint(program, BOARD) == []  # nothing that only a simulator can do
    reference = compile_region(CONFIG, resnet18(), "reference")
    cycles = [sum(estimate(CONFIG, launch).total for launch in p.launches) for p in (program, reference)]
    assert cycles[0] < cycles[1]


# -- operators --------------------------------------------------------------------------------------------------------

RESNET_CONVS = [
    (56, 64, 64, 3, 1), (56, 64, 128, 3, 2), (56, 64, 128, 1, 2), (28, 128, 128, 3, 1), (28, 128, 256, 3, 2), (28, 128, 256, 1, 2),
    (14, 256, 256, 3, 1), (14, 256, 512, 3, 2), (14, 256, 512, 1, 2), (7, 512, 512, 3, 1),
    # of ResNet-50's bottlenecks
    (56, 64, 64, 1, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 256, 128, 1, 1), (56, 256, 128, 1, 2), (56, 128, 128, 3, 2),
    (28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (56, 256, 512, 1, 2), (28, 512, 256, 1, 1), (28, 512, 256, 1, 2), (28, 256, 256, 3, 2),
    (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (28, 512, 1024, 1, 2), (14, 1024, 512, 1, 1), (14, 1024, 512, 1, 2),
    (14, 512, 512, 3, 2), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1), (14, 1024, 2048, 1, 2),
]  # fmt: skip
MOBILENET_G = [
    (112, 32, 2, 1), (112, 64, 4, 2), (56, 128, 8, 1), (56, 128, 8, 2), (28, 256, 16, 1), (28, 256, 16, 2), (14, 512, 32, 1),
    (14, 512, 32, 2), (7, 1024, 64, 1),
]  # fmt: skip


def formula_equals_counters(config: VtaConfig, region: Region, program: Program) -> None:
    records = search_tiles(config, region)
    for key, (name, job) in conv_workloads(config, region).items():
        launch = next(launch for launch in program.launches if launch.name == name)
        found, tile = count(config, launch.instructions), records[key].tile
        copies = found.gemm_counter - job.geometry.gemm
        plane = job.geometry.n * job.geometry.co * job.geometry.rows.out * job.geometry.columns.out
        assert copies == (plane if job.residual is not None else 0)
        assert found.five_bytes - found.uop_load_nbytes == nbytes(config, job, tile)


@pytest.mark.parametrize(("size", "inputs", "outputs", "kernel", "stride"), RESNET_CONVS)
def test_convolutions_of_resnet(size: int, inputs: int, outputs: int, kernel: int, stride: int) -> None:
    region = Region({"x": (1, inputs, size, size)}, (random_conv("c", "x", (inputs, outputs), kernel, stride),), ("c",))
    formula_equals_counters(CONFIG, region, check_region(CONFIG, region))


@pytest.mark.parametrize(("size", "channels", "groups", "stride"), MOBILENET_G)
def test_grouped_convolutions(size: int, channels: int, groups: int, stride: int) -> None:
    conv = random_conv("c", "x", (channels, channels), 3, stride, groups=groups)
    region = Region({"x": (1, channels, size, size)}, (conv,), ("c",))
    formula_equals_counters(CONFIG, region, check_region(CONFIG, region))
    check_region(CONFIG, region, "reference")


@pytest.mark.parametrize(("channels", "groups"), [(32, 32), (48, 12), (24, 3), (64, 8)])
def test_depthwise_and_narrow_groups(channels: int, groups: int) -> None:
    conv = random_conv("c", "x", (channels, channels), 3, groups=groups)
    check_region(CONFIG, Region({"x": (1, channels, 14, 14)}, (conv,), ("c",)))


def test_groups_that_fill_no_block_are_refused() -> None:
    conv = random_conv("c", "x", (240, 240), 3, groups=10)
    with pytest.raises(ProgramError, match="10 groups of 24"):
        check_operator(CONFIG, conv, (1, 240, 8, 8))


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
    found = total(check_region(CONFIG, region))
    assert found.gemm_counter == batch * (inputs // 16) * (outputs // 16)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_max_pools(kernel: int, stride: int, padding: int) -> None:
    relu = random_conv("c", "x", (16, 32), 3)
    pool = MaxPool("p", "c", (kernel, kernel), (stride, stride), (padding,) * 4)
    check_region(CONFIG, Region({"x": (1, 16, 30, 31)}, (relu, pool), ("p",)))
    if not padding:  # of negative numbers too
        check_region(CONFIG, Region({"c": (1, 40, 30, 31)}, (pool,), ("p",)))


def test_sums_with_shifts_and_activations_alone() -> None:
    operators = (
        Sum("a", ("x", "y"), (2, 0), Tail(None, 0, 2, 2, -127, 127)), Sum("b", ("a",), (0,), Tail(low=0, high=90)),
        Sum("c", ("b", "a"), (0, 6), Tail(None, 0, 32, 6, -100, 100)),
    )  # fmt: skip
    region = Region({"x": (1, 40, 9, 9), "y": (1, 40, 9, 9)}, operators, ("c", "a"))
    for mode in MODES:
        check_region(CONFIG, region, mode)


@pytest.mark.parametrize("relu", [True, False])
def test_a_residual_is_fused_only_when_nobody_else_reads_the_sum_before(relu: bool) -> None:
    first, second = random_conv("a", "x", (16, 16), 3), random_conv("b", "a", (16, 16), 3, relu=relu, seed=5)
    add = Sum("s", ("b", "x"), (0, 0), Tail(low=0))
    alone = check_region(CONFIG, Region({"x": (1, 16, 10, 10)}, (first, second, add), ("s",)))
    assert [launch.name for launch in alone.launches] == ["a", "s"]
    read_twice = check_region(CONFIG, Region({"x": (1, 16, 10, 10)}, (first, second, add), ("s", "b")))
    assert [launch.name for launch in read_twice.launches] == ["a", "b", "s"]


@pytest.mark.parametrize("lefts", [(0, 3), (2, 0), (1, 4)])
def test_a_residual_whose_operands_have_other_scales_is_fused_too(lefts: tuple[int, int]) -> None:
    conv = random_conv("b", "x", (16, 32), 3, relu=False)
    add = Sum("s", ("y", "b"), lefts, Tail(None, 0, 2, 2, 0, 120))
    region = Region({"x": (1, 16, 10, 10), "y": (1, 32, 10, 10)}, (conv, add), ("s",))
    program = check_region(CONFIG, region)
    assert [launch.name for launch in program.launches] == ["s"]
    check_region(CONFIG, region, "reference")


def test_a_rounding_that_no_immediate_holds_goes_into_the_bias() -> None:
    conv = replace(random_conv("c", "x", (16, 16), 3), tail=Tail(None, 0, 1 << 16, 17))
    check_region(CONFIG, Region({"x": (1, 16, 6, 6)}, (conv,), ("c",)))
    shifted = replace(conv, tail=Tail(np.arange(16, dtype=np.int32) << 20, 3, 0, -1))
    check_region(CONFIG, Region({"x": (1, 16, 6, 6)}, (shifted,), ("c",)))


@pytest.mark.parametrize(
    "config",
    [
        VtaConfig(log_batch=1), VtaConfig(log_block=5),
        VtaConfig(log_uop_buff_size=14, log_inp_buff_size=14, log_wgt_buff_size=17, log_acc_buff_size=16),
        VtaConfig(log_inp_buff_size=14), VtaConfig(target="pynq"), VtaConfig(target="ultra96", log_wgt_buff_size=17),
    ],
    ids=lambda config: config.name,
)  # fmt: skip
def test_other_designs(config: VtaConfig) -> None:
    operators = (
        random_conv("a", "x", (64, 64), 3), random_conv("b", "a", (64, 64), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)), random_conv("c", "s", (64, 128), 3, 2), random_conv("d", "s", (64, 128), 1, 2),
        Sum("t", ("c", "d"), (0, 0), Tail()), MaxPool("p", "t", (2, 2), (2, 2), (0,) * 4), random_conv("e", "p", (128, 100), 3),
    )  # fmt: skip
    region = Region({"x": (3, 64, 28, 28)}, operators, ("e",))
    check_region(config, region)
    if config.board.is_simulator:
        check_region(config, region, "reference")


def test_a_region_and_a_program_survive_their_bytes() -> None:
    region = Region(
        {"x": (1, 16, 8, 8)},
        (random_conv("a", "x", (16, 16), 3), MaxPool("p", "a", (2, 2), (2, 2), (0,) * 4), Sum("s", ("p",), (0,), Tail())), ("s",),
    )  # fmt: skip
    blob = region_to_blob(region, {"layers": ["a"]})
    again = region_from(*read_blob(blob))
    x = {"x": image((1, 16, 8, 8))}
    assert np.array_equal(run_region(again, x)["s"], run_region(region, x)["s"])
    program = compile_region(CONFIG, region, "optimized")
    copied = program_from(*read_blob(program_to_blob(program)))
    assert copied.launches == program.launches and np.array_equal(copied.constants, program.constants)
    damaged = bytearray(blob)
    damaged[-1] ^= 1
    with pytest.raises(ProgramError, match="altered"):
        read_blob(bytes(damaged))


# -- the machine ------------------------------------------------------------------------------------------------------


def run_both(config: VtaConfig, program: Program, order: str = "load-eager") -> Array:
    """Run the one launch of a program on both machines, compare all their memories, return DRAM."""
    machines: list[Any] = [Interpreter(config, dram_of(program)), Simulator(config, dram_of(program))]
    for machine in machines:
        for launch in program.launches:
            run_launch(launch, machine, order)
    slow, fast = machines
    assert np.array_equal(slow.dram, fast.dram)
    for memory in slow.memories:
        kept = fast.memories[memory].swapaxes(1, 2) if memory is Memory.WGT else fast.memories[memory]
        assert np.array_equal(slow.written[memory], fast.written[memory].astype(bool)), memory
        assert np.array_equal(slow.memories[memory], kept), memory
    return np.asarray(slow.dram)


def program_of(config: VtaConfig, dram: Dram, builder: LaunchBuilder, outputs: int = PAGE) -> Program:
    launch = builder.finish()
    constants, uops_at = dram.close()
    for load, first in builder.uop_loads:
        load.dram_base = uops_at // 4 + first
    return Program(config, (launch,), constants, dram.base, dram.base + pages(constants.size) + outputs, (), (), ())


OUT = 1 << 20


def test_store_wraps_and_saturates_only_when_told() -> None:
    """VTA's save_load_out, relu and shift tests in one: 32-bit numbers in, shifted, clipped and not, stored as bytes."""
    values = np.random.default_rng(0).integers(-(2**20), 2**20, (36, 1, 16)).astype(np.int32)
    dram = Dram(CONFIG, OUT + PAGE)
    builder = LaunchBuilder(CONFIG, dram, "alu")
    builder.load(Memory.ACC, 0, dram.constant(values), (6, 6), 6)
    builder.alu(AluOp.SHR, [(0, 0, 0)], Loops(1, 36, (0, 1), (0, 1)), 3)
    builder.store(0, OUT, (6, 6), 6)
    builder.alu(AluOp.MAX, [(0, 0, 0)], Loops(1, 36, (0, 1), (0, 1)), 0)
    builder.alu(AluOp.MIN, [(0, 0, 0)], Loops(1, 36, (0, 1), (0, 1)), 127)
    builder.store(0, OUT + 1024, (1, 36), 36)
    memory = run_both(CONFIG, program_of(CONFIG, dram, builder))
    shifted = values >> 3
    assert np.array_equal(memory[OUT : OUT + 576].view(np.int8), shifted.astype(np.int8).reshape(-1))
    assert np.array_equal(
        memory[OUT + 1024 : OUT + 1600].view(np.int8), np.clip(shifted, 0, 127).astype(np.int8).reshape(-1)
    )


@pytest.mark.parametrize("pads", [(2, 0, 0, 0), (0, 2, 0, 0), (0, 0, 2, 0), (0, 0, 0, 2), (1, 1, 1, 1)])
def test_padded_load(pads: tuple[int, int, int, int]) -> None:
    values = image((3, 5, 1, 16))
    dram = Dram(CONFIG, OUT + PAGE)
    builder = LaunchBuilder(CONFIG, dram, "pad")
    top, bottom, left, right = pads
    height, width = 3 + top + bottom, 5 + left + right
    builder.load(Memory.ACC_8BIT, 4, dram.constant(values), (3, 5), 5, pads)
    builder.alu(AluOp.SHR, [(4, 4, 0)], Loops(1, height * width, (0, 1), (0, 1)), 0)
    builder.store(4, OUT, (height, width), width)
    memory = run_both(CONFIG, program_of(CONFIG, dram, builder))
    expected = np.pad(values, ((top, bottom), (left, right), (0, 0), (0, 0)))
    assert np.array_equal(memory[OUT : OUT + expected.size].view(np.int8), expected.reshape(-1))


@pytest.mark.parametrize("op", list(AluOp))
@pytest.mark.parametrize("imm", [None, -3, 0, 5, 31, -31, 40, -40, 127])
def test_alu_against_numpy(op: AluOp, imm: int | None) -> None:
    chance = np.random.default_rng(op)
    x, y = (chance.integers(-16, 16, (64, 1, 16)).astype(np.int32) << 20 for _ in range(2))
    y = y >> 20 if op is AluOp.SHR else y
    dram = Dram(CONFIG, OUT + PAGE)
    builder = LaunchBuilder(CONFIG, dram, "alu")
    builder.load(Memory.ACC, 0, dram.constant(np.concatenate([x, y])), (1, 128), 128)
    builder.alu(op, [(0, 64, 0)], Loops(8, 8, (8, 1), (8, 1)), imm)
    program = program_of(CONFIG, dram, builder)
    machine = Interpreter(CONFIG, dram_of(program))
    for instruction in in_order(program.launches[0]):
        machine.execute(instruction)
    right = y.astype(np.int64) if imm is None else np.full(x.shape, imm, np.int64)
    wide = x.astype(np.int64)
    expected = {
        AluOp.MIN: np.minimum(wide, right), AluOp.MAX: np.maximum(wide, right), AluOp.ADD: wide + right, AluOp.MUL: wide * right,
        AluOp.SHR: np.where(right >= 0, wide >> np.minimum(np.abs(right), 31), wide << np.minimum(np.abs(right), 32)),
    }[op]  # fmt: skip
    assert np.array_equal(machine.memories[Memory.ACC][:64], expected.astype(np.int64).astype(np.int32))
    run_both(CONFIG, program)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A random program: everything loaded once, then loads, GEMMs, ALU work and stores anywhere."""
    config, chance = TINY, np.random.default_rng(draw(st.integers(0, 2**32)))
    dram = Dram(config, OUT + PAGE)
    data = {
        Memory.INP: chance.integers(-128, 128, (64, 1, 4), dtype=np.int8),
        Memory.WGT: chance.integers(-128, 128, (32, 4, 4), dtype=np.int8),
        Memory.ACC: chance.integers(-(2**31), 2**31, (64, 1, 4)).astype(np.int32), Memory.ACC_8BIT: image((64, 1, 4), 1),
    }  # fmt: skip
    at = {memory: dram.constant(values) for memory, values in data.items()}
    builder = LaunchBuilder(config, dram, "random", with_row_hazards=False)
    for memory in (Memory.INP, Memory.WGT, Memory.ACC):
        builder.load(memory, 0, at[memory], (1, config.depth(memory)), 1)
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("load", "gemm", "reset", "alu", "alu", "store")))
        if kind == "load":
            memory = draw(st.sampled_from(list(at)))
            depth = config.depth(Memory.ACC if memory is Memory.ACC_8BIT else memory)
            rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            pads = tuple(draw(st.integers(0, 1)) for _ in range(4))
            size = (rows + pads[0] + pads[1]) * (columns + pads[2] + pads[3])
            if size <= depth:
                builder.load(
                    memory, draw(st.integers(0, depth - size)), at[memory], (rows, columns), draw(st.integers(columns, 6)),
                    (pads[0], pads[1], pads[2], pads[3]),
                )  # fmt: skip
        elif kind == "store":
            rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4))
            address = OUT + 4 * draw(st.integers(0, 16))
            builder.store(draw(st.integers(0, 32 - rows * columns)), address, (rows, columns), draw(st.integers(1, 6)))
        else:
            loops = Loops(draw(st.integers(1, 3)), draw(st.integers(1, 3)), *(draw(_factors) for _ in range(3)))
            uops = draw(
                st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(0, 3)), min_size=1, max_size=4)
            )
            if kind == "alu":
                op = draw(st.sampled_from(list(AluOp)))
                builder.alu(op, uops, loops, draw(st.none() | st.integers(-40, 40)))
            else:
                builder.gemm(uops, loops, reset=kind == "reset")
    return program_of(config, dram, builder)


_factors = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(ORDERS))
def test_random_programs_run_alike_on_both_machines_in_any_order(program: Program, order: str) -> None:
    assert np.array_equal(run_both(TINY, program), run_both(TINY, program, order))
    assert lint(program) == []


def launch_of(*instructions: Instruction) -> Launch:
    return Launch("made", tuple(instructions))


def test_deadlock_and_leftovers_are_told_with_heads_and_counts() -> None:
    waits = Mem(Memory.UOP, flags=Flags(pop_prev=True))
    with pytest.raises(ProgramError, match=r"deadlock.*COMPUTE: LOAD UOP nop  \[pop_prev\] \(2 left\).*l2g 0"):
        list(in_order(launch_of(waits, Finish())))
    with pytest.raises(ProgramError, match=r"leaves work.*l2g 1"):
        list(in_order(launch_of(Mem(Memory.INP, flags=Flags(push_next=True)), Finish())))
    with pytest.raises(ProgramError, match="STORE: STORE OUT nop"):
        list(in_order(launch_of(Mem(Memory.OUT, is_store=True), Finish()), "compute-first"))
    with pytest.raises(ProgramError, match="between LOAD and nothing"):
        list(in_order(launch_of(Mem(Memory.INP, flags=Flags(push_prev=True)), Finish())))


BAD = [
    Mem(Memory.INP, 30, 0, 1, 4, 4), Mem(Memory.INP, 0, 1 << 28, 1, 4, 4), Mem(Memory.OUT, 30, 0, 1, 4, 4, is_store=True),
    Mem(Memory.OUT, 20, 0, 1, 4, 4, is_store=True), Mem(Memory.OUT, 0, 0, 1, 4, 4, 1, is_store=True), Mem(Memory.OUT, 0, 0, 1, 4, 4),
    Gemm(1, 2), Gemm(0, 1, iter_out=40, dst_out=1), Gemm(0, 1, iter_out=9, src_out=1), Gemm(0, 1, iter_out=5, wgt_out=1),
    Gemm(0, 1, iter_out=40, src_out=1), Gemm(0, 1, iter_out=40, wgt_out=1), Gemm(31, 33),
    Alu(AluOp.ADD, 0, 1, iter_out=10, dst_out=1, imm=1), Alu(AluOp.ADD, 0, 1, iter_out=40, src_out=1, imm=1),
    Alu(AluOp.ADD, 0, 1, iter_out=10, src_out=1),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_out_of_range_or_never_written_is_an_error_on_both_machines(bad: Instruction) -> None:
    """8 inputs, 4 weights, 8 accumulators and micro-op 0 are there; the instruction reaches for something else."""
    messages = []
    for kind in (Interpreter, Simulator):
        machine = kind(TINY, np.zeros(4096, np.uint8))
        machine.dram[2048:2052] = encode_uops(TINY, [(0, 0, 0)]).view(np.uint8)
        for load in (
            Mem(Memory.UOP, 0, 512, 1, 1, 1), Mem(Memory.INP, 0, 0, 1, 8, 8), Mem(Memory.WGT, 0, 0, 1, 4, 4),
            Mem(Memory.ACC, 0, 0, 1, 8, 8),
        ):  # fmt: skip
            machine.execute(load)
        with pytest.raises(ProgramError) as caught:
            machine.execute(bad)
        messages.append(caught.value.found)
    assert len(messages) == 2


def small_program() -> Program:
    operators = (
        random_conv("a", "x", (32, 32), 3), random_conv("b", "a", (32, 32), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)), MaxPool("p", "s", (2, 2), (2, 2), (0,) * 4),
    )  # fmt: skip
    return compile_region(TINY_BLOCKS, Region({"x": (1, 32, 12, 12)}, operators, ("p",)), "optimized")


TINY_BLOCKS = VtaConfig(log_inp_buff_size=11, log_wgt_buff_size=15, log_acc_buff_size=13)


def token_ends(program: Program) -> Iterator[tuple[int, int, str]]:
    for number, launch in enumerate(program.launches):
        for at, instruction in enumerate(launch.instructions):
            for name in ("pop_prev", "pop_next", "push_prev", "push_next"):
                if getattr(instruction.flags, name):
                    yield number, at, name


def test_dropping_any_one_end_of_a_token_is_caught() -> None:
    program = small_program()
    ends = list(token_ends(program))
    assert len(ends) > 100 and lint(program) == []
    for number, at, name in ends:
        broken = copy.deepcopy(program.launches[number])
        setattr(broken.instructions[at].flags, name, False)
        with pytest.raises(ProgramError, match=r"deadlock|leaves work"):
            list(in_order(broken))


def test_dropping_both_ends_of_a_token_is_a_race_that_the_linter_finds() -> None:
    """Remove the k-th push and the k-th pop of a queue: balance holds, but nothing orders the two any more."""
    program = small_program()
    opposite = {"push_next": "pop_prev", "push_prev": "pop_next"}
    missed = tried = 0
    for number, launch in enumerate(program.launches):
        for module, name in ((0, "push_next"), (1, "push_prev"), (1, "push_next"), (2, "push_prev")):
            other = module + (1 if name == "push_next" else -1)
            pushes = [i for i, x in enumerate(launch.instructions) if x.module == module and getattr(x.flags, name)]
            pops = [
                i for i, x in enumerate(launch.instructions) if x.module == other and getattr(x.flags, opposite[name])
            ]
            assert len(pushes) == len(pops)
            for push, pop in zip(pushes, pops, strict=True):
                if isinstance(launch.instructions[pop], Mem) and launch.instructions[pop].is_nop:  # type: ignore[union-attr]
                    continue  # the wait before FINISH: no access of its own
                broken = copy.deepcopy(launch)
                setattr(broken.instructions[push].flags, name, False)
                setattr(broken.instructions[pop].flags, opposite[name], False)
                launches = (*program.launches[:number], broken, *program.launches[number + 1 :])
                tried += 1
                missed += lint(replace(program, launches=launches)) == []
    assert tried > 50 and missed == 0


def test_linter_finds_what_real_designs_cannot_do() -> None:
    program = small_program()

    def with_instruction(instruction: Instruction) -> list[str]:
        launch = program.launches[0]
        changed = Launch(launch.name, (*launch.instructions[:-1], instruction, Finish()))
        return lint(replace(program, launches=(changed,)), BOARD)

    begin = next(i.uop_bgn for i in program.launches[0].instructions if isinstance(i, Alu))
    assert any("MUL" in text for text in with_instruction(Alu(AluOp.MUL, begin, begin + 1, imm=2)))
    assert any("a shift by 16" in text for text in with_instruction(Alu(AluOp.SHR, begin, begin + 1, imm=16)))
    assert any("8-bit load" in text for text in with_instruction(Mem(Memory.ACC_8BIT, 0, PAGE // 16, 1, 1, 1)))
    assert any("DRAM bytes" in text for text in with_instruction(Mem(Memory.ACC, 0, 0, 1, 1, 1)))
    assert any("elements" in text for text in with_instruction(Mem(Memory.ACC, 127, PAGE // 64, 1, 2, 2)))
    unfinished = replace(program, launches=(Launch("open", program.launches[0].instructions[:-1]),))
    assert any("does not end with FINISH" in text for text in lint(unfinished))


def test_two_micro_ops_may_not_write_one_accumulator_in_a_row() -> None:
    check_row_hazard([(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 0, 0)])
    for uops in ([(0, 0, 0), (0, 1, 0)], [(0, 0, 0), (1, 0, 0), (0, 1, 0)]):
        with pytest.raises(ProgramError, match="accumulator 0"):
            check_row_hazard(uops)


def test_poisoned_memory_does_not_show() -> None:
    """What a program leaves in DRAM and on the chip does not reach the next run."""
    program = small_program()
    x = {"x": image((1, 32, 12, 12))}
    shapes = {"a": (1, 32, 12, 12), "s": (1, 32, 12, 12), "p": (1, 32, 6, 6)}
    clean = layer_values(program, x, shapes)  # type: ignore[arg-type]
    memory = dram_of(program)
    memory[PAGE : program.constants_at] = 0xAA
    from tvmflow.vta.region import pack, unpack
    from tvmflow.vta.runtime import read_tensor, write_tensor

    write_tensor(memory, program.inputs[0], pack(program.config, x["x"]))
    machine = Simulator(program.config, memory)
    for values in machine.memories.values():
        values[...] = 77
    for launch in program.launches:
        machine.forget()
        run_launch(launch, machine)
    assert np.array_equal(unpack(read_tensor(memory, program.outputs[0]), (1, 32, 6, 6)), clean["p"])


def test_a_phase_without_taps_is_refused() -> None:
    conv = Conv("c", "x", image((16, 16, 1, 1)), Tail(), (2, 2), (0,) * 4, transposed=True)
    with pytest.raises(ProgramError, match="stride beyond the kernel"):
        geometry(CONFIG, conv, (1, 16, 4, 4))


# -- from a quantized network -----------------------------------------------------------------------------------------


def quantized_module(scale: str, pooled: bool = True) -> tuple[Any, Array]:
    """A network with residual sums, a max pool and a dense layer, in vta_int8; and samples."""
    import torch

    from tvmflow.frontends.exported import ExportedModel
    from tvmflow.passes.canonicalize import canonicalize
    from tvmflow.quantization.quantizer import VtaOptions, quantize_vta

    class Block(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.one, self.two = (
                torch.nn.Conv2d(inputs, outputs, 3, stride, 1),
                torch.nn.Conv2d(outputs, outputs, 3, 1, 1),
            )
            self.down = torch.nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else torch.nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.two(torch.relu(self.one(x))) + self.down(x))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 16, 3, 1, 1)
            self.blocks = torch.nn.Sequential(Block(16, 16, 1), Block(16, 40, 2))
            self.pool = torch.nn.MaxPool2d(3, 2, 1) if pooled else torch.nn.Identity()
            self.last, self.head = torch.nn.Conv2d(40, 20, 1), torch.nn.Linear(20, 7)

        def forward(self, x: Any) -> Any:
            return self.head(self.last(self.pool(self.blocks(torch.relu(self.first(x))))).mean((2, 3)))

    torch.manual_seed(0)
    module = canonicalize(ExportedModel(Net().eval(), "input", (1, 3, 18, 14)).to_relax())
    samples = np.random.default_rng(0).standard_normal((4, 3, 18, 14), dtype=np.float32)
    return quantize_vta(module, samples, None, VtaOptions(scale, keep_float=("first",)))[0], samples


@pytest.mark.parametrize("scale", ["global", "calibrated"])
@pytest.mark.parametrize("config", [CONFIG, VtaConfig(log_batch=1)], ids=lambda config: config.name)
def test_a_quantized_network_computes_the_same_with_the_accelerator(scale: str, config: VtaConfig) -> None:
    from tvmflow.building.library import LocalRunner, run_pass
    from tvmflow.passes.offload_vta import offload_vta, region_of, with_blob
    from tvmflow.passes.pack_channels import PackChannels
    from tvmflow.targets.resolve import host_target
    from tvmflow.vta.runtime import register

    module, samples = quantized_module(scale)
    offloaded, parts = offload_vta(module, config)
    offloaded = run_pass(PackChannels(16), offloaded)
    layers = parts.layers
    assert [name.rstrip("0123456789") for name in layers].count("conv") == 6
    assert {"add0", "add1", "max_pool2d0"} <= set(layers)
    runtime = register(config)
    program = compile_region(config, region_of(offloaded), "optimized")
    assert lint(program) == []
    compiled = with_blob(offloaded, program_to_blob(program))
    runners = [LocalRunner(form, host_target()) for form in (module, offloaded, compiled)]
    for sample in samples:
        plain, defined, run = (runner.run(sample[None]) for runner in runners)
        assert np.array_equal(plain, defined) and np.array_equal(plain, run)
    assert runtime.runs == 2 * len(samples)


def test_layers_between_start_and_stop() -> None:
    from tvmflow.errors import UnknownNameError
    from tvmflow.passes.offload_vta import offload_vta

    module, _ = quantized_module("global")
    layers = offload_vta(module, CONFIG)[1].layers
    assert offload_vta(module, CONFIG, layers[2], layers[4])[1].layers == layers[2:4]
    for part in range(1, len(layers)):  # wherever it is cut, the pieces fit
        assert offload_vta(module, CONFIG, layers[0], layers[part])[1].layers == layers[:part]
        assert offload_vta(module, CONFIG, layers[part])[1].layers == layers[part:]
    with pytest.raises(UnknownNameError, match="no layer 'conv77'"):
        offload_vta(module, CONFIG, "conv77")
    with pytest.raises(ProgramError, match="no layers between"):
        offload_vta(module, CONFIG, layers[4], layers[2])


def test_a_float_network_has_nothing_for_the_accelerator() -> None:
    from tvmflow.frontends.exported import ExportedModel
    from tvmflow.passes.canonicalize import canonicalize
    from tvmflow.passes.offload_vta import offload_vta
    from tvmflow.sources.torch_networks import build

    model = ExportedModel(build("digits_cnn", 3), "input", (1, 1, 8, 8))
    with pytest.raises(ProgramError, match="nothing in this network that VTA can compute"):
        offload_vta(canonicalize(model.to_relax()), CONFIG)
