"""Load PyTorch models from torch.export archives (.pt2) and TorchScript files, after validation.

Both formats are programs, and PyTorch's readers trust them: a .pt2 may contain pickles, operator names resolved in any
module, evaluated expressions, guards in Python, and names that become Python code. So an archive is validated here
first, and everything beyond tensors and known operators is rejected before PyTorch reads it. PyTorch's parser of zip
files is not Python's: what is checked and loaded is a copy that was written here. It finds names in any case.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tvmflow.frontends.archives import ARCHIVE_ERRORS, checked_copy
from tvmflow.frontends.pytorch.float_ends import common_float
from tvmflow.frontends.pytorch.operators import sized_by_values, unknown_in_script, unknown_operators
from tvmflow.frontends.pytorch.script_states import recorded_module
from tvmflow.frontends.pytorch.scripts import keep_numbers
from tvmflow.frontends.source_model import FixedSpec, TensorSpec
from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError, first_line, last_line

MAX_PROGRAM_BYTES = 256 << 20
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+(\.\w+)?|torch\.sym_\w+|math\.(ceil|floor|trunc|sqrt)"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_)"
)
_SYMBOL = re.compile(r"Symbol\('[suzn]\d+'(, (positive|integer|nonnegative|real|nonzero)=True)*\)")
_VALUE_SYMBOL = re.compile(r"Symbol\('u\d+'")  # the exporter's name of a size that values decide
_VALUE_ASSERTION = re.compile(r"Runtime assertion failed for expression .*\bu\d+")
_EXPRESSION_WORDS = re.compile(
    r"[suzn]\d+|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|Add|Mul|Pow|Rational|Integer|floor|ceiling|oo|int_oo|True|False"
)
_NAME = re.compile(r"[\w.+,:/> -]*", re.ASCII)
_NOTES = ("metadata", "guards_code")  # of the exporter, which nothing evaluates; dropped before they run


def is_torchscript(path: Path) -> bool:
    """Return whether a zip archive contains TorchScript code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.lower().endswith(".py") for name in archive.namelist())
    except ARCHIVE_ERRORS:
        return False


def load_program(path: Path) -> Any:
    """Return the ExportedProgram of a .pt2 file. Raises ModelFileError."""
    try:
        with checked_copy(path, damaged_file_error) as copy, _weights_only(), warnings.catch_warnings():
            _check_program(copy)
            warnings.simplefilter("ignore")
            program = torch.export.load(copy)
            program._guards_code = []  # Python code that module() would run; shapes are checked here anyway
            program.module()
            return program
    except TvmflowError:
        raise
    except Exception as error:  # the reader raises KeyError, RuntimeError, SerializeError and more
        raise damaged_file_error(path, error) from error


@contextmanager
def _weights_only() -> Iterator[None]:
    """Keep PyTorch from unpickling code, its fallback for inputs stored as an example."""
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
    targets: set[str] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            for entry in entries:
                if any(kind in entry.filename.lower() for kind in ("opaque_obj", "custom_obj", "aotinductor")):
                    raise _not_allowed_error(path, f"{entry.filename}, which is code or a pickle")
            programs = [entry for entry in entries if entry.filename.lower().endswith(".json")]
            for entry in programs:
                targets |= _targets(path, json.loads(_read(path, archive, entry)))
    except ARCHIVE_ERRORS as error:
        raise damaged_file_error(path, error) from error
    if not any(re.search(r"/models/[^/]+\.json$", entry.filename) for entry in programs):
        raise damaged_file_error(path, ValueError("it contains no program"))
    _check_known(
        path, unknown_operators(target.split(".")[3] for target in targets if target.startswith("torch.ops.aten."))
    )


def _targets(path: Path, program: Any) -> set[str]:
    """Return the operators that a program calls. Raises ModelFileError for other names, and for expressions that are
    code.
    """
    todo, targets, by_values = [program], set(), False
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, str) and ((key == "target" and "inputs" in value) or key == "as_operator"):
                    if not _TARGETS.fullmatch(item):
                        raise _not_allowed_error(path, f"a call of {item[:100]!r}")
                    targets.add(item)
                if key == "expr_str":
                    if _VALUE_SYMBOL.search(str(item)):
                        by_values = True  # refused below, before anything evaluates it
                    elif not _is_plain(str(item)):
                        raise _not_allowed_error(path, f"the expression {str(item)[:100]!r}")
                elif key == "custom_obj_values" and item:
                    raise _not_allowed_error(path, "objects of other classes than tensors")
                elif not (key in _NOTES and _is_text(item)):
                    todo += [key, item]
        elif isinstance(value, str) and _VALUE_ASSERTION.match(value):
            by_values = True
        elif isinstance(value, str) and not _is_name(value):
            raise _not_allowed_error(path, f"the name {value[:100]!r}")
    if by_values:
        raise _by_values_error(path, targets)
    return targets


def _by_values_error(path: Path, targets: set[str]) -> UnsupportedOperatorError:
    """Return an error that names the operators of a program that make sizes of values."""
    named = sized_by_values(target.removeprefix("torch.ops.aten.") for target in targets)
    shown = ", ".join(named) or "by x[mask] or torch.where(mask), for example"
    return UnsupportedOperatorError(
        f"sizes in {path.name} depend on values, not on the sizes of its inputs: {shown}",
        "a program whose shapes are fixed by those of its inputs",
        "cut the model there and decide in your program, or write it with torch.where and masks",
    )


def _is_text(note: Any) -> bool:
    """Return whether a note is texts alone: a tensor may be named as notes are."""
    parts = note.values() if isinstance(note, dict) else note if isinstance(note, list) else [note]
    return all(isinstance(part, str) for part in parts)


def _is_name(text: str) -> bool:
    """Return whether a text cannot end a name in the Python code that PyTorch generates from a program."""
    if _NAME.fullmatch(text):
        return True
    try:
        parts = [json.loads(text)]  # the structure of arguments is JSON in JSON
    except ValueError:
        return False
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, str) and (part == text or not _is_name(part)):
            return False
    return True


def _check_known(path: Path, unknown: list[str]) -> None:
    if unknown:
        raise UnsupportedOperatorError(
            f"{path.name} calls unknown operators: {', '.join(unknown)[:300]}",
            "a model of supported operators",
            "replace that operator in the model, or export the model in another format",
        )


def _is_plain(expression: str) -> bool:
    """Return whether an expression of sizes consists of numbers, symbols and known functions only, since it is
    evaluated.
    """
    expression = _SYMBOL.sub("s0", expression)
    words = re.findall(r"[A-Za-z_]\w*", expression)
    return bool(re.fullmatch(r"[\w\s+\-*/(),<>=&|~]*", expression)) and all(
        _EXPRESSION_WORDS.fullmatch(w) for w in words
    )


def _read(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > MAX_PROGRAM_BYTES:
        raise ModelFileError(
            f"{entry.filename} in {path.name} holds {entry.file_size} bytes", f"at most {MAX_PROGRAM_BYTES}"
        )
    return archive.read(entry)


def load_script(
    path: Path, inputs: Sequence[TensorSpec], fixed: Sequence[FixedSpec] = ()
) -> tuple[Any, Callable[[], Any] | None]:
    """Return the ExportedProgram converted from a TorchScript archive and, if it keeps values between runs, what
    returns the script at the beginning of a stream. Raises ModelFileError, UnsupportedOperatorError. fixed: parameters
    that have one value.
    """
    script = _read_script(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stored = common_float(script) or torch.float32
            types = [stored if spec.dtype == "float32" else getattr(torch, spec.dtype) for spec in inputs]
            module, original = recorded_module(partial(_read_script, path), inputs, types, fixed, path.name)
            with torch.no_grad():
                return torch.export.export(module, module.example), original
    except TvmflowError:
        raise
    except Exception as error:  # PyTorch raises arbitrary errors for unknown operators
        raise UnsupportedOperatorError(
            f"the TorchScript model {path.name} cannot be converted: {last_line(error)}",
            "a model without Python control flow, for the input.shape in params.yaml",
            "export it with torch.export.save instead",
        ) from error


def _read_script(path: Path) -> Any:
    try:
        with checked_copy(path, damaged_file_error) as copy:
            _check_script(copy)
            return keep_numbers(torch.jit.load(copy, map_location="cpu").eval())
    except (RuntimeError, ValueError, OSError) as error:
        raise damaged_file_error(path, error) from error


def _check_script(path: Path) -> None:
    unknown: set[str] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.lower()
                if name.endswith("/model.json"):
                    raise _not_allowed_error(path, "code from before PyTorch 1.3")
                if name.endswith(".py"):
                    unknown |= set(unknown_in_script(_read(path, archive, entry).decode("ascii")))
    except ARCHIVE_ERRORS as error:
        raise damaged_file_error(path, error) from error
    _check_known(path, sorted(unknown))


def _not_allowed_error(path: Path, what: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name} holds {what}",
        "tensors and tensor operators only (model files are not trusted)",
        "export the model without it",
    )


def damaged_file_error(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name} is not a whole PyTorch model file: {first_line(error)}",
        "a file written by torch.export.save or torch.jit.save",
        "save the model again",
    )
