"""Access the stores of a workspace: DVC and MLflow, tuning records, the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace

if TYPE_CHECKING:
    from tvmflow.tracking.mlflow.rebuild import Rebuilt

_MAX_ROWS, _MIN_ROWS = 2000, 2  # of the report's history: of all cells, of each


def initialize(workspace: Where = None, rebuild: bool = False) -> Rebuilt | None:
    """Make the DVC and MLflow stores of a workspace where they are missing, and dvc.yaml outside a clone anew. Safe to
    repeat.

    MLflow makes its database in mlruns/ when it is first opened: with its import that takes six seconds, which a run
    spends beside others. rebuild: record again in MLflow what artifacts/ and DVC's cache hold; returns what that did.
    """
    from flows.project_pipeline import refresh
    from tvmflow.setup.params_schema import write_schema
    from tvmflow.tracking.dvc import repository as dvc
    from tvmflow.tracking.mlflow.store import make_folder

    where = open_workspace(workspace)
    if refresh(where):
        write_schema(where.root)
    dvc.initialize(where)
    if rebuild:
        from tasks.table import STAGES
        from tvmflow.tracking.mlflow.rebuild import rebuild as record_again

        return record_again(where, STAGES)
    make_folder(where)
    return None


def store_addresses(workspace: Where = None) -> dict[str, str]:
    """Return where the stores of a workspace are, without credentials: `dvc` ("" for no remote), `mlflow`, and
    `registry`, MLflow's store of models. Raises StoreError.
    """
    from tvmflow.support.secrets import mask
    from tvmflow.tracking.dvc.repository import default_remote
    from tvmflow.tracking.mlflow.address import identity, mlflow_uri, registry_uri

    where = open_workspace(workspace)
    return {
        "dvc": mask(default_remote(where)),
        "mlflow": identity(where, mlflow_uri(where)),
        "registry": identity(where, registry_uri(where)),
    }


def records(
    cell: CellName,
    workspace: Where = None,
    merge: Sequence[Path] = (),
    export_to: Path | None = None,
    import_from: Path | None = None,
) -> Mapping[str, Any]:
    """Return how many tuning records a cell has, of what kind; merge logs, exchange schedules with MetaSchedule."""
    from tvmflow.tuning.records.metaschedule import exchange

    where = open_workspace(workspace)
    return exchange(where, cell_of(where, cell), list(merge), export_to, import_from)


def failed_candidates(cell: CellName, workspace: Where = None) -> list[dict[str, Any]]:
    """Return the schedules of a cell that failed in tuning: kernel, status, count, knobs, error."""
    from tvmflow.tuning.records.record import failures, read_records

    where = open_workspace(workspace)
    return failures(read_records(where.tuning_log(cell_of(where, cell))))


def report_data(workspace: Where = None, page: Path | None = None) -> dict[str, Any]:
    """Return what the report shows, as JSON. page: where it will lie, which names folders relative to itself."""
    from tasks.table import STAGES
    from tvmflow.report.page import collect
    from tvmflow.tracking.mlflow.history import newest_measurements

    where = open_workspace(workspace)
    last = max(_MIN_ROWS, _MAX_ROWS // max(len(where.params.cells), 1))
    return collect(where, *newest_measurements(where, last), page, STAGES)


def write_report(path: Path | None = None, workspace: Where = None) -> Path:
    """Write the report, one self-contained HTML page, to `path` or report.html of the workspace. Returns where it
    is.
    """
    from tvmflow.report.page import write_page

    where = open_workspace(workspace)
    file = path or where.root / "report.html"
    write_page(report_data(where, file), file)
    return file


def params_schema() -> dict[str, Any]:
    """Return the JSON schema of params.yaml, with the bounds and defaults of every key."""
    from tvmflow.setup.params_schema import params_schema as schema

    return schema()
