"""Executed instructions of one inference on an emulated arm64 processor, one thread: ONNX Runtime's wheel, and our libraries untuned.

    python -m bench.instructions FILE.onnx... FOLDER... [--processor cortex-a76]

A file is run by ONNX Runtime; it may be peer.onnx of the stage import_model. A folder is the output of the stage quantize (or import_model), which is
packed, built without records and run as network.so. Tuned cells have `executed` in their scorecards (docs/devices.md). Counted is the
run after the first ones, which prepare. Needs a network on first use.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system

PEERS = ["onnxruntime==1.31.1", "numpy==2.4.6", "flatbuffers==25.12.19", "protobuf==6.33.2", "packaging==25.0"]
MAX_ERROR = 2e-5  # the default of tune.winograd_max_error
INSIDE = """
import ctypes, sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.log_severity_level = 3
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
draw = np.random.default_rng(0)
names = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
given = {one.name: draw.random([d if isinstance(d, int) else 1 for d in one.shape]).astype(names[one.type]) for one in session.get_inputs()}
libc = ctypes.CDLL(None)
def look():
    counters = (ctypes.c_uint64 * 5)()
    libc.syscall(7201, counters, 40)
    return list(counters)
for _ in range(3):
    before = look()
    session.run(None, given)
    after = look()
print(*(b - a for a, b in zip(before, after)))
"""


# qemu-user shows its host's; ONNX Runtime asks here which core it runs on, and ends with SIGSEGV where it finds none of arm64.
CPUINFO = """\
processor\t: 0
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

"""


def with_cpuinfo(system: EmulatedSystem, folder: Path) -> EmulatedSystem:
    """Return a copy of the system in which /proc/cpuinfo is that of one Cortex-A76."""
    (folder / "qemu").symlink_to(system.folder / "qemu")
    shutil.copytree(system.root, folder / "root", symlinks=True)
    (folder / "root" / "proc").mkdir(exist_ok=True)
    (folder / "root" / "proc" / "cpuinfo").write_text(CPUINFO)
    return EmulatedSystem(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--processor", default="cortex-a76")
    options = parser.parse_args()
    packages = str(emulated_system().wheels(PEERS))
    with tempfile.TemporaryDirectory() as folder:
        count(with_cpuinfo(emulated_system(), Path(folder)), packages, options.files, options.processor)


def own(system: EmulatedSystem, module: Path, processor: str) -> str:
    """Build the module of a folder with default schedules and return what a run of its network.so prints."""
    from tvmflow.backends.table import backend_of
    from tvmflow.building.library import build_scheduled
    from tvmflow.building.runtime import RUNTIME
    from tvmflow.building.self_contained import Network, write_network
    from tvmflow.compilers import compiler_for
    from tvmflow.frontends.source_model import TensorSpec
    from tvmflow.ir.graph import read_graph
    from tvmflow.ir.ir_files import load_module, numpy_dtype
    from tvmflow.targets.resolve import ResolvedTarget
    from tvmflow.tuning.algorithms import unmeasured

    triple = "aarch64-linux-gnu"
    backend = backend_of(ResolvedTarget("llvm", processor, triple, (), 1, compiler_for(triple)))
    loaded = load_module(module)
    graph = read_graph(loaded)
    inputs = tuple(TensorSpec(name, kind.shape, kind.dtype) for name, kind in graph.inputs.items())
    packed = backend.pack(loaded, None)[0]
    scheduled = build_scheduled(packed, backend, {}, winograd=unmeasured(packed, backend, {"float32": MAX_ERROR}))
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outputs = tuple(f"y{at}" for at in range(len(graph.outputs)))
        write_network(
            folder / "network.so", scheduled, Network(str(module), inputs, outputs, 1), backend.target.compiler
        )
        source = [f"-I{RUNTIME / 'include'}", str(RUNTIME / "emulator" / "run.c")]
        subprocess.run(backend.target.compiler.line("-O2", *source, "-o", str(folder / "run"), "-ldl"), check=True)
        given = [draw.random(one.shape).astype(numpy_dtype(one.dtype)).tobytes() for one in inputs]
        (folder / "in").write_bytes(b"".join(given))
        words = [str(folder / "run"), str(folder / "network.so"), "1", str(folder / "in"), str(folder / "out")]
        command = [*system.command(processor, counts=True), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True).stdout


def theirs(system: EmulatedSystem, file: Path, processor: str, packages: str) -> str:
    """Return what a run of a file by ONNX Runtime prints."""
    command = [*system.command(processor, counts=True), str(system.python), "-c", INSIDE, str(file.resolve())]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1800, check=True, env={"PYTHONPATH": packages}
    ).stdout


def count(system: EmulatedSystem, packages: str, files: list[Path], processor: str) -> None:
    """Print a line for each file and folder."""
    print(
        f"{'file':40} {'M instructions':>15} {'M multiply-adds':>16} {'share':>6} {'MB loaded':>10} {'MB stored':>10}"
    )
    for file in files:
        found = own(system, file, processor) if file.is_dir() else theirs(system, file, processor, packages)
        instructions, macs, products, loaded, stored = (int(word) for word in found.split())
        print(
            f"{str(file)[-40:]:40} {instructions / 1e6:15.2f} {products / 1e6:16.2f} {macs / instructions:6.0%} "
            f"{loaded / 1e6:10.2f} {stored / 1e6:10.2f}"
        )


if __name__ == "__main__":
    main()
