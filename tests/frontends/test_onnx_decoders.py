"""Compare attention with caches with ONNX Runtime: single operators, and a decoder over five steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.frontends.onnx.converters import CONTRIB_DOMAIN
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import State, TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import UnsupportedOperatorError
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command

Array = np.ndarray[Any, Any]
_RANDOM = np.random.default_rng(3)
_ANGLES = np.outer(np.arange(16), 0.5 ** np.arange(8)).astype(np.float32)
HEADS, KV_HEADS, WIDTH = 4, 2, 16


def _x(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _lengths(*tokens: int) -> Array:
    return np.asarray(tokens, np.int32) - 1


def _grouped(
    batch: int, tokens: int, size: int, longest: int, lengths: Array, width: int = WIDTH, **others: Array | None
) -> dict[str, Array | None]:
    """Return the inputs of a GroupQueryAttention. size: of the caches, 0: none. Those named x... are the model's."""
    queries = {"xq": HEADS, "xk": KV_HEADS, "xv": KV_HEADS}
    made = {name: _x(batch, tokens, heads * width) for name, heads in queries.items()}
    caches = {name: _x(batch, KV_HEADS, size, width) if size else None for name in ("xpk", "xpv")}
    given = {"xlengths": lengths, "total": np.int32(longest), "c": None, "s": None, "p": None, "bias": None}
    return {**made, **caches, **given, **others}


_ROTARY = {"c": np.cos(_ANGLES), "s": np.sin(_ANGLES)}
_PACKED = {"xq": _x(1, 1, (HEADS + 2 * KV_HEADS) * WIDTH), "xk": None, "xv": None}
# name -> inputs in order (x...: of the model, others constants, None: left out), attributes
GROUPED: dict[str, tuple[dict[str, Array | None], dict[str, Any]]] = {
    "first tokens": (_grouped(1, 3, 0, 3, _lengths(3)), {}),
    "first tokens into caches": (_grouped(1, 3, 8, 3, _lengths(3)), {}),
    "one token behind full caches": (_grouped(1, 1, 5, 6, _lengths(6)), {}),
    "one token inside caches": (_grouped(1, 1, 8, 8, _lengths(5)), {}),
    "samples of other lengths": (_grouped(3, 1, 8, 8, _lengths(5, 8, 1)), {}),
    "three tokens inside caches": (_grouped(1, 3, 8, 8, _lengths(6)), {}),
    "rotary": (_grouped(2, 1, 8, 8, _lengths(5, 3), **_ROTARY), {"do_rotary": 1}),
    "rotary of first tokens": (_grouped(2, 3, 0, 3, _lengths(3, 3), **_ROTARY), {"do_rotary": 1}),
    "rotary, interleaved, three tokens": (
        _grouped(1, 3, 8, 8, _lengths(6), **_ROTARY),
        {"do_rotary": 1, "rotary_interleaved": 1},
    ),
    "rotary of a half": (
        _grouped(1, 1, 8, 8, _lengths(5), 2 * WIDTH, **_ROTARY),
        {"do_rotary": 1},
    ),
    "rotary at positions": (
        _grouped(2, 1, 8, 8, _lengths(5, 3), **_ROTARY, p=np.asarray([[9], [1]])),
        {"do_rotary": 1},
    ),
    "window": (_grouped(2, 1, 8, 8, _lengths(6, 2)), {"local_window_size": 3}),
    "window of three tokens": (_grouped(1, 3, 8, 8, _lengths(7)), {"local_window_size": 2}),
    "softcap": (_grouped(1, 1, 8, 8, _lengths(5)), {"softcap": 0.7}),
    "softcap, bias and scale": (
        _grouped(1, 1, 8, 8, _lengths(5), bias=_x(1, HEADS, 1, 8)),
        {"softcap": 0.7, "scale": 2.0},
    ),
    "smooth softmax": (_grouped(1, 1, 8, 8, _lengths(5)), {"smooth_softmax": 1}),
    "sinks": (_grouped(2, 1, 8, 8, _lengths(5, 2), sink=_x(HEADS)), {}),
    "packed": (_grouped(1, 1, 8, 8, _lengths(5), **_PACKED, **_ROTARY), {"do_rotary": 1}),
    "in both directions": (_grouped(1, 3, 0, 3, _lengths(3)), {"causal": 0}),
}
_PAST = {"xpk": _x(2, HEADS, 3, WIDTH), "xpv": _x(2, HEADS, 3, WIDTH)}
_NEW = {name: _x(2, 2, HEADS * WIDTH) for name in ("xq", "xk", "xv")}
# Operator and variant -> inputs, attributes, outputs
OTHERS: dict[str, tuple[dict[str, Array | None], dict[str, Any], int]] = {
    "MultiHeadAttention": ({**_NEW, "b": None, "m": None, "a": None, **_PAST}, {"num_heads": HEADS}, 3),
    "MultiHeadAttention, causal": (
        {**_NEW, "b": _x(3 * HEADS * WIDTH), "m": None, "a": None, **_PAST},
        {"num_heads": HEADS, "unidirectional": 1},
        3,
    ),
    "MultiHeadAttention, mask and bias": (
        {**_NEW, "b": None, "xm": np.asarray([[1] * 5, [0, 1, 1, 1, 1]], np.int32), "a": _x(1, HEADS, 2, 5), **_PAST},
        {"num_heads": HEADS},
        3,
    ),
    "Attention": (
        {"x": _x(2, 2, 8), "w": _x(8, 24), "b": _x(24), "m": None, "xp": _x(2, 2, HEADS, 3, 2)},
        {"num_heads": HEADS, "unidirectional": 1},
        2,
    ),
}


def _model(
    op: str, given: Mapping[str, Array | None], attributes: Mapping[str, Any], outputs: int
) -> tuple[Any, dict[str, Array]]:
    names, made = [name * (x is not None) for name, x in given.items()], [f"y{place}" for place in range(outputs)]
    node = helper.make_node(op, names, made, name="node", domain=CONTRIB_DOMAIN, **attributes)
    values = {name: np.asarray(x) for name, x in given.items() if x is not None}
    inputs = {name: x for name, x in values.items() if name.startswith("x")}
    constants = {name: x for name, x in values.items() if name not in inputs}
    return _of_nodes([node], inputs, made, constants), inputs


def _of_nodes(nodes: list[Any], inputs: Mapping[str, Array], outputs: list[str], constants: Mapping[str, Array]) -> Any:
    kinds = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    tensors = [numpy_helper.from_array(x, name) for name, x in constants.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        kinds,
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _session(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _imported(model: Any, inputs: Mapping[str, Array]) -> Any:
    return canonicalize(import_model(model, [TensorSpec(name, x.shape, str(x.dtype)) for name, x in inputs.items()]))


def _check(model: Any, inputs: dict[str, Array]) -> None:
    expected = _session(model).run(None, inputs)
    found = run_all(read_graph(_imported(model, inputs)), tuple(inputs.values()))
    assert [x.shape for x in found] == [x.shape for x in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.abs(one - other).max() <= 2e-5 * max(float(np.abs(other).max()), 1.0)


@pytest.mark.few(6)
@pytest.mark.parametrize("case", GROUPED)
def test_grouped_attention_and_its_caches_equal_onnx_runtime(case: str) -> None:
    given, attributes = GROUPED[case]
    _check(*_model("GroupQueryAttention", given, attributes | {"num_heads": HEADS, "kv_num_heads": KV_HEADS}, 3))


@pytest.mark.few(2)
@pytest.mark.parametrize("case", OTHERS)
def test_attention_with_a_past_equals_onnx_runtime(case: str) -> None:
    _check(*_model(case.partition(",")[0], *OTHERS[case]))


def test_a_length_that_sets_a_shape_and_is_an_input_is_refused_with_the_way_out() -> None:
    given = GROUPED["one token inside caches"][0]
    renamed = {"xtotal" if name == "total" else name: x for name, x in given.items()}
    model, inputs = _model("GroupQueryAttention", renamed, {"num_heads": HEADS, "kv_num_heads": KV_HEADS}, 3)
    with pytest.raises(UnsupportedOperatorError, match=r"total_sequence_length depends on the data.*inputs: \{NAME"):
        _imported(model, inputs)


# -- a decoder --------------------------------------------------------------------------------------------------------

_WORDS, _HIDDEN, _WIDE, _LONGEST, _LAYERS = 50, 32, 64, 8, 2


class _Graph:
    """Nodes and constants of a graph that is being written."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.nodes: list[Any] = []
        self.constants = constants

    def emit(self, op: str, given: list[str], made: list[str], domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, given, made, domain=domain, **attributes))
        return made[0]

    def product(self, x: str, name: str, k: int, n: int) -> str:
        self.constants[f"{name}.w"] = _RANDOM.integers(0, 256, (n, k // 16, 8)).astype(np.uint8)
        self.constants[f"{name}.s"] = np.abs(_x(n * k // 16)) / 16
        given = [x, f"{name}.w", f"{name}.s"]
        return self.emit("MatMulNBits", given, [name], CONTRIB_DOMAIN, K=k, N=n, bits=4, block_size=16)

    def gamma(self, name: str) -> str:
        self.constants[name] = 1 + _x(_HIDDEN) / 8
        return name


def _decoder() -> tuple[Any, dict[str, Array]]:
    """Return a decoder as the exporter of ONNX Runtime writes it, and its inputs before the first token."""
    constants: dict[str, Any] = {"words": _x(_WORDS, _HIDDEN), "one": np.int64(1), "axis": np.asarray([1])}
    constants |= {"cos": np.cos(_ANGLES), "sin": np.sin(_ANGLES)}
    inputs: dict[str, Array] = {
        "input_ids": np.zeros((1, 1), np.int64),
        "attention_mask": np.zeros((1, _LONGEST), np.int64),
    }
    graph = _Graph(constants)
    emit, product, gamma = graph.emit, graph.product, graph.gamma
    emit("ReduceSum", ["attention_mask", "axis"], ["count"], keepdims=0)
    emit("Cast", [emit("Sub", ["count", "one"], ["last"])], ["seqlens_k"], to=onnx.TensorProto.INT32)
    emit("Gather", [emit("Shape", ["attention_mask"], ["sizes"]), "one"], ["size"])
    emit("Cast", ["size"], ["total"], to=onnx.TensorProto.INT32)
    total = emit("Gather", ["words", "input_ids"], ["embedded"])
    x = emit("SimplifiedLayerNormalization", [total, gamma("g0")], ["n0"], axis=-1, epsilon=1e-6)
    width = HEADS * WIDTH
    for layer in range(_LAYERS):
        caches = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        inputs |= {name: np.zeros((1, KV_HEADS, _LONGEST, WIDTH), np.float32) for name in caches}
        q, k, v = (
            product(x, f"{part}{layer}", _HIDDEN, n) for part, n in (("q", width), ("k", width // 2), ("v", width // 2))
        )
        mixed = emit(
            "GroupQueryAttention",
            [q, k, v, *caches, "seqlens_k", "total", "cos", "sin"],
            [f"mixed{layer}", f"present.{layer}.key", f"present.{layer}.value"],
            CONTRIB_DOMAIN,
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
            local_window_size=4 if layer else -1,
        )
        for step, made in enumerate(("o", "m")):
            if made == "o":
                value = product(mixed, f"o{layer}", width, _HIDDEN)
            else:
                gate = product(x, f"gate{layer}", _HIDDEN, _WIDE)
                silu = emit("Mul", [gate, emit("Sigmoid", [gate], [f"sigmoid{layer}"])], [f"silu{layer}"])
                up = product(x, f"up{layer}", _HIDDEN, _WIDE)
                value = product(emit("Mul", [silu, up], [f"wide{layer}"]), f"down{layer}", _WIDE, _HIDDEN)
            name = f"{layer}.{step}"
            outputs = [f"n{name}", "", "", f"t{name}"]
            given = [total, value, gamma(f"g{name}")]
            x, total = (
                emit("SkipSimplifiedLayerNormalization", given, outputs, CONTRIB_DOMAIN, epsilon=1e-6),
                outputs[3],
            )
    product(x, "logits", _HIDDEN, _WORDS)
    states = [f"present.{layer}.{part}" for layer in range(_LAYERS) for part in ("key", "value")]
    return _of_nodes(graph.nodes, inputs, ["logits", *states], constants), inputs


@pytest.mark.slow
def test_a_decoder_with_its_caches_as_states_follows_onnx_runtime(tmp_path: Path) -> None:
    model, inputs = _decoder()
    outputs = [value.name for value in model.graph.output]
    specs = tuple(TensorSpec(name, x.shape, str(x.dtype)) for name, x in inputs.items())
    states = tuple(map(State, list(inputs)[2:], outputs[1:]))
    scheduled = build_scheduled(host_backend().pack(_imported(model, inputs), None)[0], host_backend(), {})
    described = Network("decoder@host:float32", specs, tuple(outputs), 2, states=states)
    write_network(tmp_path / "network.so", scheduled, described, Command(("gcc",)))
    session = _session(model)
    with network_binding().Network(tmp_path / "network.so") as network:
        for step in range(5):
            inputs["input_ids"][:] = (7 * step + 3) % _WORDS
            inputs["attention_mask"][0, step] = 1
            found = network(inputs["input_ids"], inputs["attention_mask"])
            expected = session.run(None, inputs)
            inputs |= dict(zip(list(inputs)[2:], expected[1:], strict=True))
            for one, other in zip(found, expected, strict=True):
                assert np.abs(one - other).max() <= 1e-4 * max(float(np.abs(other).max()), 1.0)
