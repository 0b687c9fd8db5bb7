"""Compare the latency of built networks with other runtimes, in one run.

    pip install --group bench && python -m bench.peers [CELL ...] [--rounds 15]

Brings the cells all the way, then measures library and peers, each in a process of its own with the same input and
threads, in turns of a fraction of a second, as evaluate does (tvmflow/evaluation/interleaved_timing.py). A figure is
the median of the turns' medians, a ratio the median of the rounds' ratios, below 1 where the library is faster; "="
stands where the interval over the rounds holds 1, and a last line for what other processes took of the machine
meanwhile. The last columns are the error of the library's output and of ONNX Runtime's, relative to the largest output
of PyTorch or Keras in float64. For int8 cells ONNX Runtime and OpenVINO run what ONNX Runtime's quantizer makes of the
same network and calibration samples; for bfloat16 cells OpenVINO runs as it comes and PyTorch in bfloat16; what has no
such mode stays in float32. LiteRT takes Keras models, in float32.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.litert import litert_runner
from bench.side_by_side import (
    LEAST_RUNS,
    TURN_S,
    Peer,
    environment,
    geometric_mean,
    milliseconds,
    print_if_busy,
    ratio_of,
    serve,
    shows_a_difference,
    turns_of,
)
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.interleaved_timing import Turn, TurnRules
from tvmflow.frontends.source_model import read_description

CELLS = tuple(
    f"{model}@local-cpu:float32"
    for model in (
        "resnet18",
        "resnet50",
        "mobilenet_v2",
        "mobilenetv2_050",
        "squeezenet_v1_1",
        "vgg16",
        "inception_v3",
    )
)
PEERS = ("tvmflow", "onnxruntime", "openvino", "torch", "torch_compile", "litert")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", default=list(CELLS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="+", choices=PEERS[1:], default=list(PEERS[1:]))
    parser.add_argument("--peer", choices=(*PEERS, "errors"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    workspace = Workspace(Path.cwd())
    if options.peer:
        _serve(workspace, workspace.params.cell(options.cells[0]), options)
        return
    subprocess.run([sys.executable, "-m", "tvmflow", "run", *options.cells], check=True, stdout=subprocess.DEVNULL)
    print(
        f"{'cell':36}"
        + "".join(f"{name:>22}" for name in ("tvmflow", *options.peers))
        + f"{'best peer':>12}{'error':>10}{'ORT error':>11}"
    )
    ratios = []
    for cell in options.cells:
        turns = _measure(cell, ["tvmflow", *options.peers], options)
        if "tvmflow" not in turns or len(turns) < 2:
            raise SystemExit(f"{cell}: the library and at least one peer must run; why they did not is above")
        relative = {name: ratio_of(turns["tvmflow"], taken) for name, taken in turns.items()}
        shown = {
            name: f"{relative[name]:.2f}" if shows_a_difference(turns["tvmflow"], turns[name]) else "="
            for name in turns
        }
        ratio = max(value for name, value in relative.items() if name != "tvmflow")
        ratios.append(ratio)
        with _peer(cell, "errors", options) as judge:
            errors = judge.ask(1) or {}
        ms = {name: f"{milliseconds(taken):.3g} ms" for name, taken in turns.items()}
        columns = [ms["tvmflow"]] + [f"{ms[name]} ({shown[name]})" if name in ms else "-" for name in options.peers]
        print(
            f"{cell:36}" + "".join(f"{text:>22}" for text in columns) + f"{ratio:12.2f}"
            f"{errors.get('tvmflow', math.nan):10.1e}{errors.get('onnxruntime', math.nan):11.1e}",
            flush=True,
        )
        print_if_busy(turns)
    print(f"geometric mean against the best peer of each: {geometric_mean(ratios):.3f}")


def _measure(cell: str, names: list[str], options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Return the turns of those that run the cell at all."""
    starts = {name: partial(_peer, cell, name, options) for name in names}
    return turns_of(starts, TurnRules(options.rounds, TURN_S, LEAST_RUNS))


def _peer(cell: str, name: str, options: argparse.Namespace) -> Peer:
    arguments = ["bench.peers", cell, "--peer", name, "--threads", str(options.threads)]
    return Peer(f"{cell} {name}", arguments, environment(options.threads))


def _serve(workspace: Workspace, cell: Cell, options: argparse.Namespace) -> None:
    if options.peer == "errors":
        print(json.dumps(_errors(workspace, cell)), flush=True)
        return
    serve(_RUNNERS[options.peer](workspace, cell, input_of(workspace, cell), options.threads))


def input_of(workspace: Workspace, cell: Cell) -> np.ndarray[Any, Any]:
    with np.load(workspace.folder("fetch", cell) / "golden.npz", allow_pickle=False) as data:
        x: np.ndarray[Any, Any] = data["x"][:1]
        return x


def virtual_machine(workspace: Workspace, cell: Cell, x: Any) -> tuple[Any, Any]:
    """Return the built library's machine and its input."""
    import tvm
    from tvm import relax

    library = workspace.folder("build", cell) / "library.so"
    machine = relax.VirtualMachine(tvm.runtime.loadmodule_of(str(library)), tvm.cpu())
    return machine, tvm.runtime.tensor(np.ascontiguousarray(x))


def _tvmflow(workspace: Workspace, cell: Cell, x: Any, _threads: int) -> Callable[[], Any]:
    machine, tensor = virtual_machine(workspace, cell, x)
    return lambda: machine["main"](tensor)


def _onnx_file(workspace: Workspace, cell: Cell, folder: Path) -> Path:
    """Return the network as ONNX; for int8 cells quantized by ONNX Runtime with the same calibration samples."""
    plain = workspace.folder("import_model", cell) / "peer.onnx"
    if cell.precision != "int8":
        return plain
    with np.load(workspace.folder("fetch", cell) / "calibration.npz", allow_pickle=False) as data:
        samples = data["x"][:32]
    for file in plain.parent.glob("peer.onnx*"):  # the quantizer leaves files beside what it reads
        shutil.copyfile(file, folder / file.name)
    return quantized_onnx(folder / plain.name, [(sample[None],) for sample in samples])


def quantized_onnx(plain: Path, samples: Sequence[tuple[Any, ...]]) -> Path:
    """Quantize a model with ONNX Runtime's static quantizer (QDQ, weights per channel); return the file, int8.onnx
    beside it.

    samples: inputs of single runs, in the model's order.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            import onnx

            names = [given.name for given in onnx.load(plain, load_external_data=False).graph.input]
            self.rest = iter([dict(zip(names, sample, strict=True)) for sample in samples])

        def get_next(self) -> Any:
            return next(self.rest, None)

    result = plain.with_name("int8.onnx")
    quantize_static(
        plain,
        result,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return result


def onnxruntime_session(workspace: Workspace, cell: Cell, x: Any, threads: int, profile: str = "") -> tuple[Any, Any]:
    """Return a session and its feed. profile: prefix of the file for its profile, where one is wanted."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    with tempfile.TemporaryDirectory() as folder:
        file = _onnx_file(workspace, cell, Path(folder))
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return session, {session.get_inputs()[0].name: x}


def _onnxruntime(workspace: Workspace, cell: Cell, x: Any, threads: int) -> Callable[[], Any]:
    session, feed = onnxruntime_session(workspace, cell, x, threads)
    return lambda: session.run(None, feed)


def openvino_request(workspace: Workspace, cell: Cell, x: Any, threads: int, profile: bool = False) -> tuple[Any, Any]:
    """Return the compiled model and a request that has its input."""
    with tempfile.TemporaryDirectory() as folder:
        return openvino_of(_onnx_file(workspace, cell, Path(folder)), (x,), cell.precision, threads, profile)


def openvino_of(
    file: Path, inputs: Sequence[Any], precision: str, threads: int, profile: bool = False
) -> tuple[Any, Any]:
    """Return the compiled model of an ONNX file and a request that has its inputs."""
    import openvino

    core = openvino.Core()
    model = core.read_model(file)
    model.reshape({at: x.shape for at, x in enumerate(inputs)})
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "PERF_COUNT": profile}
    if precision != "bfloat16":
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = core.compile_model(model, "CPU", options)
    request = compiled.create_infer_request()
    for at, x in enumerate(inputs):
        request.set_input_tensor(at, openvino.Tensor(np.ascontiguousarray(x)))
    return compiled, request


def _openvino(workspace: Workspace, cell: Cell, x: Any, threads: int) -> Callable[[], Any]:
    _, request = openvino_request(workspace, cell, x, threads)
    return lambda: request.infer()


def module_of(workspace: Workspace, cell: Cell) -> Any:
    from tvmflow.frontends.registry import load_source

    fetched = workspace.folder("fetch", cell)
    return load_source(fetched, read_description(fetched)).module  # type: ignore[attr-defined]


def _torch(workspace: Workspace, cell: Cell, x: Any, threads: int, compiled: bool = False) -> Callable[[], Any]:
    return torch_runner(module_of(workspace, cell), (x,), cell.precision, threads, compiled)


def torch_runner(
    module: Any, inputs: Sequence[Any], precision: str, threads: int, compiled: bool = False
) -> Callable[[], Any]:
    """Return what runs a PyTorch module, in bfloat16 where that is the precision, else in float32."""
    import torch

    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(x) for x in inputs]
    if precision == "bfloat16":
        module, tensors = module.bfloat16(), [x.bfloat16() if x.is_floating_point() else x for x in tensors]
    if compiled:
        module = torch.compile(module)

    def run() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    return run


def _torch_compile(workspace: Workspace, cell: Cell, x: Any, threads: int) -> Callable[[], Any]:
    return _torch(workspace, cell, x, threads, compiled=True)


_RUNNERS: dict[str, Callable[[Workspace, Cell, Any, int], Callable[[], Any]]] = {
    "tvmflow": _tvmflow,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
    "torch_compile": _torch_compile,
    "litert": litert_runner,
}


def _errors(workspace: Workspace, cell: Cell) -> dict[str, float]:
    """Return the largest error of library and ONNX Runtime against the source network in float64, where it can be
    that.
    """
    import torch

    from tvmflow.sources.networks.keras_zoo import keras_on_torch

    framework = workspace.params.models[cell.model].framework
    if framework not in ("torch", "keras"):
        return {}
    if framework == "keras":
        keras_on_torch().config.set_floatx("float64")
    x = input_of(workspace, cell)
    with torch.inference_mode():
        exact = module_of(workspace, cell).double()(torch.from_numpy(x).double()).numpy()
    if exact.dtype != np.float64:  # a Keras file that fixes its types
        return {}
    outputs = {
        "tvmflow": _tvmflow(workspace, cell, x, 2)(),
        "onnxruntime": _onnxruntime(workspace, cell, x, 2)()[0],
    }
    errors = {}
    for name, output in outputs.items():
        if not isinstance(output, np.ndarray):
            output = (output if hasattr(output, "numpy") else output[0]).numpy()
        errors[name] = float(np.abs(output - exact).max() / np.abs(exact).max())
    return errors


if __name__ == "__main__":
    main()
