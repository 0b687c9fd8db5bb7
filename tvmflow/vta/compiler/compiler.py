"""Compile a region to a static VTA program: one launch per operator, with all addresses fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tvmflow.support.errors import ProgramError, UnknownNameError
from tvmflow.vta.compiler.conv_tiling import ConvJob, Residual
from tvmflow.vta.compiler.convolution import axis, blocked_groups, geometry, pack_vector, pack_weight
from tvmflow.vta.compiler.dma import Place
from tvmflow.vta.compiler.elementwise import schedule_pool, schedule_sum
from tvmflow.vta.compiler.requantize import bias_vector, needs_bias
from tvmflow.vta.compiler.tile_search import TileRecord, emit_conv, search, workload_key
from tvmflow.vta.compiler.tophub_schedules import bias_holds_rounding, reference_conv, reference_sum, reference_tile
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.program import Dram, LaunchBuilder, Program, Tensor, pages
from tvmflow.vta.isa.region import Conv, MaxPool, Operator, Region, Shape, Sum, packed_shape

Array = np.ndarray[Any, Any]
Mode = Literal["optimized", "reference"]
MODES: tuple[Mode, ...] = ("optimized", "reference")
MAX_LEFT = 6
"""An identity block holds 2^k in 8 bits."""
MIN_FUSED = 4
"""Vectors of a sum from which on the two operands in the accumulator weigh more than one operand and the identity
block.
"""


def get_mode(name: str) -> Mode:
    """Return a mode. Raises UnknownNameError."""
    for mode in MODES:
        if mode == name:
            return mode
    raise UnknownNameError(f"VTA mode {name!r}", legal=MODES)


@dataclass(frozen=True)
class Fused:
    """An operator with the sum that is fused behind it, if any; `name` is the value it writes to DRAM."""

    operator: Operator
    residual: Sum | None = None

    @property
    def name(self) -> str:
        return self.residual.name if self.residual is not None else self.operator.name

    @property
    def shortcut(self) -> str:
        """Return the operand of the residual sum that this operator does not compute."""
        assert self.residual is not None
        return next(name for name in self.residual.inputs if name != self.operator.name)


def check_operator(config: VtaConfig, operator: Operator, data: Shape) -> None:
    """Raise ProgramError when VTA cannot compute an operator."""
    if isinstance(operator, Conv):
        blocked_groups(config, operator)
        geometry(config, operator, data)
    if isinstance(operator, Sum):
        if any(not 0 <= left <= MAX_LEFT for left in operator.lefts):
            raise ProgramError(f"{operator.name}: operands shifted by {operator.lefts}", f"0 to {MAX_LEFT}")
        if needs_bias(operator.tail):
            raise ProgramError(f"{operator.name}: a rounding of {operator.tail.half}", "at most 2^14")


def fuse(config: VtaConfig, region: Region, mode: Mode) -> list[Fused]:
    """Return what is launched: sums go behind a convolution that nobody else reads, when the other operand is there by
    then.

    Not sums of a few vectors, which are smaller than the identity block that they would need.
    """
    if mode == "reference":
        return [Fused(_wrap_output_sum(region, operator)) for operator in region.operators]
    users, order = region.users(), {op.name: at for at, op in enumerate(region.operators)}
    by_name, shapes = {op.name: op for op in region.operators}, region.shapes()
    fused: dict[str, Sum] = {}
    for operator in region.operators:
        if not isinstance(operator, Sum) or len(set(operator.inputs)) != 2:
            continue
        if math.prod(packed_shape(config, shapes[operator.name])[:4]) < MIN_FUSED:
            continue
        hosts = [
            name
            for name in operator.inputs
            if isinstance(host := by_name.get(name), Conv)
            and host.tail.saturates  # a sum before it would have to wrap
            and len(users[name]) == 1
            and name not in region.outputs
        ]
        last = max(operator.inputs, key=lambda name: order.get(name, -1))
        if last in hosts:
            fused[last] = operator
    taken = {operator.name for operator in fused.values()}
    return [Fused(op, fused.get(op.name)) for op in region.operators if op.name not in taken]


def _wrap_output_sum(region: Region, operator: Operator) -> Operator:
    """Make the cast of a sum wrap if its value only leaves the region, as in the reference.

    The reference clips a sum only if it is read again inside the region.
    """
    if isinstance(operator, Sum) and not region.users()[operator.name]:
        return replace(operator, tail=replace(operator.tail, saturates=False))
    return operator


def apply_mode(region: Region, mode: Mode) -> Region:
    """Return the region that a mode computes exactly: for the reference, its last sum wraps."""
    if mode == "optimized":
        return region
    return replace(region, operators=tuple(_wrap_output_sum(region, operator) for operator in region.operators))


class _Compiler:
    def __init__(self, config: VtaConfig, region: Region, mode: Mode, records: Mapping[str, TileRecord]) -> None:
        self.config, self.region, self.mode, self.records = config, region, mode, records
        self.shapes = region.shapes()
        self.steps = fuse(config, region, mode)
        self.tensors: dict[str, Tensor] = {}
        address = PAGE
        for name in (*region.inputs, *(step.name for step in self.steps)):
            self.tensors[name] = Tensor(name, address, packed_shape(config, self.shapes[name]))
            address = pages(address + self.tensors[name].nbytes)
        self.dram = Dram(config, address)
        self._identities: dict[int, int] = {}
        self.jobs = {step.name: self._conv_job(step) for step in self.steps if isinstance(step.operator, Conv)}

    def identity(self, left: int) -> int:
        """Return the address of the identity block times 2^left."""
        if left not in self._identities:
            self._identities[left] = self.dram.constant((np.eye(self.config.block) * (1 << left)).astype(np.int8))
        return self._identities[left]

    def place(self, name: str) -> Place:
        tensor = self.tensors[name]
        return Place(tensor.address, *tensor.shape[1:4])

    def _conv_job(self, step: Fused) -> ConvJob:
        conv = step.operator
        assert isinstance(conv, Conv)
        residual = identity = None
        if step.residual is not None:
            lefts = dict(zip(step.residual.inputs, step.residual.lefts, strict=True))
            residual = Residual(self.place(step.shortcut), lefts[conv.name], step.residual.tail)
            identity = self.identity(lefts[step.shortcut])
        return ConvJob(
            geometry(self.config, conv, self.shapes[conv.data]),
            self.place(conv.data),
            self.place(step.name),
            self.dram.constant(pack_weight(self.config, conv)),
            conv.tail,
            self._bias(conv),
            residual,
            identity,
        )

    def _bias(self, conv: Conv) -> int | None:
        tail, channels = conv.tail, self.shapes[conv.name][1]
        if self.mode == "reference" and not bias_holds_rounding(tail) and tail.bias is not None:
            tail = replace(tail, half=0)
        if not needs_bias(tail):
            return None
        return self.dram.constant(pack_vector(self.config, bias_vector(tail, channels)))

    def program(self) -> Program:
        builders = [self._launch(step) for step in self.steps]
        launches = [builder.finish() for builder in builders]
        constants, uops_at = self.dram.close()
        for builder in builders:
            for load, first in builder.uop_loads:
                load.dram_base = uops_at // self.config.element_bytes(Memory.UOP) + first
        names = (tuple(self.region.inputs), self.region.outputs)
        inputs, outputs = (tuple(self.tensors[name] for name in group) for group in names)
        return Program(
            self.config,
            tuple(launches),
            constants,
            self.dram.base,
            self.dram.base + pages(constants.size),
            tuple(self.tensors.values()),
            inputs,
            outputs,
        )

    def _launch(self, step: Fused) -> LaunchBuilder:
        builder, operator = LaunchBuilder(self.config, self.dram, step.name), step.operator
        if isinstance(operator, Conv):
            self._conv(builder, step.name)
        elif isinstance(operator, Sum):
            self._sum(builder, operator)
        else:
            self._pool(builder, operator)
        return builder

    def _conv(self, builder: LaunchBuilder, name: str) -> None:
        job = self.jobs[name]
        if self.mode == "reference":
            reference_conv(builder, job, reference_tile(self.config, job.geometry))
            return
        key = workload_key(self.config, job)
        if key not in self.records:
            raise ProgramError(f"no tile for {name} ({key})", "a record of the tile search", "run the tune stage again")
        emit_conv(builder, job, self.records[key].tile)

    def _sum(self, builder: LaunchBuilder, operator: Sum) -> None:
        """Emit a sum; one of a few vectors as the reference does, where the device can: an identity block weighs
        more.
        """
        tensor = self.tensors[operator.name]
        vectors = math.prod(tensor.shape[:4])
        addresses = [self.tensors[name].address for name in operator.inputs]
        lefts = sorted(set(operator.lefts))
        saved = (
            vectors * len(addresses) * (self.config.element_bytes(Memory.ACC) - self.config.element_bytes(Memory.INP))
        )
        is_small = saved < len(lefts) * self.config.element_bytes(Memory.WGT) and self.config.board.is_simulator
        if self.mode == "reference" or is_small:
            operands = list(zip(addresses, operator.lefts, strict=True))
            reference_sum(builder, operands, tensor.address, vectors, operator.tail)
        else:
            inputs = [(address, lefts.index(left)) for address, left in zip(addresses, operator.lefts, strict=True)]
            identities = [self.identity(left) for left in lefts]
            schedule_sum(builder, inputs, tensor.address, vectors, operator.tail, identities)

    def _pool(self, builder: LaunchBuilder, pool: MaxPool) -> None:
        data, out = self.place(pool.data), self.place(pool.name)
        rows = axis(data.height, out.height, pool.strides[0], pool.kernel[0], pool.padding[0], False)
        columns = axis(data.width, out.width, pool.strides[1], pool.kernel[1], pool.padding[1], False)
        schedule_pool(builder, (rows, columns), self.tensors[pool.data].shape[0], data, out, self.identity(0))


def conv_workloads(config: VtaConfig, region: Region) -> dict[str, tuple[str, ConvJob]]:
    """Return workload key -> (name of the first layer that has it, job), in the order of the network."""
    compiler = _Compiler(config, region, "optimized", {})
    workloads: dict[str, tuple[str, ConvJob]] = {}
    for name, job in compiler.jobs.items():
        workloads.setdefault(workload_key(config, job), (name, job))
    return workloads


def search_tiles(config: VtaConfig, region: Region) -> dict[str, TileRecord]:
    """Return the best tile of every workload of a region."""
    return {key: search(config, job) for key, (_, job) in conv_workloads(config, region).items()}


def compile_region(
    config: VtaConfig, region: Region, mode: Mode, records: Mapping[str, TileRecord] | None = None
) -> Program:
    """Compile a region to a program.

    records: workload key -> tile. The optimized mode searches for tiles that no record gives.
    """
    for operator in region.operators:
        check_operator(config, operator, region.shapes()[operator.inputs[0]])
    if records is None and mode == "optimized":
        records = search_tiles(config, region)
    return _Compiler(config, region, mode, records or {}).program()
