"""Convert torch.export programs to Relax and ONNX, for PyTorch and for Keras on its torch backend."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tvmflow.frontends.pytorch.constant_values import fold_known_values
from tvmflow.frontends.pytorch.converters import Refusal, recording_converters
from tvmflow.frontends.pytorch.fixed_inputs import fix_places
from tvmflow.frontends.pytorch.float_ends import output_types, with_float_ends
from tvmflow.frontends.pytorch.recurrent import recurrent_converters
from tvmflow.frontends.pytorch.states import (
    States,
    changed_buffers,
    explicit_states,
    refuse_training,
    with_values,
)
from tvmflow.frontends.pytorch.weighted_layers import weighted_layers
from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    FixedSpec,
    Runner,
    State,
    TensorSpec,
    Variant,
    WeightedLayer,
    input_positions,
    open_names,
)
from tvmflow.frontends.torch_arrays import from_numpy, to_numpy
from tvmflow.frontends.torch_variants import torch_variants
from tvmflow.ir.relax.graph import reorder_inputs
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError, first_line


class ExportedModel:
    """A torch module in evaluation mode with inputs of fixed shapes, in the order of the description.

    order: the module's parameters as indices of the inputs, if the module has another order. kept: the states of a
    module that takes and returns them explicitly (`ExplicitStates`); they are its last inputs and outputs.
    """

    def __init__(
        self, module: Any, inputs: tuple[TensorSpec, ...], order: list[int] | None = None, kept: States | None = None
    ) -> None:
        self.module, self.kept = module, kept
        self.inputs = inputs if kept is None else (*inputs, *kept.specs)
        self.order = list(range(len(inputs))) if order is None else order
        self.order = [*self.order, *range(len(self.order), len(self.inputs))]
        self._program: Any = None

    @classmethod
    def of_program(
        cls,
        program: Any,
        inputs: tuple[TensorSpec, ...],
        what: str = "the program",
        fixed: Sequence[FixedSpec] = (),
        original: Callable[[], Any] | None = None,
    ) -> ExportedModel:
        """Wrap a torch.export program; a dynamic batch is bound to that of `inputs`. Buffers that it changes become
        states. original: returns the module that changes them, at the beginning of a stream; None: the program's.
        """
        names = list(program.graph_signature.user_inputs)
        places = input_positions(what, open_names(what, names, fixed), inputs)
        kinds = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
        _check_fixed(kinds, what, fixed)
        order = [places.index(place) for place in range(len(places))]
        given = [inputs[index] for index in order]
        stored = [getattr(kinds[name], "dtype", None) for name in open_names(what, names, fixed)]
        functional, explicit = explicit_states(program, what)
        module, kept = program.module() if explicit is None else explicit, None
        taken = names
        if explicit is not None:
            begun = original or (lambda: with_values(program.module(), explicit.changed, explicit.initial))

            def begin() -> Any:
                return with_float_ends(fix_places(begun(), names, fixed, kinds), given, stored, output_types(program))

            kept = States(explicit.changed, explicit.initial, [spec.name for spec in inputs], begin)
            given, stored = [*given, *kept.specs], [*stored, *(value.dtype for value in explicit.initial)]
            taken = [*names, *kept.names]
        module = fix_places(module, taken, fixed, kinds)
        ends = with_float_ends(module, given, stored, output_types(functional))
        model = cls(ends, inputs, order, kept)
        model._program = program if ends is module and not fixed and explicit is None else None
        return model

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs, the states last."""
        return self.inputs

    @property
    def states(self) -> tuple[State, ...]:
        """Return the states that the module itself keeps between runs."""
        return () if self.kept is None else self.kept.declared

    def first_values(self) -> list[Array]:
        """Return the states that a stream begins with."""
        return [] if self.kept is None else list(self.kept.initial)

    def of_original(self) -> ExportedModel:
        """Return the module that keeps its states itself, at the beginning of a stream."""
        assert self.kept is not None
        count = len(self.inputs) - len(self.states)
        return ExportedModel(self.kept.original(), self.inputs[:count], self.order[:count])

    def _arguments(self, inputs: Sequence[Array]) -> tuple[Any, ...]:
        """Return the inputs as tensors in the order of the module's parameters."""
        return tuple(from_numpy(inputs[index]) for index in self.order)

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

    def run(self, *inputs: Array) -> Arrays:
        return tuple(to_numpy(value) for _, value in self._outputs(inputs))

    def output_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._outputs([spec.zeros() for spec in self.inputs]))

    def _outputs(self, inputs: Sequence[Array]) -> list[tuple[str, Any]]:
        """Return name and tensor of every output; outputs of a dictionary are named by its keys."""
        with torch.no_grad():
            try:
                outputs = self.module(*self._arguments(inputs))
            except (
                RuntimeError,
                ValueError,
                IndexError,
                TypeError,
                AssertionError,
            ) as error:  # e.g. a guard of the program
                raise _wrong_shape(error, self.inputs) from error
        outputs, states = outputs if self.kept is not None else (outputs, ())
        leaves = torch.utils._pytree.tree_flatten_with_path(outputs)[0]
        if not leaves or not all(isinstance(value, torch.Tensor) for _, value in leaves):
            kinds = ", ".join(dict.fromkeys(type(value).__name__ for _, value in leaves)) or "nothing"
            raise ModelFileError(f"the model returns {kinds}", "a tensor, or a tuple, list or dictionary of tensors")
        names = [
            str(getattr(path[0], "key", f"output{index}")) if path else "output"
            for index, (path, _) in enumerate(leaves)
        ]
        unique = len(set(names)) == len(names)
        return [
            *(
                (name if unique else f"output{index}", leaf[1])
                for index, (name, leaf) in enumerate(zip(names, leaves, strict=True))
            ),
            *((state.output, value) for state, value in zip(self.states, states, strict=True)),
        ]

    def use_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return torch_variants(self.module, self._arguments(inputs), lambda: self.exported().module())

    def exported(self) -> Any:
        """Return the torch.export program, computed once."""
        if self._program is None:
            try:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    example = self._arguments([spec.zeros() for spec in self.inputs])
                    self._program = torch.export.export(self.module, example)
            except (RuntimeError, ValueError) as error:
                raise _wrong_shape(error, self.inputs) from error
        return self._program

    def to_relax(self, max_batch: int | None = None) -> Any:
        """Return the IRModule for the input shapes or, for one input, for any batch from 1 to max_batch."""
        from tvm.relax.frontend.torch import from_exported_program

        program = self.exported() if max_batch is None else self._any_batch(max_batch)
        refused: list[Refusal] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = fold_known_values(program)
                _check_stateless(program)
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
        if max_batch is not None:
            return module
        shapes = [self.inputs[index].shape for index in self.order]
        return reorder_inputs(
            _bind_sizes(module, shapes), [self.order.index(place) for place in range(len(self.order))]
        )

    def _any_batch(self, max_batch: int) -> Any:
        batch = torch.export.Dim("batch", min=1, max=max_batch)
        example = torch.zeros((2, *self.inputs[0].shape[1:]))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(self.module, (example,), dynamic_shapes=({0: batch},))

    def to_onnx(self, path: Path) -> None:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.exported(),
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


def _check_fixed(kinds: dict[str, Any], what: str, fixed: Sequence[FixedSpec]) -> None:
    for spec in fixed:
        kind = kinds[spec.name]
        sizes = [size if isinstance(size, int) else None for size in kind.shape]
        is_cast = spec.dtype == "float32" and kind.dtype.is_floating_point
        spec.check(what, spec.dtype if is_cast else str(kind.dtype).removeprefix("torch."), sizes)


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


def _bind_sizes(module: Any, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Replace the dynamic input sizes of a module by the numbers of `shapes`."""
    from tvm import relax

    from tvmflow.ir.tvm_compat import type_of

    open_sizes = {
        str(size.name): extent
        for parameter, shape in zip(module["main"].params, shapes, strict=True)
        for size, extent in zip(list(type_of(parameter).shape), shape, strict=True)
        if not hasattr(size, "value")
    }
    return relax.transform.BindSymbolicVars(open_sizes)(module) if open_sizes else module


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


def _wrong_shape(error: Exception, inputs: Sequence[TensorSpec]) -> ModelFileError:
    shown = ", ".join(f"{spec.dtype} {list(spec.shape)}" for spec in inputs)
    return ModelFileError(
        f"the model rejects inputs of {shown}: {first_line(error)}",
        "the shapes and dtypes of the model",
        "correct input.shape (or inputs) of the model in params.yaml",
    )
