"""Test that code outside the tables' rows names no backend or transport."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tvmflow.backends.backend import Backend
from tvmflow.backends.registry import BACKENDS
from tvmflow.devices.registry import TRANSPORTS
from tvmflow.devices.transport import Transport

NAMES = {*BACKENDS, *TRANSPORTS}
DISTINCT = {*BACKENDS} - {"llvm"}  # that mean nothing else in code
# The rows, and what belongs to one of them.
ROWS = (
    "tvmflow/backends/",
    "tvmflow/vta/",
    "tvmflow/vta/compiler/offload.py",
    "tvmflow/devices/rpc/vta_server.py",
    "tvmflow/devices/rpc/local.py",
    "tvmflow/devices/rpc/tracker.py",
    "tvmflow/devices/registry.py",
    "tvmflow/devices/agent/transport.py",
    "tvmflow/devices/android/transport.py",
    "tvmflow/devices/rpc/emulated.py",
    "tvmflow/devices/agent/local.py",
    "tvmflow/gpu_codegen/",
    "tvmflow/targets/cpu_features.py",  # what an LLVM target has, of tvm.target.Target
    "tvmflow/toolchain/versions.py",  # "llvm" is a tool there
)
OWNED = (
    "tvmflow.backends.vta",
    "tvmflow.vta",
    "tvmflow.vta.compiler.offload",
    "tvmflow.devices.rpc.local",
    "tvmflow.devices.rpc.tracker",
    "tvmflow.devices.agent.transport",
    "tvmflow.devices.android.transport",
    "tvmflow.devices.agent.local",
)


def branches(source: str) -> Iterator[str]:
    """Yield every place where code asks for one backend or transport by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and NAMES & _words(node):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.match_case) and NAMES & _words(node.pattern):
            yield f"{node.pattern.lineno}: case {ast.unparse(node.pattern)}"
        elif isinstance(node, ast.Attribute) and node.attr in DISTINCT:
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Subscript) and DISTINCT & _words(node.slice):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "cpu"
            and node.args
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(tuple(f"{name}." for name in OWNED)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _words(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def _files() -> list[str]:
    files = [
        path.relative_to(REPOSITORY).as_posix()
        for folder in ("tasks", "flows", "tvmflow")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    ]
    return [file for file in files if not file.startswith(ROWS)]


def test_no_code_outside_of_the_rows_names_a_backend_or_a_transport() -> None:
    files = _files()
    assert len(files) > 100
    assert [f"{file}:{line}" for file in files for line in branches((REPOSITORY / file).read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "target.vta is not None",
        "entry.device.transport == 'local'",
        "transport != 'tracker'",
        "kind in ('llvm', 'x')",
        "settings['vta']",
        "remote.cpu(0)",
        "from tvmflow.vta.isa.config import VtaConfig",
        "'vta' in card",
        "match kind:\n    case 'vta': pass",
        "from tvmflow.devices.rpc.tracker import queue_of",
    ],
)
def test_a_branch_would_be_found(source: str) -> None:
    assert len(list(branches(source))) == 1


@pytest.mark.parametrize("kind", [Backend, Transport], ids=lambda kind: kind.__name__)
def test_what_a_row_must_provide_is_said_where_it_is_declared(kind: type) -> None:
    methods = [
        value
        for name, value in vars(kind).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
    ]
    assert len(methods) >= 2 and not [method for method in methods if not method.__doc__]
    assert len(Path(__import__(kind.__module__, fromlist=["x"]).__file__ or "").read_text().splitlines()) < 200
