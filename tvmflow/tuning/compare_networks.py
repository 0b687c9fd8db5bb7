"""Compare two configurations of a whole network on the device, interleaved, and record the result."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.codegen.compile import schedule_lowered
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import link_rpc, write_network
from tvmflow.devices.restartable import Restartable
from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.evaluation.interleaved_timing import TimedModel, TurnRules, classify_turns, measure_interleaved, ratio_of
from tvmflow.evaluation.machine_state import Watch
from tvmflow.frontends.source_model import OutputSpec, TensorSpec
from tvmflow.ir.relax.graph import TensorKind, read_graph
from tvmflow.ir.tir.workloads import extract_workloads, kernel_keys
from tvmflow.tuning.measure.jobs import OpenSession
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, TuningRecord

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

NETWORK = "network"  # template name of records of whole networks; canary_s is the time of the other network
_ROUNDS, _TURN_S, _LEAST_RUNS = 15, 0.01, 4
_MOST_S = 3.0  # of measurement per configuration
_SETTLED_RUNS = 100
_MOST_PROFILED = 1000  # runs per profile


class NetworkConfig(NamedTuple):
    """A configuration of a network. winograd: convolution key -> tile; schedules: workload key -> record. Kernels
    without a record use their default schedule.
    """

    winograd: dict[str, int]
    schedules: Mapping[str, TuningRecord]


KernelTimes = dict[str, float]  # workload key -> seconds of a call


class NetworkComparison:
    """Compare networks on a device; use as a context manager. A session is opened for the first unknown comparison.

    took_s: duration of the last measurement. watch: observes the machine that computes, None where that is not
    possible.
    """

    def __init__(
        self,
        packed: IRModule,
        backend: Backend,
        tuning_log: TuningLog,
        folder: Path,
        open_session: OpenSession,
        watch: Watch | None = None,
    ) -> None:
        self.packed, self.backend, self.tuning_log = packed, backend, tuning_log
        self._watch = watch
        self.folder, self.open_session = folder, open_session
        self.took_s = 0.0
        self._context: Any = None
        self._session: DeviceSession | None = None
        self._models: dict[str, Restartable] = {}
        # Only two are cached, since each may hold a copy of the weights.
        self._lowered = lru_cache(2)(lambda winograd: lower(packed, backend, winograd=json.loads(winograd)))
        self._known = {r.workload: r for r in tuning_log.known() if r.template == NETWORK}

    def __enter__(self) -> NetworkComparison:
        return self

    def __exit__(self, *error: Any) -> None:
        for started in self._models.values():
            started.model.close()
        self._models.clear()
        if self._context is not None:
            self._context.__exit__(*error)

    def speedup(self, now: NetworkConfig, other: NetworkConfig) -> float:
        """Return the time with `now` divided by the time with `other`."""
        digest = _hash([self._digest(now), self._digest(other)])
        if digest not in self._known:
            started_s = time.monotonic()
            one, two = self._measure(now, other)
            self.took_s = time.monotonic() - started_s
            self._add(digest, other.winograd, one, two)
        record = self._known[digest]
        return record.canary_s / record.median_s

    def kernels(self, one: NetworkConfig, two: NetworkConfig) -> tuple[KernelTimes, KernelTimes]:
        """Return the kernel times of two configurations within the network; empty where the device does not report
        them.
        """
        digests = [_hash([self._digest(one), self._digest(two), which]) for which in ("first", "second")]
        if not set(digests) <= set(self._known):
            started_s = time.monotonic()
            times = self._profile(one, two)
            self.took_s = time.monotonic() - started_s
            if not times[0] or not times[1]:
                return {}, {}
            total = sum(times[0].values())
            for digest, found in zip(digests, times, strict=True):
                picoseconds = {key: round(seconds * 1e12) for key, seconds in found.items()}
                self._add(digest, picoseconds, total, sum(found.values()))
        first, second = (self._known[digest].knobs for digest in digests)
        return {key: ps / 1e12 for key, ps in first.items()}, {key: ps / 1e12 for key, ps in second.items()}

    def _add(self, digest: str, knobs: dict[str, int], one: float, two: float) -> None:
        assert self._session is not None
        record = TuningRecord(
            workload=digest,
            name="whole network",
            template=NETWORK,
            knobs=knobs,
            trace=None,
            seconds=(two,),
            status=OK,
            device_kind=self.tuning_log.device_kind,
            toolchain=self.tuning_log.toolchain,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            canary_s=one,
            unit=self._session.unit,
            build=self._session.build,
        )
        self.tuning_log.add(record)
        self._known[digest] = record

    def _digest(self, form: NetworkConfig) -> list[list[Any]]:
        used = extract_workloads(self.lowered(form))
        return [[w.key, w.calls, form.schedules[w.key].knobs if w.key in form.schedules else None] for w in used]

    def lowered(self, form: NetworkConfig) -> Any:
        """Return the network as an IRModule of kernels."""
        return self._lowered(json.dumps(form.winograd, sort_keys=True))

    def _measure(self, now: NetworkConfig, other: NetworkConfig) -> tuple[float, float]:
        """Return the interleaved times of two configurations, both in one state of the machine."""
        networks = {"now": self.model(now), "other": self.model(other)}
        models = [TimedModel(name, one.time_runs, relocate=one.relocate) for name, one in networks.items()]
        turns = measure_interleaved(models, TurnRules(_ROUNDS, _TURN_S, _LEAST_RUNS, _LEAST_RUNS), self._watch)
        in_order = classify_turns(turns, self.backend.target.threads)
        _, rounds, _ = ratio_of(in_order, "now", "other")
        one, two = (median(turns[name][at].median_s for at in rounds) for name in ("now", "other"))
        return one, two

    def _profile(self, one: NetworkConfig, two: NetworkConfig) -> tuple[KernelTimes, KernelTimes]:
        """Return the median kernel times over the rounds in which both ran in one state of the machine."""
        profiles: dict[str, list[KernelTimes]] = {"one": [], "two": []}
        models = []
        for name, form in (("one", one), ("two", two)):
            keys, model = kernel_keys(self.lowered(form)), self.model(form).model
            model.time_runs(
                _SETTLED_RUNS
            )  # a network tries how many threads each kernel is worth, not while it is profiled
            models.append(TimedModel(name, partial(_profile_runs, model, keys, profiles[name])))
        turns = measure_interleaved(models, TurnRules(_ROUNDS, _TURN_S, _LEAST_RUNS, _LEAST_RUNS, _MOST_S), self._watch)
        for name, taken in turns.items():  # drop those of the warm-up
            profiles[name] = profiles[name][-len(taken) :]
        if not all(profiles["one"]) or not all(profiles["two"]):
            return {}, {}
        _, rounds, _ = ratio_of(classify_turns(turns, self.backend.target.threads), "one", "two")
        first, second = (
            {key: median(profiles[name][at][key] for at in rounds) for key in profiles[name][0]}
            for name in ("one", "two")
        )
        return first, second

    def model(self, form: NetworkConfig) -> Restartable:
        """Return the running network of a configuration; build and upload it first where necessary."""
        name = _hash(self._digest(form))
        if name not in self._models:
            if self._session is None:
                self._context = self.open_session()
                self._session = self._context.__enter__()
            assert self._session is not None
            while len(self._models) > 1:  # each holds a copy of the weights on the device
                oldest = next(iter(self._models))
                self._models.pop(oldest).model.close()
                self._library(oldest).unlink()
            self._models[name] = Restartable(self._make_starter(self._session, form, self._library(name)))
        self._models[name] = self._models.pop(name)  # most recently used
        return self._models[name]

    def _library(self, name: str) -> Path:
        return self.folder / f"network-{name}.so"

    def _make_starter(self, session: DeviceSession, form: NetworkConfig, library: Path) -> Callable[[], RemoteModel]:
        """Build a configuration to a file and return a function that starts it."""
        scheduled = schedule_lowered(self.lowered(form), self.backend, form.schedules)
        graph, target = read_graph(self.packed), self.backend.target
        inputs = tuple(TensorSpec(name, kind.shape, kind.dtype) for name, kind in graph.inputs.items())
        kinds = [graph.kind(name) for name in graph.outputs]
        outputs = tuple(OutputSpec(f"output{at}", kind.shape, kind.dtype) for at, kind in enumerate(kinds))
        names = tuple(output.name for output in outputs)
        write_network(library, scheduled, Network("network", inputs, names, target.threads), target.compiler)
        if session.has_tvm and not (self.folder / "rpc.so").exists():
            link_rpc(self.folder / "rpc.so", target.compiler)
        arrays = [_input_array(kind) for kind in graph.inputs.values()]

        def start() -> RemoteModel:
            model = session.network(session.upload(library), self.folder, outputs)
            model.set_inputs(*arrays)
            model.invoke()
            return model

        return start


def _profile_runs(model: RemoteModel, keys: Mapping[str, str], profiles: list[KernelTimes], count: int) -> list[float]:
    """Profile `count` runs after one that refills the caches; return the mean time of a run, `count` times.

    profiles: gets the time per call of each kernel, nothing where the device does not report it. keys: kernel ->
    workload key.
    """
    count = min(count, _MOST_PROFILED)
    model.invoke()
    found: dict[str, list[float]] = {}
    whole_s = 0.0
    for name, calls, nanoseconds in model.profile(count):
        whole_s += nanoseconds * 1e-9 / count
        if name in keys and calls:
            found.setdefault(keys[name], []).append(nanoseconds / calls * 1e-9)
    profiles.append({key: mean(each) for key, each in found.items()})
    return [max(whole_s, 1e-9)] * count


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _input_array(kind: TensorKind) -> Any:
    """Return an input array; integers are zero, since they may be indices into a table of unknown size."""
    if not kind.dtype.startswith("float"):
        return np.zeros(kind.shape, kind.dtype)
    return np.random.default_rng(0).standard_normal(kind.shape).astype(kind.dtype)
