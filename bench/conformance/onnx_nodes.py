"""Read the backend node tests of the installed `onnx` package, and run them: which count, and which inputs are
constants.

A test has a model of one node (or, "expanded", of the node's function body), inputs and expected outputs. Inputs that
set a shape are constants, as they are in the files that exporters write. Not counted: values that are no tensors of
numbers, outputs whose shape depends on data, training, random numbers, and other domains.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError, first_line

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


RESULTS = ("passed", "refused", "refused_otherwise", "wrong", "raw")


@dataclass(frozen=True)
class Verdict:
    """result: passed, refused (names the operator), refused_otherwise, wrong or raw; detail: the first line why."""

    result: str
    detail: str = ""


class NodeTests:
    """Node tests by name."""

    def __init__(self, tests: dict[str, Any]) -> None:
        self._tests = tests

    @classmethod
    def all(cls) -> NodeTests:
        from onnx.backend.test.loader import load_model_tests

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cls({test.name: test for test in load_model_tests(kind="node")})

    @classmethod
    def of_modules(cls, modules: Iterable[str]) -> NodeTests:
        """Return the tests of some modules of onnx.backend.test.case.node only: all of them take 10 s to make."""
        from onnx.backend.test.case import node

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module in modules:
                importlib.import_module(f"onnx.backend.test.case.node.{module}")
        return cls({test.name: test for test in node._NodeTestCases})

    def names(self) -> list[str]:
        return list(self._tests)

    def operator_of(self, name: str) -> str:
        """Return the operator that a test is about, also of one with the operator's function body."""
        nodes = self._tests[name].model.graph.node
        base = name.split("_expanded")[0]
        if base != name and base in self._tests:
            return self.operator_of(base)
        return str(nodes[0].op_type) if len(nodes) == 1 else max((node.op_type for node in nodes), key=len)

    def uncounted(self, name: str) -> str:
        """Return why a test does not count; '' if it does."""
        model, operator = self._tests[name].model, self.operator_of(name)
        kinds = {_kind(value) for value in (*model.graph.input, *model.graph.output)}
        operators = {node.op_type for node in model.graph.node} | {operator}
        reasons = {
            "shape by data": operators & _BY_DATA,
            "random": operators & _RANDOM,
            "control flow": operator in _CONTROL_FLOW,
            "other domain": any(node.domain not in ("", "ai.onnx") for node in model.graph.node),
            "training": self._is_training(name),
        }
        odd = sorted(kinds - _NUMBERS)
        return odd[0].lower() if odd else next((reason for reason, holds in reasons.items() if holds), "")

    def _is_training(self, name: str) -> bool:
        test = self._tests[name]
        if any(part.name == "training_mode" and part.i for node in test.model.graph.node for part in node.attribute):
            return True
        inputs = dict(zip([value.name for value in test.model.graph.input], test.data_sets[0][0], strict=False))
        return any(
            node.op_type == "Dropout" and len(node.input) > 2 and bool(np.all(inputs.get(node.input[2], False)))
            for node in test.model.graph.node
        )

    def _constant_inputs(self, name: str, all_after_first: bool) -> set[str]:
        """Return the names of the graph's inputs that are constants."""
        import onnx

        later = {value.name for value in self._tests[name].model.graph.input[1:]} if all_after_first else set()
        model = self._tests.get(name.split("_expanded")[0], self._tests[name]).model
        node = model.graph.node[0]
        versions = {entry.domain: entry.version for entry in model.opset_import}
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            return later
        formal = [one.name for one in schema.inputs]
        constants = {
            actual
            for place, actual in enumerate(node.input)
            if actual and formal[min(place, len(formal) - 1)] in SHAPE_INPUTS
        }
        return later | constants | set(node.input if node.op_type in _FIRST_INPUTS else ())

    def model_of(self, name: str, all_after_first: bool = False) -> tuple[Any, dict[str, Any], list[Any]]:
        """Return the model with its constants, the other inputs by name, and the expected outputs."""
        import onnx

        test = self._tests[name]
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        values, expected = ([_array(value) for value in part] for part in test.data_sets[0])
        given = dict(zip([value.name for value in model.graph.input], values, strict=False))
        constants = self._constant_inputs(name, all_after_first) & set(given)
        for key in constants:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(given[key]), key))
        kept = [value for value in model.graph.input if value.name not in constants]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        return model, {value.name: np.asarray(given[value.name]) for value in kept if value.name in given}, expected

    def judge(self, name: str, all_after_first: bool = False) -> Verdict:
        """Return how import, packing, build and run of a test ends."""
        test = self._tests[name]
        model, inputs, expected = self.model_of(name, all_after_first)
        try:
            found = _run(model, inputs)
        except UnsupportedOperatorError as error:
            named = self.operator_of(name) in str(error) or any(n.op_type in str(error) for n in model.graph.node)
            return Verdict("refused" if named else "refused_otherwise", first_line(error))
        except ModelFileError as error:
            return Verdict("refused_otherwise", first_line(error))
        except Exception as error:  # what the bench is there to find
            return Verdict("raw", f"{type(error).__name__}: {first_line(error)}")
        return _compare(found, expected, test.rtol, test.atol)


def _kind(value: Any) -> str:
    import onnx

    kind = value.type.WhichOneof("value")
    return str(kind if kind != "tensor_type" else onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type))


def _array(value: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _run(model: Any, inputs: dict[str, Any]) -> tuple[Any, ...]:
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.frontends.onnx.importer import import_model
    from tvmflow.frontends.source_model import TensorSpec
    from tvmflow.passes.pipeline import canonicalize

    specs = tuple(TensorSpec(key, tuple(x.shape), str(x.dtype)) for key, x in inputs.items())
    module = canonicalize(import_model(model, specs))
    return LocalRunner.of_plain(module, host_backend()).run(*inputs.values())


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
        # Two steps of a 16-bit type, or half a step of the largest: the reference rounds after each operator, ours at
        # the end. Sums in float32 carry the rounding of their largest terms, where the reference's are in float64.
        bound = max(rtol, 2 * (narrow or 0))
        largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0)) if theirs.dtype.kind in "fV" else 0.0
        floor = max(atol, (narrow or 0) / 4, ((narrow or 0) / 2 + 1e-6) * largest)
        if not np.allclose(left, right, rtol=bound, atol=floor, equal_nan=True):
            with np.errstate(all="ignore"):
                difference = np.abs(left.astype(np.float64) - right.astype(np.float64))
                return Verdict("wrong", f"output {place}: differs by {np.nanmax(difference):.3g}")
    return Verdict("passed")
