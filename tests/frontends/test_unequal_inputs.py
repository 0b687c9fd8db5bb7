"""Test inputs without a common batch: a state (2, 1, 4) beside a window (1, 6), and a scalar."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from tvmflow.config.params import ModelEntry
from tvmflow.evaluation.import_model import read_model
from tvmflow.frontends.file_headers import read_header
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, batch_at, run_in_batches
from tvmflow.sources.data.datasets import Samples, edge_inputs, random_inputs
from tvmflow.sources.model_files import random_specs, samples_of
from tvmflow.support.files import load_arrays, save_arrays
from tvmflow.support.json_values import to_json
from tvmflow.support.progress import silent
from tvmflow.support.samples import WHOLE, batch_of, sample_shape

INPUTS = {"window": {"shape": [1, 6]}, "state": {"shape": [2, 1, 4]}, "gain": {"shape": []}}


def _entry(**more: object) -> ModelEntry:
    return ModelEntry.model_validate({"framework": "onnx", "weights": {"file": "m.onnx"}, "inputs": INPUTS} | more)


def _save(path: Path) -> Path:
    """Write a network: scores (1, 6) of the window, the gain and the state; the next state (2, 1, 4)."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("window", [1, 6]), ("state", [2, 1, 4]), ("gain", []), ("y", [1, 6]), ("next", [2, 1, 4]))
    ]
    nodes = [
        helper.make_node("ReduceMean", ["state"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["window", "gain"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mean"], ["y"]),
        helper.make_node("Mul", ["state", "gain"], ["next"]),
    ]
    graph = helper.make_graph(nodes, "g", values[:3], values[3:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_batch_is_what_all_inputs_share() -> None:
    assert batch_of([(4, 3), (4,)]) == 4 and batch_of([(1, 6), (2, 1, 4)]) == WHOLE == batch_of([()])
    assert batch_of([(1, 6), ()]) == WHOLE
    assert sample_shape((2, 1, 4), WHOLE) == (2, 1, 4) and sample_shape((4, 3), 4) == (3,)
    x = np.arange(6).reshape(3, 2)
    assert batch_at((x, x[:, 0]), 1, WHOLE)[1].shape == () and batch_at((x,), 1, 2)[0].shape == (2, 2)


def test_the_file_says_the_shape_of_a_scalar(tmp_path: Path) -> None:
    header = read_header(str(_save(tmp_path / "m.onnx")), 1 << 20)
    assert header is not None and [one["shape"] for one in header["inputs"]] == [(1, 6), (2, 1, 4), ()]


def test_buckets_need_a_batch() -> None:
    named = {"window": {"shape": [1, "length"]}, "state": {"shape": [2, 1, 4]}}
    with pytest.raises(ValidationError, match="buckets need the same batch"):
        _entry(inputs=named, buckets={"length": [3, 6]})


def test_a_network_of_unequal_inputs_is_imported(tmp_path: Path) -> None:
    _save(tmp_path / "m.onnx")
    model = _entry()
    assert model.batch == WHOLE
    specs = random_specs(model)
    samples = random_inputs(8, specs, 0)
    assert [x.shape for x in samples.inputs] == [(8, 1, 6), (8, 2, 1, 4), (8,)]
    samples.save(tmp_path / "evaluation.npz")
    Samples(samples.part(slice(4)).inputs).save(tmp_path / "golden.npz")
    save_arrays(tmp_path / "edges.npz", **edge_inputs(samples, specs))
    (tmp_path / "labels.json").write_text("null")
    inputs = tuple(TensorSpec(name, one.shape, one.dtype) for name, one in model.tensors.items())
    description = SourceDescription("onnx", None, "m.onnx", inputs, task="other")
    (tmp_path / "source.json").write_text(json.dumps(to_json(description)))
    (tmp_path / "out").mkdir()
    facts = read_model(str(tmp_path), str(tmp_path / "out"), 1e-3, silent)
    assert facts["golden"]["samples"] == 8
    scores, state = load_arrays(tmp_path / "out" / "reference.npz", "imported")
    assert scores.shape == (8, 1, 6) and state.shape == (8, 2, 1, 4)
    window, before, gain = samples.inputs
    assert np.allclose(state, before * gain[:, None, None, None], atol=1e-6)
    assert np.allclose(scores, window * gain[:, None, None] + before.mean((1, 2, 3))[:, None, None], atol=1e-6)


class _Sum:
    def run(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg]
        assert inputs[0].shape == (2, 3) and inputs[1].shape == ()
        return (inputs[0] + inputs[1], inputs[1] * 2)


def test_whole_samples_run_one_by_one() -> None:
    x, gain = np.ones((4, 2, 3)), np.arange(4.0)
    y, twice = run_in_batches(_Sum(), (x, gain), WHOLE)
    assert y.shape == (4, 2, 3) and twice.tolist() == [0, 2, 4, 6]


def test_a_data_set_has_whole_samples(tmp_path: Path) -> None:
    arrays = {"window": np.ones((5, 1, 6)), "state": np.ones((5, 2, 1, 4)), "gain": np.arange(5.0)}
    np.savez(tmp_path / "d.npz", **arrays)  # type: ignore[arg-type]
    from tvmflow.sources.data.datasets import SplitSizes

    parts = samples_of(_entry(dataset="d.npz"), SplitSizes(1, 2, 0), 4, tmp_path, lambda _files, _recipe: None)
    assert [x.shape for x in parts["evaluation"].inputs] == [(2, 1, 6), (2, 2, 1, 4), (2,)]
