"""Count the instructions of one inference on an emulated arm64 processor: arm64 wheels of other runtimes, and our
libraries untuned.

    python -m bench.instructions FILE... FOLDER... [--processor cortex-a76] [--mcpu neoverse-v1] [--caches]

A file is run by the program that its suffix names: .onnx (peer.onnx of the stage import_model, too) by ONNX Runtime,
.tflite by LiteRT with XNNPACK, .mnn by MNN (made by mnnconvert), .param with the .bin beside it by ncnn (made by pnnx
with fp16=0). A folder is the output of the stage quantize (or import_model), which is packed, built without records and
run as network.so. Tuned cells have `executed` in their scorecards (docs/devices.md). Counted is the run of fewest
instructions, of runs until two agree, at most five, or our second one: the first prepare. Whole tables of networks:
bench.arm64_networks. Needs a network on first use.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system
from tvmflow.support.errors import DeviceError

LINE_BYTES = 64  # of the simulated caches
LIMIT_S = 1800  # of a program under qemu
_NUMPY = "numpy==2.4.6"
# Each defines `run`, an inference with one thread; float32 stays float32 unless `half` is true.
_ONNXRUNTIME = """
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.log_severity_level = 3
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
names = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
given = {
    one.name: draw.random([d if isinstance(d, int) else 1 for d in one.shape]).astype(names[one.type])
    for one in session.get_inputs()
}
run = lambda: session.run(None, given)
"""
_LITERT = """
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
for one in interpreter.get_input_details():
    interpreter.set_tensor(one["index"], (100 * draw.random(one["shape"])).astype(one["dtype"]))
run = interpreter.invoke
"""
_MNN = """
import MNN
interpreter = MNN.Interpreter(sys.argv[1])
session = interpreter.createSession({"numThread": 1, "backend": "CPU", "precision": "low" if half else "high"})
for one in interpreter.getSessionInputAll(session).values():
    given = draw.random(one.getShape(), dtype=np.float32)
    one.copyFrom(MNN.Tensor(one.getShape(), MNN.Halide_Type_Float, given, MNN.Tensor_DimensionType_Caffe))
run = lambda: interpreter.runSession(session)
"""
_NCNN = """
import ncnn
net = ncnn.Net()
net.opt.num_threads = 1
net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = half
net.opt.use_bf16_storage = False
net.load_param(sys.argv[1])
net.load_model(sys.argv[1].removesuffix("param") + "bin")
given = ncnn.Mat(draw.random([int(word) for word in sys.argv[2].split("x")[-3:]], dtype=np.float32))
def run():
    extractor = net.create_extractor()
    extractor.input(net.input_names()[0], given)
    extractor.extract(net.output_names()[0])
"""
# Suffix of a file -> what it is run by: arm64 wheels and code.
PEERS = {
    ".onnx": (
        ["onnxruntime==1.31.1", _NUMPY, "flatbuffers==25.12.19", "protobuf==6.33.2", "packaging==25.0"],
        _ONNXRUNTIME,
    ),
    ".tflite": (
        [
            "ai-edge-litert==2.3.0",
            _NUMPY,
            "backports-strenum==1.2.8",
            "flatbuffers==25.12.19",
            "protobuf==6.33.2",
            "typing-extensions==4.15.0",
        ],
        _LITERT,
    ),
    ".mnn": (["MNN==3.6.1", _NUMPY], _MNN),
    ".param": (["ncnn==1.0.20261020", _NUMPY], _NCNN),
}
INSIDE = """
import ctypes, sys
import numpy as np
draw = np.random.default_rng(0)
half = sys.argv[3] == "half"
{peer}
libc = ctypes.CDLL(None)
def look():
    counters = (ctypes.c_uint64 * 7)()
    libc.syscall(7201, counters, 56)
    return list(counters)
runs = []
for _ in range(5):
    before = look()
    run()
    runs.append([b - a for a, b in zip(before, look())])
    if len(runs) > 1 and abs(runs[-1][0] - runs[-2][0]) < 1e-3 * runs[-1][0]:
        break
print("counted", *min(runs), flush=True)
"""


# qemu-user shows its host's; ONNX Runtime asks here which core it runs on, and ends with SIGSEGV where it finds none of
# arm64.
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
    parser.add_argument("--mcpu", help="what ours are compiled for, of LLVM's names; the processor unless given")
    parser.add_argument(
        "--input", default="1x3x224x224", help="shape of the input of ncnn's networks, which do not say it"
    )
    parser.add_argument(
        "--caches", action="store_true", help="simulate the processor's L1 and L2, several times as slow"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        count(with_cpuinfo(emulated_system(), Path(folder)), options)


def own(system: EmulatedSystem, module: Any, processor: str, mcpu: str, caches: bool = False) -> tuple[str, list[Any]]:
    """Build a module for a processor of LLVM's, with default schedules; return what a run of its network.so on one of
    qemu's prints, and its outputs.
    """
    from tvmflow.ir.relax.graph import read_graph

    with tempfile.TemporaryDirectory() as name:
        words = write_own(module, target_of(mcpu), Path(name))
        command = [*system.command(processor, counts=True, caches=caches), *words]
        found = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
        return found, _outputs((Path(name) / "out").read_bytes(), read_graph(module))


def write_own(module: Any, target: Any, folder: Path) -> list[str]:
    """Build a module for a target, with default schedules, and a program that runs it with one thread; return the words
    of its command.
    """
    from tvmflow.backends.registry import backend_of
    from tvmflow.codegen.compile import build_scheduled
    from tvmflow.codegen.network.description import Network
    from tvmflow.codegen.network.link import write_network
    from tvmflow.codegen.network.runtime_sources import RUNTIME
    from tvmflow.config.stage_params import TuneParams
    from tvmflow.frontends.source_model import TensorSpec
    from tvmflow.ir.relax.graph import read_graph
    from tvmflow.support.dtypes import numpy_dtype
    from tvmflow.tuning.winograd_choice import choose_by_cost

    backend = backend_of(target)
    graph = read_graph(module)
    inputs = tuple(TensorSpec(name, kind.shape, kind.dtype) for name, kind in graph.inputs.items())
    packed = backend.pack(module, None)[0]
    scheduled = build_scheduled(
        packed, backend, {}, winograd=choose_by_cost(packed, backend, TuneParams().winograd_bounds)
    )
    outputs = tuple(f"y{at}" for at in range(len(graph.outputs)))
    network = Network("bench@arm64:float32", inputs, outputs, 1)
    write_network(folder / "network.so", scheduled, network, backend.target.compiler)
    source = [f"-I{RUNTIME / 'include'}", str(RUNTIME / "emulator" / "run.c")]
    line = backend.target.compiler.line("-O2", *source, "-o", str(folder / "run"), "-ldl")
    subprocess.run(line, check=True, capture_output=True)
    given = [x.astype(numpy_dtype(one.dtype)).tobytes() for one, x in zip(inputs, samples_of(inputs), strict=True)]
    (folder / "in").write_bytes(b"".join(given))
    return [str(folder / "run"), str(folder / "network.so"), "1", str(folder / "in"), str(folder / "out")]


def target_of(mcpu: str) -> Any:
    """Return the target of a processor of LLVM's."""
    from tvmflow.targets.resolve import ResolvedTarget
    from tvmflow.toolchain.compilers import compiler_for

    triple = "aarch64-linux-gnu"
    return ResolvedTarget("llvm", mcpu, triple, (), 1, compiler_for(triple))


def samples_of(inputs: Any) -> list[Any]:
    """Return the random inputs that ours are run with: numbers from 0 to 1."""
    draw = np.random.default_rng(0)
    return [draw.random(one.shape) for one in inputs]


def _outputs(content: bytes, graph: Any) -> list[Any]:
    from tvmflow.support.dtypes import numpy_dtype

    found, begin = [], 0
    for one in graph.outputs:
        kind = graph.kind(one)
        dtype = np.dtype(numpy_dtype(kind.dtype))
        size = int(np.prod(kind.shape)) * dtype.itemsize
        found.append(np.frombuffer(content[begin : begin + size], dtype).reshape(kind.shape))
        begin += size
    return found


def theirs(
    system: EmulatedSystem, file: Path, processor: str, shape: str, half: bool = False, caches: bool = False
) -> str:
    """Return what a run of a file by its program prints. half: MNN and ncnn may compute in float16.

    Raises RuntimeError with the program's last words.
    """
    pins, peer = PEERS[file.suffix]
    packages, code = str(emulated_system().wheels(pins)), INSIDE.replace("{peer}", peer)
    command = [
        *system.command(processor, counts=True, caches=caches),
        str(system.python),
        "-c",
        code,
        str(file.resolve()),
        shape,
    ]
    try:
        done = subprocess.run(
            [*command, "half" if half else "single"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={"PYTHONPATH": packages},
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it did not end within {LIMIT_S} s") from None
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return next(line for line in done.stdout.splitlines() if line.startswith("counted ")).removeprefix("counted ")


def count(system: EmulatedSystem, options: argparse.Namespace) -> None:
    """Print a line for each file and folder."""
    from tvmflow.ir.relax.serialization import load_module

    print(
        f"{'file':40} {'M instructions':>15} {'M multiply-adds':>16} {'share':>6} {'MB loaded':>10} {'MB stored':>10} "
        f"{'MB beyond L1':>13} {'beyond L2':>10}"
    )
    for file in options.files:
        try:
            found = (
                own(system, load_module(file), options.processor, options.mcpu or options.processor, options.caches)[0]
                if file.is_dir()
                else theirs(system, file, options.processor, options.input, caches=options.caches)
            )
        except (RuntimeError, DeviceError) as error:
            print(f"{str(file)[-40:]:40} not counted: {error}", flush=True)
            continue
        instructions, macs, products, loaded, stored, *missed = (int(word) for word in found.split())
        beyond = [f"{LINE_BYTES * lines / 1e6:.2f}" if options.caches else "-" for lines in missed]
        print(
            f"{str(file)[-40:]:40} {instructions / 1e6:15.2f} {products / 1e6:16.2f} {macs / instructions:6.0%} "
            f"{loaded / 1e6:10.2f} {stored / 1e6:10.2f} "
            f"{beyond[0]:>13} {beyond[1]:>10}",
            flush=True,
        )


if __name__ == "__main__":
    main()
