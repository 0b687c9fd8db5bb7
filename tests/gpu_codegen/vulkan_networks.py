"""Build hand-written Vulkan networks: a plan in C, linked with the host code and a main program, for lavapipe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmflow.support.errors import DeviceError
from tvmflow.support.paths import RUNTIME
from tvmflow.toolchain.software_gpus import SoftwareDrivers, software_drivers

Array = np.ndarray[Any, Any]
HERE = Path(__file__).parent
ALIGNMENT = 512
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of DLPack
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
_SOURCES = ("network_vulkan.c", "network_vulkan_memory.c", "network_vulkan_programs.c", "program_cache.c", "vulkan.c")


@dataclass(frozen=True)
class Value:
    """place: INPUT, OUTPUT, CONSTANT or ARENA; offset: bytes, of constants and arena alone."""

    place: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    index: int = 0
    offset: int = 0

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Kernel:
    """arguments: positions of values."""

    spirv: bytes
    groups: tuple[int, int, int]
    group_size: tuple[int, int, int]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class HandMade:
    """copies: (from, to), positions of values. constants: all of them, as bytes."""

    values: Sequence[Value]
    kernels: Sequence[Kernel]
    constants: bytes = b""
    copies: Sequence[tuple[int, int]] = ()

    def of(self, place: str) -> list[Value]:
        """Return the values of a place, inputs and outputs in their order."""
        return sorted((value for value in self.values if value.place == place), key=lambda value: value.index)


@cache
def software() -> SoftwareDrivers:
    """Return the drivers in software, or skip the test."""
    try:
        return software_drivers()
    except DeviceError as error:
        pytest.skip(str(error))


def _numbers(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "0"


def _bytes(name: str, data: bytes) -> str:
    return f"_Alignas(64) static const unsigned char {name}[] = {{{_numbers(list(data))}}};"


def _tensors(name: str, values: Sequence[Value]) -> str:
    return _table("tvmflow_tensor", name, [f'{{.name = "x", .size = {value.size}}}' for value in values])


def _table(kind: str, name: str, items: Sequence[str]) -> str:
    return f"static const {kind} {name}[] = {{{', '.join(items or ['{0}'])}}};"


def plan_text(network: HandMade) -> str:
    """Return a plan in C."""
    codes = list(dict.fromkeys(kernel.spirv for kernel in network.kernels))
    lines = ['#include "network_gpu.h"', _bytes("constants", network.constants or b"\0")]
    lines += [_bytes(f"code{i}", code) for i, code in enumerate(codes)]
    lines += [
        f"static const int64_t shape{i}[] = {{{_numbers(value.shape)}}};" for i, value in enumerate(network.values)
    ]
    lines.append("static const plan_value values[] = {")
    for i, value in enumerate(network.values):
        bits = np.dtype(value.dtype).itemsize * 8
        lines.append(
            f"  {{PLAN_{value.place}, {_CODES[np.dtype(value.dtype).kind]}, {bits}, {len(value.shape)}, "
            f"{value.index}, {value.offset}u, shape{i}, NULL}},"
        )
    arguments = [at for kernel in network.kernels for at in kernel.arguments]
    steps, kernels, used = [], [], 0
    for i, kernel in enumerate(network.kernels):
        at = codes.index(kernel.spirv)
        steps.append(f'{{NULL, "step{i}", {used}, {len(kernel.arguments)}, 0, 0, NULL}}')
        kernels.append(
            f'{{"step{i}", code{at}, sizeof code{at}, {{{_numbers(kernel.groups)}}}, '
            f"{{{_numbers(kernel.group_size)}}}}}"
        )
        used += len(kernel.arguments)
    copies = [f"{{{a}, {b}, {network.values[a].size}}}" for a, b in network.copies]
    arena = max((value.offset + value.size for value in network.of("ARENA")), default=0)
    lines += [
        "};",
        f"static const uint32_t arguments[] = {{{_numbers(arguments)}}};",
        _table("plan_step", "steps", steps),
        _table("plan_copy", "copies", copies),
        _table("plan_gpu_kernel", "kernels", kernels),
        _tensors("inputs", network.of("INPUT")),
        _tensors("outputs", network.of("OUTPUT")),
        "static const plan_gpu gpu = {&gpu_vulkan, kernels, 0, 0, 0};",
        "const plan_tables plan = {.values = values, .arguments = arguments, .steps = steps, .copies = "
        "copies, .inputs = inputs, .outputs = outputs,",
        f"  .constants = constants, .value_count = {len(network.values)}, .argument_count = "
        f"{len(arguments)}, .step_count = {len(steps)},",
        f"  .copy_count = {len(copies)}, .gpu = &gpu}};",
        f"const tvmflow_api plan_api = {{.inputs = {len(network.of('INPUT'))}, .outputs = "
        f"{len(network.of('OUTPUT'))}, .arena_size = {arena}u,",
        f"  .constant_size = {len(network.constants)}}};",
    ]
    return "\n".join(lines) + "\n"


def build(folder: Path, network: HandMade, flags: Sequence[str] = ("-O1",)) -> Path:
    """Compile a network to a program."""
    include = [f"-I{RUNTIME / name}" for name in ("include", "src", "gpu")]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.c").write_text(plan_text(network))
    sources = [folder / "plan.c", HERE / "vulkan_main.c", *(RUNTIME / "gpu" / name for name in _SOURCES)]
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE=", *flags, *include]
    subprocess.run([*command, "-o", str(folder / "network"), *map(str, sources), "-ldl"], check=True)
    return folder / "network"


def build_shim(folder: Path) -> Path:
    """Return a loader whose faults are told by the environment, in front of the one that REAL names."""
    library = folder / "libvulkan.so.1"
    command = ["gcc", "-std=c11", "-Wall", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{RUNTIME / 'gpu'}"]
    subprocess.run([*command, "-o", str(library), str(HERE / "vulkan_shim.c"), "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Ran:
    """nanoseconds: of each step, all runs together; error: what the program said, "" for nothing."""

    outputs: list[Array]
    nanoseconds: list[int]
    error: str


def run(
    program: Path,
    network: HandMade,
    inputs: Sequence[Array],
    runs: int = 1,
    *,
    cache_in: Path | None = None,
    device: str = "-",
    library: str = "",
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a program on lavapipe. runs: every second one is timed; all where negative."""
    driver = software().lavapipe
    given, made = program.parent / "inputs", program.parent / "outputs"
    given.write_bytes(b"".join(np.ascontiguousarray(one).tobytes() for one in inputs))
    words = [library or str(driver.library), str(cache_in or "-"), device, str(runs), str(given), str(made)]
    done = subprocess.run(
        [str(program), *words],
        env={**os.environ, **driver.environment, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    error = done.stderr.strip()
    assert bool(error) == bool(done.returncode), done
    if error:
        return Ran([], [], error)
    data, outputs, at = made.read_bytes(), [], 0
    for value in network.of("OUTPUT"):
        outputs.append(np.frombuffer(data, value.dtype, int(np.prod(value.shape)), at).reshape(value.shape))
        at += value.size
    return Ran(outputs, [int(line) for line in done.stdout.split()], "")


def ran(folder: Path, network: HandMade, inputs: Sequence[Array]) -> list[Array]:
    """Build and run a network once; return its outputs."""
    done = run(build(folder, network), network, inputs)
    assert not done.error, done.error
    return done.outputs
