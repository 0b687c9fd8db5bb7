"""Test that what PyTorch models keep between runs becomes states, over streams compared with PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench.conformance.tflite import interpret
from tests.frontends import scripted_networks
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import FixedSpec, SourceDescription, State, TensorSpec, read_description
from tvmflow.frontends.streams import declare_states
from tvmflow.passes.pipeline import canonicalize
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import to_json

STEPS = 5
NETWORKS = Path(__file__).with_name("stateful_networks.py")


def _load(folder: Path, file: str, *specs: TensorSpec, network: str | None = None, fixed: Any = ()) -> Any:
    described = SourceDescription("torch", network, file, specs, fixed=fixed)
    return load_source(folder, described)


def _check_stream(source: Any, original: Any, bound: float = 1e-5) -> None:
    """Compare a stream of the imported module and of the explicit source with the model that keeps its values."""
    module, states, generator = canonicalize(source.to_relax()), source.first_values(), np.random.default_rng(0)
    given = [spec for spec in source.specs if spec.name not in {state.input for state in source.states}]
    imported = list(states)
    for _ in range(STEPS):
        x = [generator.standard_normal(spec.shape).astype(np.float32) for spec in given]
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(original(*(torch.from_numpy(one) for one in x)))
        made = source.run(*x, *states)
        ours = interpret(module, [*x, *imported])
        for at, value in enumerate(wanted):
            assert np.abs(made[at] - value.numpy()).max() <= 1e-6
            assert np.abs(ours[at] - value.numpy()).max() <= bound * max(1, np.abs(value.numpy()).max())
        assert len(made) == len(ours) == len(wanted) + len(states)
        states, imported = list(made[len(wanted) :]), list(ours[len(wanted) :])
        for spec, ours_next, theirs in zip(source.specs[len(given) :], imported, states, strict=True):
            assert ours_next.shape == theirs.shape == spec.shape and ours_next.dtype == theirs.dtype
            assert ours_next.dtype.name == spec.dtype and np.allclose(ours_next, theirs, rtol=0, atol=bound)


def _make(name: str, folder: Path) -> tuple[nn.Module, TensorSpec]:
    import importlib.util

    found = importlib.util.spec_from_file_location("stateful_networks", NETWORKS)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    torch.manual_seed(0)
    network = getattr(module, name)().eval()
    return network, TensorSpec("x", network.shape)


NAMES = {
    "Counter": [State("count", "count_next", (3.0,))],
    "Ring": [State("ring", "ring_next", (0.0, 1.0, 2.0, 3.0, 4.0, 5.0))],
    "RingInPlace": [State("ring", "ring_next")],
    "Cache": [State("inner.keys", "inner.keys_next"), State("inner.position", "inner.position_next")],
    "SliceCache": [State("values", "values_next"), State("mask", "mask_next")],
    "Recurrent": [State("hidden", "hidden_next")],
    "Half": [State("last", "last_next", (0.5,))],
    "Nested": [
        State("last", "last_next", (0.25,)),
        State("first.ring", "first.ring_next", (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)),
    ],
}


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in NAMES for form in ("program", "network") if (name, form) != ("Nested", "program")],
)
def test_a_stream_equals_pytorch(name: str, form: str, tmp_path: Path) -> None:
    network, spec = _make(name, tmp_path)
    if form == "program":
        dtype = getattr(network, "dtype", torch.float32)
        torch.export.save(torch.export.export(network, (torch.zeros(spec.shape, dtype=dtype),)), tmp_path / "m.pt2")
        source = _load(tmp_path, "m.pt2", spec)
    else:
        (tmp_path / "own.py").write_bytes(NETWORKS.read_bytes())
        torch.save(network.state_dict(), tmp_path / "m.pth")
        source = _load(tmp_path, "m.pth", spec, network=f"own.py:{name}")
    assert list(source.states) == NAMES[name]
    original, _ = _make(name, tmp_path)
    if name == "Half":  # the import computes in float32
        _check_stream(source, lambda x: original(x.half()).float(), 2e-3)
    else:
        _check_stream(source, original)


def _script(network: nn.Module, folder: Path) -> Any:
    torch.jit.script(network.eval()).save(str(folder / "m.jit"))
    return torch.jit.load(folder / "m.jit")


def test_a_stream_of_a_script_equals_pytorch(tmp_path: Path) -> None:
    script = _script(scripted_networks.Speech(), tmp_path)
    spec, rate = TensorSpec("x", (1, 4)), FixedSpec("rate", (), "int64", (16000,))
    source = _load(tmp_path, "m.jit", spec, fixed=(rate,))
    assert {state.input: state.initial for state in source.states} == {"context": (), "inner_last": (), "runs": ()}
    assert {spec.name: spec.dtype for spec in source.specs} == {
        "x": "float32",
        "context": "float32",
        "inner_last": "float32",
        "runs": "int64",
    }
    _check_stream(source, lambda x: script(x, 16000))
    original = source.of_original()
    x = np.ones((1, 4), np.float32)
    assert not np.array_equal(original.run(x)[0], original.run(x)[0])
    assert np.array_equal(source.of_original().run(x)[0], source.run(x, *source.first_values())[0])


@pytest.mark.parametrize(
    ("network", "match"),
    [("Lists", "between runs: past"), ("Decides", r"by values of its inputs at .*bool\(self.last")],
)
def test_scripts_that_cannot_be_recorded_are_refused(network: str, match: str, tmp_path: Path) -> None:
    _script(getattr(scripted_networks, network)(), tmp_path)
    with pytest.raises(UnsupportedOperatorError, match=match):
        _load(tmp_path, "m.jit", TensorSpec("x", (1, 4)))


def _fetched(folder: Path, described: SourceDescription, x: Any) -> None:
    """Write what `fetch` has before it looks for states."""
    for name, count in (("calibration", len(x)), ("evaluation", len(x)), ("golden", 4)):
        Samples((x[:count],)).save(folder / f"{name}.npz")
    save_arrays(folder / "edges.npz", zero=(x[:1],), negative=(x[:1],), large=(x[:1],), small=(x[:1],))
    (folder / "source.json").write_text(json.dumps(to_json(described)))


def test_a_full_cache_ends_a_stream(tmp_path: Path) -> None:
    network, spec = _make("Cache", tmp_path)
    torch.export.save(torch.export.export(network, (torch.zeros(spec.shape),)), tmp_path / "m.pt2")
    x = np.random.default_rng(0).standard_normal((20, 1, 4)).astype(np.float32)
    _fetched(tmp_path, SourceDescription("torch", None, "m.pt2", (spec,)), x)
    assert declare_states(str(tmp_path), str(tmp_path)) == ["inner.keys", "inner.position"]
    position = Samples.load(tmp_path / "evaluation.npz").inputs[2]
    assert position.reshape(-1).tolist() == [*range(8), *range(8), *range(4)]
    described = read_description(tmp_path)
    assert [one.name for one in described.plain_inputs] == ["x"] and load_source(
        tmp_path, described
    ).specs == described.inputs


def test_a_stream_that_another_first_state_begins_is_refused(tmp_path: Path) -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.zeros(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.last) == 0:
                self.last = torch.ones_like(x)
            y = x + self.last
            self.last = x
            return y

    _script(Late(), tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    _fetched(tmp_path, SourceDescription("torch", None, "m.jit", (TensorSpec("x", (1, 4)),)), x)
    with pytest.raises(ModelFileError, match="computes other outputs in step 0 of a stream"):
        declare_states(str(tmp_path), str(tmp_path))


def _load_network(name: str, folder: Path) -> Any:
    (folder / "own.py").write_bytes(NETWORKS.read_bytes())
    network, spec = _make(name, folder)
    torch.save(network.state_dict(), folder / "m.pth")
    return _load(folder, "m.pth", spec, network=f"own.py:{name}")


def test_statistics_and_tables_that_stay_are_no_states(tmp_path: Path) -> None:
    assert _load_network("Norm", tmp_path).states == ()


@pytest.mark.parametrize(("name", "attribute"), [("Numbers", "runs"), ("Grows", "past")])
def test_what_cannot_be_a_state_is_named(name: str, attribute: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperatorError, match=f"own.py:{name} keeps numbers, lists or .* runs: {attribute}"):
        _load_network(name, tmp_path)


def test_programs_in_training_mode_are_refused(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.BatchNorm1d(4).train(), (torch.zeros(2, 4),)), tmp_path / "m.pt2")
    with pytest.raises(UnsupportedOperatorError, match=r"m.pt2 updates statistics of its norms: .*num_batches_tracked"):
        _load(tmp_path, "m.pt2", TensorSpec("x", (2, 4)))


def test_changed_tensors_that_are_no_buffers_are_refused(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(1, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.total.add_(x) * 2

    torch.export.save(torch.export.export(Constant().eval(), (torch.zeros(1, 4),)), tmp_path / "m.pt2")
    with pytest.raises(UnsupportedOperatorError, match=r"m.pt2 changes total, tensors that are no buffers"):
        _load(tmp_path, "m.pt2", TensorSpec("x", (1, 4)))
