"""Define two small stages, to test the store without a compiler: `fetch` counts, `import_model` doubles."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.stage import AnyStage, Output, Stage, StageContext, no_limits


@dataclass(frozen=True)
class Settings:
    seed: int


@dataclass(frozen=True)
class NoSettings:
    pass


def _settings(workspace: Workspace, cell: Cell) -> Settings:
    return Settings(workspace.params.fetch.split_seed)


def _note(context: StageContext[Any, Any], name: str) -> None:
    with (context.root / "calls.txt").open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


def count(context: StageContext[Any, Any]) -> dict[str, Any]:
    _note(context, "fetch")
    (context.out / "deep").mkdir()
    (context.out / "deep" / "number.txt").write_text(str(context.settings.seed))
    (context.out / "half.txt").write_text("begun")
    waiting = Path(context.root / "slow")
    while waiting.exists():
        time.sleep(0.02)
    if (context.root / "fail").exists():
        raise RuntimeError("as asked")
    if (context.root / "full").exists():
        Path("/dev/full").write_text("x" * 100_000)
    if (context.root / "forbidden").exists():
        Path("/proc/sys/kernel/version").write_text("x")
    return {"seen": True}


def double(context: StageContext[Any, Any]) -> dict[str, Any]:
    _note(context, "import_model")
    number = int((context.inputs["fetch"] / "deep" / "number.txt").read_text())
    (context.out / "double.txt").write_text(str(2 * number))
    return {}


def _never(context: StageContext[Any, Any]) -> dict[str, Any]:
    _note(context, "deploy")
    (context.out / "deployed.json").write_text("{}")
    return {}


def _nothing(_settings: Any) -> tuple[str, ...]:
    return ()


def _no_settings(_workspace: Workspace, _cell: Cell) -> NoSettings:
    return NoSettings()


STAGES: dict[str, AnyStage] = {
    "fetch": Stage("fetch", _settings, no_limits, _nothing, count),
    "import_model": Stage(
        "import_model",
        _no_settings,
        no_limits,
        _nothing,
        double,
        inputs={"fetch": ("deep/number.txt",)},
        outputs=(Output("double.txt"),),
    ),
    "deploy": Stage(
        "deploy", _no_settings, no_limits, _nothing, _never, inputs={"import_model": None}, is_cached=False
    ),
}

if __name__ == "__main__":
    import sys

    from tvmflow.pipeline.store import Store

    workspace = Workspace(Path(sys.argv[1]))
    record, outcome = Store(workspace, STAGES).ensure(sys.argv[2], workspace.params.cell(sys.argv[3]))
    print(outcome)
