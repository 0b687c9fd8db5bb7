"""Compare a cell's newest library with the champion on the cell's device, and apply the release gate.

The shipped form is compared: network.so with network.so, through any transport; library.so with library.so in TVM's
virtual machine if the champion has no network.so.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from tvmflow.backends.manifest import read_manifest
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.gpu.quarantine import read_quarantine
from tvmflow.devices.network_forms import LibraryForm, network_library, vm_library
from tvmflow.devices.registry import transport_of
from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.pipeline.record import LIBRARIES, RECORD_NAME, read_record
from tvmflow.report.tables import scorecard
from tvmflow.shipping.gates.cell import judge
from tvmflow.shipping.gates.gpu import gpu_reasons
from tvmflow.shipping.side_by_side import compare_on_device, inputs_of, started
from tvmflow.sources.data.datasets import Arrays
from tvmflow.support.errors import DeviceLostError, StageError, StoreAwayError, StoreError
from tvmflow.support.files import sha256_of
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.dvc import repository as dvc
from tvmflow.tracking.mlflow.history import champion_accuracy
from tvmflow.tracking.mlflow.registry import CHAMPION, Version, version_by_alias, version_by_sha256
from tvmflow.tracking.mlflow.version_files import version_library
from tvmflow.tracking.result_tables import held_reasons


class _ChampionGoneError(StoreError):
    """The champion's library is nowhere, or runs no more."""


class Candidate:
    """The library in a cell's build folder, its registered version, and the champion that it would replace."""

    def __init__(self, workspace: Workspace, cell: Cell) -> None:
        self.workspace, self.cell = workspace, cell
        self.folder = workspace.folder("build", cell)
        outputs = read_record(self.folder / RECORD_NAME).outputs
        for name in LIBRARIES:
            if name in outputs and sha256_of(self.folder / name) != outputs[name].sha256:
                raise StoreError(
                    f"{self.folder / name} was altered", "the bytes in its record", f"run 'tvmflow run {cell}' again"
                )
        network = outputs["network.so"].sha256 if "network.so" in outputs else ""
        version = version_by_sha256(workspace, cell, outputs["library.so"].sha256, network)
        card = scorecard(workspace, cell)
        if version is None or card is None:
            raise StoreError(
                f"the library of {cell} was never measured", "a measured library", f"run 'tvmflow run {cell}'"
            )
        self.version, self.card = version, card
        self.champion = version_by_alias(workspace, cell, CHAMPION)
        self.is_comparable = True  # False once a comparison with the champion was not possible

    @property
    def is_champion(self) -> bool:
        return self.champion is not None and self.champion.version == self.version.version

    def judge(self, replace_missing: bool = False) -> tuple[tuple[str, ...], Comparison | None]:
        """Measure against the champion, if there is one; return the reasons against a release by the rules of
        params.yaml, and the comparison.

        replace_missing: a champion that cannot be compared is no reason; its accuracy still counts.
        """
        if held := held_reasons(self.workspace, str(self.cell)):
            return tuple(held), None
        api = read_manifest(self.folder).network.gpu
        if reasons := gpu_reasons(self.card, api, read_quarantine(self.workspace.root)):
            return tuple(reasons), None
        rules = self.workspace.params.release
        if self.champion is None:
            return judge(self.card, None, None, rules), None
        accuracy = champion_accuracy(self.workspace, self.champion.run_id)
        try:
            comparison = self._compare(self.champion)
        except StoreAwayError:
            raise
        except StoreError as error:
            self.is_comparable = False
            is_gone = isinstance(error, _ChampionGoneError)
            if replace_missing and is_gone:
                return judge(self.card, accuracy, None, rules), None
            replace_it = f"replace it: 'tvmflow promote {self.cell} --replace-missing WHY'" if is_gone else ""
            how = ", or ".join(filter(None, (error.hint, replace_it)))
            return (f"the champion cannot be compared: {error.found}" + (f"; {how}" if how else ""),), None
        return judge(self.card, accuracy, comparison, rules), comparison

    def _compare(self, champion: Version) -> Comparison:
        with temporary_folder("gate") as folder:
            old, new = self._forms(champion, Path(folder))
            inputs = inputs_of(self.workspace, self.cell)
            start = functools.partial(_start_champion, champion, old, inputs), functools.partial(started, new, inputs)
            return compare_on_device(self.workspace, self.cell, start)

    def _forms(self, champion: Version, folder: Path) -> tuple[LibraryForm, LibraryForm]:
        """Fetch the champion into a folder; return its library and the candidate's, both of one kind. Raises
        StoreError.
        """
        manifest = read_manifest(self.folder)
        new = network_library(self.folder, manifest.outputs, manifest.network.device)
        old = folder / "champion.so"
        if champion.network_sha256:
            _champion_bytes(self.workspace, champion, "network.so", old)
            return replace(new, file=old), new
        device = self.workspace.params.targets[self.cell.target].device
        if not transport_of(device).has_tvm_on(device):
            raise _ChampionGoneError(
                f"version {champion.version} has no known network.so, and device {self.cell.target!r} has no TVM"
            )
        machine = vm_library(self.folder)
        _champion_bytes(self.workspace, champion, "library.so", old)
        return replace(machine, file=old), machine


def _start_champion(champion: Version, form: LibraryForm, inputs: Arrays, session: DeviceSession) -> RemoteModel:
    """Start the champion and run it once. Raises StoreError if it no longer runs."""
    try:
        return started(form, inputs, session)
    except (DeviceLostError, StageError) as error:
        raise _ChampionGoneError(
            f"version {champion.version}, built with TVM {champion.tags.get('toolchain_tvm')}, no longer runs: "
            f"{error.found}"
        ) from error


def _champion_bytes(workspace: Workspace, champion: Version, name: str, target: Path) -> None:
    """Copy a library of the champion from DVC's cache, or from the model registry where that lacks it."""
    digests = {
        "library.so": (champion.dvc_md5, champion.sha256),
        "network.so": (champion.network_dvc_md5, champion.network_sha256),
    }
    try:
        dvc.file_by_md5(workspace, *digests[name], target)
    except StoreError:
        try:
            version_library(workspace, champion, name, target)
        except StoreAwayError:
            raise
        except StoreError as error:
            raise _ChampionGoneError(error.found, error.expected, error.hint) from error
