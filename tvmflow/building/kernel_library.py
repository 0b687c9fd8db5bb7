"""Link one scheduled kernel as a library without TVM: a network of one step, for devices that have none."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from tvmflow.building.plan import Memory, Plan, Step, Value
from tvmflow.building.self_contained import Network, link, runtime_objects
from tvmflow.compilers import Command
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.ir_files import bytes_of
from tvmflow.ir.tvm_names import buffer_of
from tvmflow.targets.resolve import ResolvedTarget


def write_kernel(path: Path, executable: Any, function: Any, target: ResolvedTarget) -> None:
    """Link a kernel whose last parameter is its output. executable: of the function, compiled as `main`.

    Raises StageError where the compiler refuses, ToolchainError where it is absent.
    """
    buffers = [buffer_of(function, parameter) for parameter in function.params]
    kinds = [(tuple(int(x) for x in b.shape), str(b.dtype)) for b in buffers if b is not None]
    last = len(kinds) - 1
    memories = [
        Memory("output" if at == last else "input", bytes_of(*kind), at % last if last else 0)
        for at, kind in enumerate(kinds)
    ]
    values = tuple(Value(at, 0, *kind) for at, kind in enumerate(kinds))
    step = Step("main", tuple(range(len(kinds))), 1)
    plan = Plan(tuple(memories), values, (step,), tuple(range(last)), (last,), (), ())
    inputs = tuple(TensorSpec(f"p{at}", *kind) for at, kind in enumerate(kinds[:-1]))
    network = Network("kernel", inputs, ("output",), target.threads)
    link(path, [executable.mod], plan, network, target.compiler, _runtime(target.compiler))


@functools.cache
def _runtime(compiler: Command) -> tuple[Path, ...]:
    """Return the runtime's objects, compiled once for a process."""
    folder = tempfile.TemporaryDirectory(prefix="tvmflow-runtime-")
    _FOLDERS.append(folder)
    return tuple(runtime_objects(Path(folder.name), compiler))


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # they end with the process
