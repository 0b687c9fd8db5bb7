"""Test that each stage's row declares all that the stage reads, and that DVC and the recipe key see every change of
it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tests.recording import general_key, keys_read, leaves
from tvmflow.config.params import Cell, Params, load_params
from tvmflow.pipeline.recipe_key import code_of
from tvmflow.pipeline.stage import settings_json
from tvmflow.support.digests import Digests
from tvmflow.support.errors import TvmflowError
from tvmflow.support.json_values import from_json
from tvmflow.toolchain.compilers import compiler_for

URL = {"url": "https://example.org/model", "sha256": "0" * 64}


@functools.cache
def _raw() -> dict[str, Any]:
    """Return params.yaml with every default written, and models of every framework and with every kind of file."""
    raw = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    image = {"input": {"shape": [1, 3, 8, 8]}}
    raw["models"] |= {
        "from_onnx": {"framework": "onnx", "weights": URL, **image},
        "from_tensorflow": {"framework": "tensorflow", "weights": URL, **image},
        "of_files": {
            "framework": "torch",
            "network": "mine.py:make",
            "weights": {"file": "mine.pt"},
            "dataset": "mine.npz",
            "labels": "mine.txt",
            **image,
        },
    }
    raw["quantize"]["mixed"]["x86-64-v3"] = raw["quantize"]["mixed"]["default"]
    return Params.model_validate(raw).model_dump(mode="json")


OF_TENSORFLOW = {"models.{model}.outputs", "models.{model}.signature"}  # refused for models of others
CELLS = [
    "digits_torch@local-cpu:float32",
    "digits_keras@x86-64-v3:float16",
    "resnet18_v1@rk3399:bfloat16",
    "from_onnx@local-cpu:float16_acc32",
    "from_tensorflow@rk3399:int8",
    "of_files@local-cpu:int8",
    "digits_torch@vta-sim:vta_int8",
    "resnet18_v1@vta-sim-reference:vta_int8",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("mine.py", "mine.pt", "mine.npz", "mine.txt"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_reads_what_its_row_says_and_nothing_else(name: str, root: Path) -> None:
    stage, params = STAGES[name], Params.model_validate(_raw())
    for function, keys in ((stage.settings, stage.reads), (stage.limits, stage.limit_reads)):
        declared = {leaf for key in keys for leaf in leaves(key)}
        read: set[str] = set()
        for text in CELLS:
            accessed = keys_read(function, root, params, params.cell(text))
            assert accessed <= declared, (
                f"{text}: {name} reads what its row does not say: {sorted(accessed - declared)}"
            )
            read |= accessed
        assert read == declared, f"the row of {name} says what is never read: {sorted(declared - read)}"


def test_every_key_of_a_stages_block_is_read_by_a_stage() -> None:
    read = {leaf for s in STAGES.values() for key in (*s.reads, *s.limit_reads) for leaf in leaves(key)}
    blocks = [*STAGES, "models.{model}", "targets.{target}"]
    assert {leaf for block in blocks for leaf in leaves(block)} - read == set()


@pytest.mark.parametrize("text", CELLS)
def test_settings_survive_a_round_trip_through_json(text: str, root: Path) -> None:
    """Otherwise two settings could have the same recipe key."""
    workspace, cell = _workspace(root, _raw()), Params.model_validate(_raw()).cell(text)
    for stage in STAGES.values():
        settings = stage.settings(workspace, cell)
        assert from_json(type(settings), settings_json(settings)) == settings


def _workspace(root: Path, raw: dict[str, Any]) -> Any:
    class Fixed:
        pass

    workspace: Any = Fixed()
    workspace.root, workspace.params, workspace.digests = root, Params.model_validate(raw), Digests()
    return workspace


def _paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
    else:
        yield path


def _of_cell(path: tuple[str, ...], cell: Cell) -> bool:
    tables = {"models": cell.model, "targets": cell.target}
    return path[0] != "cells" and tables.get(path[0], path[1]) == path[1]


def _others(value: Any) -> list[Any]:
    """Return values of the same kind, the first of which that params.yaml may have is taken."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1, value * 2, value / 2, value * 0.99, 8, 4]
    if isinstance(value, list):
        edited = [[*value, "x"], [*value, "+fma"], [*value, "+crc"], value[1:], [*value[:-1], 2], [2, *value[1:]]]
        return [other for other in edited if other != value]
    words = [
        "x86-64-v2",
        "x86-64-v4",
        "cortex-a53",
        "aarch64-linux-musl",
        "aarch64-linux-gnu",
        "x86_64-linux-musl",
        "keras",
        "torch",
        "onnx",
        "float16",
        "random",
        "rank",
        "reg",
        "minmax",
        "kl",
        "int8",
        "uint8",
        "global",
        "calibrated",
        "reference",
        "optimized",
        "pynq",
        "dask",
        "emulated",
        "tracker",
        "local",
        "other",
        "digits",
        "mine.npz",
        "mine.txt",
        "mine.pt",
        "mine.py:other",
        "1" * 64,
        "1 1 1 1 1",
        "https://example.org/other",
        "stretch",
        "bicubic",
        "nearest",
        "BGR",
        "mxnet",
        "never",
        "segmentation",
    ]
    rest = [16, 1, [], ["x"], {"config": {"target": "sim"}}, {"epochs": 3}, {}]
    return [word for word in [*words, *rest] if word != value]


def _edited(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return raw | {head: _edited(raw[head], tuple(rest), value) if rest else value}


def _all_settings(root: Path, raw: dict[str, Any], cell: Cell) -> dict[str, Any] | None:
    """Return stage -> settings as they are in the recipe; None where params.yaml may not be so."""
    try:
        workspace = _workspace(root, raw)
        return {name: settings_json(stage.settings(workspace, cell)) for name, stage in STAGES.items()}
    except (ValueError, TvmflowError):
        return None


@functools.cache
def _dvc_stages() -> dict[str, Any]:
    stages: dict[str, Any] = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    return stages


def _dvc_params(name: str, cell: Cell) -> list[str]:
    return [_filled(text, cell) for text in _dvc_stages()[name]["do"]["params"]]


def _filled(text: str, cell: Cell) -> str:
    for word in ("model", "target", "precision"):
        text = text.replace(f"${{item.{word}}}", getattr(cell, word))
    return text


@pytest.mark.parametrize("text", CELLS)
def test_an_edit_of_a_key_changes_the_keys_of_the_stages_that_read_it_and_dvc_runs_them(text: str, root: Path) -> None:
    raw = _raw()
    params = Params.model_validate(raw)
    cell = params.cell(text)
    before = _all_settings(root, raw, cell)
    assert before is not None
    reads = {name: keys_read(stage.settings, root, params, cell) for name, stage in STAGES.items()}
    changed: dict[str, set[str]] = {}
    refused = set()
    for path in [path for path in _paths(raw) if len(path) > 1 and _of_cell(path, cell)]:
        key = general_key(path, cell)
        if key in OF_TENSORFLOW and raw["models"][cell.model]["framework"] != "tensorflow":
            continue
        wanted = {name for name in STAGES if key in reads[name]}
        if key.endswith("input.low"):  # is legal beside `high` only
            bounded = _edited(raw, (*path[:-1], "high"), 1000)
            edited = _changed_by_an_edit(root, bounded, cell, path, _all_settings(root, bounded, cell), wanted)
        else:
            edited = _changed_by_an_edit(root, raw, cell, path, before, wanted)
        if edited is None:
            refused.add(key)
            continue
        assert edited <= wanted, f"{key} changes a stage that does not read it"
        changed[key] = changed.get(key, set()) | edited
        for name in edited:
            known = _dvc_params(name, cell)
            assert any(f"{'.'.join(path)}.".startswith(f"{dvc}.") for dvc in known), f"{name}: DVC overlooks {path}"
    for key, stages in changed.items():
        assert stages == {name for name in STAGES if key in reads[name]}, f"{key} is read, and its value does not count"
    assert len(changed) > 6 * len(refused - set(changed)), refused  # keys of other frameworks are refused
    assert changed["targets.{target}.threads"] >= {"graph_pack", "tune", "build", "deploy", "evaluate"}


def _changed_by_an_edit(
    root: Path, raw: dict[str, Any], cell: Cell, path: tuple[str, ...], before: dict[str, Any] | None, wanted: set[str]
) -> set[str] | None:
    """Return the stages that an edit changes, of several edits one that changes those wanted; None where none is
    legal.
    """
    edited = None
    assert before is not None
    for other in _others(functools.reduce(lambda at, name: at[name], path, raw)):
        after = _all_settings(root, _edited(raw, path, other), cell)
        if after is not None:
            edited = {name for name in STAGES if after[name] != before[name]}
            if edited == wanted:
                break
    return edited


def test_dvc_finds_every_key_that_it_is_told_of() -> None:
    raw = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    for cell in load_params(REPOSITORY / "params.yaml").cells.values():
        for name in STAGES:
            for key in _dvc_params(name, cell):
                functools.reduce(lambda at, part: at[part], key.split("."), raw)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_that_compiles_or_links_says_so(name: str, root: Path) -> None:
    """Tools that change what a stage makes are in its key: the compiler that links, the cost model of the tuner."""
    stage, raw = STAGES[name], _raw()
    workspace = _workspace(root, raw)
    tools = stage.toolchain(stage.settings(workspace, workspace.params.cell("digits_torch@rk3399:float32")))
    code = " ".join((REPOSITORY / file).read_text() for file in code_of(stage.module, stage.runs))
    links = "export_library(" in code and name in ("tune", "build")
    assert (f"cc:{compiler_for('aarch64-linux-gnu')}" in tools) == links
    assert ("xgboost" in tools) == ("import xgboost" in code)
    assert ("llvm" in tools) == ("tvm.compile(" in code)
