"""import_model: import the source model to canonical Relax, and keep the source framework's outputs.

In:  what fetch brought
Out: model.json + weights.safetensors (Relax, constants folded, batch norms in the convolutions), reference.npz (the
     source framework's outputs to the golden and the evaluation inputs, and the imported form's), peer.onnx
     (for peers), outputs.json (name, shape and dtype of each output), import.json
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.import_model import read_model
from tvmflow.evaluation.imported_files import IMPORTED_FILES, check_imported
from tvmflow.frontends.onnx.files import is_name
from tvmflow.frontends.registry import environments_of, tools_of
from tvmflow.pipeline.stage import Stage, StageContext
from tvmflow.sandbox.process import Policy, memory_for, reading_s, run_in_sandbox
from tvmflow.toolchain.environments import make_environments


@dataclass(frozen=True)
class ImportSettings:
    framework: str
    network: str | None
    max_relative_error: float


def _settings(workspace: Workspace, cell: Cell) -> ImportSettings:
    params, model = workspace.params, workspace.params.models[cell.model]
    return ImportSettings(model.framework, model.network, params.import_model.max_relative_error)


def _toolchain(settings: ImportSettings) -> tuple[str, ...]:
    return ("tvm", "ffi", "llvm", *tools_of(settings.framework, settings.network))


@dataclass(frozen=True)
class ImportLimits:
    timeout_s: float


def _limits(workspace: Workspace, _cell: Cell) -> ImportLimits:
    return ImportLimits(workspace.params.flows.timeout_s["import_model"])


def import_model(context: StageContext[ImportSettings, ImportLimits]) -> dict[str, Any]:
    """Import in a sandbox, since the model's file is untrusted; return the facts of import.json."""
    settings, fetched = context.settings, context.inputs["fetch"]
    files = list(fetched.iterdir())
    make_environments(environments_of(settings.framework, (path.name for path in files)))
    policy = Policy(
        context.limits.timeout_s,
        (fetched,),
        (context.out,),
        memory_for(*files),
        allowed_outputs(settings.framework, {path.name: path.stat().st_size for path in files}),
        load_s=reading_s(*files),
    )
    arguments = {
        "inputs": str(fetched),
        "outputs": str(context.out),
        "max_relative_error": settings.max_relative_error,
    }
    reply = run_in_sandbox(f"{read_model.__module__}:{read_model.__name__}", arguments, policy, context.progress)
    return check_imported(context.out, reply)


def allowed_outputs(framework: str, fetched: Mapping[str, int]) -> dict[str, int]:
    """Return the files that the sandbox may leave, and how large: of an ONNX model also its external data, for
    peer.onnx. fetched: name -> bytes.
    """
    copied = {name: size for name, size in fetched.items() if framework == "onnx" and is_name(name)}
    return copied | IMPORTED_FILES


STAGE = Stage(
    name="import_model",
    settings=_settings,
    limits=_limits,
    toolchain=_toolchain,
    run=import_model,
    inputs={"fetch": None},
    reads=("models.{model}.framework", "models.{model}.network", "import_model.max_relative_error"),
    limit_reads=("flows.timeout_s",),
)
