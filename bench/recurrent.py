"""Compare the latency of one recurrent layer with ONNX Runtime's, each in its own process.

    python -m bench.recurrent [--operators LSTM GRU] [--hidden 64 128 256 512] [--times 5 100] [--samples 1 8]

Each layer has as many features as hidden units, seeded weights and no tuning. A line has the medians and the ratio
within rounds of turns, below 1 where tvmflow is faster. --directions 2: bidirectional.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.side_by_side import (
    LEAST_RUNS,
    Peer,
    environment,
    geometric_mean,
    milliseconds,
    print_if_busy,
    ratio_of,
    serve,
    turns_of,
)
from tests.recurrent_models import RecurrentCase
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.evaluation.interleaved_timing import TurnRules
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command

_LIBRARY, _MODEL = "network.so", "model.onnx"
_TURN_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", nargs="+", default=["LSTM"])
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 128, 256, 512])
    parser.add_argument("--times", nargs="+", type=int, default=[5, 100])
    parser.add_argument("--samples", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--directions", type=int, choices=(1, 2), default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve[0], Path(options.serve[1]), options.threads)
        return
    ratios = []
    print(f"{'layer':6}{'hidden':>7}{'times':>6}{'samples':>8}{'tvmflow ms':>12}{'ORT ms':>10}{'ratio':>7}")
    sizes = itertools.product(options.operators, options.hidden, options.times, options.samples)
    for operator, hidden, times, samples in sizes:
        direction = "bidirectional" if options.directions == 2 else "forward"
        attributes = {"linear_before_reset": 1} if operator == "GRU" else {}
        case = RecurrentCase(operator, times, samples, hidden, hidden, direction, attributes=attributes)
        with tempfile.TemporaryDirectory() as place:
            turns = _measure(case, Path(place), options)
        ours, theirs = turns["tvmflow"], turns["onnxruntime"]
        ratios.append(ratio_of(ours, theirs))
        print(
            f"{operator:6}{hidden:7}{times:6}{samples:8}{milliseconds(ours):12.4f}{milliseconds(theirs):10.4f}"
            f"{ratios[-1]:7.2f}",
            flush=True,
        )
        print_if_busy(turns)
    print(f"geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}")


def _measure(case: RecurrentCase, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    source = case.load(folder)
    backend = CpuBackend(replace(host_target(), threads=options.threads))
    packed = backend.pack(canonicalize(source.to_relax()), None)[0]
    specs = tuple(TensorSpec(name, value.shape, str(value.dtype)) for name, value in case.inputs().items())
    described = Network("bench@cpu:float32", specs, source.output_names(), options.threads)
    write_network(folder / _LIBRARY, build_scheduled(packed, backend, {}), described, Command(("gcc",)))
    np.savez(folder / "inputs.npz", **case.inputs())  # type: ignore[arg-type]
    arguments = ["bench.recurrent", "--threads", str(options.threads), "--serve"]
    starts = {
        runner: partial(Peer, runner, [*arguments, runner, str(folder)], environment(options.threads))
        for runner in ("tvmflow", "onnxruntime")
    }
    return turns_of(starts, TurnRules(options.rounds, _TURN_S, LEAST_RUNS))


def _serve(runner: str, folder: Path, threads: int) -> None:
    with np.load(folder / "inputs.npz") as data:
        inputs = {name: data[name] for name in data.files}
    if runner == "tvmflow":
        instance = network_binding().Network(folder / _LIBRARY)
        serve(lambda: instance(*inputs.values()))
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / _MODEL, options, providers=["CPUExecutionProvider"])
    serve(lambda: session.run(None, inputs))


if __name__ == "__main__":
    main()
