"""Build a network on VTA for device tests: its program, a library that calls it, and the expected outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.differential.vta_cases import random_conv
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.vta import VtaBackend
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link_rpc, write_network
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.vta.compiler.compiler import compile_region
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.program import Program
from tvmflow.vta.isa.region import Region, Sum, Tail, pack, packed_shape
from tvmflow.vta.runtime.device import SimulatorDriver
from tvmflow.vta.runtime.runtime import program_to_blob

SHAPE = (1, 32, 10, 10)
Array = np.ndarray[Any, Any]


def network(config: VtaConfig) -> Program:
    operators = (
        random_conv("a", "x", (32, 32), 3),
        random_conv("b", "a", (32, 32), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)),
    )
    return compile_region(config, Region({"x": SHAPE}, operators, ("s",)), "optimized")


def library_calling(program: Program, path: Path) -> Path:
    """Build a library whose main does nothing but run the program."""
    from tvm import relax

    from tvmflow.codegen.compile import build_scheduled
    from tvmflow.ir.relax.emit import build_main, constant
    from tvmflow.ir.relax.graph import Graph, TensorKind
    from tvmflow.vta.isa.config import RUN_FUNCTION

    builder, shape = relax.BlockBuilder(), packed_shape(program.config, SHAPE)
    blob = constant(np.frombuffer(program_to_blob(program), np.uint8), "uint8")

    def body(parameters: dict[str, Any]) -> list[Any]:
        call = relax.call_dps_packed(RUN_FUNCTION, [blob, parameters["x"]], relax.TensorType(shape, "int8"))
        return [builder.emit(call)]

    module = build_main(builder, Graph({"x": TensorKind(shape, "int8")}), body)
    scheduled = build_scheduled(module, vta_backend(program.config), {})
    host_backend().export(scheduled.executable, path)
    says = Network("it@vta:vta_int8", (TensorSpec("x", shape, "int8"),), ("y",), 1)
    write_network(path.with_name("network.so"), scheduled, says, Command(("gcc",)))
    link_rpc(path.with_name("rpc.so"), Command(("gcc",)))
    return path


def expected(program: Program, x: Array) -> Array:
    return SimulatorDriver().load(program).run([pack(program.config, x)])[0]


def vta_backend(config: VtaConfig) -> VtaBackend:
    options = {"config": config.to_json(), "mode": "optimized", "start": "auto", "stop": "auto"}
    return VtaBackend(replace(host_target(), kind="vta", options=options))
