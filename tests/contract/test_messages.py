"""Test that the params.yaml keys in messages and documents exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from pydantic import BaseModel, create_model

from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tests.recording import leaves
from tvmflow.backends.registry import BACKENDS
from tvmflow.config.keys import part_of
from tvmflow.config.params import DeviceEntry, Params, TargetEntry
from tvmflow.devices.registry import TRANSPORTS
from tvmflow.evaluation.agreement import check_golden
from tvmflow.support.errors import AgreementError

BLOCKS = "|".join(Params.model_fields)
# A block and what follows it; a value that is put in stands as {}. Not files, modules or calls.
KEY = re.compile(rf"(?<![\w./@-])({BLOCKS})((?:\.(?:\{{\}}|[a-z0-9_-]+|X|NAME))+)(?![\w(/-])")
FILES = (".py", ".yaml", ".json", ".csv", ".md", ".npz", ".so", ".toml", ".onnx")
SOURCES = sorted(path for folder in ("tvmflow", "tasks", "flows") for path in (REPOSITORY / folder).rglob("*.py"))
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])


def keys_in(text: str) -> list[str]:
    keys = [f"{block}{rest}" for block, rest in KEY.findall(text)]
    return [key for key in keys if not key.endswith(FILES) and not _is_module(key)]


def _is_module(name: str) -> bool:
    return (REPOSITORY / name.replace(".", "/")).with_suffix(".py").exists()


def exists(key: str) -> bool:
    """Say whether a key can be in params.yaml; {} may be any name, and after a value there is none."""
    kind: Any = Params
    for name in key.split("."):
        match = next((part for part in (part_of(k, name) for k in _with_options(kind, name)) if part is not None), None)
        if match is None:
            return name == "{}" and _is_block(kind)  # one of several keys of a block
        kind = match[0]
    return True


def _with_options(kind: Any, name: str) -> list[Any]:
    """Return a block and those that a row of a table adds to it."""
    if kind is DeviceEntry:
        return [kind, *(transport.options for transport in TRANSPORTS.values())]
    if kind is TargetEntry and name in BACKENDS:
        return [create_model(name, **{name: (BACKENDS[name].options, ...)})]
    return [kind]


def _is_block(kind: Any) -> bool:
    return any(
        isinstance(k, type) and issubclass(k, BaseModel) for k in (kind, *get_args(kind)) if get_origin(k) is None
    )


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every string but docstrings; what an f-string puts in is {}."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            skipped.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(str(part) for part in parts)


FIELDS = "|".join(sorted({key.split(".")[1] for block in Params.model_fields for key in leaves(block) if "." in key}))
UNKNOWN_BLOCK = re.compile(rf"(?<![\w.])\{{\}}\.({FIELDS})(?![\w(])")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_messages_name_keys_that_there_are(path: Path) -> None:
    for line, text in texts_of(path.read_text()):
        for key in keys_in(text):
            assert exists(key), f"{path.name}:{line}: no key {key} in params.yaml: {text!r}"
        unknown = UNKNOWN_BLOCK.search(text)
        assert not unknown, f"{path.name}:{line}: write the whole key, whose block is looked up here: {text!r}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_keys_that_there_are(path: Path) -> None:
    for quoted in re.findall(r"`([^`\n]+)`", path.read_text()):
        for key in keys_in(quoted):
            assert exists(re.sub(r"\b(X|NAME)\b", "{}", key)), f"{path.name}: no key {key} in params.yaml"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("set graph_pack.max_relative_error", ["graph_pack.max_relative_error"]),
        ("lower fetch.calibration_samples or fetch.evaluation_sample", ["fetch.evaluation_sample"]),
        ("models.{}.weights.fil", ["models.{}.weights.fil"]),
        ("models.resnet18.weights.sha256, targets.{}.device.port", []),
        ("targets.{}.thread", ["targets.{}.thread"]),
        ("flows.timeout_s.{} and quantize.max_relative_error.int8", []),
        ("tune.seed.x", ["tune.seed.x"]),
        ("see tasks/build.py, build.py, tvmflow.shipping.gates.cell and flows/sweep.py", []),
    ],
)
def test_the_search_for_keys_finds_the_wrong_ones(text: str, wrong: list[str]) -> None:
    assert [key for key in keys_in(text) if not exists(key)] == wrong


@pytest.mark.parametrize("stage", ["import_model", "quantize", "graph_pack", "build", "deploy", "evaluate"])
def test_an_error_above_a_bound_names_the_bound(stage: str) -> None:
    reference = np.array([[1.0, 2.0], [3.0, 1.0]])
    with pytest.raises(AgreementError) as error:
        check_golden(stage, reference * np.array([1.0, 1.3]), reference, 1e-3)
    keys = keys_in(str(error.value))
    assert keys and all(exists(key) for key in keys)
    assert keys[0] in STAGES[stage].reads or f"{keys[0]}.{{precision}}" in STAGES[stage].reads
