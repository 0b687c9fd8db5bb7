"""Test that states of a TFLite file become inputs and outputs, over a stream compared with LiteRT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.conformance.tflite import bounds_of, interpret
from bench.conformance.tflite_models import FileWriter, write
from bench.conformance.tflite_recurrent import recurrent
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, State, TensorSpec, read_description
from tvmflow.frontends.streams import declare_states
from tvmflow.passes.pipeline import canonicalize
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError
from tvmflow.support.files import save_arrays
from tvmflow.support.json_values import to_json

Array = np.ndarray[Any, Any]
SCALE = (np.float32(0.125), -7, 0)
STEPS = 21


def _ring(first: Array | None, others: tuple[float, int, int] = SCALE) -> bytes:
    """Return a file that keeps the last three of its inputs, in int8, and adds up all four; beside it a constant."""
    writer = FileWriter()
    schema, graph = writer.schema, writer.graph
    x, kept = writer.tensor("x", (1, 1, 2), "INT8", None, SCALE), writer.tensor("kept", (1, 3, 2), "INT8", None, SCALE)
    handle, again = (writer.tensor(name, (), "RESOURCE") for name in ("handle", "again"))
    joined = writer.tensor("joined", (1, 4, 2), "INT8", None, SCALE)
    last, total = (
        writer.tensor("last", (1, 3, 2), "INT8", None, others),
        writer.tensor("total", (1, 2), "INT8", None, SCALE),
    )
    begin, size = (
        writer.tensor(name, (3,), "INT32", np.asarray(at, np.int32))
        for name, at in (("b", [0, 1, 0]), ("s", [1, 3, 2]))
    )
    axis = writer.tensor("axis", (1,), "INT32", np.asarray([1], np.int32))
    if first is not None:
        writer.operator("CALL_ONCE", [], [], "CallOnceOptions", {"initSubgraphIndex": 1})
    writer.operator("VAR_HANDLE", [], [handle], "VarHandleOptions", {"sharedName": "ring"})
    writer.operator("READ_VARIABLE", [handle], [kept])
    writer.operator("CONCATENATION", [kept, x], [joined], "ConcatenationOptions", {"axis": 1})
    writer.operator("SLICE", [joined, begin, size], [last])
    writer.operator("ASSIGN_VARIABLE", [handle, last], [])
    writer.operator("SUM", [joined, axis], [total], "ReducerOptions", {"keepDims": False})
    writer.operator("READ_VARIABLE", [handle], [again := writer.tensor("after", (1, 3, 2), "INT8", None, others)])
    if first is not None:
        writer.graph = schema.SubGraphT(tensors=[], inputs=[], outputs=[], operators=[], name="first")
        writer.model.subgraphs.append(writer.graph)
        there = writer.tensor("there", (), "RESOURCE")
        value = writer.tensor("value", (1, 3, 2), "INT8", first, SCALE)
        writer.operator("VAR_HANDLE", [], [there], "VarHandleOptions", {"sharedName": "ring"})
        writer.operator("ASSIGN_VARIABLE", [there, value], [])
        writer.graph = graph
    return writer.content([x], [total, again])


def _load(folder: Path, content: bytes, spec: TensorSpec) -> Any:
    (folder / "model.tflite").write_bytes(content)
    return load_source(folder, SourceDescription("tensorflow", None, "model.tflite", (spec,)))


def _interpreter(content: bytes) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    return interpreter


def _step(interpreter: Any, x: Array) -> list[Array]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()]


FIRST = np.asarray([[[1, -7], [9, 4], [-7, 100]]], np.int8)


def test_a_stream_of_a_quantized_variable_equals_litert(tmp_path: Path) -> None:
    source = _load(tmp_path, _ring(FIRST), TensorSpec("x", (1, 1, 2), "int8"))
    assert source.states == (State("ring", "ring_next", (1.0, -7.0, 9.0, 4.0, -7.0, 100.0)),)
    assert source.specs[1] == TensorSpec("ring", (1, 3, 2), "int8")
    assert source.output_names()[-1] == "ring_next"
    module, interpreter = canonicalize(source.to_relax()), _interpreter(_ring(FIRST))
    state = source.file.first_values()
    for x in np.random.default_rng(0).integers(-128, 128, (STEPS, 1, 1, 2)).astype(np.int8):
        total, after, *state = interpret(module, [x, *state])
        wanted, kept = _step(interpreter, x)
        assert np.array_equal(np.rint(total / SCALE[0]) + SCALE[1], wanted)
        assert np.array_equal(state[0], kept) and np.array_equal(np.rint(after / SCALE[0]) + SCALE[1], kept)


def test_fetched_samples_become_a_stream(tmp_path: Path) -> None:
    _load(tmp_path, _ring(FIRST), TensorSpec("x", (1, 1, 2), "int8"))
    described = SourceDescription("tensorflow", None, "model.tflite", (TensorSpec("x", (1, 1, 2), "int8"),))
    x = np.random.default_rng(1).integers(-128, 128, (40, 1, 2)).astype(np.int8)
    for name, count in (("calibration", 40), ("evaluation", 40), ("golden", 4)):
        Samples((x[:count],)).save(tmp_path / f"{name}.npz")
    save_arrays(tmp_path / "edges.npz", zero=(x[:1],), negative=(x[:1],), large=(x[:1],), small=(x[:1],))
    (tmp_path / "source.json").write_text(json.dumps(to_json(described)))
    assert declare_states(str(tmp_path), str(tmp_path)) == ["ring"]
    assert [spec.name for spec in read_description(tmp_path).inputs] == ["x", "ring"]
    assert read_description(tmp_path).states[0].output == "ring_next"
    states = Samples.load(tmp_path / "evaluation.npz").inputs[1]
    assert np.array_equal(states[0], FIRST[0])
    assert all(np.array_equal(states[at], x[at - 3 : at, 0]) for at in range(3, 40))
    assert np.array_equal(Samples.load(tmp_path / "golden.npz").inputs[1], states[:4])


def test_other_scales_than_the_variables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperatorError, match="READ_VARIABLE of 'ring' finds several shapes, types or scales"):
        _load(tmp_path, _ring(FIRST, (np.float32(0.5), 0, 0)), TensorSpec("x", (1, 1, 2), "int8"))


def test_a_damaged_variable_is_one_error(tmp_path: Path) -> None:
    writer = FileWriter()
    handle, x = writer.tensor("handle", (), "RESOURCE"), writer.tensor("x", (1, 2), "FLOAT32")
    writer.operator("READ_VARIABLE", [handle], [x])
    writer.operator("VAR_HANDLE", [], [handle], "VarHandleOptions", {"sharedName": "late"})
    with pytest.raises(ModelFileError, match="a variable of the file is damaged"):
        _load(tmp_path, writer.content([], [x]), TensorSpec("x", (1, 2)))


@pytest.mark.parametrize("name", ["UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "SVDF"])
def test_recurrent_operators_continue_from_their_states(name: str, tmp_path: Path) -> None:
    description = next(one for one in recurrent() if one.name == name)
    content = write(description, "float", bounds_of(description))
    shape = description.inputs[0].shape
    source = _load(tmp_path, content, TensorSpec("in0", shape))
    module, interpreter, state = canonicalize(source.to_relax()), _interpreter(content), source.file.first_values()
    for x in np.random.default_rng(2).standard_normal((3, *shape)).astype(np.float32):
        assert np.abs(source.run(x, *state)[0] - (wanted := _step(interpreter, x)[0])).max() <= 1e-6
        made, *state = interpret(module, [x, *state])
        assert np.abs(made - wanted).max() <= 2e-5 * np.abs(wanted).max()
