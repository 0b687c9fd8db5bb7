"""Test VTA as a device: the RPC server that simulates it, and devices that run another program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY, free_port
from tests.devices.local_tracker import local_tracker
from tests.devices.vta import SHAPE, Array, expected, library_calling, network, vta_backend
from tests.differential.vta_cases import CONFIG, image
from tvmflow.backends.vta import VtaOptions
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.frontends.source_model import OutputSpec
from tvmflow.support.errors import (
    AgreementError,
    DeviceLostError,
)
from tvmflow.vta.isa.config import COUNTERS_FUNCTION, Memory, VtaConfig
from tvmflow.vta.isa.instructions import Alu, Flags, Gemm, Instruction, Mem
from tvmflow.vta.isa.program import Launch, Program
from tvmflow.vta.isa.region import pack, packed_shape
from tvmflow.vta.runtime.audit import check_ran, sum_cycles
from tvmflow.vta.runtime.device import Loaded, SimulatorDriver, code_digest, pack_code
from tvmflow.vta.runtime.runtime import Runtime, program_to_blob
from tvmflow.vta.runtime.summary import Part, summarize


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
        outputs = (OutputSpec("y", output.shape, "int8"),)
        name = session.upload(path.with_name("network.so"))
        ships = session.network(name, path.parent, outputs, program.config.name)
        for seed in (4, 5):
            x = image(SHAPE, seed)
            assert np.array_equal(ships.run(pack(CONFIG, x))[0], expected(program, x))
        ran = json.loads(session.call(COUNTERS_FUNCTION))
        through_seam = ran[code_digest(pack_code(program)[0]).hex()]
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
        assert sum_cycles(ran) == 3 * regions[0]["cycles"]
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
