"""Define a stage: what it reads, what it writes, and the function that fills its output folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.recipe_key import TABLES, code_of
from tvmflow.support.json_values import adapter
from tvmflow.support.progress import Progress, silent

S = TypeVar("S")  # a frozen dataclass of the parameters that can change the outputs
L = TypeVar("L")  # a frozen dataclass of the others
T = TypeVar("T")


@dataclass(frozen=True)
class StageContext(Generic[S, L]):
    """The context of a stage function. `settings`: the declared parameters that can change its outputs (they are in the
    recipe key); `limits`: those that cannot: timeouts, sizes, retries. `inputs`: stage name -> its checked folder.
    """

    cell: Cell
    settings: S
    limits: L
    inputs: Mapping[str, Path]
    out: Path
    root: Path
    tuning_log: Path
    progress: Progress = silent


@dataclass(frozen=True)
class Output:
    """A file that a stage always writes. plot: axes and title of its DVC plot, if any."""

    name: str
    is_metric: bool = False
    plot: Mapping[str, str] | None = None


def _nothing(_settings: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Stage(Generic[S, L]):
    """A row of the stage table in `tasks/`. dvc.yaml, the walk and the recipe key come from it.

    inputs: stage name -> the output files that are read (None: all of them). outputs: the files that it leaves, one by
    one; none where their names depend on the cell, then DVC takes the folder. reads: keys of params.yaml that can
    change its outputs, as "targets.{target}.threads"; limit_reads: those that cannot. settings, limits: (workspace,
    cell) -> the values of those keys; settings are the stage's part of the recipe key. toolchain: settings -> names in
    `toolchain.version` whose versions can change the outputs. run: fills `context.out` and returns facts worth showing
    (never needed by a later stage). measures_device: it works on the device, which must have nothing else to do.
    needs_quiet: where it measures, it takes times: on this machine no other process is started meanwhile. keeps_log:
    adds to the cell's tuning log. preview: "module:function" of what is measured and said before it runs, "" for none:
    a name, since its code is none of the stage's. It gets the stage's context. runs: the tables of `recipe.TABLES`
    whose rows it puts to work, so that what these import is part of its code. leaves_out: settings -> modules that it
    does not use then.
    """

    name: str
    settings: Callable[[Workspace, Cell], S]
    limits: Callable[[Workspace, Cell], L]
    toolchain: Callable[[S], tuple[str, ...]]
    run: Callable[[StageContext[S, L]], dict[str, Any]]
    inputs: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()
    reads: tuple[str, ...] = ()
    limit_reads: tuple[str, ...] = ()
    measures_device: bool = False
    needs_quiet: bool = True
    keeps_log: bool = False
    preview: str = ""
    runs: tuple[str, ...] = TABLES
    leaves_out: Callable[[S], tuple[str, ...]] = _nothing
    is_cached: bool = True

    @property
    def module(self) -> str:
        """Return the module whose imports are the stage's code."""
        return self.run.__module__

    def code(self, settings: S) -> dict[str, str]:
        """Return file -> sha256 of the code that it uses with these settings."""
        return code_of(self.module, self.runs, self.leaves_out(settings))

    @property
    def has_metrics(self) -> bool:
        """Return whether its output is a measurement, to be recorded in MLflow."""
        return any(output.is_metric for output in self.outputs)


AnyStage = Stage[Any, Any]
Runner = Callable[[AnyStage, StageContext[Any, Any], Mapping[str, Any]], dict[str, Any]]


def run_here(stage: AnyStage, context: StageContext[Any, Any], _recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Run a stage in this process; return its facts."""
    return stage.run(context)


def no_limits(_workspace: Workspace, _cell: Cell) -> None:
    """Return the limits of a stage without limits."""


def settings_from_block(kind: type[T], block: Any, **given: Any) -> T:
    """Return a dataclass, or a pydantic model, with the fields of the same names in a block of params.yaml. given:
    further or replaced fields.
    """
    if issubclass(kind, BaseModel):  # of values that were validated with the block
        values: dict[str, Any] = {name: getattr(block, name) for name in kind.model_fields}
        values = {name: dict(value) if hasattr(value, "keys") else value for name, value in values.items()}
        return kind.model_construct(None, **{**values, **given})
    names = [part.name for part in fields(kind) if part.name not in given]  # type: ignore[arg-type]
    return kind(**given, **{name: getattr(block, name) for name in names})


def settings_json(settings: Any) -> dict[str, Any]:
    """Return settings as a JSON-able value that is equal exactly when the settings are."""
    plain: dict[str, Any] = adapter(cast(Any, type(settings))).dump_python(settings, mode="json")
    return plain
