"""Networks that nobody tuned: what imports, how long it takes, how exact the outputs are, and latency beside ONNX Runtime.

    pip install --group networks && python -m bench.networks [NAME ...] [--source torch onnx] [--threads 2] [--rounds 9]

Networks of bench/zoo.py with seeded weights, float32, default schedules, no tuning, each imported from PyTorch's exported program and from ONNX. Seconds to import and to
build; the largest error of our outputs and of ONNX Runtime's, each output relative to its largest number in PyTorch in float64, and how far apart outputs of two inputs are in
the same measure; medians, and the ratio within rounds of turns in processes of their own, below 1 where tvmflow is faster. What cannot be imported is said with its reason.
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
from bench.zoo import NETWORKS, Entry
from tvmflow.backends.cpu import CpuBackend
from tvmflow.building.library import build_scheduled
from tvmflow.building.self_contained import Network, write_network
from tvmflow.compilers import Command
from tvmflow.errors import TvmflowError
from tvmflow.evaluation.turns import Turn, TurnRules
from tvmflow.frontends import onnx
from tvmflow.frontends.exported import ExportedModel
from tvmflow.frontends.source_model import Arrays, SourceDescription
from tvmflow.network_binding import network_binding
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.targets.resolve import host_target

SOURCES = ("torch", "onnx")
_MODEL = "network.onnx"
_PEER = "onnxruntime"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--source", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        runner, folder = options.serve[0], Path(options.serve[1])
        run, inputs = _runner(runner, folder, options.threads), _inputs(folder)
        serve(lambda: run(*inputs))
        return
    print(
        f"{'network':31}{'from':>7}{'import s':>9}{'build s':>9}{'MB':>6}{'error':>9}{'ORT':>9}{'spread':>9}{'tvmflow ms':>12}{'ORT ms':>9}{'ratio':>7}"
    )
    ratios: dict[str, list[float]] = {source: [] for source in options.source}
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            made = _made(name, Path(place), options)
            turns = _turns(name, made, Path(place), options)
        for source, line in made.items():
            ratios[source].append(ratio_of(turns[source], turns[_PEER]))
            print(
                f"{name:31}{source:>7}{line}{milliseconds(turns[source]):12.2f}{milliseconds(turns[_PEER]):9.2f}{ratios[source][-1]:7.2f}",
                flush=True,
            )
        if turns:
            print_if_busy(turns)
    for source, found in ratios.items():
        if found:
            print(f"geometric mean of {len(found)} from {source}: {geometric_mean(found):.3f}")


def _made(name: str, folder: Path, options: argparse.Namespace) -> dict[str, str]:
    """Write libraries, ONNX model and inputs to a folder; return what is printed of each library, and print why there is none."""
    entry = NETWORKS[name]
    network, samples = entry.make(), entry.samples()
    np.savez(folder / "inputs.npz", *samples)
    exported = ExportedModel(network, entry.inputs)
    exported.to_onnx(folder / _MODEL)
    program = exported.exported()  # before the weights are float64's
    expected, other = _exact(network, samples), _exact(network, entry.samples(1))
    network.float()
    peer = _error(_runner(_PEER, folder, options.threads)(*samples), expected)
    made = {}
    for source in options.source:
        begin = time.perf_counter()
        try:
            model = ExportedModel.of_program(program, entry.inputs) if source == "torch" else _onnx_model(folder, entry)
            module = canonicalize(model.to_relax())
            imported = time.perf_counter()
            backend = CpuBackend(replace(host_target(), threads=options.threads))
            scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
        except (TvmflowError, RuntimeError, ValueError) as error:
            print(f"{name:31}{source:>7} {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            continue
        described = Network(
            "bench@cpu:float32", entry.inputs, tuple(f"output{at}" for at in range(len(expected))), options.threads
        )
        write_network(folder / f"{source}.so", scheduled, described, Command(("gcc",)))
        built, size = time.perf_counter(), (folder / f"{source}.so").stat().st_size / 1e6
        ours = _error(_runner(source, folder, options.threads)(*samples), expected)
        made[source] = (
            f"{imported - begin:9.1f}{built - imported:9.1f}{size:6.0f}{ours:9.1e}{peer:9.1e}{_error(other, expected):9.1e}"
        )
    return made


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
    """Return the turns of our libraries, and of ONNX Runtime; none where there is no library."""
    if not made:
        return {}
    arguments = ["bench.networks", "--threads", str(options.threads), "--serve"]
    starts = {
        peer: partial(Peer, f"{name} {peer}", [*arguments, peer, str(folder)], environment(options.threads))
        for peer in (*made, _PEER)
    }
    turns = turns_of(starts, TurnRules(options.rounds, TURN_S, LEAST_RUNS))
    if len(turns) < len(starts):
        raise SystemExit(f"{name}: one of {', '.join(starts)} did not run; why is above")
    return turns


def _inputs(folder: Path) -> Arrays:
    with np.load(folder / "inputs.npz") as data:
        return tuple(data[name] for name in data.files)


def _runner(name: str, folder: Path, threads: int) -> Callable[..., Arrays]:
    """Return what runs ONNX Runtime, or the library of a source."""
    if name != _PEER:
        instance = network_binding().Network(folder / f"{name}.so")

        def run(*inputs: Any) -> Arrays:
            found = instance(*inputs)
            return found if isinstance(found, tuple) else (found,)

        return run
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / _MODEL, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda *inputs: tuple(session.run(None, dict(zip(names, inputs, strict=True))))


if __name__ == "__main__":
    main()
