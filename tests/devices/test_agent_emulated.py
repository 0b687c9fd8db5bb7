"""Test the agent on emulated arm64 processors: equal replies, and an error that names a missing instruction."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bionic_shims import write_shims
from tests.bundle_parts import CELL, LABELS, SPEC, small_scheduled
from tests.devices.agents import BACKEND, X, compiled, opened, session_with
from tests.devices.fake_phone import FakePhone
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.devices.programs import build_agent
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.support.errors import ToolchainError, WrongProcessorError
from tvmflow.toolchain.compilers import Command, compiler_for, compiler_named

TRIPLE = "aarch64-linux-gnu"


@pytest.fixture(scope="module")
def compiler() -> Command:
    try:
        return compiler_named(compiler_for(TRIPLE)).command(TRIPLE)
    except ToolchainError as error:
        pytest.skip(str(error))


def test_it_runs_on_arm64_and_names_missing_instructions(
    emulated: EmulatedSystem, compiler: Command, libraries: dict[str, Path], tmp_path: Path
) -> None:
    program = build_agent(tmp_path / "tvmflow-agent", compiler.words)
    right, wrong = compiled(tmp_path, "DOUBLES", compiler.words), compiled(tmp_path, "DOT_PRODUCT", compiler.words)
    for processor in ("cortex-a72", "cortex-a76"):
        command = [*emulated.command(processor), str(program)]
        with start_agent(command, str(tmp_path / processor)) as agent, session_with(agent) as session:
            facts = session.probe()
            assert facts["machine"] == "aarch64" and facts["version"] == 1
            network = opened(session, right)
            assert np.array_equal(network.run(X)[0], 2 * X) and len(network.time_runs(2)) == 2
            with pytest.raises(WrongProcessorError, match="the library is for x86-64, and this device is arm64"):
                opened(session, libraries["DOUBLES"])
            dot = opened(session, wrong)
            dot.set_inputs(X)
            if processor == "cortex-a72":
                with pytest.raises(WrongProcessorError, match="uses instructions that this processor lacks"):
                    dot.invoke()
            else:
                dot.invoke()
            assert np.array_equal(network.run(X + 1)[0], 2 * X + 2), "the other library is as it was"


@pytest.mark.parametrize("mtriple", [TRIPLE, "aarch64-linux-android"])
def test_a_network_runs_on_a_phone_of_arm64_through_adb(
    emulated: EmulatedSystem, compiler: Command, adb: str, tmp_path: Path, mtriple: str
) -> None:
    """The real adb, a phone in Python, the agent and the network's kernels of arm64 under qemu; Android's on a stand-in
    of its C library.
    """
    try:
        linker = compiler_named(compiler_for(mtriple)).command(mtriple)
    except ToolchainError as error:
        pytest.skip(str(error))
    emulator = emulated.command("cortex-a76")
    if mtriple != TRIPLE:
        write_shims(tmp_path, "aarch64", compiler.words)
        loader = emulated.root / "lib" / "ld-linux-aarch64.so.1"
        emulator += ["-E", f"LD_LIBRARY_PATH={tmp_path}", str(loader)]
    program = build_agent(tmp_path / "tvmflow-agent", linker.words)
    network = Network(CELL, (SPEC,), ("scores",), 2, LABELS)
    write_network(tmp_path / "network.so", small_scheduled("cortex-a76", mtriple), network, linker)
    write_network(tmp_path / "here.so", small_scheduled(), network, Command(("gcc",)))
    x = np.random.default_rng(0).standard_normal((1, 3, 12, 12), dtype=np.float32)
    backend = CpuBackend(replace(BACKEND.target, mcpu="cortex-a76", mtriple=mtriple, mattr=()))
    with FakePhone(tmp_path / "phone", {"ro.product.cpu.abi": "arm64-v8a"}, emulator=emulator) as phone:
        entry = {"transport": "adb", "key": "arm", "serials": [phone.serial], "agent": str(program)}
        with open_session(DeviceEntry.model_validate(entry), backend, SessionLimits(60.0, 5.0)) as session:
            model = session.network(session.upload(tmp_path / "network.so"), tmp_path, [])
            [found] = model.run(x)
            assert all(seconds > 0 for seconds in model.time_runs(2))
        subprocess.run([adb, "disconnect", phone.serial], capture_output=True, check=False)
    [expected] = OpenedNetwork(tmp_path / "here.so", 2).run(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
