"""Networks that nobody tuned: what imports, how long it takes, how exact the outputs are, and latency beside ONNX Runtime.

    python -m bench.networks [NAME ...] [--threads 2] [--rounds 9]

Networks of torchvision with seeded weights, float32, default schedules, no tuning. Seconds to import and to build; the largest error of our outputs and of ONNX
Runtime's, relative to the largest output of PyTorch in float64, and how far apart outputs are in the same measure; medians, and the ratio within rounds of turns in processes
of their own, below 1 where tvmflow is faster. What cannot be imported is said with its reason.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import (
    LEAST_RUNS,
    TURN_S,
    Peer,
    environment,
    geometric_mean,
    milliseconds,
    print_if_busy,
    ratio_of,
    serve,
    turns_of,
)
from tvmflow.backends.cpu import CpuBackend
from tvmflow.building.library import build_scheduled
from tvmflow.building.self_contained import Network, write_network
from tvmflow.compilers import Command
from tvmflow.errors import TvmflowError
from tvmflow.evaluation.turns import Turn, TurnRules
from tvmflow.frontends.exported import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.network_binding import network_binding
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.sources.torch_networks import seeded
from tvmflow.targets.resolve import host_target

NAMES = (
    "efficientnet_b0", "efficientnet_v2_s", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "mnasnet1_0", "shufflenet_v2_x1_0", "regnet_y_400mf", "resnext50_32x4d",
    "densenet121", "googlenet", "convnext_tiny", "vit_b_16", "vit_b_32", "swin_t", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50",
)  # fmt: skip
_SIZE = 224
_OPSET = 17


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(_RUNNERS[options.serve[0]](Path(options.serve[1]), options.threads))
        return
    print(
        f"{'network':32}{'import s':>9}{'build s':>9}{'MB':>6}{'error':>9}{'ORT':>9}{'spread':>9}{'tvmflow ms':>12}{'ORT ms':>9}{'ratio':>7}"
    )
    ratios = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                line = _made(name, Path(folder), options.threads)
            except (TvmflowError, RuntimeError, ValueError) as error:
                print(f"{name:32} {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
                continue
            turns = _turns(name, Path(folder), options)
        ours, theirs = turns.values()
        ratios.append(ratio_of(ours, theirs))
        print(f"{name:32}{line}{milliseconds(ours):12.2f}{milliseconds(theirs):9.2f}{ratios[-1]:7.2f}", flush=True)
        print_if_busy(turns)
    if ratios:
        print(f"geometric mean {geometric_mean(ratios):.3f}")


def _made(name: str, folder: Path, threads: int) -> str:
    """Write library, ONNX model and input to a folder; return what is printed of them. Raises what the importer raises."""
    shape = (1, 3, _SIZE, _SIZE)
    network: Any = seeded(f"torchvision/{name}", 3)
    begin = time.perf_counter()
    module = canonicalize(ExportedModel(network, one_input("x", shape)).to_relax())
    imported = time.perf_counter()
    backend = CpuBackend(replace(host_target(), threads=threads))
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    described = Network("bench@cpu:float32", one_input("x", shape), ("scores",), threads)
    write_network(folder / "network.so", scheduled, described, Command(("gcc",)))
    built = time.perf_counter()
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    np.save(folder / "x.npy", x)
    expected = _expected(network, x, folder / "network.onnx")
    largest = float(np.abs(expected).max())
    found = (_tvmflow(folder, threads)(), _onnxruntime(folder, threads)()[0])
    errors = [float(np.abs(one - expected).max()) / largest for one in found]
    spread = float(np.ptp(expected)) / largest
    size = (folder / "network.so").stat().st_size / 1e6
    return f"{imported - begin:9.1f}{built - imported:9.1f}{size:6.0f}{errors[0]:9.1e}{errors[1]:9.1e}{spread:9.1e}"


def _expected(network: Any, x: Any, path: Path) -> Any:
    """Write a network as ONNX; return its output in float64."""
    import torch

    warnings.simplefilter("ignore")  # the exporter says that another is newer
    torch.backends.mha.set_fastpath_enabled(False)  # which ONNX has no operator for
    torch.onnx.export(network, (torch.from_numpy(x),), path, opset_version=_OPSET, dynamo=False)
    with torch.inference_mode():
        return network.double()(torch.from_numpy(x).double()).numpy()


def _turns(name: str, folder: Path, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Return the turns of our library, and of ONNX Runtime."""
    arguments = ["bench.networks", "--threads", str(options.threads), "--serve"]
    starts = {
        peer: partial(Peer, f"{name} {peer}", [*arguments, peer, str(folder)], environment(options.threads))
        for peer in _RUNNERS
    }
    turns = turns_of(starts, TurnRules(options.rounds, TURN_S, LEAST_RUNS))
    if len(turns) < len(_RUNNERS):
        raise SystemExit(f"{name}: one of {', '.join(_RUNNERS)} did not run; why is above")
    return turns


def _tvmflow(folder: Path, threads: int) -> Callable[[], Any]:
    instance, x = network_binding().Network(folder / "network.so"), np.load(folder / "x.npy")
    return lambda: instance(x)


def _onnxruntime(folder: Path, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "network.onnx", options, providers=["CPUExecutionProvider"])
    x = {session.get_inputs()[0].name: np.load(folder / "x.npy")}
    return lambda: session.run(None, x)


_RUNNERS: dict[str, Callable[[Path, int], Callable[[], Any]]] = {"tvmflow": _tvmflow, "onnxruntime": _onnxruntime}

if __name__ == "__main__":
    main()
