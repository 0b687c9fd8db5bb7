"""Test the check after import: it accepts the rounding noise of the source, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tvmflow.evaluation.agreement import NO_NOISE, Noise, check_golden
from tvmflow.evaluation.conditioning import CONDITIONING_NAME
from tvmflow.evaluation.import_check import ImportCheck
from tvmflow.evaluation.import_model import read_model
from tvmflow.evaluation.source_noise import measure_noise, move_by_a_rounding
from tvmflow.evaluation.source_runs import SourceRuns, run_at_edges
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, one_input, run_in_batches
from tvmflow.sources.data.datasets import EDGES, RandomInput, Samples, edge_inputs, load_edges, random_inputs
from tvmflow.support.errors import AgreementError, ModelFileError
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import to_json
from tvmflow.support.progress import silent

Array = np.ndarray[Any, Any]
BOUND = 2e-3


def _fetched(
    folder: Path, framework: str, file: str, inputs: tuple[TensorSpec, ...], high: float | None = None
) -> Path:
    """Write what fetch writes beside the model's file."""
    specs = [RandomInput(one.shape[1:], one.dtype, None, high) for one in inputs]
    samples = random_inputs(8, specs, 0)
    samples.save(folder / "evaluation.npz")
    Samples(samples.part(slice(4)).inputs).save(folder / "golden.npz")
    save_arrays(folder / "edges.npz", **edge_inputs(samples, specs))
    (folder / "labels.json").write_text("null")
    (folder / "source.json").write_text(json.dumps(to_json(SourceDescription(framework, None, file, inputs))))
    return folder


def _onnx(folder: Path, nodes: Sequence[Any], weights: dict[str, Array], x: Sequence[int], y: Sequence[int]) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    return model


def _read(fetched: Path) -> dict[str, Any]:
    (fetched / "out").mkdir()
    return read_model(str(fetched), str(fetched / "out"), BOUND, silent)


class Sharp(nn.Module):
    """An ill-conditioned network: it amplifies a difference of two convolutions that are nearly equal."""

    def __init__(self, gain: float, pad: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gain, self.pad, self.body = gain, pad, nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(nn.functional.pad(x, (self.pad, 2 - self.pad, 1, 1)))
        return ((y + self.gain) - self.gain).mean((2, 3)) + 0.1 * y.amax((2, 3))


def _sharp(gain: float) -> tuple[ExportedModel, tuple[Array, ...], tuple[Array, ...]]:
    source = ExportedModel(Sharp(gain).eval(), one_input("x", (1, 3, 8, 8)))
    inputs = random_inputs(8, [RandomInput((3, 8, 8))], 0).inputs
    return source, inputs, run_in_batches(source, inputs, 1)


BROKEN: dict[str, Callable[[Sharp], Callable[[torch.Tensor], torch.Tensor]]] = {
    "a wrong pad": lambda net: _with(Sharp(net.gain, 0), net),
    "swapped channels": lambda net: lambda x: net(x[:, [1, 0, 2]]),
    "outputs permuted": lambda net: lambda x: net(x).flip(1),
    "an ignored input": lambda net: lambda x: net(torch.zeros_like(x)),
    "a missing bias": lambda net: lambda x: net(x) - 0.2,
}


def _with(other: Sharp, net: Sharp) -> Sharp:
    other.load_state_dict(net.state_dict())
    return other


def test_an_output_without_elements_is_refused_by_its_shape(tmp_path: Path) -> None:
    nodes = [helper.make_node("Slice", ["x", "zero", "zero", "zero"], ["y"])]
    _onnx(tmp_path, nodes, {"zero": np.zeros(1, np.int64)}, (1, 3), (0, 3))
    with pytest.raises(ModelFileError, match=r"output without elements, y of shape \(8, 0, 3\)"):
        _read(_fetched(tmp_path, "onnx", "model.onnx", one_input("x", (1, 3))))


@pytest.mark.parametrize(
    ("has_data", "hint"),
    [(False, "set low and high of its inputs in params.yaml"), (True, "data as the model takes it")],
)
def test_numbers_that_a_model_does_not_take_are_named(has_data: bool, hint: str, tmp_path: Path) -> None:
    _onnx(tmp_path, [helper.make_node("Log", ["x"], ["y"])], {}, (1, 3), (1, 3))
    fetched = _fetched(tmp_path, "onnx", "model.onnx", one_input("x", (1, 3)))
    described = json.loads((fetched / "source.json").read_text())
    (fetched / "source.json").write_text(json.dumps(described | {"has_data": has_data}))
    with pytest.raises(ModelFileError, match=r"output y of the source model is not finite for \d of 8") as raised:
        _read(fetched)
    assert hint in str(raised.value.hint)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("gain", [0.0, 1e5])
def test_a_broken_import_is_refused_for_steady_and_for_ill_conditioned_networks(name: str, gain: float) -> None:
    source, inputs, expected = _sharp(gain)
    with torch.no_grad():
        broken = BROKEN[name](source.module)
        found = np.concatenate([broken(torch.from_numpy(x[None])).numpy() for x in inputs[0]])
    check = ImportCheck(source, 1, None, BOUND)
    with pytest.raises(AgreementError, match="import_model changes the outputs"):
        check.on_samples(inputs, (found,), expected)


def test_an_ill_conditioned_network_is_judged_by_its_own_rounding() -> None:
    source, inputs, expected = _sharp(1e5)
    other = run_in_batches(ExportedModel(Sharp(1e5).double().eval(), source.inputs), _double(inputs), 1)
    ours = tuple(x.astype(np.float32) for x in other)
    with pytest.raises(AgreementError):
        check_golden("import_model", ours, expected, BOUND)
    check = ImportCheck(source, 1, None, BOUND)
    agreement = check.on_samples(inputs, ours, expected)
    assert agreement.max_relative_error > BOUND
    assert check.noise[0].max_relative_error >= agreement.max_relative_error / 4
    assert not check.warnings


def _double(inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(x.astype(np.float64) for x in inputs)


def test_a_source_that_is_noise_is_imported_with_a_warning() -> None:
    source, inputs, expected = _sharp(1e7)
    check = ImportCheck(source, 1, None, BOUND)
    other = run_in_batches(ExportedModel(Sharp(1e7).double().eval(), source.inputs), _double(inputs), 1)
    check.on_samples(inputs, tuple(x.astype(np.float32) for x in other), expected)
    assert len(check.warnings) == 1 and "the source's own rounding" in check.warnings[0].text


def test_noise_is_measured_only_near_the_bound() -> None:
    source, inputs, expected = _sharp(0.0)
    check = ImportCheck(source, 1, None, BOUND)
    check.on_samples(inputs, expected, expected)
    assert check.noise == () and check.warnings == []
    assert measure_noise(source, inputs, 1, expected)[0].max_relative_error < BOUND


@pytest.mark.parametrize("seed", range(3))
def test_the_multiple_of_the_noise_never_lets_half_the_spread_pass_unsaid(seed: int) -> None:
    b = np.random.default_rng(seed).standard_normal((8, 10))
    quiet = Noise(0.1, 25.0)
    assert not quiet.hides_faults and Noise(0.9, 10.0).hides_faults and not NO_NOISE.hides_faults
    with pytest.raises(AgreementError, match="4 times the source's own rounding"):
        check_golden("import_model", b + 0.5, b, BOUND, None, [quiet])
    check_golden("import_model", b + 0.2 * b.std(), b, BOUND, None, [quiet])
    with pytest.raises(AgreementError):  # no single value is far off, but all are
        check_golden("import_model", b + 0.2 * b.std(), b, BOUND, None, [Noise(0.1, 40.0)])


def test_outputs_that_do_not_vary_are_imported_with_a_warning(tmp_path: Path) -> None:
    w = np.zeros((4, 3), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Add", ["z", "b"], ["y"])]
    _onnx(tmp_path, nodes, {"w": w, "b": np.arange(3, dtype=np.float32)}, [1, 4], [1, 3])
    facts = _read(_fetched(tmp_path, "onnx", "model.onnx", one_input("x", (1, 4))))
    assert len(facts["warnings"]) == 1 and "do not vary over inputs" in facts["warnings"][0]["text"]
    assert json.loads((tmp_path / "out" / CONDITIONING_NAME).read_text())["warnings"] == facts["warnings"]


def test_weight_only_int8_is_judged_by_unoptimized_onnx_runtime(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.integers(-127, 128, (32, 10)).astype(np.int8),
        "s": (generator.random(10).astype(np.float32) + 0.5) / 127,
        "zero": np.zeros(10, np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "zero"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    _onnx(tmp_path, nodes, weights, [1, 32], [1, 10])
    fetched = _fetched(tmp_path, "onnx", "model.onnx", one_input("x", (1, 32)))
    facts = _read(fetched)
    assert facts["warnings"] == []
    if facts["golden"]["max_relative_error"] > BOUND:  # optimized, ONNX Runtime quantizes x, too
        assert facts["noise"][0]["max_relative_error"] > BOUND


def test_the_import_is_compared_on_eight_inputs_and_at_the_edges(tmp_path: Path) -> None:
    _onnx(tmp_path, [helper.make_node("Tanh", ["x"], ["y"])], {}, [1, 4], [1, 4])
    facts = _read(_fetched(tmp_path, "onnx", "model.onnx", one_input("x", (1, 4))))
    assert facts["golden"]["samples"] == 8


class _Wrong:
    """Right for usual inputs only."""

    def __init__(self, source: ExportedModel, factor: float) -> None:
        self.source, self.factor = source, factor

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        (output,) = self.source.run(*inputs)
        return (output * self.factor if np.abs(inputs[0]).max() > 20 else output,)


def test_a_fault_at_large_magnitudes_is_noticed() -> None:
    source, inputs, expected = _sharp(0.0)
    edges = edge_inputs(Samples(inputs), [RandomInput((3, 8, 8))])
    found = SourceRuns(expected, run_at_edges(source, edges, 1))
    check = ImportCheck(source, 1, None, BOUND)
    check.at_edges(edges, source, found)
    with pytest.raises(AgreementError, match=r"edge \(large\)"):
        check.at_edges(edges, _Wrong(source, 1.1), found)
    with pytest.raises(AgreementError):
        check.at_edges(edges, _Wrong(source, np.nan), found)


def test_edges_stay_within_the_bounds_of_an_input(tmp_path: Path) -> None:
    specs = [
        RandomInput((6,), "int64", 3, 10),
        RandomInput((6,), "uint8"),
        RandomInput((6,), "bool"),
        RandomInput((6,), "float32", 0.0, 1.0),
        RandomInput((6,)),
    ]
    edges = edge_inputs(random_inputs(3, specs, 0), specs)
    save_arrays(tmp_path / "edges.npz", **edges)
    assert list(load_edges(tmp_path / "edges.npz")) == list(EDGES)
    for ids, pixels, flags, shares, free in edges.values():
        assert ids.dtype == np.int64 and 3 <= ids.min() <= ids.max() < 10
        assert pixels.dtype == np.uint8 and flags.dtype == bool and free.dtype == np.float32
        assert 0.0 <= shares.min() <= shares.max() < 1.0
    assert edges["zero"][0].max() == 3 and edges["negative"][0].min() == 9 and edges["negative"][1].min() == 255
    assert not edges["zero"][4].any() and np.abs(edges["large"][4]).max() > 20


def test_another_dtype_is_refused() -> None:
    source, inputs, expected = _sharp(0.0)
    with pytest.raises(AgreementError, match="dtype of output"):
        ImportCheck(source, 1, None, BOUND).on_samples(inputs, _double(expected), expected)


def test_zeros_move_by_a_rounding_too() -> None:
    moved = move_by_a_rounding(np.array([0.0, 1.0, -1e6], np.float32))
    assert (moved != np.array([0.0, 1.0, -1e6], np.float32)).all() and np.abs(moved[0]) < 1e-6


def _first_difference(source: Any, inputs: Array) -> str | None:
    from tvmflow.evaluation.first_difference import first_differing_layer

    return first_differing_layer(source, inputs, 1e-4)


class _Renamed:
    """A source whose import computes another network: that of `other`."""

    def __init__(self, source: Any, other: Any) -> None:
        self.source, self.other = source, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.other if name == "to_relax" else self.source, name)


def _loaded(folder: Path, nodes: Sequence[Any], weights: dict[str, Array]) -> Any:
    folder.mkdir()
    _onnx(folder, nodes, weights, [1, 4], [1, 4])
    return load_source(folder, SourceDescription("onnx", None, "model.onnx", one_input("x", (1, 4))))


def test_the_first_layer_that_differs_is_no_constant_and_may_be_the_output(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.full((1, 4), 3.0, np.float32))
    constants = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Exp", ["c"], ["e"]),
        helper.make_node("Add", ["x", "e"], ["z"]),
    ]
    last = {name: helper.make_node(name, ["z"], ["y"]) for name in ("Relu", "Tanh")}
    source, other = (_loaded(tmp_path / name, [*constants, node], {}) for name, node in last.items())
    x = np.array([[1.0, -100.0, 2.0, -3.0]], np.float32)
    assert [name for name, _ in source.layers(x)] == ["z", "y"]
    assert _first_difference(source, x) is None
    assert _first_difference(_Renamed(source, other), x) == "y"


def test_layers_of_a_float16_file_are_named(tmp_path: Path) -> None:
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1, 4]) for name in ("x", "y")]
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Exp", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "g", kinds[:1], kinds[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    source = load_source(tmp_path, SourceDescription("onnx", None, "m.onnx", one_input("x", (1, 4))))
    names: Iterator[Any] = source.layers(np.ones((1, 4), np.float32))
    assert [name for name, _ in names] == ["x_as_stored", "z", "y_as_stored", "y"]


def test_a_model_without_float_values_has_no_layers(tmp_path: Path) -> None:
    kinds = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", kinds[:1], kinds[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    source = load_source(tmp_path, SourceDescription("onnx", None, "m.onnx", one_input("x", (1, 4), "int64")))
    assert list(source.layers(np.ones((1, 4), np.int64))) == []


def test_a_noise_of_one_output_forgives_no_other() -> None:
    b = np.random.default_rng(0).standard_normal((8, 10))
    noise = [Noise(1.0, 12.0), NO_NOISE]
    check_golden("import_model", (b + 0.1, b), (b, b), BOUND, None, noise)
    with pytest.raises(AgreementError, match="of output 1"):
        check_golden("import_model", (b, b + 0.1), (b, b), BOUND, None, noise)
