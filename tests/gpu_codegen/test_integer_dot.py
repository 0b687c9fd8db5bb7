"""Compare int8 convolutions in words of four, on OpenCL and Vulkan, exactly with numpy, for all shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.gpu_codegen.drivers import run_on
from tvmflow.backends.backend import Backend
from tvmflow.backends.registry import backend_named
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import SoftwareDrivers, software_drivers

WAYS = ("opencl", "opencl textures", "vulkan")


@pytest.fixture(scope="module")
def drivers() -> SoftwareDrivers:
    return software_drivers()


def backend_with_words(way: str) -> Backend:
    api, _, textures = way.partition(" ")
    options: dict[str, Any] = {"software": True, "kind": "generic", "integer_dot": True}
    if api == "opencl":
        options["textures"] = bool(textures)
    return backend_named(api)(replace(host_target(), kind=api, options=options))


class Convolution:
    """Draws a convolution of int8: channels, window, stride, dilation, groups, and what fills the border."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.groups = int(draw.choice([1, 1, 1, 2]))
        inputs, outputs = (4 * self.groups * int(draw.integers(1, 5)) for _ in range(2))
        kernel = int(draw.choice([1, 3, 5]))
        self.stride, self.dilation = int(draw.choice([1, 2])), int(draw.choice([1, 2]))
        self.border, self.filling = int(draw.integers(0, 3)), int(draw.integers(-128, 128))
        size = (kernel - 1) * self.dilation + int(draw.integers(1, 9))
        self.x = draw.integers(
            -128, 128, (int(draw.integers(1, 3)), inputs, size, size + int(draw.integers(0, 4))), np.int8
        )
        self.weight = draw.integers(-128, 128, (outputs, inputs // self.groups, kernel, kernel), np.int8)

    def module(self) -> Any:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(self.x.shape, "int8"))
        sides, weight = [0, 0, 0, 0, *[self.border] * 4], relax.const(self.weight, "int8")
        how = {"strides": self.stride, "dilation": self.dilation, "groups": self.groups, "out_dtype": "int32"}
        with builder.function("main", [x]):
            with builder.dataflow():
                y = builder.emit(relax.op.nn.pad(x, sides, pad_value=float(self.filling))) if self.border else x
                output = builder.emit_output(builder.emit(relax.op.nn.conv2d(y, weight, **how)))
            builder.emit_func_output(output)
        return builder.finalize()

    def expected(self) -> Any:
        """Return the sums by NumPy, in float64, which holds them exactly."""
        width = self.border
        x = np.pad(self.x.astype(float), ((0, 0), (0, 0), (width, width), (width, width)), constant_values=self.filling)
        kernel, step = self.weight.shape[2], self.stride
        reach = (kernel - 1) * self.dilation + 1
        rows, columns = ((extent - reach) // step + 1 for extent in x.shape[2:])
        found = np.zeros((x.shape[0], self.weight.shape[0], rows, columns))
        inputs, outputs = (extent // self.groups for extent in (x.shape[1], self.weight.shape[0]))
        for group in range(self.groups):
            of, to = slice(group * inputs, (group + 1) * inputs), slice(group * outputs, (group + 1) * outputs)
            for row in range(kernel):
                for column in range(kernel):
                    top, left = row * self.dilation, column * self.dilation
                    part = x[:, of, top : top + rows * step : step, left : left + columns * step : step]
                    found[:, to] += np.einsum(
                        "nihw,oi->nohw", part[:, :, :rows, :columns], self.weight[to, :, row, column]
                    )
        return found


@pytest.mark.few(5)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(6))
def test_sums_are_exact(seed: int, way: str, drivers: SoftwareDrivers, tmp_path: Path) -> None:
    drawn, backend = Convolution(seed), backend_with_words(way)
    packed, facts = backend.pack(drawn.module(), None)
    scheduled = build_scheduled(packed, backend, {})
    assert facts["packed_convolutions"] == 1
    assert "dot4" in scheduled.module.script()
    network = Network(f"any@{way}:int8", (TensorSpec("x", drawn.x.shape, "int8"),), ("y",), 1)
    write_network(tmp_path / "network.so", scheduled, network, Command(("gcc",)))
    driver = drivers.lavapipe if way == "vulkan" else drivers.pocl
    for found in run_on(driver, tmp_path / "network.so", (drawn.x,), tmp_path):
        np.testing.assert_array_equal(found, drawn.expected())
