"""Build ONNX models of one recurrent layer, for tests of import, kernels and libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, SourceModel, TensorSpec

Array = np.ndarray[Any, Any]
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class RecurrentCase:
    """A layer: its node, its sizes, and which inputs it has.

    states: of h and c; lengths: none, full (a constant), constant, or real (an input).
    """

    operator: str
    times: int = 5
    samples: int = 2
    features: int = 6
    hidden: int = 9
    direction: str = "forward"
    layout: int = 0
    states: tuple[str, ...] = ()
    lengths: str = "none"
    has_bias: bool = True
    has_peephole: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def model(self, layout: int | None = None) -> Any:
        """Return the ModelProto, of another layout if one is given."""
        from onnx import TensorProto, helper, numpy_helper

        layout = self.layout if layout is None else layout
        names = ["X", "W", "R", *("B" if self.has_bias else "",), "lengths" if self.lengths != "none" else ""]
        names += [name if name in self.states else "" for name in self._states]
        names += ["P"] if self.has_peephole else []
        while not names[-1]:
            names.pop()
        attributes = {"hidden_size": self.hidden, "direction": self.direction, **self.attributes}
        attributes |= {"layout": 1} if layout else {}
        made = ["Y", "Y_h", "Y_c"][: 1 + len(self._states)]
        node = helper.make_node(self.operator, names, made, **attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.inputs(layout).items()
        ]
        ranks = {"Y": 4, "Y_h": 3, "Y_c": 3}
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}{at}" for at in range(ranks[name])])
            for name in made
        ]
        constants = [numpy_helper.from_array(v, k) for k, v in self._constants().items() if k in names]
        graph = helper.make_graph([node], "g", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def inputs(self, layout: int | None = None) -> dict[str, Array]:
        generator, batch_first = np.random.default_rng(1), self.layout if layout is None else layout

        def values(*shape: int) -> Array:
            array = generator.standard_normal(shape, dtype=np.float32)
            return np.ascontiguousarray(array.swapaxes(0, 1)) if batch_first else array

        found = {"X": values(self.times, self.samples, self.features)}
        found |= {name: values(self.directions, self.samples, self.hidden) for name in self.states}
        if self.lengths == "real":
            found["lengths"] = np.arange(self.samples, dtype=np.int32) % self.times + 1
        return found

    def expected(self) -> list[Array]:
        """Return ONNX Runtime's outputs, which has no layout 1."""
        import onnxruntime

        model = self.model(layout=0).SerializeToString()
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        outputs, *last = session.run(None, self.inputs(layout=0))
        if self.layout:
            return [outputs.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in last)]
        return [outputs, *last]

    def load(self, folder: Path) -> SourceModel:
        import onnx

        onnx.save(self.model(), folder / "model.onnx")
        specs = tuple(TensorSpec(name, value.shape, str(value.dtype)) for name, value in self.inputs().items())
        return load_source(folder, SourceDescription("onnx", None, "model.onnx", specs))

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def _states(self) -> tuple[str, ...]:
        return ("h", "c") if self.operator == "LSTM" else ("h",)

    def _constants(self) -> dict[str, Array]:
        generator, gates = np.random.default_rng(0), _GATES[self.operator]
        shapes = {
            "W": (gates * self.hidden, self.features),
            "R": (gates * self.hidden, self.hidden),
            "B": (2 * gates * self.hidden,),
            "P": (3 * self.hidden,),
        }
        found = {
            name: generator.uniform(-0.7, 0.7, (self.directions, *shape)).astype(np.float32)
            for name, shape in shapes.items()
        }
        lengths = np.full(self.samples, self.times) if self.lengths == "full" else np.arange(self.samples) + 1
        return {**found, **({"lengths": lengths.astype(np.int32)} if self.lengths in ("full", "constant") else {})}
