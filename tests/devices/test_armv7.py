"""Test 32-bit Arm with NEON under qemu: libraries for Linux and Android, the runtime's own tests, the agent.

Integers bit for bit; floats within rounding. Android's library runs on a stand-in of bionic, on the C library of
Debian's armel, whose functions take floats as Android's do.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bionic_shims import write_shims
from tests.devices.agents import X, opened, session_with
from tests.devices.agents import compiled as compiled_library
from tests.devices.armv7 import ANDROID, LINUX, Armv7System, armv7_system, compiled, compiler_words
from tests.devices.test_arm64 import BOUNDS, RUNS, expected, in_precision
from tests.runtime.test_c import _sources
from tests.runtime.test_network import Branches, _network
from tvmflow.backends.backend import Backend
from tvmflow.backends.manifest import NetworkFile
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.link import link_rpc, write_network
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.programs import build_agent
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.shipping.bundle.abis import abi_named, abi_of
from tvmflow.shipping.bundle.elf import check_shared_object, versions_of
from tvmflow.sources.networks.torch_zoo import NETWORKS
from tvmflow.support.errors import BundleError, DeviceError, ToolchainError, WrongProcessorError
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.compilers import compiler_for

PROCESSORS = {LINUX: "cortex-a7", ANDROID: "cortex-a8"}
SYSTEMS = {LINUX: "armhf", ANDROID: "armel"}


@pytest.fixture(scope="module")
def system(own_home: Path) -> Armv7System:
    try:
        compiler_words("armhf")
        return armv7_system()
    except (DeviceError, ToolchainError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def runners(system: Armv7System, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program that runs a network, by triple; beside it for Android what stands for bionic."""
    made = {}
    for triple, architecture in SYSTEMS.items():
        folder = tmp_path_factory.mktemp(architecture)
        source = str(RUNTIME / "emulator" / "run.c")
        made[triple] = compiled(architecture, folder / "run", "-std=gnu11", "-Wno-error", source, "-ldl")
        if triple == ANDROID:
            write_shims(folder, "arm", compiler_words(architecture))
    return made


def backend(triple: str) -> Backend:
    return backend_of(ResolvedTarget("llvm", PROCESSORS[triple], triple, (), 2, compiler_for(triple)))


def linked(folder: Path, module: Any, triple: str, outputs: tuple[str, ...]) -> tuple[Path, NetworkFile]:
    found = backend(triple)
    packed = PackChannels(found.cpu_features().channel_block)(module)
    path = folder / f"{triple}.so"
    scheduled = build_scheduled(packed, found, {})
    return path, write_network(path, scheduled, _network(scheduled.module, outputs), found.target.compiler)


def ran(
    library: Path, runner: Path, system: Armv7System, triple: str, x: np.ndarray[Any, Any], threads: int = 2
) -> np.ndarray[Any, Any]:
    given, found = library.with_suffix(".in"), library.with_suffix(".out")
    x.tofile(given)
    words = [
        *system.command(SYSTEMS[triple], PROCESSORS[triple]),
        "-E",
        f"LD_LIBRARY_PATH={runner.parent}",
        str(runner),
    ]
    words += [str(library), str(threads), str(given), str(found)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return np.fromfile(found, np.float32).reshape(len(x), -1)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("precision", "triple"),
    [("float32", LINUX), ("float32", ANDROID), ("int8", LINUX), ("int8", ANDROID), ("float16", ANDROID)],
)
def test_digits_equal_this_machines_outputs(
    precision: str, triple: str, runners: dict[str, Path], system: Armv7System, tmp_path: Path
) -> None:
    x = np.random.default_rng(5).random((RUNS, 1, 1, 8, 8), dtype=np.float32)
    module = canonicalize(ExportedModel(NETWORKS["digits_cnn"]().eval(), (TensorSpec("x", (1, 1, 8, 8)),)).to_relax())
    if precision != "float32":
        module = in_precision(module, precision, x)
    path, _ = linked(tmp_path, module, triple, ("scores",))
    found, here = ran(path, runners[triple], system, triple, x), expected(module, x)
    assert np.abs(found - here).max() / here.std() <= BOUNDS[precision] and np.ptp(found) > 0


def test_two_outputs_on_three_threads_and_what_a_loader_looks_at(
    runners: dict[str, Path], system: Armv7System, tmp_path: Path
) -> None:
    triple = LINUX
    module = canonicalize(ExportedModel(Branches(3).eval(), (TensorSpec("x", (1, 3, 24, 24)),)).to_relax())
    path, made = linked(tmp_path, module, triple, ("scores", "features"))
    assert abi_of(triple).name == LINUX
    facts = check_shared_object(path, abi_of(triple), made.soname, made.symbol)
    assert "libc.so.6" in facts["needed"] and versions_of(path)
    for other, says in (("arm64-v8a", "of 64 bits for EM_AARCH64"), ("armeabi-v7a", "flags 0x5000400")):
        with pytest.raises(BundleError, match=says):
            check_shared_object(path, replace(abi_named(other), page=4096), made.soname, made.symbol)
    link_rpc(tmp_path / "rpc.so", backend(triple).target.compiler)
    x = np.random.default_rng(0).standard_normal((RUNS, 1, 3, 24, 24), dtype=np.float32)
    here = expected(module, x)
    assert np.abs(ran(path, runners[triple], system, triple, x, 3) - here).max() <= BOUNDS["float32"] * here.std()


@pytest.mark.parametrize("folder", [".", "images", "device"])
def test_the_runtimes_own_tests_pass(folder: str, system: Armv7System, tmp_path: Path) -> None:
    program = compiled("armhf", tmp_path / "driver", *map(str, _sources(folder)), "-pthread", "-lm")
    done = subprocess.run(
        [*system.command("armhf"), str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


HALVES = """
#include <stdint.h>
#include <stdio.h>
__attribute__((pcs("aapcs"))) float __gnu_h2f_ieee(uint16_t);
__attribute__((pcs("aapcs"))) uint16_t __gnu_f2h_ieee(float);
int64_t __divdi3(int64_t, int64_t), __fixdfdi(double);
double __floatundidf(uint64_t);
int main(void) {
  float number;
  if (__divdi3(-7000000000, 2) != -3500000000 || __fixdfdi(-7e9) != -7000000000) return 1;
  if (__floatundidf(1ull << 63) != 0x1p63) return 1;
  for (uint32_t half = 0; half < 65536; ++half) number = __gnu_h2f_ieee((uint16_t)half), fwrite(&number, 4, 1, stdout);
  while (fread(&number, 4, 1, stdin)) {
    uint16_t half = __gnu_f2h_ieee(number);
    fwrite(&half, 2, 1, stdout);
  }
  return 0;
}
"""


def test_16_bit_floats_are_those_of_numpy(system: Armv7System, tmp_path: Path) -> None:
    """Of processors without an instruction for them: every number of 16 bits, and ties, limits and random ones of
    32.
    """
    (tmp_path / "halves.c").write_text(HALVES)
    program = compiled("armhf", tmp_path / "halves", str(tmp_path / "halves.c"), str(RUNTIME / "src" / "arithmetic.c"))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)].astype(np.float32)
    near = [
        np.nextafter(x, y)
        for x in (finite, (finite[:-1] + finite[1:]) / 2)
        for y in (np.float32(-1e9), np.float32(1e9))
    ]
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    given = np.concatenate(
        [finite, (finite[:-1] + finite[1:]) / 2, *near, drawn, np.float32([65519.9, 65520, 1e-8, np.inf])]
    )
    done = subprocess.run(
        [*system.command("armhf"), str(program)], input=given.tobytes(), capture_output=True, check=True
    )
    np.testing.assert_array_equal(np.frombuffer(done.stdout[: 4 << 16], np.float32), halves.astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(np.frombuffer(done.stdout[4 << 16 :], np.float16), given.astype(np.float16))


def test_the_agent_serves_a_board_of_32_bits(system: Armv7System, libraries: dict[str, Path], tmp_path: Path) -> None:
    words = compiler_words("armhf")
    program = build_agent(tmp_path / "tvmflow-agent", words)
    right = compiled_library(tmp_path, "DOUBLES", words)
    command = [*system.command("armhf"), str(program)]
    with start_agent(command, str(tmp_path / "store")) as agent, session_with(agent) as session:
        assert session.probe()["machine"].startswith("arm")
        network = opened(session, right)
        assert np.array_equal(network.run(X)[0], 2 * X) and len(network.time_runs(2)) == 2
        with pytest.raises(WrongProcessorError, match="the library is for x86-64"):
            opened(session, libraries["DOUBLES"])


def test_the_agent_for_phones_of_32_bits_runs_their_library(
    runners: dict[str, Path], system: Armv7System, tmp_path: Path
) -> None:
    """Structures of files and numbers of dlopen differ from those of 64 bits."""
    try:
        program = build_agent(tmp_path / "agent", backend(ANDROID).target.compiler.words)
    except ToolchainError as error:
        pytest.skip(str(error))
    x = np.random.default_rng(5).random((1, 1, 1, 8, 8), dtype=np.float32)
    module = canonicalize(ExportedModel(NETWORKS["digits_cnn"]().eval(), (TensorSpec("x", (1, 1, 8, 8)),)).to_relax())
    path, _ = linked(tmp_path, module, ANDROID, ("scores",))
    shims = ["-E", f"LD_LIBRARY_PATH={runners[ANDROID].parent}"]
    loader = str(system.folder / "armel" / "lib" / "ld-linux.so.3")
    command = [*system.command("armel", PROCESSORS[ANDROID]), *shims, loader, str(program)]
    with start_agent(command, str(tmp_path / "store")) as agent, session_with(agent) as session:
        facts = session.probe()
        assert facts["machine"].startswith("arm") and facts["disk_free_bytes"] > 0
        found = np.asarray(opened(session, path).run(x[0])[0])
        assert session.upload(path) == session.upload(path)
    here = expected(module, x)[0]
    assert np.abs(found.reshape(-1) - here).max() <= BOUNDS["float32"] * here.std()
