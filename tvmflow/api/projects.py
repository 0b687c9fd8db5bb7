"""Create a workspace and add models: new_workspace, add_model."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvmflow.api.workspace import Where, located, open_workspace
from tvmflow.support.errors import UsageError
from tvmflow.support.files import write_atomic

if TYPE_CHECKING:
    from tvmflow.api.results import TargetState
    from tvmflow.config.workspace import Workspace
    from tvmflow.setup.new_project import Added
    from tvmflow.setup.target_presets import Needs


def new_workspace(folder: Path | str, targets: Sequence[str] = ()) -> Workspace:
    """Make a workspace in a folder: params.yaml and its schema, dvc.yaml, a git repository, the DVC store. Overwrites
    nothing. targets: names that `targets` returns, which params.yaml gets.

    MLflow makes its store with the first measurement. Raises UsageError where there is a workspace already.
    """
    from flows.project_pipeline import refresh
    from tvmflow.config.workspace import workspace_at
    from tvmflow.setup.new_project import make_workspace
    from tvmflow.setup.params_schema import write_schema
    from tvmflow.support.private_places import check_private
    from tvmflow.tracking.dvc.repository import initialize, is_in_git

    check_private(Path(folder), "the workspace")
    root = make_workspace(Path(folder), targets)
    if shutil.which("git") and not is_in_git(root):
        subprocess.run(["git", "init", "--quiet", str(root)], check=False, capture_output=True)
    workspace = workspace_at(root)
    refresh(workspace)
    write_schema(root)
    initialize(workspace)
    return workspace


def targets(workspace: Where = None) -> tuple[TargetState, ...]:
    """Return the targets of params.yaml, if there is a workspace, and those that may be added to one, with what each
    needs on this machine.
    """
    from tvmflow.api.results import TargetState
    from tvmflow.config.params import TargetEntry
    from tvmflow.setup.target_presets import needs_of, presets

    try:
        own = located(workspace).params.targets
    except UsageError:
        if workspace is not None:
            raise
        own = dict[str, TargetEntry]()
    notes = {name: preset.note for name, preset in presets().items()}
    found = {**{name: preset.target for name, preset in presets().items()}, **own}
    return tuple(
        TargetState(name, name in own, notes.get(name, ""), entry.kind, entry.mcpu, *_facts(needs_of(entry)))
        for name, entry in found.items()
    )


def _facts(needs: Needs) -> tuple[bool, bool, str, str, tuple[str, ...]]:
    return needs.can_build, needs.can_measure, needs.compiler, needs.device, needs.hints


def add_model(
    model_file: Path | str,
    workspace: Where = None,
    name: str | None = None,
    target: str = "local-cpu",
    precision: str = "float32",
    shape: tuple[int, ...] | Mapping[str, tuple[int, ...]] | None = None,
    high: int | Mapping[str, int] | None = None,
    dataset: str | None = None,
    labels: str | None = None,
    preset: str | None = None,
    buckets: tuple[int, ...] | Mapping[str, tuple[int, ...]] | None = None,
    network: str | None = None,
    tokenizer: str | None = None,
) -> Added:
    """Write the entry of a model file and its cell into params.yaml: framework, inputs, shapes and dtypes are the
    file's.

    shape: of the input, where the file leaves it open; by input, with "" for all others. buckets: of the open sizes,
    which a run then chooses up to the last; by the name in the file, with "" for all but the batch. high: one more than
    the largest of its integers, where the file has no table in which they are looked up; by input, with "" for all
    others. dataset, labels, preset, network, tokenizer: as in params.yaml, files by their path from here.

    Raises ModelFileError for what cannot be read and UnsupportedOperatorError for what cannot be imported, with all
    operators; then nothing is written.
    """
    from flows.project_pipeline import refresh
    from tvmflow.setup.model_inputs import InputRequest
    from tvmflow.setup.new_project import ModelRequest
    from tvmflow.setup.new_project import add_model as add
    from tvmflow.setup.preflight import check_operators

    bounds = {"": high} if isinstance(high, int) else dict(high or {})
    inputs = InputRequest(_by_name(shape), _by_name(buckets), bounds)
    request = ModelRequest(name, target, precision, inputs, dataset, labels, preset, network, tokenizer)
    where = open_workspace(workspace)
    before = where.params_path.read_text(encoding="utf-8")
    added = add(where, Path(model_file), request)
    try:
        check_operators(where, added.name)
    except BaseException:
        write_atomic(where.params_path, before)
        raise
    refresh(where)
    return added


def _by_name(sizes: tuple[int, ...] | Mapping[str, tuple[int, ...]] | None) -> dict[str, tuple[int, ...]]:
    return dict(sizes) if isinstance(sizes, Mapping) else {} if sizes is None else {"": tuple(sizes)}
