"""Search measured tables with each tuner and each of its settings: what is found at equal trials."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from bench.tuning import BACKEND, local, rules, search
from tvmflow.config.stage_params import SearchSettings
from tvmflow.ir.tir.workloads import Workload, anchor_extents
from tvmflow.schedules.registry import Knobs, scheduled_function
from tvmflow.tuning.records.record import read_records
from tvmflow.tuning.search.tuners import TunerFactory, knob_key, tuner_factory

MEASURED = 160  # candidates of a kernel
TRIALS = (4, 8, 16, 32, 64)
SEEDS = 5
Times = dict[tuple[tuple[str, int], ...], float]


def settings() -> Iterator[tuple[str, SearchSettings]]:
    """Yield every choice of `tune:` that orders candidates, by a short name; the default first."""
    yield "default", SearchSettings()
    for name in ("grid", "random"):
        yield name, SearchSettings(tuner=name)
    for population in (4, 12, 50):
        yield f"ga, {population}", SearchSettings(tuner="ga", population=population)
    for loss in get_args(SearchSettings.model_fields["loss"].annotation):
        for features in get_args(SearchSettings.model_fields["features"].annotation):
            yield f"xgb, {loss}, {features}", SearchSettings(loss=loss, features=features)


class Table:
    """The measured candidates of a kernel."""

    def __init__(self, workload: Workload, times: Times) -> None:
        covered = BACKEND.template_for(workload.function)
        if covered is None:
            raise SystemExit(f"no template covers {workload.name}")
        self.workload, self.template = workload, covered[0]
        self.known = [knobs for knobs in covered[1] if knob_key(knobs) in times]
        self.seconds = [times[knob_key(knobs)] for knobs in self.known]
        self.extents = anchor_extents(workload.function)
        self._made: dict[tuple[tuple[str, int], ...], Any] = {}

    def scheduled(self, knobs: Knobs) -> Any:
        """Return the scheduled kernel, which all seeds share."""
        key = knob_key(knobs)
        if key not in self._made:
            self._made[key] = scheduled_function(self.workload.function, self.template, knobs)
        return self._made[key]

    def best_after(self, factory: TunerFactory) -> list[float]:
        """Return time / best known after each of TRIALS."""
        tuner = factory.make(self.workload.key, self.template.name, self.known, self.extents, self.scheduled)
        best, found, asked = math.inf, [], 0
        for trials in TRIALS:
            while asked < trials and (batch := tuner.ask(min(4, trials - asked))):
                for index in batch:
                    tuner.tell(index, self.seconds[index])
                    best, asked = min(best, self.seconds[index]), asked + 1
            found.append(best / min(self.seconds))
        return found


def measured(kernels: list[Workload]) -> list[Table]:
    """Measure random candidates of each kernel on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        search(kernels, rules(trials=MEASURED, tuner="random"), log, local)
        times: dict[str, Times] = {w.key: {} for w in kernels}
        for record in read_records(log):
            times[record.workload][knob_key(record.knobs)] = record.median_s
    return [Table(w, times[w.key]) for w in kernels]


def main(kernels: list[Workload]) -> None:
    """Print the geometric mean over kernels and seeds of time / best known, a row per choice."""
    tables = measured(kernels)
    print(f"{'time / best known after':>28}" + "".join(f"{trials:>8}" for trials in TRIALS) + "  trials of a kernel")
    for name, chosen in settings():
        rows = []
        for seed in range(SEEDS):
            factory = tuner_factory(chosen.model_copy(update={"seed": seed}))
            order = random.Random(seed).sample(tables, len(tables))  # noqa: S311
            rows += [table.best_after(factory) for table in order]
        means = (math.exp(mean(math.log(row[at]) for row in rows)) for at in range(len(TRIALS)))
        print(f"{name:>28}" + "".join(f"{value:8.3f}" for value in means), flush=True)
