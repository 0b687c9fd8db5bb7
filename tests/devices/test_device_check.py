"""Test the check of a device's processors: right or wrong, with the reason, through an agent and in TVM's server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_port, tvmflow
from tests.devices.agents import BACKEND, session_with
from tvmflow.backends.backend import Backend
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.gpu_facts import read_probe
from tvmflow.evaluation import processor_check
from tvmflow.evaluation.processor_check import CheckedProcessor, check_processors, first_failure, of_probe

LISTED = '{"api":"opencl","library":"libOpenCL.so"}\n{"api":"opencl","device":0,"name":"Mali-G72"}\n'
TRIED = '{"api":"opencl","device":0,"test":"buffer"}\n'


def _cpu(program: Path, folder: Path) -> CheckedProcessor:
    with start_agent([str(program)], str(folder)) as agent, session_with(agent) as session:
        checked = check_processors(session, BACKEND, self_contained=True)
    found = checked.processors
    assert next(one.kind for one in found) == "cpu" and {"opencl", "vulkan"} <= {one.kind for one in found}
    return found[0]


def test_a_cpu_computes_through_an_agent(program: Path, tmp_path: Path) -> None:
    cpu = _cpu(program, tmp_path / "store")
    assert cpu.works and cpu.reason == "" and cpu.name == BACKEND.target.mcpu and cpu.seconds is not None


def test_a_library_that_fails_there_is_the_reason(
    program: Path, libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_check, "_build", lambda *_: libraries["DOUBLES"])
    assert "setting an argument" in _cpu(program, tmp_path / "store").reason


def test_wrong_values_are_told(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel sums one product less."""
    from tvm import te

    whole = te.reduce_axis

    def build(path: Path, backend: Backend, self_contained: bool) -> Path:
        with monkeypatch.context() as wrong:
            wrong.setattr(te, "reduce_axis", lambda limits: whole((limits[0], limits[1] - 1)))
            return right(path, backend, self_contained)

    right: Any = processor_check._build
    monkeypatch.setattr(processor_check, "_build", build)
    assert "it computes wrong values: error" in _cpu(program, tmp_path / "store").reason


def test_gpus_are_told_with_the_reason() -> None:
    right = read_probe(LISTED + TRIED + '{"api":"opencl","device":0,"test":"buffer","result":"ok"}')
    opencl, vulkan = of_probe(right, 1.0)
    assert (opencl.name, opencl.works, vulkan.works, vulkan.reason) == (
        "Mali-G72 (mali)",
        True,
        False,
        "its library lists no device",
    )
    wrong = read_probe(LISTED + TRIED + '{"api":"opencl","device":0,"test":"buffer","result":"wrong value"}')
    assert next(one.reason for one in of_probe(wrong, 1.0)) == "buffer: wrong value"
    ended = read_probe(LISTED + TRIED, "the driver ended it by SIGSEGV")
    assert [one.reason for one in of_probe(ended, 1.0)] == [
        "buffer: the driver ended it by SIGSEGV",
        "the driver ended it by SIGSEGV",
    ]
    missing = read_probe('{"api":"vulkan","error":"no library of Vulkan"}')
    assert [one.reason for one in of_probe(missing, 1.0)][1] == "no library of Vulkan"


def test_the_targets_own_processor_decides() -> None:
    cpu = CheckedProcessor("cpu", "cortex-a53", "", 0.1)
    gpu = CheckedProcessor("opencl", "Mali-G72", "buffer: wrong value", 0.1)
    assert first_failure((cpu, gpu), "cpu") is None
    failure = first_failure((cpu, gpu), "opencl")
    assert failure is not None and "Mali-G72: buffer: wrong value" in failure.found
    assert first_failure((cpu,), "vulkan") is not None


def test_devices_of_all_targets_are_told_once_each(make_workspace: Callable[..., Path]) -> None:
    def change(params: dict[str, Any]) -> None:
        own = {name: params["targets"][name] for name in ("local-cpu", "opencl-x86_64")}
        away = {"transport": "agent", "key": "board", "host": "127.0.0.1", "port": free_port(), "secret_file": "none"}
        own["opencl-x86_64"]["device"] = own["local-cpu"]["device"]
        params["targets"] = {**own, "board": {**own["local-cpu"], "mcpu": "x86-64-v3", "device": away}}
        params["cells"] = {}

    found = json.loads(tvmflow(make_workspace(change), "devices", "--check", "--json").stdout)["processors"]
    assert {row["target"] for row in found} == {"opencl-x86_64", "board"}, "two targets have one device"
    assert [row["usable"] for row in found if row["processor"] == "cpu"] == ["yes"]
    assert {row["processor"] for row in found if row["target"] == "opencl-x86_64"} == {"cpu", "opencl", "vulkan"}
    [away] = [row for row in found if row["target"] == "board"]
    assert away["usable"] == "no" and away["reason"]
