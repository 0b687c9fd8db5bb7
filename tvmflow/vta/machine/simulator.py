"""Simulate VTA instructions fast: transfers in numpy, GEMM and ALU in compiled loops.

TVM compiles the loops for the design's block sizes. Results are equal to `interpreter.py` bit for bit, including
errors. Indices are checked before an instruction changes anything. Counters are updated during execution: bytes when
they are transferred, micro-ops when the loops execute them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tvm

from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.instructions import Alu, Gemm, Instruction, Mem, check_steps, uop_layout
from tvmflow.vta.machine.counters import Counters

Array = np.ndarray[Any, Any]

# dims: out, in, uop_bgn, uop_end, dst_out, dst_in, src_out, src_in, wgt_out, wgt_in, mode
#   mode of check: 0 GEMM, 1 reset, 2 ALU with a second accumulator, 3 ALU with an immediate
# dst, src, wgt: indices that a micro-op and the loops give; shifts and masks are constants of the design.
_INDEX = (
    '(T.Cast("int32", (uops[dims[2] + u] >> T.uint32({shift})) & T.uint32({mask}))'
    " + o * dims[{out}] + i * dims[{inner}])"
)
_SOURCE = """
@T.prim_func(s_tir=True)
def check(uops: T.Buffer(({uop_depth},), "uint32"), has_uop: T.Buffer(({uop_depth},), "int8"),
          has_inp: T.Buffer(({inp_depth},), "int8"), has_wgt: T.Buffer(({wgt_depth},), "int8"),
          has_acc: T.Buffer(({acc_depth},), "int8"), dims: T.Buffer((11,), "int32"), fault: T.Buffer((2,), "int32"),
          steps: T.Buffer((1,), "int64")):
    # steps: how often the loops turn; fault: what is wrong (1 uop, 2 dst, 3 src, 4 wgt beyond the end; 5 to 8 the same,
    # never written), and which index
    fault[0] = 0
    fault[1] = 0
    steps[0] = T.int64(0)
    for o in range(dims[0]):
        for i in range(dims[1]):
            for u in range(dims[3] - dims[2]):
                steps[0] = steps[0] + T.int64(1)
                if fault[0] == 0:
                    at: T.let[T.int32] = dims[2] + u
                    if at >= {uop_depth}:
                        fault[0] = 1
                        fault[1] = at
                    else:
                        if has_uop[at] == T.int8(0):
                            fault[0] = 5
                            fault[1] = at
                        else:
                            dst: T.let[T.int32] = {dst}
                            src: T.let[T.int32] = {src}
                            wgt: T.let[T.int32] = {wgt}
                            if dst >= {acc_depth}:
                                fault[0] = 2
                                fault[1] = dst
                            else:
                                if dims[10] == 1:
                                    has_acc[dst] = T.int8(1)
                                else:
                                    if has_acc[dst] == T.int8(0):
                                        fault[0] = 6
                                        fault[1] = dst
                                    else:
                                        if dims[10] == 0:
                                            if src >= {inp_depth}:
                                                fault[0] = 3
                                                fault[1] = src
                                            else:
                                                if has_inp[src] == T.int8(0):
                                                    fault[0] = 7
                                                    fault[1] = src
                                                else:
                                                    if wgt >= {wgt_depth}:
                                                        fault[0] = 4
                                                        fault[1] = wgt
                                                    else:
                                                        if has_wgt[wgt] == T.int8(0):
                                                            fault[0] = 8
                                                            fault[1] = wgt
                                        else:
                                            if src >= {acc_depth}:
                                                fault[0] = 3
                                                fault[1] = src
                                            else:
                                                if dims[10] == 2:
                                                    if has_acc[src] == T.int8(0):
                                                        fault[0] = 7
                                                        fault[1] = src


@T.prim_func(s_tir=True)
def gemm(uops: T.Buffer(({uop_depth},), "uint32"), inp: T.Buffer(({inp_depth}, {batch}, {block}), "int8"),
         wgt: T.Buffer(({wgt_depth}, {block}, {block}), "int8"),
         acc: T.Buffer(({acc_depth}, {batch}, {block}), "int32"), dims: T.Buffer((11,), "int32")):
    for o in range(dims[0]):
        for i in range(dims[1]):
            for u in range(dims[3] - dims[2]):
                dst: T.let[T.int32] = {dst}
                src: T.let[T.int32] = {src}
                w: T.let[T.int32] = {wgt}
                for b in range({batch}):
                    for k in T.unroll({block}):
                        for lane in T.vectorized({block}):
                            acc[dst, b, lane] = acc[dst, b, lane] + (
                                T.Cast("int32", inp[src, b, k]) * T.Cast("int32", wgt[w, k, lane])
                            )


@T.prim_func(s_tir=True)
def reset(uops: T.Buffer(({uop_depth},), "uint32"), acc: T.Buffer(({acc_depth}, {batch}, {block}), "int32"),
          dims: T.Buffer((11,), "int32")):
    for o in range(dims[0]):
        for i in range(dims[1]):
            for u in range(dims[3] - dims[2]):
                dst: T.let[T.int32] = {dst}
                for b in range({batch}):
                    for lane in T.vectorized({block}):
                        acc[dst, b, lane] = 0
"""
_ALU = """

@T.prim_func(s_tir=True)
def alu_{name}(uops: T.Buffer(({uop_depth},), "uint32"), acc: T.Buffer(({acc_depth}, {batch}, {block}), "int32"),
               dims: T.Buffer((11,), "int32"), imm: T.int32):
    for o in range(dims[0]):
        for i in range(dims[1]):
            for u in range(dims[3] - dims[2]):
                dst: T.let[T.int32] = {dst}
                src: T.let[T.int32] = {src}
                for b in range({batch}):
                    for lane in T.vectorized({block}):
                        acc[dst, b, lane] = {value}
"""
_X, _REGISTER = "acc[dst, b, lane]", "acc[src, b, lane]"
_SHIFT = (
    "T.Select({y} >= 0, T.shift_right({x}, T.min(T.max({y}, 0), 31)),"
    " T.Select({y} <= -32, 0, T.shift_left({x}, T.min(T.max(0 - {y}, 0), 31))))"
)
_FORMULAS = {
    "min": "T.min({x}, {y})",
    "max": "T.max({x}, {y})",
    "add": "{x} + {y}",
    "shr": _SHIFT,
    "mul": "{x} * {y}",
}
_WRONG = (
    "",
    "UOP element {} is beyond the end",
    "ACC element {} (dst) is beyond the end",
    "src element {} is beyond the end",
    "WGT element {} is beyond the end",
    "a read of UOP element {}, which nothing has written",
    "a read of ACC element {}, which nothing has written",
    "a read of src element {}, which nothing has written",
    "a read of WGT element {}, which nothing has written",
)


@lru_cache(maxsize=16)
def _kernels(config: VtaConfig) -> dict[str, Any]:
    """Compile the loops for a design: about a second, once in a process."""
    from tvmflow.targets.resolve import host_target

    depth = {
        memory.name.lower() + "_depth": config.depth(memory)
        for memory in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    }
    indices = zip(("dst", "src", "wgt"), uop_layout(config), (4, 6, 8), strict=True)
    words = {
        **depth,
        "batch": config.batch,
        "block": config.block,
        **{
            name: _INDEX.format(shift=at, mask=(1 << width) - 1, out=dim, inner=dim + 1)
            for name, (at, width), dim in indices
        },
    }
    sources = {name: "\n@T.prim_func(s_tir=True)\n" + text for name, text in _functions(_SOURCE.format(**words))}
    for name, formula in _FORMULAS.items():
        for kind, y in (("", _REGISTER), ("_imm", "imm")):
            sources[f"alu_{name}{kind}"] = _ALU.format(name=name + kind, value=formula.format(x=_X, y=y), **words)
    functions = {name: parsed(text).with_attr("global_symbol", name) for name, text in sources.items()}
    module = tvm.IRModule(functions)
    library = tvm.compile(module, host_target().tvm_target())
    return {name: library[name] for name in functions}


def _functions(source: str) -> list[tuple[str, str]]:
    parts = source.split("@T.prim_func(s_tir=True)\n")[1:]
    return [(part[len("def ") :].split("(")[0], part) for part in parts]


class Simulator:
    """The state of a VTA, as `Interpreter` has it. A failed instruction leaves the machine in an undefined state."""

    def __init__(self, config: VtaConfig, dram: Array) -> None:
        def shared(shape: tuple[int, ...], dtype: str) -> tuple[Any, Array]:
            tensor = tvm.runtime.empty(shape, dtype)
            view = np.from_dlpack(tensor)
            view[...] = 0
            return tensor, view

        batch, block = config.batch, config.block
        self.config, self.dram, self.counters = config, dram, Counters()
        self.kernels = _kernels(config)
        shapes = {
            Memory.UOP: ((), "uint32"),
            Memory.INP: ((batch, block), "int8"),
            Memory.WGT: ((block, block), "int8"),
            Memory.ACC: ((batch, block), "int32"),
        }
        made = {m: shared((config.depth(m), *shape), dtype) for m, (shape, dtype) in shapes.items()}
        notes = {m: shared((config.depth(m),), "int8") for m in shapes}
        self._tensors, self.memories = {m: t for m, (t, _) in made.items()}, {m: v for m, (_, v) in made.items()}
        self._notes, self.written = {m: t for m, (t, _) in notes.items()}, {m: v for m, (_, v) in notes.items()}
        self._dims_tensor, self._dims = shared((11,), "int32")
        self._found_tensor, self._found = shared((2,), "int32")
        self._steps_tensor, self._steps = shared((1,), "int64")

    def forget(self) -> None:
        """Mark every on-chip element as unwritten, as before a launch: it must be loaded before it is read."""
        for written in self.written.values():
            written[...] = 0

    def execute(self, instruction: Instruction) -> None:
        check_steps([instruction])
        self.counters.fetched()
        if isinstance(instruction, Mem):
            if instruction.steps:
                (self._store if instruction.is_store else self._load)(instruction)
        elif isinstance(instruction, Gemm):
            self._gemm(instruction)
        elif isinstance(instruction, Alu):
            self._alu(instruction)

    # -- memory --

    def _rows(self, i: Mem) -> Array:
        """Return the bytes of DRAM that a transfer touches as a view (y, x, element bytes)."""
        size = self.config.element_bytes(i.memory)
        if i.y_size == 0:
            return np.zeros((0, i.x_size, size), np.uint8)
        last = i.dram_base + (i.y_size - 1) * i.x_stride + i.x_size - 1
        for index in (i.dram_base, last):
            if not PAGE <= index * size <= len(self.dram) - size:
                raise ProgramError(
                    f"{i.memory.name} element {index} at DRAM byte {index * size:#x}",
                    f"{PAGE:#x} to {len(self.dram):#x}",
                )
        return np.lib.stride_tricks.as_strided(
            self.dram[i.dram_base * size :], (i.y_size, i.x_size, size), (i.x_stride * size, size, 1)
        )

    def _load(self, i: Mem) -> None:
        if i.memory is Memory.OUT:
            raise ProgramError("a LOAD into OUT", "UOP, WGT, INP, ACC or ACC_8BIT")
        memory = Memory.ACC if i.memory is Memory.ACC_8BIT else i.memory
        target = self.memories[memory]
        end = i.sram_base + i.rows * i.columns
        if end > len(target):
            raise ProgramError(f"{memory.name} element {max(i.sram_base, len(target))}", f"0 to {len(target) - 1}")
        rows = np.ascontiguousarray(self._rows(i))
        values = rows.view(np.int8 if i.memory is Memory.ACC_8BIT else target.dtype)
        values = values.reshape(i.y_size, i.x_size, *target.shape[1:])
        if memory is Memory.WGT:
            values = values.swapaxes(2, 3)  # kept as (k, o), so that a vector of outputs lies together
        tile = target[i.sram_base : end].reshape(i.rows, i.columns, *target.shape[1:])
        if i.rows != i.y_size or i.columns != i.x_size:
            tile[...] = 0
        tile[i.y_pad_top : i.y_pad_top + i.y_size, i.x_pad_left : i.x_pad_left + i.x_size] = values
        self.written[memory][i.sram_base : end] = 1
        self.counters.moved(self.config, i.memory, rows.nbytes)

    def _store(self, i: Mem) -> None:
        if i.memory is not Memory.OUT or i.rows != i.y_size or i.columns != i.x_size:
            raise ProgramError(
                f"a STORE of {i.memory.name} with padding {i.rows - i.y_size, i.columns - i.x_size}",
                "OUT, without padding",
            )
        end = i.sram_base + i.y_size * i.x_size
        if end > self.config.depth(Memory.ACC):
            first = max(i.sram_base, self.config.depth(Memory.ACC))
            raise ProgramError(f"ACC element {first}", f"0 to {self.config.depth(Memory.ACC) - 1}")
        self._need_written(i.sram_base, end)
        low = self.memories[Memory.ACC][i.sram_base : end].astype(np.int8).view(np.uint8)
        rows = self._rows(i)
        for y, row in enumerate(low.reshape(rows.shape)):  # in order: rows may overlap
            rows[y] = row
        self.counters.moved(self.config, i.memory, low.nbytes)

    def _need_written(self, begin: int, end: int) -> None:
        noted = self.written[Memory.ACC][begin:end]
        if not noted.all():
            raise ProgramError(_WRONG[6].format(begin + int(np.argmin(noted))))

    # -- compute --

    def _set_dims(self, i: Gemm | Alu, wgt: tuple[int, int], mode: int) -> None:
        self._dims[:] = (
            i.iter_out,
            i.iter_in,
            i.uop_bgn,
            i.uop_end,
            i.dst_out,
            i.dst_in,
            i.src_out,
            i.src_in,
            *wgt,
            mode,
        )
        memories = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
        self.kernels["check"](
            self._tensors[Memory.UOP],
            *(self._notes[m] for m in memories),
            self._dims_tensor,
            self._found_tensor,
            self._steps_tensor,
        )
        if self._found[0]:
            raise ProgramError(_WRONG[self._found[0]].format(self._found[1]))

    def _gemm(self, i: Gemm) -> None:
        self._set_dims(i, (i.wgt_out, i.wgt_in), 1 if i.reset else 0)
        uops, acc = self._tensors[Memory.UOP], self._tensors[Memory.ACC]
        if i.reset:
            self.kernels["reset"](uops, acc, self._dims_tensor)
        else:
            self.kernels["gemm"](uops, self._tensors[Memory.INP], self._tensors[Memory.WGT], acc, self._dims_tensor)
            self.counters.gemm_counter += int(self._steps[0])

    def _alu(self, i: Alu) -> None:
        self._set_dims(i, (0, 0), 2 if i.imm is None else 3)
        name = f"alu_{i.op.name.lower()}{'' if i.imm is None else '_imm'}"
        self.kernels[name](self._tensors[Memory.UOP], self._tensors[Memory.ACC], self._dims_tensor, i.imm or 0)
        self.counters.alu_counter += int(self._steps[0])
