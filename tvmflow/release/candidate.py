"""Compare a cell's newest library with the champion on the cell's device, and judge it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tvmflow.artifacts import RECORD_NAME, read_record, sha256_of
from tvmflow.backends.backend import Backend
from tvmflow.backends.table import backend_for
from tvmflow.devices.session import DeviceSession, RemoteModel, open_session
from tvmflow.devices.table import transport_of
from tvmflow.devices.transport import SessionLimits
from tvmflow.errors import DeviceLostError, StoreError
from tvmflow.evaluation.comparison import Comparison, compare_exact, compare_interleaved
from tvmflow.ledger import dvc
from tvmflow.ledger.history import champion_accuracy
from tvmflow.ledger.registry import CHAMPION, Version, logged_library, version_by_alias, version_by_sha256
from tvmflow.params import Cell
from tvmflow.release.gate import Verdict, judge
from tvmflow.report.tables import scorecard
from tvmflow.sources.datasets import Arrays, RandomInput, random_inputs
from tvmflow.workspace import Workspace


class Candidate:
    """The library in a cell's build folder, its registered version, and the champion that it would replace."""

    def __init__(self, workspace: Workspace, cell: Cell) -> None:
        self.workspace, self.cell = workspace, cell
        self.library = workspace.folder("build", cell) / "library.so"
        record = read_record(workspace.folder("build", cell) / RECORD_NAME)
        if sha256_of(self.library) != record.outputs["library.so"].sha256:
            raise StoreError(
                f"{self.library} was altered", "the bytes of its record", f"run 'tvmflow run {cell}' again"
            )
        version = version_by_sha256(workspace, cell, record.outputs["library.so"].sha256)
        card = scorecard(workspace, cell)
        if version is None or card is None:
            raise StoreError(
                f"the library of {cell} was never measured", "a measured library", f"run 'tvmflow run {cell}'"
            )
        self.version, self.card = version, card
        self.champion = version_by_alias(workspace, cell, CHAMPION)

    @property
    def is_champion(self) -> bool:
        return self.champion is not None and self.champion.version == self.version.version

    def judge(self) -> tuple[Verdict, Comparison | None]:
        """Measure against the champion, where there is one, and apply the rules of params.yaml."""
        rules = self.workspace.params.release
        if self.champion is None:
            return judge(self.card, None, None, rules), None
        accuracy = champion_accuracy(self.workspace, self.champion.run_id)
        try:
            comparison = self._compare(self.champion)
        except StoreError as error:
            return Verdict(False, (f"the champion cannot be compared with: {error.found}",)), None
        return judge(self.card, accuracy, comparison, rules), comparison

    def _compare(self, champion: Version) -> Comparison:
        params = self.workspace.params
        entry, rules = params.targets[self.cell.target], params.release
        limits = SessionLimits(params.deploy.session_timeout_s + 600, params.deploy.device_wait_s)
        with tempfile.TemporaryDirectory() as folder:
            old = Path(folder) / "champion.so"
            _champion_bytes(self.workspace, champion, old)
            backend = backend_for(entry)
            with open_session(entry.device, backend, limits) as session:
                inputs = self._inputs()
                models = []
                for path in (old, self.library):
                    try:
                        model = session.model(path)
                        model.set_inputs(*inputs)
                        model.invoke()
                    except DeviceLostError as error:
                        if path == old:
                            raise StoreError(
                                f"version {champion.version}, built with TVM {champion.tags.get('toolchain_tvm')}, "
                                f"does not run under this TVM: {error.found}"
                            ) from error
                        raise
                    models.append(model)
                a, b = models
                if transport_of(entry.device).is_emulated:  # its clock counts instructions
                    counts = [round(1e9 * model.time_runs(1)[0]) for model in models]
                    return compare_exact(counts[0], counts[1], "executed instructions")
                costs = [cost_of_one_run(backend, session, model) for model in models]
                if costs[0] is not None and costs[1] is not None:
                    return compare_exact(costs[0], costs[1], "estimated cycles")
                return compare_interleaved(a.time_runs, b.time_runs, rules.compare_rounds, rules.confidence)

    def _inputs(self) -> Arrays:
        tensors = list(self.workspace.params.models[self.cell.model].tensors.values())
        specs = [RandomInput(t.shape[1:], t.dtype, t.low, t.high) for t in tensors]
        return random_inputs(tensors[0].shape[0], specs, seed=0).inputs


def cost_of_one_run(backend: Backend, session: DeviceSession, model: RemoteModel) -> int | None:
    """Return what one run costs on a device whose own time says nothing, because it is simulated; None on others."""
    before = backend.cost(session.call)
    if before is None:
        return None
    model.invoke()
    return (backend.cost(session.call) or 0) - before


def _champion_bytes(workspace: Workspace, champion: Version, target: Path) -> None:
    try:
        dvc.file_by_md5(workspace, champion.dvc_md5, champion.sha256, target)
    except StoreError:
        logged_library(workspace, champion, target)
        if sha256_of(target) != champion.sha256:
            raise StoreError(f"the champion's library in MLflow was altered (version {champion.version})") from None
