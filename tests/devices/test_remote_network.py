"""Test network.so through TVM's RPC server: identical outputs, error messages, its own timing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.wide_models import OUTPUTS, described, samples_for
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link_rpc, write_network
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.network_forms import LibraryForm, network_library, vm_library
from tvmflow.devices.registry import open_session
from tvmflow.devices.rpc.session import RemoteLibrary, RemoteNetwork
from tvmflow.devices.session import STATE, DeviceSession, SessionLimits
from tvmflow.evaluation.latency import LatencyRules
from tvmflow.evaluation.on_device import DeviceRules, measure_on_device
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import OutputSpec
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import StageError
from tvmflow.toolchain.compilers import Command

Outputs = tuple[OutputSpec, ...]
NAMES = ("two", "text", "segmenter")


@pytest.fixture(scope="module", params=NAMES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Outputs]:
    """Return the name of a network, and a folder with what build leaves of it, and its outputs."""
    folder, backend = tmp_path_factory.mktemp(request.param), host_backend()
    description = described(request.param, "onnx", folder)
    packed: Any = PackChannels(16)
    scheduled = build_scheduled(packed(canonicalize(load_source(folder, description).to_relax())), backend, {})
    backend.export(scheduled.executable, folder / "library.so")
    network = Network("any@host:float32", description.inputs, OUTPUTS[request.param], 2)
    write_network(folder / "network.so", scheduled, network, Command(("g++",)))
    link_rpc(folder / "rpc.so", Command(("g++",)))
    outputs = tuple(
        OutputSpec(name, x.shape, str(x.dtype))
        for name, x in zip(OUTPUTS[request.param], _outputs(folder, request.param), strict=True)
    )
    return request.param, folder, outputs


def _one(name: str) -> list[np.ndarray[Any, Any]]:
    return [x[:1] for x in samples_for(name).inputs]


def _outputs(folder: Path, name: str) -> tuple[np.ndarray[Any, Any], ...]:
    from tvmflow.codegen.compile import LoadedLibrary

    return LoadedLibrary(folder / "library.so", 2).run(*_one(name))


@pytest.fixture(scope="module")
def session() -> Iterator[DeviceSession]:
    with open_session(DeviceEntry(transport="local", key="any"), host_backend(), SessionLimits(120.0, 60.0)) as opened:
        yield opened


def test_the_shipped_form_has_the_bits_of_the_virtual_machine(
    session: DeviceSession, built: tuple[str, Path, Outputs]
) -> None:
    name, folder, outputs = built
    ours, machine = (
        network_library(folder, outputs, None).upload_and_start(session),
        vm_library(folder).upload_and_start(session),
    )
    assert isinstance(ours, RemoteNetwork) and isinstance(machine, RemoteLibrary)
    seen = set()
    for at in range(3):
        inputs = [x[at : at + 1] for x in samples_for(name).inputs]
        found, expected = ours.run(*inputs), machine.run(*inputs)
        assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]
        seen.add(found[0].tobytes())
    assert len(seen) == 3, "it reacts to its inputs"
    times = ours.time_runs(5)
    assert len(times) == 5 and all(0 < one < 10 for one in times)
    ours.close()


def test_its_numbers_are_those_of_the_card(session: DeviceSession, built: tuple[str, Path, Outputs]) -> None:
    name, folder, outputs = built
    rules = DeviceRules(LatencyRules(1, 6, 1.0, 0.1, 1.0), 2, 2, on_this_host=False)
    ships, machine = network_library(folder, outputs, None), vm_library(folder)
    numbers = measure_on_device(session, ships, machine, samples_for(name).inputs, 1, rules, lambda *_: None)
    card = numbers.measured
    assert len(card.cold_start_ms) == 2 and card.peers == {} and card.advantages == {}
    assert all(0 < first < whole for first, whole in zip(card.first_run_ms, card.cold_start_ms, strict=True))
    size = (folder / "network.so").stat().st_size
    # Linux counts pages late, by up to some 100 kB: a library as small as this may be as good as none.
    assert (card.memory_bytes or 0) < size + 50e6, "what it holds, and not what the process held before"
    assert card.latency.compute.runs > 0 and card.machine is not None and card.machine.latency.runs > 0
    assert numbers.outputs[0].shape[0] == len(samples_for(name).inputs[0])
    alone = measure_on_device(session, machine, machine, samples_for(name).inputs, 1, rules, lambda *_: None)
    assert alone.measured.machine is None, "a cell that has no other form"
    assert [x.tobytes() for x in alone.outputs] == [x.tobytes() for x in numbers.outputs]


def test_it_tells_the_state_of_its_process(
    session: DeviceSession, built: tuple[str, Path, Outputs], tmp_path: Path
) -> None:
    name, folder, outputs = built
    ours, machine = (
        network_library(folder, outputs, None).upload_and_start(session),
        vm_library(folder).upload_and_start(session),
    )
    ours.set_inputs(*_one(name))
    before = ours.state(2, look=False)
    ours.time_runs(20)
    after = ours.state(2, look=True)
    assert before is not None and after is not None and set(before) < set(after) <= set(STATE)
    assert after["wall_s"] > before["wall_s"] and after["own_s"] > before["own_s"] and after["loop_ns"] > 0
    assert after["processors"] == os.cpu_count() and after["waited_s"] >= before["waited_s"] >= 0
    assert machine.state(2, look=True) is None
    link_rpc(tmp_path / "rpc.so", Command(("g++", "-D__tvm_ffi_state=not_there")))
    older = session.network(session.upload(folder / "network.so"), tmp_path, outputs)
    assert older.state(2, look=True) is None, "a build of an earlier tvmflow"
    older.close()
    ours.close()


def test_a_library_that_refuses_says_why(session: DeviceSession, built: tuple[str, Path, Outputs]) -> None:
    _, folder, outputs = built
    start = network_library(folder, outputs, None).start
    wrong = LibraryForm(folder / "library.so", start)  # which has no entry of ours
    with pytest.raises(StageError, match=r"cannot be opened on device 'any': it exports no tvmflow_network"):
        wrong.upload_and_start(session)
    with pytest.raises(StageError, match=r"cannot be opened on device 'any': .*not-there"):
        network_library(folder, outputs, None).start(session, "not-there.so")
    short = network_library(folder, (), None).upload_and_start(session)
    short.set_inputs(*_one(built[0]))
    with pytest.raises(StageError, match=r"cannot be run on device .any.: [12] tensors, and not [23]"):
        short.invoke()
    name = outputs[0].name
    large = tuple(replace(one, shape=(2, *one.shape[1:])) for one in outputs)
    other = network_library(folder, large, None).upload_and_start(session)
    other.set_inputs(*_one(built[0]))
    with pytest.raises(StageError, match=rf"{name} has \d+ bytes, and not \d+"):
        other.invoke()
