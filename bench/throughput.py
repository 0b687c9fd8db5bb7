"""Measure runs per second of a network by instances and threads of each, beside OpenVINO's throughput mode.

    python -m bench.throughput CELL [--cpus 2] [--rounds 5] [--turn 1.0]

Of a cell that was built (`tvmflow run CELL`). Every way of giving the CPUs to instances is measured: from 1 instance
with all of them to one instance per CPU. Each instance has a thread of Python, which gives up the interpreter's lock
while the network runs. OpenVINO, where it is installed, chooses its streams itself (PERFORMANCE_HINT=THROUGHPUT). The
ways take turns; a line has the median over the rounds, and the median of its ratio to the first way in the same round.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import _onnx_file
from tvmflow.backends.manifest import read_manifest
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace
from tvmflow.support.runtime_binding import network_binding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell")
    parser.add_argument("--cpus", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of a measurement")
    options = parser.parse_args()
    workspace = find_workspace()
    cell = workspace.params.cell(options.cell)
    ways = {
        f"{count} x {options.cpus // count}": _tvmflow(workspace, cell, count, options.cpus // count)
        for count in range(1, options.cpus + 1)
        if options.cpus % count == 0
    }
    if importlib.util.find_spec("openvino"):
        ways["OpenVINO"] = _openvino(workspace, cell, options.cpus)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for measure in ways.values():
        measure(options.turn / 4)  # warm
    for _ in range(options.rounds):
        for name, measure in ways.items():
            found[name].append(measure(options.turn))
    first = next(iter(found.values()))
    print(f"{options.cell}, {options.cpus} CPUs\n{'instances x threads':>20}{'runs per second':>18}{'ratio':>8}")
    for name, rates in found.items():
        ratio = statistics.median(rate / other for rate, other in zip(rates, first, strict=True))
        print(f"{name:>20}{statistics.median(rates):18.1f}{ratio:8.2f}")


def _inputs(workspace: Workspace, cell: Cell) -> list[Any]:
    rng = np.random.default_rng(0)
    specs = read_manifest(workspace.folder("build", cell)).inputs
    return [
        rng.standard_normal(one.shape).astype(one.dtype)
        if one.dtype.startswith("float")
        else np.zeros(one.shape, one.dtype)
        for one in specs
    ]


def _tvmflow(workspace: Workspace, cell: Cell, instances: int, threads: int) -> Callable[[float], float]:
    """Return what measures runs per second for so many seconds."""
    binding, path = network_binding(), workspace.folder("build", cell) / "network.so"
    networks = [binding.Network(path, threads) for _ in range(instances)]
    arrays = _inputs(workspace, cell)

    def measure(seconds: float) -> float:
        counts = [0] * instances
        end = time.perf_counter() + seconds

        def run(at: int) -> None:
            while time.perf_counter() < end:
                networks[at](*arrays)
                counts[at] += 1

        begin = time.perf_counter()
        workers = [threading.Thread(target=run, args=(at,)) for at in range(instances)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(counts) / (time.perf_counter() - begin)

    return measure


def _openvino(workspace: Workspace, cell: Cell, cpus: int) -> Callable[[float], float]:
    import openvino

    core = openvino.Core()
    arrays = _inputs(workspace, cell)
    with tempfile.TemporaryDirectory() as folder:
        model = core.read_model(_onnx_file(workspace, cell, Path(folder)))
        model.reshape({at: array.shape for at, array in enumerate(arrays)})
        wanted = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": cpus}
        compiled = core.compile_model(model, "CPU", wanted)
    requests = openvino.AsyncInferQueue(compiled)
    given = dict(enumerate(arrays))

    def measure(seconds: float) -> float:
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            requests.start_async(given)
            count += 1
        requests.wait_all()
        return count / (time.perf_counter() - begin)

    return measure


if __name__ == "__main__":
    main()
