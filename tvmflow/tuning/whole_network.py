"""Compare two ways to compute a whole network, on the device, in turns, and remember what came out."""

from __future__ import annotations

import hashlib
import itertools
import json
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.building.library import Scheduled, schedule_lowered
from tvmflow.building.lower import lower
from tvmflow.building.self_contained import Network, write_network
from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.graph import Graph, TensorKind, read_graph
from tvmflow.kernels.workloads import extract_workloads
from tvmflow.tuning.fleet import OpenSession
from tvmflow.tuning.journal import Journal
from tvmflow.tuning.records import OK, TuningRecord

NETWORK = "network"  # the template of records of whole networks; their canary is the network they were compared with
_ROUNDS, _RUNS = 5, 4


class NetworkComparison:
    """Opens a session when the first comparison is not known yet; use as a context manager."""

    def __init__(
        self, packed: Any, backend: Backend, best: dict[str, TuningRecord], journal: Journal, folder: Path,
        open_session: OpenSession,
    ) -> None:  # fmt: skip
        self.packed, self.backend, self.best, self.journal = packed, backend, best, journal
        self.folder, self.open_session = folder, open_session
        self._count = itertools.count()
        self._context: Any = None
        self._session: DeviceSession | None = None
        self._models: dict[str, RemoteModel] = {}
        # The last ones are kept, since one of them is compared with the next; each may hold a copy of the weights.
        self._lowered = lru_cache(2)(lambda winograd: lower(packed, backend, winograd=json.loads(winograd)))
        self._known = {r.workload: r for r in journal.known() if r.template == NETWORK}

    def __enter__(self) -> NetworkComparison:
        return self

    def __exit__(self, *error: Any) -> None:
        self._models.clear()
        if self._context is not None:
            self._context.__exit__(*error)

    def speedup(self, now: dict[str, int], other: dict[str, int]) -> float:
        """Return time with `now` over time with `other`, both maps of convolution key to Winograd tile."""
        digest = hashlib.sha256(json.dumps([self._digest(now), self._digest(other)]).encode()).hexdigest()[:32]
        if digest not in self._known:
            one, two = self._measure(now, other)
            assert self._session is not None
            record = TuningRecord(
                workload=digest, name="whole network", template=NETWORK, knobs=other, trace=None, seconds=(two,),
                status=OK, device_kind=self.journal.device_kind, toolchain=self.journal.toolchain,
                created=datetime.now(UTC).isoformat(timespec="seconds"), canary_s=one, unit=self._session.unit, build=self._session.build,
            )  # fmt: skip
            self.journal.add(record)
            self._known[digest] = record
        record = self._known[digest]
        return record.canary_s / record.median_s

    def _digest(self, winograd: dict[str, int]) -> list[list[Any]]:
        used = extract_workloads(self._kernels(winograd))
        return [[w.key, w.calls, self.best[w.key].knobs if w.key in self.best else None] for w in used]

    def _kernels(self, winograd: dict[str, int]) -> Any:
        """Return the network as a module of kernels."""
        return self._lowered(json.dumps(winograd, sort_keys=True))

    def _measure(self, now: dict[str, int], other: dict[str, int]) -> tuple[float, float]:
        one, two = self._model(now), self._model(other)
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(_ROUNDS):
            for index in (0, 1) if number % 2 else (1, 0):
                times[index].extend((one, two)[index].time_runs(_RUNS)[1:])
        return median(times[0]), median(times[1])

    def _model(self, winograd: dict[str, int]) -> RemoteModel:
        name = json.dumps(winograd, sort_keys=True)
        if name not in self._models:
            if self._session is None:
                self._context = self.open_session()
                self._session = self._context.__enter__()
            assert self._session is not None
            records = {key: {"trace": record.trace} for key, record in self.best.items()}
            scheduled = schedule_lowered(self._kernels(winograd), self.backend, records)
            library = self.folder / f"network-{next(self._count)}.so"
            while len(self._models) > 2:  # each holds a copy of the weights
                self._models.pop(next(iter(self._models)))
            graph = read_graph(self.packed)
            model = self._started(self._session, scheduled, graph, library)
            library.unlink()
            model.set_inputs(*(_filled(kind) for kind in graph.inputs.values()))
            model.invoke()
            self._models[name] = model
        return self._models[name]

    def _started(self, session: DeviceSession, scheduled: Scheduled, graph: Graph, library: Path) -> RemoteModel:
        if session.has_tvm:
            self.backend.export(scheduled.executable, library)
            return session.model(library)
        inputs = tuple(TensorSpec(name, kind.shape, kind.dtype) for name, kind in graph.inputs.items())
        outputs = tuple(f"output{at}" for at in range(len(graph.outputs)))
        target = self.backend.target
        write_network(library, scheduled, Network("network", inputs, outputs, target.threads), target.compiler)
        return session.network(session.upload(library), self.folder, [])


def _filled(kind: TensorKind) -> Any:
    """Return an input: integers may be places in a table whose size nobody knows here, so they are zero."""
    if not kind.dtype.startswith("float"):
        return np.zeros(kind.shape, kind.dtype)
    return np.random.default_rng(0).standard_normal(kind.shape).astype(kind.dtype)
