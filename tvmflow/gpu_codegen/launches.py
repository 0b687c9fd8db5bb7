"""Extract the launches of each kernel from TVM's lowered module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import tvm
from tvm import tirx
from tvm.tirx import compilation_pipeline
from tvm_ffi import structural_walk

from tvmflow.gpu_codegen.memory import aliased_buffer
from tvmflow.ir.tir.workloads import offloaded
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import Call, Expr, IRModule, PrimFunc

Three = tuple[int, int, int]
_AXES = {
    f"{kind}.{axis}": (kind == "threadIdx", number)
    for kind in ("blockIdx", "threadIdx")
    for number, axis in enumerate("xyz")
}
_BY_GENERATORS = ["s_tir.LowerThreadAllreduce"]  # TVM's passes of what our generators have words for


@dataclass(frozen=True)
class Argument:
    """An argument of a launch: parameter `index` of the kernel, or its temporary memory by the order of allocation."""

    kind: Literal["parameter", "own"]
    index: int


@dataclass(frozen=True)
class Launch:
    """A launch of a device function. arguments: in the function's order; written: which of them it writes; groups,
    group_size: x, y, z.

    function: TVM's lowered PrimFunc.
    """

    name: str
    arguments: tuple[Argument, ...]
    written: tuple[bool, ...]
    groups: Three
    group_size: Three
    function: PrimFunc = field(repr=False)

    @property
    def threads(self) -> int:
        return math.prod(self.group_size)


@dataclass(frozen=True)
class DeviceKernel:
    """All launches of a kernel. own: (shape, dtype) of temporary memory that its launches share."""

    launches: tuple[Launch, ...]
    own: tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class DeviceProgram:
    """The kernels of a network by name."""

    kernels: Mapping[str, DeviceKernel]

    @property
    def launches(self) -> dict[str, Launch]:
        """Return all launches by the names of their functions."""
        return {launch.name: launch for kernel in self.kernels.values() for launch in kernel.launches}


def lower_for_device(mod: IRModule, target: Any) -> DeviceProgram:
    """Lower a module of kernels whose loops are bound to workgroups and threads, without its main function.

    Raises StageError for an unbound loop.
    """
    from tvmflow.ir.tir.flatten_buffer_fix import lower_with_fixed_indices

    kernels = {
        variable.name_hint: function
        for variable, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc) and not offloaded(function)
    }
    plain = tvm.IRModule({name: function.with_attr("global_symbol", name) for name, function in kernels.items()})
    lower, *_ = compilation_pipeline.get_tir_pipeline("default")
    with target, tvm.transform.PassContext(disabled_pass=_BY_GENERATORS):
        lowered = lower_with_fixed_indices(lower)(tirx.transform.BindTarget(target)(plain))
    functions = {
        variable.name_hint: function
        for variable, function in lowered.functions.items()
        if int(function.attrs.get("calling_conv", 0)) == 2
    }
    return DeviceProgram({name: _device_kernel(name, lowered[name], functions) for name in kernels})


def _device_kernel(name: str, host: Any, functions: Mapping[str, Any]) -> DeviceKernel:
    places: dict[Any, Argument] = {}
    own: list[tuple[tuple[int, ...], str]] = []
    calls: list[Any] = []

    def declare(statement: Any) -> None:
        seen = aliased_buffer(statement.data)
        places[statement.buffer] = (
            Argument("parameter", sum(1 for place in places.values() if place.kind == "parameter"))
            if seen is None
            else places[seen]
        )

    def allocate(statement: Any) -> None:
        buffer = statement.buffer
        places[buffer] = Argument("own", len(own))
        dtype, _, lanes = str(buffer.dtype).partition("x")  # as float32x4
        own.append(((*(int(extent) for extent in buffer.shape), int(lanes or 1)), dtype))

    def call(expression: Expr) -> None:
        if _operator(expression) == "tirx.call_ffi_kernel":
            calls.append(expression)

    callbacks = ((tirx.DeclBuffer, declare), (tirx.AllocBuffer, allocate), (tvm.ir.Call, call))
    structural_walk(host.body, callbacks, order="pre")
    if not calls:
        raise StageError(f"kernel {name} has no loop over workgroups", "a schedule for a GPU")
    return DeviceKernel(tuple(_launch(made, places, functions) for made in calls), tuple(own))


def _operator(expression: Expr) -> str:
    return str(getattr(expression.op, "name", ""))


def _launch(call: Call, places: Mapping[Any, Argument], functions: Mapping[str, Any]) -> Launch:
    name = str(call.args[0].value)
    tags = [str(tag) for tag in call.attrs.launch_params]
    given = list(call.args[1 : len(call.args) - len(tags)])
    sizes = call.args[len(call.args) - len(tags) :]
    groups, group_size = [1, 1, 1], [1, 1, 1]
    for tag, size in zip(tags, sizes, strict=True):
        if tag not in _AXES or not hasattr(size, "value"):
            raise StageError(f"kernel {name} is launched over {tag} = {size}", "groups and threads of constant number")
        is_thread, axis = _AXES[tag]
        (group_size if is_thread else groups)[axis] = int(size.value)
    function = functions[name]
    written = set(_written_parameters(function))
    arguments = []
    for argument in given:
        buffer = aliased_buffer(argument)
        if buffer is None or buffer not in places:
            raise StageError(f"kernel {name} is given {str(argument)[:80]}", "tensors alone")
        arguments.append(places[buffer])
    flags = tuple(parameter.name in written for parameter in function.params)
    return Launch(name, tuple(arguments), flags, _three(groups), _three(group_size), function)


def _three(sizes: list[int]) -> Three:
    x, y, z = sizes
    return x, y, z


def _written_parameters(function: PrimFunc) -> Iterable[str]:
    """Return the names of the parameters whose memory a device function writes."""
    memory: dict[Any, str] = {}
    stored: list[Any] = []
    structural_walk(
        function.body,
        (
            (tirx.DeclBuffer, lambda declared: memory.update({declared.buffer: getattr(declared.data, "name", "")})),
            (tirx.BufferStore, lambda store: stored.append(store.buffer)),
        ),
        order="pre",
    )
    return [memory[buffer] for buffer in stored if buffer in memory]
