"""Test VTA's configuration and instructions: golden encodings, ranges, round trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmflow.support.errors import ParamsError, ProgramError, UnknownNameError
from tvmflow.vta.isa.config import BOARDS, Memory, VtaConfig
from tvmflow.vta.isa.instructions import (
    Alu,
    AluOp,
    Finish,
    Flags,
    Gemm,
    Instruction,
    Mem,
    decode,
    decode_all,
    decode_uops,
    disassemble,
    encode,
    encode_all,
    encode_uops,
)
from tvmflow.vta.isa.region import Region, Sum, Tail, from_blob, region_from, region_to_blob

CONFIG = VtaConfig()
# Bytes in memory order, made from the public header of the reference with a C compiler.
GOLDEN: list[tuple[str, Instruction, str]] = [
    (
        "501109148d0400000900380038000111",
        Mem(Memory.INP, 580, 0x12345, 9, 56, 56, 1, 0, 1, 1, flags=Flags(pop_next=True, push_next=True)),
        "LOAD INP sram 580 dram 0x12345 9 x 56 stride 56 pad (1, 0, 1, 1)  [pop_next push_next]",
    ),
    (
        "001c0000100000000100300030000000",
        Mem(Memory.UOP, 7, 0x400, 1, 48, 48),
        "LOAD UOP sram 7 dram 0x400 1 x 48 stride 48",
    ),
    (
        "290a0e78f32a00000200c001400c0000",
        Mem(Memory.OUT, 898, 0xABCDE, 2, 448, 3136, is_store=True, flags=Flags(pop_prev=True, push_prev=True)),
        "STORE OUT sram 898 dram 0xabcde 2 x 448 stride 3136  [pop_prev push_prev]",
    ),
    ("40010000000000000000000000000000", Mem(Memory.INP, flags=Flags(push_next=True)), "LOAD INP nop  [push_next]"),
    (
        "18000000000000000000000000000000",
        Mem(Memory.UOP, flags=Flags(pop_prev=True, pop_next=True)),
        "LOAD UOP nop  [pop_prev pop_next]",
    ),
    ("03000000000000000000000000000000", Finish(), "FINISH"),
    (
        "2a080007c00106000100400002004000",
        Gemm(8, 56, 56, 3, 1, 0, 1, 1, 0, 1, flags=Flags(pop_prev=True, push_prev=True)),
        "GEMM uop [8, 56) out 56 in 3 dst (1, 0) src (1, 1) wgt (0, 1)  [pop_prev push_prev]",
    ),
    (
        "443ca0070800000700080000029081ff",
        Alu(AluOp.MAX, 60, 61, 1, 896, 0, 1, 0, 1, imm=-127, flags=Flags(push_next=True)),
        "ALU MAX uop [60, 61) out 1 in 896 dst (0, 1) imm -127  [push_next]",
    ),
    (
        "043dc00710008003c009400000200000",
        Alu(AluOp.ADD, 61, 62, 2, 448, 448, 1, 1, 0),
        "ALU ADD uop [61, 62) out 2 in 448 dst (448, 1) src (1, 0)",
    ),
]


@pytest.mark.parametrize(("golden", "instruction", "text"), GOLDEN)
def test_golden_encodings(golden: str, instruction: Instruction, text: str) -> None:
    words = encode_all(CONFIG, [instruction])
    assert words.tobytes().hex() == golden
    assert decode_all(CONFIG, words) == [instruction]
    assert disassemble(instruction) == text


def test_golden_micro_op() -> None:
    words = encode_uops(CONFIG, [(1795, 1160, 1023)])
    assert words.tobytes().hex() == "0347e4ff"
    assert decode_uops(CONFIG, words).tolist() == [[1795, 1160, 1023]]


flags = st.builds(Flags, *[st.booleans()] * 4)
u16, pad = st.integers(0, 65535), st.integers(0, 15)
mems = st.builds(
    Mem,
    st.sampled_from(list(Memory)),
    u16,
    st.integers(0, 2**32 - 1),
    u16,
    u16,
    u16,
    pad,
    pad,
    pad,
    pad,
    st.booleans(),
    flags,
)
index, iterations, factor = st.integers(0, 8191), st.integers(0, 16383), st.integers(0, 2047)
gemms = st.builds(
    Gemm,
    index,
    st.integers(0, 8192),
    iterations,
    iterations,
    factor,
    factor,
    factor,
    factor,
    st.integers(0, 1023),
    st.integers(0, 1023),
    st.booleans(),
    flags,
)
alus = st.builds(
    Alu,
    st.sampled_from(list(AluOp)),
    index,
    st.integers(0, 8192),
    iterations,
    iterations,
    factor,
    factor,
    factor,
    factor,
    st.none() | st.integers(-32768, 32767),
    flags,
)


@given(mems | gemms | alus | st.builds(Finish, flags))
def test_decode_is_the_inverse_of_encode(instruction: Instruction) -> None:
    assert decode(CONFIG, *encode(CONFIG, instruction)) == instruction


@pytest.mark.parametrize(
    "instruction",
    [
        Mem(Memory.INP, sram_base=65536),
        Mem(Memory.INP, y_pad_top=16),
        Mem(Memory.INP, x_stride=65536),
        Gemm(8192, 8192),
        Gemm(0, 16384),
        Gemm(0, 1, iter_out=16384),
        Gemm(0, 1, dst_out=2048),
        Gemm(0, 1, wgt_in=1024),
        Gemm(-1, 1),
        Alu(AluOp.ADD, 0, 1, imm=32768),
        Alu(AluOp.ADD, 0, 1, imm=-32769),
        Alu(AluOp.ADD, 0, 1, src_in=2048),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused(instruction: Instruction) -> None:
    with pytest.raises(ProgramError, match=r"\d"):
        encode(CONFIG, instruction)


def test_what_is_no_instruction_is_refused() -> None:
    for words in ((7, 0), (LOAD_FROM_NOWHERE := 6 << 7, 0), (4, 7 << 44)):
        with pytest.raises(ProgramError):
            decode(CONFIG, *words)
    assert LOAD_FROM_NOWHERE & 7 == 0
    with pytest.raises(ProgramError, match="micro-op"):
        encode_uops(CONFIG, [(2048, 0, 0)])


def test_default_configuration_is_the_published_one() -> None:
    assert CONFIG.name == "sim_1x16_i8w8a32_15_15_18_17"
    sizes = {memory.name: (CONFIG.element_bytes(memory), CONFIG.depth(memory)) for memory in Memory}
    assert sizes == {
        "UOP": (4, 8192),
        "WGT": (256, 1024),
        "INP": (16, 2048),
        "ACC": (64, 2048),
        "OUT": (16, 2048),
        "ACC_8BIT": (16, 2048),
    }
    assert (BOARDS["pynq"].clock_mhz, BOARDS["ultra96"].clock_mhz) == (100.0, 333.0)


def test_two_configurations_live_side_by_side() -> None:
    wide = VtaConfig(log_block=5)
    assert (wide.block, CONFIG.block) == (32, 16)
    gemm = Gemm(0, 1, dst_out=1)
    assert encode(wide, gemm) == encode(CONFIG, gemm)
    assert encode(wide, Gemm(0, 1, dst_in=1)) != encode(CONFIG, Gemm(0, 1, dst_in=1))
    assert VtaConfig.from_json(wide.to_json()) == wide


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"log_block": 9}, ParamsError),
        ({"log_wgt_width": 2}, ParamsError),
        ({"log_acc_buff_size": 6}, ParamsError),
        ({"log_inp_buff_size": 20}, ParamsError),
        ({"target": "abacus"}, UnknownNameError),
        ({"log_colour": 1}, ParamsError),
        ({"log_block": "4"}, ParamsError),
    ],
)
def test_impossible_configurations_are_refused(fields: dict[str, int | str], error: type[Exception]) -> None:
    with pytest.raises(error):
        VtaConfig.from_json(fields)


def test_uops_of_other_designs_keep_their_fields_apart() -> None:
    config = VtaConfig(log_batch=1)
    uops = [(1023, 0, 0), (0, 1023, 0), (0, 0, 1023)]
    assert np.array_equal(decode_uops(config, encode_uops(config, uops)), np.array(uops))


# GEMM, ALU and micro-op of three designs, made from the public header too: 1024 inputs, 2048 accumulators; 4096 and
# 512; and buffers so small that factors begin in the first word.
UNEQUAL: list[tuple[dict[str, int], str, str, str]] = [
    ({"log_inp_buff_size": 14}, "4a03200128000c00074040020a2cc000", "3403200128000c000740400214a081ff", "03888000"),
    (
        {"log_inp_buff_size": 16, "log_acc_buff_size": 15},
        "4a03200128000c0007102480022cc000",
        "3403200128000c0007102450a081ff00",
        "03224000",
    ),
    (
        {
            "log_block": 2,
            "log_uop_buff_size": 7,
            "log_inp_buff_size": 8,
            "log_wgt_buff_size": 8,
            "log_acc_buff_size": 9,
        },
        "4a2329000c808312ca32000000000000",
        "342329000c8083124a03ff0100000000",
        "23120000",
    ),
]


@pytest.mark.parametrize(("fields", "gemm", "alu", "uop"), UNEQUAL)
def test_golden_encodings_of_unequal_buffers(fields: dict[str, int], gemm: str, alu: str, uop: str) -> None:
    config, loops = VtaConfig(**fields), (3, 9, 5, 6, 7, 8)  # type: ignore[arg-type]
    stream = [
        Gemm(*loops, 9, 10, 11, 12, flags=Flags(pop_prev=True, push_next=True)),
        Alu(AluOp.ADD, *loops, 9, 10, imm=-127, flags=Flags(pop_next=True, push_prev=True)),
    ]
    words = encode_all(config, stream)
    assert [row.tobytes().hex() for row in words] == [gemm, alu] and decode_all(config, words) == stream
    assert encode_uops(config, [(3, 17, 2)]).tobytes().hex() == uop


def test_a_micro_op_reaches_every_accumulator_and_every_input() -> None:
    for fields in ({"log_inp_buff_size": 12}, {"log_inp_buff_size": 16, "log_acc_buff_size": 15}):
        config = VtaConfig(**fields)  # type: ignore[arg-type]
        last = max(config.depth(Memory.ACC), config.depth(Memory.INP)) - 1
        assert decode_uops(config, encode_uops(config, [(0, last, 1)])).tolist() == [[0, last, 1]]
        factor = config.depth(Memory.ACC) - 1
        alu = Alu(AluOp.ADD, 0, 1, src_out=factor, src_in=factor)
        assert decode(config, *encode(config, alu)) == alu


def test_an_older_design_is_refused_where_its_instructions_differ() -> None:
    assert VtaConfig(hw_ver="0.0.1").hw_ver == "0.0.1"
    with pytest.raises(ParamsError, match=r"hw_ver '0.0.1'"):
        VtaConfig(hw_ver="0.0.1", log_inp_buff_size=14)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("v10", "v9")])
def test_a_stored_region_keeps_the_order_of_its_inputs(names: tuple[str, str]) -> None:
    """The call of a region passes them by position."""
    shape = (1, 16, 2, 2)
    total = Sum("sum", names, (1, 0), Tail())
    stored = region_from(*from_blob(region_to_blob(Region(dict.fromkeys(names, shape), (total,), ("sum",)))))
    assert tuple(stored.inputs) == names and stored.operators[0].inputs == names
