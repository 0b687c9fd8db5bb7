"""Test that a module is read from its two files as it was written, and always written to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tvmflow.ir.relax.allowed_ir import check_ir
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others, save_module
from tvmflow.ir.relax.tensors import replace_tensors
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.support.errors import ModelFileError


def _module(scale: float = 1.0) -> Any:
    """Return a module with constants of several dtypes, a scalar among them, and one that is read twice."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    weight = relax.const(scale * np.arange(6, dtype=np.float32).reshape(2, 3))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(relax.op.multiply(x, weight), weight))
            y = builder.emit(relax.op.add(y, relax.const(2.5, "float32")))
            half = builder.emit(relax.op.astype(y, "bfloat16"))
            half = builder.emit(relax.op.multiply(half, relax.const(np.full((3,), 0.5, ml_dtypes.bfloat16))))
            more = relax.op.add(relax.op.astype(half, "int32"), relax.const(np.array([[7], [-9]], np.int32)))
            output = builder.emit_output(builder.emit(more))
        builder.emit_func_output(output)
    return builder.finalize()


def test_a_module_comes_back_as_it_was(tmp_path: Path) -> None:
    module = _module()
    save_module(module, tmp_path, {"half": _module(0.5), "same": _module()})
    tvm.ir.assert_structural_equal(load_module(tmp_path), module)
    others = load_others(tmp_path)
    tvm.ir.assert_structural_equal(others["half"], _module(0.5))
    tvm.ir.assert_structural_equal(others["same"], module)


def test_the_same_module_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "loaded")]
    for folder in folders:
        folder.mkdir()
    save_module(_module(), folders[0])
    save_module(_module(), folders[1])
    save_module(load_module(folders[0]), folders[2])
    for name in (IR_NAME, WEIGHTS_NAME):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (folders[0] / WEIGHTS_NAME).read_bytes() == (folders[2] / WEIGHTS_NAME).read_bytes()


def test_the_ir_holds_names_in_place_of_numbers(tmp_path: Path) -> None:
    save_module(_module(), tmp_path)
    nodes = json.loads((tmp_path / IR_NAME).read_text())["nodes"]
    names = [node["data"] for node in nodes if node["type"] == "ffi.Tensor"]
    assert names and all(name.startswith("w0") for name in names)


def test_a_constant_keeps_its_type_whatever_stands_in_its_place() -> None:
    numbers: list[Any] = []

    def number(tensor: Any) -> Any:
        numbers.append(tensor)
        return tvm.runtime.tensor(np.array(len(numbers) - 1, np.int64))

    away = replace_tensors(_module(), number)
    back = replace_tensors(away, lambda tensor: numbers[int(tensor.numpy())])
    tvm.ir.assert_structural_equal(back, _module())


def test_a_tensor_of_another_kind_is_refused(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float8_e4m3fn"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(x, relax.const(np.zeros(2, ml_dtypes.float8_e4m3fn), "float8_e4m3fn")))
            output = builder.emit_output(y)
        builder.emit_func_output(output)
    with pytest.raises(ModelFileError, match="float8"):
        save_module(builder.finalize(), tmp_path)


def _calling(make: Any) -> Any:
    """Return a module whose main calls what `make(builder, x)` returns."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(make(builder, x)))
        builder.emit_func_output(output)
    return builder.finalize()


def _kernel(statement: str, annotation: str = "") -> Any:
    """Return the call of a TIR function with one statement beside its own."""
    text = f"""
@T.prim_func(s_tir=True)
def kernel(a: T.Buffer((2, 3), "float32"), c: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("c"):
            v, w = T.axis.remap("SS", [i, j])
            {annotation}
            c[v, w] = {statement}
"""

    def make(builder: Any, x: Any) -> Any:
        function = builder.add_func(parsed(text), "kernel")
        return relax.call_tir(function, [x], relax.TensorType((2, 3), "float32"))

    return make


_PACKED = "ffi.ModuleLoadFromFile"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _, x: relax.op.call_dps_packed(_PACKED, [x], relax.TensorType((2, 3), "float32")), "call_dps_packed"),
        (
            lambda _, x: relax.op.call_pure_packed(_PACKED, x, ty_args=relax.TensorType((2, 3), "float32")),
            "call_pure_packed",
        ),
        (_kernel('T.call_extern("float32", "system", a[v, w])'), "call_extern"),
        (_kernel(f'T.Cast("float32", T.call_packed("{_PACKED}", a[v, w]))'), "packed"),
        (_kernel('T.call_llvm_pure_intrin("float32", "llvm.exp", a[v, w])'), "call_llvm"),
        (_kernel("a[v, w]", 'T.sblock_attr({"pragma_import_llvm": "text"})'), "pragma_import_llvm"),
    ],
    ids=["dps_packed", "pure_packed", "extern", "packed", "llvm", "pragma"],
)
def test_ir_that_does_more_than_compute_is_refused(tmp_path: Path, make: Any, says: str) -> None:
    save_module(_module(), tmp_path, {"small": _calling(make)})
    load_module(tmp_path)
    with pytest.raises(ModelFileError, match=says):
        load_others(tmp_path)
    save_module(_calling(make), tmp_path)
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


def test_a_kernel_that_computes_is_read(tmp_path: Path) -> None:
    module = _calling(_kernel("T.if_then_else(a[v, w] < T.float32(0), T.exp(a[v, w]), a[v, w])"))
    save_module(module, tmp_path)
    tvm.ir.assert_structural_equal(load_module(tmp_path), module)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"relax.add"', '"relax.call_inplace_packed"', "call_inplace_packed"),
        ('"float32"', '"custom[x]32"', "dtype"),
        ('{"type":"int","data":3}', f'{{"type":"int","data":{1 << 50}}}', "size"),
        ('"type":"ir.Op"', '"type":"relax.expr.ExternFunc"', "ExternFunc"),
        ('"data":"main"', '"data":"ma in"', "function"),
    ],
)
def test_ir_that_was_written_by_hand_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    save_module(_module(), tmp_path)
    text = (tmp_path / IR_NAME).read_text()
    assert old in text
    (tmp_path / IR_NAME).write_text(text.replace(old, new))
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


@pytest.mark.parametrize("inline", [True, False])
def test_sizes_are_checked_in_the_forms_of_both_versions_of_tvm(inline: bool) -> None:
    """TVM 0.26 writes a number into its node, 0.27 a node of its own."""

    def graph(size: int) -> dict[str, Any]:
        sized = {"type": "ir.IntImm", "data": {"value": size if inline else 4}}
        nodes = [{"type": "None"}, {"type": "ffi.Array", "data": [2]}, sized]
        nodes += [{"type": "relax.expr.ShapeExpr", "data": {"values": 1}}, {"type": "int", "data": size}]
        return {"nodes": nodes}

    for size in (0, 1, 4, 224, 1 << 20):
        check_ir(graph(size))
    for size in (-1, 1 << 50):
        with pytest.raises(ModelFileError, match=f"the size {size}"):
            check_ir(graph(size))
