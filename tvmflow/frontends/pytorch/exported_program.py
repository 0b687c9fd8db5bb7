"""Convert torch.export programs to Relax and ONNX, for PyTorch and for Keras on its torch backend."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tvmflow.frontends.pytorch.constant_values import fold_known_values
from tvmflow.frontends.pytorch.converters import Refusal, recording_converters
from tvmflow.frontends.pytorch.decomposing import FastProgram
from tvmflow.frontends.pytorch.recurrent import recurrent_converters
from tvmflow.frontends.pytorch.running import TorchModel
from tvmflow.frontends.pytorch.states import changed_buffers, refuse_training
from tvmflow.frontends.pytorch.weighted_layers import weighted_layers
from tvmflow.frontends.source_model import Array, Arrays, Runner, Variant, WeightedLayer
from tvmflow.frontends.torch_variants import torch_variants
from tvmflow.ir.relax.graph import reorder_inputs
from tvmflow.support.errors import UnsupportedOperatorError


class ExportedModel(TorchModel):
    """A torch module that can be converted."""

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        """Yield the value of every operator of the exported program, in order."""
        values: list[tuple[str, Array]] = []

        depending: set[Any] = set()  # on the inputs: constants are folded by any importer

        class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
            def run_node(self, node: Any) -> Any:
                value = super().run_node(node)
                if node.op == "placeholder" or depending.intersection(node.all_input_nodes):
                    depending.add(node)
                    if node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point():
                        values.append((f"{node.name} ({node.target})", value.detach().float().numpy().copy()))
                return value

        with torch.no_grad():
            Recorder(self.exported().module()).run(*self._arguments(inputs))
        yield from values

    def weighted_layers(self) -> Sequence[WeightedLayer]:
        return weighted_layers(self.exported())

    def other_roundings(self) -> Iterator[Runner]:
        yield _InFloat64(self)
        yield _WithoutOneDnn(self)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return torch_variants(self.module, self._arguments(inputs), lambda: self.exported().module())

    def prepare_conversion(self) -> None:
        self.exported()

    def to_relax(self) -> Any:
        from tvm.relax.frontend.torch import from_exported_program

        program = self.exported()
        refused: list[Refusal] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = fold_known_values(program)
                _check_stateless(program)
                _check_effects(program)
                module = from_exported_program(
                    program,
                    unwrap_unit_return_tuple=True,
                    custom_convert_map={**recording_converters(program, refused), **recurrent_converters(program)},
                    run_ep_decomposition=False,
                )
        except (AssertionError, KeyError, TypeError, ValueError, RuntimeError) as error:  # RuntimeError: also TVM's
            raise (_refused(refused) if refused else unsupported("PyTorch", str(error))) from error
        if refused:
            raise _refused(refused)
        return reorder_inputs(module, [self.order.index(place) for place in range(len(self.order))])

    def to_onnx(self, path: Path) -> None:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                FastProgram.of(self.exported()),
                (),
                path,
                input_names=[self.inputs[index].name for index in self.order],
                external_data=False,
                verbose=False,
            )


def _check_stateless(program: Any) -> None:
    """Raise UnsupportedOperatorError for a program that still changes buffers: a run would forget the changes."""
    changed = changed_buffers(program)
    refuse_training(changed, "the model")
    if changed:
        raise UnsupportedOperatorError(
            f"the model keeps values between runs: {', '.join(changed)[:300]}",
            "a model whose outputs depend on its inputs only",
            "export it with these values as inputs and outputs; state: in params.yaml carries them",
        )


def _check_effects(program: Any) -> None:
    """Raise UnsupportedOperatorError for operators that do more than compute: PyTorch orders them by tokens."""
    named = {str(n.args[1]) for n in program.graph_module.graph.nodes if getattr(n.target, "__name__", "") == _EFFECTS}
    if named:
        raise UnsupportedOperatorError(
            f"the PyTorch importer does not support {', '.join(sorted(named))[:300]}: effects beside results",
            "operators that only compute, of matrices of at most 64 rows for factorizations",
            "remove the checks or prints of the model, or export it in another format",
        )


class _InFloat64:
    """A model in float64. A module with fixed float32 inside cannot run so: ModelFileError."""

    def __init__(self, model: ExportedModel) -> None:
        self.model = model
        self.module: Any = None

    def run(self, *inputs: Array) -> Arrays:
        if self.module is None:
            self.module = copy.deepcopy(self.model.module).double()
        exact = ExportedModel(self.module, self.model.inputs, self.model.order)
        exact.kept = self.model.kept
        return exact.run(*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs))


@dataclass(frozen=True)
class _WithoutOneDnn:
    """A model computed by PyTorch's own kernels only."""

    model: ExportedModel

    def run(self, *inputs: Array) -> Arrays:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about GPUs
            with torch.backends.mkldnn.flags(enabled=False):
                return self.model.run(*inputs)


_EFFECTS = "with_effects"
_MOST_NAMED = 20  # operators in one message


def _refused(refused: Sequence[Refusal]) -> UnsupportedOperatorError:
    """Return an error that names all operators that cannot be converted."""
    shown = [str(one) for one in refused[:_MOST_NAMED]]
    more = len(refused) - len(shown)
    return UnsupportedOperatorError(
        "the PyTorch importer does not support " + "; ".join(shown) + (f"; and {more} more" if more else ""),
        "a model of supported operators",
        "replace these operators in the model, or export the model in another format",
    )


def unsupported(framework: str, message: str) -> UnsupportedOperatorError:
    """Return an error with the operators of an importer's message."""
    listed = message.rpartition(":")[2] if "not supported" in message else message
    names = re.findall(r"['\"]?([A-Za-z_][\w.]*\.default|[a-z_]+\.[\w.]+|[A-Z]\w+)['\"]?", listed)
    shown = ", ".join(dict.fromkeys(n for n in names if n not in ("Unsupported",)))
    return UnsupportedOperatorError(
        f"TVM's {framework} importer does not support: {shown}"
        if shown
        else f"TVM's {framework} importer failed: {message.strip()[:200]}",
        "a model of supported operators",
        "replace that operator in the model, or export the model in another format",
    )
