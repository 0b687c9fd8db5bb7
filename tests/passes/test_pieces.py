"""Test that kernels compiled in parallel pieces equal those that TVM compiles at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LoadedLibrary, build_scheduled, export
from tvmflow.codegen.network.link import kernel_objects
from tvmflow.codegen.parallel_codegen import PIECES, compile_machine_code, replace_by_objects, run_in_threads
from tvmflow.passes.pipeline import KERNEL_PIPELINE, register_kernel_pipeline

pytestmark = pytest.mark.heavy
SIZES = range(2, 2 + PIECES + 3)  # some pieces have two kernels


def _network() -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: Any = x
            for size in SIZES:  # each product has a shape of its own, so it is a kernel of its own
                weight = np.random.default_rng(size).standard_normal((size, size + 1), dtype=np.float32)
                value = builder.emit(relax.op.matmul(value, relax.const(weight)))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.finalize()


def _run(executable: Any, x: np.ndarray[Any, Any]) -> Any:
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def test_pieces_compute_what_one_module_does(tmp_path: Path) -> None:
    backend, x = host_backend(), np.random.default_rng(0).standard_normal((4, 2), dtype=np.float32)
    scheduled = build_scheduled(_network(), backend, {})
    assert len(scheduled.executable.mod.imports) == PIECES + 1
    register_kernel_pipeline()
    with backend.tvm_target() as target:
        whole = tvm.compile(scheduled.module, target, tir_pipeline=KERNEL_PIPELINE)
    compile_machine_code(scheduled.executable)
    expected = _run(scheduled.executable, x)
    np.testing.assert_array_equal(expected, _run(whole, x))
    export(scheduled, tmp_path / "library.so")
    np.testing.assert_array_equal(LoadedLibrary(tmp_path / "library.so", 2).run(x)[0], expected)


def test_the_same_module_gives_the_same_bytes(tmp_path: Path) -> None:
    bytes_of = []
    for name in ("one", "two"):
        scheduled = build_scheduled(_network(), host_backend(), {})
        export(scheduled, tmp_path / f"{name}.so")
        (tmp_path / name).mkdir()
        objects = kernel_objects(scheduled.executable.mod.imports, tmp_path / name)
        bytes_of.append([file.read_bytes() for file in (tmp_path / f"{name}.so", *objects)])
    assert bytes_of[0] == bytes_of[1]


def test_object_files_are_what_the_pieces_would_be_written_as(tmp_path: Path) -> None:
    executable = build_scheduled(_network(), host_backend(), {}).executable
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    before = [file.read_bytes() for file in kernel_objects(executable.mod.imports, tmp_path / "before")]
    replace_by_objects(executable, tmp_path)
    replace_by_objects(executable, tmp_path)  # once is enough
    assert [part.kind for part in executable.mod.imports] == ["llvm", *["static_library"] * PIECES]
    assert [file.read_bytes() for file in kernel_objects(executable.mod.imports, tmp_path / "after")] == before


def test_a_network_of_one_kernel_or_none_is_compiled(tmp_path: Path) -> None:
    for count in (0, 1):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 2), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                y = builder.emit(relax.op.add(x, x)) if count else x
                output = builder.emit_output(y)
            builder.emit_func_output(output)
        values = np.ones((4, 2), np.float32)
        executable = build_scheduled(builder.finalize(), host_backend(), {}).executable
        np.testing.assert_array_equal(_run(executable, values), values * (1 + count))


def test_a_fault_of_one_piece_is_a_fault() -> None:
    def fails(item: int) -> int:
        if item == 3:
            raise RuntimeError("of the third")
        return item

    with pytest.raises(RuntimeError, match="of the third"):
        run_in_threads(fails, range(5))
    assert run_in_threads(str, range(3)) == ["0", "1", "2"]
