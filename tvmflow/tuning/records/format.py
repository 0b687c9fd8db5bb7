"""Which lines are tuning records: an allowlist of fields, types, lengths and numbers, for logs and databases of
anybody.

A trace is checked, too: it may hold steps of a schedule only, and no machine code but that of our own templates. Knows
nothing of files.
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
MAX_LINE_BYTES = 4 << 20  # the longest trace of a known network takes some ten thousand
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
        return checked_fields(json.loads(line, object_pairs_hook=_object, parse_constant=_refuse_constant))
    except RecursionError as error:
        raise ValueError("its brackets are nested too deep") from error


def is_cut_off(line: bytes) -> bool:
    """Whether a line is the beginning of a record, whose writer was killed."""
    depths, depth = [], 0
    for bracket in re.findall(rb"[][{}]", re.sub(rb'"(?:[^"\\]|\\.)*("|\\?$)', b"", line)):
        depth += 1 if bracket in b"[{" else -1
        depths.append(depth)
    return line.startswith(b"{") and min(depths) > 0


def checked_fields(data: object) -> dict[str, Any]:
    """Return the typed fields of a record, tuples for lists. Raises ValueError for what no record may hold."""
    if not isinstance(data, dict):
        raise ValueError(f"{_shown(data)} in place of a record")
    unknown = sorted(str(name) for name in data.keys() - _FIELDS.keys())
    missing = sorted(_FIELDS.keys() - _LATER - data.keys())
    if unknown or missing:
        raise ValueError(f"a field {_shown(unknown[0])} that is unknown" if unknown else f"no field {missing[0]}")
    return {name: _FIELDS[name](value, name) for name, value in data.items()}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field that is there twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} in place of a number")


def _shown(value: object) -> str:
    return repr(value)[:60] if not isinstance(value, dict | list) else type(value).__name__


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{name} is {_shown(value)}, not a line of at most {_MAX_TEXT} characters")
    return value


def _message(value: object, name: str) -> str:
    """Return what a compiler said: several lines, without characters that no file can hold."""
    if not isinstance(value, str) or len(value) > _MAX_CODE or re.search("[\ud800-\udfff]", value):
        raise ValueError(f"{name} is {_shown(value)}, not a text of at most {_MAX_CODE} characters")
    return value


def _status(value: object, name: str) -> str:
    if value == "wrong_answer":  # as logs of earlier versions say it
        return WRONG_OUTPUT
    if value not in STATUSES:
        raise ValueError(f"{name} is {_shown(value)}, not one of {', '.join(STATUSES)}")
    return str(value)


def _integer(value: object, name: str) -> int:
    if type(value) is not int or not -_LARGEST_INT <= value < _LARGEST_INT:
        raise ValueError(f"{name} is {_shown(value)}, not an integer of 64 bits")
    return value


def _extent(value: object, name: str) -> int:
    if _integer(value, name) < 0:
        raise ValueError(f"{name} is {value}, less than 0")
    return _integer(value, name)


def _number(value: object, name: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} is {_shown(value)}, not a finite number of at least 0")
    return float(value)  # type: ignore[arg-type]


def _several(one: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def check(value: object, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > _MAX_ITEMS:
            raise ValueError(f"{name} is {_shown(value)}, not a list of at most {_MAX_ITEMS}")
        return tuple(one(item, f"{name}[{index}]") for index, item in enumerate(value))

    return check


def _named(one: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def check(value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_ITEMS:
            raise ValueError(f"{name} is {_shown(value)}, not at most {_MAX_ITEMS} names with values")
        return {_text(key, f"a name in {name}"): one(item, f"{name}.{key}"[:60]) for key, item in value.items()}

    return check


def _trace(value: object, name: str) -> Any:
    """Return a trace: steps of [name, inputs, attributes, outputs], and decisions."""
    if value is None:
        return None
    _bound(value, name)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(part, list) for part in value):
        raise ValueError(f"{name} is {_shown(value)}, not a list of steps and a list of decisions")
    code: list[str] = []
    for step in value[0]:
        if not isinstance(step, list) or len(step) != 4 or not all(isinstance(part, list) for part in step[1:]):
            raise ValueError(f"{name} holds {_shown(step)}, not a step with inputs, attributes and outputs")
        if not isinstance(step[0], str) or step[0] not in _STEPS:
            raise ValueError(f"{name} holds a step {_shown(step[0])}, which is not one of a schedule")
        if step[0] == "Annotate" and str(step[2][:1]).find("import") >= 0:
            code += [str(part) for part in (step[2] if step[2] != [_IMPORT] else step[1][1:])]
    if code:
        _own_code(code, str(value), name)
    return value


def _bound(value: object, name: str) -> None:
    """Raise ValueError for a trace that is too deep or too large, or holds what no trace does."""
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
                raise ValueError(f"{name} holds {_shown(item)}")
        level = [inner for item in level if isinstance(item, list) for inner in item]
        if not level:
            return
        if count + len(level) > _MAX_TRACE_ITEMS:
            raise ValueError(f"{name} holds more than {_MAX_TRACE_ITEMS} values")
    raise ValueError(f"{name} is nested deeper than {_MAX_DEPTH} lists")


def _own_code(code: list[str], trace: str, name: str) -> None:
    """Raise ValueError unless the machine code that a trace brings is what our templates write for its instructions."""
    from tvmflow.schedules.intrinsics.registration import native_code_of

    own = {f'"{text}"' for text in native_code_of(trace)}
    if not set(code) <= own:
        raise ValueError(f"{name} brings machine code that is none of ours: {_shown(sorted(set(code) - own)[0])}")


_LATER = {"canary_s", "flops", "extents", "error", "unit", "build"}  # older versions wrote none
_FIELDS: dict[str, Callable[[object, str], Any]] = {
    "workload": _text,
    "name": _text,
    "template": _text,
    "knobs": _named(_integer),
    "trace": _trace,
    "seconds": _several(_number),
    "status": _status,
    "device_kind": _text,
    "toolchain": _named(_text),
    "created": _text,
    "canary_s": _number,
    "flops": _number,
    "extents": _several(_extent),
    "error": _message,
    "unit": _text,
    "build": _text,
}
