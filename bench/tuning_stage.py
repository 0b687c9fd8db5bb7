"""Run the whole stage `tune` from scratch, and measure its gain: `python -m bench.tuning_stage [NAME ...] [--precision
float32]`.

Networks of bench/zoo.py with seeded weights. Prints the stage's seconds, the sum of the kernels' times after 15, 30,
... s, each convolution by its fastest way, and the latency of the network in turns of processes of their own: with
default schedules, as it would be had the stage ended after 60 s, and tuned.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.networks import converted
from bench.side_by_side import (
    LEAST_RUNS,
    TURN_S,
    Peer,
    environment,
    geometric_mean,
    milliseconds,
    print_if_busy,
    ratio_of,
    turns_of,
)
from bench.zoo import network_named
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.params import DeviceEntry
from tvmflow.config.stage_params import TuneParams
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.evaluation.interleaved_timing import TurnRules
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.progress import silent
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.compare_networks import NETWORK
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import TuningRecord, best_of
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.tune_network import tune_network
from tvmflow.tuning.winograd_choice import Alternative, choose_by_cost, find_alternatives

_EARLY_S = 60.0
_CURVE_S = (0, 15, 30, 60, 90, 120, 180, 240)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["resnet18"])
    parser.add_argument("--precision", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--log",
        type=Path,
        help="a tuning log to go on with, whose records teach the search; default: a new one for each network",
    )
    options = parser.parse_args()
    defaults: list[float] = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as place:
            defaults.append(_stage(name, Path(place), options))
    print(f"geometric mean of {len(defaults)}: default schedules take {geometric_mean(defaults):.3f} of the tuned time")


def _stage(name: str, folder: Path, options: argparse.Namespace) -> float:
    """Tune a network and print how that went; return the latency with default schedules over that when tuned."""
    settings = TuneParams.model_validate(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["tune"])
    backend, entry = CpuBackend(replace(host_target(), threads=options.threads)), network_named(name)
    module = converted(canonicalize(ExportedModel(entry.make(), entry.inputs).to_relax()), entry, options.precision)
    packed = backend.pack(module, None)[0]
    tuning_log = _TimedLog(options.log or folder / "log.jsonl", backend.kernel_kind, {"bench": "1"})

    def local() -> contextlib.AbstractContextManager[Any]:
        return open_session(DeviceEntry(transport="local", key="bench"), backend, SessionLimits(3600.0, 60.0))

    begin = time.monotonic()
    rules, budget = SearchRules(settings, settings), Budget(settings.max_seconds)
    tuned = tune_network([packed], backend, rules, tuning_log, local, silent, budget)
    seconds, report = time.monotonic() - begin, tuned.report
    print(
        f"{name}: {seconds:.0f} s, {report.seconds:.0f} of them the search, {report.measured} measured; "
        f"ended by {report.stopped}"
    )
    base = extract_workloads(lower(packed, backend))
    curve = _Curve(
        base,
        find_alternatives(packed, backend, base, settings.winograd_bounds),
        [(at - begin, record) for at, record in tuning_log.added if record.template != NETWORK and record.seconds],
    )
    for until in (*(at for at in _CURVE_S if at < seconds), seconds):
        print(f"{until:6.0f} s  {curve.kernels_s(until) * 1e3:8.3f} ms", flush=True)
    by_cost = choose_by_cost(packed, backend, settings.winograd_bounds)
    builds: dict[str, tuple[dict[str, TuningRecord], dict[str, int]]] = {
        "default": ({}, by_cost),
        "early": (curve.best(_EARLY_S), tuned.winograd),
        "tuned": (report.best, tuned.winograd),
    }
    for label, (best, winograd) in builds.items():
        described = Network("bench@cpu:float32", entry.inputs, ("output0",), options.threads)
        scheduled = build_scheduled(packed, backend, best, winograd=winograd)
        write_network(folder / f"{label}.so", scheduled, described, Command(("gcc",)))
    np.savez(folder / "inputs.npz", *entry.samples())
    arguments = ["bench.networks", name, "--threads", str(options.threads), "--serve"]
    turns = turns_of(
        {
            label: partial(Peer, label, [*arguments, f"{label}.so", str(folder)], environment(options.threads))
            for label in builds
        },
        TurnRules(options.rounds, TURN_S, LEAST_RUNS),
    )
    for label, taken in turns.items():
        print(f"{label:8} {milliseconds(taken):8.3f} ms ({ratio_of(taken, turns['tuned']):.3f} of tuned)", flush=True)
    print_if_busy(turns)
    return ratio_of(turns["default"], turns["tuned"])


@dataclass(frozen=True)
class _Curve:
    """times: seconds since the stage began, and what was measured then."""

    base: list[Any]
    ways: list[Alternative]
    times: list[tuple[float, TuningRecord]]

    def best(self, until: float) -> dict[str, TuningRecord]:
        return best_of([record for at, record in self.times if at <= until])

    def kernels_s(self, until: float) -> float:
        """Return the sum of all kernels' times in seconds; those without a time count with their first."""
        first = {record.workload: record.median_s for _, record in reversed(self.times)}
        best = self.best(until)
        found = {key: best[key].median_s if key in best else value for key, value in first.items()}
        total = sum(w.calls * found.get(w.key, 0.0) for w in self.base)
        won = dict.fromkeys((way.key for way in self.ways), 0.0)
        for way in self.ways:
            if all(w.key in best for w in way.added):
                gain = sum(w.calls * found.get(w.key, 0.0) for w in way.removed) - sum(
                    w.calls * found[w.key] for w in way.added
                )
                won[way.key] = max(won[way.key], gain)
        return float(total - sum(won.values()))


@dataclass(frozen=True)
class _TimedLog(TuningLog):
    """Remembers when what was added."""

    added: list[tuple[float, TuningRecord]] = field(default_factory=list)

    def add(self, record: TuningRecord) -> None:
        self.added.append((time.monotonic(), record))
        super().add(record)


if __name__ == "__main__":
    main()
