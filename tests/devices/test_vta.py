"""VTA as a device: the RPC server that simulates it, and the driver of a board against registers that are faked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY, free_port
from tests.differential.vta_cases import BOARD, CONFIG, image, random_conv
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.vta import VtaBackend, VtaOptions
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link_rpc, write_network
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.registry import open_session
from tvmflow.devices.rpc.local import local_tracker
from tvmflow.devices.rpc.vta_server import DRIVERS, design
from tvmflow.devices.session import SessionLimits
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.support.errors import (
    AgreementError,
    DeviceError,
    DeviceLostError,
    ParamsError,
    ProgramError,
    UnknownNameError,
)
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.vta.compiler.compiler import compile_region
from tvmflow.vta.isa.config import COUNTERS_FUNCTION, Memory, VtaConfig
from tvmflow.vta.isa.instructions import Alu, Finish, Flags, Gemm, Instruction, Mem, decode_all
from tvmflow.vta.isa.program import Launch, Program
from tvmflow.vta.isa.region import Region, Sum, Tail, pack, packed_shape, unpack
from tvmflow.vta.machine.execution import run_launch
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.machine.simulator import Simulator
from tvmflow.vta.runtime import zynq_driver as driver
from tvmflow.vta.runtime.audit import check_ran, cycles_spent
from tvmflow.vta.runtime.device import Loaded, Ran, SimulatorDriver, code_digest, packed_code
from tvmflow.vta.runtime.driver_bridge import DriverSeam
from tvmflow.vta.runtime.runtime import Runtime, program_to_blob
from tvmflow.vta.runtime.summary import Part, summarize

Array = np.ndarray[Any, Any]
SHAPE = (1, 32, 10, 10)


def network(config: VtaConfig) -> Program:
    operators = (
        random_conv("a", "x", (32, 32), 3),
        random_conv("b", "a", (32, 32), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)),
    )
    return compile_region(config, Region({"x": SHAPE}, operators, ("s",)), "optimized")


def library_calling(program: Program, path: Path) -> Path:
    """Build a library whose main does nothing but run the program."""
    from tvm import relax

    from tvmflow.codegen.compile import build_scheduled
    from tvmflow.ir.relax.emit import constant, straight_line
    from tvmflow.ir.relax.graph import Graph, TensorKind
    from tvmflow.vta.isa.config import RUN_FUNCTION

    builder, shape = relax.BlockBuilder(), packed_shape(program.config, SHAPE)
    blob = constant(np.frombuffer(program_to_blob(program), np.uint8), "uint8")

    def body(parameters: dict[str, Any]) -> list[Any]:
        call = relax.call_dps_packed(RUN_FUNCTION, [blob, parameters["x"]], relax.TensorType(shape, "int8"))
        return [builder.emit(call)]

    module = straight_line(builder, Graph({"x": TensorKind(shape, "int8")}), body)
    scheduled = build_scheduled(module, vta_backend(program.config), {})
    host_backend().export(scheduled.executable, path)
    says = Network("it@vta:vta_int8", (TensorSpec("x", shape, "int8"),), ("y",), 1)
    write_network(path.with_name("network.so"), scheduled, says, Command(("gcc",)))
    link_rpc(path.with_name("rpc.so"), Command(("gcc",)))
    return path


def expected(program: Program, x: Array) -> Array:
    return SimulatorDriver().load(program).run([pack(program.config, x)])[0]


def vta_backend(config: VtaConfig) -> VtaBackend:
    options = {"config": config.to_json(), "mode": "optimized", "start": "auto", "stop": "auto"}
    return VtaBackend(replace(host_target(), kind="vta", options=options))


@pytest.fixture
def tracker() -> Iterator[int]:
    with local_tracker("another", 1) as address:
        yield address.port


def _run_there(device: DeviceEntry, program: Program, path: Path, x: Array) -> None:
    with open_session(device, vta_backend(CONFIG), SessionLimits(60.0, 20.0)) as session:
        output = session.model(library_calling(program, path)).run(pack(CONFIG, x))[0]
        assert np.array_equal(output, expected(program, x))
        ((digest, found),) = json.loads(session.call(COUNTERS_FUNCTION)).items()
        assert digest == program_to_blob(program)[:32].hex() and found["runs"] == 1
        outputs = [{"shape": list(output.shape), "dtype": "int8"}]
        name = session.upload(path.with_name("network.so"))
        ships = session.network(name, path.parent, outputs, program.config.name)
        for seed in (4, 5):
            x = image(SHAPE, seed)
            assert np.array_equal(ships.run(pack(CONFIG, x))[0], expected(program, x))
        ran = json.loads(session.call(COUNTERS_FUNCTION))
        through_seam = ran[code_digest(packed_code(program)[0]).hex()]
        assert len(ran) == 2 and through_seam["runs"] == 2 and through_seam["cycles"] == found["cycles"]
        assert through_seam["counted"] == {name: 2 * count for name, count in found["counted"].items()}
        with pytest.raises(DeviceLostError, match=r"1x32.*expected: one for sim_1x16"):
            session.network(name, path.parent, outputs, VtaConfig(log_block=5).name)
        assert (
            found["counted"]["gemm_counter"] == 2 * 2 * 2 * (9 * 100 - 2 * 3 * 10) + 200
        )  # padded rows are not multiplied


def _is_refused_there(device: DeviceEntry, program: Program, path: Path, x: Array) -> None:
    """A second session starts from nothing, and takes no program for another design."""
    with open_session(device, vta_backend(CONFIG), SessionLimits(60.0, 20.0)) as session:
        assert json.loads(session.call(COUNTERS_FUNCTION)) == {}
        with pytest.raises(DeviceLostError, match="1x32"):
            session.model(library_calling(program, path)).run(pack(program.config, x))


def test_a_library_with_a_program_runs_through_the_vta_rpc_server(tracker: int, tmp_path: Path) -> None:
    program, x = network(CONFIG), image(SHAPE, 4)
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tvmflow.devices.rpc.vta_server",
            "--tracker",
            f"127.0.0.1:{tracker}",
            "--key",
            "vta-sim",
            "--port",
            str(free_port()),
            "--threads",
            "2",
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
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
)
def test_the_server_says_what_is_wrong(arguments: tuple[str, ...], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tvmflow.devices.rpc.vta_server", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and text in done.stderr and "Traceback" not in done.stderr


def test_vta_entries_of_targets_are_checked() -> None:
    with pytest.raises(ValueError, match="log_block 12"):
        VtaOptions(config={"log_block": 12})
    assert vta_backend(VtaConfig(target="pynq")).design.board.clock_mhz == 100.0


# -- the driver of a board --------------------------------------------------------------------------------------------


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


# -- what the device counts -------------------------------------------------------------------------------------------


class Tampering(SimulatorDriver):
    """A device that runs something else than the program that it was given."""

    def __init__(self, change: Callable[[tuple[Instruction, ...]], tuple[Instruction, ...]]) -> None:
        super().__init__()
        self.change = change

    def load(self, program: Program) -> Loaded:
        launches = tuple(Launch(launch.name, self.change(launch.instructions)) for launch in program.launches)
        return super().load(replace(program, launches=launches))


def without_alu(instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    return tuple(Mem(Memory.UOP, flags=i.flags) if isinstance(i, Alu) else i for i in instructions)


def first_gemm_twice(instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    at = next(at for at, i in enumerate(instructions) if isinstance(i, Gemm) and not i.reset)
    again = replace(instructions[at], flags=Flags())  # type: ignore[arg-type]
    return (*instructions[: at + 1], again, *instructions[at + 1 :])


@pytest.mark.parametrize(
    ("change", "what"), [(tuple, ""), (without_alu, "alu_counter"), (first_gemm_twice, "gemm_counter")]
)
def test_a_device_that_runs_another_program_is_found(change: Any, what: str) -> None:
    program = network(CONFIG)
    blob = program_to_blob(program)
    parts = [Part("vta0", program, blob[:32].hex())]
    regions = summarize(CONFIG, "optimized", parts, {})["regions"]
    runtime = Runtime(CONFIG, Tampering(change))
    output = np.zeros(packed_shape(CONFIG, SHAPE), np.int8)
    for _ in range(3):
        runtime.run(np.frombuffer(blob, np.uint8), pack(CONFIG, image(SHAPE)), output)
    ran = json.loads(runtime.counters())
    if not what:
        assert check_ran(regions, ran) == {"runs": 3, "counted": True}
        assert cycles_spent(ran) == 3 * regions[0]["cycles"]
        with pytest.raises(AgreementError, match="ran the programs"):
            check_ran([{**regions[0], "digest": "00"}], ran)
        with pytest.raises(AgreementError, match="ran the programs"):
            check_ran(regions, {})
        return
    with pytest.raises(AgreementError, match=f"in 3 runs the accelerator counted .*{what}"):
        check_ran(regions, ran)


def test_a_region_that_ran_less_often_than_another_is_found() -> None:
    regions = [{"digest": name, "code_digest": name * 2, "counters": {"insn_count": 2}} for name in "ab"]
    ran = {"a": {"runs": 2, "counted": {"insn_count": 4}, "cycles": 1}, "b": {"runs": 1, "counted": None, "cycles": 1}}
    with pytest.raises(AgreementError, match=r"\[1, 2\] times"):
        check_ran(regions, ran)
    for done in ran.values():
        done["runs"] = 2
    same = [{**region, "code_digest": "c"} for region in regions]
    shared = {"c": {"runs": 6, "counted": {"insn_count": 12}, "cycles": 1}}
    assert check_ran(same, ran | shared) == {"runs": 5, "counted": False}, "two in TVM's form, three in the other"
    assert check_ran(same, shared) == {"runs": 3, "counted": True}
    with pytest.raises(AgreementError, match="ran 5 times together"):
        check_ran(same, {"c": {**shared["c"], "runs": 5, "counted": None}})
    for wrong in ({"a": ran["a"]}, ran | {"d": ran["a"]}):
        with pytest.raises(AgreementError, match="ran the programs"):
            check_ran(same, wrong)
