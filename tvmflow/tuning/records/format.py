"""Validate lines of tuning logs and databases from untrusted sources: fields, types, lengths and numbers.

A trace is validated too: it may contain schedule instructions only, and no machine code but that of our own templates.
Does no file I/O.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

OK, ILLEGAL_SCHEDULE, COMPILE_ERROR = "ok", "illegal_schedule", "compile_error"
WRONG_OUTPUT, KERNEL_TIMEOUT = "wrong_output", "kernel_timeout"
STATUSES = (OK, ILLEGAL_SCHEDULE, COMPILE_ERROR, WRONG_OUTPUT, KERNEL_TIMEOUT)
MAX_LINE_BYTES = 4 << 20  # the longest known trace has about ten thousand bytes
_MAX_TEXT, _MAX_CODE, _MAX_ITEMS, _MAX_TRACE_ITEMS, _MAX_DEPTH = 1000, 1 << 16, 10_000, 200_000, 16
_LARGEST_INT = 1 << 63
_IMPORT = "pragma_import_llvm"
_STEPS = frozenset(
    """
    GetSBlock GetLoops GetChildBlocks GetProducers GetConsumers GetOutputBlocks SampleCategorical SamplePerfectTile
    SamplePartitionedTile SampleComputeLocation Merge Fuse Split LoopPartition Reorder ReorderBlockIterVar AddUnitLoop
    Parallel Vectorize Bind Unroll CacheRead CacheWrite CacheInplace CacheIndex ReIndex ReindexCacheRead
    ReindexCacheWrite ReadAt WriteAt ComputeAt ReverseComputeAt ComputeInline ReverseComputeInline
    FuseReductionEpilogue DecomposeReduction RFactor StorageAlign SetScope Blockize Tensorize Annotate Unannotate
    TransformLayout TransformBlockLayout DecomposePadding PadEinsum RollingBuffer EnterPostproc
    UnsafeHideBufferAccess
    """.split()
)


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the fields of a line's record. Raises ValueError, which says what was found."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        return check_fields(json.loads(line, object_pairs_hook=_object, parse_constant=_refuse_constant))
    except RecursionError as error:
        raise ValueError("its brackets are nested too deep") from error


def is_cut_off(line: bytes) -> bool:
    """Return whether a line is the beginning of a record whose writer was killed."""
    depths, depth = [], 0
    for bracket in re.findall(rb"[][{}]", re.sub(rb'"(?:[^"\\]|\\.)*("|\\?$)', b"", line)):
        depth += 1 if bracket in b"[{" else -1
        depths.append(depth)
    return line.startswith(b"{") and min(depths) > 0


def check_fields(data: object) -> dict[str, Any]:
    """Return the typed fields of a record, with tuples for lists. Raises ValueError for an invalid record."""
    if not isinstance(data, dict):
        raise ValueError(f"{_describe(data)} instead of a record")
    unknown = sorted(str(name) for name in data.keys() - _FIELDS.keys())
    missing = sorted(_FIELDS.keys() - _LATER - data.keys())
    if unknown or missing:
        raise ValueError(f"an unknown field {_describe(unknown[0])}" if unknown else f"no field {missing[0]}")
    return {name: _FIELDS[name](value, name) for name, value in data.items()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field that occurs twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} instead of a number")


def _describe(value: object) -> str:
    return repr(value)[:60] if not isinstance(value, dict | list) else type(value).__name__


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{name} is {_describe(value)}, not a line of at most {_MAX_TEXT} characters")
    return value


def _message(value: object, name: str) -> str:
    """Return a compiler message: several lines, without surrogates, which no UTF-8 file can hold."""
    if not isinstance(value, str) or len(value) > _MAX_CODE or re.search("[\ud800-\udfff]", value):
        raise ValueError(f"{name} is {_describe(value)}, not a text of at most {_MAX_CODE} characters")
    return value


def _status(value: object, name: str) -> str:
    if value == "wrong_answer":  # name in logs of earlier versions
        return WRONG_OUTPUT
    if value not in STATUSES:
        raise ValueError(f"{name} is {_describe(value)}, not one of {', '.join(STATUSES)}")
    return str(value)


def _integer(value: object, name: str) -> int:
    if type(value) is not int or not -_LARGEST_INT <= value < _LARGEST_INT:
        raise ValueError(f"{name} is {_describe(value)}, not an integer of 64 bits")
    return value


def _extent(value: object, name: str) -> int:
    if _integer(value, name) < 0:
        raise ValueError(f"{name} is {value}, less than 0")
    return _integer(value, name)


def _number(value: object, name: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} is {_describe(value)}, not a finite number of at least 0")
    return float(value)  # type: ignore[arg-type]


def _list_of(one: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def check(value: object, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > _MAX_ITEMS:
            raise ValueError(f"{name} is {_describe(value)}, not a list of at most {_MAX_ITEMS}")
        return tuple(one(item, f"{name}[{index}]") for index, item in enumerate(value))

    return check


def _mapping_of(one: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def check(value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
            raise ValueError(f"{name} is {_describe(value)}, not at most {_MAX_ITEMS} names with values")
        return {_text(key, f"a name in {name}"): one(item, f"{name}.{key}"[:60]) for key, item in value.items()}

    return check


def _trace(value: object, name: str) -> Any:
    """Return a trace: instructions as [name, inputs, attributes, outputs], and decisions."""
    if value is None:
        return None
    _check_size(value, name)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(part, list) for part in value):
        raise ValueError(f"{name} is {_describe(value)}, not a list of steps and a list of decisions")
    code: list[str] = []
    for step in value[0]:
        if not isinstance(step, list) or len(step) != 4 or not all(isinstance(part, list) for part in step[1:]):
            raise ValueError(f"{name} holds {_describe(step)}, not a step with inputs, attributes and outputs")
        if not isinstance(step[0], str) or step[0] not in _STEPS:
            raise ValueError(f"{name} holds a step {_describe(step[0])}, which is not one of a schedule")
        if step[0] == "Annotate" and str(step[2][:1]).find("import") >= 0:
            code += [str(part) for part in (step[2] if step[2] != [_IMPORT] else step[1][1:])]
    if code:
        _check_native_code(code, str(value), name)
    return value


def _check_size(value: object, name: str) -> None:
    """Raise ValueError for a trace that is nested too deeply, is too large, or holds a value of another type."""
    level, count = [value], 0
    for _ in range(_MAX_DEPTH):
        count += len(level)
        for item in level:
            if isinstance(item, str):
                _message(item, f"a text in {name}")
            elif type(item) is int:
                _integer(item, f"a number in {name}")
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"a number in {name} is {item}")
            elif item is not None and not isinstance(item, bool | float | list):
                raise ValueError(f"{name} holds {_describe(item)}")
        level = [inner for item in level if isinstance(item, list) for inner in item]
        if not level:
            return
        if count + len(level) > _MAX_TRACE_ITEMS:
            raise ValueError(f"{name} holds more than {_MAX_TRACE_ITEMS} values")
    raise ValueError(f"{name} is nested deeper than {_MAX_DEPTH} lists")


def _check_native_code(code: list[str], trace: str, name: str) -> None:
    """Raise ValueError unless the machine code in a trace is what our templates generate for its intrinsics."""
    from tvmflow.schedules.intrinsics.registration import native_code_of

    own = {f'"{text}"' for text in native_code_of(trace)}
    if not set(code) <= own:
        raise ValueError(f"{name} contains machine code that is not ours: {_describe(sorted(set(code) - own)[0])}")


_LATER = {"canary_s", "flops", "extents", "error", "unit", "build"}  # not written by older versions
_FIELDS: dict[str, Callable[[object, str], Any]] = {
    "workload": _text,
    "name": _text,
    "template": _text,
    "knobs": _mapping_of(_integer),
    "trace": _trace,
    "seconds": _list_of(_number),
    "status": _status,
    "device_kind": _text,
    "toolchain": _mapping_of(_text),
    "created": _text,
    "canary_s": _number,
    "flops": _number,
    "extents": _list_of(_extent),
    "error": _message,
    "unit": _text,
    "build": _text,
}
