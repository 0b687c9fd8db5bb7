"""Test the driver of a VTA board against a software model of its registers and memory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.devices.vta import SHAPE, expected, library_calling, network
from tests.differential.vta_cases import BOARD, image
from tvmflow.devices.rpc.vta_server import DRIVERS, design
from tvmflow.support.errors import (
    DeviceError,
    DeviceLostError,
    ParamsError,
    ProgramError,
    UnknownNameError,
)
from tvmflow.support.runtime_binding import network_binding
from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import Finish, Mem, decode_all
from tvmflow.vta.isa.program import Launch
from tvmflow.vta.isa.region import pack, unpack
from tvmflow.vta.machine.execution import run_launch
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.machine.simulator import Simulator
from tvmflow.vta.runtime import zynq_driver as driver
from tvmflow.vta.runtime.device import Ran
from tvmflow.vta.runtime.driver_bridge import DriverSeam


class FakeMemory:
    """Contiguous memory that the accelerator sees only after a flush, and whose writes we see only after an
    invalidate.
    """

    def __init__(self, board: FakeBoard, address: int, nbytes: int) -> None:
        self.board, self.address, self.data = board, address, np.zeros(nbytes, np.uint8)
        self.physical = np.full(nbytes, 0xCC, np.uint8)

    def flush(self) -> None:
        self.physical[:] = self.data

    def invalidate(self) -> None:
        self.data[:] = self.physical

    def free(self) -> None:
        self.board.memories.remove(self)


class FakeBoard:
    """The registers of the four units: fetch runs the instructions when all are started, compute then says done.

    Until it has been left alone for a microsecond, it still says what it said of the launch before.
    """

    def __init__(self, config: VtaConfig) -> None:
        self.config, self.registers = config, dict[int, int]()
        self.memories: list[FakeMemory] = []
        self.launches, self.hangs, self.done, self.room, self.waited = 0, False, 0, 1 << 30, 0.0

    def allocate(self, nbytes: int) -> FakeMemory:
        if sum(len(m.data) for m in self.memories) + nbytes > self.room:
            raise DeviceError(f"no {nbytes} contiguous bytes left")
        address = max((m.address + -(-len(m.data) // 4096) * 4096 for m in self.memories), default=0x1000_0000)
        self.memories.append(FakeMemory(self, address, nbytes))
        return self.memories[-1]

    def write(self, address: int, value: int) -> None:
        self.registers[address] = value
        if address == driver.STORE + driver.CONTROL:
            assert value == driver.AUTORESTART
            self.waited = 0.0
            if not self.hangs:
                self._run()

    def sleep(self, seconds: float) -> None:
        self.waited += seconds

    def read(self, address: int) -> int:
        assert address == driver.COMPUTE + driver.DONE_READ and self.waited >= 1e-6
        done, self.done = self.done, 0  # cleared by the read
        return done

    def _run(self) -> None:
        r = self.registers
        assert r[driver.FETCH + driver.CONTROL] == driver.START
        assert {r[driver.LOAD], r[driver.COMPUTE]} == {driver.AUTORESTART}
        fetched = r[driver.FETCH + driver.INSN_ADDR]
        code = next(m for m in self.memories if m.address <= fetched < m.address + len(m.data))
        count, offset = r[driver.FETCH + driver.INSN_COUNT], fetched - code.address
        words = code.physical[offset : offset + 16 * count].view("<u8").reshape(-1, 2)
        bases = {
            r[a]
            for a in (
                driver.LOAD + driver.INP_ADDR,
                driver.LOAD + driver.WGT_ADDR,
                driver.COMPUTE + driver.UOP_ADDR,
                driver.COMPUTE + driver.BIAS_ADDR,
                driver.STORE + driver.OUT_ADDR,
            )
        }
        (base,) = bases
        memory = next(m for m in self.memories if m.address == base)
        run_launch(Launch("fetched", tuple(decode_all(self.config, words))), Simulator(self.config, memory.physical))
        self.launches, self.done = self.launches + 1, driver.DONE


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> FakeBoard:
    found = FakeBoard(VtaConfig(target="pynq"))
    monkeypatch.setattr(time, "sleep", found.sleep)
    return found


def test_the_board_driver_speaks_to_the_registers(board: FakeBoard) -> None:
    program = network(board.config)
    assert lint(program, BOARD) == []
    loaded = driver.BoardDriver(board, board.allocate).load(program)
    for seed in (1, 2):
        x = image(SHAPE, seed)
        output = loaded.run([pack(board.config, x)])[0]
        assert np.array_equal(unpack(output, SHAPE), unpack(expected(program, x), SHAPE))
    assert board.launches == 2 * len(program.launches) and loaded.counted is None
    loaded.close()
    assert board.memories == []


def test_a_library_without_tvm_runs_on_the_board_through_the_seam(board: FakeBoard, tmp_path: Path) -> None:
    program = network(board.config)
    library_calling(program, tmp_path / "library.so")
    ran: dict[bytes, Ran] = {}
    seam = DriverSeam(board.config, driver.BoardDriver(board, board.allocate, timeout_s=0.05), ran)
    binding = network_binding()
    ships = binding.Network(tmp_path / "network.so", driver=seam.driver)
    for seed in (1, 2):
        x = image(SHAPE, seed)
        assert np.array_equal(ships(pack(board.config, x)), expected(program, x))
    (found,) = ran.values()
    assert board.launches == 2 * len(program.launches) and found.runs == 2 and found.counted is None and found.cycles
    board.hangs = True
    with pytest.raises(binding.NetworkError, match="the device failed"):
        ships(pack(board.config, x))
    assert "did not finish" in seam.error
    ships.close()
    assert board.memories == []
    board.room = program.dram_bytes + 16
    with pytest.raises(binding.NetworkError, match="no memory"):
        binding.Network(tmp_path / "network.so", driver=seam.driver)
    assert board.memories == [] and "contiguous" in seam.error


def test_the_board_driver_gives_memory_back_when_there_is_too_little(board: FakeBoard) -> None:
    program = network(board.config)
    board.room = program.dram_bytes + 16
    with pytest.raises(DeviceError, match="contiguous"):
        driver.BoardDriver(board, board.allocate).load(program)
    assert board.memories == []


def test_the_board_driver_takes_no_program_that_reaches_beyond_its_memory(board: FakeBoard) -> None:
    program = network(board.config)
    beyond = Mem(Memory.ACC, 0, 1 << 24, 1, 1, 1)
    launch = program.launches[0]
    changed = replace(program, launches=(Launch(launch.name, (*launch.instructions[:-1], beyond, Finish())),))
    with pytest.raises(ProgramError, match="DRAM bytes"):
        driver.BoardDriver(board, board.allocate).load(changed)


def test_the_registers_lie_where_the_original_has_them() -> None:
    units = (driver.FETCH, driver.LOAD, driver.COMPUTE, driver.STORE)
    assert [driver.BASES["pynq"] + unit for unit in units] == [0x43C00000, 0x43C01000, 0x43C02000, 0x43C03000]
    for target in ("ultra96", "zcu104"):
        assert [driver.BASES[target] + unit for unit in units] == [0xA0000000, 0xA0001000, 0xA0002000, 0xA0003000]
    assert driver.REGISTER_BYTES == 0x1000 and set(DRIVERS) == {"sim", *driver.BASES}


def test_the_board_driver_gives_up_on_a_board_that_hangs(board: FakeBoard) -> None:
    loaded = driver.BoardDriver(board, board.allocate, timeout_s=0.05).load(network(board.config))
    board.hangs = True
    with pytest.raises(DeviceLostError, match="did not finish a within"):
        loaded.run([pack(board.config, image(SHAPE))])


def test_a_machine_without_the_board_is_told_so() -> None:
    with pytest.raises(DeviceError, match=r"/dev/mem|registers|libcma"):
        driver.BoardDriver.of_this_board("pynq")
    for target in ("de10nano", "intelfocl", "tsim"):
        with pytest.raises(UnknownNameError, match="a driver for VTA"):
            driver.BoardDriver.of_this_board(target)


def test_a_driver_takes_no_design_of_another_board(tmp_path: Path) -> None:
    path = tmp_path / "vta_config.json"
    path.write_text('{"TARGET": "ultra96"}')
    assert design(path, "sim").target == design(path, "ultra96").target == "ultra96"
    assert design(None, "zcu104").target == "zcu104"
    with pytest.raises(ParamsError, match="ultra96 on driver pynq"):
        design(path, "pynq")
