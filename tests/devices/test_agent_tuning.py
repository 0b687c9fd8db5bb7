"""Measure kernels and networks through an agent, without TVM, and compare the results with TVM's RPC."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.devices.agents import BACKEND, secret_file
from tests.search_rules import QUICK_RULES, changed
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.tuning.measure.build_pool import BuildPool
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.measure.kernel_bench import KernelBench, MeasureRules, inputs_of
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, WRONG_OUTPUT
from tvmflow.tuning.search.search import tune


def _device(agent: AgentProcess, folder: Path) -> DeviceEntry:
    path = secret_file(folder, agent.secret)
    return DeviceEntry.model_validate(
        {"transport": "agent", "key": "board", "port": agent.port, "secret_file": str(path)}
    )


def test_a_kernel_is_measured_through_an_agent(agent: AgentProcess, tmp_path: Path) -> None:
    workload = canary_workload()
    arrays = inputs_of(workload)
    with BuildPool(1, BACKEND.target, tmp_path / "built", 60.0, self_contained=True) as pool:
        plain = pool.build(workload).result()
        assert plain.status == OK, plain.error
    assert b"libtvm" not in plain.library.read_bytes()
    with open_session(_device(agent, tmp_path), BACKEND, SessionLimits(60.0, 10.0)) as session:
        assert not session.has_tvm and session.unit.startswith("host-")
        bench = KernelBench(workload, session, MeasureRules(3, 1.0), arrays, None, plain.library)
        expected = _convolved(arrays)
        assert np.abs(bench.reference - expected).max() < 1e-3 * np.abs(expected).max()
        status, seconds, error = bench.measure(plain.library)
        assert status == OK and len(seconds) >= 3 and all(0 < one < 10 for one in seconds) and not error
        bench.reference = bench.reference + 1
        assert bench.measure(plain.library)[0] == WRONG_OUTPUT


def _convolved(arrays: list[Any]) -> Any:
    data, weight, out = (array.astype(np.float64) for array in arrays)
    out = np.zeros_like(out)
    for y in range(3):
        for x in range(3):
            out += np.einsum("nihwu,oiuv->nohwv", data[:, :, y : y + 28, x : x + 28], weight[:, :, y, x])
    return out


@contextlib.contextmanager
def _two_agents(program: Path, folder: Path) -> Iterator[tuple[list[AgentProcess], Callable[[], Any]]]:
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(start_agent([str(program)], str(folder / name), [])) for name in ("one", "two")]
        devices = []
        for name, agent in zip(("one", "two"), agents, strict=True):
            (folder / f"key-{name}").mkdir()
            devices.append(_device(agent, folder / f"key-{name}"))
        turn, lock = iter(range(1000)), threading.Lock()

        def opened() -> contextlib.AbstractContextManager[DeviceSession]:
            with lock:
                at = next(turn)
            return open_session(devices[at % 2], BACKEND, SessionLimits(60.0, 1.0))

        yield agents, opened


def test_the_search_goes_on_with_the_other_device_when_one_dies(program: Path, tmp_path: Path) -> None:
    rules = changed(QUICK_RULES, trials_per_workload=6, on_this_host=False, has_tvm=False, devices=2, give_up_s=30.0)
    tuning_log = TuningLog(tmp_path / "log.jsonl", BACKEND.kernel_kind, {"test": "1"})
    with _two_agents(program, tmp_path) as (agents, opened):

        def say(*_: Any) -> None:
            if not said and len(tuning_log.known()) >= 1:
                said.append(True)
                agents[0].process.kill()

        said: list[bool] = []
        report = tune([canary_workload()], opened, BACKEND, rules, tuning_log, tmp_path, say)
        assert said, "one of them died while the search went on"
    assert report.measured >= 4 and not report.device_pool.given_up
    assert {record.status for record in tuning_log.known()} == {OK}
