"""Import MXNet models (-symbol.json and -0000.params) without MXNet.

The reference outputs come from MXNet 1.9.1 in a tool environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.mxnet.files import Node, Symbol, read_params, read_symbol
from tvmflow.frontends.mxnet.operands import Operands
from tvmflow.frontends.mxnet.operators import OPERATORS
from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    NoOnnxError,
    Runner,
    SourceDescription,
    Variant,
    WeightedLayer,
)
from tvmflow.frontends.tool_variants import tool_variants
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError, last_line
from tvmflow.toolchain.environments import ToolProcess

PARAMS_SUFFIX = "-0000.params"
SYMBOL_SUFFIX = "-symbol.json"
_WEIGHTED = ("Convolution", "Deconvolution", "FullyConnected")


class MxnetModel:
    """A symbol with one data input; parameters of other types are converted to float32."""

    runs_in_forks = False  # MXNet is a process of its own

    def __init__(self, folder: Path, description: SourceDescription) -> None:
        self.symbol_path = folder / description.weights_file
        self.params_path = folder / description.weights_file.replace(SYMBOL_SUFFIX, PARAMS_SUFFIX)
        self.symbol, self.params = read_symbol(self.symbol_path), read_params(self.params_path)
        self.shape = description.only_input.shape
        self.data_name = _data_input(self.symbol, self.params)
        self._process: ToolProcess | None = None
        self._threads: int | None = None

    def run(self, *inputs: Array) -> Arrays:
        return tuple(output for _, output in self._oracle().arrays("run", inputs[0]))

    def output_names(self) -> tuple[str, ...]:
        heads = self.symbol.heads
        if len(heads) == 1:
            return ("output",)
        names = [self.symbol.nodes[index].name for index, _ in heads]
        return tuple(
            f"{name}_{output}" if names.count(name) > 1 else name
            for name, (_, output) in zip(names, heads, strict=True)
        )

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        yield from self._oracle().arrays("layers", inputs[0])

    def weighted_layers(self) -> Sequence[WeightedLayer]:
        found = []
        for node in self.symbol.nodes:
            names = (self.symbol.nodes[index].name for index, _ in node.inputs) if node.op in _WEIGHTED else ()
            sizes = [self.params[name].size for name in names if name in self.params and self.params[name].ndim > 1]
            if sizes:
                found.append(WeightedLayer(node.name, node.op, sizes[0], node.name))
        return found

    def other_roundings(self) -> Iterator[Runner]:
        yield from ()

    def use_threads(self, threads: int) -> None:
        self._process, self._threads = None, threads

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return tool_variants(self._oracle(), ("executor", "hybridized"), inputs[0])

    def prepare_conversion(self) -> None:
        pass

    def to_relax(self) -> Any:
        return import_symbol(self.symbol, self.params, self.data_name, self.shape)

    def to_onnx(self, path: Path) -> None:
        raise NoOnnxError(f"no exporter writes {path.name} from MXNet models")

    def _oracle(self) -> ToolProcess:
        if self._process is None:
            arguments = [str(self.symbol_path), str(self.params_path), self.data_name]
            self._process = ToolProcess("mxnet", arguments, self._threads)
        return self._process


def load(folder: Path, description: SourceDescription) -> MxnetModel:
    """Read and check both files. Raises ModelFileError."""
    return MxnetModel(folder, description)


def _data_input(symbol: Symbol, params: dict[str, Array]) -> str:
    """Return the name of the one input that is neither a parameter nor a label."""
    free = [node.name for node in symbol.nodes if node.op == "null" and node.name not in params]
    names = [name for name in free if not name.endswith("label")] or free
    if len(names) != 1:
        raise ModelFileError(f"the symbol has the inputs {names} without parameters", "one: the data")
    return names[0]


def import_symbol(symbol: Symbol, params: dict[str, Array], data_name: str, shape: tuple[int, ...]) -> Any:
    """Return the IRModule of a symbol for one input shape, float32. Raises UnsupportedOperatorError, ModelFileError."""
    missing = sorted({node.op for node in symbol.nodes if node.op != "null" and node.op not in OPERATORS})
    if missing:
        raise UnsupportedOperatorError(
            f"tvmflow's MXNet importer does not support: {', '.join(missing)}",
            "a model of supported operators",
            "replace that operator in the model, or export the model to ONNX",
        )
    return _Importer(symbol, params, data_name, shape).module()


class _Importer:
    def __init__(self, symbol: Symbol, params: dict[str, Array], data_name: str, shape: tuple[int, ...]) -> None:
        self.symbol, self.params, self.data_name = symbol, params, data_name
        self.parameter = relax.Var("data", relax.TensorType(shape, "float32"))
        self.builder = relax.BlockBuilder()
        self.values: dict[int, list[Any]] = {}  # the outputs of each node
        self.arrays: dict[int, Array] = {}

    def module(self) -> Any:
        with self.builder.function("main", [self.parameter]):
            with self.builder.dataflow():
                for index, node in enumerate(self.symbol.nodes):
                    self._node(index, node)
                heads = [self._output(*head) for head in self.symbol.heads]
                output = self.builder.emit_output(heads[0] if len(heads) == 1 else relax.Tuple(heads))
            self.builder.emit_func_output(output)
        return self.builder.get()

    def _node(self, index: int, node: Node) -> None:
        if node.op == "null":
            if node.name == self.data_name:
                self.values[index] = [self.parameter]
            elif node.name in self.params:
                self.arrays[index] = self.params[node.name].astype(np.float32)
                self.values[index] = [relax.const(self.arrays[index], "float32")]
            return
        used = [source for source in node.inputs if source[0] in self.values]
        operands = Operands(
            node.name,
            node.op,
            tuple(self._output(*source) for source in used),
            tuple(self.arrays.get(i) for i, _ in used),
            node.attrs,
            self.builder,
        )
        try:
            made = OPERATORS[node.op](operands)
            self.values[index] = [
                self.builder.emit(one, node.name) for one in (made if isinstance(made, list) else [made])
            ]
        except (UnsupportedOperatorError, ModelFileError):
            raise
        except Exception as error:  # TVM's shape checks raise arbitrary errors
            raise ModelFileError(
                f"{node.op} {node.name!r} does not match its inputs: {last_line(error)}",
                "a graph and parameters of one model",
                "correct input.shape in params.yaml, or use both files of the same export",
            ) from error

    def _output(self, index: int, output: int) -> Any:
        if output >= len(self.values[index]):
            node = self.symbol.nodes[index]
            raise UnsupportedOperatorError(
                f"the model uses output {output} of {node.op} {node.name!r}",
                "its first output",
                "replace that operator in the model, or export the model to ONNX",
            )
        return self.values[index][output]
