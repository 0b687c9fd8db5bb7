"""Test baselines: fastest mode, correct outputs, and a reason for each one that is left out."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmflow.evaluation.baselines import BaselineProcess, open_baselines
from tvmflow.evaluation.fastest_variant import COMPILE_FROM_S, FastestVariant, difference_of
from tvmflow.frontends.onnx.frontend import open_session, session_variants
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import Arrays, PreparedRun, Variant, one_input
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.files import save_arrays

RIGHT = (np.arange(4, dtype=np.float32).reshape(1, 4),)


def _way(name: str, outputs: Arrays = RIGHT, seconds: float = 0.0, compiles_long: bool = False) -> Variant:
    """Return a way that says it takes so long, without taking it."""
    prepared = PreparedRun(lambda: outputs, lambda given: given, lambda count: [seconds] * count)
    return Variant(name, lambda: prepared, compiles_long)


def _refusing(name: str, error: Exception, compiles_long: bool = False) -> Variant:
    def prepare() -> PreparedRun:
        raise error

    return Variant(name, prepare, compiles_long)


def test_the_fastest_way_is_chosen_and_named() -> None:
    variants = FastestVariant(
        [_way("plain", seconds=3e-4), _way("fast", seconds=1e-4), _way("other", seconds=2e-4)], RIGHT
    )
    chosen = variants.choose()
    assert chosen is not None and chosen[0] == "fast" and chosen[1](2) == [1e-4, 1e-4] and not variants.left_out


def test_a_way_that_computes_something_else_is_left_out_with_the_reason() -> None:
    wrong = (RIGHT[0] + np.float32(0.01),)
    variants = FastestVariant([_way("plain", seconds=3e-4), _way("wrong", wrong, 1e-4)], RIGHT)
    chosen = variants.choose()
    assert chosen is not None and chosen[0] == "plain"
    assert "computes something else: off by 3.3e-03" in variants.left_out["wrong"]


def test_a_way_that_cannot_be_prepared_is_left_out_with_the_reason() -> None:
    variants = FastestVariant([_refusing("fast", RuntimeError("no such operator\nat line 3"))], RIGHT)
    assert variants.choose() is None
    assert variants.left_out == {"fast": "it cannot run this model: no such operator"}


@pytest.mark.parametrize(
    "outputs",
    [
        (RIGHT[0].reshape(4, 1),),
        (),
        (*RIGHT, *RIGHT),
        (RIGHT[0] * np.float32(np.nan),),
        (RIGHT[0] * np.float32(1 + 2**-8),),  # what bfloat16 rounds
    ],
)
def test_what_differs_by_more_than_rounding_is_said(outputs: Arrays) -> None:
    assert difference_of(outputs, RIGHT) is not None
    assert difference_of((RIGHT[0] * np.float32(1 + 1e-6),), RIGHT) is None


def test_integers_are_compared_by_how_many_are_equal() -> None:
    right = np.arange(100)
    assert difference_of((np.where(right == 3, 7, right),), (right,)) is None
    assert "80% of the integers" in str(difference_of((np.where(right < 20, right + 1, right),), (right,)))


def test_a_compiler_is_asked_for_long_runs_only() -> None:
    compiled = _way("compiled", seconds=1e-6, compiles_long=True)
    chosen = [
        FastestVariant([_way("plain", seconds=factor * COMPILE_FROM_S), compiled], RIGHT).choose()
        for factor in (0.5, 2.0)
    ]
    assert [one and one[0] for one in chosen] == ["plain", "compiled"]


def test_a_compiler_that_takes_too_long_is_left_out_with_the_reason() -> None:
    def prepare() -> PreparedRun:
        time.sleep(30)
        raise AssertionError

    variants = FastestVariant([_way("plain", seconds=1.0), Variant("slow", prepare, True)], RIGHT, compile_limit_s=0.05)
    chosen = variants.choose()
    assert chosen is not None and chosen[0] == "plain" and "longer than 0.05 s" in variants.left_out["slow"]


@pytest.fixture(scope="module")
def keras_model() -> Any:
    from tvmflow.sources.networks.keras_zoo import build

    return build("digits_cnn").eval()


@pytest.mark.heavy
def test_keras_runs_without_predict_and_its_layers(keras_model: Any) -> None:
    """Its traces compute what it does, and no Python of its layers runs again."""
    import torch

    calls = []

    class Counting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras_model

        def forward(self, x: torch.Tensor) -> Any:
            calls.append(x)
            return self.inner(x)

    keras_model.predict = None
    x = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
    source = ExportedModel(Counting().eval(), one_input("x", (1, 1, 8, 8)))
    expected = source.run(x)
    variants = {way.name: way for way in source.variants(x) if not way.compiles_long}
    assert list(variants) == ["eager", "TorchScript", "TorchScript for inference"]
    for name in ("TorchScript", "TorchScript for inference"):
        prepared = variants[name].prepare()
        calls.clear()
        assert difference_of(prepared.read(prepared.run()), expected) is None
        assert not calls


def test_a_module_that_cannot_be_traced_runs_eagerly() -> None:
    import torch

    class Untraceable(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.jit.is_tracing():
                raise RuntimeError("not to be traced")
            return 2 * x

    x = np.ones((1, 4), np.float32)
    source = ExportedModel(Untraceable().eval(), one_input("x", (1, 4)))
    variants = FastestVariant([way for way in source.variants(x) if not way.compiles_long], source.run(x))
    chosen = variants.choose()
    assert chosen is not None and chosen[0] == "eager" and len(chosen[1](2)) == 2
    assert set(variants.left_out) == {"TorchScript", "TorchScript for inference"}
    assert all("not to be traced" in why for why in variants.left_out.values())


def _doubling(path: Path, factor: float = 2.0) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    tensor = numpy_helper.from_array(np.full((1, 4), factor, np.float32), "w")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", value[:1], value[1:], [tensor])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return what fetch and import_model leave of a small ONNX model, as far as peers read it."""
    fetched, imported = tmp_path / "fetch", tmp_path / "import"
    fetched.mkdir(), imported.mkdir()
    _doubling(fetched / "model.onnx"), _doubling(imported / "peer.onnx")
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    Samples((x,)).save(fetched / "evaluation.npz")
    save_arrays(imported / "reference.npz", evaluation=(2 * x,))
    inputs = [{"name": "x", "shape": [1, 4], "dtype": "float32"}]
    described = {"framework": "onnx", "network": None, "weights_file": "model.onnx", "inputs": inputs}
    (fetched / "source.json").write_text(json.dumps(described))
    return fetched, imported / "peer.onnx"


def test_a_bound_session_computes_what_a_feed_does(folders: tuple[Path, Path]) -> None:
    x = np.float32([[1, -2, 3, -4]])
    variants = session_variants(open_session(folders[1], 1), {"x": x})
    assert [way.name for way in variants] == ["feed", "I/O binding"]
    for way in variants:
        prepared = way.prepare()
        (y,) = prepared.read(prepared.run())
        np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.heavy
def test_peers_say_how_they_run_and_why_others_do_not(folders: tuple[Path, Path]) -> None:
    with open_baselines(("source", "onnxruntime"), *folders, 1) as loaded:
        peers = loaded()
        assert [peer.name for peer in peers.models] == ["onnxruntime"]
        peer = peers.models[0]
        assert len(peer.time_runs(3)) == 3
        assert peer.relocate is not None
        peer.relocate()
        assert len(peer.time_runs(3)) == 3
        assert peers.variants["onnxruntime"] in ("feed", "I/O binding") and not peers.left_out


def test_a_peer_that_computes_another_model_is_left_out(folders: tuple[Path, Path]) -> None:
    _doubling(folders[1], factor=2.1)
    reply = BaselineProcess("onnxruntime", *map(str, folders), 1).choose()
    assert reply["variant"] is None and set(reply["left_out"]) == {"feed", "I/O binding"}
    assert all("computes something else" in why for why in reply["left_out"].values())


def test_a_peer_without_an_onnx_form_says_why(folders: tuple[Path, Path]) -> None:
    folders[1].unlink()
    (folders[1].parent / "import.json").write_text(json.dumps({"no_onnx": "no exporter"}))
    assert BaselineProcess("onnxruntime", *map(str, folders), 1).choose() == {
        "variant": None,
        "left_out": {"": "the model has no ONNX form: no exporter"},
    }


@pytest.mark.heavy
def test_a_peer_that_does_not_start_costs_no_measurement(folders: tuple[Path, Path]) -> None:
    folders[1].write_bytes(b"no model")
    with open_baselines(("onnxruntime",), *folders, 1) as loaded:
        peers = loaded()
    assert peers.models == () and "peer.onnx" in peers.left_out["onnxruntime"]
    assert peers.variants == {}
