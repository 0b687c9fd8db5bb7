"""Test that a library for arm64 refuses each processor without its instructions, before any of its code runs."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.devices.arm64 import target
from tests.devices.test_arm64 import RUNS, in_precision
from tests.runtime.test_network import _network
from tests.shipping.test_variants import PROGRAM, RUNTIME
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.link import write_network
from tvmflow.devices.emulation.processors import PROCESSORS
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.sources.networks.torch_zoo import NETWORKS
from tvmflow.targets.processor_flags import judged_flags

# Linux's name -> LLVM's.
FLAGS = {"asimdhp": "fullfp16", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2"}


def _under(
    system: EmulatedSystem, processor: str, program: Path, *words: str | Path
) -> subprocess.CompletedProcess[str]:
    command = [*system.command(processor), str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_runtime_knows_each_processor(runner: Path, emulated: EmulatedSystem, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    include = [f"-I{RUNTIME / name}" for name in ("include", "src")]
    sources = [str(tmp_path / "program.c"), str(RUNTIME / "src" / "processor.c")]
    program = tmp_path / "program"
    subprocess.run(
        target("cortex-a53").compiler.line("-Wall", "-Werror", *include, *sources, "-o", str(program)), check=True
    )
    for name, processor in PROCESSORS.items():
        said = _under(emulated, name, program, *FLAGS, "unknown")
        assert said.returncode == 0, said.stderr
        assert said.stdout.split() == [flag for flag, feature in FLAGS.items() if feature not in processor.features]


@pytest.mark.parametrize(
    ("precision", "flag", "instruction"),
    [("float16", "asimdhp", r"fmla\tv\d+\.8h"), ("int8", "asimddp", r"sdot\tv")],
    ids=["float16", "int8"],
)
def test_a_library_refuses_processors_without_its_instructions(
    precision: str, flag: str, instruction: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """Without its flags the same code ends with SIGILL."""
    x = np.random.default_rng(5).random((RUNS, 1, 1, 8, 8), dtype=np.float32)
    module = ExportedModel(NETWORKS["digits_cnn"]().eval(), (TensorSpec("x", (1, 1, 8, 8)),)).to_relax()
    backend = backend_of(target("cortex-a76"))
    packed = PackChannels(backend.cpu_features().channel_block)(in_precision(canonicalize(module), precision, x))
    scheduled = build_scheduled(packed, backend, {})
    code = "".join(part.inspect_source("asm") for part in scheduled.executable.mod.imports if part.kind == "llvm")
    assert re.search(instruction, code)
    network, flags = _network(scheduled.module, ("y",), 1), judged_flags(backend.target)
    assert flag in flags
    x.tofile(tmp_path / "in")
    said = {}
    for name, kept in (("without", ()), ("with", flags)):
        library = tmp_path / f"{name}.so"
        write_network(library, scheduled, replace(network, flags=kept), backend.target.compiler)
        words = (runner, library, "1", tmp_path / "in", tmp_path / "out")
        said |= {(name, processor): _under(emulated, processor, *words) for processor in PROCESSORS}
    for processor in ("cortex-a53", "cortex-a72"):
        assert said["without", processor].returncode in (-4, 132), "SIGILL"
        done = said["with", processor]
        assert done.returncode == 1 and "this processor has no atomics, which the library was" in done.stderr, done
    for processor in ("cortex-a76", "max"):
        assert said["with", processor].returncode == 0, said["with", processor].stderr
