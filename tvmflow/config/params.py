"""Read params.yaml into frozen, validated values.

params.yaml is the only home of tunable numbers. All errors are reported at once; each says what was found and what is
legal. Nothing here imports TVM or a framework.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from tvmflow.config.cells import Cell as Cell
from tvmflow.config.cells import SwitchedOff, split_cells
from tvmflow.config.model_params import DTYPES as DTYPES
from tvmflow.config.model_params import ImageFolder as ImageFolder
from tvmflow.config.model_params import Input as Input
from tvmflow.config.model_params import InputTensor as InputTensor
from tvmflow.config.model_params import ModelEntry as ModelEntry
from tvmflow.config.model_params import Preprocess as Preprocess
from tvmflow.config.model_params import Weights as Weights
from tvmflow.config.options import explain
from tvmflow.config.overrides import CellOverrides
from tvmflow.config.stage_params import PRECISIONS as PRECISIONS
from tvmflow.config.stage_params import (
    BuildParams,
    DeployParams,
    EvaluateParams,
    FetchParams,
    Frozen,
    GraphPackParams,
    ImportParams,
    Int8Params,
    QuantizeParams,
    StageBlock,
    TuneParams,
    fill_defaults,
)
from tvmflow.config.stage_params import Precision as Precision
from tvmflow.config.value_types import (
    BlockName,
    BranchName,
    Cron,
    Line,
    Name,
    NotNegative,
    NotNegativeFloat,
    Parallel,
    PathText,
    PositiveFloat,
    Program,
    RemoteName,
)
from tvmflow.config.yaml_reader import load_yaml, refuse_secrets
from tvmflow.support.errors import ParamsError, UnknownNameError, did_you_mean, similar_name

MAX_PARAMS_BYTES = 1_000_000


class DeviceEntry(Frozen):
    """The device of a target. options: all other keys of the block, which the transport checks."""

    transport: Name
    key: Name
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _rest_is_the_transports(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "options" in data:
            return data
        own = {name: value for name, value in data.items() if name in cls.model_fields}
        return {**own, "options": {name: value for name, value in data.items() if name not in own}}


class TargetEntry(Frozen):
    """The target of a library. kind: the backend; options: the block under the backend's name, which the backend
    checks.

    `mcpu: host` is resolved to this machine's CPU name and recorded.
    """

    kind: Name
    mcpu: Line
    mtriple: Line | None = None
    mattr: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    threads: Parallel
    cc: Program | None = None
    device: DeviceEntry
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _block_is_the_backends(cls, data: Any) -> Any:
        kind = data.get("kind") if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind in cls.model_fields or kind not in data or "options" in data:
            return data
        return {**{name: value for name, value in data.items() if name != kind}, "options": data[kind]}


class ReleaseParams(Frozen):
    max_accuracy_drop: NotNegativeFloat = 0.005
    min_top1_agreement: Annotated[float, Field(ge=0, le=1)] = 0.99
    min_coverage: Annotated[float, Field(ge=0, le=1)] = 0.95
    count_estimates: bool = False
    max_slowdown: NotNegativeFloat = 0.02
    compare_rounds: Annotated[int, Field(ge=6, le=10_000)] = 60
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95


class RetuneParams(Frozen):
    """What a re-tune may do by itself. promote: never leaves proposals; champions replaces champions only; all also
    makes first ones. commit_branch: gets a commit of the dvc.lock files; commit_remote: where that branch is pushed.
    """

    promote: Literal["never", "champions", "all"] = "champions"
    commit_branch: BranchName | None = None
    commit_remote: RemoteName | None = None

    @model_validator(mode="after")
    def _has_a_branch(self) -> RetuneParams:
        if self.commit_remote is not None and self.commit_branch is None:
            raise ValueError("commit_remote needs commit_branch, the branch that is pushed there")
        return self


class Gates(Frozen):
    """The limits of every cell of an app and of its bundle. None: no limit."""

    min_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    max_accuracy_drop: NotNegativeFloat | None = 0.005
    min_top1_agreement: Annotated[float, Field(ge=0, le=1)] | None = 0.99
    min_coverage: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    max_latency_ms: PositiveFloat | None = None
    max_cold_start_ms: PositiveFloat | None = None
    max_first_run_ms: PositiveFloat | None = None
    max_memory_mb: PositiveFloat | None = None
    max_gpu_compile_ms: PositiveFloat | None = None
    max_gpu_open_ms: PositiveFloat | None = None
    max_gpu_copy_out_ms: PositiveFloat | None = None
    max_library_mb: PositiveFloat | None = None
    max_bundle_mb: PositiveFloat | None = None


class AppEntry(Frozen):
    """An app: cells that ship together. abis: required in its bundle, by default those of its cells; channel: of new
    versions; packages: that `publish` makes of a release, and every release tries; group: of AARs, for Maven; root_key:
    file of the public key that says which keys may sign its releases; valid_days: of a signed releases/APP.yaml.
    """

    cells: Annotated[tuple[Line, ...], Field(strict=False, min_length=1, max_length=1000)]
    abis: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    channel: Name = "beta"
    packages: Annotated[tuple[Literal["aar", "wheel", "xcframework"], ...], Field(strict=False, max_length=3)] = ()
    group: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}$")] = "tvmflow.models"
    root_key: PathText | None = None
    valid_days: Annotated[int, Field(ge=1, le=3650)] = 90
    gates: Gates = Gates()


STAGE_TIMEOUTS_S = {
    "fetch": 1800.0,
    "import_model": 1200.0,
    "quantize": 1200.0,
    "graph_pack": 1200.0,
    "tune": 14400.0,
    "build": 1800.0,
    "deploy": 600.0,
    "evaluate": 3600.0,
}


class FlowParams(Frozen):
    """Parameters of flows; they do not change outputs, so they are not in a recipe key."""

    workers: Parallel = 2
    runner: Literal["threads", "dask"] = "threads"
    dask_address: Line | None = None
    device_retries: NotNegative = 2
    retry_delay_s: PositiveFloat = 2.0
    retune_cron: Cron = "0 3 * * 6"
    notify: BlockName | None = None
    push_to_remote: bool = True
    timeout_s: dict[str, PositiveFloat] = Field(default_factory=lambda: dict(STAGE_TIMEOUTS_S))

    @field_validator("timeout_s", mode="before")
    @classmethod
    def _every_stage(cls, value: Any) -> Any:
        return fill_defaults(value, STAGE_TIMEOUTS_S)

    @field_validator("timeout_s")
    @classmethod
    def _known_stages(cls, value: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(value) - set(STAGE_NAMES)):
            raise ValueError(
                f"no stage {unknown[0]!r}{did_you_mean(unknown[0], STAGE_NAMES)}; legal: {', '.join(STAGE_NAMES)}"
            )
        return value


LOCAL_CPU = "local-cpu"
_LOCAL_CPU = {"kind": "llvm", "mcpu": "host", "threads": 2, "device": {"transport": "local", "key": LOCAL_CPU}}


class Params(Frozen):
    """All of params.yaml. Missing keys have the defaults of docs/params.md.

    targets: every file has `local-cpu`, this machine. cells: by default each model in float32 on it, under the model's
    name; switched_off: those of the file's `cells:` with `enabled: false`. overrides: model@target:precision -> what
    differs there from `quantize:` and `tune:`.
    """

    models: dict[Name, ModelEntry] = Field(default_factory=dict)
    targets: dict[Name, TargetEntry]
    cells: dict[Name, Cell]
    switched_off: dict[Name, SwitchedOff] = Field(default_factory=dict)
    overrides: dict[Line, CellOverrides] = Field(default_factory=dict)
    fetch: FetchParams = FetchParams()
    import_model: ImportParams = ImportParams()
    quantize: QuantizeParams = QuantizeParams()
    graph_pack: GraphPackParams = GraphPackParams()
    tune: TuneParams = TuneParams()
    build: BuildParams = BuildParams()
    deploy: DeployParams = DeployParams()
    evaluate: EvaluateParams = EvaluateParams()
    release: ReleaseParams = ReleaseParams()
    retune: RetuneParams = RetuneParams()
    apps: dict[Name, AppEntry] = Field(default_factory=dict)
    flows: FlowParams = FlowParams()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        params = {
            name: value for name, value in data.items() if value is not None
        }  # None: a block whose lines are all comments
        params["targets"] = fill_defaults(params.get("targets", {}), {LOCAL_CPU: _LOCAL_CPU})
        models = params.get("models", {})
        if "cells" not in params:
            names = models if isinstance(models, dict) else ()
            params["cells"] = {name: {"model": name, "target": LOCAL_CPU, "precision": "float32"} for name in names}
        params["cells"], params["switched_off"] = split_cells(params["cells"])
        return params

    @model_validator(mode="after")
    def _cells_are_known(self) -> Params:
        wrong = []
        for name, cell in (*self.cells.items(), *self.switched_off.items()):
            for word, table in (("model", self.models), ("target", self.targets)):
                value = getattr(cell, word)
                if value not in table:
                    wrong.append(
                        f"cells.{name}: unknown {word} {value!r}{did_you_mean(value, table)}; legal: "
                        f"{', '.join(sorted(table))}"
                    )
        for name, app in self.apps.items():
            for text in app.cells:
                try:
                    self.cell(text)
                except UnknownNameError as error:
                    wrong.append(f"apps.{name}.cells: {error.found}; {error.hint or error.expected}")
        wrong += self._wrong_overrides()
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _wrong_overrides(self) -> list[str]:
        wrong = []
        for text, own in self.overrides.items():
            try:
                cell = self.cell(text)
            except UnknownNameError as error:
                wrong.append(f"overrides: {error.found}; {error.hint or error.expected}")
                continue
            if str(cell) != text:
                wrong.append(f"overrides.{text}: the name of a cell; write {cell}")
            if own.int8.given and cell.precision != "int8":
                wrong.append(f"overrides.{text}.int8: of a cell in {cell.precision}, which it cannot change")
        return wrong

    def int8_of(self, cell: Cell) -> Int8Params:
        """Return the settings of the int8 quantizer for a cell."""
        own = self.overrides.get(str(cell))
        return self.quantize.int8.model_copy(update=own.int8.given) if own else self.quantize.int8

    def tune_of(self, cell: Cell) -> TuneParams:
        """Return the block `tune:` for a cell."""
        own = self.overrides.get(str(cell))
        return self.tune.model_copy(update=own.tune.given) if own else self.tune

    def cell(self, text: str) -> Cell:
        """Return the cell of `model@target:precision` or of a name under `cells:`. Raises UnknownNameError with the
        legal names.
        """
        if text in self.cells:
            return self.cells[text]
        if text in self.switched_off:
            return self.switched_off[text].cell
        match = re.fullmatch(r"([^@:]+)@([^@:]+):([^@:]+)", text)
        if not match:
            raise self._no_cell(text)
        model, target, precision = match.groups()
        for word, value, legal, hint in (
            ("model", model, self.models, "'tvmflow add MODEL_FILE' adds one"),
            (
                "target",
                target,
                self.targets,
                f"'tvmflow add MODEL_FILE --target {target}' adds one of 'tvmflow targets'",
            ),
            ("precision", precision, PRECISIONS, ""),
        ):
            if value not in legal:
                raise UnknownNameError(f"unknown {word} {value!r} in cell {text!r}", legal=legal, name=value, hint=hint)
        return Cell.model_validate({"model": model, "target": target, "precision": precision})

    def _no_cell(self, text: str) -> UnknownNameError:
        cells = ", ".join(sorted(self.cells))
        expected = f"model@target:precision, or one of {cells}" if cells else "model@target:precision"
        if "." in text and "@" not in text:
            hint = f"a file is not a cell; add the model in it with 'tvmflow add {text}'"
        elif not self.models:
            hint = "params.yaml has no models yet; add one with 'tvmflow add MODEL_FILE'"
        elif text in self.models:
            hint = f"a model is not a cell; write {text}@{LOCAL_CPU}:float32"
        else:
            whole = f"{text}:float32" if "@" in text else f"{text}@{LOCAL_CPU}:float32"
            similar = similar_name(text, [*self.cells, *self.models]) or similar_name(
                whole, [f"{model}@{target}:float32" for model in self.models for target in self.targets]
            )
            similar = (
                f"{similar}@{LOCAL_CPU}:float32" if similar in self.models and similar not in self.cells else similar
            )
            hint = f"did you mean {similar!r}?" if similar else "list the legal names with 'tvmflow status'"
        return UnknownNameError(f"no cell {text!r}", expected, hint)

    def cell_name(self, cell: Cell) -> str | None:
        """Return the name of a cell under `cells:`, None if it is not listed."""
        return next((name for name, listed in self.cells.items() if listed == cell), None)


def _is_stage_block(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StageBlock)


STAGE_NAMES = tuple(name for name, field in Params.model_fields.items() if _is_stage_block(field.annotation))
"""The stages: each has a block of its name, in the order of the walk."""


def load_params(path: Path) -> Params:
    """Read and validate params.yaml. Raises ParamsError that lists all errors."""
    try:
        stat = path.stat()
        if stat.st_size > MAX_PARAMS_BYTES:
            raise ParamsError(f"{path} holds {stat.st_size} bytes", f"at most {MAX_PARAMS_BYTES}")
        return _load(path, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        raise ParamsError(
            f"no {path.name} in {path.parent}",
            "a workspace: a folder with params.yaml",
            "create one with 'tvmflow new DIR', change to yours, or pass it as --root",
        ) from None


@functools.lru_cache(maxsize=4)
def _load(path: Path, _mtime_ns: int, _size: int) -> Params:
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParamsError(f"{path.name} is not YAML: {error}", "a YAML mapping") from None
    if not isinstance(data, dict):
        raise ParamsError(f"{path.name} holds {type(data).__name__}", "a YAML mapping")
    refuse_secrets(path.name, data)
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        raise ParamsError(
            f"{path.name} is not valid:\n" + "\n".join(explain(error, Params)),
            hint="correct the lines above; docs/params.md explains every key",
        ) from None
