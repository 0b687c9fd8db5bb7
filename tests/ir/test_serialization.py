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

from tests.ir.modules import calling, kernel_of, small_module
from tvmflow.ir.relax import allowed_ir
from tvmflow.ir.relax.allowed_ir import check_ir
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others, save_module
from tvmflow.ir.relax.tensors import replace_tensors
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.support.errors import ModelFileError


def test_a_module_comes_back_as_it_was(tmp_path: Path) -> None:
    module = small_module()
    save_module(module, tmp_path, {"half": small_module(0.5), "same": small_module()})
    tvm.ir.assert_structural_equal(load_module(tmp_path), module)
    others = load_others(tmp_path)
    tvm.ir.assert_structural_equal(others["half"], small_module(0.5))
    tvm.ir.assert_structural_equal(others["same"], module)


def test_the_same_module_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "loaded")]
    for folder in folders:
        folder.mkdir()
    save_module(small_module(), folders[0])
    save_module(small_module(), folders[1])
    save_module(load_module(folders[0]), folders[2])
    for name in (IR_NAME, WEIGHTS_NAME):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (folders[0] / WEIGHTS_NAME).read_bytes() == (folders[2] / WEIGHTS_NAME).read_bytes()


def test_the_ir_holds_names_in_place_of_numbers(tmp_path: Path) -> None:
    save_module(small_module(), tmp_path)
    nodes = json.loads((tmp_path / IR_NAME).read_text())["nodes"]
    names = [node["data"] for node in nodes if node["type"] == "ffi.Tensor"]
    assert names and all(name.startswith("w0") for name in names)


def test_a_constant_keeps_its_type_whatever_stands_in_its_place() -> None:
    numbers: list[Any] = []

    def number(tensor: Any) -> Any:
        numbers.append(tensor)
        return tvm.runtime.tensor(np.array(len(numbers) - 1, np.int64))

    away = replace_tensors(small_module(), number)
    back = replace_tensors(away, lambda tensor: numbers[int(tensor.numpy())])
    tvm.ir.assert_structural_equal(back, small_module())


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


_PACKED = "ffi.ModuleLoadFromFile"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _, x: relax.op.call_dps_packed(_PACKED, [x], relax.TensorType((2, 3), "float32")), "call_dps_packed"),
        (
            lambda _, x: relax.op.call_pure_packed(_PACKED, x, ty_args=relax.TensorType((2, 3), "float32")),
            "call_pure_packed",
        ),
        (kernel_of('T.call_extern("float32", "system", a[v, w])'), "call_extern"),
        (kernel_of(f'T.Cast("float32", T.call_packed("{_PACKED}", a[v, w]))'), "packed"),
        (kernel_of('T.call_llvm_pure_intrin("float32", "llvm.exp", a[v, w])'), "call_llvm"),
        (kernel_of("a[v, w]", 'T.sblock_attr({"pragma_import_llvm": "text"})'), "pragma_import_llvm"),
    ],
    ids=["dps_packed", "pure_packed", "extern", "packed", "llvm", "pragma"],
)
def test_ir_that_does_more_than_compute_is_refused(tmp_path: Path, make: Any, says: str) -> None:
    save_module(small_module(), tmp_path, {"small": calling(make)})
    load_module(tmp_path)
    with pytest.raises(ModelFileError, match=says):
        load_others(tmp_path)
    save_module(calling(make), tmp_path)
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "T.if_then_else(a[v, w] < T.float32(0), T.exp(a[v, w]), a[v, w])",
        "a[1 - v, w // 2 + w % 2]",
        "T.if_then_else(1 <= v and w < 2, a[v - 1, w + 1], T.float32(0))",
        'a[T.max(T.min(T.Cast("int32", a[v, w]) + 1, 1), 0), w]',
    ],
)
def test_a_kernel_that_computes_is_read(tmp_path: Path, statement: str) -> None:
    module = calling(kernel_of(statement))
    save_module(module, tmp_path)
    tvm.ir.assert_structural_equal(load_module(tmp_path), module)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("a[v + 1, w]", "index"),
        ("a[v, w - 1]", "index"),
        ("a[v, w * 1000]", "index"),
        ('a[T.Cast("int32", a[v, w]), w]', "index"),
        ("T.if_then_else(a[v, w] < T.float32(1), a[v + 1, w], a[v, w])", "index"),
        ("T.Select(v < 1, a[v + 1, w], a[v, w])", "index"),
        ("a[(v * 1073741824 * 4) // 4294967296, w]", "index"),
        ('a[T.Cast("int32", T.Cast("int64", v) * T.int64(4294967295)) // 1000, w]', "index"),
        ("a[v, w // (v - 1)]", "index"),
    ],
)
def test_a_kernel_that_may_leave_its_buffers_is_refused(tmp_path: Path, statement: str, says: str) -> None:
    save_module(calling(kernel_of(statement)), tmp_path)
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


_LOOPS = """
@T.prim_func(s_tir=True)
def kernel(a: T.Buffer((2, 3), "float32"), c: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("c"):
            v = T.axis.spatial(2, i)
            w = T.axis.spatial(3, j)
            c[v, w] = a[v, w]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("T.axis.spatial(3, j)", "T.axis.spatial(3, j + 4)", "block variable"),
        ("T.axis.spatial(3, j)", "T.axis.spatial(30, j)", "another range"),
        ("T.axis.spatial(3, j)", "T.axis.spatial(3, i)", "block variable|one loop|range"),
        ("c[v, w] =", "c[w, v] =", "a store"),
        ("c[v, w] =", "c[v, w + 1] =", "a store"),
        ("c[v, w] =", "c[0, w] =", "a store"),
        ("T.grid(2, 3)", "T.grid(2, 30)", "range"),
        ("for i, j in T.grid(2, 3):", "for i in T.parallel(2):\n      for j in range(3):", "serial"),
    ],
)
def test_a_kernel_of_another_form_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in _LOOPS
    result = relax.TensorType((2, 3), "float32")
    make = lambda text: calling(lambda builder, x: relax.call_tir(builder.add_func(parsed(text), "k"), [x], result))  # noqa: E731
    save_module(make(_LOOPS), tmp_path)
    load_module(tmp_path)
    save_module(make(_LOOPS.replace(old, new)), tmp_path)
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


def _place_of_large_type(nodes: list[Any]) -> int:
    """Return the place of the type of 3000 rows, the type of a parameter that nothing reads."""

    def rows(kind: dict[str, Any]) -> int:
        extents = nodes[nodes[kind["data"]["shape"]]["data"]["values"]]["data"]
        return int(nodes[nodes[extents[0]]["data"]["value"]]["data"])

    return next(at for at, node in enumerate(nodes) if node["type"] == "relax.TensorType" and rows(node) == 3000)


@pytest.mark.parametrize(
    ("node", "key", "says"),
    [
        ("ir.GenericConst", "ty", "constant of float32"),
        ("ir.Call", "ty", "must be correct"),
        ("relax.expr.DataflowVar", "ty", "cannot be assigned"),
        ("ir.TupleGetItem", "ty", "part of a tuple"),
    ],
)
def test_a_type_that_does_not_follow_is_refused(tmp_path: Path, node: str, key: str, says: str) -> None:
    """A kernel is made for the type, not for the numbers."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    unread = relax.Var("unread", relax.TensorType((3000, 3000), "float32"))
    with builder.function("main", [unread, x]):
        with builder.dataflow():
            y = builder.emit(relax.op.exp(x))
            if node == "ir.TupleGetItem":
                y = relax.TupleGetItem(builder.emit(relax.op.split(x, 2)), 1)
            if node == "ir.GenericConst":
                y = builder.emit(relax.op.add(y, builder.emit(relax.op.sum(relax.const(np.ones((2, 3), np.float32))))))
            output = builder.emit_output(y if node == "ir.TupleGetItem" else relax.op.negative(y))
        builder.emit_func_output(output)
    save_module(builder.finalize(), tmp_path)
    graph = json.loads((tmp_path / IR_NAME).read_text())
    nodes = graph["nodes"]
    large, place = _place_of_large_type(nodes), next(at for at, one in enumerate(nodes) if one["type"] == node)
    nodes[place]["data"][key] = large
    for one in nodes:
        if one["type"] == "relax.expr.VarBinding" and one["data"]["value"] == place:
            nodes[one["data"]["var"]]["data"]["ty"] = large
    (tmp_path / IR_NAME).write_text(json.dumps(graph))
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


def test_a_lookup_that_checks_no_index_is_refused(tmp_path: Path) -> None:
    rows = relax.const(np.array([5], np.int32))
    for mode in ("clip", "fast"):
        save_module(calling(lambda _, x, mode=mode: relax.op.take(x, rows, 0, mode=mode)), tmp_path)
        if mode == "clip":
            load_module(tmp_path)
    with pytest.raises(ModelFileError, match="lookup"):
        load_module(tmp_path)


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
    save_module(small_module(), tmp_path)
    text = (tmp_path / IR_NAME).read_text()
    assert old in text
    (tmp_path / IR_NAME).write_text(text.replace(old, new))
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


@pytest.mark.parametrize("inline", [True, False])
def test_sizes_are_checked_in_the_forms_of_both_versions_of_tvm(inline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM 0.26 writes a number into its node, 0.27 a node of its own."""
    numbers = frozenset({"value"}) if inline else frozenset()
    monkeypatch.setattr(allowed_ir, "_numbers_of", lambda kind: numbers if kind == "ir.IntImm" else frozenset())

    def graph(size: int) -> dict[str, Any]:
        nodes = [{"type": "None"}, {"type": "int", "data": size}]
        nodes += [{"type": "ir.IntImm", "data": {"value": size if inline else 1}}, {"type": "ffi.Array", "data": [2]}]
        nodes += [{"type": "relax.expr.ShapeExpr", "data": {"values": 3}}]
        return {"nodes": nodes}

    for size in (0, 1, 4, 224, 1 << 20):
        check_ir(graph(size))
    for size in (-1, 1 << 50):
        with pytest.raises(ModelFileError, match=f"the size {size}"):
            check_ir(graph(size))
