"""VTA as a device: the RPC server that simulates it, and the driver of a board against registers that are faked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY, free_port
from tests.differential.test_vta import BOARD, CONFIG, image, random_conv
from tvmflow.devices.local import local_tracker
from tvmflow.devices.session import SessionLimits, open_session
from tvmflow.errors import DeviceError, DeviceLostError
from tvmflow.params import DeviceEntry, VtaEntry
from tvmflow.targets.resolve import ResolvedTarget, VtaTarget, host_target
from tvmflow.vta import driver
from tvmflow.vta.compiler import compile_region
from tvmflow.vta.config import VtaConfig
from tvmflow.vta.execution import run_launch
from tvmflow.vta.isa import decode_all
from tvmflow.vta.lint import lint
from tvmflow.vta.program import Launch, Program
from tvmflow.vta.region import Region, Sum, Tail, pack, packed_shape, unpack
from tvmflow.vta.runtime import SimulatorDriver, program_to_blob
from tvmflow.vta.simulator import Simulator

Array = np.ndarray[Any, Any]
SHAPE = (1, 32, 10, 10)


def network(config: VtaConfig) -> Program:
    operators = (
        random_conv("a", "x", (32, 32), 3), random_conv("b", "a", (32, 32), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)),
    )  # fmt: skip
    return compile_region(config, Region({"x": SHAPE}, operators, ("s",)), "optimized")


def library_calling(program: Program, path: Path) -> Path:
    """Build a library whose main does nothing but run the program."""
    from tvm import relax

    from tvmflow.building.library import build_scheduled, export
    from tvmflow.quantization.emit import constant, straight_line
    from tvmflow.quantization.graph import Graph
    from tvmflow.vta.config import RUN_FUNCTION

    builder, shape = relax.BlockBuilder(), packed_shape(program.config, SHAPE)
    blob = constant(np.frombuffer(program_to_blob(program), np.uint8), "uint8")

    def body(x: Any) -> Any:
        return builder.emit(relax.call_dps_packed(RUN_FUNCTION, [blob, x], relax.TensorType(shape, "int8")))

    module = straight_line(builder, Graph("x", shape, "int8"), body)
    executable, _ = build_scheduled(module, host_target(), {})
    export(executable, path, host_target())
    return path


def expected(program: Program, x: Array) -> Array:
    return SimulatorDriver().load(program)([pack(program.config, x)])[0]


def vta_target(config: VtaConfig) -> ResolvedTarget:
    host = host_target()
    return ResolvedTarget(
        host.kind,
        host.mcpu,
        host.mtriple,
        host.mattr,
        host.threads,
        host.cc,
        VtaTarget(config, "optimized", "auto", "auto"),
    )


@pytest.fixture
def tracker() -> Iterator[int]:
    with local_tracker("another", 1) as address:
        yield address.port


def _run_there(device: DeviceEntry, program: Program, path: Path, x: Array) -> None:
    with open_session(device, vta_target(CONFIG), SessionLimits(60.0, 20.0)) as session:
        answer = session.model(library_calling(program, path)).run(pack(CONFIG, x))
        assert np.array_equal(answer, expected(program, x))
        found = session.vta_counters()
        assert found["runs"] == 1 and found["gemm_counter"] == 2 * 2 * 2 * 9 * 100 + 200


def _is_refused_there(device: DeviceEntry, program: Program, path: Path, x: Array) -> None:
    """A second session starts from nothing, and takes no program for another design."""
    with open_session(device, vta_target(CONFIG), SessionLimits(60.0, 20.0)) as session:
        assert session.vta_counters()["runs"] == 0
        with pytest.raises(DeviceLostError, match="1x32"):
            session.model(library_calling(program, path)).run(pack(program.config, x))


def test_a_library_with_a_program_runs_through_the_vta_rpc_server(tracker: int, tmp_path: Path) -> None:
    program, x = network(CONFIG), image(SHAPE, 4)
    server = subprocess.Popen(
        [sys.executable, "-m", "tvmflow.vta.rpc_server", "--tracker", f"127.0.0.1:{tracker}", "--key", "vta-sim",
         "--port", str(free_port()), "--threads", "2"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None and '"key": "vta-sim"' in server.stdout.readline()
        device = DeviceEntry(transport="tracker", key="vta-sim", host="127.0.0.1", port=tracker)
        _run_there(device, program, tmp_path / "library.so", x)
        _is_refused_there(device, network(VtaConfig(log_block=5)), tmp_path / "other.so", x)
    finally:
        server.terminate()
        assert server.wait(10) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--tracker", "nowhere", "--key", "k"), "HOST:PORT"),
        (("--tracker", "127.0.0.1:1", "--key", "k"), "no RPC tracker"),
    ],
)  # fmt: skip
def test_the_server_says_what_is_wrong(arguments: tuple[str, ...], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tvmflow.vta.rpc_server", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode and text in done.stderr and "Traceback" not in done.stderr


def test_vta_entries_of_targets_are_checked() -> None:
    with pytest.raises(ValueError, match="log_block 12"):
        VtaEntry(config={"log_block": 12})
    assert VtaEntry(config={"target": "pynq"}).resolved().board.clock_mhz == 100.0


# -- the driver of a board --------------------------------------------------------------------------------------------


class FakeMemory:
    """Contiguous memory that the accelerator sees only after a flush, and whose writes we see only after an invalidate."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.data = address, np.zeros(nbytes, np.uint8)
        self.physical = np.full(nbytes, 0xCC, np.uint8)

    def flush(self) -> None:
        self.physical[:] = self.data

    def invalidate(self) -> None:
        self.data[:] = self.physical


class FakeBoard:
    """The registers of the four units: fetch runs the instructions when all are started, compute then says done."""

    def __init__(self, config: VtaConfig) -> None:
        self.config, self.registers = config, dict[int, int]()
        self.memories: list[FakeMemory] = []
        self.launches, self.hangs, self.done = 0, False, 0

    def allocate(self, nbytes: int) -> FakeMemory:
        address = 0x1000_0000 + sum(-(-len(m.data) // 4096) * 4096 for m in self.memories)
        self.memories.append(FakeMemory(address, nbytes))
        return self.memories[-1]

    def write(self, address: int, value: int) -> None:
        self.registers[address] = value
        if address == driver.STORE + driver.CONTROL:
            assert value == driver.AUTORESTART
            if not self.hangs:
                self._run()

    def read(self, address: int) -> int:
        assert address == driver.COMPUTE + driver.DONE_READ
        done, self.done = self.done, 0  # cleared by the read
        return done

    def _run(self) -> None:
        r = self.registers
        assert r[driver.FETCH + driver.CONTROL] == driver.START
        assert {r[driver.LOAD], r[driver.COMPUTE]} == {driver.AUTORESTART}
        code = next(m for m in self.memories if m.address == r[driver.FETCH + driver.INSN_ADDR])
        count = r[driver.FETCH + driver.INSN_COUNT]
        words = code.physical[: 16 * count].view("<u8").reshape(-1, 2)
        bases = {r[a] for a in (driver.LOAD + driver.INP_ADDR, driver.LOAD + driver.WGT_ADDR, driver.COMPUTE + driver.UOP_ADDR,
                                driver.COMPUTE + driver.BIAS_ADDR, driver.STORE + driver.OUT_ADDR)}  # fmt: skip
        (base,) = bases
        memory = next(m for m in self.memories if m.address == base)
        run_launch(Launch("fetched", tuple(decode_all(self.config, words))), Simulator(self.config, memory.physical))
        self.launches, self.done = self.launches + 1, driver.DONE


def test_the_pynq_driver_speaks_to_the_registers() -> None:
    config = VtaConfig(target="pynq")
    program = network(config)
    assert lint(program, BOARD) == []
    board = FakeBoard(config)
    run = driver.PynqDriver(board, board.allocate).load(program)
    for seed in (1, 2):
        x = image(SHAPE, seed)
        answer = run([pack(config, x)])[0]
        assert np.array_equal(unpack(answer, SHAPE), unpack(expected(program, x), SHAPE))
    assert board.launches == 2 * len(program.launches)


def test_the_pynq_driver_gives_up_on_a_board_that_hangs() -> None:
    config = VtaConfig(target="pynq")
    board = FakeBoard(config)
    run = driver.PynqDriver(board, board.allocate, timeout_s=0.05).load(network(config))
    board.hangs = True
    started = time.monotonic()
    with pytest.raises(DeviceLostError, match="did not finish a within"):
        run([pack(config, image(SHAPE))])
    assert time.monotonic() - started < 5


def test_a_machine_without_the_board_is_told_so() -> None:
    with pytest.raises(DeviceError, match=r"/dev/mem|registers|libcma"):
        driver.PynqDriver.of_this_board()
