"""Test states that an instance carries from run to run against states that each run is given."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.build import _states
from tests.recurrent_models import RecurrentCase
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.model_params import ModelEntry
from tvmflow.frontends.source_model import OutputSpec, State, TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import UsageError
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command

CASE = RecurrentCase("LSTM", times=2, samples=1, hidden=9, states=("h", "c"))
STATES = (State("h", "Y_h"), State("c", "Y_c", (0.25,)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    module = canonicalize(CASE.load(folder).to_relax())
    scheduled = build_scheduled(host_backend().pack(module, None)[0], host_backend(), {})
    specs = tuple(TensorSpec(name, value.shape, "float32") for name, value in CASE.inputs().items())
    described = Network("any@host:float32", specs, ("Y", "Y_h", "Y_c"), 2, states=STATES)
    write_network(folder / "network.so", scheduled, described, Command(("gcc",)))
    return folder / "network.so"


def _chunks() -> list[Any]:
    x = CASE.inputs()["X"]
    return [x, -x, 2 * x]


def test_a_run_without_states_takes_those_of_the_run_before(library: Path) -> None:
    zeros = np.zeros_like(CASE.inputs()["h"])
    with network_binding().Network(library) as network:
        assert network.states == {state.input: state.output for state in STATES}
        given, expected = (zeros, zeros + np.float32(0.25)), []
        for x in _chunks():
            outputs = network(x, *given)
            given = outputs[1:]
            expected.append([value.copy() for value in outputs])
        for _ in range(2):
            network.reset_states()
            for x, wanted in zip(_chunks(), expected, strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(network(x), wanted, strict=True))
        # one state given, the other carried
        network.reset_states()
        network(_chunks()[0])
        found = network(_chunks()[1], expected[0][1], None)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected[1], strict=True))


def test_only_states_and_their_outputs_may_be_left_out(library: Path) -> None:
    with network_binding().Network(library) as network:
        api, x, y = network._api, _chunks()[0], np.empty((2, 1, 1, 9), np.float32)

        def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> int:
            pointers = [
                (ctypes.c_void_p * 3)(*(None if one is None else one.ctypes.data for one in held))
                for held in (inputs, outputs)
            ]
            return int(api.run(network._handle, *pointers))

        assert run((x, None, None), (y, None, None)) == 0
        network.reset_states()
        assert np.array_equal(network(x)[0], y)
        assert run((None, None, None), (y, None, None)) == 1 and b"input X" in api.last_error()
        assert run((x, None, None), (None, None, None)) == 1 and b"output Y" in api.last_error()
        assert api.state_of(2, ctypes.c_uint32(), ctypes.c_uint32()) == 1 and api.state_reset(None) == 1


def test_states_are_checked() -> None:
    inputs = {"x": {"shape": [1, 4]}, "h": {"shape": [1, 4]}}
    entry: dict[str, Any] = {"framework": "onnx", "weights": {"file": "a.onnx"}, "inputs": inputs}
    assert ModelEntry.model_validate({**entry, "state": {"h": "hn"}}).state == {"h": "hn"}
    for wrong in ({"g": "hn"}, {"h": "hn", "x": "hn"}):
        with pytest.raises(ValueError, match="state: names of inputs"):
            ModelEntry.model_validate({**entry, "state": wrong})
    specs = (TensorSpec("x", (1, 4)), TensorSpec("h", (1, 4)))
    outputs = (OutputSpec("hn", (1, 4)), OutputSpec("y", (1, 3)))
    assert _states((State("h", "hn"),), specs, outputs) == (State("h", "hn"),)
    for name in ("y", "none"):
        with pytest.raises(UsageError, match=f"no output {name} of float32"):
            _states((State("h", name),), specs, outputs)
