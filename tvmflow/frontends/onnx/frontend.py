"""Import ONNX models. The reference for outputs and latency is ONNX Runtime."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.files import damaged_file_error, external_files, read_proto
from tvmflow.frontends.onnx.session import open_session, session_of
from tvmflow.frontends.pytorch.exported_program import unsupported
from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    PreparedRun,
    Runner,
    SourceDescription,
    Variant,
    input_positions,
)
from tvmflow.ir.relax.graph import reorder_inputs
from tvmflow.ir.tvm_compat import constant_value
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError, first_line, last_line

OLDEST_OPSET = 9
_PAD_MODES = {
    b"constant": "constant",
    b"reflect": "reflect",
    b"edge": "replicate",
    b"wrap": "circular",
}  # of ONNX, of Relax


class OnnxModel:
    """An ONNX graph with inputs of fixed shapes. The name of a single input is free in params.yaml; several are matched
    by name.
    """

    def __init__(self, path: Path, graph: Any, description: SourceDescription) -> None:
        self.path, self.graph = path, graph
        names = {tensor.name for tensor in graph.graph.initializer}
        in_file = [value.name for value in graph.graph.input if value.name not in names]
        self.order = input_positions(path.name, in_file, description.inputs)
        self.inputs = {in_file[index]: spec for index, spec in zip(self.order, description.inputs, strict=True)}
        self.session = open_session(path)

    def run(self, *inputs: Array) -> Arrays:
        try:
            outputs: list[Array] = self.session.run(None, self._feed(inputs))
        except Exception as error:
            raise rejected_inputs_error(inputs, error) from error
        return tuple(np.asarray(value) for value in outputs)

    def _feed(self, inputs: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.inputs, inputs, strict=True))

    def output_names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.graph.graph.output)

    def other_roundings(self) -> Iterator[Runner]:
        yield self._with(open_session(self.path, optimized=False))

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

    def use_threads(self, threads: int) -> None:
        self.session = open_session(self.path, threads)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return session_variants(self.session, self._feed(inputs))

    def to_relax(self) -> Any:
        from tvm.relax.frontend.onnx import from_onnx

        if any(_is_antialiased(node) for node in self.graph.graph.node):
            raise UnsupportedOperatorError(
                "TVM's ONNX importer ignores antialias of Resize",
                "Resize without antialias",
                "export the network without antialias, or as a torch.export program, for which it is supported",
            )
        try:
            with _import_clip(), _import_pad():
                shapes = {name: list(spec.shape) for name, spec in self.inputs.items()}
                dtypes = {name: spec.dtype for name, spec in self.inputs.items()}
                graph = fix_shapes(self.graph, shapes)
                return reorder_inputs(from_onnx(graph, shape_dict=shapes, dtype_dict=dtypes), self.order)
        except Exception as error:
            if type(error).__name__ in ("OpNotImplemented", "NotImplementedError", "KeyError"):
                raise unsupported("ONNX", str(error)) from error
            raise ModelFileError(
                f"TVM cannot import {self.path.name}: {last_line(error)}",
                "an ONNX model with static shapes",
            ) from error

    def to_onnx(self, path: Path) -> None:
        shutil.copyfile(self.path, path)
        for name, file in external_files(self.path).items():
            shutil.copyfile(file, path.parent / name)


def _values_of_inputs(graph: Any, inputs: Iterable[str]) -> list[str]:
    """Return the names of all values that depend on an input, in order; constants are folded by any importer."""
    depending, names = set(inputs), []
    for node in graph.node:
        if depending.intersection(node.input) or any(part.HasField("g") for part in node.attribute):
            found = [name for name in node.output if name]
            depending.update(found)
            names += found
    return names


def _is_antialiased(node: Any) -> bool:
    """Return whether a node resizes with antialiasing, which TVM's importer silently ignores."""
    return node.op_type == "Resize" and any(part.name == "antialias" and part.i for part in node.attribute)


def fix_shapes(graph: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return a graph with these input shapes and with constants for all shape computations; unchanged if it has no
    dynamic size.

    Exporters write values that depend on a dynamic size as operators on shapes, which TVM's importer cannot follow.
    """
    import onnx
    from onnxscript import optimizer

    sizes = [value.type.tensor_type.shape.dim for value in graph.graph.input if value.name in shapes]
    if all(size.HasField("dim_value") for dimensions in sizes for size in dimensions):
        return graph
    fixed = onnx.ModelProto()
    fixed.CopyFrom(graph)
    for value in fixed.graph.input:
        if value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            value.type.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name]
            )
    for value in fixed.graph.output:  # their dynamic sizes have names, too
        value.type.tensor_type.ClearField("shape")
    del fixed.graph.value_info[:]
    optimizer.fold_constants(fixed, onnx_shape_inference=True)
    for node in fixed.graph.node:
        if (
            node.op_type == "Constant" and node.attribute[0].name != "value"
        ):  # numbers, which TVM's importer wants as tensors
            numbers = onnx.helper.get_attribute_value(node.attribute[0])
            kind = np.int64 if node.attribute[0].name.startswith("value_int") else np.float32
            tensor = onnx.numpy_helper.from_array(np.asarray(numbers, kind))
            node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", tensor))
    return fixed


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


@contextlib.contextmanager
def _patch_members(owner: Any, members: Mapping[str, Any]) -> Iterator[None]:
    """Replace members of a class within a context."""
    originals = {name: vars(owner)[name] for name in members}
    for name, member in members.items():
        setattr(owner, name, member)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def _import_clip() -> contextlib.AbstractContextManager[None]:
    """Make TVM's importer emit `clip` for a Clip with constant bounds.

    By default it emits comparisons that also handle NaN bounds at run time, which no later pass recognizes as an
    activation.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    variants = {name: way for name, way in vars(onnx_frontend.Clip).items() if name.startswith("_impl_v")}
    members = {name: classmethod(_clip_converter(way.__func__)) for name, way in variants.items()}
    return _patch_members(onnx_frontend.Clip, members)


def _import_pad() -> contextlib.AbstractContextManager[None]:
    """Make TVM's importer emit `pad` for a Pad, and nothing for one without padding.

    By default it emits a kernel that no later pass recognizes, or fails.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    way = vars(onnx_frontend.Pad).get("_lower_pad")
    return _patch_members(onnx_frontend.Pad, {"_lower_pad": classmethod(_pad_converter(way.__func__))} if way else {})


def _pad_converter(original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(cls: Any, builder: Any, inputs: Any, attrs: Any, params: Any, modes: Any) -> Any:
        from tvm import relax

        mode = _PAD_MODES.get(attrs.get("mode", b"constant"))
        if mode is None:
            return original(cls, builder, inputs, attrs, params, modes)
        before, after, value = cls._parse_pads_and_axes(inputs, params)
        widths = [int(width) for pair in zip(before, after, strict=True) for width in pair]
        return relax.op.nn.pad(inputs[0], widths, mode, float(value)) if any(widths) else inputs[0]

    return convert


def _clip_converter(original: Callable[..., Any]) -> Callable[..., Any]:
    def convert(cls: Any, builder: Any, inputs: Any, attrs: Any, params: Any) -> Any:
        from tvm import relax

        given = [inputs[index] if index < len(inputs) else None for index in (1, 2)]
        bounds = []
        for bound, name, default in zip(given, ("min", "max"), (-np.inf, np.inf), strict=True):
            tensor = None if bound is None else constant_value(bound)
            if bound is not None and tensor is None:
                return original(cls, builder, inputs, attrs, params)
            value = float(attrs.get(name, default)) if tensor is None else float(tensor.numpy().reshape(-1)[0])
            bounds.append(default if np.isnan(value) else value)
        return relax.op.nn.relu(inputs[0]) if bounds == [0.0, np.inf] else relax.op.clip(inputs[0], *bounds)

    return convert


# What the checker says of valid files: an output may have any shape, and a deprecated operator still computes.
_ACCEPTED = ("Field 'shape' of 'type' is required but missing", "is deprecated in domain_version of")


def _check(path: Path, graph: Any, has_external_data: bool) -> None:
    """Check a model by the onnx package; ONNX Runtime checks it again. Raises any error of the checker."""
    import onnx

    try:
        onnx.checker.check_model(str(path) if has_external_data else graph)
    except onnx.checker.ValidationError as error:
        if not any(accepted in str(error) for accepted in _ACCEPTED):
            raise


def load(folder: Path, description: SourceDescription) -> OnnxModel:
    """Read and check an ONNX file. Raises ModelFileError when it is damaged."""
    import onnx

    path = folder / description.weights_file
    graph, outside = read_proto(path), external_files(path)
    try:
        _check(path, graph, bool(outside))
        if outside:
            graph = onnx.load(path)
    except Exception as error:  # onnx and its checker each have their own
        raise damaged_file_error(path, error) from error
    opset = max((entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < OLDEST_OPSET:
        raise ModelFileError(
            f"{path.name} uses opset {opset}", f"opset {OLDEST_OPSET} or later", "export it with a later one"
        )
    return OnnxModel(path, graph, description)
