"""Compare modules of WebAssembly with onnxruntime-web, in node, on one thread.

    pip install --group bench && npm install --prefix FOLDER onnxruntime-web && python -m bench.wasm FOLDER [NAME ...]

Networks of bench/zoo.py or torchvision/NAME, with seeded weights and default schedules, no tuning, in turns: medians in
ms, the median of the turns' ratios, below 1 where tvmflow is faster; the largest difference of the outputs, relative to
the largest; the module's size beside the ONNX model's. Both run with the engine's optimizing compiler: ours by an
option of node, theirs after the first runs, which are not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.networks import converted
from bench.side_by_side import LEAST_RUNS, TURN_S, geometric_mean, milliseconds, print_if_busy, ratio_of
from bench.zoo import network_named
from tvmflow.backends.wasm import TRIPLE, WasmBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.stage_params import TuneParams
from tvmflow.devices.node.program import node_program
from tvmflow.devices.node.session import NodeSession
from tvmflow.evaluation.interleaved_timing import TimedModel, TurnRules, measure_interleaved
from tvmflow.evaluation.machine_state import host_watch
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.passes.pipeline import canonicalize
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.winograd_choice import choose_by_cost

NAMES = tuple(
    f"torchvision/{name}"
    for name in ("squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "resnet18", "mnasnet0_5")
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where npm installed onnxruntime-web")
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mattr", nargs="*", default=["+simd128"])
    options = parser.parse_args()
    target = ResolvedTarget("wasm", "generic", TRIPLE, tuple(options.mattr), 1, "zig")
    print(f"{'network':34}{'tvmflow ms':>11}{'ORT-web ms':>11}{'ratio':>7}{'differs':>9}{'MB':>6}{'ONNX MB':>9}")
    ratios = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            ratios.append(_compare(name, Path(place), target, options))
    print(f"geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}")


def _compare(name: str, folder: Path, target: ResolvedTarget, options: argparse.Namespace) -> float:
    """Print a network's line; return the ratio."""
    entry, backend = network_named(name), WasmBackend(target)
    exported = ExportedModel(entry.make(), entry.inputs)
    packed = backend.pack(converted(canonicalize(exported.to_relax()), entry, "float32"), None)[0]
    bounds = TuneParams().winograd_bounds
    scheduled = build_scheduled(packed, backend, {}, winograd=choose_by_cost(packed, backend, bounds))
    library, model = folder / "network.so", folder / "network.onnx"
    write_network(library, scheduled, Network("bench@wasm:float32", entry.inputs, ("y",), 1), target.compiler)
    exported.to_onnx(model)
    shape = entry.inputs[0].shape
    session = NodeSession("node", "", target, node_program(), "", 600.0)
    ours, theirs = session.start(str(library)), _Peer(options.folder, model, shape)
    try:
        x = np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
        output = ours.run(x)[0].ravel()[:1000]
        rules = TurnRules(options.rounds, TURN_S, LEAST_RUNS)
        models = [TimedModel("tvmflow", ours.time_runs), TimedModel("onnxruntime-web", theirs.time_runs)]
        turns = measure_interleaved(models, rules, host_watch(1))
    finally:
        session.close()
        theirs.close()
    ratio = ratio_of(*turns.values())
    one, two = map(milliseconds, turns.values())
    differs = float(np.abs(output - theirs.output).max() / np.abs(theirs.output).max())
    sizes = f"{library.stat().st_size / 1e6:6.1f}{model.stat().st_size / 1e6:9.1f}"
    print(f"{name:34}{one:11.2f}{two:11.2f}{ratio:7.2f}{differs:9.1e}{sizes}", flush=True)
    print_if_busy(turns)
    return ratio


class _Peer:
    """onnxruntime-web in a process of node. output: the first numbers of its first output."""

    def __init__(self, folder: Path, model: Path, shape: tuple[int, ...]) -> None:
        script = Path(__file__).with_name("onnxruntime_web.mjs")
        self.process = subprocess.Popen(
            [node_program(), str(script), str(folder.resolve()), str(model), "x".join(map(str, shape))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.output: Any = None

    def time_runs(self, count: int) -> list[float]:
        """Return the seconds of so many runs."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        self.output = np.array(reply["output"], np.float32)
        times: list[float] = reply["times_s"]
        return times

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    main()
