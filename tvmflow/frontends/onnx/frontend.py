"""Import ONNX models. The reference for outputs and latency is ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.files import damaged_file_error, external_files, read_proto
from tvmflow.frontends.source_model import Array, Arrays, PreparedRun, SourceDescription, Variant, input_positions
from tvmflow.support.errors import ModelFileError, first_line

OLDEST_OPSET = 7


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

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        import onnx
        import onnxruntime

        graph = onnx.shape_inference.infer_shapes(self.graph)
        kinds = {value.name: value for value in graph.graph.value_info}
        outputs = self.output_names()
        names = [name for node in graph.graph.node for name in node.output if name in kinds]
        wanted = [name for name in names if kinds[name].type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
        graph.graph.output.extend(kinds[name] for name in wanted if name not in outputs)
        session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        yield from zip(wanted, session.run(wanted, self._feed(inputs)), strict=True)

    def use_threads(self, threads: int) -> None:
        self.session = open_session(self.path, threads)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return session_variants(self.session, self._feed(inputs))

    def to_relax(self) -> Any:
        from tvmflow.frontends.onnx.importer import import_model

        return import_model(self.graph, [replace(spec, name=name) for name, spec in self.inputs.items()])

    def to_onnx(self, path: Path) -> None:
        shutil.copyfile(self.path, path)
        for name, file in external_files(self.path).items():
            shutil.copyfile(file, path.parent / name)


def rejected_inputs_error(inputs: Sequence[Array], error: Exception) -> ModelFileError:
    """Return the error of a model that rejects inputs of these shapes."""
    shown = ", ".join(f"{x.dtype} {list(x.shape)}" for x in inputs)
    return ModelFileError(
        f"the model rejects inputs of {shown}: {first_line(error)}",
        "the shapes and dtypes of the model",
        "correct input.shape (or inputs) of the model in params.yaml",
    )


def open_session(path: Path, threads: int = 0) -> Any:
    """Return an ONNX Runtime session of a file on `threads` threads; 0: the default. Raises ModelFileError."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

    def opened(is_exact: bool) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        if is_exact:  # without VNNI its sums of int8 saturate at 16 bits
            options.add_session_config_entry("session.x64quantprecision", "1")
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    try:
        try:
            return opened(is_exact=True)
        except NoKernelError:  # of QGemm and others, which then have no kernel
            return opened(is_exact=False)
    except Exception as error:  # its exceptions share no public base
        raise damaged_file_error(path, error) from error


def session_variants(session: Any, feed: Mapping[str, Array]) -> tuple[Variant, ...]:
    """Return the execution variants of a session: inputs bound once, or fed in each run."""

    def bound() -> PreparedRun:
        binding = session.io_binding()
        for name, x in feed.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(x))
        for output in session.get_outputs():
            binding.bind_output(output.name)
        return PreparedRun(
            lambda: session.run_with_iobinding(binding), lambda _: tuple(map(np.asarray, binding.copy_outputs_to_cpu()))
        )

    def fed() -> PreparedRun:
        return PreparedRun(lambda: session.run(None, dict(feed)), lambda outputs: tuple(map(np.asarray, outputs)))

    return Variant("feed", fed), Variant("I/O binding", bound)


def load(folder: Path, description: SourceDescription) -> OnnxModel:
    """Read and check an ONNX file. Raises ModelFileError when it is damaged."""
    import onnx

    path = folder / description.weights_file
    graph, outside = read_proto(path), external_files(path)
    try:
        onnx.checker.check_model(str(path) if outside else graph)
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
