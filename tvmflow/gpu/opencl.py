"""OpenCL C of a network's kernels, by TVM."""

from __future__ import annotations

import hashlib
import re

from tvmflow.gpu.launches import DeviceProgram

_LONGEST_NAME = 100


def opencl_source(program: DeviceProgram) -> str:
    """Return one program with all functions."""
    import tvm_ffi

    first = next(iter(program.functions.functions.values()))
    module = tvm_ffi.get_global_func("target.build.opencl")(program.functions, first.attrs["target"])
    lines = str(module.inspect_source()).splitlines()
    text = "\n".join(line for line in lines if not _is_declaration(line)) + "\n"
    return re.sub(r"(?<=__kernel void )\w+", lambda name: short_name(name.group()), text)


def short_name(name: str) -> str:
    """Return a function's name as drivers take it: PoCL makes files of names, which have 255 bytes at most."""
    return (
        name
        if len(name) <= _LONGEST_NAME
        else f"{name[:_LONGEST_NAME]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    )


def _is_declaration(line: str) -> bool:
    """Whether a line only declares a function, which TVM does of all of them before each."""
    return line.startswith("__kernel") and line.endswith(");")
