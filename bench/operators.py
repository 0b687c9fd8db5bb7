"""Profile a network operator by operator, beside ONNX Runtime and OpenVINO.

    pip install --group bench && python -m bench.operators CELL [--rounds 5]

The cell must be built. Each runs in a process of its own with its own profiler, in turns; an operator's time is the
median of the turns' means. Operators are brought together by what they make: kind, channels (a whole number of 16, as
we lay them out), height and width. A fused kernel counts as its heaviest operator, so element-wise rows are what was
not fused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers import input_of, onnxruntime_session, openvino_request, virtual_machine
from bench.side_by_side import environment
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace

PEERS = ("tvmflow", "onnxruntime", "openvino")
RUNS = 20
Row = tuple[str, str]
_KINDS = (
    ("conv", "conv"),
    ("winograd", "conv"),
    ("pool", "pool"),
    ("gemm", "dense"),
    ("matmul", "dense"),
    ("dense", "dense"),
    ("fullyconnected", "dense"),
    ("concat", "concat"),
    ("softmax", "softmax"),
    ("reorder", "layout"),
    ("transpose", "layout"),
    ("permute", "layout"),
    ("convert", "layout"),
    ("quantize", "quantize"),
    ("mean", "pool"),
    ("avg", "pool"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    workspace = Workspace(Path.cwd())
    if options.peer:
        cell = workspace.params.cell(options.cell)
        print(json.dumps(_PROFILES[options.peer](workspace, cell, options.threads)))
        return
    turns: dict[str, list[dict[Row, float]]] = {name: [] for name in PEERS}
    for turn in range(options.rounds):
        for name in PEERS if turn % 2 == 0 else reversed(PEERS):
            turns[name].append(_ask(options, name))
    seconds = {
        name: {row: median(taken.get(row, 0.0) for taken in turns[name]) for row in turns[name][0]} for name in PEERS
    }
    rows = sorted(
        {row for taken in seconds.values() for row in taken}, key=lambda row: -seconds["tvmflow"].get(row, 0.0)
    )
    print(f"{options.cell}, ms\n{'operator':10}{'makes':>16}" + "".join(f"{name:>14}" for name in PEERS))
    for kind, shape in rows:
        values = [seconds[name].get((kind, shape), 0.0) for name in PEERS]
        if max(values) >= 0.005:
            print(f"{kind:10}{shape:>16}" + "".join(f"{value:14.3f}" if value else f"{'-':>14}" for value in values))
    print(f"{'sum':26}" + "".join(f"{sum(seconds[name].values()):14.3f}" for name in PEERS))


def _ask(options: argparse.Namespace, name: str) -> dict[Row, float]:
    command = [sys.executable, "-m", "bench.operators", options.cell, "--peer", name, "--threads", str(options.threads)]
    done = subprocess.run(command, env=environment(options.threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    total: dict[Row, float] = defaultdict(float)
    for operator, shape, milliseconds in json.loads(done.stdout.strip().splitlines()[-1]):
        total[_kind(operator), _made(shape)] += milliseconds
    return total


def _kind(operator: str) -> str:
    low = operator.lower()
    return next((kind for part, kind in _KINDS if part in low), "other")


def _made(shape: list[int]) -> str:
    """Return what an operator makes: channels of whole blocks, height, width."""
    if len(shape) == 4 and shape[1] == shape[2] != shape[3]:  # ONNX Runtime lays images of bytes out with channels last
        shape = [shape[0], shape[3], *shape[1:3]]
    if len(shape) == 5:
        shape = [shape[0], shape[1] * shape[4], *shape[2:4]]
    rest = shape[1:]
    while len(rest) > 1 and rest[-1] == 1:
        rest = rest[:-1]
    return "x".join(str(d) for d in [-(-rest[0] // 16) * 16, *rest[1:]]) if rest else "1"


def _tvmflow(workspace: Workspace, cell: Cell, _threads: int) -> list[tuple[str, list[int], float]]:
    machine, tensor = virtual_machine(workspace, cell, input_of(workspace, cell))
    started, spent, shapes = 0.0, defaultdict[str, float](float), dict[str, list[int]]()

    def watch(_function: Any, name: str, before: bool, _output: Any, *arguments: Any) -> int:
        nonlocal started
        if before:
            started = time.perf_counter()
        elif arguments and not name.startswith("vm.builtin") and hasattr(arguments[-1], "shape"):
            spent[name] += time.perf_counter() - started
            shapes[name] = [int(d) for d in arguments[-1].shape]
        return 0

    for _ in range(5):
        machine["main"](tensor)
    machine.set_instrument(watch)
    for _ in range(RUNS):
        machine["main"](tensor)
    return [(name, shapes[name], seconds / RUNS * 1e3) for name, seconds in spent.items()]


def _onnxruntime(workspace: Workspace, cell: Cell, threads: int) -> list[tuple[str, list[int], float]]:
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "profile")
        session, feed = onnxruntime_session(workspace, cell, input_of(workspace, cell), threads, prefix)
        for _ in range(5 + RUNS):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[str, list[float]] = defaultdict(list)
    about: dict[str, tuple[str, list[int]]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            made = event["args"].get("output_type_shape") or [{"": [1]}]
            about[event["name"]] = (event["args"]["op_name"], next(iter(made[0].values())))
            spent[event["name"]].append(event["dur"] * 1e-3)
    return [(*about[name], sum(times[-RUNS:]) / RUNS) for name, times in spent.items()]


def _openvino(workspace: Workspace, cell: Cell, threads: int) -> list[tuple[str, list[int], float]]:
    compiled, request = openvino_request(workspace, cell, input_of(workspace, cell), threads, profile=True)
    shapes = {op.get_friendly_name(): _static(op) for op in compiled.get_runtime_model().get_ordered_ops()}
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for run in range(5 + RUNS):
        request.infer()
        for info in request.get_profiling_info() if run >= 5 else ():
            spent[info.node_name, info.node_type] += info.real_time.total_seconds() * 1e3 / RUNS
    return [(kind, shapes.get(name, [1, 1]), total) for (name, kind), total in spent.items() if total]


def _static(op: Any) -> list[int]:
    made = [output for output in op.outputs() if not output.get_partial_shape().is_dynamic]
    return [int(d) for d in made[0].get_shape()] if made else [1, 1]


_PROFILES: dict[str, Callable[[Workspace, Cell, int], list[tuple[str, list[int], float]]]] = {
    "tvmflow": _tvmflow,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

if __name__ == "__main__":
    main()
