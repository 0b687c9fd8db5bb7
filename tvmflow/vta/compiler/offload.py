"""Replace every run of layers that VTA can compute by one call, in VTA's layout.

A call is `tvmflow.vta.run(blob, inputs..., outputs...)`, a function that the device's runtime provides. The blob is a
constant of the network: first the region, and after `build` its compiled program. A library therefore remains one file,
and every tool that runs libraries can run these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Graph, Step, read_graph
from tvmflow.ir.tvm_compat import IRModule, constant_value, type_arguments
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.partition import Split, split
from tvmflow.vta.isa.config import RUN_FUNCTION, VtaConfig
from tvmflow.vta.isa.region import Region, from_blob, packed_shape, region_from, region_to_blob


def offload_vta(mod: IRModule, config: VtaConfig, start: str = "auto", stop: str = "auto") -> tuple[Any, Split]:
    """Return the module with its call, and what went where. Raises UnknownNameError, ProgramError.

    A plain function: what is raised inside of a TVM pass comes out as another type.
    """
    graph = read_graph(mod)
    parts = split(graph, config, start, stop)
    return _Writer(graph, parts, config).module(), parts


class _Writer:
    def __init__(self, graph: Graph, parts: Split, config: VtaConfig) -> None:
        self.graph, self.parts, self.config = graph, parts, config
        self.builder = relax.BlockBuilder()
        self.values: dict[str, Any] = {}

    def module(self) -> Any:
        return build_main(self.builder, self.graph, self._body)

    def _body(self, parameters: dict[str, Any]) -> list[Any]:
        self.values |= parameters
        regions = iter(range(len(self.parts.regions)))
        for piece in self.parts.pieces:
            if isinstance(piece, Region):
                self._region(piece, next(regions))
            else:
                for step in piece:
                    self._step(step)
        return [self.values[name] for name in self.graph.outputs]

    def _step(self, step: Step) -> None:
        if step.op == "constant":
            value = constant(step.args[0], step.dtype)
        else:
            value = rebuild_call(step, self.values.__getitem__)
        self.values[step.name] = self.builder.emit(value, step.name)

    def _region(self, region: Region, index: int) -> None:
        """Emit the call of a region. The first one carries the reasons of the whole network."""
        shapes = region.shapes()
        notes = {"layers": self.parts.layers[index], "reasons": {} if index else self.parts.reasons}
        blob = constant(np.frombuffer(region_to_blob(region, notes), np.uint8), "uint8")
        inputs = [self._packed(name) for name in region.inputs]
        types = [relax.TensorType(packed_shape(self.config, shapes[name]), "int8") for name in region.outputs]
        call = relax.call_dps_packed(RUN_FUNCTION, [blob, *inputs], types if len(types) > 1 else types[0])
        output = self.builder.emit(call, f"vta{index}")
        for position, name in enumerate(region.outputs):
            packed = self.builder.emit(relax.TupleGetItem(output, position)) if len(types) > 1 else output
            self.values[name] = self._plain(name, packed)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.kind(name).shape

    def _packed(self, name: str) -> Any:
        """(N, C[, H, W]) -> (N/b, C/c, H, W, b, c), filled with zeros."""
        shape = (*self._shape(name), 1, 1)[:4]
        outer_n, outer_c, h, w, batch, block = packed_shape(self.config, (shape[0], shape[1], shape[2], shape[3]))
        value = self.builder.emit(relax.op.reshape(self.values[name], shape))
        fill_n, fill_c = outer_n * batch - shape[0], outer_c * block - shape[1]
        if fill_n or fill_c:
            value = self.builder.emit(relax.op.nn.pad(value, [0, fill_n, 0, fill_c, 0, 0, 0, 0]))
        value = self.builder.emit(relax.op.reshape(value, (outer_n, batch, outer_c, block, h, w)))
        return self.builder.emit(relax.op.permute_dims(value, [0, 2, 4, 5, 1, 3]), f"{name}_packed")

    def _plain(self, name: str, value: Any) -> Any:
        own = self._shape(name)
        shape = (*own, 1, 1)[:4]
        outer_n, outer_c, h, w, batch, block = packed_shape(self.config, (shape[0], shape[1], shape[2], shape[3]))
        value = self.builder.emit(relax.op.permute_dims(value, [0, 4, 1, 5, 2, 3]))
        value = self.builder.emit(relax.op.reshape(value, (outer_n * batch, outer_c * block, h, w)))
        if (outer_n * batch, outer_c * block) != shape[:2]:
            value = self.builder.emit(
                relax.op.strided_slice(value, axes=[0, 1], begin=[0, 0], end=[shape[0], shape[1]])
            )
        return self.builder.emit(relax.op.reshape(value, own), f"{name}_plain")


def blobs_of(mod: IRModule) -> list[bytes]:
    """Return the blobs of an offloaded module, in order. Raises ProgramError when it calls no VTA program."""
    blobs = [
        bytes(constant_value(binding.value.args[1].fields[0]).numpy().tobytes())  # type: ignore[union-attr]
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if _is_run(binding.value)
    ]
    if not blobs:
        raise ProgramError("a module that calls no VTA program", "one that graph_pack made for a target with a VTA")
    return blobs


def regions_of(mod: IRModule) -> list[Region]:
    """Return the regions of a module that graph_pack made."""
    return [region_from(*from_blob(blob)) for blob in blobs_of(mod)]


def replace_blobs(mod: IRModule, blobs: dict[bytes, bytes]) -> Any:
    """Return the module with its blobs replaced: old -> new."""
    replace = _ReplaceBlobs()
    replace.blobs = blobs
    builder = relax.BlockBuilder(
        tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): replace.visit_expr(mod["main"])})
    )
    return relax.transform.Normalize()(builder.get())


def _is_run(value: Any) -> bool:
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_dps_packed":
        return False
    return str(value.args[0].global_symbol) == RUN_FUNCTION


@mutator
class _ReplaceBlobs(PyExprMutator):  # type: ignore[misc]
    blobs: dict[bytes, bytes] = {}  # noqa: RUF012

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not _is_run(call):
            return call
        old = bytes(constant_value(call.args[1].fields[0]).numpy().tobytes())  # type: ignore[union-attr]
        new = constant(np.frombuffer(self.blobs[old], np.uint8), "uint8")
        arguments = relax.Tuple([new, *call.args[1].fields[1:]])
        return relax.Call(call.op, [call.args[0], arguments], call.attrs, type_arguments(call))
