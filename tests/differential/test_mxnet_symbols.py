"""Compare operators of MXNet beyond its zoo with MXNet itself: many as outputs of one symbol, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.seeds import params_bytes, symbol_json
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, SourceModel, one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize

Array = np.ndarray[Any, Any]
BOUND = 2e-5  # float32 sums in another order, relative to the largest output


def _x(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _load(folder: Path, shape: tuple[int, ...]) -> SourceModel:
    return load_source(folder, SourceDescription("mxnet", None, "model-symbol.json", one_input("input", shape)))


OPERATORS: list[tuple[str, dict[str, str], dict[str, Array | tuple[int, ...]]]] = [
    *((name, {}, {}) for name in "abs exp square negative sign floor ceil sin cos tanh erf arctan softsign".split()),
    *((name, {}, {}) for name in "round rint trunc cbrt expm1 hard_sigmoid logical_not zeros_like reciprocal".split()),
    *((f"broadcast_{name}", {}, {"b": (1, 4, 1, 8)}) for name in "maximum minimum lesser greater_equal mul".split()),
    *((f"_{name}_scalar", {"scalar": "0.4"}, {}) for name in "rdiv rpower maximum lesser minimum".split()),
    ("_power_scalar", {"scalar": "2"}, {}),
    ("LeakyReLU", {"act_type": "gelu"}, {}),
    ("LeakyReLU", {"act_type": "selu"}, {}),
    ("LeakyReLU", {"act_type": "rrelu"}, {}),
    ("smooth_l1", {"scalar": "2"}, {}),
    ("sum", {"axis": "1", "exclude": "True"}, {}),
    ("max", {}, {}),
    ("norm", {"ord": "2", "axis": "1", "keepdims": "True"}, {}),
    ("argmax", {"axis": "1"}, {}),
    ("topk", {"axis": "1", "k": "2", "ret_typ": "value"}, {}),
    ("topk", {"k": "3", "is_ascend": "True"}, {}),
    ("L2Normalization", {"mode": "instance"}, {}),
    ("L2Normalization", {"mode": "channel"}, {}),
    ("L2Normalization", {"mode": "spatial"}, {}),
    ("InstanceNorm", {"eps": "0.01"}, {"gamma": (4,), "beta": (4,)}),
    ("LayerNorm", {"axis": "-1"}, {"gamma": (8,), "beta": (8,)}),
    ("LayerNorm", {"axis": "1"}, {"gamma": (4,), "beta": (4,)}),
    ("GroupNorm", {"num_groups": "2"}, {"gamma": (2,), "beta": (2,)}),
    ("Reshape", {"shape": "(0, -4, -1, 2, -2)"}, {}),
    ("Reshape", {"shape": "(-3, -3)"}, {}),
    ("slice", {"begin": "(None, 1, 2)", "end": "(None, 3, None)", "step": "(1, 1, 2)"}, {}),
    ("slice_axis", {"axis": "-1", "begin": "-3", "end": "None"}, {}),
    ("slice_like", {"axes": "(2, 3)"}, {"b": (1, 1, 5, 6)}),
    ("Crop", {"num_args": "2", "offset": "(1, 2)"}, {"b": (1, 1, 5, 6)}),
    ("stack", {"axis": "-1", "num_args": "2"}, {"b": (1, 4, 8, 8)}),
    ("tile", {"reps": "(2, 1, 3)"}, {}),
    ("repeat", {"repeats": "2", "axis": "1"}, {}),
    ("Pad", {"mode": "reflect", "pad_width": "(0, 0, 0, 0, 1, 2, 3, 0)"}, {}),
    ("Pad", {"mode": "edge", "pad_width": "(0, 0, 0, 0, 1, 2, 3, 0)"}, {}),
    ("Pad", {"mode": "constant", "constant_value": "0.5", "pad_width": "(0, 0, 0, 0, 1, 2, 3, 0)"}, {}),
    ("SwapAxis", {"dim1": "1", "dim2": "3"}, {}),
    ("reverse", {"axis": "(2, 3)"}, {}),
    ("UpSampling", {"scale": "3", "sample_type": "nearest", "num_args": "1"}, {}),
    ("_contrib_BilinearResize2D", {"height": "5", "width": "13"}, {}),
    ("_contrib_BilinearResize2D", {"height": "5", "width": "13", "align_corners": "False"}, {}),
    ("_contrib_AdaptiveAvgPooling2D", {"output_size": "(3, 2)"}, {}),
    ("Embedding", {"input_dim": "3", "output_dim": "5"}, {"weight": (3, 5)}),
    ("take", {"axis": "2"}, {"b": np.asarray([1.0, 9.0, 0.0], np.float32)}),
    ("batch_dot", {"transpose_b": "True"}, {"b": (1, 4, 6, 8)}),
    ("depth_to_space", {"block_size": "2"}, {}),
    ("space_to_depth", {"block_size": "2"}, {}),
    ("broadcast_like", {}, {"b": (1, 4, 8, 8)}),
    ("where", {}, {"a": (1, 4, 8, 8), "b": (1, 4, 8, 8)}),
    ("add_n", {"num_args": "2"}, {"b": (1, 4, 8, 8)}),
    ("softmin", {"axis": "1"}, {}),
    ("softmax", {"axis": "2", "temperature": "2.0"}, {}),
    ("SoftmaxActivation", {"mode": "instance"}, {}),
    ("SoftmaxOutput", {}, {"label": (1, 4, 8)}),
    ("SoftmaxOutput", {"preserve_shape": "True"}, {"label": (1, 4, 8)}),
    ("SoftmaxOutput", {"multi_output": "True"}, {"label": (1, 8, 8)}),
    ("LogisticRegressionOutput", {}, {"label": (1, 4, 8, 8)}),
]


def test_operators_as_outputs_of_one_symbol(tmp_path: Path) -> None:
    """All of them read the data; a split has several outputs, of which one is left out."""
    x, generator = _x((1, 4, 8, 8)), np.random.default_rng(0)
    nodes: list[tuple[str, str, dict[str, str], list[int]]] = [("null", "data", {}, [])]
    arrays, heads = {}, []
    for at, (op, attrs, parameters) in enumerate(OPERATORS):
        operands = [0]
        for name, given in parameters.items():
            arrays[f"arg:{at}{name}"] = (
                given if isinstance(given, np.ndarray) else generator.uniform(0.5, 1.5, given).astype(np.float32)
            )
            operands.append(len(nodes))
            nodes.append(("null", f"{at}{name}", {}, []))
        heads.append([len(nodes), 0, 0])
        nodes.append((op, f"out{at}", attrs, operands))
    heads += [[len(nodes), 2, 0], [len(nodes), 0, 0]]
    nodes.append(("SliceChannel", "split", {"num_outputs": "4", "axis": "1", "squeeze_axis": "True"}, [0]))
    symbol = json.loads(symbol_json(nodes, 0)) | {"heads": heads}
    (tmp_path / "model-symbol.json").write_text(json.dumps(symbol))
    (tmp_path / "model-0000.params").write_bytes(params_bytes(arrays, 2))
    source = _load(tmp_path, x.shape)
    found, expected = run_all(read_graph(canonicalize(source.to_relax())), (x,)), source.run(x)
    assert source.output_names()[-2:] == ("split_2", "split_0")
    wrong = []
    for name, a, b in zip([*OPERATORS, "split 2", "split 0"], found, expected, strict=True):
        same = a.shape == b.shape and a.dtype == b.dtype
        if not same or not np.abs(a - b).max() <= BOUND * max(1.0, np.abs(b).max()):  # neither for NaN
            wrong.append((name, a.shape, b.shape, np.abs(a - b).max() if same else None))
    assert wrong == []
    (executor,) = [way for way in source.variants(x) if way.name == "executor"]
    prepared = executor.prepare()
    again = prepared.read(prepared.run())
    assert all(np.array_equal(a, b) for a, b in zip(again, expected, strict=True))
    assert prepared.time_runs is not None and len(prepared.time_runs(3)) == 3


def test_signals_of_mxnet(tmp_path: Path) -> None:
    x = _x((1, 4, 20))
    nodes = [
        ("null", "data", {}, []),
        ("null", "w", {}, []),
        ("Convolution", "c", {"kernel": "(3,)", "num_filter": "6", "pad": "(1,)", "no_bias": "True"}, [0, 1]),
        ("Pooling", "p", {"kernel": "(2,)", "stride": "(2,)", "pool_type": "avg"}, [2]),
        ("Activation", "a", {"act_type": "softrelu"}, [3]),
        ("Pooling", "g", {"kernel": "(1,)", "global_pool": "True", "pool_type": "avg"}, [4]),
    ]
    (tmp_path / "model-symbol.json").write_text(symbol_json(nodes, 5))
    weight = np.random.default_rng(0).standard_normal((6, 4, 3)).astype(np.float32)
    (tmp_path / "model-0000.params").write_bytes(params_bytes({"arg:w": weight}, 2))
    source = _load(tmp_path, x.shape)
    module = read_graph(canonicalize(source.to_relax()))
    for given in (x, 100 * x):  # where exp(x) alone is infinite
        (found,), (expected,) = run_all(module, (given,)), source.run(given)
        assert found.shape == expected.shape == (1, 6, 1)
        assert np.abs(found - expected).max() < BOUND * np.abs(expected).max()
