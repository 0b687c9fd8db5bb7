"""Estimate the cycles of whole networks on cores of arm64 by LLVM's scheduling models: ours untuned, beside peers.

    PYTHONPATH=FOLDER:FOLDER python -m bench.arm64_cycles [NAME ...] [--precision float32] [--peers ncnn mnn litert]
        [--cores cortex-a53 cortex-a55 cortex-a76 cortex-x1 neoverse-n1]
    python -m bench.arm64_cycles NAME ... --here x86-64-v3 znver4

Names, weights, peers and PYTHONPATH are those of bench.arm64_networks. A program runs on an emulated cortex-a76, and a
plugin of qemu's records every block of instructions and how often it ran; llvm-mca gives the cycles of a block that is
repeated on a core. Their sum is the estimate, for peers as for ours. It knows no caches (bench.arm64_networks --caches
counts what they miss), no branches that are mispredicted, and no other code between two runs of a block.

--here compiles for a processor of LLVM's that qemu-x86_64 can run, estimates it for a core, and measures the same
library on this machine, which must have that core: the error of the model. Needs LLVM 18 to 20 (llvm-mca), gcc, and for
--here qemu-x86_64.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.arm64_networks import PRECISIONS, Made, calibrated
from bench.core_model import MODELS, Block, Estimate, estimate, read_blocks
from bench.instructions import samples_of, with_cpuinfo, write_own
from bench.kept_counts import OURS, SUFFIXES
from bench.side_by_side import geometric_mean
from tvmflow.devices.emulation.system import EmulatedSystem, compile_plugin, emulated_system

_PLUGIN = Path(__file__).parent / "emulator" / "blocks.c"
_ARM64, _X86 = "aarch64-linux-gnu", "x86_64-linux-gnu"
_ROUNDS = 40
_CLOCK = """
#include <stdint.h>
void chain(uint64_t count) { for (uint64_t i = 0; i < count; ++i) __asm__ volatile("add $1, %%rax" ::: "rax"); }
"""


@dataclass(frozen=True)
class RecordingSystem(EmulatedSystem):
    """An emulated system whose programs write their blocks beside a file."""

    plugin: Path
    out: Path

    def command(self, processor: str, counts: bool = False, caches: bool = False) -> list[str]:
        command = super().command(processor)
        at = command.index("-L")
        return [*command[:at], "-plugin", f"{self.plugin},out={self.out}", *command[at:]]

    def recorded(self, first: int) -> list[Block]:
        """Return the blocks of the run with the fewest instructions, of the runs between every second pair of reads
        from the first on, and remove all files.
        """
        files = {int(file.name.rpartition("-")[2]): file for file in self.out.parent.glob(f"{self.out.name}-*")}
        runs = [read_blocks(file) for at, file in files.items() if at >= first and (at - first) % 2 == 0]
        for file in files.values():
            file.unlink()
        return min(runs, key=lambda blocks: sum(one.executed for one in blocks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--peers", nargs="*", choices=SUFFIXES, default=["ncnn", "mnn"])
    parser.add_argument("--cores", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--here", nargs=2, metavar=("MCPU", "CORE"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugin = folder / "blocks.so"
        compile_plugin(_PLUGIN, plugin)
        if options.here:
            check_here(options.names, options.here, plugin, folder)
        else:
            compare(options, RecordingSystem(with_cpuinfo(emulated_system(), folder).folder, plugin, folder / "blocks"))


def compare(options: argparse.Namespace, system: RecordingSystem) -> None:
    """Print for each network and core the M cycles of ours and of each peer, and the ratio to the best peer."""
    print(f"{'network':32} {'core':12} {OURS:>9} " + " ".join(f"{by:>9}" for by in options.peers) + "    ratio")
    ratios: dict[str, list[float]] = {core: [] for core in options.cores}
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            made = Made(name, options.precision, Path(folder), calibrated(name))
            made.ours(system, False)
            blocks = {OURS: system.recorded(2)}
            for by in options.peers:
                try:
                    made.theirs(by, system, False)
                    blocks[by] = system.recorded(1)
                except Exception as error:  # of any tool
                    print(f"{name:32} {by}: {str(error)[-120:]}", flush=True)
        for core in options.cores:
            found = {by: estimate(one, _ARM64, MODELS[core]).cycles for by, one in blocks.items()}
            best = min((cycles for by, cycles in found.items() if by != OURS), default=None)
            if best is not None:
                ratios[core].append(found[OURS] / best)
            cells = (f"{found[by] / 1e6:9.1f}" if by in found else f"{'-':>9}" for by in (OURS, *options.peers))
            print(f"{name:32} {core:12} {' '.join(cells)}" + (f" {ratios[core][-1]:8.2f}" if best else ""), flush=True)
    for core, each in ratios.items():
        if each:
            print(f"{'geometric mean':32} {core:12} {geometric_mean(each):.3f}")


def check_here(names: list[str], made_for: Sequence[str], plugin: Path, folder: Path) -> None:
    """Print for each network the cycles of one run as estimated, and as measured on this machine. made_for: the
    processor that the code is for, and the core.
    """
    mcpu, core = made_for
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        raise SystemExit("no qemu-x86_64 on PATH: apt-get install qemu-user")
    print(f"{'network':32} {'M estimated':>12} {'M measured':>11} {'ratio':>6}")
    ratios = []
    for name in names:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found, measured = _both(name, mcpu, core, [qemu, "-cpu", "max", "-plugin", f"{plugin},out={place}/blocks"])
        ratios.append(found.cycles / measured)
        print(f"{name:32} {found.cycles / 1e6:12.1f} {measured / 1e6:11.1f} {ratios[-1]:6.2f}", flush=True)
    print(f"{'geometric mean':32} {geometric_mean(ratios):31.2f}")


def _both(name: str, mcpu: str, core: str, emulated: list[str]) -> tuple[Estimate, float]:
    """Return the estimate of one run of a network, and its measured cycles."""
    from bench.zoo import network_named
    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.support.runtime_binding import network_binding
    from tvmflow.targets.resolve import ResolvedTarget
    from tvmflow.toolchain.compilers import compiler_for

    inputs = network_named(name).inputs
    module = canonicalize(ExportedModel(calibrated(name), inputs).to_relax())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = write_own(module, ResolvedTarget("llvm", mcpu, _X86, (), 1, compiler_for(_X86)), folder)
        out = Path(emulated[-1].partition("out=")[2])
        subprocess.run([*emulated, *words], check=True, capture_output=True)
        blocks = read_blocks(out.with_name(f"{out.name}-2"))
        network = network_binding().Network(folder / "network.so")
        given = [x.astype(one.dtype) for one, x in zip(inputs, samples_of(inputs), strict=True)]
        network(*given)
        cycles = []
        for _ in range(_ROUNDS):  # cores change their clock: each run by the clock behind it
            started = time.perf_counter()
            network(*given)
            cycles.append((time.perf_counter() - started) * _clock_hz(folder))
        return estimate(blocks, _X86, core), min(cycles)


def _clock_hz(folder: Path, count: int = 2_000_000) -> float:
    """Return the clock of this core, by additions that wait for each other, a cycle each."""
    library = folder / "clock.so"
    if not library.exists():
        source = folder / "clock.c"
        source.write_text(_CLOCK, encoding="ascii")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    chain = ctypes.CDLL(str(library)).chain
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        chain(ctypes.c_uint64(count))
        best = min(best, time.perf_counter() - started)
    return count / best


if __name__ == "__main__":
    main()
