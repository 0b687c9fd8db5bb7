"""Compare VTA sums, pools, fused residuals, other designs and serialized regions with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.differential.vta_cases import (
    CONFIG,
    check_region,
    image,
    random_conv,
)
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.compiler import MODES, compile_region
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import MaxPool, Region, Sum, Tail, region_from, region_to_blob, run_region
from tvmflow.vta.isa.region import from_blob as read_blob
from tvmflow.vta.runtime.runtime import program_from, program_to_blob


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
        Sum("a", ("x", "y"), (2, 0), Tail(None, 0, 2, 2, -127, 127)),
        Sum("b", ("a",), (0,), Tail(low=0, high=90)),
        Sum("c", ("b", "a"), (0, 6), Tail(None, 0, 32, 6, -100, 100)),
    )
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


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "config",
    [
        VtaConfig(log_batch=1),
        VtaConfig(log_block=5),
        VtaConfig(log_uop_buff_size=14, log_inp_buff_size=14, log_wgt_buff_size=17, log_acc_buff_size=16),
        VtaConfig(log_inp_buff_size=14),
        VtaConfig(target="pynq"),
        VtaConfig(target="ultra96", log_wgt_buff_size=17),
    ],
    ids=lambda config: config.name,
)
def test_other_designs(config: VtaConfig) -> None:
    operators = (
        random_conv("a", "x", (64, 64), 3),
        random_conv("b", "a", (64, 64), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)),
        random_conv("c", "s", (64, 128), 3, 2),
        random_conv("d", "s", (64, 128), 1, 2),
        Sum("t", ("c", "d"), (0, 0), Tail()),
        MaxPool("p", "t", (2, 2), (2, 2), (0,) * 4),
        random_conv("e", "p", (128, 100), 3),
    )
    region = Region({"x": (3, 64, 28, 28)}, operators, ("e",))
    check_region(config, region)
    if config.board.is_simulator:
        check_region(config, region, "reference")


def test_a_region_and_a_program_survive_their_bytes() -> None:
    region = Region(
        {"x": (1, 16, 8, 8), "b": (1, 16, 4, 4)},
        (
            random_conv("a", "x", (16, 16), 3),
            MaxPool("p", "a", (2, 2), (2, 2), (0,) * 4),
            Sum("s", ("p", "b"), (0, 0), Tail()),
        ),
        ("s",),
    )
    blob = region_to_blob(region, {"layers": ["a"]})
    again = region_from(*read_blob(blob))
    x = {"x": image((1, 16, 8, 8)), "b": image((1, 16, 4, 4))}
    assert np.array_equal(run_region(again, x)["s"], run_region(region, x)["s"])
    program = compile_region(CONFIG, region, "optimized")
    assert list(again.inputs) == [tensor.name for tensor in program.inputs] == ["x", "b"], "the order of a call"
    copied = program_from(*read_blob(program_to_blob(program)))
    assert copied.launches == program.launches and np.array_equal(copied.constants, program.constants)
    damaged = bytearray(blob)
    damaged[-1] ^= 1
    with pytest.raises(ProgramError, match="altered"):
        read_blob(bytes(damaged))
