"""Run PyTorch modules, and programs of torch.export, in PyTorch: what a model computes and keeps between runs.

Knows nothing of Relax and of converters: `fetch` runs the samples of models with states by this file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch

from tvmflow.frontends.pytorch.fixed_inputs import fix_places
from tvmflow.frontends.pytorch.float_ends import output_types, with_float_ends
from tvmflow.frontends.pytorch.states import States, explicit_states, with_values
from tvmflow.frontends.source_model import Array, Arrays, FixedSpec, State, TensorSpec, input_positions, open_names
from tvmflow.frontends.torch_arrays import from_numpy, to_numpy
from tvmflow.support.errors import ModelFileError, first_line


class TorchModel:
    """A torch module in evaluation mode with inputs of fixed shapes, in the order of the description.

    order: the module's parameters as indices of the inputs, if the module has another order. kept: the states of a
    module that takes and returns them explicitly (`ExplicitStates`); they are its last inputs and outputs.
    """

    runs_in_forks = True

    def __init__(
        self, module: Any, inputs: tuple[TensorSpec, ...], order: list[int] | None = None, kept: States | None = None
    ) -> None:
        self.module, self.kept = module, kept
        self.inputs = inputs if kept is None else (*inputs, *kept.specs)
        self.order = list(range(len(inputs))) if order is None else order
        self.order = [*self.order, *range(len(self.order), len(self.inputs))]
        self._program: Any = None
        self._names: tuple[str, ...] | None = None

    @classmethod
    def of_program(
        cls,
        program: Any,
        inputs: tuple[TensorSpec, ...],
        what: str = "the program",
        fixed: Sequence[FixedSpec] = (),
        original: Callable[[], Any] | None = None,
    ) -> Self:
        """Wrap a torch.export program; open sizes are bound to those of `inputs`. Buffers that it changes become
        states. original: returns the module that changes them, at the beginning of a stream; None: the program's.
        """
        names = list(program.graph_signature.user_inputs)
        places = input_positions(what, open_names(what, names, fixed), inputs)
        kinds = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
        _check_fixed(kinds, what, fixed)
        order = [places.index(place) for place in range(len(places))]
        given = [inputs[index] for index in order]
        stored = [getattr(kinds[name], "dtype", None) for name in open_names(what, names, fixed)]
        # Open sizes would reach every converter, so such a program is exported again for the sizes of the inputs.
        if has_open_sizes := _has_open_sizes(program):
            _detach_by_value(program)
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
        is_final = ends is module and not fixed and explicit is None and not has_open_sizes
        model._program = program if is_final else None
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

    def of_original(self) -> Self:
        """Return the module that keeps its states itself, at the beginning of a stream."""
        assert self.kept is not None
        count = len(self.inputs) - len(self.states)
        return type(self)(self.kept.original(), self.inputs[:count], self.order[:count])

    def _arguments(self, inputs: Sequence[Array]) -> tuple[Any, ...]:
        """Return the inputs as tensors in the order of the module's parameters."""
        return tuple(from_numpy(inputs[index]) for index in self.order)

    def run(self, *inputs: Array) -> Arrays:
        return tuple(to_numpy(value) for _, value in self._outputs(inputs))

    def output_names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(name for name, _ in self._outputs([spec.zeros() for spec in self.inputs]))
        return self._names

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


def _has_open_sizes(program: Any) -> bool:
    shapes = [getattr(node.meta.get("val"), "shape", ()) for node in program.graph.nodes]
    return any(not isinstance(extent, int) for shape in shapes for extent in shape)


def _detach_by_value(program: Any) -> None:
    """Replace what torch.export writes for a constant of the code, and does not take itself."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:
            node.target = torch.ops.aten.detach.default
    program.graph_module.recompile()


def _check_fixed(kinds: dict[str, Any], what: str, fixed: Sequence[FixedSpec]) -> None:
    for spec in fixed:
        kind = kinds[spec.name]
        sizes = [size if isinstance(size, int) else None for size in kind.shape]
        is_cast = spec.dtype == "float32" and kind.dtype.is_floating_point
        spec.check(what, spec.dtype if is_cast else str(kind.dtype).removeprefix("torch."), sizes)


def _wrong_shape(error: Exception, inputs: Sequence[TensorSpec]) -> ModelFileError:
    shown = ", ".join(f"{spec.dtype} {list(spec.shape)}" for spec in inputs)
    return ModelFileError(
        f"the model rejects inputs of {shown}: {first_line(error)}",
        "the shapes and dtypes of the model",
        "correct input.shape (or inputs) of the model in params.yaml",
    )


Model = TypeVar("Model", bound=TorchModel)
