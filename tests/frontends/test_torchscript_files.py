"""Test TorchScript files: the calls that are allowed, and manipulated files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tvmflow.frontends.pytorch.operators import (
    _PRIMS,
    _SCRIPT_ONLY,
    known_operators,
    registered_operators,
    unknown_in_script,
    unknown_operators,
)
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.sandbox.process import Policy, run_in_sandbox
from tvmflow.support.errors import ModelFileError, StageTimeoutError, TvmflowError, UnsupportedOperatorError

pytestmark = pytest.mark.heavy


def _describe(framework: str, file: str, network: str | None = None) -> SourceDescription:
    return SourceDescription(framework, network, file, one_input("input", (1, 1, 8, 8)))


def test_torchscript_that_writes_files_is_refused(tmp_path: Path) -> None:
    import torch

    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.save(x, "hacked")
            return x

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    torch.jit.script(Writes()).save(str(tmp_path / "model.torchscript"))
    with pytest.raises(UnsupportedOperatorError, match="save"):
        load_source(tmp_path, _describe("torch", "model.torchscript"))
    torch.jit.script(Plain()).save(str(tmp_path / "model.pt"))
    x = np.zeros((1, 1, 8, 8), np.float32)
    assert load_source(tmp_path, _describe("torch", "model.pt")).run(x)[0].max() == 1


PLAIN = """class Plain(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  mode : str
  def forward(self: __torch__.Plain,
    x: Tensor) -> Tensor:
    y = CALL
    return torch.add(x, 1)
"""


@pytest.mark.parametrize(
    "call",
    [
        'torch.save(x, "f")',
        'torch .save(x, "f")',
        'torch\t.\tsave(x, "f")',
        '(torch # a comment\n .save)(x, "f")',
        'x.save("f")',
        'torch.from_file("f")',
        'ops.aten.from_file("f", True, 9)',
        'ops . aten . from_file("f")',
        "ops.quantized.linear(x)",
        "ops.prim.Print(x)",
        "ops.profiler._record_function_enter(x)",
        "torch.set_(x, y)",
        "torch.backends.x()",
        "ops.aten",
        "torch",
        "[torch][0]",
        'getattr(x, "save")("f")',
        'getattr(torch, "relu")',
        "ops",
        "x.from_file",
        "torch._cuda_getDevice()",
    ],
)
def test_torchscript_calls_known_operators_only(call: str) -> None:
    assert unknown_in_script(PLAIN.replace("CALL", call))


def test_torchscript_as_it_is_written_is_known() -> None:
    for call in (
        "torch.relu_(x)",
        "self.mode",
        "torch.format(x, 1)",
        "ops.prim.NumToTensor(1)",
        "x.add(1)",
        "self.forward(x)",
    ):
        assert unknown_in_script(PLAIN.replace("CALL", call)) == [], call


def test_a_declared_name_hides_no_operator_that_takes_a_file() -> None:
    assert unknown_in_script(PLAIN.replace("mode : str", "save : str").replace("CALL", 'x.save("f")'))


@pytest.mark.parametrize(
    "code", ["x = (", "a" + chr(92) + chr(10) + ".b", "x = 1\x0c", "x = 'é'", "(" * 5000, "x = 1\r", "\0"]
)
def test_what_is_no_torchscript_is_refused(code: str) -> None:
    with pytest.raises((ValueError, SyntaxError, RecursionError, MemoryError)):
        unknown_in_script(code)


def test_no_operator_that_is_unknown_can_be_called() -> None:
    names = sorted(registered_operators() - _SCRIPT_ONLY - _PRIMS)
    unknown = [name for name in names if unknown_operators([name])]
    assert len(unknown) > 500 and {"from_file", "save", "set_", "set_data", "_print"} <= set(unknown)
    for name in unknown:
        assert unknown_in_script(f"x = torch.{name}(y)") and unknown_in_script(f"x = y.{name}()"), name
    assert {
        "conv2d",
        "batch_norm",
        "linear",
        "lstm",
        "scaled_dot_product_attention",
        "_convolution",
    } <= known_operators()
    assert not {name for name in known_operators() if "file" in name or "load" in name or "save" in name}


def _script(path: Path, module: Any, code: bytes | None = None) -> None:
    """Save a module; `code` replaces what its class is written as."""
    import torch

    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            is_code = name.endswith(".py") and code is not None
            new.writestr(name, old.read(name).replace(b"torch.add", code) if is_code and code else old.read(name))


class _Loops(__import__("torch").nn.Module):  # type: ignore[misc]
    def forward(self, x):  # type: ignore[no-untyped-def]
        while bool((x * 0 == 0).all()):
            x = x + 1
        return x


def test_an_endless_loop_in_a_model_ends_with_one_error(tmp_path: Path) -> None:
    _script(tmp_path / "model.torchscript", _Loops())
    arguments = {"folder": str(tmp_path), "framework": "torch", "file": "model.torchscript"}
    policy = Policy(40.0, reads=(tmp_path, REPOSITORY / "tests"))
    with pytest.raises((StageTimeoutError, TvmflowError), match=r"within 40 s|cannot be converted"):
        run_in_sandbox("tests.sandbox.sandbox_deeds:load_and_run", arguments, policy)


@pytest.mark.parametrize("code", [b'torch .save(x, "hacked");torch.add', b'x.save("hacked");torch.add'])
def test_torchscript_whose_code_was_altered(tmp_path: Path, code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    monkeypatch.chdir(tmp_path)
    _script(tmp_path / "model.pt", Plain(), code)
    with pytest.raises((ModelFileError, UnsupportedOperatorError), match=r"save|whole PyTorch"):
        load_source(tmp_path, _describe("torch", "model.pt"))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("sizes", [(0,), (0, 2)])
def test_a_script_that_rejects_integers_without_elements_is_refused(sizes: tuple[int, ...]) -> None:
    """Ones instead of zeros are tried once: there are none for an input without elements."""
    import torch

    from tvmflow.frontends.pytorch.scripts import recorded

    tried = []

    def run(inputs: list[torch.Tensor], states: list[torch.Tensor]) -> torch.Tensor:
        tried.append([x.tolist() for x in inputs])
        raise RuntimeError("never")

    example = [torch.zeros(size, dtype=torch.int64) for size in sizes]
    with pytest.raises(ModelFileError, match="rejects inputs of zeros"):
        recorded(torch.nn.Identity(), run, example, [], "it")
    assert ([] in tried[-1]) and len(tried) == (4 if 2 in sizes else 2)
