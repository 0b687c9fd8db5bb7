"""Provide designs, random regions and the comparison with numpy for VTA tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.differential.vta_interpreter import Interpreter
from tvmflow.vta.compiler.compiler import Mode, apply_mode, compile_region
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.program import Dram, LaunchBuilder, Program, pages
from tvmflow.vta.isa.region import Conv, Region, Shape, Sum, Tail, pack, run_region, unpack
from tvmflow.vta.machine.counters import Counters, count
from tvmflow.vta.machine.execution import run_launch
from tvmflow.vta.machine.lint import DeviceRules, lint
from tvmflow.vta.machine.simulator import Simulator
from tvmflow.vta.runtime.device import dram_of, read_tensor, write_tensor

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
        name,
        data,
        weight,
        Tail(bias, 0, 1 << 9, 10, 0 if relu else -127, 127),
        (stride, stride),
        (kernel // 2,) * 4,
        groups,
    )


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


def layer_values(program: Program, inputs: Mapping[str, Array], shapes: Mapping[str, Shape]) -> dict[str, Array]:
    """Return every value that the launches leave in DRAM, unpacked: what tests compare layer by layer."""
    memory = dram_of(program)
    machine = Simulator(program.config, memory)
    tensors = {tensor.name: tensor for tensor in program.values}
    for tensor in program.inputs:
        write_tensor(memory, tensor, pack(program.config, inputs[tensor.name]))
    results: dict[str, Array] = {}
    for launch in program.launches:
        machine.forget()
        run_launch(launch, machine)
        results[launch.name] = unpack(read_tensor(memory, tensors[launch.name]), shapes[launch.name])
    return results


def check_region(config: VtaConfig, region: Region, mode: Mode = "optimized") -> Program:
    """Compile, lint, run, and compare every layer with its definition, bit for bit. Returns the program."""
    program = compile_region(config, region, mode)
    assert lint(program) == []
    inputs = {name: image(shape) for name, shape in region.inputs.items()}
    expected = run_region(apply_mode(region, mode), inputs)
    for name, value in layer_values(program, inputs, region.shapes()).items():
        assert np.array_equal(value, expected[name]), name
    return program


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
