"""Import untuned networks, and compare import time, errors and latency with baselines.

    pip install --group bench --group networks && python -m bench.networks [NAME ...] [--precision float32] [--peers
    onnxruntime openvino torch torch_compile]

Networks of bench/zoo.py, or any other of torchvision's and timm's (torchvision/NAME, timm/NAME, @SIZE behind it for
another image), with seeded weights, default schedules, no tuning, each imported from PyTorch's exported program and,
with --source, from ONNX. Seconds to import, with the conversion to the precision, and to build; the largest error of
our outputs and of ONNX Runtime's, each output relative to its largest number in PyTorch in float64, and how far apart
outputs of two inputs are in the same measure; medians, and the ratio within rounds of turns in processes of their own,
below 1 where tvmflow is faster. In int8 ONNX Runtime and OpenVINO run what ONNX Runtime's quantizer makes with the same
calibration samples; in bfloat16 OpenVINO runs as it comes and PyTorch in bfloat16; what has no such mode stays in
float32. LiteRT runs what the package litert-torch 0.10 converts, which nothing here installs: its pins are not ours (an
environment of its own, or a folder on PYTHONPATH). What cannot be imported is said with its reason.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.litert import litert_of_torch
from bench.peers import openvino_of, quantized_onnx, torch_runner
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
    turns_of,
)
from bench.zoo import NETWORKS, Entry, network_named
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.stage_params import DEFAULT_MIXED, Int8Params, MixedOperators, TuneParams
from tvmflow.evaluation.interleaved_timing import Turn, TurnRules
from tvmflow.frontends.onnx import frontend as onnx
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import Arrays, SourceDescription
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import TvmflowError
from tvmflow.support.progress import silent
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.cpu_features import activations_of
from tvmflow.targets.resolve import Processor, host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.tuning.winograd_choice import choose_by_cost

SOURCES = ("torch", "onnx")
PEERS = ("onnxruntime", "openvino", "torch", "torch_compile", "litert")
_MODEL = "network.onnx"
_FIRST_CALIBRATION, _CALIBRATION = 10, 16  # seeds of the samples for int8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--precision", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--source", nargs="+", choices=SOURCES, default=["torch"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["onnxruntime"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        runner, folder = options.serve[0], Path(options.serve[1])
        run, inputs = _runner(runner, options.names[0], folder, options), _inputs(folder)
        serve(lambda: run(*inputs))
        return
    print(
        f"{'network':31}{'from':>6}{'import s':>9}{'build s':>8}{'MB':>5}{'error':>9}"
        f"{'ORT':>9}{'spread':>9}{'tvmflow ms':>11}" + "".join(f"{peer:>20}" for peer in options.peers) + f"{'best':>6}"
    )
    ratios: dict[str, list[float]] = {source: [] for source in options.source}
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            made = _made(name, Path(place), options)
            turns = _turns(name, made, Path(place), options)
        for source, line in made.items():
            ours = turns[_library(source)]
            relative = {peer: ratio_of(ours, turns[peer]) for peer in options.peers if peer in turns}
            shown = (
                f"{milliseconds(turns[peer]):12.4g} ({relative[peer]:.2f})" if peer in turns else "-"
                for peer in options.peers
            )
            ratios[source].append(max(relative.values()))
            columns = "".join(f"{text:>20}" for text in shown)
            print(f"{name:31}{source:>6}{line}{milliseconds(ours):11.2f}{columns}{ratios[source][-1]:6.2f}", flush=True)
        if turns:
            print_if_busy(turns)
    for source, found in ratios.items():
        if found:
            print(f"geometric mean of {len(found)} from {source} to the best peer of each: {geometric_mean(found):.3f}")


def _made(name: str, folder: Path, options: argparse.Namespace) -> dict[str, str]:
    """Write libraries, an ONNX model and inputs to a folder; return what is printed of each library, and print why
    there is none.
    """
    entry = network_named(name)
    network, samples = entry.make(), entry.samples()
    np.savez(folder / "inputs.npz", *samples)
    exported = ExportedModel(network, entry.inputs)
    program = _try(f"{name} torch.export", exported.exported)  # before the weights are float64's
    if program is not None:
        _try(f"{name} PyTorch's ONNX exporter", lambda: exported.to_onnx(folder / _MODEL))
    if program is None or not (folder / _MODEL).is_file():  # no peer could run
        return {}
    if options.precision == "int8":
        _try(f"{name} ONNX Runtime's quantizer", lambda: quantized_onnx(folder / _MODEL, _calibration(entry)))
    expected, other = _exact(network, samples), _exact(network, entry.samples(1))
    network.float()
    peer = _try(
        f"{name} ONNX Runtime",
        lambda: _error(_runner("onnxruntime", name, folder, options)(*samples), expected),
    )
    made = {}
    for source in options.source:
        begin = time.perf_counter()
        try:
            model = ExportedModel.of_program(program, entry.inputs) if source == "torch" else _onnx_model(folder, entry)
            module = converted(canonicalize(model.to_relax()), entry, options.precision)
            imported = time.perf_counter()
            backend = CpuBackend(replace(host_target(), threads=options.threads))
            packed = backend.pack(module, None)[0]
            bounds = TuneParams().winograd_bounds
            winograd = choose_by_cost(packed, backend, bounds)
            scheduled = build_scheduled(packed, backend, {}, winograd=winograd)
        except (TvmflowError, RuntimeError, ValueError) as error:
            print(f"{name:31}{source:>6} {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            continue
        described = Network(
            "bench@cpu:float32", entry.inputs, tuple(f"output{at}" for at in range(len(expected))), options.threads
        )
        write_network(folder / _library(source), scheduled, described, Command(("gcc",)))
        built, size = time.perf_counter(), (folder / _library(source)).stat().st_size / 1e6
        ours = _error(_runner(_library(source), name, folder, options)(*samples), expected)
        made[source] = (
            f"{imported - begin:9.1f}{built - imported:8.1f}{size:5.0f}{ours:9.1e}"
            f"{np.nan if peer is None else peer:9.1e}{_error(other, expected):9.1e}"
        )
    return made


def _try(what: str, step: Callable[[], Any]) -> Any:
    """Return what a peer makes; None, with its reason printed, where it cannot."""
    try:
        return step()
    except Exception as error:
        print(f"{what}: {(str(error).splitlines() or [type(error).__name__])[0][:160]}", flush=True)
        return None


def converted(module: Any, entry: Entry, precision: str) -> Any:
    """Return a module in a precision, by the defaults of params.yaml and the calibration samples that ONNX Runtime has,
    too.
    """
    request: Int8Params | MixedOperators | None = None
    if precision == "bfloat16":
        request = DEFAULT_MIXED
    if precision == "int8":
        target = host_target()
        processor = Processor(target.mcpu, target.mtriple, target.mattr)
        request = Int8Params().model_copy(update={"activations": activations_of(processor)})
    calibration = tuple(np.concatenate(found) for found in zip(*_calibration(entry), strict=True))
    return to_precision(module, precision, PrecisionRequest(request, Samples(calibration), silent))[0]


def _calibration(entry: Entry) -> list[Arrays]:
    return [entry.samples(seed) for seed in range(_FIRST_CALIBRATION, _FIRST_CALIBRATION + _CALIBRATION)]


def _onnx_model(folder: Path, entry: Entry) -> onnx.OnnxModel:
    return onnx.load(folder, SourceDescription("onnx", None, _MODEL, entry.inputs))


def _exact(network: Any, samples: Arrays) -> Arrays:
    """Return all outputs of a network in float64, whose weights become so."""
    import torch

    tensors = [torch.from_numpy(sample.copy()) for sample in samples]
    with torch.inference_mode():
        made = network.double()(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors))
    return tuple(one.numpy() for one in torch.utils._pytree.tree_leaves(made))


def _error(found: Arrays, expected: Arrays) -> float:
    """Return the largest error of any output, relative to the output's largest number."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(one - exact).max() / np.abs(exact).max()) for one, exact in pairs)


def _turns(name: str, made: dict[str, str], folder: Path, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Return the turns of our libraries and of the peers that run; none where there is no library."""
    if not made:
        return {}
    arguments = ["bench.networks", name, "--threads", str(options.threads), "--precision", options.precision, "--serve"]
    libraries = [_library(source) for source in made]
    starts = {
        runner: partial(Peer, f"{name} {runner}", [*arguments, runner, str(folder)], environment(options.threads))
        for runner in (*libraries, *options.peers)
    }
    turns = turns_of(starts, TurnRules(options.rounds, TURN_S, LEAST_RUNS))
    if not set(libraries) <= set(turns) or not set(options.peers) & set(turns):
        raise SystemExit(f"{name}: our libraries and at least one peer must run; why they did not is above")
    return turns


def _library(source: str) -> str:
    return f"{source}.so"


def _inputs(folder: Path) -> Arrays:
    with np.load(folder / "inputs.npz") as data:
        return tuple(data[name] for name in data.files)


def _runner(runner: str, name: str, folder: Path, options: argparse.Namespace) -> Callable[..., Any]:
    """Return what runs a peer, or a library of ours by its file's name."""
    file = folder / ("int8.onnx" if options.precision == "int8" else _MODEL)
    if runner == "onnxruntime":
        return _onnxruntime(file, options.threads)
    if runner == "openvino":
        _, request = openvino_of(file, _inputs(folder), options.precision, options.threads)
        return lambda *_: request.infer()
    if runner == "litert":
        if options.precision not in ("float32", "int8"):
            raise SystemExit(f"LiteRT computes on CPUs in float32 and int8, not in {options.precision}")
        entry = network_named(name)
        samples = _calibration(entry) if options.precision == "int8" else ()
        return litert_of_torch(entry.make().float(), _inputs(folder), options.threads, samples)
    if runner in PEERS:
        network, inputs = network_named(name).make().float(), _inputs(folder)
        run = torch_runner(network, inputs, options.precision, options.threads, runner == "torch_compile")
        return lambda *_: run()
    instance = network_binding().Network(folder / runner)

    def run_library(*inputs: Any) -> Arrays:
        found = instance(*inputs)
        return found if isinstance(found, tuple) else (found,)

    return run_library


def _onnxruntime(file: Path, threads: int) -> Callable[..., Arrays]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda *inputs: tuple(session.run(None, dict(zip(names, inputs, strict=True))))


if __name__ == "__main__":
    main()
