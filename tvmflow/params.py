"""Read params.yaml into frozen, validated values.

params.yaml is the only home of tunable numbers. Everything wrong with it is reported at once, in one error that says
for each place what was found and what is legal. Nothing here imports TVM or a framework.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from tvmflow.errors import ParamsError, UnknownNameError, UsageError
from tvmflow.vta.config import VtaConfig

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
MAX_PARAMS_BYTES = 1_000_000
PRECISIONS = ("float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8")
FRAMEWORKS = ("torch", "keras", "mxnet", "onnx", "tensorflow")

Precision = Literal["float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8"]
Framework = Literal["torch", "keras", "mxnet", "onnx", "tensorflow"]


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"name {name!r} is not safe (names reach a shell and the file system); "
            "use letters, digits, '-' and '_', starting with a letter or digit, at most 64"
        )
    return name


def _check_relative_free(path: str) -> str:
    if "\0" in path or "\n" in path:
        raise ValueError("a path may not hold NUL or line breaks")
    return path


Name = Annotated[str, AfterValidator(_check_name)]
PathText = Annotated[str, AfterValidator(_check_relative_free)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


NotNegative = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Training(_Frozen):
    """How a `train:` weights source trains its network; all of it is in the recipe key."""

    epochs: Positive = 20
    batch_size: Positive = 64
    learning_rate: PositiveFloat = 0.004
    seed: int = 7


class Part(_Frozen):
    """A further file of a model that comes from a url: MXNet's parameters, ONNX's external data under its own name."""

    url: str
    sha256: Sha256
    name: PathText | None = None


class Weights(_Frozen):
    """Where weights come from: exactly one of url, file, zoo, seeded, train."""

    url: str | None = None
    file: PathText | None = None
    zoo: str | None = None
    seeded: int | None = None
    train: Training | None = None
    sha256: Sha256 | None = None
    parts: Annotated[tuple[Part, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _exactly_one(self) -> Weights:
        given = [k for k in ("url", "file", "zoo", "seeded", "train") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of url, file, zoo, seeded, train; found {given or 'none'}")
        if self.url is not None and self.sha256 is None:
            raise ValueError("a url needs its sha256, so that the bytes can be trusted")
        if self.parts and self.url is None:
            raise ValueError("parts belong to a url; the further files of a local file are found beside it")
        if self.sha256 is not None and given[0] in ("seeded", "train"):
            raise ValueError(f"sha256 has no meaning for weights made by {given[0]}")
        return self

    @property
    def kind(self) -> str:
        return next(k for k in ("url", "file", "zoo", "seeded", "train") if getattr(self, k) is not None)


class Input(_Frozen):
    """The model's one input: name, shape (batch first, NCHW for images) and dtype."""

    name: Name = "input"
    shape: Annotated[tuple[Positive, ...], Field(min_length=1, strict=False)]
    dtype: Literal["float32"] = "float32"


class Preprocess(_Frozen):
    """x -> (x * scale - mean) / std, per channel where lists are given."""

    scale: float = 1.0
    mean: Annotated[tuple[float, ...], Field(strict=False)] = (0.0,)
    std: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] = (1.0,)


class ModelEntry(_Frozen):
    framework: Framework
    network: str | None = None
    weights: Weights
    input: Input
    preprocess: Preprocess = Preprocess()
    dataset: PathText | None = None
    labels: PathText | None = None

    @model_validator(mode="after")
    def _network_or_file(self) -> ModelEntry:
        if self.framework in ("onnx", "tensorflow") and self.weights.kind not in ("file", "url"):
            raise ValueError(
                f"a model of {self.framework} comes from weights: {{file: ...}} or {{url: ..., sha256: ...}}"
            )
        if self.network is None and self.weights.kind not in ("file", "url"):
            raise ValueError(f"weights from '{self.weights.kind}' need network: the factory that they belong to")
        if self.weights.kind == "train" and self.dataset is None:
            raise ValueError("weights: {train: ...} need a dataset to train on")
        return self


class DeviceEntry(_Frozen):
    """How the device of a target is reached."""

    transport: Literal["local", "tracker"]
    key: Name
    host: str | None = None
    port: Annotated[int, Field(gt=0, lt=65536)] | None = None


class VtaEntry(_Frozen):
    """A VTA accelerator beside the CPU. config: fields of vta_config.json in lower case, the others are VTA's defaults.

    mode: `optimized`, or `reference` for the original stack's schedules. start, stop: the first layer on the accelerator, and
    the first one after it that is not; auto for the run of layers that multiplies most.
    """

    config: dict[str, int | str] = {}
    mode: Literal["optimized", "reference"] = "optimized"
    start: str = "auto"
    stop: str = "auto"

    def resolved(self) -> VtaConfig:
        """Return the configuration with its defaults."""
        return VtaConfig.from_json(self.config)

    @model_validator(mode="after")
    def _possible(self) -> VtaEntry:
        try:
            self.resolved()
        except UsageError as error:
            raise ValueError(f"{error.found}; expected: {error.expected}") from None
        return self


class TargetEntry(_Frozen):
    """What a library is compiled for. `mcpu: host` is resolved to this machine's CPU name and recorded."""

    kind: Literal["llvm"]
    mcpu: str
    mtriple: str | None = None
    mattr: Annotated[tuple[str, ...], Field(strict=False)] = ()
    threads: Positive
    cc: str | None = None
    vta: VtaEntry | None = None
    device: DeviceEntry


class Cell(_Frozen):
    """One model x target x precision."""

    model: Name
    target: Name
    precision: Precision

    def __str__(self) -> str:
        return f"{self.model}@{self.target}:{self.precision}"

    @property
    def slug(self) -> str:
        """The cell as a folder name; unambiguous because names hold no dot."""
        return f"{self.model}.{self.target}.{self.precision}"


class FetchParams(_Frozen):
    max_download_mb: Positive
    download_attempts: Positive
    connect_timeout_s: PositiveFloat
    calibration_samples: Positive
    evaluation_samples: Positive
    golden_samples: Positive
    random_samples: Positive
    split_seed: int


class ImportParams(_Frozen):
    max_relative_error: PositiveFloat


class MixedOperators(_Frozen):
    """low: operators that compute in 16 bits; high: those that stay in float32; all others follow their inputs."""

    low: Annotated[tuple[str, ...], Field(strict=False)]
    high: Annotated[tuple[str, ...], Field(strict=False)]


class Int8Params(_Frozen):
    """The post-training quantizer of `int8`."""

    observer: Literal["minmax", "percentile", "kl", "mse"]
    percentile: Annotated[float, Field(gt=50, le=100)]
    activations: Literal["uint8", "int8"]
    per_channel: bool
    equalize: bool
    bias_correction: bool
    keep_float: Annotated[tuple[str, ...], Field(strict=False)]
    max_drop: Annotated[float, Field(ge=0, le=1)] | None
    max_float_layers: Annotated[int, Field(ge=0)]


class VtaInt8Params(_Frozen):
    """The power-of-two form of `vta_int8`."""

    scale: Literal["global", "calibrated"]
    global_scale: PositiveFloat
    keep_float: Annotated[tuple[str, ...], Field(strict=False)]

    @field_validator("global_scale")
    @classmethod
    def _power_of_two(cls, value: float) -> float:
        if math.frexp(value)[0] != 0.5:
            raise ValueError(f"a power of two; found {value}")
        return value


class QuantizeParams(_Frozen):
    """mixed: `default`, and a list of its own for each target that needs one."""

    max_relative_error: dict[Precision, PositiveFloat]
    mixed: dict[Name, MixedOperators]
    int8: Int8Params
    vta_int8: VtaInt8Params

    @model_validator(mode="after")
    def _complete(self) -> QuantizeParams:
        if "default" not in self.mixed:
            raise ValueError("mixed: needs an entry 'default'")
        missing = [name for name in PRECISIONS if name not in self.max_relative_error]
        if missing:
            raise ValueError(f"max_relative_error: no bound for {', '.join(missing)}")
        return self


class GraphPackParams(_Frozen):
    channel_block: Literal["auto", 4, 8, 16]


class TuneParams(_Frozen):
    tuner: Literal["xgb", "ga", "random", "grid"]
    loss: Literal["reg", "rank", "rank-binary"]
    trials_per_workload: NotNegative
    total_trials: NotNegative
    max_seconds: Annotated[float, Field(ge=0)]
    early_stopping: Positive
    max_workloads: Positive
    winograd_max_error: dict[Literal["float32", "bfloat16"], Annotated[float, Field(ge=0)]]
    measure_repeats: Positive
    measure_min_ms: PositiveFloat
    replay_slowdown: PositiveFloat
    seed: int
    devices: Positive
    build_workers: Positive
    build_timeout_s: PositiveFloat
    kernel_timeout_s: PositiveFloat
    session_s: PositiveFloat
    canary_every: Positive
    max_drift: PositiveFloat
    cool_s: Annotated[float, Field(ge=0)]
    give_up_s: PositiveFloat


class BuildParams(_Frozen):
    max_relative_error: dict[Precision, PositiveFloat]

    @model_validator(mode="after")
    def _complete(self) -> BuildParams:
        missing = [name for name in PRECISIONS if name not in self.max_relative_error]
        if missing:
            raise ValueError(f"max_relative_error: no bound for {', '.join(missing)}")
        return self


class DeployParams(_Frozen):
    session_timeout_s: PositiveFloat
    device_wait_s: PositiveFloat


class EvaluateParams(_Frozen):
    warmup_runs: Annotated[int, Field(ge=0)]
    min_runs: Annotated[int, Field(ge=3)]
    min_seconds: PositiveFloat
    max_seconds: PositiveFloat
    max_spread: PositiveFloat
    cold_starts: Positive
    peers: Annotated[tuple[Literal["source", "onnxruntime"], ...], Field(strict=False)]


class ReleaseParams(_Frozen):
    max_accuracy_drop: Annotated[float, Field(ge=0)]
    min_top1_agreement: Annotated[float, Field(ge=0, le=1)]
    min_coverage: Annotated[float, Field(ge=0, le=1)]
    max_slowdown: Annotated[float, Field(ge=0)]
    compare_rounds: Annotated[int, Field(ge=4)]
    confidence: Annotated[float, Field(gt=0.5, lt=1)]


class FlowParams(_Frozen):
    """How work is run; nothing here changes what is made, so nothing here is in a recipe key."""

    workers: Positive
    runner: Literal["threads", "dask"]
    dask_address: str | None = None
    device_retries: Annotated[int, Field(ge=0)]
    retry_delay_s: PositiveFloat
    retune_cron: Annotated[str, Field(pattern=r"^\S+( \S+){4}$")]
    push_to_remote: bool
    timeout_s: dict[str, PositiveFloat]

    @field_validator("timeout_s")
    @classmethod
    def _known_stages(cls, value: dict[str, float]) -> dict[str, float]:
        if set(value) != set(STAGE_NAMES):
            raise ValueError(f"one timeout for each stage {list(STAGE_NAMES)}; found {sorted(value)}")
        return value


STAGE_NAMES = (
    "fetch", "import_model", "quantize", "graph_pack", "tune", "build", "deploy", "evaluate",
)  # fmt: skip


class Params(_Frozen):
    """All of params.yaml."""

    models: dict[Name, ModelEntry]
    targets: dict[Name, TargetEntry]
    cells: dict[Name, Cell]
    fetch: FetchParams
    import_model: ImportParams
    quantize: QuantizeParams
    graph_pack: GraphPackParams
    tune: TuneParams
    build: BuildParams
    deploy: DeployParams
    evaluate: EvaluateParams
    release: ReleaseParams
    flows: FlowParams

    @model_validator(mode="after")
    def _cells_are_known(self) -> Params:
        wrong = []
        for name, cell in self.cells.items():
            for word, table in (("model", self.models), ("target", self.targets)):
                value = getattr(cell, word)
                if value not in table:
                    wrong.append(f"cells.{name}: unknown {word} {value!r}; legal: {', '.join(sorted(table))}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def cell(self, text: str) -> Cell:
        """Return the cell that a user wrote: `model@target:precision`, or a name under `cells:`.

        Raises UnknownNameError with the legal names.
        """
        if text in self.cells:
            return self.cells[text]
        match = re.fullmatch(r"([^@:]+)@([^@:]+):([^@:]+)", text)
        if not match:
            raise UnknownNameError(
                f"no cell {text!r}",
                f"model@target:precision, or one of {', '.join(sorted(self.cells))}",
                "list the legal names with 'tvmflow status'",
            )
        model, target, precision = match.groups()
        for word, value, legal in (
            ("model", model, self.models),
            ("target", target, self.targets),
            ("precision", precision, PRECISIONS),
        ):
            if value not in legal:
                raise UnknownNameError(f"unknown {word} {value!r} in cell {text!r}", legal=legal)
        return Cell.model_validate({"model": model, "target": target, "precision": precision})

    def cell_name(self, cell: Cell) -> str | None:
        """Return the name of a cell under `cells:`, None when it is not listed (then DVC does not own it)."""
        return next((name for name, listed in self.cells.items() if listed == cell), None)


class _UniqueLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice."""


def _unique_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)  # type: ignore[no-untyped-call]
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is written twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load_params(path: Path) -> Params:
    """Read and validate params.yaml. Raises ParamsError that lists everything wrong with it."""
    try:
        stat = path.stat()
        if stat.st_size > MAX_PARAMS_BYTES:
            raise ParamsError(f"{path} holds {stat.st_size} bytes", f"at most {MAX_PARAMS_BYTES}")
        return _load(path, stat.st_mtime_ns, stat.st_size)
    except FileNotFoundError:
        raise ParamsError(
            f"no {path.name} in {path.parent}",
            "a workspace: a folder with params.yaml",
            "change into your clone of tvmflow, or name it with --root",
        ) from None


@functools.lru_cache(maxsize=4)
def _load(path: Path, _mtime_ns: int, _size: int) -> Params:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ParamsError(f"{path.name} is not YAML: {error}", "a YAML mapping") from None
    if not isinstance(data, dict):
        raise ParamsError(f"{path.name} holds {type(data).__name__}", "a YAML mapping")
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        raise ParamsError(
            f"{path.name} is not valid:\n" + "\n".join(_explain(e) for e in error.errors()),
            fix="correct the lines above; docs/params.md explains every key",
        ) from None


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part != "[key]")
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        legal = _legal_keys(error["loc"][:-1])
        message = f"unknown key; legal here: {', '.join(legal)}" if legal else "unknown key"
    elif error["type"] != "value_error" and error["type"] != "missing":
        message = f"{message}; found {error['input']!r}"
    return f"  - {where}: {message}" if where else f"  - {message}"


def _legal_keys(location: tuple[Any, ...]) -> list[str]:
    """Follow a path of the error through the models and return the keys that are legal at its end."""
    kind: Any = Params
    for part in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field else None
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        if get_origin(kind) in (Union, UnionType):
            kind = next(a for a in get_args(kind) if a is not type(None))
    return sorted(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
