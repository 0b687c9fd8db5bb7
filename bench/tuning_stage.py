"""All of the stage `tune` by params.yaml, from nothing, on random weights: `python -m bench.tuning_stage [NETWORK]`.

Prints its seconds, and the time of the network's kernels after 15, 30, ... s.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import yaml

from bench.tuning import BACKEND, local, packed_network
from tvmflow.building.lower import lower
from tvmflow.kernels.workloads import extract_workloads
from tvmflow.progress import silent
from tvmflow.stage_params import TuneParams
from tvmflow.tuning.algorithms import alternatives
from tvmflow.tuning.journal import Journal
from tvmflow.tuning.network import network_rules, tune_network
from tvmflow.tuning.records import TuningRecord, best_of
from tvmflow.tuning.whole_network import NETWORK


def stage(network: str = "torchvision/resnet18") -> None:
    """Print when the network's kernels, each convolution by its fastest way, took how long; those without a time count with their first."""
    settings: Any = TuneParams.model_validate(yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["tune"])
    packed = packed_network(network)
    base = extract_workloads(lower(packed, BACKEND))
    ways = alternatives(packed, BACKEND, base, settings.winograd_max_error)
    with tempfile.TemporaryDirectory() as folder:
        journal = _TimedJournal(Path(folder) / "log.jsonl", BACKEND.kernel_kind, {"bench": "1"})
        started = time.monotonic()
        report = tune_network([packed], BACKEND, network_rules(settings, settings, True), journal, local, silent).report
        seconds = time.monotonic() - started
    times = [(at - started, record) for at, record in journal.added if record.template != NETWORK and record.seconds]
    first = {record.workload: record.median_s for _, record in reversed(times)}
    print(
        f"{network}: {seconds:.0f} s, {report.seconds:.0f} of them the search, {report.measured} measured; ended by {report.stopped}"
    )
    for until in (0, 15, 30, 60, 120, 240, seconds):
        best = best_of([record for at, record in times if at <= until])
        found = {key: best[key].median_s if key in best else value for key, value in first.items()}
        total = sum(w.calls * found.get(w.key, 0.0) for w in base)
        won = dict.fromkeys((way.key for way in ways), 0.0)
        for way in ways:
            if all(w.key in best for w in way.added):
                gain = sum(w.calls * found[w.key] for w in way.removed) - sum(w.calls * found[w.key] for w in way.added)
                won[way.key] = max(won[way.key], gain)
        print(f"{until:6.0f} s  {(total - sum(won.values())) * 1e3:8.3f} ms")


class _TimedJournal(Journal):
    """Remembers when what was added."""

    added: ClassVar[list[tuple[float, TuningRecord]]] = []

    def add(self, record: TuningRecord) -> None:
        self.added.append((time.monotonic(), record))
        super().add(record)


if __name__ == "__main__":
    stage(*sys.argv[1:])
