"""Define tensor intrinsics of NEON multiply-accumulates by a lane.

Input channels are in one register, each lane of which is multiplied with a register of weights, so that values of a
pixel are loaded once for several instructions, where a broadcast takes one for each. The intrinsic sums all lanes of
one register into a register of outputs; the loops around it hold a tile of outputs. It is written in LLVM IR, whose
splats of a lane become that operand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tvmflow.schedules.template import divisors, is_named_in, register_intrinsic
from tvmflow.targets.cpu_features import CpuFeatures

_SOURCE = """
@T.prim_func(s_tir=True)
def function(a: T.handle, b: T.handle, c: T.handle) -> None:
    step = T.int64()
    A = T.match_buffer(a, ({values},), "{data}", offset_factor=1)
    B = T.match_buffer(b, ({words}, {lanes}{last}), "{weight}", strides=[step, {group}{one}], offset_factor=1)
    C = T.match_buffer(c, ({lanes},), "{total}", offset_factor=1, scope="local")
    with T.sblock("root"):
        T.reads(C[0:{lanes}], A[0:{values}], B[0:{words}, 0:{lanes}{whole}])
        T.writes(C[0:{lanes}])
{body}
"""
_MEANING = """
        for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                C[vi] = C[vi] + T.Cast("{total}", A[{value}]) * T.Cast("{total}", B[{weights}])
"""
# A.data is passed so that TVM does not widen the buffer to float32, which it does if it only sees loads and stores.
_INSTRUCTIONS = """
        C[T.ramp(T.int32(0), T.int32(1), {lanes})] = T.call_extern(
            "{total}x{lanes}", "tvmflow_lane_{name}", C.vload([0], dtype="{total}x{lanes}"),
            {pixel}, {loads}, A.data)
"""
_FUNCTION = """
define weak_odr {sum} @tvmflow_lane_{name}({sum} %sum, {pixel} %a, {weights}, ptr %0) alwaysinline nounwind {{
{body}
  ret {sum} %r
}}
{declare}
"""


@dataclass(frozen=True)
class LaneMla:
    """A multiply-accumulate instruction by a lane.

    number: value of the knob `dot`; lanes: sums in a register; values: input channels in a register; group: channels
    that the instruction sums at once; data, weight, total: dtypes; needs: see CpuFeatures.dots; body: returns LLVM
    code; working: registers for intermediate products.
    """

    number: int
    name: str
    needs: str
    data: str
    weight: str
    total: str
    lanes: int
    values: int
    group: int
    body: Callable[[LaneMla], tuple[str, str]]
    working: int = 0

    @property
    def words(self) -> int:
        """Return how many multiplications one register of input channels takes."""
        return self.values // self.group

    @property
    def intrinsic_name(self) -> str:
        return f"tvmflow.lane_{self.name}"

    @property
    def imports(self) -> str:
        """Return LLVM code of the function that the kernel calls."""
        body, declare = self.body(self)
        return _FUNCTION.format(
            name=self.name,
            sum=_llvm_type(self.total, self.lanes),
            pixel=self._pixel()[0],
            body=body,
            declare=declare,
            weights=", ".join(f"{self._row()} %b{word}" for word in range(self.words)),
        )

    def _pixel(self) -> tuple[str, str]:
        """Return LLVM's type of a register of input channels, and the TVMScript that loads it."""
        load = f'A.vload([0], dtype="{self.data}x{self.values}")'
        if self.group == 1:
            return _llvm_type(self.data, self.values), load
        bits = 8 * self.group
        return f"<{self.words} x i{bits}>", f'T.reinterpret({load}, dtype="int{bits}x{self.words}")'

    def _row(self) -> str:
        """Return LLVM's type of a register of weights."""
        return _llvm_type(self.weight, self.lanes * self.group)

    def body_in_tvm(self) -> str:
        """Return the TVMScript call of the function."""
        loads = []
        for word in range(self.words):
            place = f"[{word}, 0]" if self.group == 1 else f"[{word}, 0, 0]"
            loads.append(f'B.vload({place}, dtype="{self.weight}x{self.lanes * self.group}")')
        return _INSTRUCTIONS.format(
            lanes=self.lanes, total=self.total, name=self.name, pixel=self._pixel()[1], loads=", ".join(loads)
        )


def _llvm_type(dtype: str, lanes: int) -> str:
    names = {"float32": "float", "float16": "half", "int32": "i32", "int8": "i8", "uint8": "i8"}
    return f"<{lanes} x {names[dtype]}>"


def _splat(kind: str, count: int, name: str, lane: int, lanes: int) -> str:
    mask = ", ".join(f"i32 {lane}" for _ in range(lanes))
    vector = _vector_type(kind, count)
    return f"shufflevector {vector} {name}, {vector} poison, <{lanes} x i32> <{mask}>"


def _vector_type(kind: str, count: int) -> str:
    return f"<{count} x {kind}>"


def _multiply_add(row: LaneMla) -> tuple[str, str]:
    """Return LLVM code of a fused multiply-add of floats for each channel."""
    kind = {"float32": "float", "float16": "half"}[row.total]
    vector, lines, total = _vector_type(kind, row.lanes), [], "%sum"
    name = f"llvm.fma.v{row.lanes}{_type_suffix(kind)}"
    for k in range(row.words):
        found = "%r" if k == row.words - 1 else f"%r{k}"
        lines.append(f"  %s{k} = {_splat(kind, row.values, '%a', k, row.lanes)}")
        lines.append(f"  {found} = call {vector} @{name}({vector} %b{k}, {vector} %s{k}, {vector} {total})")
        total = found
    return "\n".join(lines), f"declare {vector} @{name}({vector}, {vector}, {vector})"


def _multiply_add_wide(row: LaneMla) -> tuple[str, str]:
    """Return LLVM code of a multiply-add of float16 into float32.

    Values are widened by NEON's intrinsic: LLVM would widen each splat instead of the register.
    """
    widen, lines, total = "call <4 x float> @llvm.aarch64.neon.vcvthf2fp(<4 x i16> ", [], "%sum"
    lines.append(f"  %i = bitcast <{row.values} x half> %a to <{row.values} x i16>")
    for half in range(row.values // 4):
        mask = ", ".join(f"i32 {4 * half + lane}" for lane in range(4))
        lines.append(
            f"  %h{half} = shufflevector <{row.values} x i16> %i, <{row.values} x i16> poison, <4 x i32> <{mask}>"
        )
        lines.append(f"  %x{half} = {widen}%h{half})")
    for k in range(row.words):
        found = "%r" if k == row.words - 1 else f"%r{k}"
        lines.append(f"  %c{k} = bitcast <4 x half> %b{k} to <4 x i16>")
        lines.append(f"  %w{k} = {widen}%c{k})")
        lines.append(f"  %s{k} = {_splat('float', 4, f'%x{k // 4}', k % 4, 4)}")
        lines.append(
            f"  {found} = call <4 x float> @llvm.fma.v4f32(<4 x float> %w{k}, <4 x float> %s{k}, <4 x float> {total})"
        )
        total = found
    return "\n".join(lines), (
        "declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)\n"
        "declare <4 x float> @llvm.aarch64.neon.vcvthf2fp(<4 x i16>)"
    )


def _type_suffix(kind: str) -> str:
    return {"float": "f32", "half": "f16"}[kind]


def _make_dot(llvm: str, packed: str, is_unsigned: bool = False) -> Callable[[LaneMla], tuple[str, str]]:
    """Return the function that emits dot products by an intrinsic of LLVM; packed: its vector type of operands."""

    def body(row: LaneMla) -> tuple[str, str]:
        vector, total = _llvm_type(row.total, row.lanes), "%sum"
        lines = []
        for k in range(row.words):
            found = "%r" if k == row.words - 1 else f"%r{k}"
            lines.append(f"  %s{k} = {_splat('i32', row.words, '%a', k, 4)}")
            lines.append(f"  %x{k} = bitcast <4 x i32> %s{k} to {packed}")
            lines.append(f"  %y{k} = bitcast {row._row()} %b{k} to {packed}")
            factors = ("x", "y") if is_unsigned else ("y", "x")
            lines.append(
                f"  {found} = call {vector} @{llvm}({vector} {total}, {packed} %{factors[0]}{k}, {packed} "
                f"%{factors[1]}{k})"
            )
            total = found
        return "\n".join(lines), f"declare {vector} @{llvm}({vector}, {packed}, {packed})"

    return body


def _widening_multiply(row: LaneMla) -> tuple[str, str]:
    """Return LLVM code of int8 products in 16 bits, added pairwise in 32 bits.

    Two products fit into 16 bits, as weights are at least -127.
    """
    lines, total = [], "%sum"
    for k in range(row.words):
        lines.append(f"  %s{k} = {_splat('i16', row.words, '%a', k, 4)}")
        lines.append(f"  %x{k} = bitcast <4 x i16> %s{k} to <8 x i8>")
        lines.append(f"  %p{k} = call <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8> %b{k}, <8 x i8> %x{k})")
        if k % 2:
            found = "%r" if k == row.words - 1 else f"%r{k}"
            lines.append(f"  %t{k} = add <8 x i16> %p{k - 1}, %p{k}")
            lines.append(f"  %l{k} = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16> %t{k})")
            lines.append(f"  {found} = add <4 x i32> {total}, %l{k}")
            total = found
    return "\n".join(lines), (
        "declare <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)\n"
        "declare <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)"
    )


_SDOT = _make_dot("llvm.aarch64.neon.sdot.v4i32.v16i8", "<16 x i8>")
LANES = (
    LaneMla(6, "fmla", "neon", "float32", "float32", "float32", 4, 4, 1, _multiply_add),
    LaneMla(7, "fmla_half", "fp16", "float16", "float16", "float16", 8, 8, 1, _multiply_add),
    LaneMla(8, "fmla_wide", "neon", "float16", "float16", "float32", 4, 8, 1, _multiply_add_wide),
    LaneMla(9, "sdot", "dotprod", "int8", "int8", "int32", 4, 8, 4, _SDOT),
    LaneMla(12, "smull", "neon", "int8", "int8", "int32", 4, 8, 2, _widening_multiply, working=12),
    LaneMla(13, "smull_few", "neon", "int8", "int8", "int32", 4, 4, 2, _widening_multiply, working=12),
)


def get_lane_mla(number: int) -> LaneMla | None:
    return next((row for row in LANES if row.number == number), None)


def register_lanes_in(trace: str) -> None:
    """Register the intrinsics that a trace names."""
    for row in lanes_in(trace):
        register_lane_mla(row)


def lanes_in(trace: str) -> list[LaneMla]:
    """Return the instructions that a trace names."""
    return [row for row in LANES if is_named_in(row.intrinsic_name, trace)]


def find_lane_mla(cpu: CpuFeatures, dtypes: tuple[str, str, str], block: int, inner: tuple[int, int]) -> LaneMla | None:
    """Return the instruction for a convolution, None if there is none.

    dtypes: of data, weights, sums; block: output channels of a block; inner: input channels of a block, in groups and
    of a group.
    """
    words, group = inner
    for row in LANES:
        same = (row.data, row.weight, row.total) == dtypes and row.group == group
        if same and words % row.words == 0 and row.needs in cpu.dots and block % row.lanes == 0:
            return row
    return None


def rank_lane_tiles(
    row: LaneMla, channels: int, height: int, width: int, lanes: int, columns: tuple[int, int] = (1, 1)
) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest loads first.

    columns: the unrolled columns of the filter, and the stride between their windows.
    """
    per_block = lanes // row.lanes

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Return instructions per multiplication; pixels, and weights of the first block, are loaded in pairs.

        Windows of neighbouring pixels overlap; a step of the loop takes four instructions. Too few sums do not hide the
        latency.
        """
        c, h, w = point
        sums = c * per_block * h * w
        taps, step = columns
        pixels = h * min((w - 1) * step + taps, w * taps) / taps
        loads = 0.5 * pixels + 4 / taps + row.words * per_block * (c - 0.5)
        return ((1 + loads / (sums * row.words)) / min(sums, 8), h, -w)

    points = [
        (c, h, w)
        for c in divisors(channels, 4)
        for h in divisors(height, 4)
        for w in divisors(width, 28)
        if c * per_block * h * w + h * w + row.words + row.working <= 32
    ]
    return sorted(points, key=cost)[:24]


@cache
def register_lane_mla(row: LaneMla) -> str:
    """Register the intrinsic of an instruction with TVM and return its name."""
    is_single = row.group == 1
    names = {
        "values": row.values,
        "words": row.words,
        "lanes": row.lanes,
        "group": row.group,
        "data": row.data,
        "weight": row.weight,
        "total": row.total,
        "last": "" if is_single else f", {row.group}",
        "one": "" if is_single else ", 1",
        "whole": "" if is_single else f", 0:{row.group}",
        "loops": "i, u" if is_single else "i, u, q",
        "axes": "vi, vu" if is_single else "vi, vu, vq",
        "kinds": "SR" if is_single else "SRR",
        "extents": f"{row.lanes}, {row.words}" + ("" if is_single else f", {row.group}"),
        "value": "vu" if is_single else f"vu * {row.group} + vq",
        "weights": "vu, vi" if is_single else "vu, vi, vq",
    }
    return register_intrinsic(
        row.intrinsic_name, _SOURCE, _MEANING, row.body_in_tvm().replace("{", "{{").replace("}", "}}"), names
    )
