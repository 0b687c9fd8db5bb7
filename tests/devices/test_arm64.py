"""Test network.so on arm64: cross-compiled, run on emulated processors, with the outputs of this machine.

Integers bit for bit; floats within rounding, since the order of sums differs with the width of vectors.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.devices.arm64 import TRIPLE, target
from tests.passes.test_int8_lookup_tables import ACTIVATIONS, Excited
from tests.runtime.test_network import Branches, _network
from tvmflow.backends.cpu import CpuBackend, host_backend
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import LocalRunner, build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.link import write_network
from tvmflow.config.stage_params import Int8Params, MixedOperators
from tvmflow.devices.emulation.processors import PROCESSORS
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.torch_zoo import NETWORKS
from tvmflow.targets.cpu_features import activations_of
from tvmflow.targets.resolve import Processor

RUNS = 3


class Built:
    """A network for arm64, and what it computes on an emulated processor."""

    def __init__(self, folder: Path, module: Any, compiled_for: str, outputs: tuple[str, ...]) -> None:
        self.backend = backend_of(target(compiled_for))
        packed = PackChannels(self.backend.cpu_features().channel_block)(module)
        self.path = folder / f"{compiled_for}.so"
        scheduled = build_scheduled(packed, self.backend, {})
        network = _network(scheduled.module, outputs, 1)
        self.made = write_network(self.path, scheduled, network, self.backend.target.compiler)

    def run(
        self, runner: Path, system: EmulatedSystem, processor: str, x: np.ndarray[Any, Any]
    ) -> subprocess.CompletedProcess[str]:
        given, found = self.path.with_suffix(".in"), self.path.with_suffix(".out")
        x.tofile(given)
        words = [*system.command(processor, counts=True), str(runner), str(self.path), "1", str(given), str(found)]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    def outputs(self, *how: Any) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Return the outputs of each run, and what one executes."""
        done = self.run(*how)
        assert done.returncode == 0, done.stderr
        return np.fromfile(self.path.with_suffix(".out"), np.float32).reshape(RUNS, -1), [
            int(word) for word in done.stdout.split()
        ]


def expected(module: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what this machine computes."""
    backend = host_backend()
    here = LocalRunner(PackChannels(backend.cpu_features().channel_block)(module), CpuBackend(replace(backend.target)))
    return np.stack([np.concatenate([y.reshape(-1) for y in here.run(one)]) for one in x])


def in_precision(module: Any, precision: str, x: np.ndarray[Any, Any], processor: str = "cortex-a76") -> Any:
    """Return a module as the pipeline makes it for a processor, whose dot products decide the type of activations."""
    options: MixedOperators | Int8Params = MixedOperators(low=("conv2d", "matmul"), high=("softmax", "sum", "mean"))
    if precision == "int8":
        options = Int8Params(max_drop=0.0, activations=activations_of(Processor(processor, TRIPLE, ())))
    samples = Samples((x.reshape(-1, *x.shape[2:]),), None)
    return to_precision(module, precision, PrecisionRequest(options, samples, lambda *_: None))[0]


# Largest difference over the spread of the outputs: sums in another order, rounded to the precision's digits.
BOUNDS = {"float32": 1e-5, "float16": 2e-2, "float16_acc32": 5e-3, "bfloat16": 4e-2, "int8": 1e-6}


@pytest.mark.few(2)
@pytest.mark.parametrize("precision", BOUNDS)
def test_digits_equal_this_machines_outputs(
    precision: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    x = np.random.default_rng(5).random((RUNS, 1, 1, 8, 8), dtype=np.float32)
    module = canonicalize(ExportedModel(NETWORKS["digits_cnn"]().eval(), (TensorSpec("x", (1, 1, 8, 8)),)).to_relax())
    if precision != "float32":
        module = in_precision(module, precision, x)
    here = expected(module, x)
    for processor in ("cortex-a53", "cortex-a76") if precision == "int8" else ("cortex-a76",):
        found, counts = Built(tmp_path, module, processor, ("scores",)).outputs(runner, emulated, processor, x)
        error = np.abs(found - here).max() / here.std()
        assert error <= BOUNDS[precision] and np.ptp(found) > 0
        instructions, mac_instructions, macs, loaded, stored, *missed = counts
        assert instructions > mac_instructions and macs >= mac_instructions and loaded > stored > 0
        assert missed == [0, 0], "no cache is simulated"
        assert macs >= 226048, "each multiplication of the network is one"


@pytest.mark.few(1)
@pytest.mark.parametrize("activation", ["silu", "hardswish", "gelu"])
def test_activations_of_bytes_are_looked_up(
    activation: str, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    x = np.random.default_rng(1).standard_normal((RUNS, 1, 3, 13, 11), dtype=np.float32)
    network = Excited(ACTIVATIONS[activation]).eval()
    module = canonicalize(ExportedModel(network, (TensorSpec("x", (1, 3, 13, 11)),)).to_relax())
    module = in_precision(module, "int8", x)
    built = Built(tmp_path, module, "cortex-a76", ("y",))
    assert (
        sum("look_up_byte_neon" in str(function) for function in lower(module, built.backend).functions.values()) == 3
    )
    found, _ = built.outputs(runner, emulated, "cortex-a76", x)
    assert np.array_equal(found, expected(module, x)) and np.ptp(found) > 0


@pytest.mark.parametrize("seed", range(2))
def test_random_networks_equal_this_machines_outputs(
    seed: int, runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    x = np.random.default_rng(seed).standard_normal((RUNS, 1, 3, 24, 24), dtype=np.float32)
    module = canonicalize(ExportedModel(Branches(seed).eval(), (TensorSpec("x", (1, 3, 24, 24)),)).to_relax())
    built = Built(tmp_path, module, "cortex-a72", ("scores", "features"))
    found, counts = built.outputs(runner, emulated, "max", x)
    here = expected(module, x)
    assert np.abs(found - here).max() <= BOUNDS["float32"] * here.std()
    assert built.outputs(runner, emulated, "cortex-a72", x)[1] == counts, "the same program executes the same"


def test_the_file_is_one_that_a_bundle_may_ship(runner: Path, tmp_path: Path) -> None:
    """Its machine, what it needs, pages of 16 KiB: all that the reader of bundles looks at."""
    module = canonicalize(ExportedModel(Branches(3).eval(), (TensorSpec("x", (1, 3, 24, 24)),)).to_relax())
    built = Built(tmp_path, module, "cortex-a53", ("scores", "features"))
    check_shared_object(built.path, replace(abi_named(TRIPLE), page=16384), built.made.soname, built.made.symbol)


def test_an_instruction_that_a_processor_lacks_ends_the_program(
    runner: Path, emulated: EmulatedSystem, tmp_path: Path
) -> None:
    """So that a library for the wrong processor is found out here."""
    source = tmp_path / "dot.c"
    source.write_text(
        'int main(void) { __asm__ volatile(".arch_extension dotprod\\n sdot v0.4s, v1.16b, v2.16b" ::: "v0"); }'
    )
    program = tmp_path / "dot"
    subprocess.run(target("cortex-a53").compiler.line(str(source), "-o", str(program)), check=True, timeout=300)
    ended = {
        name: subprocess.run([*emulated.command(name), str(program)], check=False).returncode for name in PROCESSORS
    }
    assert {name: code == 0 for name, code in ended.items()} == {
        n: "dotprod" in p.features for n, p in PROCESSORS.items()
    }
    assert {abs(code) for code in ended.values()} <= {0, 4, 132}  # SIGILL
