"""Write `inputs:` and `buckets:` of a model's entry from the header of its file and a user's options.

A size that the file leaves open is fixed by `--shape`, or becomes one of the model's sizes by `--buckets`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmflow.config.fixed_inputs import FLOATS
from tvmflow.config.value_types import NAME_PATTERN
from tvmflow.support.errors import ModelFileError, UsageError

_USUAL = {2: "128", 3: "128", 4: "224"}  # sizes in hints, by the number of axes
_MASK = re.compile(r"(^|[^a-z])mask([^a-z]|$)")


@dataclass(frozen=True)
class InputRequest:
    """A user's options, each by the name of an input or of an open size, "" for all others. shape: of inputs; buckets:
    of sizes that a run chooses; high: bounds of integers.
    """

    shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    high: Mapping[str, int] = field(default_factory=dict)


def inputs_of(file: Path, header: dict[str, Any], request: InputRequest) -> dict[str, Any]:
    """Return `input:` of an entry, or `inputs:` if there are several, and `buckets:`.

    Raises ModelFileError where a size or a bound is missing, UsageError for options that fit nothing.
    """
    inputs = header["inputs"]
    if inputs is None or any(one["shape"] is None for one in inputs):
        return _unknown_inputs(file, inputs, request)
    _check_names(file, "--high", request.high, [str(one["name"]) for one in inputs if not _is_float(header, one)])
    _check_names(file, "--shape", request.shape, [str(one["name"]) for one in inputs])
    buckets = _buckets(file, inputs, request)
    tensors = {}
    for one in inputs:
        sizes = _sizes(file, one, len(inputs) == 1, request, buckets)
        if header["channels_last"] and len(sizes) == 4 and not request.shape:  # entries are (N, C, H, W)
            sizes = [sizes[0], sizes[3], sizes[1], sizes[2]]
        integers = {} if _is_float(header, one) else _integers(file, one, len(inputs), request.high)
        tensors[str(one["name"])] = {"shape": sizes, **integers}
    named = {size for tensor in tensors.values() for size in tensor["shape"] if isinstance(size, str)}
    chosen = {name: list(sizes) for name, sizes in buckets.values() if name in named}
    entry = {"input": next(iter(tensors.values()))} if len(tensors) == 1 else {"inputs": tensors}
    return {**entry, **({"buckets": chosen} if chosen else {})}


def _unknown_inputs(file: Path, inputs: Any, request: InputRequest) -> dict[str, Any]:
    """Return the inputs of a file that does not say their shapes."""
    if request.buckets or not request.shape:
        raise ModelFileError(
            f"{file.name} does not specify the shape of its input",
            "--shape, batch first: --shape 1,3,224,224 (NAME=1,3,224,224 for each of several)",
            "run the same command with --shape; buckets: of such a file are written by hand (docs/params.md)",
        )
    _check_names(file, "--high", request.high, list(request.shape))
    tensors = {}
    for name, shape in request.shape.items():
        high = request.high.get(name, request.high.get(""))
        tensors[name] = {"shape": list(shape), **({} if high is None else {"dtype": "int64", "high": high})}
    if list(tensors) == [""]:
        return {"input": tensors[""]}
    _check_names(file, "--shape", request.shape, [str(one["name"]) for one in inputs or ()] or list(request.shape))
    return {"inputs": tensors}


def _check_names(file: Path, option: str, given: Mapping[str, Any], legal: Sequence[str]) -> None:
    unknown = sorted(given.keys() - {"", *legal})
    if unknown:
        kind = " of integers" if option == "--high" else ""
        raise UsageError(
            f"{option} {unknown[0]}=...: {file.name} has no such input{kind}",
            f"one of {', '.join(legal)}" if legal else "a model with such inputs",
        )


def _is_float(header: dict[str, Any], tensor: dict[str, Any]) -> bool:
    """Return whether an input takes floats, as far as the file says; quantized ones of TensorFlow do."""
    return tensor["dtype"] in ("", *FLOATS) or header["frameworks"] == ("tensorflow",)


def _integers(file: Path, tensor: dict[str, Any], inputs: int, bounds: Mapping[str, int]) -> dict[str, Any]:
    """Return dtype and bound of an integer input. A bound for all others is for those of several inputs whose own the
    file does not tell, by a table or as a mask.
    """
    name, by_file = str(tensor["name"]), tensor["high"]
    if by_file is None and tensor["dtype"] in ("int32", "int64") and _MASK.search(name.lower()):
        by_file = 2
    others = (by_file, bounds.get("")) if inputs > 1 else (bounds.get(""), by_file)
    high = next((bound for bound in (bounds.get(name), *others) if bound is not None), None)
    if high is None and tensor["dtype"] in ("int32", "int64"):
        raise ModelFileError(
            f"input {name} of {file.name} takes {tensor['dtype']}, and the file does not specify how "
            f"large the values may be",
            f"--high {name}=BOUND, one more than the largest value: the size of the vocabulary",
            "run the same command with --high; a BOUND without a name is for all inputs",
        )
    return {"dtype": tensor["dtype"], **({} if high is None else {"high": high})}


def _open_axes(tensor: dict[str, Any]) -> list[int]:
    """Return the axes, but the batch, whose sizes are open."""
    return [axis for axis, size in enumerate(tensor["shape"]) if axis and size <= 0]


def _name_in_file(tensor: dict[str, Any], axis: int) -> str:
    names = tensor.get("axes") or ()
    return str(names[axis]) if axis < len(names) else ""


def _buckets(
    file: Path, inputs: Sequence[dict[str, Any]], request: InputRequest
) -> dict[tuple[str, int], tuple[str, tuple[int, ...]]]:
    """Return (input, axis) -> name and buckets of the size that the axis becomes.

    Without a name the buckets are for all open sizes but the batch, of which those of one axis are one size.
    """
    found: dict[tuple[str, int], tuple[str, tuple[int, ...]]] = {}
    used = set()
    for one in inputs:
        for axis in [axis for axis, size in enumerate(one["shape"]) if size <= 0]:
            own = _name_in_file(one, axis)
            key = own if own in request.buckets else "" if axis and "" in request.buckets else None
            if key is not None:
                used.add(key)
                name = own if key and re.fullmatch(NAME_PATTERN, own) else _common_name(inputs, axis)
                found[str(one["name"]), axis] = name, request.buckets[key]
    if unknown := sorted(request.buckets.keys() - used):
        names = dict.fromkeys(
            _name_in_file(one, axis) for one in inputs for axis, size in enumerate(one["shape"]) if size <= 0
        )
        legal = ", ".join(name for name in names if name)
        raise UsageError(
            f"--buckets{f' {unknown[0]}=...' if unknown[0] else ''}: {file.name} leaves no such size open",
            f"one of {legal}" if legal else "a model that leaves a size open",
            "export it with dynamic axes (dynamic_axes=, dynamic_shapes=), or leave out --buckets",
        )
    return found


def _common_name(inputs: Sequence[dict[str, Any]], axis: int) -> str:
    """Return the name of a size: the file's, if all inputs agree and it is one of ours."""
    names = {_name_in_file(one, axis) for one in inputs if axis in _open_axes(one)}
    name = names.pop() if len(names) == 1 else ""
    return name if re.fullmatch(NAME_PATTERN, name) else "length" if axis == 1 else f"size{axis}"


def _sizes(
    file: Path,
    tensor: dict[str, Any],
    is_only: bool,
    request: InputRequest,
    buckets: Mapping[tuple[str, int], tuple[str, tuple[int, ...]]],
) -> list[Any]:
    """Return the shape of an input. A shape without a name is for all inputs that leave sizes open."""
    name, declared = str(tensor["name"]), tensor["shape"]
    given = request.shape.get(name)
    if given is None and (is_only or any(size <= 0 for size in declared)):
        given = request.shape.get("")
    if given is not None:
        fits = len(given) == len(declared) and all(
            have <= 0 or have == want for have, want in zip(declared, given, strict=True)
        )
        if not fits and not is_only:
            raise ModelFileError(
                f"input {name} of {file.name} has shape {_shown(declared)}, not {','.join(map(str, given))}",
                f"a shape of its own: --shape {name}={_hint(declared)}",
                "run the same command with a --shape NAME=... for each input",
            )
        return list(given)
    sizes = [
        buckets[name, axis][0] if (name, axis) in buckets else 1 if axis == 0 and size <= 0 else size
        for axis, size in enumerate(declared)
    ]
    if any(not isinstance(size, str) and size <= 0 for size in sizes):
        raise ModelFileError(
            f"input {name} of {file.name} leaves sizes open: {_shown(sizes)}",
            "all sizes except the batch fixed, or buckets for them",
            f"pass them: --shape {'' if is_only else f'{name}='}{_hint(sizes)}; for any size up to the last of some: "
            "--buckets 32,64,128",
        )
    return sizes


def _hint(sizes: Sequence[Any]) -> str:
    usual = _USUAL.get(len(sizes), "224")
    return ",".join(
        str(size) if isinstance(size, int) and size > 0 else "1" if axis == 0 else usual
        for axis, size in enumerate(sizes)
    )


def _shown(sizes: Sequence[Any]) -> list[Any]:
    return ["?" if not isinstance(size, str) and size <= 0 else size for size in sizes]
