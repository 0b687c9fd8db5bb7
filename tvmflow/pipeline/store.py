"""Find, check, restore, make and keep the outputs of stages.

Each stage and cell has one folder in artifacts/, which DVC owns. A recipe key is looked up in that folder first, then
in the index, which maps it to folders of this workspace or to md5s in DVC's cache. A folder is valid only if every file
has the digest in its record. Missing outputs are made in a temporary folder and moved into place when complete.
Processes that need the same folder or key wait for each other.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from filelock import FileLock, Timeout

from tvmflow.config.dvc_cache import dvc_cache, object_path
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.recipe_index import RecipeIndex
from tvmflow.pipeline.recipe_key import changed_parts, recipe_key
from tvmflow.pipeline.recipe_now import recipe_now
from tvmflow.pipeline.record import (
    RECORD_NAME,
    Record,
    describe_folder,
    first_difference,
    read_record,
    record_text,
)
from tvmflow.pipeline.stage import AnyStage, Runner, StageContext, run_here
from tvmflow.support import errors
from tvmflow.support.digests import OutputFile
from tvmflow.support.files import sync_folder, write_atomic
from tvmflow.support.own_packages import own_module
from tvmflow.support.progress import Progress, StepTimes, silent
from tvmflow.support.temporary import temporary_folder

Outcome = Literal["hit", "restored", "made"]


@dataclass(frozen=True)
class Plan:
    """The plan of a stage. `record` is set on a hit; `reason` explains a miss."""

    stage: AnyStage
    cell: Cell
    key: str
    recipe: dict[str, Any]
    settings: Any
    record: Record | None
    reason: str
    restorable: Record | None = None  # set if `Store.foresee` found the outputs of this key elsewhere
    is_checked: bool = False  # all outputs of the record are valid

    @property
    def is_hit(self) -> bool:
        return self.record is not None


@dataclass(frozen=True)
class Undecided:
    """A stage whose key is unknown until an earlier stage has run."""

    stage: AnyStage
    cell: Cell
    waits_for: str
    is_hit: ClassVar[bool] = False


Known = dict[str, Plan | Undecided]


class Store:
    """The artifacts of one workspace. run: what fills the folder of a stage that must be made."""

    def __init__(self, workspace: Workspace, stages: Mapping[str, AnyStage], run: Runner = run_here) -> None:
        self.workspace = workspace
        self.stages = stages
        self.index = RecipeIndex(workspace)
        self._run = run

    # -- asking ------------------------------------------------------------------------------------------------------
    def plan(self, name: str, cell: Cell, known: Known | None = None) -> Plan | Undecided:
        """Compute the current key of a stage and check whether its outputs are valid.

        All outputs of the stage are checked, and those outputs of earlier stages that it reads. known: collects the
        plans of earlier stages, so that no record is read twice.
        """
        known = {} if known is None else known
        plan = self._plan_by_records(name, cell, known)
        if isinstance(plan, Undecided) or plan.record is None:
            return plan
        wrong = self._difference(plan, None)
        if wrong:
            return replace(plan, record=None, reason=wrong)
        known[name] = replace(plan, is_checked=True)
        return known[name]

    def foresee(self, cell: Cell, known: Known | None = None) -> list[Plan | Undecided]:
        """Plan every cached stage like a run, including what it would restore and what follows from that."""
        known = {} if known is None else known
        plans = []
        for name, stage in self.stages.items():
            if not stage.is_cached:
                continue
            plan = self.plan(name, cell, known)
            if isinstance(plan, Plan) and not plan.is_hit:
                record = self._find(plan)
                plan = replace(plan, restorable=record)
                if record is not None:
                    known[name] = plan
            plans.append(plan)
        return plans

    def _plan_by_records(self, name: str, cell: Cell, known: Known) -> Plan | Undecided:
        """Plan by records only, without checking the outputs."""
        if name not in known:
            known[name] = self._key(self.stages[name], cell, known)
        return known[name]

    def _key(self, stage: AnyStage, cell: Cell, known: Known) -> Plan | Undecided:
        settings = stage.settings(self.workspace, cell)  # first: what cannot be asked for is refused before any work
        digests = {}
        for source, only in stage.inputs.items():
            source_plan = self._plan_by_records(source, cell, known)
            if isinstance(source_plan, Undecided):
                return Undecided(stage, cell, source_plan.waits_for)
            record = source_plan.restorable or source_plan.record
            if record is None or (source_plan.restorable is None and self._difference(source_plan, only)):
                return Undecided(stage, cell, source)
            digests[source] = record.digest(only)
        recipe = recipe_now(self.workspace, stage, cell, settings, digests)
        key = recipe_key(recipe)
        record, reason = self._look(stage, cell, key, recipe)
        return Plan(stage, cell, key, recipe, settings, record, reason)

    def _difference(self, plan: Plan, only: tuple[str, ...] | None) -> str | None:
        """Return the first invalid file of a record (or of those named), None if all are valid."""
        if plan.is_checked:
            return None
        assert plan.record is not None
        folder = self.workspace.folder(plan.stage.name, plan.cell)
        return first_difference(folder, plan.record.outputs, self.workspace.digests, only)

    def plan_all(self, cell: Cell) -> list[Plan | Undecided]:
        """Plan every cached stage of a cell in execution order."""
        known: Known = {}
        return [self.plan(name, cell, known) for name, stage in self.stages.items() if stage.is_cached]

    def record_of(self, name: str, cell: Cell) -> Record:
        """Return the record in a stage's folder, whatever its key. Raises StoreError without one."""
        return read_record(self.workspace.folder(name, cell) / RECORD_NAME)

    def _look(self, stage: AnyStage, cell: Cell, key: str, recipe: dict[str, Any]) -> tuple[Record | None, str]:
        if not stage.is_cached:
            return None, "never cached"
        folder = self.workspace.folder(stage.name, cell)
        try:
            record = read_record(folder / RECORD_NAME, (key, recipe))
        except errors.StoreError as error:
            return None, "never made" if not folder.exists() else str(error)
        if record.key != key:
            return None, "; ".join(changed_parts(record.recipe, recipe))
        return record, ""

    # -- doing -------------------------------------------------------------------------------------------------------
    def ensure(
        self, name: str, cell: Cell, *, progress: Progress = silent, again: bool = False
    ) -> tuple[Record, Outcome]:
        """Return the record of a stage, running it only if its outputs cannot be found. again: run it in any case.

        Raises StoreError if earlier stages are missing. A failure leaves existing outputs unchanged.
        """
        try:
            with self._folder_lock(name, cell, progress):
                self._recover(name, cell)
                plan = self.plan(name, cell)
                if isinstance(plan, Undecided):
                    raise errors.StoreError(
                        f"{name} of {cell} needs {plan.waits_for}, which is not there or out of date",
                        hint=f"run 'python -m {own_module('tasks')} {plan.waits_for} {cell}' or 'tvmflow run {cell}'",
                    )
                if plan.record is not None and not again:
                    self._keep_log(plan)
                    return plan.record, "hit"
                with self._lock(f"key-{plan.key[:40]}", progress, f"the same {name} of another cell"):
                    restored = self._restore(plan) if plan.stage.is_cached and not again else None
                    if restored is not None:
                        self._keep_log(plan)
                        return restored, "restored"
                    return self._make(plan, progress), "made"
        except OSError as error:
            raise errors.from_os_error(error, f"writing {name} of {cell}") from error

    def lacks(self, name: str, cell: Cell, known: Known) -> Plan | None:
        """Return the plan of a stage that has no folder and whose outputs are nowhere here, else None."""
        if self.workspace.folder(name, cell).exists():
            return None
        plan = self._plan_by_records(name, cell, known)
        return None if isinstance(plan, Undecided) or self._find(plan) is not None else plan

    def restore_skipped(self, name: str, cell: Cell) -> None:
        """Restore the outputs of a stage that is skipped since all later ones are found, where they can be found: DVC
        misses them, nothing else does.
        """
        if self.workspace.folder(name, cell).exists():
            return
        with self._folder_lock(name, cell, silent):
            self._recover(name, cell)
            plan = self.plan(name, cell)
            if isinstance(plan, Plan) and not self.workspace.folder(name, cell).exists():
                self._restore(plan)

    def preview(self, name: str, cell: Cell, progress: Progress) -> None:
        """Run the preview of a stage if the stage itself would run. Nothing is stored."""
        plan = self.plan(name, cell)
        if isinstance(plan, Undecided) or plan.is_hit or not plan.stage.preview or self._find(plan) is not None:
            return
        module, _, function = plan.stage.preview.partition(":")
        with temporary_folder("preview") as folder:
            getattr(importlib.import_module(module), function)(self._context(plan, Path(folder), progress))

    def _context(self, plan: Plan, folder: Path, progress: Progress) -> StageContext[Any, Any]:
        stage, cell = plan.stage, plan.cell
        return StageContext(
            cell,
            plan.settings,
            limits=stage.limits(self.workspace, cell),
            inputs={source: self.workspace.folder(source, cell) for source in stage.inputs},
            out=folder,
            root=self.workspace.root,
            tuning_log=self.workspace.tuning_log(cell),
            progress=progress,
        )

    def _make(self, plan: Plan, progress: Progress) -> Record:
        cell, stage = plan.cell, plan.stage
        with self._new_folder(stage.name, cell) as folder:
            steps = StepTimes(progress)
            facts = self._run(stage, self._context(plan, folder, steps), plan.recipe)
            outputs = describe_folder(folder, self.workspace.digests)
            _check_outputs(stage, set(outputs))
            record = Record(
                stage=stage.name,
                cell=str(cell),
                key=plan.key,
                recipe=plan.recipe,
                outputs=outputs,
                facts=facts,
                elapsed_s=steps.elapsed_s,
                steps=steps.steps,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            return self._publish(record, cell, folder)

    def _found(self, plan: Plan) -> tuple[Record, list[Path]] | None:
        return self.index.find(plan.stage.name, plan.key, self.workspace.folder(plan.stage.name, plan.cell))

    def _find(self, plan: Plan) -> Record | None:
        """Return the record that `_restore` would restore, without restoring it."""
        known = self._found(plan)
        if known is None:
            return None
        record, elsewhere = known
        for name, expected in record.outputs.items():
            if not any(self._holds_file(place, expected) for place in self._places(name, expected, elsewhere)):
                return None
        return record

    def _restore(self, plan: Plan) -> Record | None:
        """Restore the outputs of a known key from another folder or from DVC's cache."""
        known = self._found(plan)
        if known is None:
            return None
        record, elsewhere = known
        with self._new_folder(plan.stage.name, plan.cell) as new:
            for name, expected in record.outputs.items():
                if not self._bring(new / name, expected, self._places(name, expected, elsewhere)):
                    return None
            return self._publish(replace(record, cell=str(plan.cell)), plan.cell, new)

    def _keep_log(self, plan: Plan) -> None:
        """Give a cell whose stage did not run the log of the cell that ran it, or an empty one, for DVC to version."""
        log = self.workspace.tuning_log(plan.cell)
        if not plan.stage.keeps_log or log.exists():
            return
        known = self._found(plan) or (None, [])
        others = [folder.parent.parent / log.parent.name / f"{folder.name}.jsonl" for folder in known[1]]
        write_atomic(log, next((other.read_text(encoding="utf-8") for other in others if other.is_file()), ""))

    def _places(self, name: str, expected: OutputFile, elsewhere: list[Path]) -> list[Path]:
        return [*(place / name for place in elsewhere), object_path(dvc_cache(self.workspace.root), expected.md5)]

    def _holds_file(self, place: Path, expected: OutputFile) -> bool:
        try:
            return place.stat().st_size == expected.size and self.workspace.digests.sha256_of(place) == expected.sha256
        except OSError:
            return False

    def _bring(self, target: Path, expected: OutputFile, places: list[Path]) -> bool:
        target.parent.mkdir(parents=True, exist_ok=True)
        for place in places:
            try:
                if place.stat().st_size != expected.size:
                    continue
                shutil.copyfile(place, target)
            except OSError:
                continue
            if self._holds_file(target, expected):
                return True
        return False

    def _publish(self, record: Record, cell: Cell, new: Path) -> Record:
        """Replace the old folder by a finished one; `_recover` completes this after a crash."""
        (new / RECORD_NAME).write_text(record_text(record), encoding="utf-8")
        sync_folder(new)
        stage, folder = self.stages[record.stage], self.workspace.folder(record.stage, cell)
        if not (stage.has_metrics and self.workspace.is_variant):
            self.index.add(record, folder)  # first: a fault behind it leaves outputs that the next run keeps
        previous = self._previous(record.stage, cell)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.rmtree(previous, ignore_errors=True)
            os.rename(folder, previous)
        os.rename(new, folder)
        self.workspace.digests.moved(new, folder)
        shutil.rmtree(previous, ignore_errors=True)
        return record

    def _recover(self, stage: str, cell: Cell) -> None:
        """Clean up after a killed process. Called under the folder's lock."""
        folder, previous = self.workspace.folder(stage, cell), self._previous(stage, cell)
        if previous.exists():
            if folder.exists():
                shutil.rmtree(previous, ignore_errors=True)
            else:
                folder.parent.mkdir(parents=True, exist_ok=True)
                os.rename(previous, folder)
        for left in self._temporary.glob(f"{stage}.{cell.slug}.new-*"):
            shutil.rmtree(left, ignore_errors=True)

    # -- places and locks --------------------------------------------------------------------------------------------
    @property
    def _temporary(self) -> Path:
        return self.workspace.artifacts / ".tmp"

    def _previous(self, stage: str, cell: Cell) -> Path:
        return self._temporary / f"{stage}.{cell.slug}.previous"

    @contextlib.contextmanager
    def _new_folder(self, stage: str, cell: Cell) -> Iterator[Path]:
        folder = self._temporary / f"{stage}.{cell.slug}.new-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _folder_lock(self, stage: str, cell: Cell, progress: Progress) -> contextlib.AbstractContextManager[None]:
        name = self.workspace.folder(stage, cell).relative_to(self.workspace.common).as_posix().replace("/", ".")
        return self._lock(name, progress, f"another process that makes {stage} of {cell}")

    @contextlib.contextmanager
    def _lock(self, name: str, progress: Progress, who: str) -> Iterator[None]:
        path = self.workspace.common / ".locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for {who}", 0, 0)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _check_outputs(stage: AnyStage, files: set[str]) -> None:
    """Raise StageError if a stage wrote other files than declared, or none."""
    expected = {output.name for output in stage.outputs} or files
    if files != expected or not files:
        raise errors.StageError(
            f"{stage.name} left {sorted(files)}", f"{sorted(expected) or 'outputs'}, as its row in tasks/ says"
        )
