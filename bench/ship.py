"""Compare a library without TVM with what apps use instead: size, cold start, memory and latency, in one run.

Baselines are TVM's runtime, ONNX Runtime, OpenVINO, MNN and ncnn; LiteRT for Keras models and ExecuTorch for those of
PyTorch, both with XNNPACK. ExecuTorch's Python package starts PyTorch with it, which an app in C++ does not: its start
and memory are upper bounds.

    python -m bench.ship [CELL ...] [--rounds 9]

Of cells that were built (`tvmflow run CELL`). Cold start: from the start of a Python process with numpy to the first
output, median of the rounds, the runtimes taking turns; peak memory: resident set of that process less that of one that
imports numpy alone. Latency: network.so beside library.so in TVM's virtual machine, the same kernels, in turns of 0.3 s
in one process; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.litert import write_tflite
from bench.peers import module_of
from tvmflow.backends.manifest import Manifest, read_manifest
from tvmflow.codegen.network.runtime_sources import RUNTIME
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace
from tvmflow.frontends.source_model import read_description
from tvmflow.support.tvm_import import prepare_import_of_tvm

_HEAD = (
    "import sys, numpy as np\nspecs, path, threads = {specs!r}, {path!r}, {threads}\nx = [np.ones(s, d) "
    "for s, d in specs]\n"
)
_STARTS = {
    "numpy alone": "",
    "network.so": (
        f"sys.path.insert(0, {str(RUNTIME / 'python')!r})\nfrom tvmflow_network import Network\nNetwork(path "
        f"+ '/network.so', threads)(*x)"
    ),
    "library.so": "import os; os.environ['TVM_NUM_THREADS'] = str(threads)\n"
    "from tvmflow.support.tvm_import import prepare_import_of_tvm; prepare_import_of_tvm()\nimport "
    "tvm\nfrom tvm import relax\n"
    "relax.VirtualMachine(tvm.runtime.load_module(path + '/library.so'), "
    "tvm.cpu())['main'](*map(tvm.runtime.tensor, x))",
}
# What apps would use instead, where it is installed: how its file is made of ONNX (None: it reads ONNX), and a start
# with it.
_PEERS: dict[str, tuple[list[str] | None, str]] = {
    "onnxruntime": (
        None,
        "import onnxruntime as ort\no = ort.SessionOptions(); o.intra_op_num_threads = threads\n"
        "s = ort.InferenceSession(path + '/peer.onnx', o, ['CPUExecutionProvider'])\ns.run(None, "
        "dict(zip([i.name for i in s.get_inputs()], x)))",
    ),
    "openvino": (
        None,
        "import openvino as ov\n"
        "ov.compile_model(path + '/peer.onnx', 'CPU', {'INFERENCE_NUM_THREADS': threads, "
        "'INFERENCE_PRECISION_HINT': 'f32'})(x)",
    ),
    "MNN": (
        ["mnnconvert", "-f", "ONNX", "--modelFile", "peer.onnx", "--MNNModel", "peer.mnn", "--bizCode", "bench"],
        "import MNN, MNN.expr as F\nr = MNN.nn.create_runtime_manager(({'backend': 'CPU', 'numThread': threads},))\n"
        "n = MNN.nn.load_module_from_file(path + '/peer.mnn', [], [], runtime_manager=r)\n"
        "v = [F.placeholder(list(a.shape), F.NCHW) for a in x]\nfor a, b in zip(v, x): "
        "a.write(b)\nn.forward(v)[0].read()",
    ),
    "ncnn": (
        ["pnnx", "peer.onnx", "fp16=0"],
        "import ncnn\nn = ncnn.Net(); n.opt.num_threads = threads\n"
        "n.load_param(path + '/peer.ncnn.param'); n.load_model(path + '/peer.ncnn.bin'); e = n.create_extractor()\n"
        "for i, a in enumerate(x): e.input(f'in{i}', ncnn.Mat(a[0]))\nnp.array(e.extract('out0')[1])",
    ),
}


# Baselines whose files are made of the source model, not of ONNX: the framework that they take, and a start with them.
_OF_SOURCE: dict[str, tuple[str, str]] = {
    "ai_edge_litert": (
        "keras",
        "from ai_edge_litert.interpreter import Interpreter\ni = Interpreter(path + '/peer.tflite', "
        "num_threads=threads)\n"
        "i.allocate_tensors()\ng = i.get_input_details()[0]\ni.set_tensor(g['index'], np.ones(g['shape'], "
        "g['dtype']))\n"
        "i.invoke(); i.get_tensor(i.get_output_details()[0]['index'])",
    ),
    "executorch": (
        "torch",
        "import torch\ntorch.set_num_threads(threads)\nfrom executorch.runtime import Runtime\n"
        "m = Runtime.get().load_program(path + "
        "'/peer.pte').load_method('forward')\nm.execute([torch.from_numpy(a) for a in x])",
    ),
}


_TAIL = "\nprint([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"


def _start(code: str) -> tuple[float, float]:
    """Run Python once; returns seconds from start to end and its peak resident memory in MB."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code + _TAIL], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    )
    return time.perf_counter() - begin, int(done.stdout.split()[-1]) / 1024


def _peer_starts(onnx: Path, folder: Path) -> dict[str, str]:
    """Make the files of all installed peers in a folder; returns the code of their starts."""
    if not onnx.is_file():
        return {}
    codes = {}
    for file in onnx.parent.glob("peer.onnx*"):
        shutil.copyfile(file, folder / file.name)
    for name, (convert, code) in _PEERS.items():
        if importlib.util.find_spec(name) is None:
            print(f"  {name} is not installed: pip install --group bench")
            continue
        if convert is not None:
            tool = str(Path(sys.executable).parent / convert[0])
            subprocess.run([tool, *convert[1:]], cwd=folder, check=True, capture_output=True, timeout=600)
        codes[name] = code
    return codes


def _source_starts(workspace: Workspace, cell: Cell, folder: Path) -> dict[str, str]:
    """The same for those that take the source model."""
    framework, codes = workspace.params.models[cell.model].framework, {}
    for name, (wanted, code) in _OF_SOURCE.items():
        if framework == wanted and importlib.util.find_spec(name) is not None:
            if wanted == "keras":
                write_tflite(workspace, cell, folder / "peer.tflite")
            else:
                _write_pte(workspace, cell, folder / "peer.pte")
            codes[name] = code
    return codes


def _write_pte(workspace: Workspace, cell: Cell, path: Path) -> None:
    """Lower a PyTorch model as fetched to XNNPACK."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    specs = read_description(workspace.folder("fetch", cell)).inputs
    exported = torch.export.export(module_of(workspace, cell), tuple(torch.ones(spec.shape) for spec in specs))
    program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    path.write_bytes(program.buffer)


def starts(
    workspace: Workspace, cell: Cell, specs: list[tuple[tuple[int, ...], str]], threads: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return for each runtime the median seconds of a start and the median of its memory in MB."""
    folder, onnx = workspace.folder("build", cell), workspace.folder("import_model", cell) / "peer.onnx"
    with tempfile.TemporaryDirectory() as converted:
        codes = {name: (folder, code) for name, code in _STARTS.items()}
        peers = _peer_starts(onnx, Path(converted)) | _source_starts(workspace, cell, Path(converted))
        codes |= {name: (Path(converted), code) for name, code in peers.items()}
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in codes}
        for _ in range(rounds):
            for name, (where, code) in codes.items():
                measured[name].append(_start(_HEAD.format(specs=specs, path=str(where), threads=threads) + code))
    return {
        name: (statistics.median(x[0] for x in rows), statistics.median(x[1] for x in rows))
        for name, rows in measured.items()
    }


def latencies(folder: Path, manifest: Manifest, rounds: int) -> tuple[float, float, list[float]]:
    """Return the median seconds of a run of network.so and of library.so, and the ratio of each round; both timed by
    TVM in C++.
    """
    threads = manifest.target.threads
    os.environ["TVM_NUM_THREADS"] = str(threads)
    prepare_import_of_tvm()
    import tvm
    from tvm import relax

    inputs = [tvm.runtime.tensor(np.ones(spec.shape, spec.dtype)) for spec in manifest.inputs]
    outputs = [tvm.runtime.empty(spec.shape, spec.dtype, tvm.cpu()) for spec in manifest.outputs]
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "library.so")), tvm.cpu())
    machine.set_input("main", *inputs)
    server, error = tvm.runtime.load_module(str(folder / "rpc.so")), tvm.runtime.tensor(np.zeros(512, np.uint8))
    path = tvm.runtime.tensor(np.frombuffer(f"{folder / 'network.so'}\0".encode(), np.uint8))
    arguments = (server["open"](path, threads, 0, error), *inputs, *outputs, error)

    def ours(count: int) -> list[float]:
        return list(server.time_evaluator("run", tvm.cpu(), number=1, repeat=count)(*arguments).results)

    def theirs(count: int) -> list[float]:
        return list(machine.time_evaluator("invoke_stateful", tvm.cpu(), number=1, repeat=count)("main").results)

    count = max(5, int(0.3 / statistics.median(theirs(5))))
    pairs = []
    for at in range(rounds):
        turns = {run: statistics.median(run(count)) for run in ((ours, theirs) if at % 2 else (theirs, ours))}
        pairs.append((turns[ours], turns[theirs]))
    return (*map(statistics.median, zip(*pairs, strict=True)), [a / b for a, b in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", default=["digits"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    workspace = find_workspace(None)
    for name in options.cells:
        cell = workspace.params.cell(name)
        folder = workspace.folder("build", cell)
        manifest = read_manifest(folder)
        specs = [(spec.shape, spec.dtype) for spec in manifest.inputs]
        threads, made = manifest.target.threads, manifest.network
        print(
            f"\n{cell}: network.so {made.size:,} bytes, of it weights {made.constant_bytes:,}; arena "
            f"{made.arena_bytes:,}; "
            f"library.so {manifest.library.size:,}"
        )
        measured = starts(workspace, cell, specs, threads, options.rounds)
        base_s, base_mb = measured.pop("numpy alone")
        ours_s, ours_mb = measured["network.so"][0] - base_s, measured["network.so"][1] - base_mb
        for runtime, (seconds, megabytes) in measured.items():
            s, mb = seconds - base_s, megabytes - base_mb
            print(
                f"  {runtime:12} first output after {1000 * s:8.1f} ms ({ours_s / s:5.2f})   memory "
                f"{mb:8.1f} MB ({ours_mb / mb:5.2f})"
            )
        ours, theirs, ratios = latencies(folder, manifest, options.rounds)
        print(
            f"  latency {1000 * ours:.3f} ms, in TVM's virtual machine {1000 * theirs:.3f} ms: "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
