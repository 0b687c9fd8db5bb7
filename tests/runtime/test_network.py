"""Test that network.so equals the same kernels in TVM's runtime bit for bit."""

from __future__ import annotations

import os
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.wide_models import OUTPUTS, described, samples_for
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LoadedLibrary, Scheduled, build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import kernel_objects, write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.codegen.network.plan import Plan, Value
from tvmflow.codegen.network.plan_check import check
from tvmflow.codegen.network.plan_reader import plan_of
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.config.stage_params import Int8Params, MixedOperators
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.support.errors import StageError
from tvmflow.toolchain.compilers import Command

BACKEND = host_backend()


class Branches(nn.Module):
    """A chain of blocks drawn from a seed: concatenations, sums, depthwise and grouped convolutions, pools; two
    outputs.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        self.kinds = [str(draw.choice(["fire", "residual", "depthwise", "pool", "dense"])) for _ in range(4)]
        channels, blocks = 16, []
        for kind in self.kinds:
            if kind == "fire":
                blocks.append(
                    nn.ModuleList([nn.Conv2d(channels, 16, 1), nn.Conv2d(16, 32, 1), nn.Conv2d(16, 16, 3, padding=1)])
                )
                channels = 48
            elif kind == "residual":
                blocks.append(
                    nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 1)])
                )
            elif kind == "dense":
                blocks.append(nn.ModuleList([nn.Conv2d(channels, 16, 3, padding=1)]))
                channels += 16
            else:
                blocks.append(nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1, groups=channels)]))
        self.blocks, self.first, self.head = nn.ModuleList(blocks), nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(channels, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x))
        for kind, block in zip(self.kinds, self.blocks, strict=True):
            parts: Any = block
            if kind == "fire":
                y = torch.relu(parts[0](y))
                y = torch.cat([torch.relu(parts[1](y)), torch.relu(parts[2](y))], 1)
            elif kind == "residual":
                y = torch.relu(y + parts[1](torch.relu(parts[0](y))))
            elif kind == "dense":
                y = torch.cat([y, parts[0](y)], 1)
            elif kind == "depthwise":
                y = nn.functional.hardswish(parts[0](y))
            else:
                y = nn.functional.max_pool2d(y, 3, 1, 1)
        features = y.mean((2, 3))
        return self.head(features), features


def _network(module: Any, outputs: tuple[str, ...], threads: int = 2) -> Network:
    inputs = tuple(
        TensorSpec(str(at), tuple(int(x) for x in type_of(p).shape), str(type_of(p).dtype))
        for at, p in enumerate(module["main"].params)
    )
    return Network("any@host:any", inputs, outputs, threads)


def _machine(executable: Any) -> Any:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(*inputs: Any) -> tuple[Any, ...]:
        found = machine(*map(tvm.runtime.tensor, inputs))
        return tuple(x.numpy() for x in ([found] if hasattr(found, "numpy") else found))

    return run


def _check_same(
    scheduled: Scheduled, outputs: tuple[str, ...], samples: tuple[Any, ...], folder: Path
) -> OpenedNetwork:
    """Run every sample on memory that is not new, on several numbers of threads."""
    path = folder / "network.so"
    write_network(path, scheduled, _network(scheduled.module, outputs), Command(("g++",)))
    reference = _machine(scheduled.executable)
    for threads in (1, 3):
        network = OpenedNetwork(path, threads)
        for at in range(len(samples[0])):
            given = tuple(x[at : at + 1] for x in samples)
            for a, b in zip(network.run(*given), reference(*given), strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    assert len({network.run(*(x[at : at + 1] for x in samples))[0].tobytes() for at in range(len(samples[0]))}) > 1
    return network


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_any_chain_of_blocks_has_the_same_bits(seed: int, tmp_path: Path) -> None:
    model = ExportedModel(Branches(seed).eval(), (TensorSpec("x", (1, 3, 24, 24)),))
    packed = PackChannels(16)(canonicalize(model.to_relax()))
    scheduled = build_scheduled(packed, BACKEND, {})
    samples = np.random.default_rng(seed).standard_normal((3, 3, 24, 24), dtype=np.float32)
    _check_same(scheduled, ("scores", "features"), (samples,), tmp_path)


@pytest.mark.few(3)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["text", "segmenter", "two"])
def test_wide_models_in_every_precision_have_the_same_bits(name: str, precision: str, tmp_path: Path) -> None:
    inputs = samples_for(name, 8)
    module = canonicalize(load_source(tmp_path, described(name, "onnx", tmp_path)).to_relax())
    if precision != "float32":
        options: MixedOperators | Int8Params = MixedOperators(low=("conv2d", "matmul"), high=("softmax", "sum"))
        if precision == "int8":
            options = Int8Params(max_drop=0.0)
        module = to_precision(module, precision, PrecisionRequest(options, inputs, lambda *_: None))[0]
    _check_same(build_scheduled(PackChannels(16)(module), BACKEND, {}), OUTPUTS[name], inputs.inputs, tmp_path)


@pytest.fixture(scope="module")
def scheduled() -> Scheduled:
    model = ExportedModel(Branches(1).eval(), (TensorSpec("x", (1, 3, 24, 24)),))
    return build_scheduled(PackChannels(16)(canonicalize(model.to_relax())), BACKEND, {})


def test_the_file_needs_the_c_library_alone_and_is_the_same_each_time(scheduled: Scheduled, tmp_path: Path) -> None:
    network = _network(scheduled.module, ("scores", "features"))
    for name in ("network.so", "again/network.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        made = write_network(tmp_path / name, scheduled, network, Command(("g++",)))
    assert (tmp_path / "network.so").read_bytes() == (tmp_path / "again" / "network.so").read_bytes()

    def read(*options: str) -> str:
        return subprocess.run(
            [*options, str(tmp_path / "network.so")], capture_output=True, text=True, check=True
        ).stdout

    dynamic, segments = read("readelf", "-dW"), read("readelf", "-lW")
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line}
    assert (
        needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"} and "libc.so.6" in needed
    )
    exported = [line.split()[-1] for line in read("nm", "-D", "--defined-only").splitlines()]
    assert sorted(exported) == ["tvmflow_network", made.symbol]
    assert "TEXTREL" not in dynamic and not [
        line for line in segments.splitlines() if "GNU_STACK" in line and "E" in line.split()[-2]
    ]
    assert all(
        int(line.split()[-1], 16) % 16384 == 0 for line in segments.splitlines() if line.strip().startswith("LOAD")
    )
    assert made.constant_bytes + made.arena_bytes > 0 and made.kernel_calls == len(
        plan_of(scheduled.module, scheduled.backend.device_program).steps
    )


def test_any_number_of_threads_has_the_same_bits_in_every_run(scheduled: Scheduled, tmp_path: Path) -> None:
    """Also while the threads of each kernel are tried; and there are never more than CPUs."""
    path, cpus = tmp_path / "network.so", len(os.sched_getaffinity(0))
    write_network(path, scheduled, _network(scheduled.module, ("scores", "features")), Command(("g++",)))
    x = np.random.default_rng(0).standard_normal((1, 3, 24, 24), dtype=np.float32)
    expected = [y.tobytes() for y in OpenedNetwork(path, 1).run(x)]
    for threads in (2, 4):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            network = OpenedNetwork(path, threads)
        assert network.network.threads == min(threads, cpus)
        assert [str(one.message) for one in told] == [
            f"{cpus} threads instead of {threads}: as many as there are CPUs"
        ] * (cpus < threads)
        for _ in range(60):
            assert [y.tobytes() for y in network.run(x)] == expected


def test_kernels_are_the_objects_of_the_executable(scheduled: Scheduled, tmp_path: Path) -> None:
    """Those that TVM exports, and tuning measured."""
    given: list[bytes] = []

    def keep(_output: str, objects: Any, **_options: Any) -> None:
        given.extend(Path(file).read_bytes() for file in objects)

    keep.output_format = "so"  # type: ignore[attr-defined]
    scheduled.executable.export_library(str(tmp_path / "library.so"), fcompile=keep)
    ours = [file.read_bytes() for file in kernel_objects(scheduled.executable.mod.imports, tmp_path)]
    assert ours and all(file in given for file in ours)


def _moved(plan: Plan, at: int, offset: int) -> Plan:
    memories = list(plan.memories)
    memories[at] = replace(memories[at], offset=offset)
    return replace(plan, memories=tuple(memories))


def test_a_plan_in_which_two_values_meet_is_refused(scheduled: Scheduled) -> None:
    plan = plan_of(scheduled.module, scheduled.backend.device_program)
    arena = [at for at, memory in enumerate(plan.memories) if memory.place == "arena"]
    assert plan.arena_bytes < sum(plan.memories[at].size for at in arena), "memory is used again"
    refused = 0
    for at in arena:
        for other in arena:
            moved = _moved(plan, at, plan.memories[other].offset)
            try:
                check(moved)
            except StageError:
                refused += 1
    assert refused >= len(arena)
    value = next(i for i, v in enumerate(plan.values) if plan.memories[v.memory].place == "arena")
    values = [*plan.values]
    values[value] = Value(values[value].memory, 64, values[value].shape, values[value].dtype)
    with pytest.raises(StageError, match="beyond its memory"):
        check(replace(plan, values=tuple(values)))


def test_an_app_in_c_needs_a_compiler_and_the_header_alone(scheduled: Scheduled, tmp_path: Path) -> None:
    """Linked with the library, and with a second network in the same process."""
    names = ("first", "second")
    for name in names:
        network = replace(
            _network(scheduled.module, ("scores", "features")), cell=f"{name}@host:float32", labels=("cat", "dog")
        )
        made = write_network(tmp_path / f"lib{name}_host_float32.so", scheduled, network, Command(("g++",)))
        assert made.soname == f"lib{name}_host_float32.so"  # of its own, or a process could have but one of them
    (tmp_path / "app.c").write_text(_APP)
    command = [
        "gcc",
        "-std=c11",
        "-Wall",
        "-Werror",
        f"-I{RUNTIME / 'include'}",
        "app.c",
        "-L.",
        "-lfirst_host_float32",
        "-lsecond_host_float32",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        "app",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "app")], capture_output=True, text=True, check=True, env={})
    x = ((np.arange(3 * 24 * 24) % 13) / 13).astype(np.float32).reshape(1, 3, 24, 24)
    expected = _machine(scheduled.executable)(x)[0][0]
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["first@host:float32", "second@host:float32"]
    for line in lines:
        assert np.array_equal(np.array(line.split()[2:], np.float32), expected) and line.split()[1] == "dog"


_APP = """\
#include <stdio.h>
#include "tvmflow.h"
const tvmflow_api *tvmflow_network_first_host_float32(void);
const tvmflow_api *tvmflow_network_second_host_float32(void);

static int run(const tvmflow_api *api) {
  static float x[3 * 24 * 24], y[7], z[256];
  tvmflow_instance *net;
  for (int i = 0; i < 3 * 24 * 24; ++i) x[i] = (float)(i % 13) / 13;
  if (api->create(NULL, &net) || api->run(net, (const void *[]){x}, (void *[]){y, z})) return 1;
  api->destroy(net);
  printf("%s %s", api->network, api->labels[api->label_count - 1]);
  for (int i = 0; i < 7; ++i) printf(" %.9g", y[i]);
  printf("\\n");
  return 0;
}

int main(void) {
  return run(tvmflow_network_first_host_float32()) || run(tvmflow_network_second_host_float32());
}
"""


def test_a_library_in_this_process_leaves_all_cores_to_it(scheduled: Scheduled, tmp_path: Path) -> None:
    """TVM binds the thread that sets its pool; threads and processes started later would share that one core."""
    allowed = os.sched_getaffinity(0)
    BACKEND.export(scheduled.executable, tmp_path / "library.so")
    LoadedLibrary(tmp_path / "library.so", 2).run(np.ones((1, 3, 24, 24), np.float32))
    assert os.sched_getaffinity(0) == allowed
