"""The Python API for notebooks, services and the command line. Heavy modules are imported on use."""

from types import FunctionType

from tvmflow.api.agreement import device_agreement
from tvmflow.api.apps import app_releases, publish_app, release_app
from tvmflow.api.bundles import allow_keys, bundle, new_keys, verify_bundle
from tvmflow.api.execution import classify, doubts, load, predict, predict_file, predict_text, takes_text, texts_of
from tvmflow.api.fleet import compare, costs, execution_tables, overview, regressions
from tvmflow.api.frames import ReportView, show_report, to_frame
from tvmflow.api.inspect import devices, examine, gpus, history, plan, quarantine, scorecard, status
from tvmflow.api.phones import check_device, check_devices, offer_device, phones, prepared_phone
from tvmflow.api.projects import add_model, new_workspace, targets
from tvmflow.api.releases import accept_proposal, promote, proposals, reject_proposal, releases, rollback
from tvmflow.api.results import (
    CellPlan,
    CellStatus,
    DeviceCheck,
    DeviceState,
    GpuState,
    KernelState,
    Measurement,
    PhoneState,
    ProcessorState,
    ProposedVersion,
    QuarantineState,
    ReadyPhone,
    RunResult,
    Scorecard,
    StagePlan,
    Status,
    TargetState,
)
from tvmflow.api.runs import changed_dvc_files, plan_retune, retune, run, serve
from tvmflow.api.searches import SearchResult, search, write_chosen, write_search_page
from tvmflow.api.stores import (
    failed_candidates,
    initialize,
    params_schema,
    records,
    report_data,
    store_addresses,
    write_report,
)
from tvmflow.api.tables import check_results, lift_quarantine, quarantine_cell, update_results
from tvmflow.api.toolchains import compare_toolchains
from tvmflow.api.traces import write_node_data, write_trace
from tvmflow.api.workspace import find_workspace, names, open_workspace
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.guesses import Guess, TextPrediction
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.evaluation.latency_summary import Latency
from tvmflow.pipeline.results import RetunePlan, RetuneResult, ToolchainComparison, Verdict
from tvmflow.shipping.search.goals import Goals
from tvmflow.support.extras import missing_extras_named
from tvmflow.support.own_packages import check_own_packages
from tvmflow.tracking.regressions import Regressions

__all__ = [
    "CellPlan",
    "CellStatus",
    "Comparison",
    "DeviceCheck",
    "DeviceState",
    "Goals",
    "GpuState",
    "Guess",
    "KernelState",
    "Latency",
    "Measurement",
    "PhoneState",
    "ProcessorState",
    "ProposedVersion",
    "QuarantineState",
    "ReadyPhone",
    "RetunePlan",
    "Regressions",
    "RetuneResult",
    "RunResult",
    "Scorecard",
    "ReportView",
    "SearchResult",
    "StagePlan",
    "Status",
    "TargetState",
    "TextPrediction",
    "ToolchainComparison",
    "Verdict",
    "Workspace",
    "accept_proposal",
    "app_releases",
    "bundle",
    "changed_dvc_files",
    "check_device",
    "check_devices",
    "check_results",
    "classify",
    "compare",
    "compare_toolchains",
    "costs",
    "add_model",
    "device_agreement",
    "devices",
    "doubts",
    "examine",
    "execution_tables",
    "gpus",
    "failed_candidates",
    "find_workspace",
    "history",
    "initialize",
    "lift_quarantine",
    "load",
    "new_workspace",
    "names",
    "new_keys",
    "allow_keys",
    "open_workspace",
    "params_schema",
    "phones",
    "plan",
    "plan_retune",
    "offer_device",
    "prepared_phone",
    "predict",
    "predict_file",
    "predict_text",
    "overview",
    "promote",
    "proposals",
    "quarantine",
    "quarantine_cell",
    "records",
    "regressions",
    "reject_proposal",
    "report_data",
    "publish_app",
    "release_app",
    "releases",
    "retune",
    "rollback",
    "run",
    "scorecard",
    "search",
    "serve",
    "show_report",
    "status",
    "store_addresses",
    "takes_text",
    "texts_of",
    "targets",
    "to_frame",
    "update_results",
    "verify_bundle",
    "write_chosen",
    "write_node_data",
    "write_report",
    "write_search_page",
    "write_trace",
]

check_own_packages()  # the functions import both by name when they are called

for _name in __all__:
    if isinstance(_function := globals()[_name], FunctionType):
        globals()[_name] = missing_extras_named()(_function)
