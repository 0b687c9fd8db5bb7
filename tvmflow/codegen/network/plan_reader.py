"""Read the memory plan of a network from TVM's lowered Relax functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.backends.device_program import DeviceProgram
from tvmflow.codegen.network.plan import Memory, Place, PlacedProgram, Plan, Step, Value, launch_step
from tvmflow.codegen.network.plan_check import check
from tvmflow.codegen.network.textures import Texture, choose_textures
from tvmflow.gpu_codegen.clml_operators import ClmlOperator
from tvmflow.gpu_codegen.executable import GpuExecutable
from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.loops import parallel_loops
from tvmflow.ir.tir.workloads import offloaded
from tvmflow.ir.tvm_compat import IRModule, constant_value, type_of
from tvmflow.passes.kernel.allocate_tensors import ALIGNMENT, allocate_tensors
from tvmflow.support.errors import StageError

ProgramOf = Callable[[str, bytes], DeviceProgram]
_VIEWS = ("relax.reshape", "relax.memory.ensure_zero_offset")
_NOTHING = ("relax.memory.kill_tensor", "relax.memory.kill_storage")


def plan_of(mod: IRModule, program_of: ProgramOf, gpu: GpuExecutable | None = None, alignment: int = ALIGNMENT) -> Plan:
    """Return the plan of a module of scheduled kernels. Raises StageError for calls of anything but kernels or an
    accelerator.

    program_of: of the backend; gpu: the executable that runs the network; alignment: of all values, bytes.
    """
    mod = allocate_tensors(mod)
    reader = _Reader(mod, program_of, gpu, alignment)
    plan = reader.read(mod["main"])
    check(plan)
    return plan


@dataclass
class _Memory:
    place: Place
    size: int
    index: int = 0
    first: int = -1  # step that writes it first
    last: int = -1  # step that reads it last


class _Reader:
    def __init__(self, mod: IRModule, program_of: ProgramOf, gpu: GpuExecutable | None, alignment: int) -> None:
        self.program_of, self.gpu, self.alignment = program_of, gpu, alignment
        self.textures: dict[int, Texture] = {}
        self.kernels = {name.name_hint for name in mod.functions if name.name_hint != "main"}
        self.mod = mod
        self.memories: list[_Memory] = []
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.constants: list[np.ndarray[Any, Any]] = []
        self.known: dict[Any, Any] = {}  # a variable -> index of a value, a tuple of them, or the memory of a storage
        self.by_bytes: dict[tuple[str, bytes], int] = {}
        self.programs: dict[bytes, tuple[int, PlacedProgram]] = {}

    def read(self, main: Any) -> Plan:
        inputs = []
        for at, parameter in enumerate(main.params):
            self.known[parameter] = self._add_tensor(
                self._add_memory("input", type_of(parameter), at), 0, type_of(parameter)
            )
            inputs.append(self.known[parameter])
        for block in main.body.blocks:
            for binding in block.bindings:
                self.known[binding.var] = self._value(binding.value)
        found = self._look_up(main.body.body)
        outputs, copies = self._outputs(found if isinstance(found, tuple) else (found,))
        if self.gpu:
            sizes = [memory.size for memory in self.memories]
            allowed = self.gpu.may_be_images and {
                **self.gpu.may_be_images,
                **{step.kernel: (False,) * len(step.arguments) for step in self.steps if step.layer},
            }
            self.textures = choose_textures(sizes, self.values, self.steps, copies, allowed)
        memories = self._assign_offsets()
        programs = tuple(program for _, program in self.programs.values())
        return Plan(
            memories,
            tuple(self.values),
            tuple(self.steps),
            tuple(inputs),
            outputs,
            copies,
            tuple(self.constants),
            programs,
            self.textures,
        )

    # -- values --

    def _add_memory(self, place: Place, held: Any, index: int = 0) -> int:
        size = held if isinstance(held, int) else bytes_of(held.shape, held.dtype)
        self.memories.append(_Memory(place, size, index))
        return len(self.memories) - 1

    def _add_tensor(self, memory: int, offset: int, held: Any) -> int:
        self.values.append(Value(memory, offset, tuple(int(x) for x in held.shape), str(held.dtype)))
        return len(self.values) - 1

    def _look_up(self, expression: Any) -> Any:
        if isinstance(expression, relax.Tuple):
            return tuple(self._look_up(part) for part in expression.fields)
        constant = constant_value(expression)
        return self.known[expression] if constant is None else self._constant(constant.numpy(), type_of(expression))

    def _constant(self, array: np.ndarray[Any, Any], held: Any) -> int:
        array = np.asarray(array, order="C")
        key = (f"{held.dtype}{array.shape}", array.tobytes())
        if key not in self.by_bytes:
            memory = self._add_memory("constant", array.nbytes, len(self.constants))
            self.constants.append(array)
            self.by_bytes[key] = self._add_tensor(memory, 0, held)
        return self.by_bytes[key]

    def _value(self, value: Any) -> Any:
        if isinstance(value, (relax.Var, relax.Tuple)) or constant_value(value) is not None:
            return self._look_up(value)
        if isinstance(value, relax.TupleGetItem):
            return self._look_up(value.tuple_value)[int(value.index)]
        if isinstance(value, relax.Call):
            name = str(getattr(value.op, "name", ""))
            if name == "relax.builtin.alloc_tensor":
                return self._add_tensor(self._add_memory("arena", type_of(value)), 0, type_of(value))
            if name == "relax.memory.alloc_storage":
                return self._add_memory("arena", int(value.args[0].values[0]))
            if name == "relax.memory.alloc_tensor":
                offset = getattr(value.args[1], "value", value.args[1])  # a PrimValue before TVM 0.27
                return self._add_tensor(self.known[value.args[0]], int(offset), type_of(value))
            if name in _VIEWS:
                seen = self.values[self._look_up(value.args[0])]
                return self._add_tensor(seen.memory, seen.offset, type_of(value))
            if name in _NOTHING:
                return None
            if getattr(value.op, "name_hint", "") in self.kernels:
                name = value.op.name_hint
                return self._add_call(name, value.args) if self.gpu is None else self._add_launches(name, value.args)
            if isinstance(value.op, relax.ExternFunc):
                function = str(value.op.global_symbol)
                at = self._add_program(function, value.args)
                return self._add_call(f"{function} {at}", value.args[1:], at)
        raise StageError(
            f"the lowered network has {str(value)[:200]!r}",
            "calls of kernels and their memory alone",
            "a library without TVM cannot be made of it yet; library.so, which needs TVM, can",
        )

    def _add_program(self, function: str, arguments: Any) -> int:
        """Return the index of a program; add its image and instructions as constants."""
        constant = constant_value(arguments[0]) if len(arguments) else None
        blob = bytes(constant.numpy().tobytes()) if constant is not None else b""
        if blob not in self.programs:
            program = self.program_of(function, blob)
            places = []
            for array in (program.image, program.code):
                places.append(self._add_memory("constant", array.nbytes, len(self.constants)))
                self.constants.append(array)
            self.programs[blob] = (len(self.programs), PlacedProgram(program, *places))
        return self.programs[blob][0]

    def _check_sizes(self, name: str, at: int, arguments: tuple[int, ...]) -> None:
        """Raise StageError if the arguments of a program do not have the sizes of its inputs and outputs."""
        program = next(placed.program for number, placed in self.programs.values() if number == at)
        wanted = [span.size for span in (*program.inputs, *program.outputs)]
        sizes = [self.values[argument].size for argument in arguments]
        if sizes != wanted:
            raise StageError(f"{name} is called with values of {sizes} bytes", f"{wanted}, as its program has them")

    def _add_call(self, name: str, given: Any, program: int | None = None) -> None:
        arguments = tuple(self._look_up(argument) for argument in given)
        written = 0
        for at in reversed(arguments):  # outputs are last, in memory that was not written before
            memory = self.memories[self.values[at].memory]
            if memory.place != "arena" or self._was_written(at):
                break
            written += 1
        if program is not None:
            self._check_sizes(name, program, arguments)
        if not written:
            raise StageError(f"kernel {name} writes no new memory", "an output of its own")
        loops = parallel_loops(self.mod[name]) if program is None else ()
        self._add_step(Step(name, arguments, written, program, loops=loops))

    def _add_launches(self, name: str, given: Any) -> None:
        """Add a step for each launch of a kernel, with its temporary memory."""
        assert self.gpu is not None
        if layer := offloaded(self.mod[name]):
            self._add_layer(name, ClmlOperator.from_json(layer), given)
            return
        kernel, values = self.gpu.program.kernels[name], [self._look_up(argument) for argument in given]
        own = [self._add_own_memory(shape, dtype) for shape, dtype in kernel.own]
        for launch in kernel.launches:
            self._add_step(launch_step(launch, lambda one: (values if one.kind == "parameter" else own)[one.index]))

    def _add_layer(self, name: str, layer: ClmlOperator, given: Any) -> None:
        """Add the step of a layer of CLML: its inputs, constants in CLML's form, its output."""
        values = [self._look_up(argument) for argument in given if constant_value(argument) is None]
        dtype = self.values[values[0]].dtype
        arrays = [constant.numpy() for argument in given if (constant := constant_value(argument)) is not None]
        held = [self._constant(array, relax.TensorType(array.shape, dtype)) for array in layer.constants(arrays, dtype)]
        self._add_step(Step(name, (*values[:-1], *held, values[-1]), 1, layer=layer))

    def _add_own_memory(self, shape: tuple[int, ...], dtype: str) -> int:
        self.values.append(Value(self._add_memory("arena", bytes_of(shape, dtype)), 0, shape, dtype))
        return len(self.values) - 1

    def _add_step(self, added: Step) -> None:
        step = len(self.steps)
        self.steps.append(added)
        for at in added.arguments:
            memory = self.memories[self.values[at].memory]
            memory.first = step if memory.first < 0 else memory.first
            memory.last = step

    def _was_written(self, at: int) -> bool:
        """Whether an earlier step wrote bytes of a value."""
        value = self.values[at]
        for step in self.steps:
            for other in step.arguments[len(step.arguments) - step.written :]:
                theirs = self.values[other]
                if theirs.memory == value.memory and _overlap(theirs, value):
                    return True
        return False

    # -- outputs and places --

    def _outputs(self, found: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Let kernels write outputs directly to the caller's memory; copy outputs that share memory."""
        outputs, copies = [], []
        for index, at in enumerate(found):
            value = self.values[at]
            memory = self.memories[value.memory]
            if memory.place == "arena" and value.offset == 0 and value.size == memory.size:
                memory.place, memory.index = "output", index
                outputs.append(at)
                continue
            memory.last = len(self.steps)
            own = self._add_memory("output", value.size, index)
            self.values.append(Value(own, 0, value.shape, value.dtype))
            outputs.append(len(self.values) - 1)
            copies.append((at, outputs[-1]))
        return tuple(outputs), tuple(copies)

    def _assign_offsets(self) -> tuple[Memory, ...]:
        """Return all memories with offsets: constants in order, arena memories by size, each in the
        best-fitting gap.
        """
        offsets: dict[int, int] = {}
        end = 0
        for at, memory in enumerate(self.memories):
            if memory.place == "constant":
                offsets[at], end = end, self._align(end + memory.size)
        arena = [at for at, memory in enumerate(self.memories) if memory.place == "arena"]
        find_offset = self._find_gap if self.gpu is None else self._free_slot
        for at in sorted(arena, key=lambda at: (-self.memories[at].size, at)):
            offsets[at] = find_offset(at, offsets)
        return tuple(
            Memory(memory.place, memory.size, memory.index, offsets.get(at, 0))
            for at, memory in enumerate(self.memories)
        )

    def _find_gap(self, at: int, offsets: dict[int, int]) -> int:
        mine = self.memories[at]
        taken = sorted(
            (offset, offset + self.memories[other].size)
            for other, offset in offsets.items()
            if self.memories[other].place == "arena" and _live_together(self.memories[other], mine)
        )
        best, place, end = None, 0, 0
        for first, last in taken:
            gap = first - end
            if gap >= mine.size and (best is None or gap < best):
                best, place = gap, end
            end = max(end, self._align(last))
        return place if best is not None else end

    def _free_slot(self, at: int, offsets: dict[int, int]) -> int:
        """Return the offset of a memory at least as large that is free meanwhile, or behind all others.

        GPU memories share a location as a whole or not at all: each location is a buffer, or a texture with rows of one
        length.
        """
        arena = [other for other in offsets if self.memories[other].place == "arena"]
        mine = self._slot_kind(at)
        taken = {
            offsets[other]
            for other in arena
            if _live_together(self.memories[other], self.memories[at]) or self._slot_kind(other) != mine
        }
        free = [offsets[other] for other in arena if offsets[other] not in taken]
        end = max((offsets[other] + self.memories[other].size for other in arena), default=0)
        return free[-1] if free else self._align(end)

    def _slot_kind(self, at: int) -> tuple[int, str]:
        """Return the key of memories that can share a location of a GPU: the row length and dtype of textures."""
        texture = self.textures.get(at)
        dtypes = (value.dtype for value in self.values if value.memory == at)
        return (texture.width, next(dtypes)) if texture else (0, "")

    def _align(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment


def _live_together(a: _Memory, b: _Memory) -> bool:
    """Whether two memories are live in the same step."""
    return a.first <= b.last and b.first <= a.last


def _overlap(a: Value, b: Value) -> bool:
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size
