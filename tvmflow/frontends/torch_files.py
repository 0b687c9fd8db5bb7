"""Whole PyTorch models from files: torch.export archives (.pt2) and TorchScript.

Both formats are programs, and PyTorch's readers trust them: a .pt2 may hold pickles, operator names that are looked up in
any module, and expressions that are evaluated. So an archive is read here first, and anything beyond tensors and plain
tensor operators is refused before PyTorch sees it.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvmflow.errors import ModelFileError, UnsupportedOperatorError, first_line, last_line

MAX_UNPACKED_BYTES = 8 << 30
MAX_PROGRAM_BYTES = 256 << 20
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+(\.\w+)?|torch\.sym_\w+|math\.(ceil|floor|trunc|sqrt)"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_)"
)
_SYMBOL = re.compile(r"Symbol\('[suzn]\d+'(, (positive|integer|nonnegative|real|nonzero)=True)*\)")
_EXPRESSION_WORDS = re.compile(
    r"[suzn]\d+|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|Add|Mul|Pow|Rational|Integer|floor|ceiling|oo|int_oo|True|False"
)
_SCRIPT_FORBIDDEN = re.compile(r"__setstate__|torch\.(save|from_file|load\w*)\b|\bops\.(?!aten\b|prim\b)\w+")


def is_torchscript(path: Path) -> bool:
    """Whether a zip archive holds TorchScript code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def load_program(path: Path) -> Any:
    """Return the ExportedProgram of a .pt2 file. Raises ModelFileError."""
    import torch

    _check_program(path)
    try:
        with _weights_only(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # the reader raises KeyError, RuntimeError, SerializeError and more
        raise _damaged(path, error) from error


@contextmanager
def _weights_only() -> Iterator[None]:
    """Keep PyTorch from falling back to unpickling code, which it does for inputs that are stored as an example."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _check_program(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, archive)
            for name in archive.namelist():
                if "opaque_obj" in name or "custom_obj" in name or "aotinductor" in name:
                    raise _refused(path, f"{name}, which is code or a pickle")
            programs = [entry for entry in archive.infolist() if re.search(r"/models/[^/]+\.json$", entry.filename)]
            for entry in programs:
                if entry.file_size > MAX_PROGRAM_BYTES:
                    raise ModelFileError(
                        f"the program in {path.name} holds {entry.file_size} bytes", f"at most {MAX_PROGRAM_BYTES}"
                    )
                _check_json(path, json.loads(archive.read(entry)))
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RecursionError, NotImplementedError) as error:
        raise _damaged(path, error) from error
    if not programs:
        raise _damaged(path, ValueError("no program in it"))


def _check_json(path: Path, program: Any) -> None:
    todo = [program]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            for key, item in value.items():
                if key == "target" and isinstance(item, str) and "inputs" in value and not _TARGETS.fullmatch(item):
                    raise _refused(path, f"a call of {item[:100]!r}")
                if key == "expr_str" and not _is_plain(str(item)):
                    raise _refused(path, f"the expression {str(item)[:100]!r}")
                todo.append(item)


def _is_plain(expression: str) -> bool:
    """Whether an expression of sizes is made of numbers, symbols and known functions alone; it will be evaluated."""
    expression = _SYMBOL.sub("s0", expression)
    words = re.findall(r"[A-Za-z_]\w*", expression)
    return bool(re.fullmatch(r"[\w\s+\-*/(),<>=&|~]*", expression)) and all(
        _EXPRESSION_WORDS.fullmatch(w) for w in words
    )


def _check_size(path: Path, archive: zipfile.ZipFile) -> None:
    size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_UNPACKED_BYTES:
        raise ModelFileError(f"{path.name} unpacks to {size} bytes", f"at most {MAX_UNPACKED_BYTES}")


def load_script(path: Path, shape: tuple[int, ...]) -> Any:
    """Return the ExportedProgram that a TorchScript archive converts to. Raises ModelFileError, UnsupportedOperatorError."""
    import torch
    from torch._export.converter import TS2EPConverter

    _check_script(path)
    try:
        script = torch.jit.load(path, map_location="cpu").eval()
    except (RuntimeError, ValueError, OSError) as error:
        raise _damaged(path, error) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TS2EPConverter(script, (torch.zeros(shape),), {}).convert()
    except Exception as error:  # the converter raises what it likes on operators that it does not know
        raise UnsupportedOperatorError(
            f"the TorchScript model {path.name} cannot be converted: {last_line(error)}",
            "a model without Python control flow, for the input.shape in params.yaml",
            "export it with torch.export.save instead",
        ) from error


def _check_script(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, archive)
            for entry in archive.infolist():
                if "/code/" in entry.filename and entry.filename.endswith(".py"):
                    if entry.file_size > MAX_PROGRAM_BYTES:
                        raise ModelFileError(
                            f"{entry.filename} holds {entry.file_size} bytes", f"at most {MAX_PROGRAM_BYTES}"
                        )
                    found = _SCRIPT_FORBIDDEN.search(archive.read(entry).decode("utf-8", "replace"))
                    if found:
                        raise _refused(path, f"{found[0]!r} in its code")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise _damaged(path, error) from error


def _refused(path: Path, what: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name} holds {what}", "tensors and tensor operators only (model files are not trusted)",
        "export the model without it",
    )  # fmt: skip


def _damaged(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name} is not a whole PyTorch model file: {first_line(error)}", "what torch.export.save or torch.jit.save wrote",
        "save the model again",
    )  # fmt: skip
