"""The backend node tests of the installed `onnx` package: which count, what is constant, and what ours computes.

A test has a model of one node (or, "expanded", of the node's function body), inputs and expected outputs. Inputs that
set a shape are constants, as they are in the files that exporters write. Not counted: values that are no tensors of
numbers, outputs whose shape depends on data, training, random numbers, and other domains.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError, first_line

# Inputs that set the shape of an output, or that every exporter writes as constants, by the names in the schemas.
SHAPE_INPUTS = frozenset(
    """
    axes axis pads k K repeats shape starts ends steps sizes scales roi split depth start limit delta output_shape size
    image_shape block_shape dft_length frame_step frame_length num_mel_bins sample_rate lower_edge_hertz
    upper_edge_hertz ratio training_mode M cond output_size
    """.split()
)
_FIRST_INPUTS = frozenset({"ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"})
_BY_DATA = frozenset({"NonZero", "Unique", "Compress", "NonMaxSuppression", "ImageDecoder", "RegexFullMatch"})
_CONTROL_FLOW = frozenset({"Scan", "Loop", "If", "SequenceMap"})
_RANDOM = frozenset({"Bernoulli", "RandomNormal", "RandomUniform", "Multinomial"})
_NUMBERS = frozenset("FLOAT FLOAT16 DOUBLE BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL".split())


@dataclass(frozen=True)
class Verdict:
    """result: passed, refused (names the operator), refused_otherwise, wrong or raw; detail: the first line why."""

    result: str
    detail: str = ""


@functools.cache
def _tests() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {test.name: test for test in load_model_tests(kind="node")}


def names() -> list[str]:
    return list(_tests())


@functools.cache
def operator_of(name: str) -> str:
    """Return the operator that a test is about, also of one with the operator's function body."""
    nodes = _tests()[name].model.graph.node
    base = name.split("_expanded")[0]
    if base != name and base in _tests():
        return operator_of(base)
    return str(nodes[0].op_type) if len(nodes) == 1 else max((node.op_type for node in nodes), key=len)


def uncounted(name: str) -> str:
    """Return why a test does not count; '' if it does."""
    model, operator = _tests()[name].model, operator_of(name)
    kinds = set()
    for value in (*model.graph.input, *model.graph.output):
        kinds.add(_kind(value))
    operators = {node.op_type for node in model.graph.node} | {operator}
    if odd := sorted(kinds - _NUMBERS):
        return odd[0].lower()
    if operators & _BY_DATA:
        return "shape by data"
    if operators & _RANDOM:
        return "random"
    if operator in _CONTROL_FLOW:
        return "control flow"
    if any(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        return "other domain"
    if _is_training(name):
        return "training"
    return ""


def _kind(value: Any) -> str:
    import onnx

    kind = value.type.WhichOneof("value")
    return kind if kind != "tensor_type" else onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)


def _is_training(name: str) -> bool:
    test = _tests()[name]
    if any(part.name == "training_mode" and part.i for node in test.model.graph.node for part in node.attribute):
        return True
    given = [value.name for value in test.model.graph.input]
    inputs = dict(zip(given, test.data_sets[0][0], strict=False))
    for node in test.model.graph.node:
        if node.op_type == "Dropout" and len(node.input) > 2 and bool(np.all(inputs.get(node.input[2], False))):
            return True
    return False


def _constant_inputs(name: str, all_after_first: bool) -> set[str]:
    """Return the names of the graph's inputs that are constants."""
    import onnx

    model = _tests()[name].model
    if all_after_first:
        return {value.name for value in model.graph.input[1:]}
    base = name.split("_expanded")[0]
    base_model = _tests().get(base, _tests()[name]).model
    node = base_model.graph.node[0]
    versions = {entry.domain: entry.version for entry in base_model.opset_import}
    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return set()
    formal = [one.name for one in schema.inputs]
    constants = {
        actual
        for place, actual in enumerate(node.input)
        if actual and formal[min(place, len(formal) - 1)] in SHAPE_INPUTS
    }
    return constants | set(node.input if node.op_type in _FIRST_INPUTS else ())


def judge(name: str, all_after_first: bool = False) -> Verdict:
    """Return how import, packing, build and run of a test ends."""
    test = _tests()[name]
    model, inputs, expected = _fixed(name, all_after_first)
    try:
        found = _run(model, inputs)
    except UnsupportedOperatorError as error:
        named = operator_of(name) in str(error) or any(node.op_type in str(error) for node in model.graph.node)
        return Verdict("refused" if named else "refused_otherwise", first_line(error))
    except ModelFileError as error:
        return Verdict("refused_otherwise", first_line(error))
    except TvmflowError as error:
        return Verdict("raw", f"{type(error).__name__}: {first_line(error)}")
    except Exception as error:  # what the bench is there to find
        return Verdict("raw", f"{type(error).__name__}: {first_line(error)}")
    return _compare(found, expected, test.rtol, test.atol)


def _fixed(name: str, all_after_first: bool) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return the model with its constants, the other inputs by name, and the expected outputs."""
    import onnx

    test = _tests()[name]
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    values, expected = ([_array(value) for value in part] for part in test.data_sets[0])
    given = dict(zip([value.name for value in model.graph.input], values, strict=False))
    constants = _constant_inputs(name, all_after_first) & set(given)
    for key in constants:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(given[key]), key))
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model, {value.name: np.asarray(given[value.name]) for value in kept if value.name in given}, list(expected)


def _array(value: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _run(model: Any, inputs: dict[str, Any]) -> tuple[Any, ...]:
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.frontends.source_model import TensorSpec
    from tvmflow.passes.pipeline import canonicalize

    specs = tuple(TensorSpec(key, tuple(x.shape), str(x.dtype)) for key, x in inputs.items())
    module = canonicalize(_imported(model, specs))
    return LocalRunner.of_plain(module, host_backend()).run(*inputs.values())


def _imported(model: Any, specs: Any) -> Any:
    from tvmflow.frontends.onnx.importer import import_model

    return import_model(model, specs)


def _compare(found: Any, expected: list[Any], rtol: float, atol: float) -> Verdict:
    if len(found) != len(expected):
        return Verdict("wrong", f"{len(found)} outputs for {len(expected)}")
    for place, (ours, theirs) in enumerate(zip(found, map(np.asarray, expected), strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            shown = f"{ours.dtype} {list(ours.shape)} for {theirs.dtype} {list(theirs.shape)}"
            return Verdict("wrong", f"output {place}: {shown}")
        narrow = {"float16": 2**-10, "bfloat16": 2**-7}.get(str(theirs.dtype))
        wide = np.float64 if narrow or theirs.dtype.kind == "f" else theirs.dtype
        left, right = ours.astype(wide), theirs.astype(wide)
        # Two steps of a 16-bit type: the reference rounds after each operator, ours after each kernel.
        bound = max(rtol, 2 * (narrow or 0))
        if not np.allclose(left, right, rtol=bound, atol=max(atol, (narrow or 0) / 4), equal_nan=True):
            with np.errstate(all="ignore"):
                return Verdict("wrong", f"output {place}: differs by {np.nanmax(np.abs(left - right)):.3g}")
    return Verdict("passed")
