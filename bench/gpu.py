"""Networks on GPUs: what is asked of a Mali or an Adreno that is not at hand, and latency of drivers in software beside peers.

    python -m bench.gpu estimate [--networks NAME ...] [--precision float16_acc32] [--kernels]
    python -m bench.gpu measure [--networks NAME ...] [--drivers pocl lavapipe] [--rounds 9]

Counts, with default schedules and seeded weights, no device: launches of an inference, megabytes that threads load and store beside the least
possible (inputs, weights and outputs of each kernel once), float32 values in a thread's arrays, threads of a group beside those that TFLite's GPU
delegate starts from. Estimates: no time is predicted, and caches may serve much of what is asked for. --kernels: each kernel too.

measure: float32, PoCL and lavapipe, default schedules, in turns with what is installed: ncnn (with pnnx) and IREE on lavapipe, and on PoCL TVM's
default schedules (dlight), lowered by TVM, through our host code. Medians; ratios within the rounds, below 1 where tvmflow is faster. First: the
first run in a new process with kept programs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.peers import LEAST_RUNS, MAX_FOREIGN_LOAD, TURN_S, Peer, serve, turns_of
from tvmflow.backends.backend import Backend
from tvmflow.backends.table import backend_named
from tvmflow.building.library import Scheduled, build_scheduled, compile_lowered
from tvmflow.building.lower import lower
from tvmflow.building.self_contained import Network, write_network
from tvmflow.compilers import Command
from tvmflow.evaluation.turns import TurnRules, foreign_load
from tvmflow.frontends.exported import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.gpu.estimates import DELEGATE_GROUPS, LaunchEstimate, NetworkEstimate, estimate
from tvmflow.gpu.launches import lowered_for_device
from tvmflow.kernels.workloads import count_calls
from tvmflow.passes import run_pass
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.passes.schedule_kernels import ScheduleKernels
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.recipe import RUNTIME
from tvmflow.sources.datasets import Samples
from tvmflow.sources.software_gpus import software_drivers
from tvmflow.sources.torch_networks import build
from tvmflow.targets.gpu_features import GPUS
from tvmflow.targets.resolve import host_target
from tvmflow.tuning.algorithms import unmeasured

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1")
_SHAPE = (1, 3, 224, 224)
_WINOGRAD_ERROR = {"float32": 2e-5}  # as the default of tune.winograd_max_error
_MIXED = {"low": ["conv2d", "matmul"], "high": ["softmax", "sum"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    counted = commands.add_parser("estimate")
    counted.add_argument("--networks", nargs="+", default=list(NETWORKS))
    counted.add_argument("--precision", default="float16_acc32", choices=("float32", "float16", "float16_acc32"))
    counted.add_argument("--kernels", action="store_true")
    measured = commands.add_parser("measure")
    measured.add_argument("--networks", nargs="+", default=list(NETWORKS))
    measured.add_argument("--drivers", nargs="+", default=list(_PEERS), choices=list(_PEERS))
    measured.add_argument("--rounds", type=int, default=9)
    served = commands.add_parser("serve")
    served.add_argument("peer", choices=list(_RUNNERS))
    served.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "estimate":
        _print_estimates(options)
    elif options.command == "measure":
        _print_latencies(options)
    else:
        serve(_RUNNERS[options.peer](options.folder))


# -- what is asked of a GPU that is not at hand --


def _print_estimates(options: argparse.Namespace) -> None:
    print(f"{options.precision}, default schedules; estimates, made without a device")
    print(
        f"{'network':16}{'GPU':8}{'launches':>9}{'MB asked':>10}{'least':>8}{'ratio':>7}"
        f"{'registers':>11}{'group':>16}{'delegate':>10}{'lanes':>7}"
    )
    for name in options.networks:
        module = _module(name, options.precision)
        for kind in DELEGATE_GROUPS:
            found = estimated(module, kind)
            print(f"{name:16}{kind:8}" + _row(found, kind))
            if options.kernels:
                _print_kernels(found)


def _module(name: str, precision: str) -> Any:
    model = ExportedModel(build(f"torchvision/{name}", 0).eval(), one_input("input", _SHAPE))
    module = canonicalize(model.to_relax())
    if precision == "float32":
        return module
    return to_precision(module, precision, PrecisionRequest(_MIXED, Samples(()), lambda *_: None))[0]


def estimated(module: Any, kind: str) -> NetworkEstimate:
    """Return what a network with default schedules asks of a kind of GPU."""
    backend = backend_named("opencl")(replace(host_target(), kind="opencl", options={"software": False, "kind": kind}))
    lowered = lower(backend.pack(module, None)[0], backend)
    scheduled = run_pass(ScheduleKernels({}, backend.template_for), lowered)
    return estimate(lowered_for_device(scheduled, backend.tvm_target()), count_calls(lowered))


def _row(found: NetworkEstimate, kind: str) -> str:
    launches = [launch for kernel in found.kernels for launch in kernel.launches]
    registers, threads = [one.registers for one in launches], [math.prod(one.group_size) for one in launches]
    lanes = sum(one.lanes_used(GPUS[kind].warp) * one.asked_bytes for one in launches)
    return (
        f"{found.launches:9}{found.asked_bytes / 1e6:10.0f}{found.least_bytes / 1e6:8.0f}"
        f"{found.asked_bytes / found.least_bytes:7.1f}{_spread(registers):>11}{_spread(threads):>16}"
        f"{_shape(DELEGATE_GROUPS[kind]):>10}{lanes / sum(one.asked_bytes for one in launches):7.0%}"
    )


def _spread(values: list[int]) -> str:
    return f"{median(values):.0f} ({min(values)}-{max(values)})"


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _print_kernels(found: NetworkEstimate) -> None:
    for kernel in found.kernels:
        print(
            f"  {kernel.calls} x {kernel.name}: {kernel.asked_bytes / 1e6:.2f} MB asked, {kernel.least_bytes / 1e6:.2f} least"
        )
        for launch in kernel.launches:
            print(f"    {_of_launch(launch)}")


def _of_launch(launch: LaunchEstimate) -> str:
    return f"{_shape(launch.groups)} groups of {_shape(launch.group_size)}, {launch.registers} registers, {launch.asked_bytes / 1e6:.2f} MB asked"


# -- drivers in software, beside peers --


def _print_latencies(options: argparse.Namespace) -> None:
    drivers = software_drivers()
    for network in options.networks:
        for name in options.drivers:
            with tempfile.TemporaryDirectory() as folder:
                variables = {**os.environ, **drivers.named(name).environment}
                _print_latency(network, name, Path(folder), variables, options.rounds)


def _print_latency(network: str, driver: str, folder: Path, variables: dict[str, str], rounds: int) -> None:
    made = [peer for peer in ("tvmflow", *_PEERS[driver]) if _MAKERS[peer](network, driver, folder)]
    starts = {
        peer: partial(Peer, f"{network} {peer}", ["bench.gpu", "serve", peer, str(folder)], variables) for peer in made
    }
    with starts["tvmflow"]() as filling:
        filling.ask(1)
    with starts["tvmflow"]() as kept:
        first = kept.ask(1) or {"times_s": [math.nan]}
    turns = turns_of(starts, TurnRules(rounds, TURN_S, LEAST_RUNS))
    ours = turns.pop("tvmflow")
    line = f"{network:16}{driver:10}{median(turn.median_s for turn in ours) * 1e3:8.2f} ms, first {first['times_s'][0] * 1e3:.2f}"
    for peer, theirs in turns.items():
        ratio = median(a.median_s / b.median_s for a, b in zip(ours, theirs, strict=True))
        line += f"   {peer} {median(turn.median_s for turn in theirs) * 1e3:.2f} ({ratio:.2f})"
    print(line, flush=True)
    load = foreign_load([turn for taken in (ours, *turns.values()) for turn in taken])
    if load is None or load > MAX_FOREIGN_LOAD:
        print(
            f"  busy machine: others took {'an unknown share' if load is None else f'{load:.0%}'} of it: measure again"
        )


def _software(driver: str) -> Backend:
    api = {"pocl": "opencl", "lavapipe": "vulkan"}[driver]
    target = replace(host_target(), kind=api, options={"software": True, "kind": "generic"})
    return backend_named(api)(target)


def _make_tvmflow(network: str, driver: str, folder: Path) -> bool:
    backend = _software(driver)
    packed, _ = backend.pack(_module(network, "float32"), None)
    winograd = unmeasured(packed, backend, _WINOGRAD_ERROR)
    _write(build_scheduled(packed, backend, {}, winograd=winograd), folder / "tvmflow.so")
    return True


def _make_untuned_tvm(network: str, driver: str, folder: Path) -> bool:
    """Schedule the network as it was imported by TVM's defaults for GPUs."""
    from tvm.s_tir import dlight

    backend = _software(driver)
    lowered = lower(_module(network, "float32"), backend)
    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    with backend.tvm_target():
        scheduled = dlight.ApplyDefaultSchedule(*rules)(lowered)
    _write(Scheduled(compile_lowered(scheduled, backend), [], scheduled, backend), folder / "untuned_tvm.so")
    return True


def _write(scheduled: Scheduled, path: Path) -> None:
    network = Network("bench@gpu:float32", one_input("input", _SHAPE), ("output",), 1)
    write_network(path, scheduled, network, Command(("gcc",)))


def _installed(*names: str) -> bool:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return not missing


def _make_ncnn(network: str, _driver: str, folder: Path) -> bool:
    if not _installed("ncnn", "pnnx"):
        return False
    import pnnx
    import torch

    with contextlib.chdir(folder):
        pnnx.export(build(f"torchvision/{network}", 0).eval(), "ncnn.pt", (torch.ones(_SHAPE),), fp16=False)
    return True


def _make_iree(network: str, _driver: str, folder: Path) -> bool:
    if not _installed("iree", "onnx"):  # iree-base-compiler and iree-base-runtime
        return False
    import iree.compiler
    import torch

    onnx, mlir = folder / "iree.onnx", folder / "iree.mlir"
    torch.onnx.export(
        build(f"torchvision/{network}", 0).eval(), (torch.ones(_SHAPE),), onnx, opset_version=17, dynamo=False
    )
    subprocess.run([Path(sys.executable).parent / "iree-import-onnx", onnx, "-o", mlir], check=True)
    iree.compiler.compile_file(
        str(mlir), input_type="onnx", target_backends=["vulkan-spirv"], output_file=str(folder / "iree.vmfb")
    )
    return True


def _run_library(folder: Path, name: str) -> Callable[[], Any]:
    sys.path.insert(0, str(RUNTIME / "python"))
    from tvmflow_network import Gpu
    from tvmflow_network import Network as Instance

    (folder / "kept").mkdir(exist_ok=True)
    instance, x = Instance(folder / f"{name}.so", gpu=Gpu(cache=folder / "kept")), np.ones(_SHAPE, np.float32)
    return lambda: instance(x)


def _run_ncnn(folder: Path) -> Callable[[], Any]:
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.load_param(str(folder / "ncnn.ncnn.param"))
    net.load_model(str(folder / "ncnn.ncnn.bin"))
    x = ncnn.Mat(np.ones(_SHAPE[1:], np.float32))

    def run() -> Any:
        extractor = net.create_extractor()
        extractor.input("in0", x)
        return extractor.extract("out0")

    return run


def _run_iree(folder: Path) -> Callable[[], Any]:
    import iree.runtime

    module = iree.runtime.load_vm_flatbuffer_file(str(folder / "iree.vmfb"), driver="vulkan")
    function, x = next(iter(module.vm_module.function_names)), np.ones(_SHAPE, np.float32)
    return lambda: module[function](x).to_host()


_PEERS = {"pocl": ("untuned_tvm",), "lavapipe": ("ncnn", "iree")}
_MAKERS: dict[str, Callable[[str, str, Path], bool]] = {
    "tvmflow": _make_tvmflow, "untuned_tvm": _make_untuned_tvm, "ncnn": _make_ncnn, "iree": _make_iree,
}  # fmt: skip
_RUNNERS: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "tvmflow": partial(_run_library, name="tvmflow"), "untuned_tvm": partial(_run_library, name="untuned_tvm"), "ncnn": _run_ncnn, "iree": _run_iree,
}  # fmt: skip

if __name__ == "__main__":
    main()
