"""Executed instructions of one inference of ONNX files by ONNX Runtime's arm64 wheel, on an emulated processor, one thread.

    python -m bench.instructions FILE.onnx... [--processor cortex-a76]

What stands beside them is `executed` in the scorecard of a cell on an emulated target (docs/devices.md). A file may be peer.onnx of the
stage import_model. Counted is the third run: the first ones prepare. Needs a network on first use.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system

PEERS = ["onnxruntime==1.31.1", "numpy==2.4.6", "flatbuffers==25.12.19", "protobuf==6.33.2", "packaging==25.0"]
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


def count(system: EmulatedSystem, packages: str, files: list[Path], processor: str) -> None:
    """Print a line for each file."""
    command = [*system.command(processor, counts=True), str(system.python), "-c", INSIDE]
    print(
        f"{'file':40} {'M instructions':>15} {'M multiply-adds':>16} {'share':>6} {'MB loaded':>10} {'MB stored':>10}"
    )
    for file in files:
        done = subprocess.run(
            [*command, str(file.resolve())], capture_output=True, text=True, timeout=1800, check=True, env={"PYTHONPATH": packages}
        )  # fmt: skip
        instructions, macs, products, loaded, stored = (int(word) for word in done.stdout.split())
        print(
            f"{str(file)[-40:]:40} {instructions / 1e6:15.2f} {products / 1e6:16.2f} {macs / instructions:6.0%} "
            f"{loaded / 1e6:10.2f} {stored / 1e6:10.2f}"
        )


if __name__ == "__main__":
    main()
