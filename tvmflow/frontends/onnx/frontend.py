"""Import ONNX models. The reference for outputs and latency is ONNX Runtime."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.declared_types import declare_types
from tvmflow.frontends.onnx.files import damaged_file_error, external_files, read_proto, subgraphs_of
from tvmflow.frontends.onnx.float_ends import with_float_ends
from tvmflow.frontends.onnx.session import open_session, session_of
from tvmflow.frontends.onnx.widened import without_bfloat16
from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    FixedSpec,
    PreparedRun,
    Runner,
    SourceDescription,
    Variant,
    WeightedLayer,
    input_positions,
    open_names,
)
from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError, first_line

OLDEST_OPSET = 7
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class OnnxModel:
    """An ONNX graph with inputs of fixed shapes. The name of a single input is free in params.yaml; several are matched
    by name.
    """

    runs_in_forks = False  # a session has threads

    def __init__(self, path: Path, graph: Any, description: SourceDescription, changed: Any = None) -> None:
        """changed: the graph, if it is not that of the file."""
        names = {tensor.name for tensor in graph.graph.initializer}
        in_file = [value.name for value in graph.graph.input if value.name not in names]
        changed = with_float_ends(graph, _float_inputs(in_file, description)) or changed
        self.changed = without_bfloat16(changed or graph) or changed
        self.path, self.graph = path, graph = path, self.changed or graph
        in_file = open_names(path.name, in_file, description.fixed)
        self.fixed = {spec.name: spec.value for spec in description.fixed}
        _check_fixed(path.name, graph, description.fixed)
        self.order = input_positions(path.name, in_file, description.inputs)
        self.inputs = {in_file[index]: spec for index, spec in zip(self.order, description.inputs, strict=True)}
        self.session = open_session(path, changed=self.changed)

    def run(self, *inputs: Array) -> Arrays:
        try:
            outputs: list[Array] = self.session.run(None, self._feed(inputs))
        except Exception as error:
            raise rejected_inputs_error(inputs, error) from error
        return tuple(np.asarray(value) for value in outputs)

    def _feed(self, inputs: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.inputs, inputs, strict=True)) | self.fixed

    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.graph.graph.output)

    def other_roundings(self) -> Iterator[Runner]:
        yield self._with(open_session(self.path, optimized=False, changed=self.changed))

    def _with(self, session: Any) -> OnnxModel:
        model = OnnxModel.__new__(OnnxModel)
        model.__dict__ |= self.__dict__ | {"session": session}
        return model

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        import onnx

        graph = onnx.ModelProto()
        graph.CopyFrom(self.graph)
        names = _values_of_inputs(graph.graph, self.inputs)
        known = set(self.output_names())
        graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
        values = session_of(graph).run(names, self._feed(inputs)) if names else []  # of no names it returns the outputs
        for name, value in zip(names, values, strict=True):
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                yield name, value

    def weighted_layers(self) -> Sequence[WeightedLayer]:
        sizes = {one.name: math.prod(one.dims) for one in self.graph.graph.initializer if len(one.dims) > 1}
        found = []
        for node in self.graph.graph.node:
            weights = [name for name in node.input if name in sizes]
            if node.op_type in _WEIGHTED and weights:
                name = node.output[0]
                found.append(WeightedLayer(node.name or name, node.op_type, sizes[weights[0]], name))
        return found

    def use_threads(self, threads: int) -> None:
        self.session = open_session(self.path, threads, changed=self.changed)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return session_variants(self.session, self._feed(inputs))

    def prepare_conversion(self) -> None:
        pass

    def to_relax(self) -> Any:
        from tvmflow.frontends.onnx.importer import import_model

        return import_model(self.graph, [replace(spec, name=name) for name, spec in self.inputs.items()], self.fixed)

    def to_onnx(self, path: Path) -> None:
        """Copy the file; where inputs are fixed, write it with them as constants."""
        if self.fixed or self.changed:
            _save_with_constants(self.changed or read_proto(self.path), self.fixed, path)
        else:
            shutil.copyfile(self.path, path)
        for name, file in external_files(self.path).items():
            shutil.copyfile(file, path.parent / name)


def _check_fixed(what: str, graph: Any, fixed: Sequence[FixedSpec]) -> None:
    import onnx

    kinds = {value.name: value.type.tensor_type for value in graph.graph.input}
    for spec in fixed:
        kind = kinds[spec.name]
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim]
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else "no tensor"
        spec.check(what, dtype, sizes if kind.HasField("shape") else None)


def _float_inputs(names: Sequence[str], description: SourceDescription) -> list[str]:
    """Return the names in a file of the inputs that are described as float32."""
    floats = {spec.name for spec in (*description.inputs, *description.fixed) if spec.dtype == "float32"}
    if len(names) == len(description.inputs) == 1:  # whose name is free
        return list(names) if floats else []
    return [name for name in names if name in floats]


def _save_with_constants(model: Any, fixed: Mapping[str, Array], path: Path) -> None:
    """Write a model whose fixed inputs are constants; its external data stays as it is."""
    import onnx

    graph = model.graph
    graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in fixed.items())
    kept = [value for value in graph.input if value.name not in fixed]
    if model.ir_version >= 4:  # before, a constant is an input, too
        del graph.input[:]
        graph.input.extend(kept)
    path.write_bytes(model.SerializeToString())


def _values_of_inputs(graph: Any, inputs: Iterable[str]) -> list[str]:
    """Return the names of all values that depend on an input, in order; constants are folded by any importer."""
    depending, names = set(inputs), []
    for node in graph.node:
        if depending.intersection(node.input) or any(part.HasField("g") for part in node.attribute):
            found = [name for name in node.output if name]
            depending.update(found)
            names += found
    return names


def rejected_inputs_error(inputs: Sequence[Array], error: Exception) -> ModelFileError:
    """Return the error of a model that rejects inputs of these shapes."""
    shown = ", ".join(f"{x.dtype} {list(x.shape)}" for x in inputs)
    return ModelFileError(
        f"the model rejects inputs of {shown}: {first_line(error)}",
        "the shapes and dtypes of the model",
        "correct input.shape (or inputs) of the model in params.yaml",
    )


def session_variants(session: Any, feed: Mapping[str, Array]) -> tuple[Variant, ...]:
    """Return the execution variants of a session: inputs bound once, or fed in each run."""

    def bound() -> PreparedRun:
        binding = session.io_binding()
        for name, x in feed.items():
            binding.bind_cpu_input(name, np.asarray(x, order="C"))
        for output in session.get_outputs():
            binding.bind_output(output.name)
        return PreparedRun(
            lambda: session.run_with_iobinding(binding), lambda _: tuple(map(np.asarray, binding.copy_outputs_to_cpu()))
        )

    def fed() -> PreparedRun:
        return PreparedRun(lambda: session.run(None, dict(feed)), lambda outputs: tuple(map(np.asarray, outputs)))

    return Variant("feed", fed), Variant("I/O binding", bound)


# What the checker says of valid files: an output may have any shape, a deprecated operator still computes, and in files
# of IR version 3 constants need not be inputs, too: tools that take them out leave the version as it is.
_ACCEPTED = (
    "Field 'shape' of 'type' is required but missing",
    "is deprecated in domain_version of",
    "in initializer but not in graph input",
)


def _check(path: Path, graph: Any, has_external_data: bool) -> None:
    """Check a model by the onnx package; ONNX Runtime checks it again. Raises any error of the checker."""
    import onnx

    try:
        onnx.checker.check_model(str(path) if has_external_data else graph)
    except onnx.checker.ValidationError as error:
        if "No Op registered for" in str(error) and (unknown := _unknown_operators(graph)):
            raise UnsupportedOperatorError(
                f"{path.name} has operators that its opset does not have: {', '.join(unknown)[:300]}",
                "operators of ONNX; an exporter keeps the names of those that it cannot convert",
                "import the model from the framework's own file, or replace these operators there",
            ) from error
        if not any(accepted in str(error) for accepted in _ACCEPTED):
            raise


def _unknown_operators(graph: Any) -> list[str]:
    """Return the operators in ONNX's own domains that a model's opsets do not have."""
    import onnx

    opsets = {entry.domain: entry.version for entry in graph.opset_import}
    todo, unknown = [graph.graph, *graph.functions], dict[str, None]()
    for part in todo:
        for node in part.node:
            todo += [inner for attribute in node.attribute for inner in subgraphs_of(attribute)]
            if node.domain in ("", "ai.onnx", "ai.onnx.ml"):
                try:
                    onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
                except onnx.defs.SchemaError:
                    unknown[node.op_type] = None
    return sorted(unknown)


def load(folder: Path, description: SourceDescription) -> OnnxModel:
    """Read and check an ONNX file. Raises ModelFileError when it is damaged."""
    import onnx

    path = folder / description.weights_file
    graph, outside = read_proto(path), external_files(path)
    is_changed = declare_types(graph, path.name)
    try:
        _check(path, graph, bool(outside) and not is_changed)
        if outside:
            onnx.load_external_data_for_model(graph, str(folder))
    except TvmflowError:
        raise
    except Exception as error:  # onnx and its checker each have their own
        raise damaged_file_error(path, error) from error
    # A file of trees alone may declare the operators of tables only.
    opsets = [entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx")]
    if opsets and (opset := max(opsets)) < OLDEST_OPSET:
        raise ModelFileError(
            f"{path.name} uses opset {opset}", f"opset {OLDEST_OPSET} or later", "export it with a later one"
        )
    return OnnxModel(path, graph, description, graph if is_changed else None)
