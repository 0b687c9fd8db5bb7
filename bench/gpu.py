"""Compare the latency of networks on GPUs with baselines, on software drivers or this machine's GPU.

    python -m bench.gpu [--networks NAME ...] [--drivers pocl lavapipe opencl vulkan] [--kind nvidia] [--precision
    float16] [--trials 16] [--log FILE]

In turns with what is installed: ncnn (with pnnx) and IREE through Vulkan; PyTorch, eager and compiled with graphs,
where it has CUDA; on PoCL TVM's default schedules (dlight), lowered by TVM, through our host code; and where --textures
is given, our library with textures. From input in the host's memory to output there. Medians; ratios within the rounds,
below 1 where tvmflow is faster. First: the first run in a new process with kept programs, after the time to open the
library. Kernels: the largest error of one, relative to its largest output, beside the same kernel on this machine's
CPU, and the first that differs by more than the bound of evaluate.

--trials: candidates a kernel, measured on the GPU; 0: default schedules. --log: measurements are kept there, and taken
from there. opencl, vulkan: this machine's driver, of a GPU of --kind.
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
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_estimates import NETWORKS, SHAPE, network_module
from bench.side_by_side import LEAST_RUNS, TURN_S, Peer, milliseconds, print_if_busy, ratio_of, serve, turns_of
from tvmflow.backends.backend import Backend
from tvmflow.backends.registry import backend_named
from tvmflow.codegen.compile import Scheduled, build_scheduled, compile_lowered
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.params import DeviceEntry
from tvmflow.config.stage_params import TuneParams
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.evaluation.interleaved_timing import Turn, TurnRules
from tvmflow.evaluation.kernel_agreement import kernel_agreement
from tvmflow.frontends.source_model import one_input
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers
from tvmflow.toolchain.versions import versions
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.tune_network import tune_network

_TOOLS = ("tvm", "llvm", "codegen")
_MOST_ERROR = {"float32": 1e-4, "float16": 0.05, "int8": 0.05}  # of a kernel
_SOFTWARE = {"pocl": "opencl", "lavapipe": "vulkan"}


@dataclass(frozen=True)
class Subject:
    """One network on one driver."""

    network: str
    driver: str
    precision: str
    kind: str = "generic"
    trials: int = 0
    log: Path | None = None
    folder: Path = Path()

    def backend(self, *, textures: bool | None = None) -> Backend:
        api = _SOFTWARE.get(self.driver, self.driver)
        options: dict[str, Any] = {"software": self.driver in _SOFTWARE, "kind": self.kind}
        if api == "opencl":
            options["textures"] = textures
        return backend_named(api)(replace(host_target(), kind=api, options=options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--drivers", nargs="+", default=["pocl", "lavapipe"], choices=list(_PEERS))
    parser.add_argument("--kind", default="generic")
    parser.add_argument("--precision", default="float32", choices=("float32", "float16", "int8"))
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--textures", action="store_true")
    parser.add_argument("--peers", nargs="*", default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(_RUNNERS[options.serve[0]](Path(options.serve[1]), options.networks[0], options.precision))
        return
    for network in options.networks:
        for driver in options.drivers:
            with tempfile.TemporaryDirectory() as folder:
                subject = Subject(
                    network, driver, options.precision, options.kind, options.trials, options.log, Path(folder)
                )
                _print_latency(subject, options)


def _print_latency(subject: Subject, options: argparse.Namespace) -> None:
    driver = subject.driver
    software = software_drivers().named(driver).environment if driver in _SOFTWARE else {}
    wanted = [
        "tvmflow",
        *(["tvmflow_textures"] if options.textures and "opencl" in (driver, _SOFTWARE.get(driver)) else []),
    ]
    wanted += [peer for peer in _PEERS[driver] if options.peers is None or peer in options.peers]
    made = [peer for peer in wanted if _MAKERS[peer](subject)]
    arguments = ["bench.gpu", "--networks", subject.network, "--precision", subject.precision, "--serve"]
    starts = {
        peer: partial(
            Peer, f"{subject.network} {peer}", [*arguments, peer, str(subject.folder)], {**os.environ, **software}
        )
        for peer in made
    }
    with starts["tvmflow"]() as filling:
        filling.ask(1)
    with starts["tvmflow"]() as kept:
        first = kept.ask(1) or {"times_s": [math.nan]}
    _print_turns(subject, first["times_s"][0], turns_of(starts, TurnRules(options.rounds, TURN_S, LEAST_RUNS)))


def _print_turns(subject: Subject, first_s: float, turns: dict[str, list[Turn]]) -> None:
    ours = turns["tvmflow"]
    line = (
        f"{subject.network:16}{subject.driver:10}{subject.precision:10}{milliseconds(ours):8.3f} ms, first "
        f"{first_s * 1e3:.2f}"
    )
    for peer, theirs in turns.items():
        if theirs is not ours:
            line += f"   {peer} {milliseconds(theirs):.3f} ({ratio_of(ours, theirs):.2f})"
    print(line, flush=True)
    print_if_busy(turns)


# -- what runs --


def _make_tvmflow(subject: Subject, name: str = "tvmflow", textures: bool | None = None) -> bool:
    backend = subject.backend(textures=textures)
    packed, _ = backend.pack(network_module(subject.network, subject.precision), None)
    device = DeviceEntry(transport="local-agent", key="bench")
    session = partial(open_session, device, backend, SessionLimits(600.0, 60.0))
    block = TuneParams(
        trials_per_workload=subject.trials, tuner="grid", build_workers=max(2, (os.cpu_count() or 2) - 1)
    )
    rules = SearchRules(block, block, has_tvm=False)
    log = subject.log or subject.folder / "log.jsonl"
    log.touch()
    start = time.monotonic()
    tuned = tune_network(
        [packed], backend, rules, TuningLog(log, backend.kernel_kind, versions(_TOOLS)), session, lambda *_: None
    )
    scheduled = build_scheduled(packed, backend, tuned.report.best, winograd=tuned.winograd)
    _write(scheduled, subject.folder / f"{name}.so")
    took = time.monotonic() - start
    x = (np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32),)
    with session() as opened:
        found = kernel_agreement(
            lower(packed, backend, winograd=tuned.winograd), backend, tuned.report.best, [x], opened
        )
    worst = max(found, key=lambda one: one.error)
    different = next((one.kernel for one in found if not one.error <= _MOST_ERROR[subject.precision]), "none")
    print(
        f"  {subject.network} {name}: {len(found)} kernels, {len(tuned.winograd)} shapes by Winograd, made "
        f"in {took:.0f} s; error at most {worst.error:.1e} ({worst.kernel}), "
        f"first that differs: {different}",
        flush=True,
    )
    return True


def _make_untuned_tvm(subject: Subject) -> bool:
    """Schedule the network as it was imported by TVM's defaults for GPUs."""
    from tvm.s_tir import dlight

    backend = subject.backend()
    lowered = lower(network_module(subject.network, subject.precision), backend)
    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    with backend.tvm_target():
        scheduled = dlight.ApplyDefaultSchedule(*rules)(lowered)
    _write(Scheduled(compile_lowered(scheduled, backend), (), scheduled, backend), subject.folder / "untuned_tvm.so")
    return True


def _write(scheduled: Scheduled, path: Path) -> None:
    network = Network("bench@gpu:float32", one_input("input", SHAPE), ("output",), 1)
    write_network(path, scheduled, network, Command(("gcc",)))


def _installed(*names: str) -> bool:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return not missing


def _make_ncnn(subject: Subject) -> bool:
    if not _installed("ncnn", "pnnx"):
        return False
    import pnnx
    import torch

    with contextlib.chdir(subject.folder):
        pnnx.export(
            build(f"torchvision/{subject.network}", 0).eval(),
            "ncnn.pt",
            (torch.ones(SHAPE),),
            fp16=subject.precision == "float16",
        )
    return True


def _make_iree(subject: Subject) -> bool:
    if subject.precision != "float32" or not _installed("iree", "onnx"):  # iree-base-compiler and iree-base-runtime
        return False
    import iree.compiler
    import torch

    onnx, mlir = subject.folder / "iree.onnx", subject.folder / "iree.mlir"
    network = build(f"torchvision/{subject.network}", 0).eval()
    torch.onnx.export(network, (torch.ones(SHAPE),), onnx, opset_version=17, dynamo=False)
    subprocess.run([Path(sys.executable).parent / "iree-import-onnx", onnx, "-o", mlir], check=True)
    iree.compiler.compile_file(
        str(mlir), input_type="onnx", target_backends=["vulkan-spirv"], output_file=str(subject.folder / "iree.vmfb")
    )
    return True


def _has_cuda(subject: Subject) -> bool:
    import torch

    return subject.precision != "int8" and bool(torch.cuda.is_available())


def _run_library(folder: Path, _network: str, _precision: str, name: str) -> Callable[[], Any]:
    binding, x = network_binding(), np.ones(SHAPE, np.float32)
    (folder / "kept").mkdir(exist_ok=True)
    instance = binding.Network(folder / f"{name}.so", gpu=binding.Gpu(cache=folder / "kept"))
    return lambda: instance(x)


def _run_torch(_folder: Path, network: str, precision: str, compiled: bool) -> Callable[[], Any]:
    import torch

    torch.backends.cudnn.benchmark = True
    dtype = torch.float16 if precision == "float16" else torch.float32
    model: Any = build(f"torchvision/{network}", 0).eval().to("cuda", dtype)
    if compiled:
        model = torch.compile(model, mode="reduce-overhead")
    x = torch.ones(SHAPE, dtype=dtype)

    def run() -> Any:
        with torch.inference_mode():
            return model(x.to("cuda")).cpu()

    return run


def _run_ncnn(folder: Path, _network: str, precision: str) -> Callable[[], Any]:
    import ncnn

    net, is_half = ncnn.Net(), precision == "float16"
    net.opt.use_vulkan_compute = True
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = is_half
    net.load_param(str(folder / "ncnn.ncnn.param"))
    net.load_model(str(folder / "ncnn.ncnn.bin"))
    x = ncnn.Mat(np.ones(SHAPE[1:], np.float32))

    def run() -> Any:
        extractor = net.create_extractor()
        extractor.input("in0", x)
        return extractor.extract("out0")

    return run


def _run_iree(folder: Path, _network: str, _precision: str) -> Callable[[], Any]:
    import iree.runtime

    module = iree.runtime.load_vm_flatbuffer_file(str(folder / "iree.vmfb"), driver="vulkan")
    names, x = module.vm_module.function_names, np.ones(SHAPE, np.float32)
    function = min(names, key=lambda name: (name.startswith("__"), "$" in name))  # beside it: its asynchronous form
    return lambda: module[function](x).to_host()


_PEERS = {
    "pocl": ("untuned_tvm",),
    "lavapipe": ("ncnn", "iree"),
    "opencl": ("torch", "torch_compile"),
    "vulkan": ("torch", "torch_compile", "ncnn", "iree"),
}
_MAKERS: dict[str, Callable[[Subject], bool]] = {
    "tvmflow": _make_tvmflow,
    "tvmflow_textures": partial(_make_tvmflow, name="tvmflow_textures", textures=True),
    "untuned_tvm": _make_untuned_tvm,
    "torch": _has_cuda,
    "torch_compile": _has_cuda,
    "ncnn": _make_ncnn,
    "iree": _make_iree,
}
_RUNNERS: dict[str, Callable[[Path, str, str], Callable[[], Any]]] = {
    **{name: partial(_run_library, name=name) for name in ("tvmflow", "tvmflow_textures", "untuned_tvm")},
    "torch": partial(_run_torch, compiled=False),
    "torch_compile": partial(_run_torch, compiled=True),
    "ncnn": _run_ncnn,
    "iree": _run_iree,
}

if __name__ == "__main__":
    main()
