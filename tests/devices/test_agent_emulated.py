"""The agent compiled for arm64, on emulated processors: the same replies, and an instruction that a processor lacks is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.devices.agents import X, compiled, opened, session_with
from tvmflow.compilers import Command, compiler_for, compiler_named
from tvmflow.devices.agent_program import build_agent, running_agent
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.errors import ToolchainError, WrongProcessorError

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
        with running_agent(command, str(tmp_path / processor)) as agent, session_with(agent) as session:
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
